//! The resources: their addresses, their names, and what reading one asks of the service.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rmcp::model::{ErrorData, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::{Value, json};

use super::{render::sentence, sessions};
use crate::{
    environments::EnvironmentsError,
    names::Principal,
    service::{Service, ServiceError},
    session::{MAX_FILE_BYTES, SessionError},
};

const TOOLS: &str = "mcp://forge/tools/available";
const SCHEMA_START: &str = "mcp://forge/tools/";
const SCHEMA_END: &str = "/schema";
const ENVIRONMENT: &str = "mcp://forge/environment/info";
pub(super) const ENVIRONMENTS: &str = "mcp://forge/environments/list";
const ENVIRONMENT_START: &str = "mcp://forge/environments/";
const ENVIRONMENT_END: &str = "/info";
const AUDIT: &str = "mcp://forge/audit/operations";

pub(super) const SESSIONS: &str = "mcp://forge/sessions/list";
const SESSION_START: &str = "mcp://forge/sessions/";

const ADMIN_ONLY: &str =
    "The audit log is about everybody: reading it needs a token with the scope `admin`.";

const JSON: &str = "application/json";

/// The resources with one address.
pub(super) fn list() -> Vec<Resource> {
    [
        (
            TOOLS,
            "tools/available",
            "Available tools",
            "Names of the tools that code in execute_python can call. Pass the ones the code needs as `mcp_tools`.",
        ),
        (
            ENVIRONMENT,
            "environment/info",
            "Python environment",
            "Python version, installed packages, system, isolation and limits, as code in a sandbox finds them.",
        ),
        (
            ENVIRONMENTS,
            "environments/list",
            "Environments",
            "Environments with packages of your choice, for `custom_image`, and the templates, for `environment`.",
        ),
        (
            SESSIONS,
            "sessions/list",
            "Sessions",
            "The sessions there are: which live, which lost their interpreter and why, which end soon. Can be subscribed to.",
        ),
        (
            AUDIT,
            "audit/operations",
            "Audit log",
            "The newest records of what this server ran: executions, sandboxes, tool calls. Code and arguments are not in it.",
        ),
    ]
    .into_iter()
    .map(|(uri, name, title, description)| {
        Resource::new(uri, name).with_title(title).with_description(description).with_mime_type(JSON)
    })
    .collect()
}

/// The resources with one address for each tool, session or file.
pub(super) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new("mcp://forge/tools/{tool_name}/schema", "tools/schema")
            .with_title("Schema of a tool")
            .with_description(
                "One tool's Python signature, description, input and output schema, by its name in tools/available.",
            )
            .with_mime_type(JSON),
        ResourceTemplate::new("mcp://forge/environments/{name}/info", "environments/info")
            .with_title("Environment")
            .with_description("One environment: what was asked for, all that is installed, size, and when it is archived if nobody uses it.")
            .with_mime_type(JSON),
        ResourceTemplate::new("mcp://forge/sessions/{session_id}/state", "sessions/state")
            .with_title("State of a session")
            .with_description(
                "What is documented of a session and what its interpreter holds: variables, imports, functions, files, what the last turn changed. Can be subscribed to.",
            )
            .with_mime_type(JSON),
        ResourceTemplate::new("mcp://forge/sessions/{session_id}/variables", "sessions/variables")
            .with_title("Variables of a session")
            .with_description("The names of a session's variables. Can be subscribed to.")
            .with_mime_type(JSON),
        ResourceTemplate::new("mcp://forge/sessions/{session_id}/files/{+path}", "sessions/files")
            .with_title("File of a session")
            .with_description("A file of a session's /workspace, as it was after the last turn."),
    ]
}

/// The address of something of a session.
pub(super) fn session_uri(id: &str, what: &str) -> String {
    format!("{SESSION_START}{id}/{what}")
}

/// Who reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) service: &'a Service,
    pub(super) principal: &'a Principal,
    /// Whether the audit log, which is about everybody, may be read.
    pub(super) may_audit: bool,
}

/// Reads one resource.
pub(super) async fn read(reader: &Reader<'_>, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let (service, me) = (reader.service, reader.principal);
    let value = match (uri, of_session(uri)) {
        (TOOLS, _) => Ok(json!(service.tools_available().await)),
        (ENVIRONMENT, _) => service.environment_info().await,
        (AUDIT, _) if !reader.may_audit => {
            return Err(ErrorData::invalid_request(ADMIN_ONLY, None));
        }
        (AUDIT, _) => service.audit_operations().map(Value::from),
        (ENVIRONMENTS, _) => service
            .list_environments(me)
            .await
            .map(|listed| json!(listed)),
        (SESSIONS, _) => sessions::list((service, me))
            .await
            .map(|listed| json!(listed)),
        (_, Some((id, "state"))) => {
            let state = service.session_state(me, id).await;
            state.map(|state| json!(state))
        }
        (_, Some((id, "variables"))) => {
            let state = service.session_state(me, id).await;
            state.map(|state| json!(state.all_variables))
        }
        (_, Some((id, what))) if what.starts_with("files/") => {
            return read_file(reader, uri, (id, &what["files/".len()..])).await;
        }
        _ => match (tool_name(uri), environment_name(uri)) {
            (Some(name), _) => service.tool_schema(name).await,
            (_, Some(name)) => {
                let view = service.environment_view(me, name).await;
                view.map(|view| json!(view))
            }
            _ => return Err(no_such(uri)),
        },
    };
    match value {
        Ok(value) => Ok(ReadResourceResult::new(vec![
            ResourceContents::text(value.to_string(), uri).with_mime_type(JSON),
        ])),
        Err(error) => Err(refuse(uri, &error)),
    }
}

async fn read_file(
    reader: &Reader<'_>,
    uri: &str,
    (id, path): (&str, &str),
) -> Result<ReadResourceResult, ErrorData> {
    let path = decode(path).ok_or_else(|| no_such(uri))?;
    let read = reader
        .service
        .session_file(reader.principal, id, &path)
        .await;
    let file = read.map_err(|error| refuse(uri, &error))?;
    if file.size > file.bytes.len() as u64 {
        let message = format!(
            "The file has {} bytes, more than the {MAX_FILE_BYTES} that are read; read it with code in the session.",
            file.size
        );
        return Err(ErrorData::invalid_params(message, None));
    }
    let kind = mime_type(&path);
    let text = if is_text(kind) {
        String::from_utf8(file.bytes).map_err(std::string::FromUtf8Error::into_bytes)
    } else {
        Err(file.bytes)
    };
    let contents = match text {
        Ok(text) => ResourceContents::text(text, uri),
        Err(bytes) => ResourceContents::blob(STANDARD.encode(bytes), uri),
    };
    Ok(ReadResourceResult::new(vec![contents.with_mime_type(kind)]))
}

fn refuse(uri: &str, error: &ServiceError) -> ErrorData {
    let message = sentence(&error.to_string());
    match error {
        ServiceError::UnknownTool(_)
        | ServiceError::Session(SessionError::Unknown(_) | SessionError::NoFile { .. }) => {
            not_found(uri, &message)
        }
        ServiceError::Environments(unknown)
            if matches!(**unknown, EnvironmentsError::Unknown(_)) =>
        {
            not_found(uri, &message)
        }
        ServiceError::Rejected { .. } => ErrorData::invalid_params(message, None),
        _ => ErrorData::internal_error(message, None),
    }
}

fn no_such(uri: &str) -> ErrorData {
    not_found(
        uri,
        "There is no such resource; resources/list has those that there are.",
    )
}

/// A session's name and what of it, if an address is of that kind.
fn of_session(uri: &str) -> Option<(&str, &str)> {
    uri.strip_prefix(SESSION_START)?.split_once('/')
}

/// Whether a client may subscribe to an address.
pub(super) fn can_change(uri: &str) -> bool {
    [SESSIONS, ENVIRONMENTS].contains(&uri)
        || of_session(uri).is_some_and(|(_, what)| matches!(what, "state" | "variables"))
}

/// Undoes percent-encoding, once.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        // Not `from_str_radix` alone: it takes a sign.
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
    }
    String::from_utf8(bytes).ok()
}

/// What a file's name says of its content.
pub(super) fn mime_type(path: &str) -> &'static str {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension.to_ascii_lowercase().as_str() {
        "txt" | "log" | "" => "text/plain",
        "csv" => "text/csv",
        "md" => "text/markdown",
        "html" | "htm" => "text/html",
        "py" => "text/x-python",
        "json" => "application/json",
        "xml" => "application/xml",
        "yaml" | "yml" => "application/yaml",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        _ => "application/octet-stream",
    }
}

fn is_text(kind: &str) -> bool {
    kind.starts_with("text/")
        || matches!(
            kind,
            "application/json" | "application/xml" | "application/yaml" | "image/svg+xml"
        )
}

fn tool_name(uri: &str) -> Option<&str> {
    between(uri, SCHEMA_START, SCHEMA_END)
}

fn environment_name(uri: &str) -> Option<&str> {
    between(uri, ENVIRONMENT_START, ENVIRONMENT_END)
}

/// The one part of an address that is a name.
fn between<'a>(uri: &'a str, start: &str, end: &str) -> Option<&'a str> {
    uri.strip_prefix(start)?
        .strip_suffix(end)
        .filter(|name| !name.is_empty() && !name.contains('/'))
}

/// `rmcp` sends it with the code of the client's protocol: -32002, or -32602 from 2026-07-28 on.
fn not_found(uri: &str, message: &str) -> ErrorData {
    let uri: String = uri.chars().take(256).collect();
    ErrorData::resource_not_found(message.to_owned(), Some(json!({"uri": uri})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_decoded_once_and_strictly() {
        assert_eq!(decode("a%20b/%C3%BC.csv").as_deref(), Some("a b/ü.csv"));
        // What comes out is checked as a path: this is one with a percent sign.
        assert_eq!(decode("%252e%252e/x").as_deref(), Some("%2e%2e/x"));
        for bad in ["%", "%4", "%zz", "%+1", "%ff", "a%C3"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_what_changes_can_be_subscribed_to() {
        assert!(can_change("mcp://forge/sessions/a/state"));
        assert!(can_change("mcp://forge/sessions/list"));
        assert!(can_change("mcp://forge/environments/list"));
        for uri in [
            "mcp://forge/sessions/a/files/x",
            "mcp://forge/tools/available",
            "",
        ] {
            assert!(!can_change(uri), "{uri}");
        }
    }
}
