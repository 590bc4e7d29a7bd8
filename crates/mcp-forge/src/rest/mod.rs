//! The REST front door: parse, call the service, answer as JSON. No logic.
//!
//! Its operations are one table (`operations.rs`), from which both the routes' documentation and the
//! tests come. Everything is the caller's own; what is somebody else's is not there.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde::Serialize;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

mod approvals;
mod context;
mod documents;
mod environments;
mod events;
mod execute;
mod keys;
mod openapi;
mod operations;
mod page;
mod refusal;
mod sandboxes;
mod sessions;
mod uploads;
mod views;

use crate::{service::Service, web::Problem};
use keys::Keys;

/// Work that goes on when nobody waits for its answer.
#[derive(Debug, Clone)]
pub(crate) struct Background {
    /// What runs.
    pub(crate) tasks: TaskTracker,
    /// Ends it.
    pub(crate) stop: CancellationToken,
}

impl Background {
    /// Runs it to its end, or until it is dropped because the server ends.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let work = async move {
            tokio::select! {
                () = work => {}
                () = stop.cancelled() => {}
            }
        };
        self.tasks.spawn(work.in_current_span());
    }
}

/// What every operation can reach.
#[derive(Debug, Clone)]
struct Api {
    service: Arc<Service>,
    keys: Arc<Keys>,
    background: Background,
}

/// All addresses of REST, its documentation included.
pub(crate) fn router(service: Arc<Service>, background: Background) -> Router {
    let api = Api {
        service,
        keys: Arc::default(),
        background,
    };
    Router::new()
        .route("/api/v1/execute", post(execute::execute))
        .route(
            "/api/v1/executions/{id}",
            get(execute::show).delete(execute::cancel),
        )
        .route("/api/v1/executions/{id}/events", get(events::events))
        .route("/api/v1/sessions", get(sessions::list))
        .route(
            "/api/v1/sessions/{id}",
            get(sessions::show).delete(sessions::delete),
        )
        .route("/api/v1/sessions/{id}/files", get(sessions::files))
        .route(
            "/api/v1/sessions/{id}/files/{*path}",
            get(sessions::file)
                .put(uploads::put)
                .delete(uploads::remove),
        )
        .route("/api/v1/sandbox/spawn", post(sandboxes::spawn))
        .route("/api/v1/sandbox", get(sandboxes::list))
        .route(
            "/api/v1/sandbox/{container_id}",
            get(sandboxes::show).delete(sandboxes::end),
        )
        .route(
            "/api/v1/context/state",
            post(context::put)
                .get(context::show)
                .delete(context::remove),
        )
        .route("/api/v1/tools", get(documents::tools))
        .route("/api/v1/tools/{name}", get(documents::tool))
        .route("/api/v1/environment", get(documents::environment))
        .route(
            "/api/v1/environments",
            get(environments::list).post(environments::build),
        )
        .route(
            "/api/v1/environments/{name}",
            get(environments::show).delete(environments::delete),
        )
        .route(
            "/api/v1/environments/{name}/rebuild",
            post(environments::rebuild),
        )
        .route("/api/v1/approvals", get(approvals::list))
        .route(
            "/api/v1/approvals/{package}",
            put(approvals::approve).delete(approvals::revoke),
        )
        .route("/api/v1/audit", get(documents::audit))
        .route("/openapi.json", get(documents::openapi))
        .route("/docs", get(documents::page))
        .with_state(api)
}

/// What an operation comes to.
type Answer = Result<Response, Problem>;

/// A value as JSON. It is about one caller, so nobody may keep it for another.
fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let Ok(body) = serde_json::to_vec(value) else {
        let detail = "The answer could not be written.";
        return Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response();
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
