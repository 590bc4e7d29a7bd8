//! Live sessions: who has which, how long, and what may be known of them.
//!
//! Each session is one task that owns its interpreter (`task.rs`); this registry finds it, or starts
//! it. What outlives it is in the store. The service decides what a caller may ask; here it is done.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

mod answer;
mod error;
mod facts;
mod files;
mod keep;
mod known;
mod look;
mod notes;
mod open;
mod registry;
mod task;
mod tree;
mod uploads;
mod view;
mod volumes;

pub use error::SessionError;
pub use uploads::{Incoming, Placed};
pub use view::{
    ChangesView, DEFAULT_ENVIRONMENT, Expiring, FileView, HistoryView, SessionState,
    SessionSummary, SessionView, file_uri,
};
pub use volumes::{Volume, VolumeRefusal};

use crate::{
    audit::{Audit, fields},
    config::Config,
    engine::{Engine, Environment, Isolation},
    limits::Limits,
    names::{Principal, SessionName},
    runner::wire::Stub,
    store::{Documentation, Documented, Life, Store},
    text::clipped,
    turn::{BetweenTurns, Observer, Report, Tools},
};
use registry::Inner;
use task::{Job, Message, Stop};

/// Variables that may be described in one session.
const DOCUMENTED_VARIABLES: usize = 1000;

/// Executions that a state shows.
const SHOWN_HISTORY: u32 = 20;

/// Bytes of a file that are read as a resource.
pub const MAX_FILE_BYTES: usize = 8 << 20;

/// How long the reader of a state waits for a look at what the session holds now.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// How long the reader of a file waits for it to be brought to the host.
const FLUSH_PATIENCE: Duration = Duration::from_secs(30);

/// A turn for a session.
pub struct SessionTurn {
    /// Its name in the audit log.
    pub execution_id: String,
    /// Python source.
    pub code: String,
    /// The granted tools, as the sandbox sees them.
    pub stubs: Vec<Stub>,
    /// Answers their calls.
    pub tools: Arc<dyn Tools>,
    /// The turn's timeout, and what the sandbox may use if this turn starts it.
    pub limits: Limits,
    /// Whether the caller asked for limits beside the timeout.
    pub has_own_limits: bool,
    /// Copied into the session before the turn, each once in a generation.
    pub volumes: Vec<Volume>,
    /// What its interpreter starts with, if this turn starts it; `None` for nothing beside the
    /// interpreter's own packages.
    pub packages: Option<Packages>,
    /// Whether the caller named them: a session that runs with others refuses.
    pub has_own_packages: bool,
    /// Cancelled to interrupt the turn and still hear how it ended.
    pub interrupt: CancellationToken,
}

/// An environment, under the name by which it is found again when the session starts anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packages {
    /// That name.
    pub label: String,
    /// The packages.
    pub environment: Arc<Environment>,
}

impl std::fmt::Debug for SessionTurn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Code is the user's: never in a log.
        f.debug_struct("SessionTurn")
            .field("execution_id", &self.execution_id)
            .field("code_bytes", &self.code.len())
            .finish_non_exhaustive()
    }
}

/// The answer to a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// It ran.
    Ran(Box<Ran>),
    /// It did not: the interpreter that it was meant for is gone, which nobody had been told. The
    /// next turn runs in a fresh one.
    Lost(SessionView),
}

/// A turn that ran.
#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    /// What came of it.
    pub report: Report,
    /// What holds the session's sandbox.
    pub isolation: Isolation,
    /// The session afterwards.
    pub session: SessionView,
    /// What earlier turns' threads wrote before this one.
    pub between: Option<BetweenTurns>,
    /// Files that it made or changed.
    pub files: Vec<FileView>,
    /// The limits that applied.
    pub limits: Limits,
    /// Under which name its packages are found, if it has any of its own.
    pub packages: Option<String>,
}

/// Something that others may want to look at again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Whose session.
    pub name: SessionName,
    /// What of it.
    pub change: Change,
}

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Which sessions there are, or whether they live.
    List,
    /// What a session holds, or what is written about it.
    State,
    /// A turn began: the state says so, and nothing else of it has changed yet.
    Running,
}

/// A kept file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    /// Its bytes, [`MAX_FILE_BYTES`] at most.
    pub bytes: Vec<u8>,
    /// How many it has in all.
    pub size: u64,
}

/// All sessions of this process.
#[derive(Debug, Clone)]
pub struct Sessions {
    inner: Arc<Inner>,
}

impl Sessions {
    /// No session yet. Starts nothing.
    pub fn new(config: &Config, engine: Arc<dyn Engine>, store: Arc<Store>, audit: Audit) -> Self {
        let inner = Arc::new(Inner::new(config, engine, store, audit));
        Self { inner }
    }

    /// Runs one turn in a session, which is started if it does not live. Turns of one session run
    /// one after the other, in the order in which they were asked for.
    ///
    /// # Errors
    ///
    /// [`SessionError`]: the code did not run.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future interrupts the turn, or takes it out of the queue; the session lives on
    /// if the interpreter stops.
    pub async fn turn(
        &self,
        name: &SessionName,
        turn: SessionTurn,
        observer: &mut dyn Observer,
    ) -> Result<Answer, SessionError> {
        let (output, mut pieces) = mpsc::unbounded_channel();
        let (reply, mut answer) = oneshot::channel();
        let interrupt = turn.interrupt.clone();
        let cancelled = interrupt.child_token();
        let _dropped = cancelled.clone().drop_guard();
        let job = Job {
            turn,
            output,
            reply,
            cancelled,
        };
        self.inner
            .send(name, Message::Turn(Box::new(job)), true)
            .await?;
        loop {
            tokio::select! {
                biased;
                Some((stream, text)) = pieces.recv() => observer.output(stream, &text),
                answered = &mut answer => return answered.unwrap_or_else(|_| {
                    let id = name.id.clone();
                    if interrupt.is_cancelled() {
                        return Err(SessionError::Interrupted(id));
                    }
                    let reason = "the server's task for it failed".to_owned();
                    Err(SessionError::Ended { id, reason })
                }),
            }
        }
    }

    /// Writes about a session. Returns how many variables are described now.
    ///
    /// # Errors
    ///
    /// [`SessionError`]; what was written before stands.
    pub async fn document(
        &self,
        name: &SessionName,
        more: Documentation,
        clear: bool,
    ) -> Result<usize, SessionError> {
        let store = &self.inner.store;
        match store
            .document(name, more, clear, DOCUMENTED_VARIABLES)
            .await?
        {
            Documented::Yes(count) => {
                self.inner.tell(name, Change::State);
                Ok(count)
            }
            Documented::Unknown => Err(SessionError::Unknown(name.id.clone())),
            Documented::TooMany(count) => Err(SessionError::Documentation(format!(
                "{count} variables would be documented, more than the maximum of {DOCUMENTED_VARIABLES}; pass \"clear\": true to drop the old ones"
            ))),
        }
    }

    /// Where what outlives the process is.
    pub(crate) fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Whether a session has an interpreter in this process, or is getting one.
    pub fn is_live(&self, name: &SessionName) -> bool {
        self.inner.facts(name).is_some()
    }

    /// Under which name the packages are found that a session's next interpreter starts with.
    ///
    /// # Errors
    ///
    /// [`SessionError::Store`].
    pub async fn packages_of(&self, name: &SessionName) -> Result<Option<String>, SessionError> {
        Ok(self.inner.store.packages_of(name).await?)
    }

    /// Whether the store can be used.
    pub async fn store_answers(&self) -> bool {
        let checked = self.inner.store.check().await;
        checked
            .inspect_err(|error| tracing::error!("the store cannot be used: {error}"))
            .is_ok()
    }

    /// A principal's sessions, the most recently used first.
    ///
    /// # Errors
    ///
    /// [`SessionError::Store`].
    pub async fn list(&self, principal: &Principal) -> Result<Vec<SessionSummary>, SessionError> {
        let records = self.inner.store.sessions(principal).await?;
        Ok(records
            .iter()
            .map(|record| {
                let live = self.inner.facts(&record.name);
                let live = live.map(|facts| facts.live(&self.inner.settings.sessions));
                let known = live
                    .as_ref()
                    .map_or_else(|| view::stored(record), |live| live.known.clone());
                view::summary(record, &known, live.as_ref())
            })
            .collect())
    }

    /// All that is known of a session. Answers while a turn runs, with what was known before it.
    ///
    /// # Errors
    ///
    /// [`SessionError`].
    pub async fn state(&self, name: &SessionName) -> Result<SessionState, SessionError> {
        let store = &self.inner.store;
        let facts = self.inner.facts(name);
        if facts.is_some_and(|facts| !facts.is_running()) {
            let (reply, looked) = oneshot::channel();
            let look = async {
                self.inner.send(name, Message::Look(reply), false).await?;
                Ok::<_, SessionError>(looked.await.ok())
            };
            // Late or not: what is known is told.
            let _ = tokio::time::timeout(LOOK_PATIENCE, look).await;
        }
        let record = store.session(name).await?;
        let record = record.ok_or_else(|| SessionError::Unknown(name.id.clone()))?;
        let history = store.history(name, SHOWN_HISTORY).await?;
        let live = match record.life {
            Life::Here => self.inner.facts(name),
            _ => None,
        };
        let live = live.map(|facts| facts.live(&self.inner.settings.sessions));
        Ok(view::state(&record, live, history))
    }

    /// Ends a session and forgets all of it, files included. A running turn is interrupted.
    ///
    /// # Errors
    ///
    /// [`SessionError`].
    pub async fn delete(&self, name: &SessionName) -> Result<(), SessionError> {
        loop {
            let live = self.inner.live().get(name).cloned();
            if let Some(handle) = live {
                handle.stop.send_replace(Some(Stop::Deleted));
                handle.finished.cancelled().await;
                if handle.facts.is_erased() {
                    return Ok(());
                }
                // It ended by itself meanwhile: what it left is deleted below.
                continue;
            }
            let Some(_reserved) = self.inner.reserve(name) else {
                continue;
            };
            let known = self.inner.erase(name).await?;
            return if known {
                self.inner.audit.record(
                    "session.ended",
                    fields(json!({
                        "session_id": name.id,
                        "principal": name.principal,
                        "reason": self.inner.stop_reason(Stop::Deleted),
                    })),
                )?;
                self.inner.tell(name, Change::List);
                Ok(())
            } else {
                Err(SessionError::Unknown(name.id.clone()))
            };
        }
    }

    /// Copies a live session, interpreter and all, into a new one of another name.
    ///
    /// # Errors
    ///
    /// [`SessionError`]; the session goes on as before.
    pub async fn fork(&self, name: &SessionName, new: &SessionName) -> Result<(), SessionError> {
        let store = &self.inner.store;
        let record = store.session(name).await?;
        match record.map(|record| record.life) {
            None => return Err(SessionError::Unknown(name.id.clone())),
            Some(Life::Elsewhere { pid }) => {
                let id = name.id.clone();
                return Err(SessionError::Elsewhere { id, pid });
            }
            Some(Life::Here | Life::Lost) => {}
        }
        if self.inner.facts(new).is_some() || store.session(new).await?.is_some() {
            return Err(SessionError::Exists(new.id.clone()));
        }
        let facts = self.inner.facts(name);
        if facts.is_some_and(|facts| facts.is_running()) {
            return Err(SessionError::NotForkable {
                id: name.id.clone(),
                reason: "a turn is running; wait for its answer".to_owned(),
            });
        }
        let (reply, forked) = oneshot::channel();
        let new = new.clone();
        self.inner
            .send(name, Message::Fork { new, reply }, false)
            .await?;
        forked
            .await
            .unwrap_or_else(|_| Err(SessionError::NotLive(name.id.clone())))
    }

    /// Reads a file of a session's `/workspace`, as it was after the last turn.
    ///
    /// # Errors
    ///
    /// [`SessionError`].
    pub async fn file(&self, name: &SessionName, path: &str) -> Result<FileContent, SessionError> {
        let none = |reason: String| SessionError::NoFile {
            id: name.id.clone(),
            path: clipped(path),
            reason,
        };
        if self.inner.store.session(name).await?.is_none() {
            return Err(SessionError::Unknown(name.id.clone()));
        }
        if !tree::is_path(path) {
            return Err(none("that is no path below /workspace".to_owned()));
        }
        let facts = self.inner.facts(name);
        if let Some(facts) = facts.filter(|facts| !facts.is_running()) {
            let (reply, flushed) = oneshot::channel();
            let flush = async {
                self.inner.send(name, Message::Flush(reply), false).await?;
                Ok::<_, SessionError>(flushed.await.ok())
            };
            // Late or not: what is on the host is read.
            let _ = tokio::time::timeout(FLUSH_PATIENCE, flush).await;
            if let Some(reason) = facts.live(&self.inner.settings.sessions).not_kept.get(path) {
                return Err(none(reason.clone()));
            }
        }
        let data_dir = &self.inner.settings.data_dir;
        let (bytes, size) = keep::read_kept(data_dir, name, path, MAX_FILE_BYTES)
            .await
            .map_err(|error| none(error.to_string()))?;
        Ok(FileContent { bytes, size })
    }

    /// A principal's other sessions that end soon if nobody uses them.
    pub fn expiring(&self, principal: &Principal, but: Option<&SessionName>) -> Vec<Expiring> {
        let live = self.inner.live();
        let mut expiring: Vec<Expiring> = live
            .iter()
            .filter(|(name, _)| name.principal == *principal && Some(*name) != but)
            .filter_map(|(name, handle)| {
                let (after, is_soon) = handle.facts.expiry(&self.inner.settings.sessions)?;
                is_soon.then(|| Expiring {
                    session_id: name.id.to_string(),
                    after,
                })
            })
            .collect();
        expiring.sort_by_key(|expiring| expiring.after);
        expiring
    }

    /// How many live in this process.
    pub fn live(&self) -> usize {
        self.inner.live().len()
    }

    /// Hears of changes from now on.
    pub fn changes(&self) -> broadcast::Receiver<Changed> {
        self.inner.changes.subscribe()
    }

    /// Ends all sessions: their files are kept, and the next server says that they were lost.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        inner.shutdown.cancel();
        inner.tasks.close();
        for handle in inner.live().values() {
            handle.stop.send_if_modified(|stop| {
                let is_first = stop.is_none();
                if is_first {
                    *stop = Some(Stop::Shutdown);
                }
                is_first
            });
        }
        inner.tasks.wait().await;
        inner.store.close().await;
    }
}
