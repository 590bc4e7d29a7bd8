//! What sandboxes use, counted while they live: for the metrics, and for the quotas of their owners.
//!
//! It stands between the application and its engine and sees every sandbox's use, however that ends:
//! answered, dropped in the middle, or in the threads that a session's turn left behind.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use jail::meter::OpenMeter;

use super::cpu::{Accounts, Overdrawn};
use crate::{
    engine::{
        Branch, BranchError, Ending, Engine, ExitCause, Guard, LaunchError, Probe, Sandbox,
        SandboxSpec, Usage,
    },
    names::Principal,
};

/// All that was used, and by whom.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    cpu_ms: AtomicU64,
    accounts: Accounts,
    live: Mutex<Live>,
    /// A sandbox came whose use its engine cannot tell.
    is_blind: AtomicBool,
}

#[derive(Debug, Default)]
struct Live {
    /// Numbers sandboxes.
    launched: u64,
    sandboxes: BTreeMap<u64, Arc<Tally>>,
}

/// What one living sandbox has used.
struct Tally {
    ledger: Arc<Ledger>,
    number: u64,
    meter: Option<Arc<OpenMeter>>,
    owner: OnceLock<Principal>,
    counted_ms: AtomicU64,
}

impl Ledger {
    /// Lets a principal use so many CPU seconds in an hour, or as many as it likes.
    pub(super) fn limit(&self, principal: &Principal, seconds: Option<u32>) {
        self.accounts.limit(principal, seconds);
    }

    /// Whether a principal may begin something new. What runs is counted as far as it has come.
    pub(super) fn check(&self, principal: &Principal) -> Result<(), Overdrawn> {
        if !self.accounts.has(principal) {
            return Ok(());
        }
        self.read(|tally| tally.owner.get() == Some(principal));
        self.accounts.check(principal)
    }

    /// Charges what was measured elsewhere, or had to be estimated.
    pub(super) fn charge(&self, principal: &Principal, cpu_ms: u64) {
        self.accounts.charge(principal, cpu_ms);
    }

    /// Counts what all living sandboxes have used by now.
    pub(super) fn settle(&self) {
        self.read(|_| true);
    }

    /// Whether somebody has a quota.
    pub(super) fn has_quotas(&self) -> bool {
        !self.accounts.is_empty()
    }

    /// Whether the engine cannot tell what its sandboxes use.
    pub(super) fn is_blind(&self) -> bool {
        self.is_blind.load(Ordering::Relaxed)
    }

    /// CPU time of all sandboxes, as far as it was counted.
    pub(super) fn cpu(&self) -> Duration {
        Duration::from_millis(self.cpu_ms.load(Ordering::Relaxed))
    }

    /// Memory of the living sandboxes whose engine can tell, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let used = self
            .living(|_| true)
            .into_iter()
            .filter_map(|tally| tally.meter.as_ref()?.memory_now());
        used.sum()
    }

    fn read(&self, which: impl Fn(&Tally) -> bool) {
        for tally in self.living(which) {
            tally.read();
        }
    }

    /// Those are read without the lock: files are.
    fn living(&self, which: impl Fn(&Tally) -> bool) -> Vec<Arc<Tally>> {
        let live = self.live();
        let chosen = live.sandboxes.values().filter(|tally| which(tally));
        chosen.cloned().collect()
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches over a sandbox that has just come to be.
    fn watch(self: &Arc<Self>, mut sandbox: Sandbox, owner: Option<&Principal>) -> Sandbox {
        let meter = sandbox.guard.meter();
        if meter.is_none() {
            self.is_blind.store(true, Ordering::Relaxed);
        }
        let mut live = self.live();
        live.launched += 1;
        let tally = Arc::new(Tally {
            ledger: Arc::clone(self),
            number: live.launched,
            meter,
            owner: owner.cloned().map_or_else(OnceLock::new, OnceLock::from),
            counted_ms: AtomicU64::new(0),
        });
        live.sandboxes.insert(tally.number, Arc::clone(&tally));
        drop(live);
        let guard = Some(sandbox.guard);
        sandbox.guard = Box::new(Metered { guard, tally });
        sandbox
    }
}

impl Tally {
    fn read(&self) {
        self.count(self.meter.as_ref().and_then(|meter| meter.cpu_ms()));
    }

    fn count(&self, cpu_ms: Option<u64>) {
        let Some(now) = cpu_ms else {
            return;
        };
        let before = self.counted_ms.fetch_max(now, Ordering::Relaxed);
        let more = now.saturating_sub(before);
        if more > 0 {
            self.ledger.cpu_ms.fetch_add(more, Ordering::Relaxed);
            if let Some(owner) = self.owner.get() {
                self.ledger.charge(owner, more);
            }
        }
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// An engine whose sandboxes are in the ledger.
#[derive(Debug)]
pub(super) struct MeteredEngine {
    engine: Arc<dyn Engine>,
    ledger: Arc<Ledger>,
}

impl MeteredEngine {
    pub(super) fn around(engine: Arc<dyn Engine>, ledger: Arc<Ledger>) -> Arc<dyn Engine> {
        Arc::new(Self { engine, ledger })
    }
}

#[async_trait::async_trait]
impl Engine for MeteredEngine {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    async fn probe(&self) -> Probe {
        self.engine.probe().await
    }

    async fn prepare(&self) -> Result<(), LaunchError> {
        self.engine.prepare().await
    }

    async fn launch(&self, spec: &SandboxSpec) -> Result<Sandbox, LaunchError> {
        let sandbox = self.engine.launch(spec).await?;
        Ok(self.ledger.watch(sandbox, None))
    }

    fn ready(&self) -> usize {
        self.engine.ready()
    }

    async fn release(&self, id: &str) -> bool {
        self.engine.release(id).await
    }

    async fn shutdown(&self) {
        self.engine.shutdown().await;
    }
}

/// The guard of a sandbox in the ledger.
struct Metered {
    /// None once it is being ended.
    guard: Option<Box<dyn Guard>>,
    tally: Arc<Tally>,
}

#[async_trait::async_trait]
impl Guard for Metered {
    async fn interrupt(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.interrupt().await;
        }
    }

    fn usage(&self) -> Usage {
        let usage = self.guard.as_ref().map(|guard| guard.usage());
        let usage = usage.unwrap_or_default();
        self.tally.count(usage.cpu_ms);
        usage
    }

    fn meter(&self) -> Option<Arc<OpenMeter>> {
        self.tally.meter.clone()
    }

    fn charge_to(&mut self, owner: &Principal) {
        // Whose it is does not change.
        let _ = self.tally.owner.set(owner.clone());
    }

    async fn branch(
        &mut self,
        spec: &SandboxSpec,
        request: &[u8],
    ) -> Result<Box<dyn Branch>, BranchError> {
        let Some(guard) = &mut self.guard else {
            return Err(BranchError::Unsupported);
        };
        Ok(Box::new(MeteredBranch {
            branch: guard.branch(spec, request).await?,
            tally: Arc::clone(&self.tally),
        }))
    }

    async fn end(mut self: Box<Self>, patience: Duration) -> Ending {
        // Whoever waits for the end may go away meanwhile.
        self.tally.read();
        let Some(guard) = self.guard.take() else {
            return Ending {
                cause: ExitCause::Killed,
                usage: Usage::default(),
            };
        };
        let ending = guard.end(patience).await;
        self.tally.count(ending.usage.cpu_ms);
        ending
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        if self.guard.is_some() {
            self.tally.read();
        }
        let tally = &self.tally;
        tally.ledger.live().sandboxes.remove(&tally.number);
    }
}

/// A copy of a sandbox in the ledger: its owner's, too.
struct MeteredBranch {
    branch: Box<dyn Branch>,
    tally: Arc<Tally>,
}

#[async_trait::async_trait]
impl Branch for MeteredBranch {
    async fn confirm(self: Box<Self>, pid: i32) -> Result<Sandbox, BranchError> {
        let sandbox = self.branch.confirm(pid).await?;
        let owner = self.tally.owner.get();
        Ok(self.tally.ledger.watch(sandbox, owner))
    }
}
