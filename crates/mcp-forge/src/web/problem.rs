//! Refusals, as RFC 9457 has them: `application/problem+json`.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde_json::json;

/// An answer that says no, and why.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// `detail` is one sentence for whoever sent the request, without anything of the host in it.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            headers: Vec::new(),
        }
    }

    /// With one more header.
    pub(crate) fn with_header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.extend(self.headers);
        response
    }
}
