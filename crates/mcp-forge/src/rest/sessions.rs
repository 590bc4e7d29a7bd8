//! The caller's sessions, and the files in them.

use axum::{
    Extension,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    response::{IntoResponse, Response},
};
use http::{
    HeaderValue, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
        X_CONTENT_TYPE_OPTIONS,
    },
};

use super::{
    Answer, Api, json, refusal,
    views::{FilesView, SessionsView},
};
use crate::{
    identity::{Caller, Scope},
    session::MAX_FILE_BYTES,
    web::{Problem, needs},
};

/// `GET /api/v1/sessions`
pub(super) async fn list(State(api): State<Api>, Extension(caller): Extension<Caller>) -> Answer {
    needs(&caller, Scope::Run)?;
    let sessions = api.service.list_sessions(&caller.principal).await;
    let sessions = sessions.map_err(|error| refusal::problem(&error))?;
    let notices = api.service.notices(&caller.principal, None);
    Ok(json(StatusCode::OK, &SessionsView { sessions, notices }))
}

/// `GET /api/v1/sessions/{id}`
pub(super) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let Path(id) = id.map_err(|_| Problem::bad_path())?;
    let state = api.service.session_state(&caller.principal, &id).await;
    let state = state.map_err(|error| refusal::problem(&error))?;
    Ok(json(StatusCode::OK, &state))
}

/// `DELETE /api/v1/sessions/{id}`
pub(super) async fn delete(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let Path(id) = id.map_err(|_| Problem::bad_path())?;
    let deleted = api.service.delete_session(&caller.principal, &id).await;
    deleted.map_err(|error| refusal::problem(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `GET /api/v1/sessions/{id}/files`
pub(super) async fn files(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let Path(id) = id.map_err(|_| Problem::bad_path())?;
    let state = api.service.session_state(&caller.principal, &id).await;
    let state = state.map_err(|error| refusal::problem(&error))?;
    let view = FilesView {
        files: state.files,
        omitted_files: state.omitted_files,
    };
    Ok(json(StatusCode::OK, &view))
}

/// `GET /api/v1/sessions/{id}/files/{path}`
pub(super) async fn file(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    place: Result<Path<(String, String)>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let Path((id, path)) = place.map_err(|_| Problem::bad_path())?;
    let file = api
        .service
        .session_file(&caller.principal, &id, &path)
        .await;
    let file = file.map_err(|error| refusal::problem(&error))?;
    if file.size > file.bytes.len() as u64 {
        let detail = format!(
            "The file has {} bytes, more than the {MAX_FILE_BYTES} that are read; read it with code in the session.",
            file.size
        );
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    }
    let mut response = Response::new(Body::from(file.bytes));
    // Code wrote it: a browser must save it, and never take it for a page of this server.
    for (name, value) in [
        (CONTENT_TYPE, "application/octet-stream"),
        (CONTENT_DISPOSITION, "attachment"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'"),
        (CACHE_CONTROL, "no-store"),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    Ok(response)
}
