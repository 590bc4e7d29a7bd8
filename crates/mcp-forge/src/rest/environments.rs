//! The caller's environments: built, listed, shown, built again, deleted. A build answers when it is done.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Path, RawQuery, State, rejection::PathRejection},
    response::IntoResponse,
};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header::LOCATION};

use super::{
    Answer, Api,
    execute::{idempotency_key, once, read_object},
    json, refusal,
};
use crate::{
    environments::{Built, Teller},
    identity::{Caller, Scope},
    service::{BuildEnvironmentRequest, ServiceError},
    web::{Problem, needs},
};

/// `GET /api/v1/environments`
pub(super) async fn list(State(api): State<Api>, Extension(caller): Extension<Caller>) -> Answer {
    needs(&caller, Scope::Run)?;
    let listed = api.service.list_environments(&caller.principal).await;
    let listed = listed.map_err(|error| refusal::problem(&error))?;
    Ok(json(StatusCode::OK, &listed))
}

/// `POST /api/v1/environments`
pub(super) async fn build(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
    request: Request<Body>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    waits(query.as_deref())?;
    let key = idempotency_key(request.headers())?;
    let (parameters, body) = read_object(&api, request).await?;
    let asked =
        BuildEnvironmentRequest::from_json(parameters).map_err(|error| refusal::problem(&error))?;
    let (service, principal) = (Arc::clone(&api.service), caller.principal.clone());
    let work = Box::pin(async move {
        let (teller, _) = Teller::new();
        let built = service.build_environment(&principal, asked, &teller).await;
        answer(built)
    });
    match key {
        None => work.await,
        Some(key) => {
            let marked = [b"environments\0", &body[..]].concat();
            once(&api, &caller, (&key, &marked), work).await
        }
    }
}

/// `POST /api/v1/environments/{name}/rebuild`
pub(super) async fn rebuild(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    name: Result<Path<String>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    waits(query.as_deref())?;
    let Path(name) = name.map_err(|_| Problem::bad_path())?;
    let key = idempotency_key(&headers)?;
    let marked = [b"rebuild\0", name.as_bytes()].concat();
    let (service, principal) = (Arc::clone(&api.service), caller.principal.clone());
    let work = Box::pin(async move {
        let (teller, _) = Teller::new();
        let built = service
            .rebuild_environment(&principal, &name, &teller)
            .await;
        answer(built)
    });
    match key {
        None => work.await,
        Some(key) => once(&api, &caller, (&key, &marked), work).await,
    }
}

/// `GET /api/v1/environments/{name}`
pub(super) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let Path(name) = name.map_err(|_| Problem::bad_path())?;
    let view = api.service.environment_view(&caller.principal, &name).await;
    let view = view.map_err(|error| refusal::problem(&error))?;
    Ok(json(StatusCode::OK, &view))
}

/// `DELETE /api/v1/environments/{name}`
pub(super) async fn delete(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let Path(name) = name.map_err(|_| Problem::bad_path())?;
    let deleted = api
        .service
        .delete_environment(&caller.principal, &name)
        .await;
    deleted.map_err(|error| refusal::problem(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// 201 for packages that were installed, 200 for those that were there.
fn answer(built: Result<Built, ServiceError>) -> Answer {
    let built = built.map_err(|error| refusal::problem(&error))?;
    let status = if built.cache_hit {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let mut response = json(status, &built);
    let address = format!("/api/v1/environments/{}", built.name);
    if let Ok(address) = HeaderValue::from_str(&address) {
        response.headers_mut().insert(LOCATION, address);
    }
    Ok(response)
}

fn waits(query: Option<&str>) -> Result<(), Problem> {
    match query {
        None | Some("") => Ok(()),
        Some(_) => {
            let detail = "The address takes no parameters: a build is answered when it is done.";
            Err(Problem::new(StatusCode::BAD_REQUEST, detail))
        }
    }
}
