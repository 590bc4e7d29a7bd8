//! What REST sends that nobody else does.

use schemars::JsonSchema;
use serde::Serialize;

use super::refusal;
use crate::{
    engine::Isolation,
    environments::Built,
    limits::LimitsView,
    service::{ExecuteResponse, Execution, How, Standing},
    session::{FileView, SessionSummary},
    web::ProblemView,
};

/// An execution that was started with `wait=false`, or that became a task of MCP.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ExecutionView<'a> {
    /// Its name, here and in the audit log.
    pub(super) execution_id: &'a str,
    /// Where it stands.
    pub(super) state: ExecutionState,
    /// RFC 3339.
    pub(super) started_at: &'a str,
    /// RFC 3339.
    pub(super) ended_at: Option<String>,
    /// How it ended, when its state is `ended`.
    pub(super) response: Option<&'a ExecuteResponse>,
    /// What was built, when its state is `ended` and it was a build.
    pub(super) environment: Option<&'a Built>,
    /// Why it did not run, when its state is `refused`.
    pub(super) problem: Option<ProblemView>,
}

impl ExecutionView<'_> {
    /// What is known of an execution now.
    pub(super) fn of<T>(execution: &Execution, show: impl FnOnce(&ExecutionView<'_>) -> T) -> T {
        let started_at = execution.started_at.to_string();
        execution.look(|standing, since| {
            let mut view = ExecutionView {
                execution_id: &execution.id,
                state: ExecutionState::Running,
                started_at: &started_at,
                ended_at: None,
                response: None,
                environment: None,
                problem: None,
            };
            let Standing::Ended(how) = standing else {
                return show(&view);
            };
            view.ended_at = Some(since.to_string());
            view.state = match how {
                How::Ran(_) | How::Built(_) => ExecutionState::Ended,
                How::Refused(_) => ExecutionState::Refused,
                How::Cancelled => ExecutionState::Cancelled,
            };
            match how {
                How::Ran(response) => view.response = Some(response),
                How::Built(built) => view.environment = Some(built),
                How::Refused(error) => view.problem = Some(refusal::quiet(error).view()),
                How::Cancelled => {}
            }
            show(&view)
        })
    }
}

/// Where an execution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ExecutionState {
    /// It waits for its turn, or runs.
    Running,
    /// It came to an end; `response` says to which.
    Ended,
    /// It was cancelled, and its sandbox is gone.
    Cancelled,
    /// It could not be run; `problem` says why.
    Refused,
}

/// The caller's sessions.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SessionsView {
    /// The most recently used first.
    pub(super) sessions: Vec<SessionSummary>,
    /// Sessions that end soon.
    pub(super) notices: Vec<String>,
}

/// The files of a session's `/workspace`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FilesView {
    /// As they were after the last call.
    pub(super) files: Vec<FileView>,
    /// Files that there are more.
    pub(super) omitted_files: u64,
}

/// A sandbox that stays: a session with a live interpreter.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SandboxView {
    /// Its name. Code runs in it with this as `session_id`.
    pub(super) container_id: String,
    /// `running` code, or `idle`.
    pub(super) state: &'static str,
    /// Counts the interpreters that the session has had.
    pub(super) generation: u64,
    /// RFC 3339.
    pub(super) created_at: String,
    /// RFC 3339.
    pub(super) last_used: String,
    /// Seconds until it ends, if nobody uses it.
    pub(super) expires_in: Option<f64>,
}

/// A sandbox that was asked for.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SpawnedView<'a> {
    /// The sandbox.
    #[serde(flatten)]
    pub(super) sandbox: SandboxView,
    /// The limits that apply.
    pub(super) limits: &'a LimitsView,
    /// The layers that are in force.
    pub(super) isolation: &'a Isolation,
}

/// The caller's sandboxes.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SandboxesView {
    /// The most recently used first.
    pub(super) sandboxes: Vec<SandboxView>,
}

/// The tools that code can call.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ToolsView {
    /// Their names, as `mcp_tools` takes them.
    pub(super) tools: Vec<String>,
}

/// The newest records of the audit log.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AuditView {
    /// The newest first.
    pub(super) records: Vec<serde_json::Value>,
}

/// The packages that were approved, or wait for it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ApprovalsView {
    /// By name.
    pub(super) approvals: Vec<ApprovalView>,
}

/// A package that the rules hold back until somebody approves it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ApprovalView {
    /// Its name.
    pub(super) package: String,
    /// The pattern of `packages.manual_approval`; empty if nobody asked for the package.
    pub(super) pattern: String,
    /// Who asked last.
    pub(super) asked_by: String,
    /// For which environment.
    pub(super) environment: String,
    /// RFC 3339.
    pub(super) asked_at: String,
    /// RFC 3339; null while it waits.
    pub(super) approved_at: Option<String>,
    /// By whom.
    pub(super) approved_by: Option<String>,
}
