//! The application. Every front door parses, calls this, and renders; nothing else decides.
//!
//! [`Service::execute`] is the whole story of one request: check, write the audit, take a slot,
//! grant tools, launch, run the turn, answer. Dropping its future at any point frees what it holds.

use std::{sync::Arc, time::Duration};

use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

mod context;
mod environments;
mod executions;
mod fields;
mod files;
mod imports;
mod metrics;
mod newest;
mod ready;
mod records;
mod request;
mod resources;
mod response;
mod sessions;
mod slots;
mod spawn;
mod written;

pub use context::{ContextKept, ContextRequest, ContextView};
pub use environments::{BuildEnvironmentRequest, EnvironmentDeleted};
pub(crate) use executions::{
    Execution, Executions, How, Kept, MAX_RUNNING, Next, Question, REMEMBERED, Standing,
};
pub use files::Upload;
pub(crate) use newest::NewestLine;
pub use ready::Readiness;
pub use request::{ExecuteRequest, LimitsRequest};
pub use response::{ExecuteResponse, UsageView};
pub use sessions::{DocumentRequest, DocumentResponse, ForkResponse};
pub use spawn::SpawnRequest;

use crate::{
    audit::{Audit, AuditError, Pending, fields},
    bridge::{Bridge, Grant, GrantError},
    config::Config,
    engine::{
        Engine, Environment, Guard, Isolation, LaunchError, Purpose, SandboxSpec, native::job::Jobs,
    },
    environments::{Environments, EnvironmentsError},
    limits::LimitsView,
    names::{Principal, SessionName},
    policy::Violation,
    session::{SessionError, Sessions},
    store::Store,
    turn::{self, Observer, Report, Turn},
};
use records::AuditedTools;
use request::Checked;
use slots::{Slot, Slots};

/// Between two looks at which environments nobody uses any more.
const TIDY_EVERY: Duration = Duration::from_hours(1);

/// The application: one a process, shared by every front door.
#[derive(Debug)]
pub struct Service {
    config: Config,
    engine: Arc<dyn Engine>,
    bridge: Arc<Bridge>,
    audit: Audit,
    sessions: Sessions,
    environments: Environments,
    slots: Slots,
    executions: Executions,
    uploads: files::Uploads,
    /// Sandboxes whose turn is over and that are not gone yet.
    endings: TaskTracker,
    /// Cancelled when the service ends, or is gone.
    ending: CancellationToken,
    _ended: DropGuard,
    /// What a sandbox says of itself; asked once, kept only when it answered.
    environment: OnceCell<Value>,
    last_probe: ready::LastProbe,
    metrics: metrics::Metrics,
}

/// A request that was not run, or could not be. What the code itself did is never an error here:
/// it is the response's `outcome`.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A field is wrong. Nothing ran.
    #[error("{message}")]
    Rejected {
        /// The field, as a path: `limits.memory`.
        field: String,
        /// One sentence: the field, the value, the fix.
        message: String,
    },
    /// A field asks for what nobody may have. Nothing ran, and the audit log says who asked.
    #[error("{message}")]
    Forbidden {
        /// The field.
        field: String,
        /// One sentence: the field, the value, the fix.
        message: String,
    },
    /// A session could not do what it was asked; see the error for what it means.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// An environment could not be built or used; see the error for what it means. No code ran.
    #[error(transparent)]
    Environments(Box<EnvironmentsError>),
    /// There is no such tool.
    #[error("there is no tool `{0}`; mcp://forge/tools/available lists those that there are")]
    UnknownTool(String),
    /// Nothing is kept for that name.
    #[error("there is no state for `{0}`")]
    NoContext(String),
    /// The kept state was written by somebody else meanwhile. It is as they left it.
    #[error(
        "the state of `{session_id}` has version {version} now (0: there is none); read it again, and write with that version"
    )]
    ContextVersion {
        /// What it is kept for.
        session_id: String,
        /// The version that there is.
        version: i64,
    },
    /// No further state is kept.
    #[error("{0} states are kept already, as many as may be; remove some")]
    TooManyContexts(i64),
    /// Too many files are on their way.
    #[error("{0} files are on their way already, as many as may be; wait for their answers")]
    TooManyUploads(usize),
    /// Too many executions at once. Nothing ran; the same request may succeed later.
    #[error(
        "the server is busy: all of its sandboxes ({running}) are in use and {why}. Try again in a moment"
    )]
    Busy {
        /// How many may run.
        running: usize,
        /// Why this one cannot wait.
        why: String,
    },
    /// A tool was asked for that cannot be granted. Nothing ran.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// No sandbox could be started. Nothing ran.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The audit log could not be written or read. What it should have recorded did not run.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The kernel gave no random bytes for an execution's name. Nothing ran.
    #[error("no random bytes from the kernel: {0}")]
    Random(#[from] rustix::io::Errno),
    /// A sandbox ran, but did not describe itself; asking again tries again.
    #[error("the sandbox did not describe its environment: {0}")]
    Environment(String),
}

impl ServiceError {
    /// The rule of the allow-list that was hit, by a call's sandbox or by its session's.
    const fn violation(&self) -> Option<&Violation> {
        match self {
            Self::Launch(LaunchError::Forbidden(violation))
            | Self::Session(SessionError::Launch(LaunchError::Forbidden(violation))) => {
                Some(violation)
            }
            _ => None,
        }
    }

    /// Whether the caller can mend it: the same request would be refused again.
    pub fn is_callers(&self) -> bool {
        match self {
            Self::Rejected { .. }
            | Self::Forbidden { .. }
            | Self::UnknownTool(_)
            | Self::NoContext(_)
            | Self::ContextVersion { .. }
            | Self::TooManyContexts(_)
            | Self::Grant(GrantError::Unknown { .. }) => true,
            Self::Session(error) => error.is_callers(),
            Self::Environments(error) => error.is_callers(),
            _ => false,
        }
    }

    /// Whether its text may name places of this machine: for the log, not for a network.
    pub fn is_internal(&self) -> bool {
        match self {
            Self::Audit(_) | Self::Random(_) => true,
            Self::Session(error) => matches!(
                error,
                SessionError::Store(_) | SessionError::Audit(_) | SessionError::Files(_)
            ),
            Self::Environments(error) => matches!(
                **error,
                EnvironmentsError::Store(_)
                    | EnvironmentsError::Audit(_)
                    | EnvironmentsError::Files { .. }
                    | EnvironmentsError::Tree(_)
                    | EnvironmentsError::Uv(_)
            ),
            _ => false,
        }
    }

    /// What a network is told of an error that is [internal](Self::is_internal).
    pub fn in_short(&self) -> &'static str {
        match self {
            Self::Environments(error) if matches!(**error, EnvironmentsError::Uv(_)) => {
                "This server has no uv that it can use, so it builds nothing; its log says why."
            }
            _ => "The server could not do it; its log says why.",
        }
    }

    /// The process that runs the session, if that is why this one refused.
    pub fn elsewhere(&self) -> Option<i64> {
        match self {
            Self::Session(SessionError::Elsewhere { pid, .. }) => Some(*pid),
            _ => None,
        }
    }
}

impl Service {
    /// Puts the application together. Starts nothing.
    pub fn new(
        config: Config,
        engine: Arc<dyn Engine>,
        bridge: Arc<Bridge>,
        audit: Audit,
    ) -> Arc<Self> {
        let jobs = Jobs::new(&config);
        Self::with_jobs(config, engine, bridge, (audit, jobs))
    }

    /// As [`Service::new`], with other jobs: tests are not the program that they start.
    pub fn with_jobs(
        config: Config,
        engine: Arc<dyn Engine>,
        bridge: Arc<Bridge>,
        (audit, jobs): (Audit, Jobs),
    ) -> Arc<Self> {
        let slots = Slots::new(config.max_concurrent);
        let store = Arc::new(Store::new(&config.data_dir));
        let sessions = Sessions::new(
            &config,
            Arc::clone(&engine),
            Arc::clone(&store),
            audit.clone(),
        );
        let ending = CancellationToken::new();
        let environments =
            Environments::with_jobs(&config, jobs, (Arc::clone(&engine), store, audit.clone()));
        Arc::new(Self {
            config,
            engine,
            bridge,
            audit,
            sessions,
            environments,
            slots,
            executions: Executions::default(),
            uploads: files::Uploads::default(),
            endings: TaskTracker::new(),
            _ended: ending.clone().drop_guard(),
            ending,
            environment: OnceCell::new(),
            last_probe: ready::LastProbe::default(),
            metrics: metrics::Metrics::default(),
        })
    }

    /// Begins to connect the upstreams and to make sandboxes ahead, in the background.
    pub fn start(&self) {
        self.bridge.start();
        let engine = Arc::clone(&self.engine);
        tokio::spawn(async move {
            if let Err(error) = engine.prepare().await {
                tracing::warn!(%error, "no sandboxes are made ahead");
            }
        });
        let (environments, ending) = (self.environments.clone(), self.ending.clone());
        tokio::spawn(ending.run_until_cancelled_owned(async move {
            let mut ticks = tokio::time::interval(TIDY_EVERY);
            loop {
                ticks.tick().await;
                if let Err(error) = environments.tidy().await {
                    tracing::warn!(%error, "environments could not be tidied up");
                }
            }
        }));
    }

    /// Ends the sessions and the upstreams, and waits for the last sandboxes to be gone. Executions that
    /// somebody waits for are ended by dropping their futures, which the front door holds.
    pub async fn shutdown(&self) {
        self.ending.cancel();
        self.executions.stop();
        self.executions.idle().await;
        self.sessions.shutdown().await;
        self.endings.close();
        self.endings.wait().await;
        self.environments.settled().await;
        self.engine.shutdown().await;
        self.bridge.shutdown().await;
    }

    /// The limits that apply by default, and at most.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Those executions that nobody waits for.
    pub(crate) fn executions(&self) -> &Executions {
        &self.executions
    }

    /// Runs code for the local user: in a fresh sandbox, or in a session if the request names one.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]: the request was refused or no sandbox could be had; the code did not run.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future kills the sandbox, or interrupts the session's turn, and writes the
    /// audit's terminal record `cancelled`.
    pub async fn execute(
        &self,
        request: ExecuteRequest,
        observer: &mut dyn Observer,
    ) -> Result<ExecuteResponse, ServiceError> {
        self.execute_for(&Principal::local(), request, observer)
            .await
    }

    /// As [`Self::execute`], for someone else.
    ///
    /// # Errors
    ///
    /// As [`Self::execute`].
    pub async fn execute_for(
        &self,
        principal: &Principal,
        request: ExecuteRequest,
        observer: &mut dyn Observer,
    ) -> Result<ExecuteResponse, ServiceError> {
        self.execute_interruptible(principal, request, (observer, CancellationToken::new()))
            .await
    }

    /// A name for an execution that is yet to come: 128 random bits.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Random`].
    pub fn new_execution_id() -> Result<String, ServiceError> {
        execution_id()
    }

    /// Whether a request would not be refused at once. Nothing is recorded.
    pub fn accepts(&self, request: &ExecuteRequest) -> bool {
        request::check(request.clone(), &self.config).is_ok()
    }

    /// As [`Self::execute_for`]; cancelling the token interrupts a session's turn, as dropping the
    /// future does, and the answer says how it ended. Other turns are ended by dropping only.
    ///
    /// # Errors
    ///
    /// As [`Self::execute`].
    pub async fn execute_interruptible(
        &self,
        principal: &Principal,
        request: ExecuteRequest,
        interruptible: (&mut dyn Observer, CancellationToken),
    ) -> Result<ExecuteResponse, ServiceError> {
        self.execute_named((principal, execution_id()?), request, interruptible)
            .await
    }

    /// As [`Self::execute_interruptible`], under a name of [`Self::new_execution_id`].
    ///
    /// # Errors
    ///
    /// As [`Self::execute`].
    pub async fn execute_named(
        &self,
        (principal, id): (&Principal, String),
        request: ExecuteRequest,
        (observer, interrupt): (&mut dyn Observer, CancellationToken),
    ) -> Result<ExecuteResponse, ServiceError> {
        let checked = match request::check(request, &self.config) {
            Ok(checked) => checked,
            Err(refusal) => {
                let event = match &refusal {
                    ServiceError::Forbidden { .. } => "security.violation",
                    _ => "execution.refused",
                };
                self.audit
                    .record(event, records::refused(principal, &refusal))?;
                self.metrics.refuse(&refusal);
                return Err(refusal);
            }
        };
        let pending = self
            .audit
            .begin("execution", records::started(&id, principal, &checked))?;
        let running = self.metrics.begin(checked.session.is_some());
        let ended = match &checked.session {
            None => self.run((principal, &id), &checked, observer).await,
            Some(session) => {
                let name = SessionName {
                    principal: principal.clone(),
                    id: session.id.clone(),
                };
                let interruptible = (observer, interrupt);
                self.run_in_session(&id, &checked, (&name, session), interruptible)
                    .await
            }
        };
        running.end(&ended);
        if let Err(error) = &ended
            && let Some(violation) = error.violation()
        {
            self.audit
                .record("security.violation", records::violated(&id, violation))?;
        }
        let written = pending.finish(match &ended {
            Ok(response) => records::ended(response),
            Err(error) => {
                fields(json!({"success": false, "outcome": "failed", "error": error.to_string()}))
            }
        });
        if let Err(error) = written {
            // The code has run: its answer is owed. The next execution is refused at its begin.
            tracing::error!(%error, execution_id = id, "an execution's end is missing from the audit log");
        }
        ended
    }

    async fn run(
        &self,
        (principal, id): (&Principal, &str),
        checked: &Checked,
        observer: &mut dyn Observer,
    ) -> Result<ExecuteResponse, ServiceError> {
        let environment = self.environment_for(principal, checked, observer).await?;
        let slot = self.slots.take(principal).await?;
        self.metrics.wait(slot.waited);
        let grant = Arc::new(self.bridge.grant(&checked.tools).await?);
        let place = (id, slot, environment);
        let (report, isolation) = self.run_turn(place, checked, &grant, observer).await?;
        Ok(response::assemble(
            id.to_owned(),
            checked,
            &self.config.max_limits,
            grant.names(),
            (report, isolation),
        ))
    }

    /// The sandbox's whole life: both ends of it are in the audit log, whichever way it ends.
    async fn run_turn(
        &self,
        (id, slot, environment): (&str, Slot, Option<Arc<Environment>>),
        checked: &Checked,
        grant: &Arc<Grant>,
        observer: &mut dyn Observer,
    ) -> Result<(Report, Isolation), ServiceError> {
        let pending = self.audit.begin(
            "sandbox",
            fields(json!({
                "execution_id": id,
                "engine": self.engine.name(),
                "resources": LimitsView::from(&checked.limits),
            })),
        )?;
        let spec = SandboxSpec {
            id: id.to_owned(),
            limits: checked.limits.clone(),
            purpose: Purpose::Turn(imports::scan(&checked.code)),
            environment,
        };
        let sandbox = match self.engine.launch(&spec).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                pending.finish(fields(
                    json!({"success": false, "error": error.to_string()}),
                ))?;
                return Err(error.into());
            }
        };
        let isolation = sandbox.isolation.clone();
        let turn = Turn {
            code: &checked.code,
            execution_id: None,
            stubs: grant.stubs(),
            tools: &AuditedTools {
                tools: Arc::<Grant>::clone(grant),
                audit: self.audit.clone(),
                execution_id: id.to_owned(),
            },
            observer,
            limits: &checked.limits,
            caps: self.config.caps,
            max_calls: self.config.bridge.max_calls,
        };
        // On the heap: a turn's state is large, and every caller's future would carry it.
        let (report, guard) = Box::pin(turn::run(sandbox, turn)).await;
        self.endings.spawn(end(guard, pending, slot));
        Ok((report, isolation))
    }
}

/// What is left of a turn when its answer is on its way: the sandbox's end, its record, its slot.
async fn end(guard: Option<Box<dyn Guard>>, pending: Pending, slot: Slot) {
    if let Some(guard) = guard {
        guard.end(Duration::ZERO).await;
    }
    if let Err(error) = pending.finish(fields(json!({"success": true}))) {
        tracing::error!(%error, "a sandbox's end is missing from the audit log");
    }
    drop(slot);
}

/// A fresh name: 128 random bits, so that nobody can guess another's.
fn execution_id() -> Result<String, ServiceError> {
    let mut bytes = [0_u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_executions_are_128_random_bits_in_hex() {
        let (one, two) = (execution_id().unwrap(), execution_id().unwrap());
        assert_ne!(one, two);
        assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
