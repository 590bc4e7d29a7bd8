//! How sessions show themselves: in a list, as a state, in a reply.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::known::Known;
use crate::{
    runner::wire::{Changes, FileState, Variable},
    store::{Documentation, Life, SessionRecord},
};

/// The environment of an interpreter that has its own packages only.
pub const DEFAULT_ENVIRONMENT: &str = "default";

/// A session as a reply to a turn in it shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionView {
    /// Counts the interpreters that the session has had: a new number means that variables are gone.
    pub generation: u64,
    /// Why the interpreter is gone, if it is.
    pub lost_reason: Option<String>,
    /// Whether this call started an interpreter.
    pub is_fresh: bool,
    /// `ipython` with its version, or `plain`; empty when there is none.
    pub shell: String,
    /// Seconds without a call after which it ends.
    pub idle_timeout: f64,
    /// What could not be put back or kept: sentences.
    pub warnings: Vec<String>,
}

/// A session in a list.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SessionSummary {
    /// Its name.
    pub session_id: String,
    /// `live`, `lost` (the next call starts a fresh interpreter), or `elsewhere` (in another server).
    pub state: &'static str,
    /// Counts its interpreters.
    pub generation: u64,
    /// Why the last interpreter is gone.
    pub lost_reason: Option<String>,
    /// The server process that runs it, if another one does.
    pub pid: Option<i64>,
    /// Whether a turn runs now.
    pub running: bool,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    pub last_used: String,
    /// Seconds until it ends, if nobody uses it; only for live sessions here that are idle.
    pub expires_in: Option<f64>,
    /// Whether that is soon.
    pub expires_soon: bool,
    /// The environment that its interpreter starts with.
    pub environment: String,
    /// What its user wrote about it.
    pub note: String,
    /// Its variables, as far as known.
    pub variable_count: usize,
    /// Its files, as far as known.
    pub file_count: usize,
}

/// All that is known of a session.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SessionState {
    /// Variable to what its user wrote about it.
    pub documented_variables: BTreeMap<String, String>,
    /// What its user wrote about it as a whole.
    pub note: String,
    /// When documentation or content were last brought up to date; RFC 3339.
    pub last_updated: Option<String>,
    /// Names of the variables, newest first.
    pub all_variables: Vec<String>,
    /// Variable to what is known of it.
    pub introspection: Map<String, Value>,
    /// Name to module.
    pub imports: Map<String, Value>,
    /// Functions that were defined.
    pub functions: Vec<String>,
    /// Classes that were defined.
    pub classes: Vec<String>,
    /// Files in `/workspace`.
    pub files: Vec<FileView>,
    /// What the last turn changed.
    pub changes: ChangesView,
    /// Live threads beside the main one.
    pub threads: Vec<String>,
    /// Variables that there are more.
    pub omitted_variables: u64,
    /// Files that there are more.
    pub omitted_files: u64,
    /// When the content was looked at; RFC 3339. What a running turn does comes later.
    pub as_of: Option<String>,
    /// The list's entry.
    #[serde(flatten)]
    pub summary: SessionSummary,
    /// The newest executions, newest first.
    pub history: Vec<HistoryView>,
}

/// A file in a session's `/workspace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FileView {
    /// Relative to `/workspace`.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// RFC 3339.
    pub modified: String,
    /// Its resource.
    pub uri: String,
    /// Why it is not kept on the host, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_kept: Option<String>,
}

/// What the last turn changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ChangesView {
    /// That turn.
    pub execution_id: Option<String>,
    /// New variables.
    pub added: Vec<String>,
    /// Variables that are bound to something else.
    pub rebound: Vec<String>,
    /// Variables that are gone.
    pub removed: Vec<String>,
}

/// An execution in a session's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HistoryView {
    /// Its name in the audit log.
    pub execution_id: String,
    /// The session's generation then.
    pub generation: u64,
    /// SHA-256 of its code.
    pub code_sha256: String,
    /// Its code, if the operator keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// How it ended; `None` while it runs.
    pub outcome: Option<String>,
    /// RFC 3339.
    pub started_at: String,
    /// RFC 3339.
    pub ended_at: Option<String>,
}

/// A session that ends soon if nobody uses it.
#[derive(Debug, Clone, PartialEq)]
pub struct Expiring {
    /// Its name.
    pub session_id: String,
    /// Time until then.
    pub after: Duration,
}

/// What only the process that runs a session knows.
#[derive(Debug, Clone, Default)]
pub(super) struct LiveFacts {
    pub(super) is_running: bool,
    pub(super) expires_in: Option<Duration>,
    pub(super) expires_soon: bool,
    pub(super) known: Known,
    pub(super) not_kept: BTreeMap<String, String>,
}

/// The address of a session's file.
pub fn file_uri(session_id: &str, path: &str) -> String {
    let mut uri = format!("mcp://forge/sessions/{session_id}/files/");
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/') {
            uri.push(char::from(byte));
        } else {
            use std::fmt::Write as _;
            // Writing to a String cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

pub(super) fn file_view(session_id: &str, file: &FileState) -> FileView {
    FileView {
        path: file.path.clone(),
        size: file.size,
        modified: show_ms(i64::try_from(file.modified_ns / 1_000_000).unwrap_or(i64::MAX)),
        uri: file_uri(session_id, &file.path),
        not_kept: None,
    }
}

pub(super) fn summary(
    record: &SessionRecord,
    known: &Known,
    live: Option<&LiveFacts>,
) -> SessionSummary {
    let (state, pid) = match record.life {
        Life::Here => ("live", None),
        Life::Elsewhere { pid } => ("elsewhere", Some(pid)),
        Life::Lost => ("lost", None),
    };
    SessionSummary {
        session_id: record.name.id.to_string(),
        state,
        generation: record.generation,
        lost_reason: record.lost_reason.clone(),
        pid,
        running: live.is_some_and(|live| live.is_running),
        created_at: show_ms(record.created_ms),
        last_used: show_ms(record.used_ms),
        expires_in: live
            .and_then(|live| live.expires_in)
            .map(|time| time.as_secs_f64()),
        expires_soon: live.is_some_and(|live| live.expires_soon),
        environment: record
            .packages
            .clone()
            .unwrap_or_else(|| DEFAULT_ENVIRONMENT.to_owned()),
        note: record.documentation.note.clone(),
        variable_count: known.inspected.variables.len(),
        file_count: known.inspected.files.len(),
    }
}

/// What the store has of a session's content.
pub(super) fn stored(record: &SessionRecord) -> Known {
    record
        .known
        .clone()
        .and_then(|known| serde_json::from_value(known).ok())
        .unwrap_or_default()
}

pub(super) fn state(
    record: &SessionRecord,
    live: Option<LiveFacts>,
    history: Vec<crate::store::Execution>,
) -> SessionState {
    let known = live
        .as_ref()
        .map_or_else(|| stored(record), |live| live.known.clone());
    let summary = summary(record, &known, live.as_ref());
    let not_kept = live.map(|live| live.not_kept).unwrap_or_default();
    let Documentation {
        variables,
        note,
        updated_ms,
    } = record.documentation.clone();
    let as_of = (known.as_of_ms > 0).then_some(known.as_of_ms);
    let id = record.name.id.as_str();
    let files = known.inspected.files.iter().map(|file| FileView {
        not_kept: not_kept.get(&file.path).cloned(),
        ..file_view(id, file)
    });
    let Changes {
        added,
        rebound,
        removed,
    } = known.inspected.changes.clone();
    SessionState {
        documented_variables: variables,
        note,
        last_updated: as_of.max(updated_ms).map(show_ms),
        all_variables: known
            .inspected
            .variables
            .iter()
            .map(|variable| variable.name.clone())
            .collect(),
        introspection: known
            .inspected
            .variables
            .iter()
            .map(introspection)
            .collect(),
        files: files.collect(),
        imports: known.inspected.imports,
        functions: known.inspected.functions,
        classes: known.inspected.classes,
        changes: ChangesView {
            execution_id: known.execution_id,
            added,
            rebound,
            removed,
        },
        threads: known.inspected.threads,
        omitted_variables: known.inspected.omitted_variables,
        omitted_files: known.inspected.omitted_files,
        as_of: as_of.map(show_ms),
        summary,
        history: history.into_iter().map(history_view).collect(),
    }
}

/// One variable, as the specification shows it and more: `type` is the class's own name.
fn introspection(variable: &Variable) -> (String, Value) {
    let mut shown = Map::new();
    let short = variable.kind.rsplit('.').next().unwrap_or_default();
    if !short.is_empty() {
        shown.insert("type".to_owned(), short.into());
    }
    if short != variable.kind {
        shown.insert("qualified_type".to_owned(), variable.kind.clone().into());
    }
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            shown.insert(name.to_owned(), value);
        }
    };
    put("shape", variable.shape.clone().map(Value::from));
    put("columns", variable.columns.map(Value::from));
    let dtypes = (!variable.dtypes.is_empty()).then(|| match variable.dtypes.get("") {
        // An array has one.
        Some(only) => only.clone(),
        None => Value::Object(variable.dtypes.clone()),
    });
    put("dtypes", dtypes);
    put("length", variable.length.map(Value::from));
    put("memory_mb", variable.memory_bytes.map(mebibytes));
    put("memory_bytes", variable.memory_bytes.map(Value::from));
    put("repr", variable.repr.clone().map(Value::from));
    put(
        "execution_id",
        variable.execution_id.clone().map(Value::from),
    );
    (variable.name.clone(), Value::Object(shown))
}

/// With two digits; a whole number where it is one.
fn mebibytes(bytes: u64) -> Value {
    let hundredths = (bytes.saturating_mul(100) + (1 << 19)) >> 20;
    if hundredths.is_multiple_of(100) {
        Value::from(hundredths / 100)
    } else {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        Value::from(hundredths as f64 / 100.0)
    }
}

fn history_view(execution: crate::store::Execution) -> HistoryView {
    HistoryView {
        execution_id: execution.execution_id,
        generation: execution.generation,
        code_sha256: execution.code_sha256,
        code: execution.code,
        outcome: execution.outcome,
        started_at: show_ms(execution.started_ms),
        ended_at: execution.ended_ms.map(show_ms),
    }
}

/// RFC 3339 in UTC, with milliseconds.
pub(super) fn show_ms(milliseconds: i64) -> String {
    Timestamp::from_millisecond(milliseconds)
        .map(|time| format!("{time:.3}"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_files_are_escaped() {
        assert_eq!(
            file_uri("a-1", "out/a b%ü.csv"),
            "mcp://forge/sessions/a-1/files/out/a%20b%25%C3%BC.csv"
        );
    }

    #[test]
    fn a_variable_looks_as_the_specification_shows_it() {
        let variable = Variable {
            name: "df".to_owned(),
            kind: "pandas.core.frame.DataFrame".to_owned(),
            shape: Some(vec![95_000, 12]),
            memory_bytes: Some(87 << 20),
            ..Variable::default()
        };
        let (name, shown) = introspection(&variable);
        assert_eq!(name, "df");
        assert_eq!(
            shown,
            json!({
                "type": "DataFrame",
                "qualified_type": "pandas.core.frame.DataFrame",
                "shape": [95000, 12],
                "memory_mb": 87,
                "memory_bytes": 91_226_112,
            })
        );
        assert_eq!(mebibytes(1_500_000), json!(1.43));
    }
}
