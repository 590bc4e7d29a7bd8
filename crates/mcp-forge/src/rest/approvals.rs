//! Packages that wait for an approval, and those that have one: for whoever answers for the server.

use axum::{
    Extension,
    extract::{Path, State, rejection::PathRejection},
    response::IntoResponse,
};
use http::StatusCode;
use jiff::Timestamp;

use super::{
    Answer, Api, json, refusal,
    views::{ApprovalView, ApprovalsView},
};
use crate::{
    identity::{Caller, Scope},
    store::Approval,
    web::{Problem, needs},
};

/// `GET /api/v1/approvals`
pub(super) async fn list(State(api): State<Api>, Extension(caller): Extension<Caller>) -> Answer {
    needs(&caller, Scope::Admin)?;
    let approvals = api.service.approvals().await;
    let approvals = approvals.map_err(|error| refusal::problem(&error))?;
    let approvals = approvals.into_iter().map(view).collect();
    Ok(json(StatusCode::OK, &ApprovalsView { approvals }))
}

/// `PUT /api/v1/approvals/{package}`
pub(super) async fn approve(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    package: Result<Path<String>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Admin)?;
    let Path(package) = package.map_err(|_| Problem::bad_path())?;
    let by = caller.principal.as_str();
    let approved = api.service.approve_packages(&[package], by).await;
    approved.map_err(|error| refusal::problem(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `DELETE /api/v1/approvals/{package}`
pub(super) async fn revoke(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    package: Result<Path<String>, PathRejection>,
) -> Answer {
    needs(&caller, Scope::Admin)?;
    let Path(package) = package.map_err(|_| Problem::bad_path())?;
    let by = caller.principal.as_str();
    let had = api.service.revoke_approval(&package, by).await;
    if had.map_err(|error| refusal::problem(&error))? {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let detail = "The package was not approved, and nobody asked for it; GET /api/v1/approvals lists those that were.";
    Err(Problem::new(StatusCode::NOT_FOUND, detail))
}

fn view(approval: Approval) -> ApprovalView {
    ApprovalView {
        package: approval.package,
        pattern: approval.pattern,
        asked_by: approval.principal,
        environment: approval.environment,
        asked_at: when(approval.asked_ms),
        approved_at: approval.approved_ms.map(when),
        approved_by: approval.approved_by,
    }
}

fn when(milliseconds: i64) -> String {
    Timestamp::from_millisecond(milliseconds)
        .unwrap_or(Timestamp::MAX)
        .to_string()
}
