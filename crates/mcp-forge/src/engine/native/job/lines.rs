//! A job's output by lines, each bounded and all together: programs that report progress, and lie.

use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes kept of one line.
const LINE_BYTES: usize = 4 << 10;

/// Bytes of all lines together; what comes after is read and dropped.
const ALL_BYTES: u64 = 4 << 20;

/// Splits a stream.
#[derive(Debug)]
pub(super) struct Lines<R> {
    stream: R,
    /// Read and not split yet.
    buffer: Vec<u8>,
    /// How much of the buffer is split already.
    start: usize,
    line: Vec<u8>,
    given: u64,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(stream: R) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            start: 0,
            line: Vec::new(),
            given: 0,
        }
    }

    /// The next line, as text. `None` at the end of the stream. Nothing is lost when the future is
    /// dropped.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<String>> {
        loop {
            while let Some(byte) = self.buffer.get(self.start).copied() {
                self.start += 1;
                // Bars of progress are redrawn from the line's beginning.
                if matches!(byte, b'\n' | b'\r') {
                    if let Some(line) = self.take() {
                        return Ok(Some(line));
                    }
                } else if self.line.len() < LINE_BYTES {
                    self.line.push(byte);
                }
            }
            self.start = 0;
            self.buffer.clear();
            self.buffer.reserve(16 << 10);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(self.take());
            }
        }
    }

    fn take(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() || self.given > ALL_BYTES {
            return None;
        }
        self.given += line.len() as u64 + 1;
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(bytes: &[u8]) -> Vec<String> {
        let mut lines = Lines::new(bytes);
        let mut all = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            all.push(line);
        }
        all
    }

    #[tokio::test]
    async fn lines_end_with_either_and_with_the_stream() {
        let text = b"one\ntwo\r\n\rthree\xff\nfour";
        assert_eq!(all(text).await, ["one", "two", "three\u{fffd}", "four"]);
        assert_eq!(all(b"").await, Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_line_without_end_and_lines_without_end_are_bounded_and_read() {
        let long = vec![b'x'; 1 << 20];
        let kept = all(&long).await;
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].len(), LINE_BYTES);
        let many = b"0123456789\n".repeat(1 << 20);
        let bytes: usize = all(&many).await.iter().map(|line| line.len() + 1).sum();
        let most = usize::try_from(ALL_BYTES).unwrap();
        assert!((most..most + 16).contains(&bytes), "{bytes}");
    }
}
