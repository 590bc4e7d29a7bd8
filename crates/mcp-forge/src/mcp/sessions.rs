//! The tools for sessions: their schemas, what calling one asks of the service, and how it answers.

use rmcp::model::{CallToolResult, ContentBlock, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::tool::{NoParameters, tool};
use crate::{
    names::Principal,
    service::{DocumentRequest, DocumentResponse, ForkResponse, Service, ServiceError},
    session::SessionSummary,
};

const DOCUMENT: &str = "document_state";
const LIST: &str = "list_sessions";
const DELETE: &str = "delete_session";
const FORK: &str = "fork_session";

/// The names of the tools here.
pub(super) const NAMES: [&str; 4] = [DOCUMENT, LIST, DELETE, FORK];

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "describes what is read by name")]
struct DeleteParameters {
    /// The session to end.
    session_id: String,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "describes what is read by name")]
struct ForkParameters {
    /// The session to copy. No turn may be running in it.
    session_id: String,
    /// Name of the copy. Default: a new one.
    new_session_id: Option<String>,
}

/// The sessions there are.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListResponse {
    /// The most recently used first.
    sessions: Vec<SessionSummary>,
    /// Sessions that end soon.
    notices: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DeleteResponse {
    /// Always true.
    success: bool,
    /// The session that is gone.
    session_id: String,
}

/// The tools as a client lists them.
pub(super) fn tools() -> Vec<Tool> {
    vec![
        tool::<DocumentRequest, DocumentResponse>(
            DOCUMENT,
            "Document a session",
            "Write down what the variables of a session hold and where the work stands, for whoever comes back to it: \
             mcp://forge/sessions/{session_id}/state shows it together with what the interpreter holds. It outlives the interpreter.",
            ToolAnnotations::new().destructive(false).idempotent(true),
        ),
        tool::<NoParameters, ListResponse>(
            LIST,
            "List sessions",
            "List the sessions that there are: which live, which lost their interpreter and why, which end soon.",
            ToolAnnotations::new().read_only(true),
        ),
        tool::<DeleteParameters, DeleteResponse>(
            DELETE,
            "Delete a session",
            "End a session and forget all of it: variables, documentation, history and files.",
            ToolAnnotations::new().destructive(true).idempotent(true),
        ),
        tool::<ForkParameters, ForkResponse>(
            FORK,
            "Fork a session",
            "Copy a live session, variables and all, into a second one within milliseconds, to try something without \
             losing what there is. Both go on independently.",
            ToolAnnotations::new().destructive(false),
        ),
    ]
}

/// Whom the tools work for.
type Client<'a> = (&'a Service, &'a Principal);

/// Calls one of the tools; `None` if it is none of them.
pub(super) async fn call(
    client: Client<'_>,
    name: &str,
    arguments: Map<String, Value>,
) -> Option<Result<CallToolResult, ServiceError>> {
    let answered = match name {
        DOCUMENT => document(client, arguments).await,
        LIST => list(client)
            .await
            .map(|listed| (list_text(&listed), json!(listed))),
        DELETE => delete(client, arguments).await,
        FORK => fork(client, arguments).await,
        _ => return None,
    };
    Some(answered.map(|(text, structured)| {
        let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
        result.structured_content = Some(structured);
        result
    }))
}

/// The sessions of whoever is at the other end.
pub(super) async fn list((service, me): Client<'_>) -> Result<ListResponse, ServiceError> {
    Ok(ListResponse {
        sessions: service.list_sessions(me).await?,
        notices: service.notices(me, None),
    })
}

async fn document(
    (service, me): Client<'_>,
    arguments: Map<String, Value>,
) -> Result<(String, Value), ServiceError> {
    let request = DocumentRequest::from_json(arguments)?;
    let response = service.document_state(me, request).await?;
    let text = format!(
        "{} variables of session `{}` are documented.",
        response.documented_count, response.session_id
    );
    Ok((text, json!(response)))
}

async fn delete(
    (service, me): Client<'_>,
    mut arguments: Map<String, Value>,
) -> Result<(String, Value), ServiceError> {
    let session_id = session_parameter(&mut arguments, "session_id")?.unwrap_or_default();
    service.delete_session(me, &session_id).await?;
    let text = format!("Session `{session_id}` is gone.");
    let success = true;
    Ok((
        text,
        json!(DeleteResponse {
            success,
            session_id
        }),
    ))
}

async fn fork(
    (service, me): Client<'_>,
    mut arguments: Map<String, Value>,
) -> Result<(String, Value), ServiceError> {
    let session_id = session_parameter(&mut arguments, "session_id")?.unwrap_or_default();
    let new = session_parameter(&mut arguments, "new_session_id")?;
    let forked = service
        .fork_session(me, &session_id, new.as_deref())
        .await?;
    let text = format!(
        "Session `{}` is a copy of `{}`.",
        forked.session_id, forked.forked_from
    );
    Ok((text, json!(forked)))
}

/// A name; one that is missing is told by the check of names.
fn session_parameter(
    arguments: &mut Map<String, Value>,
    name: &str,
) -> Result<Option<String>, ServiceError> {
    match arguments.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(ServiceError::Rejected {
            field: name.to_owned(),
            message: format!("`{name}` must be a session's name, a string."),
        }),
    }
}

fn list_text(listed: &ListResponse) -> String {
    if listed.sessions.is_empty() {
        return "There are no sessions; pass a `session_id` to execute_python to make one."
            .to_owned();
    }
    let mut lines: Vec<String> = listed
        .sessions
        .iter()
        .take(50)
        .map(|session| {
            let more = match (&session.lost_reason, session.state) {
                (Some(reason), "lost") => format!(" ({reason})"),
                _ if session.running => " (running)".to_owned(),
                _ => String::new(),
            };
            format!(
                "{}: {}{more}, {} variables, {} files, last used {}",
                session.session_id,
                session.state,
                session.variable_count,
                session.file_count,
                session.last_used
            )
        })
        .collect();
    lines.extend(listed.notices.iter().cloned());
    lines.join("\n")
}
