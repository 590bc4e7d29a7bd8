//! The records that a relay and the server exchange over a container's one stream each way.
//!
//! Two tasks carry them: what arrives goes to in-memory pipes, which the rest of the server reads as
//! it reads any engine's; what the server sends is packed. Everything that arrives is UNTRUSTED: the
//! relay shares its user with the code.

use std::{collections::BTreeMap, io, pin::Pin};

use bollard::container::{AttachContainerResults, LogOutput};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{
        AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, SimplexStream, WriteHalf,
        duplex, simplex, split,
    },
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Duration, timeout},
};

use super::facts::Facts;

/// Bytes in memory between a container and whoever reads it, for each stream.
const PIPE_BYTES: usize = 1 << 18;

/// The longest record that is taken: a relay carries pieces of this size and packs none larger.
const MAX_RECORD_BYTES: usize = 1 << 21;

/// Bytes of one piece of what the server sends.
const PIECE_BYTES: usize = 1 << 16;

/// Bytes kept of what a container wrote to its own standard error: the relay's last words.
const COMPLAINT_BYTES: usize = 2_000;

/// Time for a fresh container to say hello.
const HELLO: Duration = Duration::from_secs(30);

/// A container did not begin as it must. It is still to be removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// The stream failed or ended.
    #[error("the container's stream ended{}", said(.0))]
    Closed(String),
    /// No sign of life.
    #[error("it said nothing for {} s", HELLO.as_secs())]
    Silent,
    /// Not what a relay says.
    #[error("it did not say hello: {0}")]
    Nonsense(String),
}

fn said(complaint: &str) -> String {
    if complaint.is_empty() {
        String::new()
    } else {
        format!("; it wrote: {complaint}")
    }
}

/// How the interpreter ended, as the relay saw it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Ended {
    pub(super) exited: Option<i32>,
    pub(super) signaled: Option<i32>,
    /// Kills for lack of memory in this container.
    pub(super) oom_kills: Option<u64>,
}

/// What the relay is told before it starts the interpreter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Start {
    /// Imported ahead.
    pub(super) modules: Vec<String>,
    /// Limits of the interpreter's own, by the names of Python's module `resource`.
    pub(super) limits: BTreeMap<&'static str, u64>,
    /// Whether its image has an environment, which the interpreter enters.
    pub(super) environment: bool,
}

/// A container's stream, before its interpreter runs.
pub(super) struct Opening {
    attached: AttachContainerResults,
    records: Records,
}

impl Opening {
    /// Sends the relay its source, and waits for what it says of its container.
    pub(super) async fn begin(
        mut attached: AttachContainerResults,
        source: &[u8],
    ) -> Result<(Self, Facts), LinkError> {
        let closed = |error: io::Error| LinkError::Closed(error.to_string());
        let length = u32::try_from(source.len()).unwrap_or(u32::MAX);
        attached
            .input
            .write_all(&length.to_be_bytes())
            .await
            .map_err(closed)?;
        attached.input.write_all(source).await.map_err(closed)?;
        attached.input.flush().await.map_err(closed)?;
        let mut opening = Self {
            attached,
            records: Records::default(),
        };
        let hello = timeout(HELLO, opening.next()).await;
        let facts = match hello.map_err(|_| LinkError::Silent)?? {
            (HELLO_RECORD, body) => parse(&body)?,
            (kind, _) => return Err(LinkError::Nonsense(format!("a record {kind}"))),
        };
        Ok((opening, facts))
    }

    /// Has the relay start the interpreter, and carries its streams from now on.
    pub(super) async fn start(mut self, start: &Start) -> Result<(Link, Streams), LinkError> {
        let body = serde_json::to_vec(start).unwrap_or_default();
        send(&mut self.attached.input, START_RECORD, &body)
            .await
            .map_err(|error| LinkError::Closed(error.to_string()))?;
        let (connection, control) = duplex(PIPE_BYTES);
        let (control_read, control_write) = split(control);
        let (stdout, stdout_write) = simplex(PIPE_BYTES);
        let (stderr, stderr_write) = simplex(PIPE_BYTES);
        let (interrupt, interrupts) = mpsc::channel(1);
        let (ended, told) = oneshot::channel();
        let inward = tokio::spawn(carry_in(self.attached.input, control_read, interrupts));
        let outward = Outward {
            output: self.attached.output,
            records: self.records,
            control: Some(control_write),
            stdout: stdout_write,
            stderr: stderr_write,
            ended: Some(ended),
        };
        let link = Link {
            interrupt,
            ended: Some(told),
            inward,
            outward: tokio::spawn(outward.carry()),
        };
        let streams = Streams {
            connection,
            stdout,
            stderr,
        };
        Ok((link, streams))
    }

    async fn next(&mut self) -> Result<(u8, Bytes), LinkError> {
        loop {
            if let Some(record) = self.records.take().map_err(nonsense)? {
                return Ok(record);
            }
            match self.attached.output.next().await {
                Some(Ok(LogOutput::StdOut { message })) => self.records.add(&message),
                Some(Ok(LogOutput::StdErr { message })) => self.records.complain(&message),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(LinkError::Closed(error.to_string())),
                None => return Err(LinkError::Closed(self.records.complaint())),
            }
        }
    }
}

/// What the rest of the server reads and writes.
pub(super) struct Streams {
    pub(super) connection: DuplexStream,
    pub(super) stdout: ReadHalf<SimplexStream>,
    pub(super) stderr: ReadHalf<SimplexStream>,
}

/// A running container's stream. Dropping it hangs up, at which the relay ends the container.
#[derive(Debug)]
pub(super) struct Link {
    interrupt: mpsc::Sender<()>,
    ended: Option<oneshot::Receiver<Ended>>,
    inward: JoinHandle<()>,
    outward: JoinHandle<()>,
}

impl Link {
    /// Has the relay interrupt the interpreter. One that is on its way already will do.
    pub(super) fn interrupt(&self) {
        self.interrupt.try_send(()).ok();
    }

    /// Whether the stream still stands.
    pub(super) fn is_open(&self) -> bool {
        !self.outward.is_finished() && !self.inward.is_finished()
    }

    /// Waits until the interpreter has ended or the stream has: `None` when nobody said how.
    pub(super) async fn ended(&mut self) -> Option<Ended> {
        let told = self.ended.take()?;
        told.await.ok()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.inward.abort();
        // What has arrived is still read by those who wait for it.
    }
}

const HELLO_RECORD: u8 = b'h';
const CONTROL_RECORD: u8 = b'c';
const STDOUT_RECORD: u8 = b'o';
const STDERR_RECORD: u8 = b'e';
const ENDED_RECORD: u8 = b'x';
const START_RECORD: u8 = b's';
const INTERRUPT_RECORD: u8 = b'i';
const HEADER_BYTES: usize = 5;

/// Records that have arrived, as far as they are whole.
#[derive(Debug, Default)]
struct Records {
    buffer: BytesMut,
    complaint: Vec<u8>,
}

impl Records {
    fn add(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    fn complain(&mut self, piece: &[u8]) {
        let room = COMPLAINT_BYTES.saturating_sub(self.complaint.len());
        self.complaint
            .extend_from_slice(&piece[..room.min(piece.len())]);
    }

    fn complaint(&self) -> String {
        String::from_utf8_lossy(&self.complaint).trim().to_owned()
    }

    fn take(&mut self) -> io::Result<Option<(u8, Bytes)>> {
        let Some((head, _)) = self.buffer.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [kind, length @ ..] = *head;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_RECORD_BYTES {
            return Err(io::Error::other(format!("a record of {length} bytes")));
        }
        if self.buffer.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        Ok(Some((kind, self.buffer.split_to(length).freeze())))
    }
}

/// What carries a container's output into the server's pipes.
struct Outward {
    output:
        Pin<Box<dyn futures_util::Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>,
    records: Records,
    control: Option<WriteHalf<DuplexStream>>,
    stdout: WriteHalf<SimplexStream>,
    stderr: WriteHalf<SimplexStream>,
    ended: Option<oneshot::Sender<Ended>>,
}

impl Outward {
    /// To the end of the stream, or to the first thing that no relay says. The pipes end with it.
    async fn carry(mut self) {
        loop {
            match self.deliver().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "a container's stream is given up");
                    break;
                }
            }
            match self.output.next().await {
                Some(Ok(LogOutput::StdOut { message })) => self.records.add(&message),
                Some(Ok(LogOutput::StdErr { message })) => self.records.complain(&message),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break,
            }
        }
        // Its other half is still held by what carries inward: dropping it would end nothing.
        self.hang_up().await;
        let complaint = self.records.complaint();
        if !complaint.is_empty() {
            tracing::debug!(complaint, "a container's relay complained");
        }
    }

    /// Delivers every whole record. False after the last one.
    async fn deliver(&mut self) -> io::Result<bool> {
        while let Some((kind, body)) = self.records.take()? {
            match kind {
                CONTROL_RECORD if body.is_empty() => self.hang_up().await,
                CONTROL_RECORD => {
                    if let Some(control) = &mut self.control
                        && control.write_all(&body).await.is_err()
                    {
                        self.control = None;
                    }
                }
                // A reader that is gone has no use for the rest.
                STDOUT_RECORD => drop(self.stdout.write_all(&body).await),
                STDERR_RECORD => drop(self.stderr.write_all(&body).await),
                ENDED_RECORD => {
                    let ended = parse(&body).map_err(io::Error::other)?;
                    self.hang_up().await;
                    if let Some(told) = self.ended.take() {
                        told.send(ended).ok();
                    }
                    return Ok(false);
                }
                _ => return Err(io::Error::other(format!("a record {kind}"))),
            }
        }
        Ok(true)
    }

    async fn hang_up(&mut self) {
        if let Some(mut control) = self.control.take() {
            control.shutdown().await.ok();
        }
    }
}

/// Carries what the server sends, and interrupts, which go first.
async fn carry_in(
    mut input: Pin<Box<dyn AsyncWrite + Send>>,
    mut control: ReadHalf<DuplexStream>,
    mut interrupts: mpsc::Receiver<()>,
) {
    let mut piece = vec![0; PIECE_BYTES];
    let mut is_open = true;
    loop {
        let sent = tokio::select! {
            biased;
            asked = interrupts.recv() => match asked {
                Some(()) => send(&mut input, INTERRUPT_RECORD, &[]).await,
                None => return,
            },
            length = control.read(&mut piece), if is_open => {
                if let Ok(length @ 1..) = length {
                    send(&mut input, CONTROL_RECORD, &piece[..length]).await
                } else {
                    // The server's end is gone; the guard decides what becomes of the container.
                    is_open = false;
                    Ok(())
                }
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

async fn send(
    input: &mut Pin<Box<dyn AsyncWrite + Send>>,
    kind: u8,
    body: &[u8],
) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut record = Vec::with_capacity(HEADER_BYTES + body.len());
    record.push(kind);
    record.extend_from_slice(&length.to_be_bytes());
    record.extend_from_slice(body);
    input.write_all(&record).await?;
    input.flush().await
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, LinkError> {
    serde_json::from_slice(body).map_err(nonsense)
}

fn nonsense(error: impl std::fmt::Display) -> LinkError {
    LinkError::Nonsense(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_cut_at_their_lengths_however_they_arrive() {
        let mut records = Records::default();
        let stream = [&b"c\0\0\0\x03abc"[..], b"o\0\0\0\0", b"e\0\0\0\x01!"].concat();
        let mut seen = Vec::new();
        for byte in stream {
            records.add(&[byte]);
            while let Some((kind, body)) = records.take().unwrap() {
                seen.push((kind, body.to_vec()));
            }
        }
        assert_eq!(
            seen,
            [
                (b'c', b"abc".to_vec()),
                (b'o', vec![]),
                (b'e', b"!".to_vec())
            ]
        );
    }

    #[test]
    fn a_record_that_would_fill_memory_is_refused_before_it_has_arrived() {
        let mut records = Records::default();
        records.add(b"o\xff\xff\xff\xff");
        assert!(records.take().is_err());
    }

    #[test]
    fn complaints_are_bounded() {
        let mut records = Records::default();
        for _ in 0..10 {
            records.complain(&[b'x'; 1_000]);
        }
        assert_eq!(records.complaint().len(), COMPLAINT_BYTES);
    }
}
