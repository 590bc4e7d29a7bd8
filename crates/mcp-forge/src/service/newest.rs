//! The newest line of what a turn or a build says, for whoever waits for it.

use tokio::sync::watch;

use crate::turn::{Observer, Stream};

/// Characters of it that are kept.
const MAX_LINE_CHARS: usize = 200;

/// Hears a turn's output and keeps the newest line of it.
#[derive(Debug)]
pub(crate) struct NewestLine {
    /// The end of the output so far: a line that may still grow, or the last whole one.
    line: String,
    ended: bool,
    newest: watch::Sender<String>,
}

impl NewestLine {
    /// One that hears, and where it is read.
    pub(crate) fn new() -> (Self, watch::Receiver<String>) {
        let (newest, receiver) = watch::channel(String::new());
        (
            Self {
                line: String::new(),
                ended: true,
                newest,
            },
            receiver,
        )
    }
}

impl Observer for NewestLine {
    fn output(&mut self, _: Stream, text: &str) {
        for piece in text.split_inclusive('\n') {
            let content = piece.trim_end_matches(['\n', '\r']);
            if self.ended && !content.is_empty() {
                self.line.clear();
            }
            let room = MAX_LINE_CHARS.saturating_sub(self.line.chars().count());
            self.line.extend(content.chars().take(room));
            self.ended = piece.ends_with('\n');
        }
        self.newest.send_replace(self.line.clone());
    }

    fn status(&mut self, text: &str) {
        self.newest
            .send_replace(text.chars().take(MAX_LINE_CHARS).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest_of(pieces: &[&str]) -> String {
        let (mut observer, receiver) = NewestLine::new();
        for piece in pieces {
            observer.output(Stream::Stdout, piece);
        }
        receiver.borrow().clone()
    }

    #[test]
    fn the_newest_line_is_the_last_that_says_something() {
        assert_eq!(newest_of(&["one\ntwo\n"]), "two");
        assert_eq!(newest_of(&["one\n", "tw", "o"]), "two");
        assert_eq!(newest_of(&["one\n\n\n"]), "one");
        assert_eq!(newest_of(&["one\r\ntwo\r\n", "\n"]), "two");
        assert_eq!(newest_of(&[&"x".repeat(100_000)]).len(), MAX_LINE_CHARS);
    }
}
