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
        /// In a session: names the turn in what is said later of its variables and output.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        execution_id: Option<String>,
        /// In a session: what it holds is to be told after [`Event::Done`], as if it were asked then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inspect: Option<InspectBounds>,
    },
    /// Answers [`Event::ToolCall`].
    ToolResult {
        /// Echo of the call's id.
        call_id: u64,
        /// What the tool returned, or why it failed.
        #[serde(flatten)]
        answer: ToolAnswer,
    },
    /// Makes this connection a session's, before any code ran: variables stay from turn to turn.
    /// Answered by [`Event::SessionStarted`].
    StartSession {},
    /// Asks what the session holds, between turns. Answered by [`Event::Inspected`].
    Inspect {
        /// How much may be said.
        bounds: InspectBounds,
    },
    /// Writes a piece of a file below `/workspace`, between turns. Answered by [`Event::FileWritten`].
    WriteFile {
        /// Relative to `/workspace`, without `..`; missing directories are made.
        path: String,
        /// Where the piece belongs. At 0 the file is made anew.
        offset: u64,
        /// Base64.
        data: String,
    },
    /// Reads a piece of a file below `/workspace`, between turns. Answered by [`Event::FileRead`].
    ReadFile {
        /// Relative to `/workspace`, without `..`. Only regular files are read; links are not followed.
        path: String,
        /// Where to begin.
        offset: u64,
        /// Bytes, at most.
        length: u64,
    },
    /// Gives a file below `/workspace` another name in its directory, between turns. Answered by
    /// [`Event::FileWritten`].
    MoveFile {
        /// As it is called now, relative to `/workspace`.
        path: String,
        /// Its last component from then on.
        name: String,
        /// Whether a file of that name goes.
        replace: bool,
    },
    /// Removes a regular file below `/workspace`, between turns. Answered by [`Event::FileWritten`].
    RemoveFile {
        /// Relative to `/workspace`, without `..`.
        path: String,
    },
    /// Forks the interpreter, between turns. Control socket, standard output and error of the new
    /// session come as descriptors with this frame. Answered by [`Event::Branched`].
    Branch {},
}

/// How much an inspection may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InspectBounds {
    /// Variables, newest first.
    pub variables: usize,
    /// Characters of each `repr`.
    pub repr_chars: usize,
    /// Files of `/workspace`.
    pub files: usize,
    /// Milliseconds of a processor after which the rest is named only.
    pub budget_ms: u64,
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

impl ToolFailureKind {
    /// As records, responses and metrics call it; the wire does, too.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NotGranted => "not_granted",
            Self::InvalidArguments => "invalid_arguments",
            Self::Tool => "tool",
            Self::Upstream => "upstream",
            Self::Timeout => "timeout",
            Self::Limit => "limit",
        }
    }
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
    /// The turn is over. Nothing may follow, but in a session.
    Done(Done),
    /// Answers [`Request::StartSession`].
    SessionStarted {
        /// `ipython 9.1.0`, or `plain`.
        shell: String,
    },
    /// What a thread or task of an earlier turn wrote after its turn was done.
    LateOutput {
        /// That turn.
        execution_id: String,
        /// `stdout` or `stderr`.
        stream: String,
        /// A piece, bounded by the runner.
        text: String,
    },
    /// What a thread or task of an earlier turn displayed after its turn was done.
    LateDisplay {
        /// That turn.
        execution_id: String,
        /// As [`Event::Display`].
        data: Map<String, Value>,
        /// As [`Event::Display`].
        metadata: Map<String, Value>,
    },
    /// Answers [`Request::Inspect`], and follows [`Event::Done`] where that was wanted.
    Inspected(Inspected),
    /// Answers [`Request::WriteFile`], [`Request::MoveFile`] and [`Request::RemoveFile`].
    FileWritten {
        /// Echo.
        path: String,
        /// Why not, if not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// `exists` or `missing`, if that is why a file was not moved or removed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
    /// Answers [`Request::ReadFile`].
    FileRead {
        /// Echo.
        path: String,
        /// Echo.
        offset: u64,
        /// Base64.
        data: String,
        /// Whether the file ends here.
        end: bool,
        /// Why not, if not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Answers [`Request::Branch`]: the copy says [`Event::Ready`] on its own connection.
    Branched {
        /// The copy's pid in the sandbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<i32>,
        /// Why not, if not: names the thread that is in the way.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

/// What a session holds, as the runner tells it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inspected {
    /// Names that the user's code bound, newest first; modules, functions and classes not among them.
    pub variables: Vec<Variable>,
    /// Names of functions that were defined here.
    pub functions: Vec<String>,
    /// Names of classes that were defined here.
    pub classes: Vec<String>,
    /// Imported: the name here to what it is, `np` to `numpy`.
    pub imports: Map<String, Value>,
    /// Regular files below `/workspace`, by path.
    pub files: Vec<FileState>,
    /// Since the inspection before this one.
    pub changes: Changes,
    /// Variables that were left out.
    pub omitted_variables: u64,
    /// Files that were left out.
    pub omitted_files: u64,
    /// Names of live threads beside the main one.
    pub threads: Vec<String>,
}

/// One variable of a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its class, `pandas.DataFrame`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Of arrays and frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<u64>>,
    /// Of frames: column to dtype, the first hundred; of arrays one entry with an empty name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub dtypes: Map<String, Value>,
    /// Of frames: all columns there are, counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<u64>,
    /// `len`, of built-in containers, strings, arrays and frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// An estimate, what it refers to not among it unless it is an array or a frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Short; of built-in types and known libraries only, else absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repr: Option<String>,
    /// The turn that bound it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<String>,
}

/// One regular file of `/workspace`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileState {
    /// Relative to `/workspace`.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified_ns: u64,
}

/// Names of variables that changed between two inspections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    /// New ones.
    pub added: Vec<String>,
    /// Bound to something else.
    pub rebound: Vec<String>,
    /// Gone.
    pub removed: Vec<String>,
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
    /// Where [`Event::Inspected`] is to follow: the files that it will tell, if they were quick to list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<FileState>>,
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
