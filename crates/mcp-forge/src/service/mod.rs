//! The application. Every front door parses, calls this, and renders; nothing else decides.
//!
//! [`Service::execute`] is the whole story of one request: check, write the audit, take a slot,
//! grant tools, launch, run the turn, answer. Dropping its future at any point frees what it holds.

use std::{sync::Arc, time::Duration};

use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

mod imports;
mod ready;
mod request;
mod resources;
mod response;
mod sessions;
mod slots;

pub use ready::Readiness;
pub use request::{ExecuteRequest, LimitsRequest};
pub use response::{ExecuteResponse, UsageView};
pub use sessions::{DocumentRequest, DocumentResponse, ForkResponse};

use crate::{
    audit::{Audit, AuditError, Pending, fields},
    bridge::{Bridge, Grant, GrantError},
    config::Config,
    engine::{Engine, Guard, Isolation, LaunchError, Purpose, SandboxSpec},
    limits::LimitsView,
    names::{Principal, SessionName},
    policy::Violation,
    runner::wire::{ToolFailure, ToolFailureKind, ToolValue},
    session::{SessionError, Sessions},
    turn::{self, Observer, Report, Tools, Turn, json_size},
};
use request::Checked;
use slots::{Slot, Slots};

/// The application: one a process, shared by every front door.
#[derive(Debug)]
pub struct Service {
    config: Config,
    engine: Arc<dyn Engine>,
    bridge: Arc<Bridge>,
    audit: Audit,
    sessions: Sessions,
    slots: Slots,
    /// Sandboxes whose turn is over and that are not gone yet.
    endings: TaskTracker,
    /// What a sandbox says of itself; asked once, kept only when it answered.
    environment: OnceCell<Value>,
    last_probe: ready::LastProbe,
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
    /// A field whose feature does not exist yet. Nothing ran.
    #[error("{message}")]
    NotAvailableYet {
        /// The field.
        field: &'static str,
        /// What to do today.
        message: String,
    },
    /// There is no such tool.
    #[error("there is no tool `{0}`; mcp://forge/tools/available lists those that there are")]
    UnknownTool(String),
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
    /// Whether the caller can mend it: the same request would be refused again.
    pub fn is_callers(&self) -> bool {
        match self {
            Self::Rejected { .. }
            | Self::Forbidden { .. }
            | Self::NotAvailableYet { .. }
            | Self::UnknownTool(_)
            | Self::Grant(GrantError::Unknown { .. }) => true,
            Self::Session(error) => error.is_callers(),
            _ => false,
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
        let slots = Slots::new(config.max_concurrent);
        let sessions = Sessions::new(&config, Arc::clone(&engine), audit.clone());
        Arc::new(Self {
            config,
            engine,
            bridge,
            audit,
            sessions,
            slots,
            endings: TaskTracker::new(),
            environment: OnceCell::new(),
            last_probe: ready::LastProbe::default(),
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
    }

    /// Ends the sessions and the upstreams, and waits for the last sandboxes to be gone. Executions
    /// are ended by dropping their futures, which the front door holds.
    pub async fn shutdown(&self) {
        self.sessions.shutdown().await;
        self.endings.close();
        self.endings.wait().await;
        self.engine.shutdown().await;
        self.bridge.shutdown().await;
    }

    /// The limits that apply by default, and at most.
    pub fn config(&self) -> &Config {
        &self.config
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
        (observer, interrupt): (&mut dyn Observer, CancellationToken),
    ) -> Result<ExecuteResponse, ServiceError> {
        let checked = match request::check(request, &self.config) {
            Ok(checked) => checked,
            Err(refusal) => {
                let event = match &refusal {
                    ServiceError::Forbidden { .. } => "security.violation",
                    _ => "execution.refused",
                };
                let mut told = fields(refusal_fields(&refusal));
                told.insert("principal".to_owned(), principal.as_str().into());
                self.audit.record(event, told)?;
                return Err(refusal);
            }
        };
        let id = execution_id()?;
        let pending = self
            .audit
            .begin("execution", start_fields(&id, principal, &checked))?;
        let ended = match &checked.session {
            None => self.run(&id, &checked, observer).await,
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
        let written = pending.finish(match &ended {
            Ok(response) => end_fields(response),
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
        id: &str,
        checked: &Checked,
        observer: &mut dyn Observer,
    ) -> Result<ExecuteResponse, ServiceError> {
        let slot = self.slots.take().await?;
        let grant = Arc::new(self.bridge.grant(&checked.tools).await?);
        let (report, isolation) = self.run_turn((id, slot), checked, &grant, observer).await?;
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
        (id, slot): (&str, Slot),
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
        };
        let sandbox = match self.engine.launch(&spec).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                if let LaunchError::Forbidden(violation) = &error {
                    self.audit
                        .record("security.violation", violation_fields(id, violation))?;
                }
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

/// Which rule of the allow-list was hit, and by which execution.
fn violation_fields(execution_id: &str, violation: &Violation) -> Map<String, Value> {
    fields(json!({
        "execution_id": execution_id,
        "rule": violation.rule,
        "reason": violation.message,
    }))
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

/// Tools whose every call is in the audit log before it is made: by name and size, never by content.
struct AuditedTools {
    tools: Arc<dyn Tools>,
    audit: Audit,
    execution_id: String,
}

#[async_trait::async_trait]
impl Tools for AuditedTools {
    async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<ToolValue, ToolFailure> {
        let started = fields(json!({
            "execution_id": self.execution_id,
            "tool": name,
            "request_bytes": json_size(&arguments),
        }));
        let pending = self
            .audit
            .begin("tool.call", started)
            .map_err(|error| ToolFailure {
                kind: ToolFailureKind::NotGranted,
                message: format!(
                    "the call was refused because it could not be written to the audit log: {error}"
                ),
            })?;
        let answer = self.tools.call(name, arguments).await;
        let (status, response_bytes) = match &answer {
            Ok(value) => (json!("ok"), json_size(value)),
            Err(failure) => (json!(failure.kind), json_size(failure)),
        };
        let ended = fields(json!({
            "tool": name,
            "status": status,
            "response_bytes": response_bytes,
        }));
        if let Err(error) = pending.finish(ended) {
            tracing::error!(%error, tool = name, "a tool call's end is missing from the audit log");
        }
        answer
    }
}

/// A fresh name: 128 random bits, so that nobody can guess another's.
fn execution_id() -> Result<String, ServiceError> {
    let mut bytes = [0_u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// The code itself stays out of the log: its hash names it without revealing it.
fn start_fields(id: &str, principal: &Principal, checked: &Checked) -> Map<String, Value> {
    let mut started = fields(json!({
        "execution_id": id,
        "principal": principal,
        "code_sha256": format!("{:x}", Sha256::digest(&checked.code)),
        "code_bytes": checked.code.len(),
        "tools": checked.tools,
        "resources": LimitsView::from(&checked.limits),
    }));
    if let Some(session) = &checked.session {
        started.insert("session_id".to_owned(), session.id.as_str().into());
    }
    started
}

fn end_fields(response: &ExecuteResponse) -> Map<String, Value> {
    fields(json!({
        "success": response.success,
        "outcome": response.outcome,
        "usage": response.usage,
        "tool_calls": response.tool_calls.len(),
        "stdout_bytes": response.stdout.len(),
        "stderr_bytes": response.stderr.len(),
    }))
}

fn refusal_fields(refusal: &ServiceError) -> Value {
    match refusal {
        ServiceError::Rejected { field, .. } => json!({"field": field, "success": false}),
        ServiceError::Forbidden { field, message } => {
            json!({"field": field, "reason": message, "success": false})
        }
        ServiceError::NotAvailableYet { field, .. } => json!({"field": field, "success": false}),
        _ => json!({"success": false}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knows one tool.
    struct One;

    #[async_trait::async_trait]
    impl Tools for One {
        async fn call(&self, name: &str, _: Map<String, Value>) -> Result<ToolValue, ToolFailure> {
            match name {
                "good" => Ok(ToolValue::Json {
                    value: json!("secret answer"),
                }),
                "slow" => std::future::pending().await,
                _ => Err(ToolFailure {
                    kind: ToolFailureKind::Tool,
                    message: "secret failure".to_owned(),
                }),
            }
        }
    }

    #[tokio::test]
    async fn each_tool_call_has_two_records_with_sizes_and_no_content() {
        let directory = tempfile::tempdir().unwrap();
        let audit = Audit::open(&directory.path().join("audit")).unwrap();
        let tools = AuditedTools {
            tools: Arc::new(One),
            audit: audit.clone(),
            execution_id: "e1".to_owned(),
        };
        let arguments = || fields(json!({"q": "secret question"}));
        tools.call("good", arguments()).await.unwrap();
        tools.call("bad", arguments()).await.unwrap_err();
        let slow = tokio::time::timeout(
            std::time::Duration::from_millis(1),
            tools.call("slow", arguments()),
        );
        slow.await.unwrap_err();

        let mut records = audit.newest(10).unwrap();
        records.reverse();
        let told: Vec<String> = records
            .iter()
            .filter(|record| record["event"] == "tool.call")
            .map(|record| {
                let ended = record
                    .get("status")
                    .or(record.get("outcome"))
                    .unwrap_or(&Value::Null);
                format!(
                    "{} {} {} {ended}",
                    record["execution_id"], record["tool"], record["phase"]
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                r#""e1" "good" "started" null"#,
                r#""e1" "good" "finished" "ok""#,
                r#""e1" "bad" "started" null"#,
                r#""e1" "bad" "finished" "tool""#,
                r#""e1" "slow" "started" null"#,
                r#""e1" null "finished" "cancelled""#,
            ]
        );
        assert_eq!(
            records
                .iter()
                .find_map(|record| record.get("request_bytes")),
            Some(&json!(23))
        );
        assert!(!json!(records).to_string().contains("secret"));
    }

    #[test]
    fn names_of_executions_are_128_random_bits_in_hex() {
        let (one, two) = (execution_id().unwrap(), execution_id().unwrap());
        assert_ne!(one, two);
        assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
