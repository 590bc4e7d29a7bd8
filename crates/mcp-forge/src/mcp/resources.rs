//! The resources: their addresses, their names, and what reading one asks of the service.

use rmcp::model::{ErrorData, ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::{Value, json};

use super::render::sentence;
use crate::service::{Service, ServiceError};

const TOOLS: &str = "mcp://forge/tools/available";
const SCHEMA_START: &str = "mcp://forge/tools/";
const SCHEMA_END: &str = "/schema";
const ENVIRONMENT: &str = "mcp://forge/environment/info";
const AUDIT: &str = "mcp://forge/audit/operations";

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

/// The resources with one address for each tool.
pub(super) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new("mcp://forge/tools/{tool_name}/schema", "tools/schema")
            .with_title("Schema of a tool")
            .with_description(
                "One tool's Python signature, description, input and output schema, by its name in tools/available.",
            )
            .with_mime_type(JSON),
    ]
}

/// Reads one resource.
pub(super) async fn read(service: &Service, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let value = match uri {
        TOOLS => Ok(json!(service.tools_available().await)),
        ENVIRONMENT => service.environment_info().await,
        AUDIT => service.audit_operations().map(Value::from),
        _ => match tool_name(uri) {
            Some(name) => service.tool_schema(name).await,
            None => {
                return Err(not_found(
                    uri,
                    "There is no such resource; resources/list has those that there are.",
                ));
            }
        },
    };
    match value {
        Ok(value) => Ok(ReadResourceResult::new(vec![
            ResourceContents::text(value.to_string(), uri).with_mime_type(JSON),
        ])),
        Err(error @ ServiceError::UnknownTool(_)) => {
            Err(not_found(uri, &sentence(&error.to_string())))
        }
        Err(error) => Err(ErrorData::internal_error(
            sentence(&error.to_string()),
            None,
        )),
    }
}

fn tool_name(uri: &str) -> Option<&str> {
    uri.strip_prefix(SCHEMA_START)?
        .strip_suffix(SCHEMA_END)
        .filter(|name| !name.is_empty() && !name.contains('/'))
}

/// `rmcp` sends it with the code of the client's protocol: -32002, or -32602 from 2026-07-28 on.
fn not_found(uri: &str, message: &str) -> ErrorData {
    let uri: String = uri.chars().take(256).collect();
    ErrorData::resource_not_found(message.to_owned(), Some(json!({"uri": uri})))
}
