//! MCP over HTTP: one address for clients of all versions, and for each principal a place of its
//! own, so that the session of one is not even there for another.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use rmcp::{
    ServerHandler,
    model::{ErrorCode, ProtocolVersion, ServerJsonRpcMessage},
    transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService},
};
use tokio_util::sync::CancellationToken;

use super::{Client, Door, handshakes::Handshakes, transport};
use crate::{
    config::Config,
    identity::Caller,
    names::Principal,
    service::Service,
    web::{JsonError, check_json, is_json, read_body},
};

/// Sessions of MCP's older versions that one principal may have.
const MAX_HANDSHAKES: usize = 200;

/// Such a session ends after so long without a message either way, and a turn may be silent for
/// its whole time.
const IDLE: Duration = Duration::from_mins(5);

/// How often a silent stream says that it is alive, so that nobody between hangs up.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How a subscription's request looks: it has no end of its own.
const LISTEN: &str = "subscriptions/listen";

/// The request with which older versions begin.
const INITIALIZE: &str = "initialize";

/// So many places are kept whether they are used or not.
const KEPT_PLACES: usize = 1_000;

/// Answers one principal's requests.
type Place = Box<dyn Fn(Request<Full<Bytes>>) -> BoxFuture<'static, Response> + Send + Sync>;

/// A principal's place, and the sessions that are there.
type Entry = (Arc<Place>, Arc<Handshakes>);

/// The MCP address of the HTTP service.
pub(crate) struct Endpoint {
    most_body: usize,
    /// Ends all sessions and streams.
    stop: CancellationToken,
    new_place: Box<dyn Fn(Principal) -> Entry + Send + Sync>,
    places: Mutex<HashMap<Principal, Entry>>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("most_body", &self.most_body)
            .finish_non_exhaustive()
    }
}

/// An answer, and whether its stream ends by itself.
pub(crate) struct Answered {
    /// What the client gets.
    pub(crate) response: Response,
    /// Whether somebody waits for its end.
    pub(crate) ends: bool,
}

impl Endpoint {
    /// The service's, which answers until `stop` is cancelled.
    pub(crate) fn new(service: &Arc<Service>, stop: CancellationToken) -> Self {
        let (clients, clients_stop) = (Arc::clone(service), stop.clone());
        Self::of(service.config(), stop, move |principal| {
            let who = (Door::Http, principal.clone());
            Client::new(Arc::clone(&clients), who, clients_stop.child_token())
        })
    }

    /// Answers as the handlers say, of which each session has one.
    pub(crate) fn of<H: ServerHandler>(
        config: &Config,
        stop: CancellationToken,
        new_handler: impl Fn(&Principal) -> H + Clone + Send + Sync + 'static,
    ) -> Self {
        let most_body = config.server.max_body;
        let idle = IDLE + config.max_limits.timeout;
        let places_stop = stop.clone();
        Self {
            most_body,
            stop,
            new_place: Box::new(move |principal| {
                let new_handler = new_handler.clone();
                let handshakes = Handshakes::new(MAX_HANDSHAKES, idle);
                let settings = settings(most_body, places_stop.child_token());
                new_place(handshakes, settings, move || new_handler(&principal))
            }),
            places: Mutex::default(),
        }
    }

    /// Cancelled when it is to answer no longer.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Answers one request of a caller who may run code.
    pub(crate) async fn answer(&self, caller: &Caller, request: Request<Body>) -> Answered {
        let place = self.place(&caller.principal);
        let (mut parts, body) = request.into_parts();
        // For those who ask later what this caller may do.
        parts.extensions.insert(caller.clone());
        if parts.method != Method::POST {
            let is_delete = parts.method == Method::DELETE;
            let request = Request::from_parts(parts, Full::new(Bytes::new()));
            let mut response = place(request).await;
            if is_delete && response.status() == StatusCode::ACCEPTED {
                // It is done, and clients that were told otherwise complain.
                *response.status_mut() = StatusCode::NO_CONTENT;
            }
            return Answered {
                response,
                ends: false,
            };
        }
        let body = match read_body(body, self.most_body).await {
            Ok(body) => body,
            Err(error) => return Answered::at_once(error.problem().into_response()),
        };
        if is_json(&parts.headers)
            && let Err(refusal) = check(&body)
        {
            return Answered::at_once(refused(&refusal));
        }
        let method = method(&body);
        if method.as_deref() == Some(INITIALIZE) && is_modern(&parts.headers) {
            return Answered::at_once(no_handshake(&body));
        }
        let ends = method.as_deref() != Some(LISTEN);
        let request = Request::from_parts(parts, Full::new(body));
        let response = place(request).await;
        Answered { response, ends }
    }

    fn place(&self, principal: &Principal) -> Arc<Place> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((place, _)) = places.get(principal) {
            return Arc::clone(place);
        }
        // Issuers of tokens may name any number of principals. Only before the map would grow: to look
        // at all is work.
        if places.len() >= KEPT_PLACES && places.len() == places.capacity() {
            places.retain(|_, (place, sessions)| {
                Arc::strong_count(place) > 1 || !sessions.is_empty()
            });
        }
        let entry = (self.new_place)(principal.clone());
        let place = Arc::clone(&entry.0);
        places.insert(principal.clone(), entry);
        place
    }
}

impl Answered {
    fn at_once(response: Response) -> Self {
        Self {
            response,
            ends: true,
        }
    }
}

fn settings(most_body: usize, stop: CancellationToken) -> StreamableHttpServerConfig {
    let mut settings = StreamableHttpServerConfig::default()
        // The gate has looked at both, for every address.
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(most_body)
        .with_sse_keep_alive(Some(KEEP_ALIVE))
        .with_cancellation_token(stop);
    settings.legacy_session_mode = true;
    settings
}

/// A place whose sessions have a handler each.
fn new_place<H: ServerHandler>(
    handshakes: Handshakes,
    settings: StreamableHttpServerConfig,
    new_handler: impl Fn() -> H + Send + Sync + 'static,
) -> Entry {
    let handshakes = Arc::new(handshakes);
    let new_handler = move || Ok(new_handler());
    let answers = StreamableHttpService::new(new_handler, Arc::clone(&handshakes), settings);
    let place: Place = Box::new(move |request| {
        let answers = answers.clone();
        Box::pin(async move { answers.handle(request).await.map(Body::new) })
    });
    (Arc::new(place), handshakes)
}

/// What `rmcp` does not look at: keys that are there twice, and messages that are none.
fn check(body: &[u8]) -> Result<(), Box<ServerJsonRpcMessage>> {
    check_json(body).map_err(|error| {
        let code = match error {
            JsonError::Syntax(_) => ErrorCode::PARSE_ERROR,
            JsonError::DuplicateKey(_) => ErrorCode::INVALID_REQUEST,
        };
        transport::refusal(code, error.to_string(), None)
    })?;
    if transport::parse(body)?.is_none() {
        let text = "not a JSON-RPC 2.0 message: it needs \"jsonrpc\": \"2.0\" and a \"method\"";
        return Err(transport::refusal(
            ErrorCode::INVALID_REQUEST,
            text.to_owned(),
            None,
        ));
    }
    Ok(())
}

/// What the message asks for.
fn method(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Message {
        method: Option<String>,
    }
    serde_json::from_slice::<Message>(body).ok()?.method
}

/// Whether the client says that it speaks a version without a handshake. One that nobody knows is
/// refused as such, by `rmcp`.
fn is_modern(headers: &HeaderMap) -> bool {
    let Some(version) = headers.get("mcp-protocol-version") else {
        return false;
    };
    let mut modern = ProtocolVersion::KNOWN_VERSIONS
        .iter()
        .filter(|known| **known >= ProtocolVersion::V_2026_07_28);
    modern.any(|known| known.as_str() == version)
}

/// The answer to a handshake in a version that has none.
fn no_handshake(body: &[u8]) -> Response {
    #[derive(serde::Deserialize)]
    struct Asked {
        id: Option<rmcp::model::RequestId>,
    }
    let asked = serde_json::from_slice::<Asked>(body).ok();
    let text = "This version has no `initialize`; each request has its version, and `server/discover` says what there is.";
    let refusal = transport::refusal(
        ErrorCode::METHOD_NOT_FOUND,
        text.to_owned(),
        asked.and_then(|asked| asked.id),
    );
    (StatusCode::NOT_FOUND, refused(&refusal)).into_response()
}

fn refused(refusal: &ServerJsonRpcMessage) -> Response {
    let body = serde_json::to_vec(refusal).unwrap_or_default();
    (
        StatusCode::BAD_REQUEST,
        [(CONTENT_TYPE, "application/json")],
        body,
    )
        .into_response()
}
