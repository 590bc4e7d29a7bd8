//! Where a prompt's lines come from: a person at a terminal, or a pipe.

use std::{
    io::{self, BufRead, IsTerminal, Read},
    path::PathBuf,
};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::{Config, Editor, error::ReadlineError, history::FileHistory};

use super::statement::Statement;

/// Longest line from a pipe, in bytes. The service's limit on code is lower.
const MAX_LINE_BYTES: u64 = 4 << 20;

/// Statements that are remembered.
const HISTORY: usize = 1000;

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// A whole statement.
    Statement(String),
    /// Ctrl-C: what was begun is forgotten.
    Interrupted,
    /// Ctrl-D, or the pipe's end.
    End,
}

/// Reads statements. Blocks: it belongs on a thread of its own.
pub(super) enum Source {
    Terminal {
        editor: Box<Editor<(), FileHistory>>,
        history: PathBuf,
    },
    Pipe,
}

impl Source {
    /// A terminal if there is one at both ends.
    pub(super) fn open(history: PathBuf) -> io::Result<Self> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self::Pipe);
        }
        let config = Config::builder()
            .max_history_size(HISTORY)
            .and_then(|config| config.history_ignore_dups(true))
            .map_err(as_io)?
            // A person's Tab is an indentation here.
            .tab_stop(4)
            .indent_size(4)
            .build();
        let history_store = FileHistory::with_config(&config);
        let mut editor = Editor::with_history(config, history_store).map_err(as_io)?;
        // There is none at first; one that cannot be read is not worth failing for.
        let _ = editor.load_history(&history);
        Ok(Self::Terminal {
            editor: Box::new(editor),
            history,
        })
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// The next statement.
    pub(super) fn next(&mut self) -> io::Result<Typed> {
        let mut statement = Statement::default();
        loop {
            let line = match self.line(&statement)? {
                Ok(line) => line,
                // What was begun before the end of a pipe is still meant.
                Err(Typed::End) if !statement.is_empty() => break,
                Err(end) => return Ok(end),
            };
            let is_whole = statement.push(&line);
            if is_whole && statement.is_empty() {
                statement = Statement::default();
            } else if is_whole {
                break;
            }
        }
        let text = statement.into_text();
        if let Self::Terminal { editor, .. } = self {
            editor.add_history_entry(text.trim_end()).map_err(as_io)?;
        }
        Ok(Typed::Statement(text))
    }

    /// Keeps what was typed for the next time, for its owner only.
    pub(super) fn close(self) {
        if let Self::Terminal {
            mut editor,
            history,
        } = self
            && let Err(error) = editor.save_history(&history)
        {
            tracing::warn!(%error, "what was typed could not be kept");
        }
    }

    fn line(&mut self, begun: &Statement) -> io::Result<Result<String, Typed>> {
        let Self::Terminal { editor, .. } = self else {
            return pipe_line(&mut io::stdin().lock());
        };
        let is_first = begun.is_empty();
        let prompt = if is_first { ">>> " } else { "... " };
        let indent = " ".repeat(if is_first { 0 } else { begun.next_indent() });
        match editor.readline_with_initial(prompt, (&indent, "")) {
            Ok(line) => Ok(Ok(line)),
            Err(ReadlineError::Eof) => Ok(Err(Typed::End)),
            Err(ReadlineError::Interrupted) => Ok(Err(Typed::Interrupted)),
            Err(error) => Err(as_io(error)),
        }
    }
}

fn pipe_line(pipe: &mut impl BufRead) -> io::Result<Result<String, Typed>> {
    let mut line = String::new();
    let read = pipe.take(MAX_LINE_BYTES).read_line(&mut line)?;
    if read as u64 == MAX_LINE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("a line has more than {MAX_LINE_BYTES} bytes"),
        ));
    }
    if read == 0 {
        return Ok(Err(Typed::End));
    }
    Ok(Ok(line.trim_end_matches(['\r', '\n']).to_owned()))
}

fn as_io(error: ReadlineError) -> io::Error {
    match error {
        ReadlineError::Io(error) => error,
        error => io::Error::other(error),
    }
}

/// How the terminal was, to be put back when a signal ends the wait for a line: the editor, which
/// would do it, is left waiting.
pub(super) struct Terminal(Option<Termios>);

impl Terminal {
    pub(super) fn remember() -> Self {
        Self(tcgetattr(rustix::stdio::stdin()).ok())
    }

    pub(super) fn restore(&self) {
        if let Some(was) = &self.0 {
            // There is nobody to tell.
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, was);
        }
    }
}
