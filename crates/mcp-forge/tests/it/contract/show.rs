//! An answer as lines of text: everything in it that must be the same wherever the code runs.
//!
//! Left out are times, what was used, names of executions, and what describes the engine itself.
//! A line is there only if it says something: no `stdout` line means that nothing was written.

use mcp_forge::{
    runner::wire::Raised,
    service::{ExecuteResponse, ServiceError},
    session::SessionView,
    turn::{BetweenTurns, Display},
};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Characters of a text that are shown, when runs of one character are shortened.
const MAX_SHOWN: usize = 600;

/// A run of one character of this length or more is shown as `"x" * 40`.
const LONG_RUN: usize = 40;

/// An answer to a turn. Session names are shown as `name` makes them.
pub(crate) fn answer(
    answer: &Result<ExecuteResponse, ServiceError>,
    name: &dyn Fn(&str) -> String,
) -> Vec<String> {
    match answer {
        Ok(response) => response_lines(response, name),
        Err(error) => vec![format!("refused {}", text(&name(&error.to_string())))],
    }
}

fn response_lines(response: &ExecuteResponse, name: &dyn Fn(&str) -> String) -> Vec<String> {
    let mut lines = vec![response.outcome.clone()];
    if response.success != (response.outcome == "completed") {
        lines.push(format!("success {}", response.success));
    }
    value_lines(response, &mut lines);
    for (stream, written) in [("stdout", &response.stdout), ("stderr", &response.stderr)] {
        if !written.is_empty() {
            lines.push(format!("{stream} {}", text(written)));
        }
    }
    lines.extend(response.displays.iter().map(display));
    if let Some(error) = &response.error {
        error_lines(error, name, &mut lines);
    }
    lines.extend(response.tool_calls.iter().map(|call| {
        format!(
            "tool {} {} {} -> {}",
            call.name, call.status, call.request_bytes, call.response_bytes
        )
    }));
    if !response.truncated.is_empty() {
        let truncated = Value::Object(response.truncated.clone());
        lines.push(format!("truncated {}", json(&truncated)));
    }
    let mut lines = collapsed(&lines);
    lines.extend(response.session.as_ref().map(|one| session(one, name)));
    lines.extend(response.between_turns.as_ref().map(between));
    let files = response.files.iter();
    let mut files: Vec<String> = files
        .map(|file| format!("file {} {}", text(&file.path), file.size))
        .collect();
    // As the file system lists them: no order that anyone promised.
    files.sort();
    lines.extend(files);
    lines.extend(
        response
            .notices
            .iter()
            .map(|one| format!("notice {}", text(one))),
    );
    lines
}

/// Equal lines that follow each other as one, with their number.
fn collapsed(lines: &[String]) -> Vec<String> {
    let runs = lines.chunk_by(|one, next| one == next);
    let shown = runs.map(|run| match run.len() {
        1 => run[0].clone(),
        several => format!("{} (times {several})", run[0]),
    });
    shown.collect()
}

/// The result, and its `repr` where that is not what the JSON would be in Python.
fn value_lines(response: &ExecuteResponse, lines: &mut Vec<String>) {
    if !response.result.is_null() {
        lines.push(format!("result {}", json(&response.result)));
    }
    let expected = (!response.result.is_null()).then(|| python(&response.result));
    if response.result_repr != expected {
        let shown = response.result_repr.as_deref();
        lines.push(format!("repr {}", shown.map_or("none".to_owned(), text)));
    }
}

fn error_lines(error: &Raised, name: &dyn Fn(&str) -> String, lines: &mut Vec<String>) {
    lines.push(format!(
        "error {}: {}",
        error.kind,
        text(&name(&error.message))
    ));
    let places: Vec<String> = error.traceback.lines().filter_map(place).collect();
    if !places.is_empty() {
        lines.push(format!("at {}", places.join(", ")));
    }
    if error.traceback.contains("mcp_forge_runner") {
        lines.push("the traceback shows the runner".to_owned());
    }
}

/// `2 in f` for a line of a traceback that names a place in the code.
fn place(line: &str) -> Option<String> {
    // Members of groups are drawn as a tree.
    let line = line.trim_start_matches([' ', '|', '+', '-']);
    let place = line.strip_prefix("File \"<execution")?;
    let (_, place) = place.split_once(">\", line ")?;
    Some(place.replace(", in", " in"))
}

fn display(display: &Display) -> String {
    let forms = forms(&display.data);
    if display.metadata.is_empty() {
        return format!("display {forms}");
    }
    let metadata = Value::Object(display.metadata.clone());
    format!("display {forms} with {}", json(&metadata))
}

fn forms(data: &Map<String, Value>) -> String {
    let forms = data
        .iter()
        .map(|(kind, content)| format!("{kind} {}", json(content)));
    forms.collect::<Vec<_>>().join("; ")
}

fn session(session: &SessionView, name: &dyn Fn(&str) -> String) -> String {
    let mut parts = vec![format!("session {}", session.generation)];
    if session.is_fresh {
        parts.push("fresh".to_owned());
    }
    let told = |kind: &str, sentence: &str| format!("{kind} {}", text(&name(sentence)));
    parts.extend(session.lost_reason.iter().map(|one| told("lost", one)));
    parts.extend(session.warnings.iter().map(|one| told("warning", one)));
    parts.join(" ")
}

fn between(between: &BetweenTurns) -> String {
    let mut parts = vec!["between".to_owned()];
    for (stream, written) in [("stdout", &between.stdout), ("stderr", &between.stderr)] {
        if !written.is_empty() {
            parts.push(format!("{stream} {}", text(written)));
        }
    }
    parts.extend(between.displays.iter().map(display));
    if between.dropped_bytes > 0 {
        parts.push(format!("dropped {}", between.dropped_bytes));
    }
    parts.join(" ")
}

/// JSON with blanks where Python puts them.
pub(crate) fn json(value: &Value) -> String {
    match value {
        Value::String(string) => text(string),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(json).collect();
            shortened(&format!("[{}]", items.join(", ")))
        }
        Value::Object(entries) => {
            let entries: Vec<String> = entries
                .iter()
                .map(|(key, value)| format!("{}: {}", text(key), json(value)))
                .collect();
            shortened(&format!("{{{}}}", entries.join(", ")))
        }
        plain => plain.to_string(),
    }
}

/// The `repr` of what Python would read from this JSON.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(string) => format!("'{string}'"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(python).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entries: Vec<String> = entries
                .iter()
                .map(|(key, value)| format!("'{key}': {}", python(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

/// Text in double quotes, escaped, with long runs of one character as `"x" * 1000`.
pub(crate) fn text(text: &str) -> String {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after = rest.trim_start_matches(first);
        let (run, length) = rest.split_at(rest.len() - after.len());
        let count = run.chars().count();
        if count < LONG_RUN {
            plain += run;
        } else {
            if !plain.is_empty() {
                parts.push(quoted(&std::mem::take(&mut plain)));
            }
            parts.push(format!("{} * {count}", quoted(&first.to_string())));
        }
        rest = length;
    }
    if !plain.is_empty() || parts.is_empty() {
        parts.push(quoted(&plain));
    }
    shortened(&parts.join(" + "))
}

/// As a JSON string; what cannot be seen is escaped, too.
fn quoted(part: &str) -> String {
    let shown = Value::from(part).to_string();
    let escaped = shown.chars().map(|character| match character {
        '\u{7f}'..='\u{9f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' => {
            format!("\\u{:04x}", u32::from(character))
        }
        visible => visible.to_string(),
    });
    escaped.collect()
}

/// What is long is named by its length and hash behind its beginning.
fn shortened(shown: &str) -> String {
    if shown.chars().count() <= MAX_SHOWN {
        return shown.to_owned();
    }
    let start: String = shown.chars().take(80).collect();
    let hash = format!("{:x}", Sha256::digest(shown));
    format!("{start} [{} bytes {}]", shown.len(), &hash[..8])
}

#[test]
fn texts_are_short_and_exact() {
    assert_eq!(text(""), r#""""#);
    assert_eq!(text("a\n\"b\""), r#""a\n\"b\"""#);
    let long = format!("a{}b\n", "x".repeat(1000));
    assert_eq!(text(&long), r#""a" + "x" * 1000 + "b\n""#);
    let uneven = "ab".repeat(1000);
    assert_ne!(text(&uneven), text(&format!("{uneven}a")));
    assert!(text(&uneven).len() < 120);
}

#[test]
fn a_place_is_a_line_and_a_function() {
    assert_eq!(
        place("  File \"<execution-1f>\", line 2, in f"),
        Some("2 in f".to_owned())
    );
    assert_eq!(place("  File \"/usr/lib/x.py\", line 2, in f"), None);
}
