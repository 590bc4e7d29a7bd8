//! One turn: from code sent to result received, tool calls included.
//!
//! One loop waits for whatever comes first: an event of the runner, a piece of output, a tool's
//! answer, the deadline. It owns the sandbox while it runs; whoever drops it kills the sandbox.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    config::OutputCaps,
    engine::{ExitCause, Guard, Sandbox, Usage},
    limits::Limits,
    runner::wire::{Caps, Raised, Stub, ToolFailure, ToolValue},
};

mod aside;
mod drive;
mod interpreter;
mod output;
mod record;
mod resident;
mod streams;

pub use aside::BetweenTurns;
pub(crate) use drive::json_size;
pub use interpreter::{Interpreter, Ran};
pub use output::Captured;
use record::Record;
pub use resident::{CopyError, Resident, ResidentError};
use streams::Streams;

/// Displays a turn may send.
const MAX_DISPLAYS: usize = 100;

/// Characters of a `repr` or a traceback.
const MAX_REPR_CHARS: usize = 64 << 10;

/// Everything a turn needs beside its sandbox.
pub struct Turn<'a> {
    /// Python source.
    pub code: &'a str,
    /// In a session: names the turn there.
    pub execution_id: Option<&'a str>,
    /// The granted tools, as the sandbox sees them.
    pub stubs: Vec<Stub>,
    /// Answers their calls.
    pub tools: &'a dyn Tools,
    /// Hears the output.
    pub observer: &'a mut dyn Observer,
    /// Only the timeout is enforced here; the rest is the engine's.
    pub limits: &'a Limits,
    /// What may be kept.
    pub caps: OutputCaps,
    /// Tool calls the code may make. The tools refuse more; far more end the turn.
    pub max_calls: u64,
}

impl std::fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Code is the user's: never in a log.
        f.debug_struct("Turn")
            .field("code_bytes", &self.code.len())
            .field("limits", self.limits)
            .finish_non_exhaustive()
    }
}

/// Runs one turn in a sandbox that is used for nothing else. The sandbox of a turn that is done
/// still lives when its report is there, so that the answer need not wait: its guard comes back,
/// to be ended. In every other case it is gone.
///
/// # Cancel safety
///
/// Dropping the future drops the sandbox's guard, which kills it.
pub async fn run(sandbox: Sandbox, turn: Turn<'_>) -> (Report, Option<Box<dyn Guard>>) {
    let mut interpreter = Interpreter::connect(sandbox);
    let Turn {
        code,
        execution_id,
        stubs,
        tools,
        observer,
        limits,
        caps,
        max_calls,
    } = turn;
    let ran = interpreter
        .turn(Turn {
            code,
            execution_id,
            stubs,
            tools,
            observer: &mut *observer,
            limits,
            caps,
            max_calls,
        })
        .await;
    interpreter.finish(ran, observer).await
}

/// Answers the tool calls of one turn. The grant is checked behind this, on every call.
#[async_trait::async_trait]
pub trait Tools: Send + Sync {
    /// Calls one tool by its name in the sandbox.
    ///
    /// # Errors
    ///
    /// [`ToolFailure`]: data for the Python side, raised there as `ToolError`.
    async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<ToolValue, ToolFailure>;
}

/// Hears what happens while a turn runs.
pub trait Observer: Send {
    /// A piece of output. Already bounded in total by the turn's caps.
    fn output(&mut self, stream: Stream, text: &str);

    /// What is done before the code can run, for whoever waits: a build's progress.
    fn status(&mut self, _text: &str) {}
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// File descriptor 1.
    Stdout,
    /// File descriptor 2.
    Stderr,
}

/// How user code ended: data, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Ran to its end.
    Completed,
    /// Ended with an exception, a syntax error included.
    Raised,
    /// Hit the wall-clock limit; the sandbox is gone, unless it is a session's that could be interrupted.
    TimedOut,
    /// Went over its memory limit; the sandbox is gone.
    OutOfMemory,
    /// Wrote far more than may be kept; the sandbox is gone, or a session's was interrupted.
    OutputLimit,
    /// The caller gave up; the sandbox is gone, or a session's was interrupted.
    Cancelled,
    /// The interpreter ended or broke the protocol; the sandbox is gone.
    Crashed(ExitCause),
    /// The engine lost the sandbox, which is gone or will be removed; what is known of why.
    SandboxError(String),
}

impl Outcome {
    /// The outcome's name on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Raised => "raised",
            Self::TimedOut => "timed_out",
            Self::OutOfMemory | Self::Crashed(ExitCause::OutOfMemory) => "out_of_memory",
            Self::OutputLimit => "output_limit",
            Self::Cancelled => "cancelled",
            Self::Crashed(_) => "crashed",
            Self::SandboxError(_) => "sandbox_error",
        }
    }
}

/// One tool call of a turn, for the response and the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct ToolCallRecord {
    /// The tool's name in the sandbox.
    pub name: String,
    /// `ok`, or the failure's kind.
    pub status: String,
    /// Wall-clock time.
    pub duration_ms: u64,
    /// Size of the arguments as JSON.
    pub request_bytes: u64,
    /// Size of the answer as JSON.
    pub response_bytes: u64,
}

/// What came of a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// How the code ended.
    pub outcome: Outcome,
    /// The last expression's value.
    pub result: Value,
    /// Its `repr`.
    pub result_repr: Option<String>,
    /// Standard output, cut at the cap.
    pub stdout: Captured,
    /// Standard error, cut at the cap.
    pub stderr: Captured,
    /// MIME bundles in the order they were shown; the result's own is last.
    pub displays: Vec<Display>,
    /// The exception, when there was one.
    pub error: Option<Raised>,
    /// What the runner says it cut: field to bytes.
    pub truncated: Map<String, Value>,
    /// In the order they ended.
    pub tool_calls: Vec<ToolCallRecord>,
    /// Wall-clock time of the turn.
    pub wall: Duration,
    /// Other use, as the engine measured.
    pub usage: Usage,
}

/// One MIME bundle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Display {
    /// MIME type to content; binary content in base64.
    pub data: Map<String, Value>,
    /// Jupyter's display metadata.
    pub metadata: Map<String, Value>,
}

fn wire_caps(caps: &OutputCaps) -> Caps {
    Caps {
        result_bytes: caps.result_bytes,
        repr_chars: MAX_REPR_CHARS,
        display_bytes: caps.display_bytes,
        displays: MAX_DISPLAYS,
    }
}
