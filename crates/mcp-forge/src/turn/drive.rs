//! The loop of a turn: waits for whatever comes first, and answers tool calls.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::{Display, Record, Streams, ToolCallRecord, Tools, aside::Aside};
use crate::runner::{
    Events, ProtocolError, Requests,
    wire::{Done, Event, Request, ToolAnswer},
};

/// Time for a fresh interpreter to say that it is ready. Not the code's time.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for a dying interpreter to be reaped, so that its exit status is known. Only one that hung up
/// without dying is waited for so long.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Calls beyond the turn's cap that are still answered, with a refusal. Code that goes on calling
/// after so many does not read its answers.
const REFUSALS: u64 = 100;

/// Tool calls that may wait for an answer, or their answers to be taken, before no further event is
/// read. The grant has a smaller cap of its own; this one bounds memory.
const MAX_OUTSTANDING_CALLS: usize = 256;

/// Why the loop ended.
pub(super) enum End {
    Done(Box<Done>),
    /// Interrupted for this reason, and the runner has said that it is ready for more.
    Interrupted(Stop, Box<Done>),
    NotReady(String),
    TimedOut,
    Flooded,
    Cancelled,
    Broken(ProtocolError),
}

/// Why a turn is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Deadline,
    Flood,
    Cancel,
}

impl End {
    /// A runner whose connection broke is most likely dying: how it died is worth a moment.
    pub(super) const fn patience(&self) -> Duration {
        match self {
            Self::Broken(_) | Self::NotReady(_) => LAST_WORDS,
            Self::Done(_)
            | Self::Interrupted(..)
            | Self::TimedOut
            | Self::Flooded
            | Self::Cancelled => Duration::ZERO,
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
    /// In a session: what does not belong to the turn.
    pub(super) aside: Option<&'a mut Aside>,
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
        match tokio::time::timeout(timeout, self.exchange(Some(request), streams, record)).await {
            Ok(end) => end,
            Err(_) => End::TimedOut,
        }
    }

    /// Sends the request, if there is one, and answers whatever comes until the turn is over.
    pub(super) async fn exchange(
        self,
        request: Option<Request>,
        streams: &mut Streams<'_>,
        record: &mut Record,
    ) -> End {
        let Self {
            events,
            requests,
            tools,
            flood_bytes,
            max_calls,
            mut aside,
        } = self;
        let (answers, mut queue) = mpsc::channel(MAX_OUTSTANDING_CALLS + 1);
        if let Some(request) = request {
            answers.try_send(request).ok();
        }
        let mut calls_left = max_calls.saturating_add(REFUSALS);
        let mut waiting = BTreeSet::new();
        let mut calls: FuturesUnordered<BoxFuture<'_, (u64, ToolAnswer, ToolCallRecord)>> =
            FuturesUnordered::new();
        let end = {
            let sender = send_all(requests, &mut queue);
            tokio::pin!(sender);
            loop {
                tokio::select! {
                    biased;
                    // Output first: what was written before the end belongs before the end.
                    flooding = streams.read(record, flood_bytes) => if flooding { break End::Flooded },
                    Some((call_id, answer, call)) = calls.next() => {
                        record.tool_calls.push(call);
                        waiting.remove(&call_id);
                        // There is room: calls that run and answers that wait are bounded together.
                        answers.try_send(Request::ToolResult { call_id, answer }).ok();
                    }
                    event = events.next(), if calls.len() < answers.capacity().saturating_sub(1) => match event {
                        Ok(Event::Done(done)) => break End::Done(Box::new(done)),
                        Ok(Event::Display { data, metadata }) => {
                            record.display(Display { data, metadata });
                            if record.output_bytes > flood_bytes {
                                break End::Flooded;
                            }
                        }
                        Ok(Event::ToolCall { .. }) if calls_left == 0 => {
                            break End::Broken(ProtocolError::TooManyCalls(max_calls));
                        }
                        Ok(Event::ToolCall { call_id, name, arguments }) => {
                            calls_left -= 1;
                            waiting.insert(call_id);
                            calls.push(answer_call(tools, call_id, name, arguments).boxed());
                        }
                        Ok(Event::Ready { .. }) => {}
                        Ok(event) => match aside.as_deref_mut().map(|aside| aside.take(event)) {
                            Some(Ok(None)) => {}
                            Some(Err(error)) => break End::Broken(error),
                            // Words of a session, which this is not, or an answer that nobody waits for.
                            Some(Ok(Some(_))) | None => break End::Broken(ProtocolError::Unexpected),
                        },
                        Err(error) => break End::Broken(error),
                    },
                    error = &mut sender => break End::Broken(error),
                }
            }
        };
        if let Some(aside) = aside {
            // Threads that wait for an answer live on; so must their hope to get one.
            queue.close();
            while let Ok(request) = queue.try_recv() {
                aside.owe(request);
            }
            for call_id in waiting {
                aside.refuse(call_id);
            }
        }
        end
    }
}

/// Sends whatever is queued. Ends only with an error. Stopping it at any time loses no request: it
/// is either still queued or on its way.
async fn send_all(requests: &mut Requests, queue: &mut mpsc::Receiver<Request>) -> ProtocolError {
    let result = async {
        loop {
            requests.ready().await?;
            let Some(request) = queue.recv().await else {
                return Err(ProtocolError::Closed);
            };
            requests.put(&request)?;
            requests.flush().await?;
        }
    };
    let ended: Result<(), ProtocolError> = result.await;
    ended.err().unwrap_or(ProtocolError::Closed)
}

async fn answer_call(
    tools: &dyn Tools,
    call_id: u64,
    name: String,
    arguments: Map<String, Value>,
) -> (u64, ToolAnswer, ToolCallRecord) {
    let started = Instant::now();
    let request_bytes = json_size(&arguments);
    let result = tools.call(&name, arguments).await;
    let status = result
        .as_ref()
        .err()
        .map_or_else(|| "ok".to_owned(), |failure| failure.kind.name().to_owned());
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
    (call_id, answer, record)
}

/// A name that the sandbox made up is kept only as far as a name can be.
fn shorten(mut name: String) -> String {
    if name.len() > 128 {
        let end = name.floor_char_boundary(128);
        name.truncate(end);
    }
    name
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
