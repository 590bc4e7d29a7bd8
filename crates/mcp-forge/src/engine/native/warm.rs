//! The warm path: a zygote that forks sandboxes, and a pool of those that wait for code.
//!
//! Each is used once. One that is taken is replaced after the answer, by the refill; when none is
//! ready one is forked for the request. A zygote that dies or grows old is replaced, and a request
//! that it fails goes the cold way: nobody notices but the clock.

use std::{
    collections::VecDeque,
    io,
    os::fd::AsFd,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use jail::spec::{ForkSpec, JailLimits, JailSpec};
use tokio::sync::Mutex as AsyncMutex;

use super::{
    launch::{LifeLine, isolation, send, socket_pair},
    output_pipe::output_pipe,
};
use crate::{
    config::Profile,
    engine::{LaunchError, Sandbox},
};

/// Forks of one zygote, at most: they share its address layout and its hash seed.
const MOST_FORKS: u64 = 10_000;

/// Age of a zygote, at most, for the same reason.
const OLDEST: Duration = Duration::from_mins(30);

/// Sandboxes that wait, at least and at most. The number doubles each time there was none.
const LEAST_READY: usize = 1;
const MOST_READY: usize = 16;

/// Time after a sandbox was taken before another is made: the answer comes first.
const REFILL_DELAY: Duration = Duration::from_millis(20);

/// A zygote, and the sandboxes it has made that wait for code.
#[derive(Debug)]
pub(super) struct Pool {
    jail: PathBuf,
    spec: JailSpec,
    profile: Profile,
    /// What waiting sandboxes are limited to.
    limits: JailLimits,
    zygote: AsyncMutex<Option<Arc<Zygote>>>,
    ready: Mutex<VecDeque<Sandbox>>,
    target: AtomicUsize,
    refilling: AtomicBool,
    /// Tells this pool's zygotes and sandboxes from those of another in the same process.
    name: u64,
    /// Numbers them.
    next: AtomicU64,
}

impl Pool {
    /// A pool that is empty, of a zygote that does not run yet.
    pub(super) fn new(jail: PathBuf, spec: JailSpec, profile: Profile) -> Arc<Self> {
        Arc::new(Self {
            jail,
            profile,
            limits: spec.limits,
            spec,
            zygote: AsyncMutex::new(None),
            ready: Mutex::new(VecDeque::new()),
            target: AtomicUsize::new(LEAST_READY),
            refilling: AtomicBool::new(false),
            name: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0),
            next: AtomicU64::new(0),
        })
    }

    /// Gives a sandbox with these limits: one that waits, else a new fork.
    ///
    /// # Errors
    ///
    /// The zygote could not be started or did not fork; the cold path is left.
    pub(super) async fn take(
        self: &Arc<Self>,
        id: &str,
        limits: JailLimits,
    ) -> Result<Sandbox, LaunchError> {
        let waiting = if limits == self.limits {
            self.pop()
        } else {
            None
        };
        if let Some(sandbox) = waiting {
            self.refill();
            return Ok(sandbox);
        }
        let target = self.target.load(Ordering::Relaxed);
        self.target
            .store((target * 2).min(MOST_READY), Ordering::Relaxed);
        let sandbox = self.fork(id.to_owned(), limits).await?;
        self.refill();
        Ok(sandbox)
    }

    /// Makes waiting sandboxes in the background, if that is not under way.
    pub(super) fn refill(self: &Arc<Self>) {
        if self.refilling.swap(true, Ordering::AcqRel) {
            return;
        }
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(REFILL_DELAY).await;
            while pool.lock().len() < pool.target.load(Ordering::Relaxed) {
                let id = pool.fresh_id("warm");
                match pool.fork(id, pool.limits).await {
                    Ok(sandbox) => pool.lock().push_back(sandbox),
                    Err(error) => {
                        tracing::warn!(%error, "no sandbox could be made ahead");
                        break;
                    }
                }
            }
            pool.refilling.store(false, Ordering::Release);
        });
    }

    fn fresh_id(&self, kind: &str) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{kind}-{}-{:x}-{number}", std::process::id(), self.name)
    }

    fn pop(&self) -> Option<Sandbox> {
        self.lock().pop_front()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Sandbox>> {
        // Nothing panics while it holds the list; if it did, the list is whole all the same.
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fork(&self, id: String, limits: JailLimits) -> Result<Sandbox, LaunchError> {
        let zygote = self.zygote().await?;
        let forked = zygote.fork(&ForkSpec { id, limits }, self.profile).await;
        if forked.is_err() {
            // The next one starts anew; what this one has forked lives on until it is used.
            let mut current = self.zygote.lock().await;
            if current
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, &zygote))
            {
                *current = None;
            }
        }
        forked
    }

    async fn zygote(&self) -> Result<Arc<Zygote>, LaunchError> {
        let mut current = self.zygote.lock().await;
        if let Some(zygote) = current.as_ref().filter(|zygote| zygote.is_fit()) {
            return Ok(Arc::clone(zygote));
        }
        let id = self.fresh_id("zygote");
        let spec = JailSpec {
            id,
            ..self.spec.clone()
        };
        let zygote = Arc::new(Zygote::start(&self.jail, &spec, self.profile).await?);
        *current = Some(Arc::clone(&zygote));
        Ok(zygote)
    }
}

/// One zygote's keeper. The last owner to let go ends it.
#[derive(Debug)]
struct Zygote {
    line: AsyncMutex<LifeLine>,
    forks: AtomicU64,
    born: Instant,
}

impl Zygote {
    async fn start(
        jail: &std::path::Path,
        spec: &JailSpec,
        profile: Profile,
    ) -> Result<Self, LaunchError> {
        let failed = |error: io::Error| LaunchError::Start(error.to_string());
        let mut line = LifeLine::spawn(jail, &spec.id).map_err(failed)?;
        // Pipes, as its forks will have: the interpreter's streams are made for what they find.
        let (stdout, _unread) = output_pipe().map_err(failed)?;
        let (stderr, _unread) = output_pipe().map_err(failed)?;
        let streams = [stdout.as_fd(), stdout.as_fd(), stderr.as_fd()];
        send(&mut line.socket, spec, &streams)
            .await
            .map_err(failed)?;
        let entered = line.entered().await?;
        isolation(entered, profile)?;
        Ok(Self {
            line: AsyncMutex::new(line),
            forks: AtomicU64::new(0),
            born: Instant::now(),
        })
    }

    fn is_fit(&self) -> bool {
        self.forks.load(Ordering::Relaxed) < MOST_FORKS && self.born.elapsed() < OLDEST
    }

    async fn fork(
        self: &Arc<Self>,
        spec: &ForkSpec,
        profile: Profile,
    ) -> Result<Sandbox, LaunchError> {
        let failed = |error: io::Error| LaunchError::Start(error.to_string());
        self.forks.fetch_add(1, Ordering::Relaxed);
        let (control, their_control) = socket_pair().map_err(failed)?;
        let (guard, their_guard) = socket_pair().map_err(failed)?;
        let (their_stdout, stdout) = output_pipe().map_err(failed)?;
        let (their_stderr, stderr) = output_pipe().map_err(failed)?;
        let theirs = [&their_guard, &their_control, &their_stdout, &their_stderr].map(AsFd::as_fd);
        send(&mut self.line.lock().await.socket, spec, &theirs)
            .await
            .map_err(failed)?;
        drop((their_guard, their_control, their_stdout, their_stderr));
        let mut guard = LifeLine::of_fork(guard);
        let isolation = isolation(guard.entered().await?, profile)?;
        Ok(Sandbox {
            connection: Box::new(control),
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
            guard: Box::new(ForkGuard {
                line: guard,
                zygote: Arc::clone(self),
            }),
            isolation,
        })
    }
}

/// A fork's life line, and a share in the zygote: one that was replaced lives until its last fork
/// has ended, since its pid namespace holds them all.
#[derive(Debug)]
struct ForkGuard {
    line: LifeLine,
    #[expect(dead_code, reason = "held, not used")]
    zygote: Arc<Zygote>,
}

#[async_trait::async_trait]
impl crate::engine::Guard for ForkGuard {
    async fn interrupt(&mut self) {
        self.line.interrupt().await;
    }

    fn usage(&self) -> crate::engine::Usage {
        self.line.usage()
    }

    async fn end(self: Box<Self>, patience: Duration) -> crate::engine::Ending {
        Box::new(self.line).end(patience).await
    }
}
