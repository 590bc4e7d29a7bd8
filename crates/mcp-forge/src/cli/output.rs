//! What a turn shows a person: its output as it comes, then displays, the error, the result.

use std::{
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    mcp::client::ClientError,
    runner::wire::Raised,
    service::ExecuteResponse,
    session::SessionView,
    text::printable,
    turn::{BetweenTurns, Display, Observer, Stream},
};

use super::{CliError, Exit};

/// What a display is saved as, best first: MIME type, extension, and whether it is base64.
const SAVED_TYPES: &[(&str, &str, bool)] = &[
    ("image/png", "png", true),
    ("image/jpeg", "jpg", true),
    ("image/svg+xml", "svg", false),
    ("text/html", "html", false),
];

/// What a response says to a person. Read from a server's answer, or made of our own.
#[derive(Debug, Deserialize)]
pub(super) struct Ended {
    success: bool,
    outcome: String,
    result_repr: Option<String>,
    pub(super) displays: Vec<Display>,
    error: Option<Raised>,
    pub(super) session_id: Option<String>,
    session: Option<SessionView>,
    between_turns: Option<BetweenTurns>,
    notices: Vec<String>,
}

impl From<ExecuteResponse> for Ended {
    fn from(response: ExecuteResponse) -> Self {
        Self {
            success: response.success,
            outcome: response.outcome,
            result_repr: response.result_repr,
            displays: response.displays,
            error: response.error,
            session_id: response.session_id,
            session: response.session,
            between_turns: response.between_turns,
            notices: response.notices,
        }
    }
}

impl Ended {
    /// Reads a server's answer.
    pub(super) fn read(response: &Value) -> Result<Self, CliError> {
        let read = Self::deserialize(response);
        Ok(read.map_err(|error| ClientError::Nonsense(error.to_string()))?)
    }

    pub(super) fn exit(&self) -> Exit {
        exit_of(&self.outcome)
    }

    /// Whether a display is only the result once more, in other forms.
    pub(super) fn is_result(&self, display: &Display) -> bool {
        let text = display.data.get("text/plain").and_then(Value::as_str);
        text.is_some() && text == self.result_repr.as_deref()
    }
}

/// The exit code's meaning of an outcome.
pub(super) fn exit_of(outcome: &str) -> Exit {
    match outcome {
        "completed" => Exit::Success,
        "timed_out" => Exit::TimedOut,
        "out_of_memory" => Exit::OutOfMemory,
        "cancelled" => Exit::Interrupted,
        // The code did not run, whatever it is, or not to its end, and that is not its fault.
        "session_lost" | "sandbox_error" => Exit::Internal,
        _ => Exit::Failure,
    }
}

/// Passes the code's output on as it comes.
#[derive(Debug)]
pub(super) struct LiveOutput {
    is_quiet: bool,
    /// Whether the cursor stands at the start of a line of standard output.
    is_fresh: bool,
    /// Why standard output or error took no more; told at the end.
    failure: Option<io::Error>,
}

impl Observer for LiveOutput {
    fn output(&mut self, stream: Stream, text: &str) {
        if self.is_quiet || self.failure.is_some() || text.is_empty() {
            return;
        }
        let written = match stream {
            Stream::Stdout => write_now(io::stdout().lock(), text),
            Stream::Stderr => write_now(io::stderr().lock(), text),
        };
        if stream == Stream::Stdout {
            self.is_fresh = text.ends_with('\n');
        }
        self.failure = written.err();
    }

    fn status(&mut self, text: &str) {
        if !self.is_quiet && io::stderr().is_terminal() {
            // Overwritten by the next one, and by what the code writes.
            let _ = write_now(io::stderr().lock(), &format!("\r\x1b[K{text}\r"));
        }
    }
}

impl LiveOutput {
    pub(super) fn new(is_quiet: bool) -> Self {
        Self {
            is_quiet,
            is_fresh: true,
            failure: None,
        }
    }

    /// The end of the output. What is told after it begins on a line of its own.
    pub(super) fn end(self) -> Result<(), CliError> {
        if let Some(failure) = self.failure {
            return Err(failure.into());
        }
        if !self.is_fresh {
            writeln!(io::stdout())?;
        }
        Ok(())
    }
}

/// Says which displays there were and where they are now.
pub(super) fn tell_displays(ended: &Ended, saved: &[PathBuf]) -> io::Result<()> {
    let mut errors = io::stderr().lock();
    if !ended.displays.is_empty() && saved.is_empty() {
        let kinds: Vec<String> = ended.displays.iter().map(describe).collect();
        writeln!(
            errors,
            "The code showed {}; --save-displays DIR writes them to files.",
            kinds.join(", ")
        )?;
    }
    tell_saved(saved)
}

/// Says where displays are now.
pub(super) fn tell_saved(saved: &[PathBuf]) -> io::Result<()> {
    let mut errors = io::stderr().lock();
    for file in saved {
        writeln!(errors, "Saved {}", printable(&file.display().to_string()))?;
    }
    Ok(())
}

/// Says what went wrong and what else there is to know, and last the result.
pub(super) fn tell_end(ended: &Ended) -> io::Result<()> {
    let mut errors = io::stderr().lock();
    if let Some(between) = &ended.between_turns {
        for (name, text) in [("output", &between.stdout), ("errors", &between.stderr)] {
            if !text.is_empty() {
                let text = printable(text.trim_end());
                writeln!(errors, "Since the last call, this came as {name}:\n{text}")?;
            }
        }
    }
    let warnings = ended.session.iter().flat_map(|session| &session.warnings);
    for sentence in warnings.chain(&ended.notices) {
        writeln!(errors, "{}", printable(sentence))?;
    }
    if let Some(error) = &ended.error {
        let traceback = printable(error.traceback.trim_end());
        let message = printable(&format!("{}: {}", error.kind, error.message));
        match (traceback.is_empty(), ended.outcome.as_str()) {
            (true, _) => writeln!(errors, "{message}")?,
            // It ends with the message.
            (false, "raised") => writeln!(errors, "{traceback}")?,
            (false, _) => writeln!(errors, "{traceback}\n{message}")?,
        }
    } else if !ended.success {
        writeln!(errors, "The code ended as {}.", ended.outcome)?;
    }
    if let Some(result) = &ended.result_repr {
        writeln!(io::stdout(), "{}", printable(result))?;
    }
    Ok(())
}

fn write_now(mut stream: impl Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

fn describe(display: &Display) -> String {
    let best = SAVED_TYPES
        .iter()
        .map(|(mime, _, _)| *mime)
        .find(|mime| display.data.contains_key(*mime));
    let first = || {
        display
            .data
            .keys()
            .next()
            .map_or_else(|| "nothing".to_owned(), |mime| printable(mime))
    };
    best.map_or_else(first, str::to_owned)
}

/// Writes each display in its best form. The names are ours: nothing of them comes from the sandbox.
pub(super) fn save(directory: &Path, displays: &[Display]) -> Result<Vec<PathBuf>, CliError> {
    let failed = |file: &Path, source: io::Error| CliError::Save {
        file: file.to_owned(),
        source,
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    let mut files = Vec::new();
    for (index, display) in displays.iter().enumerate() {
        let Some((bytes, extension)) = best_form(display) else {
            continue;
        };
        let file = directory.join(format!("display-{}.{extension}", index + 1));
        std::fs::write(&file, bytes).map_err(|error| failed(&file, error))?;
        files.push(file);
    }
    Ok(files)
}

/// A display as a file: its bytes and the extension.
pub(super) fn best_form(display: &Display) -> Option<(Vec<u8>, &'static str)> {
    SAVED_TYPES.iter().find_map(|(mime, extension, is_base64)| {
        let Value::String(text) = display.data.get(*mime)? else {
            return None;
        };
        if !is_base64 {
            return Some((text.clone().into_bytes(), *extension));
        }
        let compact: String = text.split_ascii_whitespace().collect();
        STANDARD
            .decode(compact)
            .ok()
            .map(|bytes| (bytes, *extension))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn display(data: Value) -> Display {
        let Value::Object(data) = data else { panic!() };
        Display {
            data,
            metadata: serde_json::Map::new(),
        }
    }

    #[test]
    fn displays_are_saved_in_their_best_form() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("new/figures");
        let displays = [
            display(json!({ "text/plain": "<Figure>", "image/png": "aGVs\nbG8=" })),
            display(json!({ "text/html": "<b>x</b>", "text/plain": "x" })),
            display(json!({ "text/plain": "only text" })),
            display(json!({ "image/png": "not base64!", "image/svg+xml": "<svg/>" })),
        ];
        let files = save(&target, &displays).unwrap();
        let names: Vec<_> = files
            .iter()
            .map(|file| file.file_name().unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, ["display-1.png", "display-2.html", "display-4.svg"]);
        assert_eq!(std::fs::read(&files[0]).unwrap(), b"hello");
        assert_eq!(
            displays.iter().map(describe).collect::<Vec<_>>(),
            ["image/png", "text/html", "text/plain", "image/png"]
        );
    }
}
