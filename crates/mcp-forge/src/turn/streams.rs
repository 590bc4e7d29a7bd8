//! The two output streams of a sandbox, read as they come.

use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{Observer, Record, Stream, output};

/// The two output streams of the sandbox, until each ends.
pub(super) struct Streams<'a> {
    stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// One for each.
    buffers: [Vec<u8>; 2],
    observer: &'a mut dyn Observer,
}

impl<'a> Streams<'a> {
    pub(super) fn new(
        stdout: Box<dyn AsyncRead + Send + Unpin>,
        stderr: Box<dyn AsyncRead + Send + Unpin>,
        observer: &'a mut dyn Observer,
    ) -> Self {
        let buffers = [vec![0; output::PIECE_BYTES], vec![0; output::PIECE_BYTES]];
        Self {
            stdout: Some(stdout),
            stderr: Some(stderr),
            buffers,
            observer,
        }
    }

    /// Waits for a piece of either stream and keeps it. True when there was too much.
    ///
    /// # Cancel safety
    ///
    /// A read that was dropped has taken nothing.
    pub(super) async fn read(&mut self, record: &mut Record, flood_bytes: u64) -> bool {
        let [out, err] = &mut self.buffers;
        let (stream, length) = tokio::select! {
            length = read_some(&mut self.stdout, out) => (Stream::Stdout, length),
            length = read_some(&mut self.stderr, err) => (Stream::Stderr, length),
        };
        let piece = if stream == Stream::Stdout {
            &out[..length]
        } else {
            &err[..length]
        };
        if length == 0 {
            self.close(stream);
        } else {
            record.output(stream, piece, self.observer);
        }
        record.output_bytes > flood_bytes
    }

    fn close(&mut self, stream: Stream) {
        match stream {
            Stream::Stdout => self.stdout = None,
            Stream::Stderr => self.stderr = None,
        }
    }

    /// Takes what already lies in the pipes, and waits for nothing.
    pub(super) fn drain(&mut self, record: &mut Record) {
        let most = record.output_bytes + output::DRAIN_BYTES;
        while let Some(false) = self.read(record, most).now_or_never() {
            if self.stdout.is_none() && self.stderr.is_none() {
                break;
            }
        }
        record.finish_output(self.observer);
    }
}

/// Reads from a stream that may have ended; then never. A failed read is an end.
async fn read_some(
    stream: &mut Option<Box<dyn AsyncRead + Send + Unpin>>,
    buffer: &mut [u8],
) -> usize {
    match stream {
        Some(stream) => stream.read(buffer).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}
