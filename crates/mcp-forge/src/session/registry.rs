//! Which sessions live in this process: found, started, counted, ended when their time is over.

use std::{
    collections::{HashMap, hash_map::Entry},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Change, Changed, SessionError,
    facts::Facts,
    keep,
    open::{Copied, Origin},
    task::{Message, Stop, Task},
};
use crate::{
    audit::Audit,
    config::{Config, OutputCaps, SessionsConfig, VolumesConfig},
    engine::Engine,
    limits::Limits,
    names::SessionName,
    store::{Forgotten, Store, now_ms},
};

/// Changes that a slow listener may be behind.
const CHANGES: usize = 256;

/// What the registry and the tasks share.
pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) store: Arc<Store>,
    pub(super) audit: Audit,
    pub(super) live: Mutex<HashMap<SessionName, Handle>>,
    pub(super) changes: broadcast::Sender<Changed>,
    pub(super) tasks: TaskTracker,
    is_swept: AtomicBool,
    pub(super) shutdown: CancellationToken,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("live", &self.live().len())
            .finish_non_exhaustive()
    }
}

/// What the operator decided.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) data_dir: PathBuf,
    pub(super) sessions: SessionsConfig,
    pub(super) volumes: VolumesConfig,
    pub(super) caps: OutputCaps,
    pub(super) default_limits: Limits,
    pub(super) max_calls: u64,
}

/// A live session, from outside.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    pub(super) queue: mpsc::Sender<Message>,
    pub(super) stop: Arc<watch::Sender<Option<Stop>>>,
    pub(super) facts: Arc<Facts>,
    pub(super) finished: CancellationToken,
}

impl Inner {
    pub(super) fn new(
        config: &Config,
        engine: Arc<dyn Engine>,
        store: Arc<Store>,
        audit: Audit,
    ) -> Self {
        Self {
            settings: Settings {
                data_dir: config.data_dir.clone(),
                sessions: config.sessions.clone(),
                volumes: config.volumes.clone(),
                caps: config.caps,
                default_limits: config.default_limits.clone(),
                max_calls: config.bridge.max_calls,
            },
            engine,
            store,
            audit,
            live: Mutex::default(),
            changes: broadcast::Sender::new(CHANGES),
            tasks: TaskTracker::new(),
            is_swept: AtomicBool::new(false),
            shutdown: CancellationToken::new(),
        }
    }

    pub(super) fn live(&self) -> MutexGuard<'_, HashMap<SessionName, Handle>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn facts(&self, name: &SessionName) -> Option<Arc<Facts>> {
        self.live()
            .get(name)
            .map(|handle| Arc::clone(&handle.facts))
    }

    /// Gives a message to a session's task; `may_start` one.
    pub(super) async fn send(
        self: &Arc<Self>,
        name: &SessionName,
        mut message: Message,
        may_start: bool,
    ) -> Result<(), SessionError> {
        loop {
            let handle = self.find(name, may_start)?;
            match handle.queue.try_send(message) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::TrySendError::Full(_)) => {
                    return Err(SessionError::Busy {
                        id: name.id.clone(),
                        waiting: self.settings.sessions.queue_length,
                    });
                }
                // It is ending: what comes after its end is decided anew.
                Err(mpsc::error::TrySendError::Closed(returned)) => message = returned,
            }
            handle.finished.cancelled().await;
        }
    }

    fn find(self: &Arc<Self>, name: &SessionName, may_start: bool) -> Result<Handle, SessionError> {
        let mut live = self.live();
        if let Some(handle) = live.get(name) {
            return Ok(handle.clone());
        }
        if !may_start {
            return Err(SessionError::NotLive(name.id.clone()));
        }
        self.check_room(&live, name)?;
        let handle = self.spawn(name, Origin::Store)?;
        live.insert(name.clone(), handle.clone());
        Ok(handle)
    }

    fn check_room(
        &self,
        live: &HashMap<SessionName, Handle>,
        name: &SessionName,
    ) -> Result<(), SessionError> {
        let mine = |other: &&SessionName| other.principal == name.principal;
        let own = live.keys().filter(mine).count();
        let sessions = &self.settings.sessions;
        let most = if own >= sessions.max_per_principal {
            sessions.max_per_principal
        } else if live.len() >= sessions.max_concurrent {
            sessions.max_concurrent
        } else {
            return Ok(());
        };
        let longest_idle = live
            .iter()
            .filter(|(other, _)| mine(other))
            .filter_map(|(other, handle)| Some((handle.facts.expiry(sessions)?.0, other)))
            .min();
        let advice = longest_idle.map_or_else(
            || ", or wait until one ends".to_owned(),
            |(_, other)| format!("; `{}` has been idle for longest", other.id),
        );
        Err(SessionError::Full { most, advice })
    }

    /// Starts a session's task. Its handle is still to be put into the registry.
    fn spawn(self: &Arc<Self>, name: &SessionName, origin: Origin) -> Result<Handle, SessionError> {
        if self.shutdown.is_cancelled() {
            return Err(SessionError::Ended {
                id: name.id.clone(),
                reason: self.stop_reason(Stop::Shutdown),
            });
        }
        if !self.is_swept.swap(true, Ordering::Relaxed) {
            tokio::spawn(sweep(Arc::downgrade(self), self.shutdown.clone()));
        }
        let (queue, messages) = mpsc::channel(self.settings.sessions.queue_length);
        let (stop, stopped) = watch::channel(None);
        let handle = Handle {
            queue,
            stop: Arc::new(stop),
            facts: Arc::new(Facts::new()),
            finished: CancellationToken::new(),
        };
        let task = Task {
            inner: Arc::clone(self),
            name: name.clone(),
            queue: messages,
            stop: stopped,
            facts: Arc::clone(&handle.facts),
            finished: handle.finished.clone(),
        };
        self.tasks.spawn(task.run(origin));
        Ok(handle)
    }

    /// Starts a session on a copy, and waits until it is ready.
    pub(super) async fn adopt(
        self: &Arc<Self>,
        name: SessionName,
        mut copied: Copied,
    ) -> Result<(), SessionError> {
        let (ready, is_ready) = oneshot::channel();
        copied.ready = Some(ready);
        {
            let mut live = self.live();
            if live.contains_key(&name) {
                return Err(SessionError::Exists(name.id));
            }
            self.check_room(&live, &name)?;
            let handle = self.spawn(&name, Origin::Copy(Box::new(copied)))?;
            live.insert(name.clone(), handle);
        }
        is_ready.await.unwrap_or_else(|_| {
            Err(SessionError::Start(
                "the copy was not ready in time".to_owned(),
            ))
        })
    }

    /// Takes a name that has no live session, so that none starts meanwhile.
    pub(super) fn reserve(self: &Arc<Self>, name: &SessionName) -> Option<Reserved> {
        let (queue, _) = mpsc::channel(1);
        let finished = CancellationToken::new();
        let handle = Handle {
            queue,
            stop: Arc::new(watch::Sender::new(None)),
            facts: Arc::new(Facts::new()),
            finished: finished.clone(),
        };
        match self.live().entry(name.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(place) => {
                place.insert(handle);
                Some(Reserved {
                    inner: Arc::clone(self),
                    name: name.clone(),
                    finished,
                })
            }
        }
    }

    /// Takes a session's handle out, if it is still this one.
    pub(super) fn remove(&self, name: &SessionName, finished: &CancellationToken) {
        let mut live = self.live();
        let is_it = live
            .get(name)
            .is_some_and(|handle| handle.finished == *finished);
        if is_it {
            live.remove(name);
        }
    }

    /// Forgets a session that has no interpreter. Says whether there was one.
    pub(super) async fn erase(&self, name: &SessionName) -> Result<bool, SessionError> {
        match self.store.forget(name).await? {
            Forgotten::Unknown => return Ok(false),
            Forgotten::Elsewhere { pid } => {
                let id = name.id.clone();
                return Err(SessionError::Elsewhere { id, pid });
            }
            Forgotten::Yes => {}
        }
        keep::remove(&self.settings.data_dir, name)
            .await
            .map_err(SessionError::Files)?;
        Ok(true)
    }

    pub(super) fn tell(&self, name: &SessionName, change: Change) {
        // Nobody need listen.
        let _ = self.changes.send(Changed {
            name: name.clone(),
            change,
        });
    }

    pub(super) fn stop_reason(&self, stop: Stop) -> String {
        let sessions = &self.settings.sessions;
        match stop {
            Stop::Idle => format!(
                "it was idle for {} s, its idle timeout",
                sessions.idle_timeout.as_secs_f64()
            ),
            Stop::Lifetime => format!(
                "it reached its maximum lifetime of {} s",
                sessions.max_lifetime.as_secs_f64()
            ),
            Stop::Deleted => "it was deleted".to_owned(),
            Stop::Shutdown => "the server was stopped".to_owned(),
        }
    }

    /// Ends what is idle or too old, and forgets what nobody used for long.
    async fn clean(&self) {
        let sessions = &self.settings.sessions;
        let over: Vec<(Handle, Stop)> = self
            .live()
            .values()
            .filter_map(|handle| {
                let stop = if handle.facts.is_too_old(sessions) {
                    Stop::Lifetime
                } else {
                    let (left, _) = handle.facts.expiry(sessions)?;
                    left.is_zero().then_some(Stop::Idle)?
                };
                Some((handle.clone(), stop))
            })
            .collect();
        for (handle, stop) in over {
            handle.stop.send_if_modified(|now| {
                let is_first = now.is_none();
                if is_first {
                    *now = Some(stop);
                }
                is_first
            });
        }
        let keep = i64::try_from(sessions.keep_ended.as_millis()).unwrap_or(i64::MAX);
        let forgotten = self
            .store
            .forget_unused(now_ms().saturating_sub(keep))
            .await;
        match forgotten {
            Ok(names) => {
                for name in names {
                    if let Err(error) = keep::remove(&self.settings.data_dir, &name).await {
                        tracing::warn!(%error, session = %name.id, "a forgotten session's files could not be removed");
                    }
                    self.tell(&name, Change::List);
                }
            }
            Err(error) => tracing::warn!(%error, "old sessions could not be forgotten"),
        }
    }
}

/// A name that is taken until this is dropped.
pub(super) struct Reserved {
    inner: Arc<Inner>,
    name: SessionName,
    finished: CancellationToken,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.inner.remove(&self.name, &self.finished);
        self.finished.cancel();
    }
}

async fn sweep(inner: Weak<Inner>, shutdown: CancellationToken) {
    loop {
        let Some(every) = inner
            .upgrade()
            .map(|inner| inner.settings.sessions.cleanup_interval)
        else {
            return;
        };
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = shutdown.cancelled() => return,
        }
        let Some(inner) = inner.upgrade() else {
            return;
        };
        inner.clean().await;
    }
}
