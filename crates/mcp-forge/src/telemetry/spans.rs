//! The spans of a request, from its arrival to what its code called.
//!
//! They are made whether anybody listens or not. Where nobody does each of these functions is a look at
//! one number: nothing is formatted and nothing is allocated.

use opentelemetry::{Context, trace::TraceContextExt as _};
use rustix::rand::{GetRandomFlags, getrandom};
use tracing::{Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::TraceContext;
use crate::{names::Principal, text::clipped};

/// The span of an HTTP request, among its extensions.
#[derive(Debug, Clone)]
pub struct RequestSpan(pub Span);

/// What all of them have as their target, by which the log leaves them out.
pub(super) const TARGET: &str = "mcp_forge::trace";

/// An HTTP request of somebody. `route` is one of few words.
pub fn http(
    (method, route): (&str, &str),
    principal: &Principal,
    came_with: Option<&TraceContext>,
) -> Span {
    let span = tracing::info_span!(
        target: TARGET,
        "http",
        "otel.name" = format_args!("{method} {route}"),
        "otel.kind" = "server",
        "http.request.method" = method,
        "http.route" = route,
        "http.response.status_code" = Empty,
        principal = principal.as_str(),
        request_id = request_id(),
        trace_id = Empty,
    );
    begin(&span, came_with);
    span
}

/// An MCP request, below an HTTP request's span if there is one. A trace that the message itself names
/// goes before that, which is then linked.
pub fn mcp(
    (method, target): (&str, &str),
    below: Option<&Span>,
    (principal, came_with): (&Principal, Option<&TraceContext>),
) -> Span {
    let parent = below.and_then(Span::id);
    let span = tracing::info_span!(
        target: TARGET,
        parent: parent,
        "mcp",
        "otel.name" = format_args!("{method} {target}"),
        "otel.kind" = "server",
        "mcp.method.name" = method,
        "gen_ai.tool.name" = target,
        principal = principal.as_str(),
        trace_id = Empty,
    );
    if !span.is_disabled()
        && let (Some(below), Some(_)) = (below, came_with)
    {
        let linked = below.context().span().span_context().clone();
        if linked.is_valid() {
            span.add_link(linked);
        }
    }
    begin(&span, came_with);
    span
}

/// An execution: a turn, with all that comes before it and after it.
pub fn execution(id: &str, principal: &Principal, came_with: Option<&TraceContext>) -> Span {
    let span = tracing::info_span!(
        target: TARGET,
        "execution",
        execution_id = id,
        principal = principal.as_str(),
        outcome = Empty,
        trace_id = Empty,
    );
    // In the middle of something else its trace is known already.
    let is_first = !span.is_disabled() && !is_inside_trace();
    begin(&span, came_with.filter(|_| is_first));
    span
}

/// Waiting for room.
pub fn queue() -> Span {
    tracing::info_span!(target: TARGET, "queue")
}

/// Starting a sandbox, or taking one that was made ahead.
pub fn sandbox(engine: &str) -> Span {
    tracing::info_span!(target: TARGET, "sandbox", engine = engine)
}

/// The code's own time.
pub fn run() -> Span {
    tracing::info_span!(target: TARGET, "run")
}

/// A turn in a session: its place in the session's queue, and its code's own time.
pub fn session(id: &str) -> Span {
    tracing::info_span!(target: TARGET, "session", session_id = id)
}

/// A call of an upstream's tool, below the execution whose code makes it. The name is the code's.
pub fn tool(below: &Span, name: &str) -> Span {
    tracing::info_span!(
        target: TARGET,
        parent: below,
        "tool",
        "otel.name" = format_args!("tools/call {}", clipped(name)),
        "otel.kind" = "client",
        "mcp.method.name" = "tools/call",
        "gen_ai.tool.name" = clipped(name),
        status = Empty,
    )
}

/// A build of an environment.
pub fn build(name: &str, principal: &Principal) -> Span {
    tracing::info_span!(
        target: TARGET,
        "build",
        environment = name,
        principal = principal.as_str(),
    )
}

/// What a call that is made now takes on: the span that is open, else what came with the request.
pub fn outgoing(came_with: Option<&TraceContext>) -> Option<TraceContext> {
    let span = Span::current();
    if !span.is_disabled() {
        let context = span.context();
        let current = context.span().span_context().clone();
        if current.is_valid() {
            return Some(TraceContext::of_span(&current, came_with));
        }
    }
    came_with.cloned()
}

/// Gives a new span its parent elsewhere, and writes down which trace it belongs to.
fn begin(span: &Span, came_with: Option<&TraceContext>) {
    if span.is_disabled() {
        return;
    }
    if let Some(context) = came_with {
        let parent = Context::new().with_remote_span_context(context.as_parent());
        // Without a collector there is nobody to tell.
        let _ = span.set_parent(parent);
    }
    let context = span.context();
    let own = context.span().span_context().clone();
    if own.is_valid() {
        span.record("trace_id", own.trace_id().to_string());
    } else if let Some(context) = came_with {
        span.record("trace_id", context.trace_id());
    }
}

fn is_inside_trace() -> bool {
    let context = Span::current().context();
    context.span().span_context().is_valid()
}

/// Names a request in the log.
fn request_id() -> String {
    let mut bytes = [0_u8; 8];
    // Without random bytes it has a poor name, and nothing else runs anyway.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    format!("{:016x}", u64::from_be_bytes(bytes))
}
