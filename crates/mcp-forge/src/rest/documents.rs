//! What there is to read: tools, the environment, the audit log, and the description of all this.

use axum::{
    Extension,
    extract::{Path, State, rejection::PathRejection},
    response::IntoResponse,
};
use http::{
    StatusCode,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE},
};

use super::{
    Answer, Api, json, openapi, page, refusal,
    views::{AuditView, ToolsView},
};
use crate::{
    identity::{Caller, Scope},
    web::{Problem, needs},
};

/// `GET /api/v1/tools`
pub(super) async fn tools(State(api): State<Api>, Extension(caller): Extension<Caller>) -> Answer {
    needs(&caller, Scope::Run)?;
    let tools = api.service.tools_available().await;
    Ok(json(StatusCode::OK, &ToolsView { tools }))
}

/// `GET /api/v1/tools/{name}`
pub(super) async fn tool(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let Path(name) = name.map_err(|_| Problem::bad_path())?;
    let schema = api.service.tool_schema(&name).await;
    let schema = schema.map_err(|error| refusal::problem(&error))?;
    Ok(json(StatusCode::OK, &schema))
}

/// `GET /api/v1/environment`
pub(super) async fn environment(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let info = api.service.environment_info().await;
    let info = info.map_err(|error| refusal::problem(&error))?;
    Ok(json(StatusCode::OK, &info))
}

/// `GET /api/v1/audit`
pub(super) async fn audit(State(api): State<Api>, Extension(caller): Extension<Caller>) -> Answer {
    needs(&caller, Scope::Admin)?;
    let records = api.service.audit_operations();
    let records = records.map_err(|error| refusal::problem(&error))?;
    Ok(json(StatusCode::OK, &AuditView { records }))
}

/// `GET /openapi.json`
pub(super) async fn openapi() -> Answer {
    Ok(json(StatusCode::OK, &openapi::document()))
}

/// `GET /docs`
pub(super) async fn page() -> Answer {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, page::POLICY),
        (CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, page::render(&openapi::document())).into_response())
}
