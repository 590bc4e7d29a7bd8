//! What an execution wrote, kept for whoever asks for it later.

use crate::turn::Stream;

/// Bytes that are copied for one reader of what one wrote, about.
const BATCH_BYTES: usize = 64 << 10;

/// What a piece takes beside its text.
const PIECE_BYTES: usize = size_of::<Piece>();

/// A piece of what it wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where it wrote it.
    pub(crate) stream: Stream,
    /// What it wrote.
    pub(crate) text: String,
}

/// What one wrote, as far as there is room for it.
#[derive(Debug)]
pub(super) struct Written {
    pieces: Vec<Piece>,
    /// Bytes that may still be kept of standard output and standard error together.
    room: usize,
    /// Bytes that are kept.
    bytes: usize,
}

impl Written {
    pub(super) const fn new(room: usize) -> Self {
        Self {
            pieces: Vec::new(),
            room,
            bytes: 0,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.pieces.len()
    }

    /// What it takes, about.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// As many pieces after so many as one reader is given at once: it may be slow, and there may be many.
    pub(super) fn batch(&self, seen: usize) -> Vec<Piece> {
        let mut room = BATCH_BYTES;
        let fits = |piece: &&Piece| {
            let has_room = room > 0;
            room = room.saturating_sub(piece.text.len() + PIECE_BYTES);
            has_room
        };
        let pieces = self.pieces.get(seen..).unwrap_or_default();
        pieces.iter().take_while(fits).cloned().collect()
    }

    /// Keeps a piece, or the beginning of it. False if there is no room, or nothing in it.
    pub(super) fn keep(&mut self, stream: Stream, text: &str) -> bool {
        if self.room == 0 || text.is_empty() {
            return false;
        }
        let mut end = text.len().min(self.room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        // What a piece costs beside its text counts as well: it may be one letter.
        self.room = if end < text.len() {
            0
        } else {
            self.room.saturating_sub(end + PIECE_BYTES)
        };
        self.bytes += end + PIECE_BYTES;
        self.pieces.push(Piece {
            stream,
            text: text[..end].to_owned(),
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_and_what_is_given_at_once_are_bounded() {
        let mut written = Written::new(10 * BATCH_BYTES);
        for _ in 0..1000 {
            written.keep(Stream::Stdout, &"\u{e4}".repeat(1000));
        }
        let all: usize = written.pieces.iter().map(|piece| piece.text.len()).sum();
        assert!(all <= 10 * BATCH_BYTES, "{all}");
        assert!(!written.keep(Stream::Stderr, "more"));
        let (mut seen, mut told) = (0, 0);
        while seen < written.len() {
            let batch = written.batch(seen);
            let bytes: usize = batch.iter().map(|piece| piece.text.len()).sum();
            assert!(bytes < BATCH_BYTES + 2001, "{bytes}");
            seen += batch.len();
            told += bytes;
        }
        assert_eq!(told, all);
        assert!(written.batch(seen + 1).is_empty());
    }
}
