//! The operations of REST, once: from this table comes the OpenAPI document.
//!
//! Its schemas are those of the Rust types, by schemars: OpenAPI 3.1 is JSON Schema.

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::views::{
    AuditView, ExecutionView, FilesView, SandboxView, SandboxesView, SessionsView, SpawnedView,
    ToolsView,
};
use crate::{
    service::{
        ContextKept, ContextRequest, ContextView, ExecuteRequest, ExecuteResponse, SpawnRequest,
    },
    session::SessionState,
    web::ProblemView,
};

/// One operation.
struct Operation {
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    /// Name, where it is, and what it says. Those of the path are there always, the others may be.
    parameters: &'static [(&'static str, &'static str, &'static str)],
    request: Option<SchemaOf>,
    /// Status, what it means, and what the body is.
    answers: &'static [(u16, &'static str, Body)],
    /// Statuses that come as a problem.
    problems: &'static [u16],
}

type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What the body of an answer is.
enum Body {
    None,
    Json(SchemaOf),
    /// Any JSON object.
    Object,
    Bytes,
    Events,
}

const EXECUTION: (&str, &str, &str) = ("id", "path", "The execution, as 202 named it.");
const SANDBOX: (&str, &str, &str) = ("container_id", "path", "The sandbox's name.");
const STATE_OF: (&str, &str, &str) = ("session_id", "query", "What it is kept for.");
const SESSION: (&str, &str, &str) = ("id", "path", "The session's name.");

const OPERATIONS: &[Operation] = &[
    Operation {
        method: "post",
        path: "/api/v1/execute",
        id: "execute",
        summary: "Run Python in a fresh sandbox, or in a session. How the code ended is `outcome`, whatever it did the status is 200. A client that goes away before the answer ends the code, unless it gave an Idempotency-Key.",
        parameters: &[
            (
                "wait",
                "query",
                "`false` answers 202 at once; the execution is then asked for by its name.",
            ),
            (
                "Idempotency-Key",
                "header",
                "A name of the client's for this request, new for each. The same request with the same key is not run again: it gets the same answer.",
            ),
        ],
        request: Some(schema::<ExecuteRequest>),
        answers: &[
            (
                200,
                "The code ended.",
                Body::Json(schema::<ExecuteResponse>),
            ),
            (
                202,
                "The code was started; `Location` says where to ask.",
                Body::Json(schema::<ExecutionView<'static>>),
            ),
        ],
        problems: &[400, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503],
    },
    Operation {
        method: "get",
        path: "/api/v1/executions/{id}",
        id: "showExecution",
        summary: "An execution of `wait=false`. It is remembered for an hour after its end, the newest 64 of a principal.",
        parameters: &[EXECUTION],
        request: None,
        answers: &[(
            200,
            "What has become of it.",
            Body::Json(schema::<ExecutionView<'static>>),
        )],
        problems: &[400, 403, 404],
    },
    Operation {
        method: "delete",
        path: "/api/v1/executions/{id}",
        id: "cancelExecution",
        summary: "End an execution, and wait for its end. In a session the code is interrupted, and the session goes on.",
        parameters: &[EXECUTION],
        request: None,
        answers: &[(
            200,
            "It has ended, now or before.",
            Body::Json(schema::<ExecutionView<'static>>),
        )],
        problems: &[400, 403, 404],
    },
    Operation {
        method: "get",
        path: "/api/v1/executions/{id}/events",
        id: "watchExecution",
        summary: "What an execution writes, from its beginning and as it happens: events `output` with `stream` and `text`, then one event `end` with the execution.",
        parameters: &[
            EXECUTION,
            (
                "Last-Event-ID",
                "header",
                "The last event that was seen: go on after it.",
            ),
        ],
        request: None,
        answers: &[(200, "Server-sent events.", Body::Events)],
        problems: &[400, 403, 404],
    },
    Operation {
        method: "get",
        path: "/api/v1/sessions",
        id: "listSessions",
        summary: "The caller's sessions: which live, which lost their interpreter and why, which end soon.",
        parameters: &[],
        request: None,
        answers: &[(200, "The sessions.", Body::Json(schema::<SessionsView>))],
        problems: &[403, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/sessions/{id}",
        id: "showSession",
        summary: "All that is known of a session: documentation, variables, imports, functions, files, history.",
        parameters: &[SESSION],
        request: None,
        answers: &[(200, "Its state.", Body::Json(schema::<SessionState>))],
        problems: &[400, 403, 404, 500],
    },
    Operation {
        method: "delete",
        path: "/api/v1/sessions/{id}",
        id: "deleteSession",
        summary: "End a session and forget all of it, files included.",
        parameters: &[SESSION],
        request: None,
        answers: &[(204, "It is gone.", Body::None)],
        problems: &[400, 403, 404, 409, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/sessions/{id}/files",
        id: "listFiles",
        summary: "The files of a session's /workspace, as they were after the last call.",
        parameters: &[SESSION],
        request: None,
        answers: &[(200, "The files.", Body::Json(schema::<FilesView>))],
        problems: &[400, 403, 404, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/sessions/{id}/files/{path}",
        id: "downloadFile",
        summary: "A file of a session's /workspace, as it was after the last call. Its path may have slashes.",
        parameters: &[SESSION, ("path", "path", "Relative to /workspace.")],
        request: None,
        answers: &[(200, "Its bytes.", Body::Bytes)],
        problems: &[400, 403, 404, 409, 500],
    },
    Operation {
        method: "post",
        path: "/api/v1/sandbox/spawn",
        id: "spawnSandbox",
        summary: "Start a sandbox that stays, and wait until it can be used. It is a session: code runs in it with its name as `session_id`, and it ends as sessions end.",
        parameters: &[],
        request: Some(schema::<SpawnRequest>),
        answers: &[
            (
                200,
                "A sandbox of that name was there.",
                Body::Json(schema::<SpawnedView<'static>>),
            ),
            (
                201,
                "It was started.",
                Body::Json(schema::<SpawnedView<'static>>),
            ),
        ],
        problems: &[400, 403, 404, 408, 409, 413, 415, 429, 500, 503],
    },
    Operation {
        method: "get",
        path: "/api/v1/sandbox",
        id: "listSandboxes",
        summary: "The caller's sandboxes that stay. Those of single executions come and go, and are not among them.",
        parameters: &[],
        request: None,
        answers: &[(200, "The sandboxes.", Body::Json(schema::<SandboxesView>))],
        problems: &[403, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/sandbox/{container_id}",
        id: "showSandbox",
        summary: "One sandbox.",
        parameters: &[SANDBOX],
        request: None,
        answers: &[(200, "The sandbox.", Body::Json(schema::<SandboxView>))],
        problems: &[400, 403, 404, 500],
    },
    Operation {
        method: "delete",
        path: "/api/v1/sandbox/{container_id}",
        id: "endSandbox",
        summary: "End a sandbox, and forget the session that it is, files included. What runs in it is killed.",
        parameters: &[SANDBOX],
        request: None,
        answers: &[(204, "It is gone.", Body::None)],
        problems: &[400, 403, 404, 409, 500],
    },
    Operation {
        method: "post",
        path: "/api/v1/context/state",
        id: "putState",
        summary: "Keep a JSON value for a session's name, whether there is a session or not: what a program must know when it comes back. It outlives the server. With `version` it is written only if nobody else wrote meanwhile.",
        parameters: &[],
        request: Some(schema::<ContextRequest>),
        answers: &[(200, "It is kept.", Body::Json(schema::<ContextKept>))],
        problems: &[400, 403, 408, 409, 413, 415, 429, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/context/state",
        id: "showState",
        summary: "A value that is kept.",
        parameters: &[STATE_OF],
        request: None,
        answers: &[(200, "The value.", Body::Json(schema::<ContextView>))],
        problems: &[400, 403, 404, 500],
    },
    Operation {
        method: "delete",
        path: "/api/v1/context/state",
        id: "removeState",
        summary: "Forget a value that is kept.",
        parameters: &[
            STATE_OF,
            ("version", "query", "Only if this is its version."),
        ],
        request: None,
        answers: &[(204, "It is gone.", Body::None)],
        problems: &[400, 403, 404, 409, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/tools",
        id: "listTools",
        summary: "The tools that code can call, by the names that `mcp_tools` takes.",
        parameters: &[],
        request: None,
        answers: &[(200, "The names.", Body::Json(schema::<ToolsView>))],
        problems: &[403],
    },
    Operation {
        method: "get",
        path: "/api/v1/tools/{name}",
        id: "showTool",
        summary: "One tool: its Python signature, description, input and output schema.",
        parameters: &[("name", "path", "The tool's name.")],
        request: None,
        answers: &[(200, "The tool.", Body::Object)],
        problems: &[400, 403, 404],
    },
    Operation {
        method: "get",
        path: "/api/v1/environment",
        id: "showEnvironment",
        summary: "Python's version, the installed packages, the system and the limits, as code in a sandbox finds them.",
        parameters: &[],
        request: None,
        answers: &[(200, "The environment.", Body::Object)],
        problems: &[403, 500, 503],
    },
    Operation {
        method: "get",
        path: "/api/v1/audit",
        id: "readAudit",
        summary: "The newest records of what this server ran, for everybody: needs the scope `admin`. Code and arguments are not in it.",
        parameters: &[],
        request: None,
        answers: &[(200, "The records.", Body::Json(schema::<AuditView>))],
        problems: &[403, 500],
    },
];

const ABOUT: &str = "Python in sealed sandboxes, with MCP servers as functions. Every request shows a token: `Authorization: Bearer TOKEN`. \
Whatever belongs to somebody else is answered as what does not exist. Refusals are `application/problem+json`.";

/// The OpenAPI document.
pub(super) fn document() -> Value {
    let settings = || {
        SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
    };
    let mut coming = settings().for_deserialize().into_generator();
    let mut going = settings().for_serialize().into_generator();
    let problem = going.subschema_for::<ProblemView>();
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let described = describe(operation, (&mut coming, &mut going), &problem);
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = described;
    }
    let mut schemas = coming.take_definitions(true);
    schemas.extend(going.take_definitions(true));
    schemas.sort_keys();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "MCP-Forge",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
        },
    })
}

fn describe(
    operation: &Operation,
    (coming, going): (&mut SchemaGenerator, &mut SchemaGenerator),
    problem: &Schema,
) -> Value {
    let mut described = json!({"operationId": operation.id, "summary": operation.summary});
    let parameters: Vec<Value> = operation.parameters.iter().map(parameter).collect();
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(schema) = operation.request {
        let content = json!({"application/json": {"schema": schema(coming)}});
        described["requestBody"] = json!({"required": true, "content": content});
    }
    let mut answers = Map::new();
    for (status, meaning, body) in operation.answers {
        let mut answer = json!({"description": meaning});
        if let Some(content) = content(body, going) {
            answer["content"] = content;
        }
        answers.insert(status.to_string(), answer);
    }
    // The gate's own.
    for status in [400, 401, 403, 429, 503].iter().chain(operation.problems) {
        let reason = http::StatusCode::from_u16(*status).ok();
        let meaning = reason.and_then(|status| status.canonical_reason());
        let content = json!({"application/problem+json": {"schema": problem}});
        let answer = json!({"description": meaning.unwrap_or("Error"), "content": content});
        answers.insert(status.to_string(), answer);
    }
    answers.sort_keys();
    described["responses"] = answers.into();
    described
}

fn parameter((name, place, meaning): &(&str, &str, &str)) -> Value {
    let schema = match *name {
        "wait" => json!({"type": "boolean", "default": true}),
        "version" => json!({"type": "integer"}),
        "Idempotency-Key" => json!({"type": "string", "minLength": 1, "maxLength": 255}),
        _ => json!({"type": "string"}),
    };
    json!({
        "name": name, "in": place, "required": *place == "path" || *name == "session_id",
        "description": meaning, "schema": schema,
    })
}

fn content(body: &Body, going: &mut SchemaGenerator) -> Option<Value> {
    Some(match body {
        Body::None => return None,
        Body::Json(schema) => json!({"application/json": {"schema": schema(going)}}),
        Body::Object => json!({"application/json": {"schema": {"type": "object"}}}),
        Body::Bytes => json!({"application/octet-stream": {}}),
        Body::Events => json!({"text/event-stream": {"schema": {"type": "string"}}}),
    })
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UPDATE_OPENAPI=1 cargo test -p mcp-forge --lib openapi` writes it anew.
    #[test]
    fn the_document_in_the_repository_is_the_openapi_document_that_is_served() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
        let served = format!("{}\n", serde_json::to_string_pretty(&document()).unwrap());
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            std::fs::write(&file, &served).unwrap();
        }
        let kept = std::fs::read_to_string(file).unwrap();
        assert!(
            kept == served,
            "docs/openapi.json is another than the one that is served"
        );
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        let document = document();
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut references = 0;
        for reference in text.split("\"$ref\":\"").skip(1) {
            let reference = reference.split('"').next().unwrap();
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(schemas.contains_key(name), "{name}");
            references += 1;
        }
        assert!(references > 20, "{references}");
        for operation in OPERATIONS {
            for part in operation
                .path
                .split('/')
                .filter_map(|part| part.strip_prefix('{'))
            {
                let name = part.trim_end_matches('}');
                assert!(
                    operation
                        .parameters
                        .iter()
                        .any(|(known, place, _)| *known == name && *place == "path"),
                    "{name}"
                );
            }
        }
    }
}
