//! `mcp-forge session`: the sessions that there are, what one holds, and its end.

use std::{
    fmt::Write as _,
    io::{self, Write},
    path::PathBuf,
};

use clap::Subcommand;
use serde_json::{Value, json};

use crate::{config::Config, names::SessionId, text::printable};

use super::{
    CliError, Exit,
    console::{Console, named},
    reach::Reach,
    terminal::{Screen, one_line, print_json},
};

/// Variables, files and calls that are shown to people; --json has all.
const SHOWN: usize = 20;

/// List, show and delete sessions
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A session keeps an interpreter between calls: `mcp-forge run --session NAME` makes one and comes back to it, and \
so do agents. It lives in one of the servers that share the data directory.

Examples:
  mcp-forge session list
  mcp-forge session show analysis
  mcp-forge session delete analysis
  mcp-forge session list --json | jq -r '.sessions[] | select(.state == \"live\").session_id'")]
pub(super) struct SessionArguments {
    #[command(subcommand)]
    command: SessionCommand,
}

#[derive(Debug, Subcommand)]
enum SessionCommand {
    /// List the sessions, the most recently used first
    List(Printed),
    /// Show what a session holds: variables, imports, files, documentation, the newest calls
    Show(One),
    /// End a session and forget all of it: variables, files, documentation, history
    Delete(One),
}

#[derive(Debug, clap::Args)]
struct Printed {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct One {
    /// The session's name
    #[arg(value_name = "NAME")]
    id: String,
    #[command(flatten)]
    printed: Printed,
}

pub(super) async fn run(
    arguments: SessionArguments,
    config: Config,
    config_file: Option<PathBuf>,
    screen: Screen,
) -> Result<Exit, CliError> {
    if let SessionCommand::Show(One { id, .. }) | SessionCommand::Delete(One { id, .. }) =
        &arguments.command
    {
        SessionId::parse(id).map_err(|rule| CliError::Usage(format!("{id:?}: {rule}")))?;
    }
    let reach = Reach::new(&config, config_file)?;
    let mut console = Console::outside_or_inside(reach, config).await?;
    let answered = match &arguments.command {
        SessionCommand::List(printed) => list(&mut console, printed, screen).await,
        SessionCommand::Show(one) => show(&mut console, one, screen).await,
        SessionCommand::Delete(one) => delete(&mut console, one).await,
    };
    console.end().await;
    answered.map(|()| Exit::Success)
}

async fn list(console: &mut Console, printed: &Printed, screen: Screen) -> Result<(), CliError> {
    let listed = console.call("list_sessions", &json!({})).await?;
    if printed.json {
        return Ok(print_json(&listed)?);
    }
    Ok(print(&list_text(&listed, screen))?)
}

async fn show(console: &mut Console, one: &One, screen: Screen) -> Result<(), CliError> {
    let state = console.state(&one.id).await?;
    if one.printed.json {
        return Ok(print_json(&state)?);
    }
    Ok(print(&state_text(&state, screen))?)
}

async fn delete(console: &mut Console, one: &One) -> Result<(), CliError> {
    let deleted = console.call("delete_session", &named(&one.id)).await?;
    if one.printed.json {
        return Ok(print_json(&deleted)?);
    }
    Ok(print(&format!("Session {} is gone.\n", one.id))?)
}

fn print(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}

fn list_text(listed: &Value, screen: Screen) -> String {
    let sessions = items(&listed["sessions"]);
    if sessions.is_empty() {
        return "There are no sessions: mcp-forge run --session NAME makes one.\n".to_owned();
    }
    let width = sessions
        .iter()
        .map(|session| word(&session["session_id"]).len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for session in sessions {
        let id = word(&session["session_id"]);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:width$}  {}, {} variables, {} files, last used {}",
            screen.bold(&id),
            life(session),
            session["variable_count"],
            session["file_count"],
            word(&session["last_used"])
        );
    }
    for notice in items(&listed["notices"]) {
        let _ = writeln!(text, "{}", word(notice));
    }
    text
}

/// Whether a session lives, and where, or why not.
fn life(session: &Value) -> String {
    let state = word(&session["state"]);
    match state.as_str() {
        "lost" => format!("lost ({})", word(&session["lost_reason"])),
        "elsewhere" => format!("live in the server with pid {}", session["pid"]),
        _ if session["running"] == true => format!("{state}, running"),
        _ => state,
    }
}

fn state_text(state: &Value, screen: Screen) -> String {
    let mut text = format!(
        "{}: {}, interpreter {}, last used {}\n",
        screen.bold(&word(&state["session_id"])),
        life(state),
        state["generation"],
        word(&state["last_used"])
    );
    let note = word(&state["note"]);
    if !note.is_empty() {
        let _ = writeln!(text, "{}", note.trim_end());
    }
    let documented = &state["documented_variables"];
    let variables = items(&state["all_variables"]).iter().map(|name| {
        let name = word(name);
        let about = &state["introspection"][name.as_str()];
        let kind = word(&about["type"]);
        let value = one_line(about["repr"].as_str().unwrap_or_default());
        let described = one_line(documented[name.as_str()].as_str().unwrap_or_default());
        let parts = [kind, value, described];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("{name}: {}", parts.join("; "))
    });
    section(&mut text, &screen.bold("Variables"), variables);
    let imports = state["imports"].as_object().into_iter().flatten();
    let imports = imports.map(|(name, module)| match word(module) {
        module if module == *name => printable(name),
        module => format!("{} ({module})", printable(name)),
    });
    section(&mut text, &screen.bold("Imports"), imports);
    let defined = items(&state["functions"])
        .iter()
        .chain(items(&state["classes"]))
        .map(word);
    section(&mut text, &screen.bold("Functions and classes"), defined);
    let files = items(&state["files"])
        .iter()
        .map(|file| format!("{}, {} bytes", word(&file["path"]), file["size"]));
    section(&mut text, &screen.bold("Files in /workspace"), files);
    let calls = items(&state["history"]).iter().map(|call| {
        let outcome = call["outcome"].as_str().unwrap_or("running");
        format!("{} {}", word(&call["started_at"]), printable(outcome))
    });
    section(&mut text, &screen.bold("Calls, newest first"), calls);
    text
}

/// A headline and what belongs to it, if there is anything.
fn section(
    text: &mut String,
    headline: &dyn std::fmt::Display,
    lines: impl Iterator<Item = String>,
) {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return;
    }
    let _ = writeln!(text, "\n{headline}");
    for line in lines.by_ref().take(SHOWN) {
        let _ = writeln!(text, "  {line}");
    }
    let more = lines.count();
    if more > 0 {
        let _ = writeln!(text, "  and {more} more: --json has all");
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text of the session's, fit to be shown.
fn word(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_people_are_shown() {
        // Standard output of a test is captured: no colours.
        let screen = Screen::detect(&BTreeMap::new());
        let listed = json!({
            "sessions": [
                {"session_id": "analysis", "state": "live", "running": true, "variable_count": 2, "file_count": 1, "last_used": "2026-07-01T10:00:00.000Z"},
                {"session_id": "a", "state": "lost", "lost_reason": "the server was stopped", "variable_count": 0, "file_count": 0, "last_used": "2026-07-01T09:00:00.000Z"},
                {"session_id": "b", "state": "elsewhere", "pid": 42, "variable_count": 0, "file_count": 0, "last_used": "2026-07-01T08:00:00.000Z"},
            ],
            "notices": ["Session `a` ends in 60 s."],
        });
        insta::assert_snapshot!(list_text(&listed, screen), @r"
        analysis  live, running, 2 variables, 1 files, last used 2026-07-01T10:00:00.000Z
        a         lost (the server was stopped), 0 variables, 0 files, last used 2026-07-01T09:00:00.000Z
        b         live in the server with pid 42, 0 variables, 0 files, last used 2026-07-01T08:00:00.000Z
        Session `a` ends in 60 s.
        ");
        let state = json!({
            "session_id": "analysis", "state": "live", "generation": 2, "last_used": "2026-07-01T10:00:00.000Z",
            "note": "Cleaned.\u{1b}[31m",
            "documented_variables": {"df": "sales of 2024"},
            "all_variables": ["df", "x"],
            "introspection": {"df": {"type": "DataFrame"}, "x": {"type": "int", "repr": "1"}},
            "imports": {"math": "math", "np": "numpy"},
            "functions": ["f"], "classes": [],
            "files": [{"path": "out.csv", "size": 3}],
            "history": (0..25).map(|_| json!({"started_at": "t", "outcome": null})).collect::<Vec<_>>(),
        });
        let text = state_text(&state, screen);
        let (shown, calls) = text.split_once("\nCalls").unwrap();
        insta::assert_snapshot!(shown, @r"
        analysis: live, interpreter 2, last used 2026-07-01T10:00:00.000Z
        Cleaned.\u{1b}[31m

        Variables
          df: DataFrame; sales of 2024
          x: int; 1

        Imports
          math
          np (numpy)

        Functions and classes
          f

        Files in /workspace
          out.csv, 3 bytes
        ");
        assert!(calls.ends_with("  and 5 more: --json has all\n"), "{calls}");
    }
}
