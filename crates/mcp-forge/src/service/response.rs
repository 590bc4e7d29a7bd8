//! What comes back from running code, and how a turn's report becomes it.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::request::Checked;
use crate::{
    config::size::show_size,
    engine::{ExitCause, Isolation},
    limits::{Limits, LimitsView},
    names::SessionId,
    runner::wire::Raised,
    session::{FileView, SessionView},
    turn::{BetweenTurns, Display, Outcome, Report, ToolCallRecord},
};

/// Most fields that the runner may say it cut.
const MAX_TRUNCATED: usize = 16;

/// What comes back from running code. Also the MCP tool's `structuredContent` and the REST body.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ExecuteResponse {
    /// Whether the outcome is `completed`.
    pub success: bool,
    /// `completed`, `raised`, `timed_out`, `out_of_memory`, `output_limit`, `cancelled`, `crashed`, `sandbox_error` or `session_lost`.
    pub outcome: String,
    /// Value of the last expression, as JSON; see `docs/values.md`.
    pub result: Value,
    /// Its `repr`.
    pub result_repr: Option<String>,
    /// What the code and its child processes wrote to standard output.
    pub stdout: String,
    /// What they wrote to standard error.
    pub stderr: String,
    /// Bytes left out of each field that was cut.
    pub truncated: Map<String, Value>,
    /// MIME bundles: figures, tables, HTML.
    pub displays: Vec<Display>,
    /// What went wrong, unless the outcome is `completed`. `type` is the exception's class when the
    /// outcome is `raised`, else `TimedOut`, `OutOfMemory`, `OutputLimit`, `Cancelled`, `Crashed` or `SandboxError`.
    pub error: Option<Raised>,
    /// The tools that were granted.
    pub available_tools: Vec<String>,
    /// The tool calls the code made.
    pub tool_calls: Vec<ToolCallRecord>,
    /// Names this execution in the audit log.
    pub execution_id: String,
    /// Seconds.
    pub execution_time: f64,
    /// The session, if there was one.
    pub session_id: Option<String>,
    /// The session's state after the call.
    pub session: Option<SessionView>,
    /// What threads and child processes of earlier calls wrote after those had ended.
    pub between_turns: Option<BetweenTurns>,
    /// Files in the session's `/workspace` that this call made or changed.
    pub files: Vec<FileView>,
    /// What else to know: other sessions that end soon.
    pub notices: Vec<String>,
    /// The limits that applied.
    pub limits: LimitsView,
    /// What was used.
    pub usage: UsageView,
    /// The layers that were in force.
    pub isolation: Isolation,
    /// The environment's name.
    pub environment: String,
}

/// Use of resources, as a response shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UsageView {
    /// Wall-clock milliseconds.
    pub wall_ms: u64,
    /// CPU milliseconds of all processes, where the engine can tell.
    pub cpu_ms: Option<u64>,
    /// Highest memory use, where the engine can tell.
    pub memory_peak_bytes: Option<u64>,
}

/// Puts a response together from what was asked, what ran, and where.
pub(super) fn assemble(
    execution_id: String,
    asked: &Checked,
    max: &Limits,
    granted: Vec<String>,
    (report, isolation): (Report, Isolation),
) -> ExecuteResponse {
    let error = match report.outcome {
        Outcome::Raised => report.error,
        _ => explain(&report.outcome, &asked.limits, max).map(|explained| Raised {
            // Where an interrupted turn was when it was interrupted.
            traceback: report
                .error
                .filter(|error| error.kind == "KeyboardInterrupt")
                .map_or_else(String::new, |error| error.traceback),
            ..explained
        }),
    };
    // The runner wrote this map: only what it is meant to hold goes on.
    let claimed = report
        .truncated
        .into_iter()
        .filter(|(field, bytes)| field.len() <= 32 && bytes.is_u64());
    let mut truncated: Map<String, Value> = claimed.take(MAX_TRUNCATED).collect();
    for (field, captured) in [("stdout", &report.stdout), ("stderr", &report.stderr)] {
        if captured.dropped_bytes > 0 {
            truncated.insert(field.to_owned(), captured.dropped_bytes.into());
        }
    }
    ExecuteResponse {
        success: report.outcome == Outcome::Completed,
        outcome: report.outcome.name().to_owned(),
        result: report.result,
        result_repr: report.result_repr,
        stdout: report.stdout.text,
        stderr: report.stderr.text,
        truncated,
        displays: report.displays,
        error,
        available_tools: granted,
        tool_calls: report.tool_calls,
        execution_id,
        execution_time: report.wall.as_secs_f64(),
        session_id: None,
        session: None,
        between_turns: None,
        files: Vec::new(),
        notices: Vec::new(),
        limits: LimitsView::from(&asked.limits),
        usage: UsageView {
            wall_ms: u64::try_from(report.wall.as_millis()).unwrap_or(u64::MAX),
            cpu_ms: report.usage.cpu_ms,
            memory_peak_bytes: report.usage.memory_peak_bytes,
        },
        isolation,
        environment: asked.environment_name(),
    }
}

/// Adds to a turn's response what its session has to say.
pub(super) fn add_session(
    response: &mut ExecuteResponse,
    id: &SessionId,
    ran: (SessionView, Option<BetweenTurns>, Vec<FileView>),
) {
    let (session, between_turns, files) = ran;
    let is_stopped = !matches!(response.outcome.as_str(), "completed" | "raised");
    if let Some(error) = response.error.as_mut().filter(|_| is_stopped) {
        let fate = match &session.lost_reason {
            None => format!(" Session `{id}` was kept: what the code had done by then is there."),
            Some(reason) => format!(
                " The session's interpreter is gone: {reason}. The next call in session `{id}` says so once and does not run its code."
            ),
        };
        if response.outcome == "out_of_memory" {
            let advice = " A session's limits are fixed when it starts: `delete_session` makes room for one with others.";
            error.message.push_str(advice);
        }
        error.message.push_str(&fate);
    }
    response.session_id = Some(id.to_string());
    response.session = Some(session);
    response.between_turns = between_turns;
    response.files = files;
}

/// The answer to code that did not run, because its session's interpreter is gone.
pub(super) fn session_lost(
    execution_id: String,
    asked: &Checked,
    (id, session): (&SessionId, SessionView),
    isolation: Isolation,
) -> ExecuteResponse {
    let reason = session.lost_reason.clone().unwrap_or_default();
    let message = format!(
        "The code did not run: session `{id}` lost its interpreter, and its variables and imports with it ({reason}). \
         Its documentation and its files in /workspace are kept. The next call in it runs in a fresh interpreter, generation {}: \
         run again what built the state, then go on.",
        session.generation
    );
    ExecuteResponse {
        success: false,
        outcome: "session_lost".to_owned(),
        result: Value::Null,
        result_repr: None,
        stdout: String::new(),
        stderr: String::new(),
        truncated: Map::new(),
        displays: Vec::new(),
        error: Some(Raised {
            kind: "SessionLost".to_owned(),
            message,
            traceback: String::new(),
        }),
        available_tools: Vec::new(),
        tool_calls: Vec::new(),
        execution_id,
        execution_time: 0.0,
        session_id: Some(id.to_string()),
        session: Some(session),
        between_turns: None,
        files: Vec::new(),
        notices: Vec::new(),
        limits: LimitsView::from(&asked.limits),
        usage: UsageView {
            wall_ms: 0,
            cpu_ms: None,
            memory_peak_bytes: None,
        },
        isolation,
        environment: asked.environment_name(),
    }
}

/// Says what ended a turn that its own code did not end, and what to do about it.
fn explain(outcome: &Outcome, limits: &Limits, max: &Limits) -> Option<Raised> {
    let (kind, message) = match outcome {
        Outcome::Completed | Outcome::Raised => return None,
        Outcome::TimedOut => ("TimedOut", explain_timeout(limits, max)),
        Outcome::OutOfMemory | Outcome::Crashed(ExitCause::OutOfMemory) => ("OutOfMemory", explain_memory(limits, max)),
        Outcome::OutputLimit => (
            "OutputLimit",
            "The code wrote far more output than may be kept and was stopped. Print less, or write to a file in /workspace.".to_owned(),
        ),
        Outcome::Cancelled => ("Cancelled", "The caller cancelled the execution, and it was stopped.".to_owned()),
        Outcome::Crashed(cause) => ("Crashed", explain_crash(cause)),
        Outcome::SandboxError(reason) => (
            "SandboxError",
            format!("The sandbox was lost while the code ran: {reason}. Tool calls that the code had made have taken effect; otherwise it can be run again."),
        ),
    };
    Some(Raised {
        kind: kind.to_owned(),
        message,
        traceback: String::new(),
    })
}

fn explain_timeout(limits: &Limits, max: &Limits) -> String {
    let (ran, most) = (limits.timeout.as_secs_f64(), max.timeout.as_secs_f64());
    let fix = if ran < most {
        format!("Ask for more with `timeout` (maximum {most}) or do less in one call.")
    } else {
        "That is the maximum; do less in one call.".to_owned()
    };
    format!("The code ran longer than its timeout of {ran} s and was stopped. {fix}")
}

fn explain_memory(limits: &Limits, max: &Limits) -> String {
    let (had, most) = (show_size(limits.memory_bytes), show_size(max.memory_bytes));
    let fix = if limits.memory_bytes < max.memory_bytes {
        format!("Ask for more with `limits.memory` (maximum {most}) or hold less at once.")
    } else {
        "That is the maximum; hold less at once.".to_owned()
    };
    format!(
        "The code went over its memory limit of {had}, files in /tmp and /workspace included, and was stopped. {fix}"
    )
}

fn explain_crash(cause: &ExitCause) -> String {
    match cause {
        ExitCause::Exited(status) => format!(
            "The interpreter exited with status {status} before the code had ended. Code that calls `os._exit` does this; `sys.exit` and exceptions are reported as such."
        ),
        ExitCause::Signaled(signal) => format!(
            "The interpreter was ended by {}. Native code (ctypes, an extension module) or a signal that the code sent itself does this.",
            signal_name(*signal)
        ),
        ExitCause::OutOfMemory => "The sandbox went over its memory limit.".to_owned(),
        ExitCause::Killed => "The sandbox was stopped.".to_owned(),
        ExitCause::Lost(reason) => format!(
            "The code disturbed the connection to the server: {reason}. The sandbox was stopped. Leave the interpreter's own file descriptors alone."
        ),
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        4 => "an illegal instruction (SIGILL)",
        5 => "a trap (SIGTRAP)",
        6 => "an abort (SIGABRT)",
        7 => "a bus error (SIGBUS)",
        8 => "an arithmetic error (SIGFPE)",
        9 => "a kill (SIGKILL)",
        11 => "a segmentation fault (SIGSEGV)",
        15 => "a request to terminate (SIGTERM)",
        24 => "its CPU time limit (SIGXCPU)",
        25 => "its file size limit (SIGXFSZ)",
        31 => "a forbidden system call (SIGSYS)",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}
