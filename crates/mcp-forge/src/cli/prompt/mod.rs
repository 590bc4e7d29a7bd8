//! `mcp-forge run -i`: a prompt for people, on a session.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use serde_json::{Map, Value};

use crate::{text::printable, turn::Display};

use super::{
    CliError, Exit, Signals,
    console::{Console, Turned, named},
    output::{Ended, LiveOutput, tell_end, tell_saved},
};
use images::Images;
use source::{Source, Terminal, Typed};

mod images;
mod source;
mod statement;

/// What a prompt is to do.
#[derive(Debug)]
pub(super) struct Prompt {
    /// The request for each statement, but for its code and its session.
    pub(super) request: Map<String, Value>,
    /// The session's name, or `new`; without one it ends with the prompt.
    pub(super) session_id: Option<String>,
    /// Where images go, if it was said.
    pub(super) images: Option<PathBuf>,
    /// Where what was typed is kept.
    pub(super) history: PathBuf,
}

impl Prompt {
    /// Reads statements and runs each, until there are no more.
    pub(super) async fn run(self, console: Console) -> Result<Exit, CliError> {
        let is_kept = self.session_id.is_some();
        let source = Source::open(self.history)?;
        let mut talk = Talk {
            console,
            request: self.request,
            session_id: None,
            images: Images::new(self.images),
        };
        let session_id = self.session_id.unwrap_or_else(|| "new".to_owned());
        if source.is_terminal() {
            greet(is_kept.then_some(&session_id))?;
        }
        talk.ask_for(&session_id);
        let ended = talk.read(source).await;
        if let (false, Some(id)) = (is_kept, &talk.session_id) {
            // Should that fail, it is listed as lost later on, and can be deleted.
            let _ = talk.console.call("delete_session", &named(id)).await;
        }
        talk.console.end().await;
        ended
    }
}

fn greet(session: Option<&String>) -> io::Result<()> {
    let what = match session.map(String::as_str) {
        None => "a session that ends with this prompt".to_owned(),
        Some("new") => "a new session, which stays".to_owned(),
        Some(id) => format!("session {}, which stays", printable(id)),
    };
    writeln!(
        io::stderr(),
        "Python in a sealed sandbox, in {what}. A block ends with an empty line; Ctrl-C interrupts, Ctrl-D leaves."
    )
}

/// One prompt's talk with a server.
struct Talk {
    console: Console,
    request: Map<String, Value>,
    /// Once the server has told it.
    session_id: Option<String>,
    images: Images,
}

impl Talk {
    fn ask_for(&mut self, session_id: &str) {
        self.request
            .insert("session_id".to_owned(), session_id.into());
    }

    async fn read(&mut self, mut source: Source) -> Result<Exit, CliError> {
        let is_terminal = source.is_terminal();
        loop {
            let typed;
            (source, typed) = match next(source).await? {
                Ok(read) => read,
                Err(exit) => return Ok(exit),
            };
            match typed {
                Typed::Statement(code) => {
                    let left = self.execute(code).await?;
                    // A person whose code did not stop goes on; a pipe has nobody to ask.
                    if let Some(exit) =
                        left.filter(|exit| !is_terminal || *exit != Exit::Interrupted)
                    {
                        return Ok(exit);
                    }
                }
                Typed::Interrupted => writeln!(io::stderr(), "KeyboardInterrupt")?,
                Typed::End => {
                    source.close();
                    return Ok(Exit::Success);
                }
            }
        }
    }

    /// Runs one statement and shows what came of it. Says so if nobody waited for its end.
    async fn execute(&mut self, code: String) -> Result<Option<Exit>, CliError> {
        self.request.insert("code".to_owned(), code.into());
        let mut output = LiveOutput::new(false);
        let request = Value::Object(self.request.clone());
        let response = match self.console.execute(&request, &mut output).await {
            Ok(Turned::Ended(response)) => response,
            Ok(Turned::Left(exit)) => {
                writeln!(io::stderr(), "Nobody waits for the code any more.")?;
                return Ok(Some(exit));
            }
            // The code was refused, and the next may be better.
            Err(error) if error.exit() == Exit::Usage => {
                writeln!(io::stderr(), "{error}")?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let ended = Ended::read(&response)?;
        output.end()?;
        self.show(&ended)?;
        if let (None, Some(id)) = (&self.session_id, &ended.session_id) {
            if self
                .request
                .get("session_id")
                .is_some_and(|asked| asked == "new")
            {
                self.ask_for(&id.clone());
            }
            self.session_id = Some(id.clone());
        }
        Ok(None)
    }

    fn show(&mut self, ended: &Ended) -> Result<(), CliError> {
        for display in &ended.displays {
            if let Some(file) = self.images.save(display)? {
                tell_saved(&[file])?;
            } else if let Some(text) = text_of(display).filter(|_| !ended.is_result(display)) {
                writeln!(io::stdout(), "{}", printable(text))?;
            }
        }
        Ok(tell_end(ended)?)
    }
}

/// Waits for the next statement, or for a signal that ends the prompt.
async fn next(mut source: Source) -> Result<Result<(Source, Typed), Exit>, CliError> {
    let terminal = Terminal::remember();
    let mut signals = Signals::watch()?;
    let reading = tokio::task::spawn_blocking(move || {
        let typed = source.next();
        (source, typed)
    });
    tokio::select! {
        read = reading => {
            let (source, typed) = read.map_err(io::Error::other).map_err(CliError::Input)?;
            Ok(Ok((source, typed.map_err(CliError::Input)?)))
        }
        exit = signals.next() => {
            terminal.restore();
            Ok(Err(exit))
        }
    }
}

fn text_of(display: &Display) -> Option<&str> {
    display.data.get("text/plain").and_then(Value::as_str)
}
