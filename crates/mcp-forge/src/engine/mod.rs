//! Where sandboxes come from. An engine yields byte streams and a way to kill; nothing more.
//!
//! Protocol, deadlines, limits and tools are written once, above this seam.

use std::{fmt, sync::Arc, time::Duration};

use jail::meter::OpenMeter;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    config::{Config, EngineKind},
    limits::Limits,
    names::Principal,
    policy::Violation,
};

mod environment;
pub mod native;
pub mod podman;
mod variables;

pub use environment::{Claim, Environment, EnvironmentError, Meta};

/// Engine-neutral description of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSpec {
    /// Names the sandbox in cgroups, logs and the audit: `[a-z0-9-]`, at most 64 characters.
    pub id: String,
    /// What all its processes together may use.
    pub limits: Limits,
    /// What it is for: an engine may have one ready that has done part of the work.
    pub purpose: Purpose,
    /// The packages that it has in place of the interpreter's own, if any. The sandbox keeps its share.
    pub environment: Option<Arc<Environment>>,
}

/// The engine that the operator chose. Starts nothing.
pub fn of(config: &Config) -> Arc<dyn Engine> {
    match config.engine {
        EngineKind::Native => Arc::new(native::Native::new(config)),
        EngineKind::Podman | EngineKind::Docker => Arc::new(podman::Podman::new(config)),
    }
}

/// What a sandbox is for. A hint: every sandbox can do everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// One turn, whose code may import these modules: top-level names, as written in it.
    Turn(Vec<String>),
    /// A session.
    Session,
}

impl Default for Purpose {
    fn default() -> Self {
        Self::Turn(Vec::new())
    }
}

/// Starts sandboxes.
#[async_trait::async_trait]
pub trait Engine: fmt::Debug + Send + Sync {
    /// The name in requests and responses: `native`, `podman`.
    fn name(&self) -> &'static str;

    /// Looks at the host and says what this engine can enforce here. Starts nothing that stays.
    async fn probe(&self) -> Probe;

    /// Makes ready what can be made ready ahead, for a server that expects requests. Launches that
    /// come earlier work, and are slower.
    ///
    /// # Errors
    ///
    /// [`LaunchError`]: what stood in the way. Launches work as before.
    async fn prepare(&self) -> Result<(), LaunchError> {
        Ok(())
    }

    /// Starts one sandbox with the runner attached.
    ///
    /// # Errors
    ///
    /// [`LaunchError`]; nothing is left running.
    async fn launch(&self, spec: &SandboxSpec) -> Result<Sandbox, LaunchError>;

    /// How many sandboxes wait for code, made ahead.
    fn ready(&self) -> usize {
        0
    }

    /// Lets go of everything that was made ahead for the environment of this id, its share included.
    /// Sandboxes that run keep theirs. Launches that come later work while the tree is there. False if
    /// something stays that only another call can remove.
    async fn release(&self, _id: &str) -> bool {
        true
    }

    /// Ends what was made ahead, and waits until it is gone. Launches that come later work.
    async fn shutdown(&self) {}
}

/// A running sandbox: the same four things whatever the engine, and what it is made of.
pub struct Sandbox {
    /// Frames to and from the runner. UNTRUSTED on the way in.
    pub connection: Box<dyn Duplex>,
    /// File descriptor 1 of everything inside. UNTRUSTED.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// File descriptor 2 of everything inside. UNTRUSTED.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// Ends the sandbox; dropping it kills.
    pub guard: Box<dyn Guard>,
    /// The layers in force.
    pub isolation: Isolation,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("isolation", &self.isolation)
            .finish_non_exhaustive()
    }
}

/// Bytes both ways.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin + fmt::Debug {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + fmt::Debug> Duplex for T {}

/// Ends a sandbox. Implementations also kill on drop.
#[async_trait::async_trait]
pub trait Guard: Send + Sync {
    /// Interrupts the interpreter, as Ctrl-C does: a running turn ends with `KeyboardInterrupt`
    /// unless its code prevents that. Best effort: nothing is said back.
    async fn interrupt(&mut self);

    /// What it has used so far. Cheap: a turn's answer waits for it.
    fn usage(&self) -> Usage;

    /// What reads its use from elsewhere while it lives, where the engine has such a thing.
    fn meter(&self) -> Option<Arc<OpenMeter>> {
        None
    }

    /// Charges what it uses, from its start on, to somebody: where somebody counts.
    fn charge_to(&mut self, _owner: &Principal) {}

    /// Asks the live interpreter to copy itself, copy-on-write. `request` is the frame, length and
    /// all, that asks the runner for it; it is sent on the sandbox's own connection, with the copy's
    /// control socket, standard output and standard error as descriptors. The answer comes on that
    /// connection; the copy says that it is ready on its own. Nothing else may be on its way to the
    /// runner meanwhile.
    ///
    /// # Errors
    ///
    /// [`BranchError`]: there is no copy, and the interpreter goes on.
    async fn branch(
        &mut self,
        _spec: &SandboxSpec,
        _request: &[u8],
    ) -> Result<Box<dyn Branch>, BranchError> {
        Err(BranchError::Unsupported)
    }

    /// Gives it `patience` to end by itself, then kills everything inside, waits until nothing is
    /// left, and says how it ended.
    async fn end(self: Box<Self>, patience: Duration) -> Ending;
}

/// A copy that an interpreter was asked for. It becomes a sandbox when the interpreter says that
/// it was made; dropping it before closes the copy's connection, at which that ends.
#[async_trait::async_trait]
pub trait Branch: Send {
    /// Takes charge of the copy. `pid` is what the interpreter calls it: UNTRUSTED.
    ///
    /// # Errors
    ///
    /// [`BranchError`]: the copy is ended, and the interpreter goes on.
    async fn confirm(self: Box<Self>, pid: i32) -> Result<Sandbox, BranchError>;
}

/// What the engine saw of a sandbox's end. Facts from the kernel, not claims from inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Why it ended.
    pub cause: ExitCause,
    /// What it had used by then.
    pub usage: Usage,
}

/// How a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitCause {
    /// It was alive until we killed it.
    Killed,
    /// The runner exited by itself with this status.
    Exited(i32),
    /// The runner was ended by this signal, from inside.
    Signaled(i32),
    /// It went over its memory limit.
    OutOfMemory,
    /// The engine lost sight of it; what is known of why.
    Lost(String),
}

/// What a sandbox used, as far as the engine could measure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of all processes, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Highest memory use, in bytes.
    pub memory_peak_bytes: Option<u64>,
}

/// What keeps a sandbox in: shown in every response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Isolation {
    /// Which engine.
    pub engine: String,
    /// The security profile that was asked for.
    pub profile: String,
    /// Each layer of the engine.
    pub layers: Vec<Layer>,
    /// Each limit.
    pub limits: Vec<LimitReport>,
}

/// One isolation layer, as installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Layer {
    /// For example `seccomp`.
    pub name: String,
    /// Whether it holds.
    pub state: LayerState,
    /// What it consists of here, or why it is missing and how to get it.
    pub detail: String,
}

/// Whether a layer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayerState {
    /// Installed and in force.
    Enforced,
    /// Replaced by something weaker, named in the detail.
    BestEffort,
    /// Not there.
    Missing,
}

/// One limit, as installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct LimitReport {
    /// For example `memory`.
    pub name: String,
    /// `enforced` by the kernel for the whole sandbox, or `best_effort`.
    pub state: LayerState,
    /// By what.
    pub detail: String,
}

/// What an engine finds on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// Which engine.
    pub engine: String,
    /// Whether it can run a sandbox under the configured profile.
    pub usable: bool,
    /// Each layer and limit, with the fix in `detail` where one is missing.
    pub layers: Vec<Layer>,
    /// Each limit.
    pub limits: Vec<LimitReport>,
    /// Facts worth knowing: interpreter, kernel, warnings.
    pub notes: Vec<String>,
}

/// A live interpreter could not be copied; it goes on as before.
#[derive(Debug, thiserror::Error)]
pub enum BranchError {
    /// This engine cannot.
    #[error(
        "this engine cannot fork live sessions; start a new session and run the code there again"
    )]
    Unsupported,
    /// It can, and did not prepare for it.
    #[error(
        "only sessions that were forked from a warm interpreter can be forked, and this one was \
         started by itself; set `warm.enabled: true`, or see in the log why there was none, and \
         start a new session"
    )]
    Cold,
    /// It failed.
    #[error("the session could not be forked: {0}")]
    Failed(String),
}

/// A sandbox could not be started; nothing is left running.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The profile requires a layer that this host does not give.
    #[error(
        "the sandbox was refused: {layer} is required by profile `{profile}` and missing here: {reason}. {fix}"
    )]
    LayerMissing {
        /// The layer's name.
        layer: String,
        /// The profile that requires it.
        profile: String,
        /// The kernel's answer, explained.
        reason: String,
        /// What the operator can do.
        fix: String,
    },
    /// A rule of the allow-list forbids it: see `policy`. To be told to the audit log.
    #[error("the sandbox was refused: {0}")]
    Forbidden(#[from] Violation),
    /// The container service cannot be used; the engine tries again, less and less often.
    #[error("{0}")]
    Unreachable(String),
    /// No interpreter that can serve.
    #[error("no usable Python: {0}")]
    Python(String),
    /// The sandbox failed on its way up.
    #[error("the sandbox did not start: {0}")]
    Start(String),
}
