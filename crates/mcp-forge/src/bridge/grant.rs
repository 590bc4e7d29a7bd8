//! A grant: the tools of one turn, checked on every call, with the turn's caps.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rmcp::{
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, MetaObject, RequestMetaObject,
    },
    service::ServiceError,
};
use serde_json::{Map, Value};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::{
    answer, arguments, connection::Connection, http, stub::Passing, text, tools::Entry,
    upstream::Upstream,
};
use crate::{
    config::BridgeLimits,
    runner::wire::{Stub, ToolFailure, ToolFailureKind, ToolValue},
    telemetry::{TraceContext, spans},
    turn::{Tools, json_size},
};

/// Pauses before a call that was never sent is tried again.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

/// The tools that one turn may call. Holds the turn's counters: make a new one for each turn.
pub struct Grant {
    tools: BTreeMap<String, Granted>,
    limits: BridgeLimits,
    calls: AtomicU64,
    bytes: AtomicU64,
    slots: Semaphore,
    /// The trace that the turn's request came with.
    trace: Option<TraceContext>,
}

/// One granted tool, as it was when it was granted.
pub(super) struct Granted {
    pub(super) upstream: Arc<Upstream>,
    pub(super) entry: Arc<Entry>,
}

impl Grant {
    pub(super) fn new(tools: BTreeMap<String, Granted>, limits: BridgeLimits) -> Self {
        let slots = Semaphore::new(limits.max_in_flight.clamp(1, Semaphore::MAX_PERMITS));
        Self {
            tools,
            limits,
            calls: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            slots,
            trace: None,
        }
    }

    /// The same, whose calls take a trace on: the span that is open when they are made, or this.
    #[must_use]
    pub fn traced(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }

    /// The granted tools, for the sandbox to define as functions.
    pub fn stubs(&self) -> Vec<Stub> {
        self.tools
            .values()
            .map(|granted| granted.entry.info.stub.clone())
            .collect()
    }

    /// Their names in the sandbox, sorted.
    pub fn names(&self) -> Vec<String> {
        self.tools.keys().cloned().collect()
    }

    async fn call_granted(
        &self,
        granted: &Granted,
        arguments: Map<String, Value>,
    ) -> Result<ToolValue, ToolFailure> {
        let arguments = granted.arguments(arguments)?;
        self.count_bytes(json_size(&arguments))?;
        // Never closed; an error could only mean that the grant is gone.
        let _slot = self
            .slots
            .acquire()
            .await
            .map_err(|_| limit("the turn is over".to_owned()))?;
        let trace = spans::outgoing(self.trace.as_ref());
        let answer = granted.send(arguments, trace.as_ref()).await?;
        self.result(granted, answer)
    }

    fn count_call(&self) -> Result<(), ToolFailure> {
        let most = self.limits.max_calls;
        if self.calls.fetch_add(1, Ordering::Relaxed) >= most {
            return Err(limit(format!(
                "this turn has made the {most} tool calls that it may make"
            )));
        }
        Ok(())
    }

    fn count_bytes(&self, bytes: u64) -> Result<(), ToolFailure> {
        let most = self.limits.max_bytes;
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > most {
            // What was refused does not count: a smaller call may still fit.
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(limit(format!(
                "this turn may move {most} bytes through tools; it has moved {before}, and this one has {bytes} more"
            )));
        }
        Ok(())
    }

    fn result(&self, granted: &Granted, answer: CallToolResult) -> Result<ToolValue, ToolFailure> {
        let bytes = json_size(&(&answer.content, &answer.structured_content));
        let most = self.limits.max_answer_bytes;
        if bytes > most as u64 {
            return Err(limit(format!(
                "the answer has {bytes} bytes; one answer may have {most}"
            )));
        }
        self.count_bytes(bytes)?;
        let unwrap = granted.entry.unwrap.as_deref();
        answer::unwrapped(answer, unwrap).map_err(|mut failure| {
            failure.message = granted.upstream.secrets.redact(&failure.message);
            failure
        })
    }
}

#[async_trait::async_trait]
impl Tools for Grant {
    /// Calls a granted tool.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future frees its slot and tells the upstream that the call is cancelled.
    async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<ToolValue, ToolFailure> {
        self.count_call()?;
        let Some(granted) = self.tools.get(name) else {
            return Err(failure(
                ToolFailureKind::NotGranted,
                format!(
                    "this turn was not granted a tool `{}`",
                    text::one_line(name, 100)
                ),
            ));
        };
        let counted = granted.upstream.calls.begin();
        counted.end(self.call_granted(granted, arguments).await)
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("tools", &self.names())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Granted {
    /// The arguments as the tool wants them, checked against its schema.
    fn arguments(
        &self,
        mut arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, ToolFailure> {
        let invalid = |message: String| {
            failure(
                ToolFailureKind::InvalidArguments,
                format!("{}: {message}", self.entry.info.name),
            )
        };
        match &self.entry.passing {
            Passing::Named { drop_null } => {
                for key in drop_null {
                    if arguments.get(key) == Some(&Value::Null) {
                        arguments.shift_remove(key);
                    }
                }
            }
            Passing::Dictionary => {
                if let Some(unknown) = arguments.keys().find(|key| *key != "arguments") {
                    let unknown = text::one_line(unknown, 60);
                    return Err(invalid(format!(
                        "there is no argument `{unknown}`; pass one dictionary, `arguments`"
                    )));
                }
                arguments = match arguments.shift_remove("arguments") {
                    Some(Value::Object(inner)) => inner,
                    None | Some(Value::Null) => Map::new(),
                    Some(_) => return Err(invalid("argument `arguments` must be dict".to_owned())),
                };
            }
        }
        arguments::check(&self.entry.info.input_schema, &arguments).map_err(invalid)?;
        Ok(arguments)
    }

    /// Sends the call once. Only what was certainly never sent is tried again.
    async fn send(
        &self,
        arguments: Map<String, Value>,
        trace: Option<&TraceContext>,
    ) -> Result<CallToolResult, ToolFailure> {
        let mut pauses = PAUSES.iter();
        loop {
            let not_sent = |reason: &str| {
                self.upstream_failure(&format!(
                    "is not available: {reason}; the call was not sent"
                ))
            };
            let connection = self
                .upstream
                .connection()
                .await
                .map_err(|reason| not_sent(&reason))?;
            let reason = if connection.is_open() {
                match self
                    .send_over(&connection, arguments.clone(), trace)
                    .await?
                {
                    Ok(answer) => return self.complete(answer),
                    Err(error) if http::never_sent(&error) => http::explain(&error),
                    Err(error) => return Err(self.explained(&connection, &error).await),
                }
            } else {
                "it keeps going away".to_owned()
            };
            let Some(pause) = pauses.next() else {
                connection.retire();
                return Err(not_sent(&reason));
            };
            sleep(*pause).await;
        }
    }

    async fn send_over(
        &self,
        connection: &Connection,
        arguments: Map<String, Value>,
        trace: Option<&TraceContext>,
    ) -> Result<Result<CallToolResponse, ServiceError>, ToolFailure> {
        self.still_the_same(connection)?;
        let mut call =
            CallToolRequestParams::new(self.entry.info.tool.clone()).with_arguments(arguments);
        if let Some(trace) = trace {
            let pairs = trace
                .pairs()
                .map(|(name, value)| (name.to_owned(), value.into()));
            call.meta = Some(RequestMetaObject(MetaObject(pairs.collect())));
        }
        let limit = self.upstream.config.call_timeout;
        // A timeout drops the call, which tells the upstream that it is cancelled.
        timeout(limit, connection.call(call)).await.map_err(|_| {
            let seconds = limit.as_secs_f64();
            let message =
                format!("did not answer within {seconds} s; the call may still be running there");
            self.failure(ToolFailureKind::Timeout, &message)
        })
    }

    fn complete(&self, answer: CallToolResponse) -> Result<CallToolResult, ToolFailure> {
        match answer {
            CallToolResponse::Complete(result) => Ok(result),
            CallToolResponse::InputRequired(_) => Err(self.failure(
                ToolFailureKind::Tool,
                "asks a person for input, which a sandboxed turn cannot give",
            )),
            _ => Err(self.failure(
                ToolFailureKind::Tool,
                "answered with a task to poll, which is not supported",
            )),
        }
    }

    async fn explained(&self, connection: &Connection, error: &ServiceError) -> ToolFailure {
        match error {
            ServiceError::McpError(_) => self.failure(
                ToolFailureKind::Tool,
                &format!("refused the call: {}", http::explain(error)),
            ),
            ServiceError::TransportClosed => {
                let reason = connection
                    .gone()
                    .await
                    .unwrap_or("it closed the connection");
                self.upstream_failure(&format!(
                    "went away: {reason}; the call may or may not have run"
                ))
            }
            _ => {
                // The next call gets a new connection; those in flight may still end on this one.
                connection.retire();
                self.upstream_failure(&format!(
                    "failed: {}; the call may or may not have run",
                    http::explain(error)
                ))
            }
        }
    }

    /// What was granted is what a person or a model read. A changed definition is another tool.
    fn still_the_same(&self, connection: &Connection) -> Result<(), ToolFailure> {
        let (name, upstream) = (&self.entry.info.name, &self.entry.info.upstream);
        let changed = match connection.tools().original(&self.entry.info.tool) {
            Some(entry) if entry.digest == self.entry.digest => return Ok(()),
            Some(_) => format!(
                "`{upstream}` changed the definition of `{name}` during this turn; the next turn gets the new one"
            ),
            None => format!("`{upstream}` no longer has the tool behind `{name}`"),
        };
        Err(failure(ToolFailureKind::NotGranted, changed))
    }

    fn upstream_failure(&self, message: &str) -> ToolFailure {
        self.failure(ToolFailureKind::Upstream, message)
    }

    fn failure(&self, kind: ToolFailureKind, message: &str) -> ToolFailure {
        let upstream = &self.entry.info.upstream;
        failure(
            kind,
            format!(
                "upstream `{upstream}` {}",
                self.upstream.presentable(message)
            ),
        )
    }
}

fn limit(message: String) -> ToolFailure {
    failure(ToolFailureKind::Limit, message)
}

fn failure(kind: ToolFailureKind, message: String) -> ToolFailure {
    ToolFailure { kind, message }
}
