//! The application. Every front door parses, calls this, and renders; nothing else decides.
//!
//! [`Service::execute`] is the whole story of one request: check, write the audit, take a slot,
//! grant tools, launch, run the turn, answer. Dropping its future at any point frees what it holds.

use std::{sync::Arc, time::Duration};

use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, time::timeout};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::{Instrument as _, Span};

mod context;
mod cpu;
mod environments;
mod error;
mod executions;
mod fields;
mod files;
mod imports;
mod ledger;
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
pub use error::ServiceError;
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
    audit::{Audit, Pending, fields},
    bridge::{Bridge, Grant},
    config::Config,
    engine::{Engine, Environment, Guard, Isolation, Purpose, SandboxSpec, native::job::Jobs},
    environments::Environments,
    limits::LimitsView,
    names::{Principal, SessionName},
    session::Sessions,
    store::Store,
    telemetry::spans,
    turn::{self, Observer, Report, Turn},
};
use ledger::{Ledger, MeteredEngine};
use records::AuditedTools;
use request::Checked;
use slots::{Slot, Slots};

/// Between two looks at which environments nobody uses any more.
const TIDY_EVERY: Duration = Duration::from_hours(1);

/// Between two looks at what living sandboxes have used, so that it counts for the minute in which it
/// was used.
const SETTLE_EVERY: Duration = Duration::from_secs(30);

/// How long the end waits for what front doors are about to drop.
const LAST_RECORDS: Duration = Duration::from_secs(5);

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
    /// Executions and builds that somebody waits for.
    awaited: TaskTracker,
    /// Sandboxes whose turn is over and that are not gone yet.
    endings: TaskTracker,
    /// Cancelled when the service ends, or is gone.
    ending: CancellationToken,
    _ended: DropGuard,
    /// What a sandbox says of itself; asked once, kept only when it answered.
    environment: OnceCell<Value>,
    last_probe: ready::LastProbe,
    disk_probe: ready::DiskProbe,
    metrics: metrics::Metrics,
    ledger: Arc<Ledger>,
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
        let ledger = Arc::<Ledger>::default();
        let engine = MeteredEngine::around(engine, Arc::clone(&ledger));
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
            awaited: TaskTracker::new(),
            endings: TaskTracker::new(),
            _ended: ending.clone().drop_guard(),
            ending,
            environment: OnceCell::new(),
            last_probe: ready::LastProbe::default(),
            disk_probe: ready::DiskProbe::default(),
            metrics: metrics::Metrics::default(),
            ledger,
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
        let (ledger, ending) = (Arc::clone(&self.ledger), self.ending.clone());
        tokio::spawn(ending.run_until_cancelled_owned(async move {
            let mut ticks = tokio::time::interval(SETTLE_EVERY);
            loop {
                ticks.tick().await;
                if ledger.has_quotas() {
                    ledger.settle();
                }
            }
        }));
    }

    /// Ends the sessions and the upstreams, and waits for the last sandboxes to be gone. Executions that
    /// somebody waits for are ended by dropping their futures, which the front door holds: it has, or is
    /// about to, and each then writes its last record, for which this waits, but not for long.
    pub async fn shutdown(&self) {
        self.end_work().await;
        self.settled().await;
        self.end_engine_and_upstreams().await;
    }

    /// The first part of [`Self::shutdown`]: ends executions and sessions.
    pub(crate) async fn end_work(&self) {
        self.ending.cancel();
        self.executions.stop();
        self.executions.idle().await;
        self.sessions.shutdown().await;
        self.awaited.close();
        if timeout(LAST_RECORDS, self.awaited.wait()).await.is_err() {
            tracing::warn!("what somebody waits for has not ended; its end will not be recorded");
        }
        self.endings.close();
        self.endings.wait().await;
    }

    /// The second: waits until what builds wrote in vain is removed.
    pub(crate) async fn settled(&self) {
        self.environments.settled().await;
    }

    /// The last.
    pub(crate) async fn end_engine_and_upstreams(&self) {
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
    pub fn accepts(&self, principal: &Principal, request: &ExecuteRequest) -> bool {
        self.may_use_cpu(principal).is_ok() && request::check(request.clone(), &self.config).is_ok()
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
        interruptible: (&mut dyn Observer, CancellationToken),
    ) -> Result<ExecuteResponse, ServiceError> {
        let span = spans::execution(&id, principal, request.trace.as_ref());
        self.execute_recorded((principal, id), request, interruptible)
            .instrument(span)
            .await
    }

    async fn execute_recorded(
        &self,
        (principal, id): (&Principal, String),
        request: ExecuteRequest,
        (observer, interrupt): (&mut dyn Observer, CancellationToken),
    ) -> Result<ExecuteResponse, ServiceError> {
        // Given back when the last record is written, also where this is dropped.
        let _awaited = self.awaited.token();
        let checked = request::check(request, &self.config)
            .and_then(|checked| self.may_use_cpu(principal).map(|()| checked));
        let checked = match checked {
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
        let abandoned = self.abandoned(principal, checked.limits.cpu_quota_us);
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
        abandoned.answered();
        if let Ok(response) = &ended {
            Span::current().record("outcome", response.outcome.as_str());
            self.charge_unmeasured(principal, response);
        }
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
        let slot = self
            .slots
            .take(principal)
            .instrument(spans::queue())
            .await?;
        self.metrics.wait(slot.waited);
        let grant = self.bridge.grant(&checked.tools).await?;
        let grant = Arc::new(grant.traced(checked.trace.clone()));
        let place = ((principal, id), slot, environment);
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
        ((principal, id), slot, environment): ((&Principal, &str), Slot, Option<Arc<Environment>>),
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
        let launching = self.engine.launch(&spec);
        let launching = launching.instrument(spans::sandbox(self.engine.name()));
        let mut sandbox = match launching.await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                pending.finish(fields(
                    json!({"success": false, "error": error.to_string()}),
                ))?;
                return Err(error.into());
            }
        };
        sandbox.guard.charge_to(principal);
        let isolation = sandbox.isolation.clone();
        let turn = Turn {
            code: &checked.code,
            execution_id: None,
            stubs: grant.stubs(),
            tools: &AuditedTools {
                tools: Arc::<Grant>::clone(grant),
                audit: self.audit.clone(),
                execution_id: id.to_owned(),
                span: Span::current(),
            },
            observer,
            limits: &checked.limits,
            caps: self.config.caps,
            max_calls: self.config.bridge.max_calls,
        };
        // On the heap: a turn's state is large, and every caller's future would carry it.
        let (report, guard) = Box::pin(turn::run(sandbox, turn))
            .instrument(spans::run())
            .await;
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
