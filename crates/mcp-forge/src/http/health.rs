//! Whether the server is well, for those who watch over it. They show no token, so they learn nothing
//! but that.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{
    StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde_json::{Value, json};

use super::Shared;

/// Whether it is there, and which version.
pub(super) async fn health() -> Response {
    answer(
        StatusCode::OK,
        &json!({"status": "ok", "version": env!("CARGO_PKG_VERSION")}),
    )
}

/// Whether it should be left alone: it answers.
pub(super) async fn live() -> Response {
    answer(StatusCode::OK, &json!({"status": "ok"}))
}

/// Whether it should be sent requests.
pub(super) async fn ready(State(shared): State<Shared>) -> Response {
    let readiness = shared.service.readiness().await;
    let is_draining = shared.draining.is_cancelled();
    let is_ready = readiness.is_ready() && !is_draining;
    let word = |good: bool| if good { "ok" } else { "failed" };
    let mut body = json!({
        "status": if is_draining { "ending" } else if is_ready { "ready" } else { "not ready" },
        "checks": {
            "engine": word(readiness.engine),
            "store": word(readiness.store),
            "disk": word(readiness.disk),
            // Code that calls no tool runs without them, so they do not count.
            "upstreams": if readiness.upstreams { "ok" } else { "degraded" },
        },
    });
    if let Some(oauth) = &shared.credentials.oauth {
        // Whoever has a token of the file is served without them.
        let word = if oauth.has_all_keys() {
            "ok"
        } else {
            "degraded"
        };
        body["checks"]["issuers"] = word.into();
    }
    let status = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    answer(status, &body)
}

fn answer(status: StatusCode, body: &Value) -> Response {
    let headers = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-store"),
    ];
    (status, headers, body.to_string()).into_response()
}
