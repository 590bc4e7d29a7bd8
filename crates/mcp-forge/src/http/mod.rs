//! The HTTP service: where it listens, who may come in, what a client may take, how it ends.
//!
//! What is answered is decided by the doors behind it; here is nothing but the way to them.

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    body::Body,
    extract::{MatchedPath, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use futures_util::StreamExt;
use http::{Request, StatusCode, header::CONTENT_TYPE};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tracing::{Instrument as _, Span};

mod bind;
mod connections;
mod gate;
mod health;
mod holding;
mod metadata;
mod quotas;
mod tls;

pub use bind::Bound;

use crate::{
    identity::{Caller, Credential, Credentials, JwksError, Scope, TokensError},
    mcp::{self, Endpoint},
    rest,
    servers::Listening,
    service::Service,
    telemetry::{
        TraceContext,
        spans::{self, RequestSpan},
    },
    web::Problem,
};
use connections::Connections;
use gate::Gate;
use holding::Holding;
use quotas::{Counted, Quotas};

/// How long the last answers may take to reach clients that are hung up on.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// The HTTP service cannot be had. Nothing is listened at.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address makes no sense.
    #[error(
        "{address}: {problem}; write an address and a port, such as 127.0.0.1:3000 or [::1]:3000"
    )]
    Address {
        /// As it was given.
        address: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Other machines could listen to what is said.
    #[error(
        "{0} can be reached from other machines, and without TLS everybody on the way reads the tokens and the answers: \
         give server.tls.cert and server.tls.key, or, if a proxy in front of it speaks TLS, set server.plaintext: true; \
         127.0.0.1 serves this machine only"
    )]
    Exposed(SocketAddr),
    /// The system does not let it listen there.
    #[error("{address}: cannot be listened at: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error("{}: {problem}", file.display())]
    Tls {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The tokens cannot be read or made.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The keys of those who issue tokens cannot be read.
    #[error(transparent)]
    Jwks(#[from] JwksError),
    /// The signals that end the server could not be watched.
    #[error("signals cannot be watched: {0}")]
    Signals(io::Error),
}

/// What every request can reach.
#[derive(Debug, Clone)]
struct Shared {
    service: Arc<Service>,
    mcp: Arc<Endpoint>,
    quotas: Arc<Quotas>,
    credentials: Arc<Credentials>,
    /// Requests whose answer has an end and has not ended.
    work: TaskTracker,
    /// Cancelled when nobody new is let in.
    draining: CancellationToken,
}

/// Serves clients at an address until a signal ends the server, and until then others on the data
/// directory's socket, if it could be made. After the signal nobody new is let in, and what runs has
/// the configured time to end; a second signal cuts that short. By the end every turn is over and
/// every upstream stopped.
pub async fn serve(
    service: Arc<Service>,
    bound: Bound,
    credentials: Credentials,
    socket: Option<Listening>,
    signals: Signals,
) {
    let mcp = Endpoint::new(&service, CancellationToken::new());
    serve_mcp(service, mcp, bound, credentials, socket, signals).await;
}

/// As [`serve`], with another MCP endpoint.
pub(crate) async fn serve_mcp(
    service: Arc<Service>,
    mcp: Endpoint,
    bound: Bound,
    credentials: Credentials,
    socket: Option<Listening>,
    mut signals: Signals,
) {
    let stop = mcp.stop().clone();
    let shared = Shared {
        mcp: Arc::new(mcp),
        service: Arc::clone(&service),
        quotas: Arc::new(Quotas::new(&service.config().server)),
        credentials: Arc::new(credentials),
        work: TaskTracker::new(),
        draining: CancellationToken::new(),
    };
    let others = socket.map(|socket| {
        tokio::spawn(mcp::serve_socket(
            Arc::clone(&service),
            socket,
            stop.clone(),
            None,
        ))
    });
    service.start();
    let server = &service.config().server;
    let gate = Arc::new(Gate::new(
        bound.hosts.clone(),
        &server.allowed_origins,
        Arc::clone(&shared.credentials),
    ));
    let connections = Connections::new(
        router(&shared, gate, stop.clone()),
        server.max_connections,
        shared.draining.clone(),
    );
    tokio::select! {
        () = connections.accept(bound) => {}
        () = signals.next() => {}
    }
    shared.draining.cancel();
    shared.work.close();
    tokio::select! {
        () = async { tokio::join!(shared.work.wait(), service.executions().idle()); } => {}
        () = tokio::time::sleep(server.drain) => {
            tracing::warn!("requests were ended: they took longer than server.drain");
        }
        () = signals.next() => {}
    }
    stop.cancel();
    service.executions().stop();
    connections.end(LAST_BYTES).await;
    // What was dropped has ended, and written so to the audit log.
    let _ = tokio::time::timeout(LAST_BYTES, shared.work.wait()).await;
    if let Some(others) = others {
        // It ends with `stop`; that it failed is of no consequence any more.
        let _ = others.await;
    }
    service.shutdown().await;
}

fn router(shared: &Shared, gate: Arc<Gate>, stop: CancellationToken) -> Router {
    let background = rest::Background {
        tasks: shared.work.clone(),
        stop,
    };
    Router::new()
        .route("/mcp", any(answer_mcp))
        .route("/metrics", get(metrics))
        .with_state(shared.clone())
        .merge(rest::router(Arc::clone(&shared.service), background))
        .layer(middleware::from_fn_with_state(shared.clone(), admit))
        .merge(public(shared))
        .fallback(no_such_address)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(gate, gate::pass))
}

/// What the gate lets everybody ask.
fn public(shared: &Shared) -> Router {
    Router::new()
        .route("/health", get(health::health))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route(metadata::ROOT, metadata::methods())
        .route(metadata::BELOW, metadata::methods())
        .with_state(shared.clone())
}

/// A response whose stream has no end of its own.
#[derive(Debug, Clone, Copy)]
struct Endless;

async fn answer_mcp(State(shared): State<Shared>, request: Request<Body>) -> Response {
    let caller = match gate::caller(&request, Scope::Run) {
        Ok(caller) => caller,
        Err(refused) => return refused.into_response(),
    };
    let mut answered = shared.mcp.answer(&caller, request).await;
    if !answered.ends {
        answered.response.extensions_mut().insert(Endless);
    }
    answered.response
}

/// What is counted, for Prometheus. It is about everybody.
async fn metrics(State(shared): State<Shared>, request: Request<Body>) -> Response {
    if let Err(refused) = gate::caller(&request, Scope::Admin) {
        return refused.into_response();
    }
    let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, shared.service.metrics().await).into_response()
}

/// Counts a request against the quotas of whoever sent it, and as work that is waited for.
async fn admit(State(shared): State<Shared>, mut request: Request<Body>, next: Next) -> Response {
    let working = shared.work.token();
    let caller = request.extensions().get::<Caller>().cloned();
    // The gate lets nobody pass without one.
    let Some(caller) = caller else {
        return gate::unknown().into_response();
    };
    // Where turns and builds begin it is looked at: asking what there is costs no CPU time to speak of.
    let server = &shared.service.config().server;
    let own = caller.quotas.cpu_seconds_per_hour;
    let cpu_seconds = own.or(server.cpu_seconds_per_hour);
    shared.service.limit_cpu(&caller.principal, cpu_seconds);
    let counted = match shared.quotas.admit(&caller) {
        Ok(counted) => counted,
        Err(refused) => return refused.into_response(),
    };
    let span = span(&mut request, &caller);
    let response = next.run(request).instrument(span.clone()).await;
    span.record("http.response.status_code", response.status().as_u16());
    if response.extensions().get::<Endless>().is_none() {
        return until_its_end(response, (Some(working), counted, span));
    }
    if !response.status().is_success() {
        return response;
    }
    match shared.quotas.open_stream(&caller) {
        Ok(stream) => until_its_end(
            until_its_token_is_over(response, &caller),
            (None, stream, span),
        ),
        Err(refused) => refused.into_response(),
    }
}

/// The response, whose stream ends with the token that opened it: what has no end of its own would
/// tell for ever what its caller may not ask any more.
fn until_its_token_is_over(response: Response, caller: &Caller) -> Response {
    let Credential::Issued {
        until: Some(until), ..
    } = caller.credential
    else {
        return response;
    };
    let left = until.duration_since(SystemTime::now()).unwrap_or_default();
    response.map(|body| {
        let frames = body.into_data_stream();
        Body::from_stream(frames.take_until(tokio::time::sleep(left)))
    })
}

/// A request's span, which it takes along to where it is answered.
fn span(request: &mut Request<Body>, caller: &Caller) -> Span {
    let trace = TraceContext::from_headers(request.headers());
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("", MatchedPath::as_str);
    let span = spans::http(
        (request.method().as_str(), route),
        &caller.principal,
        trace.as_ref(),
    );
    if !span.is_disabled() {
        request.extensions_mut().insert(RequestSpan(span.clone()));
    }
    span
}

/// The response, which counts until its body is sent or nobody wants it any more.
fn until_its_end(
    response: Response,
    counted: (Option<TaskTrackerToken>, Counted, Span),
) -> Response {
    response.map(|body| Body::new(Holding::new(body, counted)))
}

async fn no_such_address() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "There is nothing at this address.")
}

async fn no_such_method() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "This address does not know that method.",
    )
}

/// The signals that end a server. Watched before anybody is told that it is there: one that comes
/// earlier ends it at once.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signals").finish_non_exhaustive()
    }
}

impl Signals {
    /// Begins to watch.
    ///
    /// # Errors
    ///
    /// [`HttpError::Signals`].
    pub fn watch() -> Result<Self, HttpError> {
        let watch = |kind| signal(kind).map_err(HttpError::Signals);
        Ok(Self {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
