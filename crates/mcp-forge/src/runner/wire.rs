//! The messages between the server and the runner: requests we send, events we receive.
//!
//! One message is one frame: a big-endian `u32` length, then that many bytes of JSON.
//! `runner/fixtures/*.json` holds one example of each; both ends parse them in their tests.
//! Everything in [`Event`] was written by the sandbox: a claim, never a fact.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Largest frame accepted from a sandbox, in bytes. The runner caps results and displays well below.
pub const MAX_EVENT_BYTES: usize = 24 << 20;

/// Largest frame sent to a sandbox, in bytes: a tool result plus its envelope.
pub const MAX_REQUEST_BYTES: usize = 80 << 20;

/// Server to runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Runs one snippet.
    Execute {
        /// Python source.
        code: String,
        /// The granted tools, to be defined as functions.
        tools: Vec<Stub>,
        /// How much may be sent back.
        caps: Caps,
    },
    /// Answers [`Event::ToolCall`].
    ToolResult {
        /// Echo of the call's id.
        call_id: u64,
        /// What the tool returned, or why it failed.
        #[serde(flatten)]
        answer: ToolAnswer,
    },
}

/// What the runner may send back in one turn. The runner truncates with a marker; the server
/// kills a runner that does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caps {
    /// Bytes of the result as JSON.
    pub result_bytes: usize,
    /// Characters of the result's `repr` and of the traceback.
    pub repr_chars: usize,
    /// Bytes of all displays together.
    pub display_bytes: usize,
    /// Number of displays.
    pub displays: usize,
}

/// A tool as the sandbox sees it: data from which the runner makes a function, never source code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stub {
    /// The function's name: a valid Python identifier, not a keyword.
    pub name: String,
    /// The function's docstring.
    pub doc: String,
    /// In signature order: required ones first.
    pub parameters: Vec<Parameter>,
    /// Annotation of the return value, as Python would write it.
    pub returns: String,
}

/// One keyword-or-positional parameter of a [`Stub`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// The parameter's name in Python: a valid identifier, unique in the stub.
    pub name: String,
    /// The property's name in the tool's schema; differs when that is no identifier.
    pub key: String,
    /// Whether the schema requires it.
    pub required: bool,
    /// The schema's default, shown in the signature. Not sent unless the caller passes a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// Annotation, as Python would write it: `str`, `list[int]`, `Literal['a', 'b']`.
    pub annotation: String,
}

/// The answer to one tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolAnswer {
    /// The tool returned.
    Ok(ToolValue),
    /// The tool failed: raised as `ToolError` in the sandbox.
    Error(ToolFailure),
}

/// A tool's return value, unwrapped from its MCP envelope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToolValue {
    /// Structured content, or text that parsed as JSON, or plain text as a JSON string.
    Json {
        /// The value.
        value: Value,
    },
    /// Anything else: one block becomes one Python object, several become a list.
    Blocks {
        /// In the upstream's order.
        blocks: Vec<Block>,
    },
}

/// One content block of a tool's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Block {
    /// Becomes a `str`.
    Text {
        /// The text.
        text: String,
    },
    /// Becomes an object with `.data` (bytes) and `.mime_type`, which displays itself.
    Image {
        /// Base64.
        data: String,
        /// For example `image/png`.
        mime_type: String,
    },
    /// As an image.
    Audio {
        /// Base64.
        data: String,
        /// For example `audio/wav`.
        mime_type: String,
    },
    /// An embedded resource, or a link to one (then without `text` and `data`). Never fetched.
    Resource {
        /// As the upstream wrote it.
        uri: String,
        /// If the upstream said so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
        /// Text resources.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// Binary resources, base64.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<String>,
    },
}

/// Why a tool call failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolFailure {
    /// The class of failure; `ToolError.kind` in Python.
    pub kind: ToolFailureKind,
    /// One sentence for the person who reads the traceback.
    pub message: String,
}

/// Classes of [`ToolFailure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolFailureKind {
    /// Not in this turn's grant.
    NotGranted,
    /// The arguments do not fit the tool's schema; nothing was sent.
    InvalidArguments,
    /// The tool ran and said it failed.
    Tool,
    /// The upstream could not be reached, or went away. The call may or may not have run.
    Upstream,
    /// No answer in time. The call may still be running upstream.
    Timeout,
    /// A cap of this turn was reached: number of calls, bytes, or calls in flight.
    Limit,
}

/// Runner to server. UNTRUSTED.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The runner is up and waits for code.
    Ready {
        /// For example `3.11.7`.
        python: String,
    },
    /// Something to show, as a Jupyter MIME bundle.
    Display {
        /// MIME type to content; binary content in base64.
        data: Map<String, Value>,
        /// Jupyter's display metadata.
        metadata: Map<String, Value>,
    },
    /// The code called a tool; it waits for [`Request::ToolResult`] with the same id.
    ToolCall {
        /// Correlates the answer; unique in the turn.
        call_id: u64,
        /// A [`Stub::name`].
        name: String,
        /// By schema key.
        arguments: Map<String, Value>,
    },
    /// The turn is over. Nothing may follow.
    Done(Done),
}

/// How the code ended, as the runner tells it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// The last expression's value as JSON, by the rules in `docs/values.md`.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub result: Value,
    /// Its `repr`; absent when there was no value or it was `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_repr: Option<String>,
    /// Its MIME bundle, when it has more to show than a `repr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_display: Option<Map<String, Value>>,
    /// The exception that ended the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Raised>,
    /// What was cut: field name to the number of bytes left out.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub truncated: Map<String, Value>,
}

/// An exception of the user's code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Raised {
    /// The exception's class name.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its `str`.
    pub message: String,
    /// As Python prints it, without the runner's own frames.
    pub traceback: String,
}
