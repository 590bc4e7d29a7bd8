//! The two output streams of a sandbox, read as they come.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    task::unconstrained,
};

use super::{Observer, Record, Stream, output};

/// Time for the ends of two pipes whose writers are dead.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// The ends that the server holds, until each is closed.
pub(super) struct Pipes {
    stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// One for each.
    buffers: [Vec<u8>; 2],
}

impl Pipes {
    pub(super) fn new(
        stdout: Box<dyn AsyncRead + Send + Unpin>,
        stderr: Box<dyn AsyncRead + Send + Unpin>,
    ) -> Self {
        Self {
            stdout: Some(stdout),
            stderr: Some(stderr),
            buffers: [vec![0; output::PIECE_BYTES], vec![0; output::PIECE_BYTES]],
        }
    }

    /// Waits for a piece of either stream: its stream and length, 0 once at its end.
    ///
    /// # Cancel safety
    ///
    /// A read that was dropped has taken nothing.
    pub(super) async fn read(&mut self) -> (Stream, usize) {
        let Self {
            stdout,
            stderr,
            buffers: [out, err],
        } = self;
        let (stream, length) = tokio::select! {
            length = read_some(stdout, out) => (Stream::Stdout, length),
            length = read_some(stderr, err) => (Stream::Stderr, length),
        };
        if length == 0 {
            match stream {
                Stream::Stdout => self.stdout = None,
                Stream::Stderr => self.stderr = None,
            }
        }
        (stream, length)
    }

    /// A piece that lies in a pipe now, if one does.
    pub(super) fn read_now(&mut self) -> Option<(Stream, usize)> {
        unconstrained(self.read()).now_or_never()
    }

    /// The bytes of the piece that was read last.
    pub(super) fn piece(&self, stream: Stream, length: usize) -> &[u8] {
        let [out, err] = &self.buffers;
        match stream {
            Stream::Stdout => &out[..length],
            Stream::Stderr => &err[..length],
        }
    }
}

/// The two output streams of a turn.
pub(super) struct Streams<'a> {
    pipes: &'a mut Pipes,
    observer: &'a mut dyn Observer,
}

impl<'a> Streams<'a> {
    pub(super) fn new(pipes: &'a mut Pipes, observer: &'a mut dyn Observer) -> Self {
        Self { pipes, observer }
    }

    /// Waits for a piece of either stream and keeps it. True when there was too much.
    ///
    /// # Cancel safety
    ///
    /// A read that was dropped has taken nothing.
    pub(super) async fn read(&mut self, record: &mut Record, flood_bytes: u64) -> bool {
        let (stream, length) = self.pipes.read().await;
        if length > 0 {
            record.output(stream, self.pipes.piece(stream, length), self.observer);
        }
        record.output_bytes > flood_bytes
    }

    /// Takes what lies in the pipes now: all that was written before the end was told.
    pub(super) fn take_written(&mut self, record: &mut Record) {
        let most = record.output_bytes + output::DRAIN_BYTES;
        while unconstrained(self.read(record, most)).now_or_never() == Some(false) {}
        record.finish_output(self.observer);
    }

    /// Takes what is left once every writer is dead: to the end of both streams.
    pub(super) async fn finish(&mut self, record: &mut Record) {
        let most = record.output_bytes + output::DRAIN_BYTES;
        let rest = async {
            while self.pipes.stdout.is_some() || self.pipes.stderr.is_some() {
                if self.read(record, most).await {
                    break;
                }
            }
        };
        // A writer that could not be killed keeps nobody waiting.
        tokio::time::timeout(LAST_OUTPUT, rest).await.ok();
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
