//! The application. Every front door parses, calls this, and renders; nothing else decides.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    engine::Isolation,
    limits::LimitsView,
    runner::wire::Raised,
    turn::{Display, ToolCallRecord},
};

/// A request to run code: the parameters of the MCP tool `execute_python`, of `mcp-forge run`,
/// and later of the REST body.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecuteRequest {
    /// Python source. The value of the last expression is the result.
    pub code: String,
    /// Names of the tools the code may call, as listed by `mcp://forge/tools/available`. Default: none.
    #[serde(default)]
    pub mcp_tools: Option<Vec<String>>,
    /// Names a session whose variables persist between calls. Omit it for a fresh sandbox.
    #[serde(default)]
    pub session_id: Option<String>,
    /// `simple` (default): a fresh sandbox for this call. `jupyter`: a session.
    #[serde(default)]
    pub backend: Option<String>,
    /// Seconds the code may run, tool calls included.
    #[serde(default)]
    pub timeout: Option<f64>,
    /// Directories to mount.
    #[serde(default)]
    pub volumes: Option<Map<String, Value>>,
    /// Name of a custom environment to run in.
    #[serde(default)]
    pub custom_image: Option<String>,
    /// Name of a template environment to run in.
    #[serde(default)]
    pub environment: Option<String>,
    /// Limits other than the defaults.
    #[serde(default)]
    pub limits: Option<LimitsRequest>,
}

/// Limits a request asks for, each up to the operator's maximum.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsRequest {
    /// Memory, for example `512m` or `2g`.
    #[serde(default)]
    pub memory: Option<String>,
    /// Microseconds of CPU time per 100 ms; 100000 is one core.
    #[serde(default)]
    pub cpu_quota: Option<u64>,
    /// Processes and threads.
    #[serde(default)]
    pub pids: Option<u64>,
    /// Space in `/workspace` and `/tmp`, for example `1g`.
    #[serde(default)]
    pub storage: Option<String>,
}

/// What comes back from running code. Also the MCP tool's `structuredContent` and the REST body.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ExecuteResponse {
    /// Whether the outcome is `completed`.
    pub success: bool,
    /// `completed`, `raised`, `timed_out`, `out_of_memory`, `output_limit`, `cancelled`, `crashed` or `session_lost`.
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
    /// What went wrong, unless the outcome is `completed`.
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
