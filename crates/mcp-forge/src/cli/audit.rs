//! `mcp-forge audit`: looks at the audit log, and checks that nobody changed it.

use std::{
    io::{self, Write},
    time::Duration,
};

use serde_json::Value;

use crate::{
    audit::{self, Verification},
    config::Config,
    text::printable,
};

use super::{
    CliError, Exit, Signals,
    terminal::{Screen, print_json},
};

/// Time between looks for new records.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// Look at the audit log, or verify it
#[derive(Debug, clap::Args)]
pub(super) struct AuditArguments {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, clap::Subcommand)]
enum AuditCommand {
    Tail(TailArguments),
    Verify(VerifyArguments),
}

/// Show the newest records of all servers, the newest last
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  mcp-forge audit tail
  mcp-forge audit tail -n 0 -f
  mcp-forge audit tail -n 1000 --json | jq 'select(.outcome == \"timed_out\")'")]
struct TailArguments {
    /// How many records, at most 10000
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20)]
    lines: usize,
    /// Wait for further records and show them as they come
    #[arg(short, long)]
    follow: bool,
    /// Print one JSON object a line, as written
    #[arg(long)]
    json: bool,
}

/// Check every record of the audit log against its hash chain
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Exit codes: 0 if every record is as it was written, 1 if one was changed, removed, added or moved. \
A last line that a crash cut off is reported and is no failure.

Example:
  mcp-forge audit verify --json | jq -r '.chains[] | \"\\(.chain) \\(.last_hash)\"'")]
struct VerifyArguments {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(
    arguments: AuditArguments,
    config: &Config,
    screen: Screen,
) -> Result<Exit, CliError> {
    match arguments.command {
        AuditCommand::Tail(arguments) => tail(arguments, config).await,
        AuditCommand::Verify(arguments) => {
            let verification = audit::verify(&config.audit_dir)?;
            if arguments.json {
                print_json(&verification)?;
            } else {
                write!(io::stdout(), "{}", verification_text(&verification, screen))?;
            }
            Ok(if verification.intact {
                Exit::Success
            } else {
                Exit::Failure
            })
        }
    }
}

async fn tail(arguments: TailArguments, config: &Config) -> Result<Exit, CliError> {
    // Before the newest are read: a record that is written in between is shown, perhaps twice.
    let follower = if arguments.follow {
        Some(audit::follow(&config.audit_dir)?)
    } else {
        None
    };
    let mut newest = audit::newest(&config.audit_dir, arguments.lines)?;
    newest.reverse();
    print(&newest, arguments.json)?;
    let Some(mut follower) = follower else {
        return Ok(Exit::Success);
    };
    let mut signals = Signals::watch()?;
    loop {
        tokio::select! {
            _ = signals.next() => return Ok(Exit::Success),
            () = tokio::time::sleep(FOLLOW_INTERVAL) => print(&follower.read()?, arguments.json)?,
        }
    }
}

fn print(records: &[Value], is_json: bool) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    for record in records {
        if is_json {
            writeln!(out, "{record}")?;
        } else {
            writeln!(out, "{}", line(record))?;
        }
    }
    out.flush()?;
    Ok(())
}

/// One record on one line: time, event, then the event's own fields.
fn line(record: &Value) -> String {
    const SHOWN_FIRST_OR_NOT: &[&str] = &[
        "timestamp",
        "event",
        "sequence",
        "monotonic_ms",
        "previous",
        "hash",
    ];
    let text = |name: &str| record[name].as_str().unwrap_or("?").to_owned();
    let mut parts = vec![text("timestamp"), text("event")];
    for (name, value) in record.as_object().into_iter().flatten() {
        if SHOWN_FIRST_OR_NOT.contains(&name.as_str()) {
            continue;
        }
        let plain = |text: &str| {
            !text.is_empty()
                && !text.contains(|letter: char| letter.is_whitespace() || letter == '"')
        };
        parts.push(match value {
            Value::String(text) if plain(text) => format!("{name}={text}"),
            value => format!("{name}={value}"),
        });
    }
    printable(&parts.join(" "))
}

fn verification_text(verification: &Verification, screen: Screen) -> String {
    let mut lines = Vec::new();
    for chain in &verification.chains {
        let mut parts = vec![format!(
            "{}: {} records in {} files",
            chain.chain, chain.records, chain.files
        )];
        if chain.first_sequence > 0 {
            parts.push(format!(
                "older ones before record {} were removed",
                chain.first_sequence
            ));
        }
        if !chain.ended {
            parts.push("its server still runs or was killed".to_owned());
        }
        if let Some(file) = &chain.torn {
            parts.push(format!("the last line of {file} was cut off by a crash"));
        }
        lines.push(printable(&parts.join(", ")));
    }
    for name in &verification.ignored {
        lines.push(printable(&format!("{name}: not part of the log")));
    }
    for found in &verification.breaks {
        lines.push(printable(&format!(
            "{}:{}: {}",
            found.file, found.line, found.reason
        )));
    }
    let verdict = match (verification.intact, verification.records) {
        (true, 0) => "The log is empty.".to_owned(),
        (true, records) => format!("All {records} records are as they were written."),
        (false, _) => "The log was changed.".to_owned(),
    };
    lines.push(screen.verdict(verification.intact, &verdict).to_string());
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_is_one_line_without_foreign_control() {
        let record = json!({
            "sequence": 3, "timestamp": "2026-02-06T10:30:00.000Z", "monotonic_ms": 5, "event": "execution",
            "phase": "started", "code_bytes": 12, "tools": ["a", "b"], "note": "two words\n\u{1b}[31m\u{9b}",
            "previous": "00", "hash": "11",
        });
        assert_eq!(
            line(&record),
            "2026-02-06T10:30:00.000Z execution phase=started code_bytes=12 tools=[\"a\",\"b\"] \
             note=\"two words\\n\\u001b[31m\\u{9b}\""
        );
    }
}
