//! Sandboxes that stay: each is a live session, seen from the side of what it runs in.

use axum::{
    Extension,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    response::IntoResponse,
};
use http::{Request, StatusCode};

use super::{
    Answer, Api,
    execute::{Unheard, read_object},
    json, refusal,
    views::{SandboxView, SandboxesView, SpawnedView},
};
use crate::{
    identity::{Caller, Scope},
    service::{ServiceError, SpawnRequest},
    session::{SessionError, SessionSummary},
    web::{Problem, needs},
};

/// `POST /api/v1/sandbox/spawn`
pub(super) async fn spawn(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let (parameters, _) = read_object(&api, request).await?;
    let refused = |error: &ServiceError| refusal::problem(error);
    let request = SpawnRequest::from_json(parameters).map_err(|error| refused(&error))?;
    let spawned = api
        .service
        .spawn(&caller.principal, request, &mut Unheard)
        .await;
    let response = spawned.map_err(|error| refused(&error))?;
    let is_fresh = response
        .session
        .as_ref()
        .is_some_and(|session| session.is_fresh);
    let id = response.session_id.clone().unwrap_or_default();
    let sandbox = find(&api, &caller, &id).await?;
    let view = SpawnedView {
        sandbox,
        limits: &response.limits,
        isolation: &response.isolation,
    };
    let status = if is_fresh {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(json(status, &view))
}

/// `GET /api/v1/sandbox`
pub(super) async fn list(State(api): State<Api>, Extension(caller): Extension<Caller>) -> Answer {
    needs(&caller, Scope::Run)?;
    let sandboxes = live(&api, &caller).await?;
    Ok(json(StatusCode::OK, &SandboxesView { sandboxes }))
}

/// `GET /api/v1/sandbox/{container_id}`
pub(super) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let Path(id) = id.map_err(|_| Problem::bad_path())?;
    Ok(json(StatusCode::OK, &find(&api, &caller, &id).await?))
}

/// `DELETE /api/v1/sandbox/{container_id}`
pub(super) async fn end(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let Path(id) = id.map_err(|_| Problem::bad_path())?;
    find(&api, &caller, &id).await?;
    match api.service.delete_session(&caller.principal, &id).await {
        // Somebody was quicker.
        Ok(()) | Err(ServiceError::Session(SessionError::Unknown(_))) => {
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Err(error) => Err(refusal::problem(&error)),
    }
}

async fn find(api: &Api, caller: &Caller, id: &str) -> Result<SandboxView, Problem> {
    let mut sandboxes = live(api, caller).await?.into_iter();
    sandboxes
        .find(|sandbox| sandbox.container_id == id)
        .ok_or_else(|| {
            let detail =
                "There is no such sandbox; GET /api/v1/sandbox lists those that there are.";
            Problem::new(StatusCode::NOT_FOUND, detail)
        })
}

async fn live(api: &Api, caller: &Caller) -> Result<Vec<SandboxView>, Problem> {
    let sessions = api.service.list_sessions(&caller.principal).await;
    let sessions = sessions.map_err(|error| refusal::problem(&error))?;
    let live = sessions
        .into_iter()
        .filter(|session| session.state == "live");
    Ok(live.map(view).collect())
}

fn view(session: SessionSummary) -> SandboxView {
    SandboxView {
        container_id: session.session_id,
        state: if session.running { "running" } else { "idle" },
        generation: session.generation,
        created_at: session.created_at,
        last_used: session.last_used,
        expires_in: session.expires_in,
    }
}
