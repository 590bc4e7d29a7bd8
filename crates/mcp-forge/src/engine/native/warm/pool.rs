//! One tier's pool: sandboxes that wait for code. Each is used once.
//!
//! One that is taken is replaced after the answer; when none is ready one is forked for the request.
//! A zygote that dies or grows old is replaced, and a request that it fails goes the cold way.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use jail::spec::{ForkSpec, JailLimits, JailSpec};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    time::timeout,
};

use super::{
    Origin,
    zygote::{Fork, Zygote},
};
use crate::engine::{LaunchError, Purpose, Sandbox};

/// Sandboxes that wait, at least. The number doubles each time there was none, up to what the operator
/// allows, which may be less than this.
const LEAST_READY: usize = 2;

/// Forks that are asked for together.
const BATCH: usize = 4;

/// Time after a sandbox was taken before another is made, if its turn lasts so long: the answer
/// comes first.
const REFILL_DELAY: Duration = Duration::from_millis(20);

/// The same for the first turn of all, which is slow: what is made ahead would make it slower.
const FIRST_DELAY: Duration = Duration::from_secs(1);

/// Time without demand after which half of those that wait are let go.
const QUIET: Duration = Duration::from_secs(30);

/// Time after a zygote failed to start before another is tried.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// A zygote, and the sandboxes it has made that wait for code.
pub(super) struct Pool {
    origin: Origin,
    spec: JailSpec,
    /// What waiting sandboxes are limited to.
    limits: JailLimits,
    zygote: AsyncMutex<Current>,
    ready: Mutex<VecDeque<Fork>>,
    target: AtomicUsize,
    /// What `target` never exceeds; with 0 each sandbox is forked when it is asked for.
    most_ready: usize,
    /// Whether anything was made ahead yet.
    is_begun: AtomicBool,
    /// A sandbox was taken, or the pool is gone.
    taken: Arc<Notify>,
    /// A turn is over, or none is ready: the time to make more.
    ended: Arc<Notify>,
    /// Tells this pool's zygotes and sandboxes from those of another in the same process.
    name: u64,
    /// Numbers them.
    next: AtomicU64,
}

/// The zygote of a pool.
#[derive(Debug, Default)]
struct Current {
    zygote: Option<Arc<Zygote>>,
    failed: Option<Instant>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool that is empty, of a zygote that does not run yet; `most_ready` sandboxes of it may wait.
    /// Made where a runtime is.
    pub(super) fn new(origin: Origin, spec: JailSpec, most_ready: usize) -> Arc<Self> {
        let pool = Arc::new(Self {
            origin,
            limits: spec.limits,
            spec,
            zygote: AsyncMutex::default(),
            ready: Mutex::default(),
            target: AtomicUsize::new(LEAST_READY.min(most_ready)),
            most_ready,
            is_begun: AtomicBool::new(false),
            taken: Arc::default(),
            ended: Arc::default(),
            name: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0),
            next: AtomicU64::new(0),
        });
        let taken = Arc::clone(&pool.taken);
        tokio::spawn(keep_filled(Arc::downgrade(&pool), taken));
        pool
    }

    /// Gives a sandbox with these limits: one that waits, else a new fork.
    ///
    /// # Errors
    ///
    /// The zygote could not be started or did not fork; the cold path is left.
    pub(super) async fn take(
        &self,
        limits: JailLimits,
        purpose: &Purpose,
    ) -> Result<Sandbox, LaunchError> {
        if limits != self.limits {
            return Ok(self.fork(limits, false).await?.used(purpose));
        }
        let waiting = self.pop();
        self.taken.notify_one();
        if let Some(fork) = waiting {
            return Ok(fork.used(purpose));
        }
        let target = self.target.load(Ordering::Relaxed);
        self.target
            .store((target * 2).min(self.most_ready), Ordering::Relaxed);
        self.ended.notify_one();
        Ok(self.fork(limits, false).await?.used(purpose))
    }

    /// Starts the zygote and makes what is to wait.
    ///
    /// # Errors
    ///
    /// As [`Self::take`].
    pub(super) async fn prepare(&self) -> Result<(), LaunchError> {
        self.zygote().await?;
        self.is_begun.store(true, Ordering::Relaxed);
        while self.shortage() > 0 {
            let fork = self.fork(self.limits, true).await?;
            self.lock().push_back(fork);
        }
        Ok(())
    }

    fn pop(&self) -> Option<Fork> {
        let mut ready = self.lock();
        while let Some(fork) = ready.pop_front() {
            if fork.is_fit() {
                return Some(fork);
            }
        }
        None
    }

    /// How many sandboxes wait for code.
    pub(super) fn ready(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Fork>> {
        // Nothing panics while it holds the list; if it did, the list is whole all the same.
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shortage(&self) -> usize {
        let target = self.target.load(Ordering::Relaxed);
        target.saturating_sub(self.lock().len())
    }

    /// Whether so few wait that nothing may hold up the next.
    fn is_low(&self) -> bool {
        self.lock().len() * 4 < self.target.load(Ordering::Relaxed)
    }

    /// Lets half of those that wait go, and those that are too old.
    fn shrink(&self) {
        let half = self.target.load(Ordering::Relaxed) / 2;
        let target = half.max(LEAST_READY).min(self.most_ready);
        self.target.store(target, Ordering::Relaxed);
        let mut ready = self.lock();
        ready.retain(Fork::is_fit);
        ready.truncate(target);
    }

    async fn fork(&self, limits: JailLimits, has_time: bool) -> Result<Fork, LaunchError> {
        let zygote = self.zygote().await?;
        let spec = ForkSpec {
            id: self.fresh_id("warm"),
            limits,
            has_time,
        };
        let forked = zygote.fork(&spec, self.origin.profile, &self.ended).await;
        if let Ok(fork) = &forked
            && self.origin.environment.is_some()
        {
            // Foreign code runs in it while it waits.
            fork.begin_use();
        }
        if forked.is_err() {
            // The next one starts anew; what this one has forked lives on until it is used.
            let mut current = self.zygote.lock().await;
            current
                .zygote
                .take_if(|current| Arc::ptr_eq(current, &zygote));
        }
        forked
    }

    async fn zygote(&self) -> Result<Arc<Zygote>, LaunchError> {
        let mut current = self.zygote.lock().await;
        if let Some(zygote) = current.zygote.as_ref().filter(|zygote| zygote.is_fit()) {
            return Ok(Arc::clone(zygote));
        }
        if current
            .failed
            .is_some_and(|when| when.elapsed() < RETRY_DELAY)
        {
            return Err(LaunchError::Start("its zygote did not start".to_owned()));
        }
        let spec = JailSpec {
            id: self.fresh_id("zygote"),
            ..self.spec.clone()
        };
        let started = Zygote::start(&self.origin, &spec).await;
        current.failed = started.is_err().then(Instant::now);
        let zygote = Arc::new(started?);
        current.zygote = Some(Arc::clone(&zygote));
        Ok(zygote)
    }

    async fn refill(&self) {
        let is_first = !self.is_begun.swap(true, Ordering::Relaxed);
        let mut delay = REFILL_DELAY;
        if is_first {
            // Somebody waits for the zygote, and then for its first fork: that comes before any other.
            if self.zygote().await.is_err() {
                return;
            }
            delay = FIRST_DELAY;
        }
        if is_first || !self.is_low() {
            // What ended before, and that none was ready, is no news: a turn that only begins would
            // share the cores with what is made for the next, and so would all after it.
            timeout(Duration::ZERO, self.ended.notified()).await.ok();
            timeout(delay, self.ended.notified()).await.ok();
        }
        while self.shortage() > 0 {
            // While some are ready nobody waits: their successors may use the time to rehearse.
            let has_time = is_first || !self.is_low();
            let batch = self.shortage().min(BATCH);
            let forks = join_all((0..batch).map(|_| self.fork(self.limits, has_time))).await;
            let mut failed = None;
            for fork in forks {
                match fork {
                    Ok(fork) => self.lock().push_back(fork),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                tracing::warn!(%error, "no sandbox could be made ahead");
                return;
            }
        }
    }

    fn fresh_id(&self, kind: &str) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{kind}-{}-{:x}-{number}", std::process::id(), self.name)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.taken.notify_one();
    }
}

/// Makes sandboxes ahead, for as long as the pool lives.
async fn keep_filled(pool: Weak<Pool>, taken: Arc<Notify>) {
    loop {
        let is_quiet = timeout(QUIET, taken.notified()).await.is_err();
        let Some(pool) = pool.upgrade() else {
            return;
        };
        if is_quiet {
            pool.shrink();
        } else {
            pool.refill().await;
        }
    }
}
