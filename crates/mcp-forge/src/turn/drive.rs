//! The loop of a turn: waits for whatever comes first, and answers tool calls.

use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::{Display, Record, Streams, ToolCallRecord, Tools};
use crate::runner::{
    Events, ProtocolError, Requests,
    wire::{Done, Event, Request, ToolAnswer, ToolFailureKind},
};

/// Time for a fresh interpreter to say that it is ready. Not the code's time.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for a dying interpreter to be reaped, so that its exit status is known.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Calls beyond the turn's cap that are still answered, with a refusal. Code that goes on calling
/// after so many does not read its answers.
const REFUSALS: u64 = 100;

/// Tool calls that may wait for an answer, or their answers to be taken, before no further event is
/// read. The grant has a smaller cap of its own; this one bounds memory.
const MAX_OUTSTANDING_CALLS: usize = 256;

/// Why the loop ended.
pub(super) enum End {
    Done(Box<Done>),
    NotReady(String),
    TimedOut,
    Flooded,
    Broken(ProtocolError),
}

impl End {
    /// A runner whose connection broke is most likely dying: how it died is worth a moment.
    pub(super) const fn patience(&self) -> Duration {
        match self {
            Self::Broken(_) | Self::NotReady(_) => LAST_WORDS,
            Self::Done(_) | Self::TimedOut | Self::Flooded => Duration::ZERO,
        }
    }
}

/// The loop's own things.
pub(super) struct Drive<'a> {
    pub(super) events: &'a mut Events,
    pub(super) requests: &'a mut Requests,
    pub(super) tools: &'a dyn Tools,
    pub(super) flood_bytes: u64,
    pub(super) max_calls: u64,
}

impl Drive<'_> {
    /// Waits for a fresh interpreter.
    ///
    /// # Errors
    ///
    /// How the turn ended before it began.
    pub(super) async fn wait_until_ready(&mut self) -> Result<(), End> {
        match tokio::time::timeout(START_TIMEOUT, self.events.next()).await {
            Ok(Ok(Event::Ready { .. })) => Ok(()),
            Ok(Ok(_)) => Err(End::NotReady(
                "its first message was not `ready`".to_owned(),
            )),
            Ok(Err(error)) => Err(End::NotReady(error.to_string())),
            Err(_) => Err(End::NotReady(format!(
                "no sign of life in {} s",
                START_TIMEOUT.as_secs()
            ))),
        }
    }

    /// Runs the turn to whatever ends it.
    pub(super) async fn run(
        self,
        request: Request,
        timeout: Duration,
        streams: &mut Streams<'_>,
        record: &mut Record,
    ) -> End {
        match tokio::time::timeout(timeout, self.exchange(request, streams, record)).await {
            Ok(end) => end,
            Err(_) => End::TimedOut,
        }
    }

    async fn exchange(
        self,
        request: Request,
        streams: &mut Streams<'_>,
        record: &mut Record,
    ) -> End {
        let Self {
            events,
            requests,
            tools,
            flood_bytes,
            max_calls,
        } = self;
        let (answers, queue) = mpsc::channel(MAX_OUTSTANDING_CALLS + 1);
        answers.try_send(request).ok();
        let mut calls_left = max_calls.saturating_add(REFUSALS);
        let sender = send_all(requests, queue);
        tokio::pin!(sender);
        let mut calls: FuturesUnordered<BoxFuture<'_, (Request, ToolCallRecord)>> =
            FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                // Output first: what was written before the end belongs before the end.
                flooding = streams.read(record, flood_bytes) => if flooding { return End::Flooded },
                Some((answer, call)) = calls.next() => {
                    record.tool_calls.push(call);
                    // There is room: calls that run and answers that wait are bounded together.
                    answers.try_send(answer).ok();
                }
                event = events.next(), if calls.len() < answers.capacity().saturating_sub(1) => match event {
                    Ok(Event::Done(done)) => return End::Done(Box::new(done)),
                    Ok(Event::Display { data, metadata }) => {
                        record.display(Display { data, metadata });
                        if record.output_bytes > flood_bytes {
                            return End::Flooded;
                        }
                    }
                    Ok(Event::ToolCall { .. }) if calls_left == 0 => {
                        return End::Broken(ProtocolError::TooManyCalls(max_calls));
                    }
                    Ok(Event::ToolCall { call_id, name, arguments }) => {
                        calls_left -= 1;
                        calls.push(answer_call(tools, call_id, name, arguments).boxed());
                    }
                    Ok(Event::Ready { .. }) => {}
                    // Words of a session, which this is not.
                    Ok(_) => return End::Broken(ProtocolError::Unexpected),
                    Err(error) => return End::Broken(error),
                },
                error = &mut sender => return End::Broken(error),
            }
        }
    }
}

/// Sends whatever is queued. Ends only with an error.
async fn send_all(requests: &mut Requests, mut queue: mpsc::Receiver<Request>) -> ProtocolError {
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

/// Size of a value as JSON, without building the text. What cannot be written counts as endless.
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
    serde_json::to_writer(&mut count, value).map_or(u64::MAX, |()| count.0)
}
