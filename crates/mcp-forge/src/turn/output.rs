//! Output as it is kept: the head and the tail of a stream, and how much lay between.

use std::{borrow::Cow, collections::VecDeque};

/// Bytes read at once: what a pipe holds, unless it was made larger.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// Bytes taken from the pipes after the end: more than two pipes hold.
pub(super) const DRAIN_BYTES: u64 = 1 << 20;

/// Output as a response shows it: text, with U+FFFD for what was not UTF-8.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// The whole, or head and tail with a marker line between.
    pub text: String,
    /// How many bytes were left out.
    pub dropped_bytes: u64,
}

/// Keeps the first three quarters of the cap and the last quarter: errors come last.
#[derive(Debug)]
pub(super) struct Keep {
    head: Vec<u8>,
    head_cap: usize,
    tail: VecDeque<u8>,
    tail_cap: usize,
    dropped: u64,
    /// The start of a character whose end has not arrived.
    partial: Vec<u8>,
}

impl Keep {
    pub(super) fn new(cap: usize) -> Self {
        let tail_cap = cap / 4;
        Self {
            head: Vec::new(),
            head_cap: cap - tail_cap,
            tail: VecDeque::new(),
            tail_cap,
            dropped: 0,
            partial: Vec::new(),
        }
    }

    /// Keeps a piece. Gives it as text for whoever watches, until the head is full.
    pub(super) fn push<'a>(&mut self, piece: &'a [u8]) -> Option<Cow<'a, str>> {
        let room = self.head_cap - self.head.len();
        let (head, rest) = piece.split_at(room.min(piece.len()));
        self.head.extend_from_slice(head);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.tail_cap);
        self.tail.drain(..over);
        self.dropped += over as u64;
        (!head.is_empty())
            .then(|| self.decode(head))
            .filter(|text| !text.is_empty())
    }

    /// The last, incomplete character, when nothing more will come.
    pub(super) fn rest(&mut self) -> Option<String> {
        let partial = std::mem::take(&mut self.partial);
        (!partial.is_empty()).then(|| String::from_utf8_lossy(&partial).into_owned())
    }

    pub(super) fn captured(self) -> Captured {
        let (front, back) = self.tail.as_slices();
        if self.dropped == 0 {
            let mut whole = self.head;
            whole.reserve_exact(front.len() + back.len());
            whole.extend_from_slice(front);
            whole.extend_from_slice(back);
            return Captured {
                text: String::from_utf8(whole)
                    .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
                dropped_bytes: 0,
            };
        }
        let text = format!(
            "{}\n[... {} bytes left out ...]\n{}",
            String::from_utf8_lossy(&self.head),
            self.dropped,
            String::from_utf8_lossy(&[front, back].concat())
        );
        Captured {
            text,
            dropped_bytes: self.dropped,
        }
    }

    /// Decodes without tearing a character that is split between two pieces.
    fn decode<'a>(&mut self, piece: &'a [u8]) -> Cow<'a, str> {
        if self.partial.is_empty()
            && let Ok(text) = std::str::from_utf8(piece)
        {
            return Cow::Borrowed(text);
        }
        self.partial.extend_from_slice(piece);
        let bytes = std::mem::take(&mut self.partial);
        let complete = match std::str::from_utf8(&bytes) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => bytes.len(),
        };
        self.partial = bytes[complete..].to_vec();
        Cow::Owned(String::from_utf8_lossy(&bytes[..complete]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_kept_whole() {
        let mut keep = Keep::new(8);
        assert_eq!(keep.push(b"hello"), Some("hello".into()));
        assert_eq!(keep.push(b"!!!"), Some("!".into()));
        assert_eq!(
            keep.captured(),
            Captured {
                text: "hello!!!".to_owned(),
                dropped_bytes: 0
            }
        );
    }

    #[test]
    fn head_and_tail_are_kept_with_a_marker_that_counts() {
        let mut keep = Keep::new(8);
        keep.push(b"abcdefghijklmnopqrst");
        assert_eq!(
            keep.captured(),
            Captured {
                text: "abcdef\n[... 12 bytes left out ...]\nst".to_owned(),
                dropped_bytes: 12
            }
        );
    }

    #[test]
    fn a_character_split_between_pieces_is_not_torn() {
        let mut keep = Keep::new(100);
        let euro = "€".as_bytes();
        assert_eq!(keep.push(&euro[..1]), None);
        assert_eq!(keep.push(&euro[1..]), Some("€".into()));
        assert_eq!(keep.push(&[0xFF, b'a']), Some("\u{FFFD}a".into()));
        assert_eq!(keep.push(&euro[..2]), None);
        assert_eq!(keep.rest(), Some("\u{FFFD}".to_owned()));
    }
}
