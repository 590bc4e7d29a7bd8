//! Where a client learns who issues tokens for this service, before it has one: RFC 9728.
//!
//! Any web page may read it, with no credential of its visitor's. It is the same for everybody.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use http::{
    HeaderName, StatusCode, Uri,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_MAX_AGE, CACHE_CONTROL, CONTENT_TYPE,
    },
};

use super::{Shared, no_such_address};
use crate::identity::OAuth;

/// Where it is, for a service without a path.
pub(super) const ROOT: &str = "/.well-known/oauth-protected-resource";

/// Where it is for others: their path follows.
pub(super) const BELOW: &str = "/.well-known/oauth-protected-resource/{*path}";

/// To be read by any page.
const ANYBODY: (HeaderName, &str) = (ACCESS_CONTROL_ALLOW_ORIGIN, "*");

/// What may be asked there.
pub(super) fn methods() -> MethodRouter<Shared> {
    get(document).options(preflight)
}

async fn document(State(shared): State<Shared>, uri: Uri) -> Response {
    let terms = shared.credentials.oauth.as_ref().map(OAuth::terms);
    let Some(terms) = terms.filter(|terms| terms.are_at(uri.path())) else {
        return no_such_address().await.into_response();
    };
    let headers = [
        ANYBODY,
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "public, max-age=300"),
    ];
    (headers, terms.document().to_string()).into_response()
}

/// A page asks before it sends the header that MCP clients send everywhere.
async fn preflight() -> Response {
    let headers = [
        ANYBODY,
        (ACCESS_CONTROL_ALLOW_METHODS, "GET"),
        (ACCESS_CONTROL_ALLOW_HEADERS, "MCP-Protocol-Version"),
        (ACCESS_CONTROL_MAX_AGE, "3600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}
