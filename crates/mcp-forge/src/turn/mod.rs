//! One turn: from code sent to result received, tool calls included.
//!
//! One loop waits for whatever comes first: an event of the runner, a piece of output, a tool's
//! answer, the deadline. It owns the sandbox while it runs; whoever drops it kills the sandbox.

use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::mpsc,
};

use crate::{
    config::OutputCaps,
    engine::{Ending, ExitCause, Sandbox, Usage},
    limits::Limits,
    runner::{
        self, Events, ProtocolError, Requests,
        wire::{
            Caps, Done, Event, Raised, Request, Stub, ToolAnswer, ToolFailure, ToolFailureKind,
            ToolValue,
        },
    },
};

mod output;

pub use output::Captured;

/// Time for a fresh interpreter to say that it is ready. Not the code's time.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for a dying interpreter to be reaped, so that its exit status is known.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Tool calls that may wait for an answer at once before no further event is read. The grant has
/// a smaller cap of its own; this one bounds memory.
const MAX_OUTSTANDING_CALLS: usize = 256;

/// Displays a turn may send.
const MAX_DISPLAYS: usize = 100;

/// Characters of a `repr` or a traceback.
const MAX_REPR_CHARS: usize = 64 << 10;

/// Everything a turn needs beside its sandbox.
pub struct Turn<'a> {
    /// Python source.
    pub code: &'a str,
    /// The granted tools, as the sandbox sees them.
    pub stubs: Vec<Stub>,
    /// Answers their calls.
    pub tools: &'a dyn Tools,
    /// Hears the output.
    pub observer: &'a mut dyn Observer,
    /// Only the timeout is enforced here; the rest is the engine's.
    pub limits: &'a Limits,
    /// What may be kept.
    pub caps: OutputCaps,
}

impl std::fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Code is the user's: never in a log.
        f.debug_struct("Turn")
            .field("code_bytes", &self.code.len())
            .field("limits", self.limits)
            .finish_non_exhaustive()
    }
}

/// Runs one turn in a sandbox that is used for nothing else, and ends the sandbox.
///
/// # Cancel safety
///
/// Dropping the future drops the sandbox's guard, which kills it.
pub async fn run(sandbox: Sandbox, turn: Turn<'_>) -> Report {
    let started = Instant::now();
    let Sandbox {
        connection,
        stdout,
        stderr,
        guard,
        ..
    } = sandbox;
    let (events, requests) = runner::connect(connection);
    let mut record = Record::new(&turn.caps);
    let mut outputs = Outputs {
        stdout: Some(stdout),
        stderr: Some(stderr),
        buffers: [vec![0; output::PIECE_BYTES], vec![0; output::PIECE_BYTES]],
        observer: turn.observer,
    };
    let deadline = turn.limits.timeout;
    let request = Request::Execute {
        code: turn.code.to_owned(),
        tools: turn.stubs,
        caps: wire_caps(&turn.caps),
    };
    let drive = Drive {
        events,
        requests,
        tools: turn.tools,
        flood_bytes: turn.caps.flood_bytes,
    };
    let end = drive
        .run(request, deadline, &mut outputs, &mut record)
        .await;
    let wall = started.elapsed();
    outputs.drain(&mut record);
    let ending = guard.end(end.patience()).await;
    record.report(end, ending, wall)
}

/// Answers the tool calls of one turn. The grant is checked behind this, on every call.
#[async_trait::async_trait]
pub trait Tools: Send + Sync {
    /// Calls one tool by its name in the sandbox.
    ///
    /// # Errors
    ///
    /// [`ToolFailure`]: data for the Python side, raised there as `ToolError`.
    async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<ToolValue, ToolFailure>;
}

/// Hears what happens while a turn runs.
pub trait Observer: Send {
    /// A piece of output. Already bounded in total by the turn's caps.
    fn output(&mut self, stream: Stream, text: &str);
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// File descriptor 1.
    Stdout,
    /// File descriptor 2.
    Stderr,
}

/// How user code ended: data, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Ran to its end.
    Completed,
    /// Ended with an exception, a syntax error included.
    Raised,
    /// Hit the wall-clock limit; the sandbox is gone.
    TimedOut,
    /// Went over its memory limit; the sandbox is gone.
    OutOfMemory,
    /// Wrote far more than may be kept; the sandbox is gone.
    OutputLimit,
    /// The caller gave up; the sandbox is gone.
    Cancelled,
    /// The interpreter ended or broke the protocol; the sandbox is gone.
    Crashed(ExitCause),
}

/// One tool call of a turn, for the response and the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct ToolCallRecord {
    /// The tool's name in the sandbox.
    pub name: String,
    /// `ok`, or the failure's kind.
    pub status: String,
    /// Wall-clock time.
    pub duration_ms: u64,
    /// Size of the arguments as JSON.
    pub request_bytes: u64,
    /// Size of the answer as JSON.
    pub response_bytes: u64,
}

/// What came of a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// How the code ended.
    pub outcome: Outcome,
    /// The last expression's value.
    pub result: Value,
    /// Its `repr`.
    pub result_repr: Option<String>,
    /// Standard output, cut at the cap.
    pub stdout: Captured,
    /// Standard error, cut at the cap.
    pub stderr: Captured,
    /// MIME bundles in the order they were shown; the result's own is last.
    pub displays: Vec<Display>,
    /// The exception, when there was one.
    pub error: Option<Raised>,
    /// What the runner says it cut: field to bytes.
    pub truncated: Map<String, Value>,
    /// In the order they ended.
    pub tool_calls: Vec<ToolCallRecord>,
    /// Wall-clock time of the turn.
    pub wall: Duration,
    /// Other use, as the engine measured.
    pub usage: Usage,
}

/// One MIME bundle.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Display {
    /// MIME type to content; binary content in base64.
    pub data: Map<String, Value>,
    /// Jupyter's display metadata.
    pub metadata: Map<String, Value>,
}

fn wire_caps(caps: &OutputCaps) -> Caps {
    Caps {
        result_bytes: caps.result_bytes,
        repr_chars: MAX_REPR_CHARS,
        display_bytes: caps.display_bytes,
        displays: MAX_DISPLAYS,
    }
}

/// Why the loop ended.
enum End {
    Done(Box<Done>),
    NotReady(String),
    TimedOut,
    Flooded,
    Broken(ProtocolError),
}

impl End {
    /// A runner whose connection broke is most likely dying: how it died is worth a moment.
    const fn patience(&self) -> Duration {
        match self {
            Self::Broken(_) | Self::NotReady(_) => LAST_WORDS,
            Self::Done(_) | Self::TimedOut | Self::Flooded => Duration::ZERO,
        }
    }
}

/// The loop's own things.
struct Drive<'a> {
    events: Events,
    requests: Requests,
    tools: &'a dyn Tools,
    flood_bytes: u64,
}

impl Drive<'_> {
    async fn run(
        mut self,
        request: Request,
        timeout: Duration,
        outputs: &mut Outputs<'_>,
        record: &mut Record,
    ) -> End {
        match tokio::time::timeout(START_TIMEOUT, self.events.next()).await {
            Ok(Ok(Event::Ready { .. })) => {}
            Ok(Ok(_)) => return End::NotReady("its first message was not `ready`".to_owned()),
            Ok(Err(error)) => return End::NotReady(error.to_string()),
            Err(_) => {
                return End::NotReady(format!("no sign of life in {} s", START_TIMEOUT.as_secs()));
            }
        }
        match tokio::time::timeout(timeout, self.exchange(request, outputs, record)).await {
            Ok(end) => end,
            Err(_) => End::TimedOut,
        }
    }

    async fn exchange(
        self,
        request: Request,
        outputs: &mut Outputs<'_>,
        record: &mut Record,
    ) -> End {
        let Self {
            mut events,
            requests,
            tools,
            flood_bytes,
        } = self;
        let (answers, queue) = mpsc::unbounded_channel();
        // Unbounded in type only: there is one answer for each outstanding call.
        answers.send(request).ok();
        let sender = send_all(requests, queue);
        tokio::pin!(sender);
        let mut calls: FuturesUnordered<BoxFuture<'_, (Request, ToolCallRecord)>> =
            FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                // Output first: what was written before the end belongs before the end.
                flooding = outputs.read(record, flood_bytes) => if flooding { return End::Flooded },
                Some((answer, call)) = calls.next() => {
                    record.tool_calls.push(call);
                    answers.send(answer).ok();
                }
                event = events.next(), if calls.len() < MAX_OUTSTANDING_CALLS => match event {
                    Ok(Event::Done(done)) => return End::Done(Box::new(done)),
                    Ok(Event::Display { data, metadata }) => record.display(Display { data, metadata }),
                    Ok(Event::ToolCall { call_id, name, arguments }) => {
                        calls.push(answer_call(tools, call_id, name, arguments).boxed());
                    }
                    Ok(Event::Ready { .. }) => {}
                    Err(error) => return End::Broken(error),
                },
                error = &mut sender => return End::Broken(error),
            }
        }
    }
}

/// Sends whatever is queued. Ends only with an error.
async fn send_all(
    mut requests: Requests,
    mut queue: mpsc::UnboundedReceiver<Request>,
) -> ProtocolError {
    while let Some(request) = queue.recv().await {
        if let Err(error) = requests.send(&request).await {
            return error;
        }
    }
    ProtocolError::Closed
}

async fn answer_call(
    tools: &dyn Tools,
    call_id: u64,
    name: String,
    arguments: Map<String, Value>,
) -> (Request, ToolCallRecord) {
    let started = Instant::now();
    let request_bytes = json_size(&arguments);
    let result = tools.call(&name, arguments).await;
    let status = result.as_ref().err().map_or_else(
        || "ok".to_owned(),
        |failure| kind_name(failure.kind).to_owned(),
    );
    let response_bytes = match &result {
        Ok(value) => json_size(value),
        Err(failure) => json_size(failure),
    };
    let answer = match result {
        Ok(value) => ToolAnswer::Ok(value),
        Err(failure) => ToolAnswer::Error(failure),
    };
    let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let record = ToolCallRecord {
        name: shorten(name),
        status,
        duration_ms,
        request_bytes,
        response_bytes,
    };
    (Request::ToolResult { call_id, answer }, record)
}

/// A name that the sandbox made up is kept only as far as a name can be.
fn shorten(mut name: String) -> String {
    if name.len() > 128 {
        let end = name.floor_char_boundary(128);
        name.truncate(end);
    }
    name
}

const fn kind_name(kind: ToolFailureKind) -> &'static str {
    match kind {
        ToolFailureKind::NotGranted => "not_granted",
        ToolFailureKind::InvalidArguments => "invalid_arguments",
        ToolFailureKind::Tool => "tool",
        ToolFailureKind::Upstream => "upstream",
        ToolFailureKind::Timeout => "timeout",
        ToolFailureKind::Limit => "limit",
    }
}

/// Counts bytes without keeping them.
pub(crate) fn json_size(value: &impl Serialize) -> u64 {
    struct Count(u64);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).ok();
    count.0
}

/// The two output streams of the sandbox, until each ends.
struct Outputs<'a> {
    stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// One for each.
    buffers: [Vec<u8>; 2],
    observer: &'a mut dyn Observer,
}

impl Outputs<'_> {
    /// Waits for a piece of either stream and keeps it. True when there was too much.
    ///
    /// # Cancel safety
    ///
    /// A read that was dropped has taken nothing.
    async fn read(&mut self, record: &mut Record, flood_bytes: u64) -> bool {
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
    fn drain(&mut self, record: &mut Record) {
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

/// What is kept of a turn while it runs.
struct Record {
    stdout: output::Keep,
    stderr: output::Keep,
    output_bytes: u64,
    displays: Vec<Display>,
    display_bytes: usize,
    display_cap: usize,
    displays_dropped: u64,
    tool_calls: Vec<ToolCallRecord>,
}

impl Record {
    fn new(caps: &OutputCaps) -> Self {
        Self {
            stdout: output::Keep::new(caps.output_bytes),
            stderr: output::Keep::new(caps.output_bytes),
            output_bytes: 0,
            displays: Vec::new(),
            display_bytes: 0,
            display_cap: caps.display_bytes,
            displays_dropped: 0,
            tool_calls: Vec::new(),
        }
    }

    fn output(&mut self, stream: Stream, piece: &[u8], observer: &mut dyn Observer) {
        self.output_bytes += piece.len() as u64;
        let keep = if stream == Stream::Stdout {
            &mut self.stdout
        } else {
            &mut self.stderr
        };
        if let Some(text) = keep.push(piece) {
            observer.output(stream, &text);
        }
    }

    fn finish_output(&mut self, observer: &mut dyn Observer) {
        for (stream, keep) in [
            (Stream::Stdout, &mut self.stdout),
            (Stream::Stderr, &mut self.stderr),
        ] {
            if let Some(text) = keep.rest() {
                observer.output(stream, &text);
            }
        }
    }

    /// The runner caps displays itself; a runner that does not is user code, and loses the rest.
    fn display(&mut self, display: Display) {
        let size = usize::try_from(json_size(&display)).unwrap_or(usize::MAX);
        let fits = self.display_bytes.saturating_add(size) <= self.display_cap + (1 << 20);
        if fits && self.displays.len() <= MAX_DISPLAYS {
            self.display_bytes += size;
            self.displays.push(display);
        } else {
            self.displays_dropped += size as u64;
        }
    }

    fn report(mut self, end: End, ending: Ending, wall: Duration) -> Report {
        let mut done = Done::default();
        let outcome = match end {
            End::Done(told) => {
                done = *told;
                told_outcome(&done)
            }
            End::TimedOut => Outcome::TimedOut,
            End::Flooded => Outcome::OutputLimit,
            End::NotReady(reason) => {
                died(ending.cause, &format!("the runner did not start: {reason}"))
            }
            End::Broken(error) => died(ending.cause, &error.to_string()),
        };
        if let Some(data) = done.result_display.take() {
            self.display(Display {
                data,
                metadata: Map::new(),
            });
        }
        let mut truncated = std::mem::take(&mut done.truncated);
        if self.displays_dropped > 0 {
            truncated.insert("displays".to_owned(), self.displays_dropped.into());
        }
        Report {
            outcome,
            result: done.result,
            result_repr: done.result_repr,
            stdout: self.stdout.captured(),
            stderr: self.stderr.captured(),
            displays: self.displays,
            error: done.error,
            truncated,
            tool_calls: self.tool_calls,
            wall,
            usage: ending.usage,
        }
    }
}

/// The outcome of a turn that ended in order.
fn told_outcome(done: &Done) -> Outcome {
    match &done.error {
        None => Outcome::Completed,
        // Python noticed before the kernel had to: for the caller it is the same limit.
        Some(error) if error.kind == "MemoryError" => Outcome::OutOfMemory,
        Some(_) => Outcome::Raised,
    }
}

/// The outcome of a turn whose runner went away. What the kernel saw counts, not what was said.
fn died(cause: ExitCause, reason: &str) -> Outcome {
    match cause {
        ExitCause::OutOfMemory => Outcome::OutOfMemory,
        // Alive until we killed it: it had only closed or spoilt its connection.
        ExitCause::Killed => Outcome::Crashed(ExitCause::Lost(reason.to_owned())),
        cause => Outcome::Crashed(cause),
    }
}
