//! One turn: from code sent to result received, tool calls included.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    engine::{ExitCause, Usage},
    runner::wire::{Raised, ToolFailure, ToolValue},
};

/// Answers the tool calls of one turn. The grant is checked behind this, on every call.
#[async_trait::async_trait]
pub trait Tools: Send + Sync {
    /// Calls one tool by its name in the sandbox.
    ///
    /// # Errors
    ///
    /// [`ToolFailure`]: data for the Python side, raised there as `ToolError`.
    async fn call(&self, name: &str, arguments: Map<String, Value>) -> Result<ToolValue, ToolFailure>;
}

/// Hears what happens while a turn runs.
pub trait Observer: Send {
    /// A piece of output. Already bounded in total by the turn's caps.
    fn output(&mut self, stream: Stream, text: &str);
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
    /// Hit the wall-clock limit; the sandbox is gone.
    TimedOut,
    /// Went over its memory limit; the sandbox is gone.
    OutOfMemory,
    /// Wrote far more than may be kept; the sandbox is gone.
    OutputLimit,
    /// The caller gave up; the sandbox is gone.
    Cancelled,
    /// The interpreter ended or broke the protocol; the sandbox is gone.
    Crashed(ExitCause),
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

/// Output as kept: text with U+FFFD for what was not UTF-8.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// The first bytes, and a marker line if some were left out.
    pub text: String,
    /// How many bytes were left out.
    pub dropped_bytes: u64,
}

/// One MIME bundle.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Display {
    /// MIME type to content; binary content in base64.
    pub data: Map<String, Value>,
    /// Jupyter's display metadata.
    pub metadata: Map<String, Value>,
}
