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
use http::{Method, Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use rmcp::{
    model::{ErrorCode, ServerJsonRpcMessage},
    transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService},
};
use tokio_util::sync::CancellationToken;

use super::{Client, Door, handshakes::Handshakes, transport};
use crate::{
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

/// So many places are kept whether they are used or not.
const KEPT_PLACES: usize = 1_000;

type Place = StreamableHttpService<Client, Handshakes>;

/// A principal's place, and the sessions that are there.
type Entry = (Arc<Place>, Arc<Handshakes>);

/// The MCP address of the HTTP service.
pub(crate) struct Endpoint {
    service: Arc<Service>,
    most_body: usize,
    /// Ends all sessions and streams.
    stop: CancellationToken,
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
    /// Answers until `stop` is cancelled.
    pub(crate) fn new(service: Arc<Service>, stop: CancellationToken) -> Self {
        Self {
            most_body: service.config().server.max_body,
            service,
            stop,
            places: Mutex::default(),
        }
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
            let mut response = place.handle(request).await.map(Body::new);
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
        let ends = !is_subscription(&body);
        let request = Request::from_parts(parts, Full::new(body));
        let response = place.handle(request).await.map(Body::new);
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
        let entry = self.new_place(principal.clone());
        let place = Arc::clone(&entry.0);
        places.insert(principal.clone(), entry);
        place
    }

    fn new_place(&self, principal: Principal) -> Entry {
        let mut config = StreamableHttpServerConfig::default()
            // The gate has looked at both, for every address.
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_max_request_body_bytes(self.most_body)
            .with_sse_keep_alive(Some(KEEP_ALIVE))
            .with_cancellation_token(self.stop.child_token());
        config.legacy_session_mode = true;
        let longest_turn = self.service.config().max_limits.timeout;
        let handshakes = Arc::new(Handshakes::new(MAX_HANDSHAKES, IDLE + longest_turn));
        let (service, stop) = (Arc::clone(&self.service), self.stop.clone());
        let new_client = move || {
            let who = (Door::Http, principal.clone());
            Ok(Client::new(Arc::clone(&service), who, stop.child_token()))
        };
        let place = StreamableHttpService::new(new_client, Arc::clone(&handshakes), config);
        (Arc::new(place), handshakes)
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

fn is_subscription(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Method<'a> {
        #[serde(borrow)]
        method: Option<std::borrow::Cow<'a, str>>,
    }
    serde_json::from_slice::<Method<'_>>(body)
        .is_ok_and(|message| message.method.as_deref() == Some(LISTEN))
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
