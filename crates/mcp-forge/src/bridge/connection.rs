//! One live connection to an upstream, and the task that watches it until nothing of it is left.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rmcp::{
    model::{
        CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientConfig, Implementation,
        ProtocolVersion, SubscriptionFilter,
    },
    service::{
        ClientCacheConfig, ClientInitializeError, ClientLifecycleMode, Peer, RoleClient,
        RunningService, ServiceError, serve_client_with_lifecycle,
    },
    transport::{Transport, async_rw::AsyncRwTransport},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use super::{
    http,
    process::{Process, Program, Stderr},
    text,
    tools::Tools,
    transport::{BoundedLines, Closing, Guarded, ImpatientWriter, STALL},
    upstream::Upstream,
};
use crate::config;

/// Pauses before new attempts to reach an HTTP upstream.
const CONNECT_PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];
/// Changes of the list of tools that come this close together are one change.
const COALESCE: Duration = Duration::from_millis(100);
/// Least time between two listings after changes.
const REFRESH_PAUSE: Duration = Duration::from_secs(1);
const REFRESH_TIMEOUT: Duration = Duration::from_secs(30);
/// What a program gets to exit after its input was closed.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);
/// What the protocol library gets to hand over answers that arrived before the end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(1);

/// A handshake that succeeded. Dropping it ends the upstream.
pub(super) struct Link {
    running: RunningService<RoleClient, ClientConfig>,
    process: Option<Process>,
    closing: Arc<Closing>,
    changed: Arc<Notify>,
}

impl Link {
    /// Starts or reaches the upstream and shakes hands. Nothing but the handshake is sent, so
    /// what fails on the way may be tried again.
    ///
    /// # Errors
    ///
    /// Why it failed; nothing is left running.
    pub(super) async fn open(upstream: &Upstream, stderr: &Arc<Stderr>) -> Result<Self, String> {
        match &upstream.config.transport {
            config::Transport::Stdio {
                command,
                args,
                env,
                cwd,
            } => {
                let program = Program {
                    command,
                    args,
                    env,
                    cwd: cwd.as_deref(),
                };
                match Self::open_stdio(upstream, program, stderr, newest()).await? {
                    Ok(link) => Ok(link),
                    // Some servers of the older protocols exit at a first message that is not `initialize`.
                    Err(
                        ClientInitializeError::ConnectionClosed(_)
                        | ClientInitializeError::TransportError { .. },
                    ) => {
                        let older = ClientLifecycleMode::Initialize;
                        let link = Self::open_stdio(upstream, program, stderr, older).await?;
                        link.map_err(|error| http::explain_start(&error))
                    }
                    Err(error) => Err(http::explain_start(&error)),
                }
            }
            config::Transport::Http { url, headers } => {
                Self::open_http(url, headers, upstream.max_message).await
            }
        }
    }

    async fn open_stdio(
        upstream: &Upstream,
        program: Program<'_>,
        stderr: &Arc<Stderr>,
        lifecycle: ClientLifecycleMode,
    ) -> Result<Result<Self, ClientInitializeError>, String> {
        let closing = Arc::new(Closing::default());
        let (process, stdout, stdin) = Process::start(program, stderr)?;
        let reader = BoundedLines::new(stdout, upstream.max_message, Arc::clone(&closing));
        let writer = ImpatientWriter::new(stdin, STALL, Arc::clone(&closing));
        // The reader has its own bound, which ends the connection: a dropped answer would be waited for in vain.
        let transport =
            AsyncRwTransport::new_client(reader, writer).with_max_line_length(usize::MAX);
        let opened = Self::shake_hands(transport, Some(process), &closing, lifecycle).await;
        match (opened, closing.reason()) {
            (Err(_), Some(reason)) => Err(reason.to_owned()),
            (opened, _) => Ok(opened),
        }
    }

    async fn open_http(
        url: &str,
        headers: &BTreeMap<String, String>,
        max_message: usize,
    ) -> Result<Self, String> {
        let mut pauses = CONNECT_PAUSES.iter();
        loop {
            let closing = Arc::new(Closing::default());
            let transport = http::transport(url, headers, max_message)?;
            let error = match Self::shake_hands(transport, None, &closing, newest()).await {
                Ok(link) => return Ok(link),
                Err(error) => error,
            };
            match pauses.next() {
                Some(pause) if http::never_connected(&error) => sleep(*pause).await,
                _ => return Err(http::explain_start(&error)),
            }
        }
    }

    async fn shake_hands<T: Transport<RoleClient> + 'static>(
        transport: T,
        process: Option<Process>,
        closing: &Arc<Closing>,
        lifecycle: ClientLifecycleMode,
    ) -> Result<Self, ClientInitializeError> {
        let changed = Arc::new(Notify::new());
        let transport = Guarded::new(transport, Arc::clone(&changed));
        // No capabilities: upstreams are not offered sampling, elicitation or roots.
        let identity = Implementation::new("mcp-forge", env!("CARGO_PKG_VERSION"));
        let client = ClientConfig::new(ClientCapabilities::default(), identity);
        let running = serve_client_with_lifecycle(client, transport, lifecycle).await?;
        running
            .peer()
            .set_response_cache_config(ClientCacheConfig::disabled())
            .await;
        Ok(Self {
            running,
            process,
            closing: Arc::clone(closing),
            changed,
        })
    }
}

/// A live upstream with its tools. When the last owner lets go, the upstream ends.
pub(super) struct Connection {
    peer: Peer<RoleClient>,
    server: Option<String>,
    tools: RwLock<Arc<Tools>>,
    closing: Arc<Closing>,
    stale: AtomicBool,
}

impl Connection {
    /// Lists the tools and begins to watch.
    ///
    /// # Errors
    ///
    /// The upstream gave no list of tools; nothing is left running.
    pub(super) async fn over(
        link: Link,
        upstream: &Arc<Upstream>,
        stderr: &Arc<Stderr>,
    ) -> Result<Arc<Self>, String> {
        let peer = link.running.peer().clone();
        let info = peer.peer_info();
        let has_tools = info
            .as_ref()
            .is_none_or(|info| info.capabilities.tools.is_some());
        let tools = if has_tools {
            Tools::list(&peer, &upstream.owner).await
        } else {
            Ok(Tools::default())
        };
        let tools = tools
            .map_err(|error| format!("it gave no list of tools: {}", http::explain(&error)))?;
        let server = info.as_ref().and_then(|info| info.server_info.as_ref());
        let server = server
            .map(|server| text::one_line(&format!("{} {}", server.name, server.version), 120));
        let connection = Arc::new(Self {
            peer,
            server,
            tools: RwLock::new(Arc::new(tools)),
            closing: Arc::clone(&link.closing),
            stale: AtomicBool::new(false),
        });
        let needs_subscription = info.is_some_and(|info| {
            let announces = info
                .capabilities
                .tools
                .as_ref()
                .is_some_and(|tools| tools.list_changed == Some(true));
            announces && !info.protocol_version.has_initialize()
        });
        if needs_subscription {
            tokio::spawn(subscribe(
                connection.peer.clone(),
                Arc::clone(&connection.closing),
            ));
        }
        tokio::spawn(refresh(
            Arc::downgrade(&connection),
            Arc::downgrade(upstream),
            Arc::clone(&link.changed),
        ));
        tokio::spawn(watch(
            link,
            Arc::downgrade(&connection),
            Arc::downgrade(upstream),
            Arc::clone(stderr),
        ));
        Ok(connection)
    }

    /// Name and version, as the upstream says.
    pub(super) fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    pub(super) fn tools(&self) -> Arc<Tools> {
        Arc::clone(&self.tools.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a call may be sent over it.
    pub(super) fn is_open(&self) -> bool {
        let over = self.closing.token.is_cancelled() || self.peer.is_transport_closed();
        !over && !self.stale.load(Ordering::Relaxed)
    }

    /// Calls in flight may still end; the next need makes a new connection.
    pub(super) fn retire(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }

    pub(super) fn close(&self, reason: &str) {
        self.closing.close(reason);
    }

    /// Waits, bounded, until nothing of it is left, and says why it ended.
    pub(super) async fn gone(&self) -> Option<&str> {
        let _ = timeout(EXIT_PATIENCE * 3, self.closing.gone.cancelled()).await;
        self.closing.reason()
    }

    /// Sends one call. Dropping the future tells the upstream that it is cancelled.
    ///
    /// # Errors
    ///
    /// No answer, or one that is none. The call may have run.
    pub(super) async fn call(
        &self,
        call: CallToolRequestParams,
    ) -> Result<CallToolResponse, ServiceError> {
        self.peer.call_tool_once(call).await
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.closing.close("it is no longer needed");
    }
}

fn newest() -> ClientLifecycleMode {
    ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
    }
}

/// Waits for the end, whoever brings it, then cleans up and tells.
async fn watch(
    link: Link,
    connection: Weak<Connection>,
    upstream: Weak<Upstream>,
    stderr: Arc<Stderr>,
) {
    let since = Instant::now();
    let Link {
        running,
        process,
        closing,
        changed: _,
    } = link;
    let end = running.cancellation_token();
    let mut ended = pin!(running.waiting());
    let exited = async {
        match &process {
            Some(process) => process.exited().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = closing.token.cancelled() => {}
        () = exited => drop(timeout(DRAIN_PATIENCE, &mut ended).await),
        _ = &mut ended => {}
    }
    end.cancel();
    let status = match process {
        Some(process) => process.stop(EXIT_PATIENCE).await,
        None => None,
    };
    let status = status.map_or_else(
        || "it closed the connection".to_owned(),
        |status| format!("its process ended with {status}"),
    );
    if closing.reason().is_none() {
        closing.close(format!("{status}{}", stderr.last_words().await));
    }
    let reason = closing.reason().unwrap_or_default();
    if let Some(upstream) = upstream.upgrade() {
        upstream.lost(&connection, since.elapsed(), reason);
    }
    closing.gone.cancel();
}

/// Lists the tools again after a change, at most once a second however often it is announced.
async fn refresh(connection: Weak<Connection>, upstream: Weak<Upstream>, changed: Arc<Notify>) {
    let Some(closing) = connection
        .upgrade()
        .map(|connection| Arc::clone(&connection.closing))
    else {
        return;
    };
    loop {
        tokio::select! {
            () = closing.token.cancelled() => return,
            () = changed.notified() => sleep(COALESCE).await,
        }
        let (Some(connection), Some(upstream)) = (connection.upgrade(), upstream.upgrade()) else {
            return;
        };
        match timeout(
            REFRESH_TIMEOUT,
            Tools::list(&connection.peer, &upstream.owner),
        )
        .await
        {
            Ok(Ok(tools)) => {
                *connection
                    .tools
                    .write()
                    .unwrap_or_else(PoisonError::into_inner) = Arc::new(tools);
            }
            _ => {
                tracing::warn!(upstream = %upstream.owner.server, "an upstream's tools changed, and it does not list them");
            }
        }
        drop((connection, upstream));
        tokio::select! {
            () = closing.token.cancelled() => return,
            () = sleep(REFRESH_PAUSE) => {}
        }
    }
}

/// Servers of the newest protocol announce changes only to those who listen. The announcements
/// themselves are seen by the transport; this keeps the stream open.
async fn subscribe(peer: Peer<RoleClient>, closing: Arc<Closing>) {
    let listen = async {
        loop {
            if let Ok(mut subscription) = peer
                .listen(SubscriptionFilter::builder().tools_list_changed().build())
                .await
            {
                while let Ok(Some(_)) = subscription.next().await {}
            }
            sleep(Duration::from_secs(5)).await;
        }
    };
    closing.token.run_until_cancelled(listen).await;
}
