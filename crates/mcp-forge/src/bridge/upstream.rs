//! One upstream: started at the first need, watched, and started again after it died.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    UpstreamState, UpstreamStatus,
    calls::Calls,
    connection::{Connection, Link},
    process::Stderr,
    text::{self, Secrets},
    tools::Owner,
};
use crate::config;

/// Delay before the first new attempt; each further one doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(30);
/// A caller waits for a new attempt this near; for a later one it gets the reason at once.
const WORTH_WAITING: Duration = Duration::from_secs(1);
/// An upstream that lived this long starts over with its delays.
const GOOD_LIFE: Duration = Duration::from_mins(1);
/// What a start gets to notice that it is not wanted any more.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_REASON_CHARS: usize = 1200;

/// One configured MCP server and what has become of it.
pub(super) struct Upstream {
    pub(super) owner: Owner,
    pub(super) config: config::Upstream,
    pub(super) max_message: usize,
    pub(super) secrets: Secrets,
    pub(super) calls: Calls,
    state: watch::Sender<State>,
    failures: AtomicU32,
    /// Ends attempts to start when the bridge is shut down.
    stop: CancellationToken,
    starts: TaskTracker,
}

enum State {
    Idle,
    Starting,
    Ready(Arc<Connection>),
    Failed { reason: String, retry_at: Instant },
    Closed,
}

impl Upstream {
    pub(super) fn new(owner: Owner, config: config::Upstream, max_message: usize) -> Arc<Self> {
        let secrets = Secrets::of(&config.transport);
        let state = watch::Sender::new(State::Idle);
        Arc::new(Self {
            owner,
            config,
            max_message,
            secrets,
            calls: Calls::new(),
            state,
            failures: AtomicU32::new(0),
            stop: CancellationToken::new(),
            starts: TaskTracker::new(),
        })
    }

    /// Begins to connect unless that is done, under way, or too soon after a failure.
    pub(super) fn start(self: &Arc<Self>) {
        let begins = self.state.send_if_modified(|state| {
            let due = match state {
                State::Idle => true,
                State::Ready(connection) => !connection.is_open(),
                State::Failed { retry_at, .. } => Instant::now() >= *retry_at,
                State::Starting | State::Closed => false,
            };
            if due {
                *state = State::Starting;
            }
            due
        });
        if begins {
            let this = Arc::clone(self);
            self.starts.spawn(async move {
                let stop = this.stop.clone();
                stop.run_until_cancelled(Box::pin(this.bring_up())).await;
            });
        }
    }

    /// The connection, started if need be.
    ///
    /// # Errors
    ///
    /// Why there is none, in one sentence.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, String> {
        if let Some(retry_at) = self.retry_soon() {
            sleep_until(retry_at).await;
        }
        self.start();
        let mut states = self.state.subscribe();
        let settled = states
            .wait_for(|state| !matches!(state, State::Idle | State::Starting))
            .await;
        let Ok(state) = settled else {
            return Err("the bridge is shut down".to_owned());
        };
        match &*state {
            State::Ready(connection) => Ok(Arc::clone(connection)),
            State::Failed { reason, retry_at } => {
                let wait = retry_at.saturating_duration_since(Instant::now());
                let hint = if wait > WORTH_WAITING {
                    format!(" (next attempt in {} s)", wait.as_secs() + 1)
                } else {
                    String::new()
                };
                Err(format!("{reason}{hint}"))
            }
            State::Idle | State::Starting | State::Closed => {
                Err("the bridge is shut down".to_owned())
            }
        }
    }

    /// The connection, if there is one now.
    pub(super) fn current(&self) -> Option<Arc<Connection>> {
        match &*self.state.borrow() {
            State::Ready(connection) => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    pub(super) fn status(&self) -> UpstreamStatus {
        let (state, error, tools, server) = match &*self.state.borrow() {
            State::Idle | State::Starting => (UpstreamState::Starting, None, 0, None),
            State::Ready(connection) => (
                UpstreamState::Ready,
                None,
                connection.tools().iter().count(),
                connection.server().map(str::to_owned),
            ),
            State::Failed { reason, .. } => (UpstreamState::Failed, Some(reason.clone()), 0, None),
            State::Closed => (
                UpstreamState::Failed,
                Some("the bridge is shut down".to_owned()),
                0,
                None,
            ),
        };
        UpstreamStatus {
            name: self.owner.server.clone(),
            state,
            error,
            tools,
            server,
        }
    }

    /// Ends the connection for good and waits, bounded, until nothing of it is left.
    pub(super) async fn close(&self) {
        let before = self.state.send_replace(State::Closed);
        self.stop.cancel();
        self.starts.close();
        // A start that is cut short kills what it had started.
        let _ = timeout(CLOSE_TIMEOUT, self.starts.wait()).await;
        if let State::Ready(connection) = before {
            connection.close("the bridge is shut down");
            connection.gone().await;
        }
    }

    /// Without secrets and control characters, on one line.
    pub(super) fn presentable(&self, reason: &str) -> String {
        text::one_line(&self.secrets.redact(reason), MAX_REASON_CHARS)
    }

    /// A connection ended without being asked to.
    pub(super) fn lost(&self, connection: &Weak<Connection>, lived: Duration, reason: &str) {
        if lived >= GOOD_LIFE {
            self.failures.store(0, Ordering::Relaxed);
        }
        let reason = self.presentable(reason);
        self.state.send_if_modified(|state| {
            let is_current = matches!(state, State::Ready(current) if std::ptr::eq(Arc::as_ptr(current), connection.as_ptr()));
            if is_current {
                tracing::warn!(upstream = %self.owner.server, %reason, "an upstream went away");
                *state = self.failed(reason);
            }
            is_current
        });
    }

    fn retry_soon(&self) -> Option<Instant> {
        match &*self.state.borrow() {
            State::Failed { retry_at, .. } => Some(*retry_at)
                .filter(|at| at.saturating_duration_since(Instant::now()) <= WORTH_WAITING),
            _ => None,
        }
    }

    async fn bring_up(self: Arc<Self>) {
        // Outside the deadline, so that its last words are there when the deadline passes.
        let stderr = Stderr::new(&self.owner.server, &self.secrets);
        let limit = self.config.start_timeout;
        let outcome = timeout(limit, self.connect(&stderr)).await;
        let outcome = outcome
            .unwrap_or_else(|_| Err(format!("it did not start within {} s", limit.as_secs_f64())));
        let next = match outcome {
            Ok(connection) => {
                tracing::info!(upstream = %self.owner.server, tools = connection.tools().iter().count(), "an upstream is ready");
                State::Ready(connection)
            }
            Err(reason) => {
                let words = stderr.last_words().await;
                let reason = self.presentable(&format!("{reason}{words}"));
                tracing::warn!(upstream = %self.owner.server, %reason, "an upstream did not start");
                self.failed(reason)
            }
        };
        self.state.send_if_modified(|state| {
            let wanted = matches!(state, State::Starting);
            if wanted {
                *state = next;
            }
            wanted
        });
    }

    async fn connect(self: &Arc<Self>, stderr: &Arc<Stderr>) -> Result<Arc<Connection>, String> {
        let link = Link::open(self, stderr).await?;
        Connection::over(link, self, stderr).await
    }

    fn failed(&self, reason: String) -> State {
        let before = self.failures.fetch_add(1, Ordering::Relaxed).min(16);
        let delay = FIRST_DELAY
            .saturating_mul(2_u32.saturating_pow(before))
            .min(MAX_DELAY);
        State::Failed {
            reason,
            retry_at: Instant::now() + delay,
        }
    }
}
