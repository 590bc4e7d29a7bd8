//! The trace that an MCP request belongs to.

use rmcp::{RoleServer, service::RequestContext};
use tracing::Span;

use super::{environments, sessions, tool};
use crate::{
    names::Principal,
    telemetry::{
        TraceContext,
        spans::{self, RequestSpan},
    },
};

/// What the message itself says, else the HTTP request that it came in. Over HTTP with sessions other
/// requests run in between, so what is open here says nothing.
pub(super) fn of(context: &RequestContext<RoleServer>) -> Option<TraceContext> {
    TraceContext::from_meta(&context.meta).or_else(|| {
        let parts = context.extensions.get::<http::request::Parts>()?;
        TraceContext::from_headers(&parts.headers)
    })
}

/// The span of a call. A name that is none of ours is not repeated.
pub(super) fn span(
    tool: &str,
    principal: &Principal,
    (context, trace): (&RequestContext<RoleServer>, &Option<TraceContext>),
) -> Span {
    let parts = context.extensions.get::<http::request::Parts>();
    let below = parts.and_then(|parts| parts.extensions.get::<RequestSpan>());
    // What the HTTP request says is its own span's already.
    let is_own = below.is_none() || TraceContext::from_meta(&context.meta).is_some();
    let own = trace.as_ref().filter(|_| is_own);
    let name = if is_known(tool) { tool } else { "" };
    let below = below.map(|RequestSpan(span)| span);
    spans::mcp(("tools/call", name), below, (principal, own))
}

fn is_known(tool: &str) -> bool {
    tool == tool::EXECUTE_PYTHON
        || sessions::NAMES.contains(&tool)
        || environments::NAMES.contains(&tool)
}
