//! Streamable HTTP upstreams: secret headers, bounded answers, and errors in plain words.

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
};

use http::{HeaderName, HeaderValue};
use rmcp::{
    model::ErrorData,
    service::{ClientInitializeError, RoleClient, ServiceError},
    transport::{
        DynamicTransportError, StreamableHttpClientTransport, Transport,
        streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError},
    },
};

use super::{text, traced::TracedClient};

type HttpError = StreamableHttpError<reqwest::Error>;

/// Requests to one upstream at a time; the turn's own cap is below.
const MAX_CONCURRENT: usize = 64;
const MAX_DIAGNOSTIC_BYTES: usize = 4 << 10;
const MAX_MESSAGE_CHARS: usize = 500;

/// The transport for an HTTP upstream. Bodies and events above `max_message` bytes are refused
/// before they are parsed. Redirects are followed only within the same origin, so the headers go
/// nowhere else.
///
/// # Errors
///
/// A header cannot be used. The message names it and never shows a value.
pub(super) fn transport(
    url: &str,
    headers: &BTreeMap<String, String>,
    max_message: usize,
) -> Result<impl Transport<RoleClient> + 'static, String> {
    let mut custom = HashMap::new();
    for (name, value) in headers {
        let shown = text::one_line(name, 60);
        let name = HeaderName::try_from(name.as_str())
            .map_err(|_| format!("`{shown}` is no name of a header"))?;
        let mut value = HeaderValue::try_from(value.as_str()).map_err(|_| {
            format!("the value of header `{shown}` has characters that a header cannot have")
        })?;
        value.set_sensitive(true);
        custom.insert(name, value);
    }
    let client = TracedClient::new().map_err(|error| root_cause(&error))?;
    let config = StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(custom)
        .max_concurrent_requests(MAX_CONCURRENT)
        .max_sse_event_size(max_message)
        .max_json_response_size(max_message)
        .max_error_response_size(MAX_DIAGNOSTIC_BYTES);
    Ok(StreamableHttpClientTransport::with_client(client, config))
}

/// Whether a handshake failed before there was a connection.
pub(super) fn never_connected(error: &ClientInitializeError) -> bool {
    match error {
        ClientInitializeError::TransportError { error, .. } => is_connect(error),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => never_connected(fallback),
        _ => false,
    }
}

/// Whether a call failed before there was a connection: it was never sent.
pub(super) fn never_sent(error: &ServiceError) -> bool {
    matches!(error, ServiceError::TransportSend(error) if is_connect(error))
}

/// Why a handshake failed. May still hold secrets that the upstream echoed.
pub(super) fn explain_start(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => explain_transport(error),
        ClientInitializeError::ConnectionClosed(_) => {
            "it ended before the handshake was over".to_owned()
        }
        ClientInitializeError::JsonRpcError(error) => {
            format!("it refused the handshake: {}", explain_answer(error))
        }
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => {
            "it speaks no version of MCP that we speak".to_owned()
        }
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => explain_start(fallback),
        ClientInitializeError::Cancelled => "the start was cancelled".to_owned(),
        // Their texts print the whole message that was received.
        _ => "it answered the handshake with something else".to_owned(),
    }
}

/// Why a request failed. May still hold secrets that the upstream echoed.
pub(super) fn explain(error: &ServiceError) -> String {
    match error {
        ServiceError::McpError(error) => explain_answer(error),
        ServiceError::TransportSend(error) => explain_transport(error),
        ServiceError::TransportClosed => "it closed the connection".to_owned(),
        ServiceError::UnexpectedResponse => "its answer is not what the protocol says".to_owned(),
        other => text::one_line(&other.to_string(), MAX_MESSAGE_CHARS),
    }
}

fn explain_answer(error: &ErrorData) -> String {
    format!(
        "{} (code {})",
        text::one_line(&error.message, MAX_MESSAGE_CHARS),
        error.code.0
    )
}

fn explain_transport(error: &DynamicTransportError) -> String {
    let told = match error.error.downcast_ref::<HttpError>() {
        Some(StreamableHttpError::Client(error)) if error.is_connect() => {
            format!("could not connect: {}", root_cause(error))
        }
        Some(StreamableHttpError::Client(error)) => match error.status() {
            Some(status) => format!("it answered HTTP {}", status.as_u16()),
            None => format!("the request failed: {}", root_cause(error)),
        },
        Some(StreamableHttpError::AuthRequired(_)) => {
            "it refused the credentials (HTTP 401); check its `headers`".to_owned()
        }
        Some(StreamableHttpError::InsufficientScope(_)) => {
            "the credentials do not suffice (HTTP 403)".to_owned()
        }
        Some(other) => other.to_string(),
        None => error.error.to_string(),
    };
    text::one_line(&told, MAX_MESSAGE_CHARS)
}

fn is_connect(error: &DynamicTransportError) -> bool {
    let error = error.error.downcast_ref::<HttpError>();
    matches!(error, Some(StreamableHttpError::Client(error)) if error.is_connect())
}

/// The innermost error: the outer ones repeat the URL, which may hold credentials.
fn root_cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if std::ptr::addr_eq(innermost, std::ptr::from_ref(error)) {
        "the server did not answer".to_owned()
    } else {
        innermost.to_string()
    }
}
