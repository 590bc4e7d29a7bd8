//! Refusals, as RFC 9457 has them: `application/problem+json`.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    environments::Refusal,
    identity::{Caller, Credential, Scope},
};

/// An answer that says no, and why.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    field: Option<String>,
    refused: Vec<Refusal>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// A problem as it is sent.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProblemView {
    /// Always `about:blank`: the status says which kind of problem it is.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: String,
    /// The status.
    status: u16,
    /// One sentence for people: what was found, and what to send instead.
    detail: String,
    /// Which field of the request it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The packages that the rules do not let in, each with its rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    refused: Vec<Refusal>,
}

impl Problem {
    /// `detail` is one sentence for whoever sent the request, without anything of the host in it.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            field: None,
            refused: Vec::new(),
            headers: Vec::new(),
        }
    }

    /// The address has something in it that is no UTF-8.
    pub(crate) fn bad_path() -> Self {
        let detail = "The address is not UTF-8, percent-encoded where it must be.";
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// About one field of the request.
    pub(crate) fn about(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }

    /// About packages that the rules do not let in.
    pub(crate) fn refused(mut self, refused: &[Refusal]) -> Self {
        self.refused = refused.to_vec();
        self
    }

    /// The same request may do in so many seconds.
    pub(crate) fn again_in(mut self, seconds: u64) -> Self {
        self.headers.push((RETRY_AFTER, seconds.into()));
        self
    }

    /// With what a client needs to come with another token.
    pub(crate) fn with_challenge(mut self, challenge: &str) -> Self {
        // What the operator wrote and is part of one was checked to fit.
        let value =
            HeaderValue::from_str(challenge).unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
        self.headers.push((WWW_AUTHENTICATE, value));
        self
    }

    /// As it is sent.
    pub(crate) fn view(&self) -> ProblemView {
        ProblemView {
            kind: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error").to_owned(),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            field: self.field.clone(),
            refused: self.refused.clone(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        // Texts and numbers can always be written.
        let body = serde_json::to_vec(&self.view()).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.extend(self.headers);
        response
    }
}

/// Refuses a caller whose token is not good for it.
pub(crate) fn needs(caller: &Caller, scope: Scope) -> Result<(), Problem> {
    if caller.may(scope) {
        return Ok(());
    }
    let (word, challenge) = match &caller.credential {
        Credential::Listed => {
            let word = match scope {
                Scope::Run => "run",
                Scope::Admin => "admin",
            };
            let challenge = format!(r#"Bearer error="insufficient_scope", scope="{word}""#);
            (word, challenge)
        }
        Credential::Issued { terms, .. } => {
            let granted = caller.scopes.iter().copied();
            (terms.word(scope), terms.insufficient(granted, scope))
        }
    };
    let detail = format!("This needs a token with the scope `{word}`.");
    Err(Problem::new(StatusCode::FORBIDDEN, detail).with_challenge(&challenge))
}
