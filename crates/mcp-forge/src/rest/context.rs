//! JSON that a program keeps for a session: written with a version, read, removed.

use axum::{
    Extension,
    body::Body,
    extract::{RawQuery, State},
    response::IntoResponse,
};
use http::{Request, StatusCode};

use super::{Answer, Api, execute::read_object, json, refusal};
use crate::{
    identity::{Caller, Scope},
    service::ContextRequest,
    web::{Problem, needs},
};

/// `POST /api/v1/context/state`
pub(super) async fn put(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let (parameters, _) = read_object(&api, request).await?;
    let request = ContextRequest::from_json(parameters);
    let request = request.map_err(|error| refusal::problem(&error))?;
    let kept = api.service.put_context(&caller.principal, request).await;
    let kept = kept.map_err(|error| refusal::problem(&error))?;
    Ok(json(StatusCode::OK, &kept))
}

/// `GET /api/v1/context/state`
pub(super) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let asked = Asked::parse(query.as_deref())?;
    let view = api
        .service
        .context(&caller.principal, &asked.session_id)
        .await;
    let view = view.map_err(|error| refusal::problem(&error))?;
    Ok(json(StatusCode::OK, &view))
}

/// `DELETE /api/v1/context/state`
pub(super) async fn remove(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let asked = Asked::parse(query.as_deref())?;
    let removed = api
        .service
        .remove_context(&caller.principal, &asked.session_id, asked.version);
    removed.await.map_err(|error| refusal::problem(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What the address says.
#[derive(Debug, PartialEq)]
struct Asked {
    session_id: String,
    version: Option<i64>,
}

impl Asked {
    /// Session names need no percent-encoding, so none is undone: what has some is no name.
    fn parse(query: Option<&str>) -> Result<Self, Problem> {
        let wrong = |detail: &str| Problem::new(StatusCode::BAD_REQUEST, detail);
        let (mut session_id, mut version) = (None, None);
        for part in query
            .unwrap_or_default()
            .split('&')
            .filter(|part| !part.is_empty())
        {
            let is_first = match part.split_once('=') {
                Some(("session_id", name)) => session_id.replace(name.to_owned()).is_none(),
                Some(("version", number)) => {
                    let number = number
                        .parse()
                        .map_err(|_| wrong("`version` is a whole number."))?;
                    version.replace(number).is_none()
                }
                _ => false,
            };
            if !is_first {
                return Err(wrong(
                    "The address takes `session_id` and `version`, each once, and nothing else.",
                ));
            }
        }
        let session_id = session_id.ok_or_else(|| {
            wrong("`session_id` is missing: ask for /api/v1/context/state?session_id=NAME.")
                .about("session_id")
        })?;
        Ok(Self {
            session_id,
            version,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_strictly() {
        let asked = Asked::parse(Some("version=3&session_id=a-b")).unwrap();
        assert_eq!((asked.session_id.as_str(), asked.version), ("a-b", Some(3)));
        for wrong in [
            "",
            "version=3",
            "session_id=a&session_id=b",
            "session_id=a&x=1",
            "session_id=a&version=x",
            "session_id",
        ] {
            assert!(Asked::parse(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
