//! The OpenAPI document, made from the table of operations.
//!
//! Its schemas are those of the Rust types, by schemars: OpenAPI 3.1 is JSON Schema.

use schemars::{Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    operations::{Body, OPERATIONS, Operation},
    views::ExecutionView,
};
use crate::{names::SESSION_ID_PATTERN, web::ProblemView};

/// Names of environments and of packages, as `packages/` reads them.
const ENVIRONMENT_PATTERN: &str = "^[a-z0-9][a-z0-9-]{0,62}$";
const PACKAGE_PATTERN: &str = "^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$";

/// Where an answer, by its operation and status, says what another operation asks for: that one, its
/// parameter, and where in the answer or its request.
const LINKS: &[(&str, &str, &str, &str, &str)] = &[
    (
        "execute",
        "202",
        "showExecution",
        "id",
        "$response.body#/execution_id",
    ),
    (
        "execute",
        "202",
        "cancelExecution",
        "id",
        "$response.body#/execution_id",
    ),
    (
        "execute",
        "202",
        "watchExecution",
        "id",
        "$response.body#/execution_id",
    ),
    (
        "execute",
        "200",
        "showSession",
        "id",
        "$request.body#/session_id",
    ),
    (
        "execute",
        "200",
        "listFiles",
        "id",
        "$request.body#/session_id",
    ),
    (
        "execute",
        "200",
        "deleteSession",
        "id",
        "$request.body#/session_id",
    ),
    (
        "spawnSandbox",
        "201",
        "showSandbox",
        "container_id",
        "$response.body#/container_id",
    ),
    (
        "spawnSandbox",
        "201",
        "endSandbox",
        "container_id",
        "$response.body#/container_id",
    ),
    (
        "spawnSandbox",
        "201",
        "showSession",
        "id",
        "$response.body#/container_id",
    ),
    (
        "putState",
        "200",
        "showState",
        "session_id",
        "$response.body#/session_id",
    ),
    (
        "putState",
        "200",
        "removeState",
        "session_id",
        "$response.body#/session_id",
    ),
    (
        "listTools",
        "200",
        "showTool",
        "name",
        "$response.body#/tools/0",
    ),
    (
        "buildEnvironment",
        "201",
        "describeEnvironment",
        "name",
        "$response.body#/name",
    ),
    (
        "buildEnvironment",
        "201",
        "rebuildEnvironment",
        "name",
        "$response.body#/name",
    ),
    (
        "buildEnvironment",
        "201",
        "deleteEnvironment",
        "name",
        "$response.body#/name",
    ),
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
    let parameters: Vec<Value> = operation
        .parameters
        .iter()
        .map(|described| parameter(operation, described))
        .collect();
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(schema) = operation.request {
        let schema = schema(coming);
        let kind = schema.get("contentMediaType").and_then(Value::as_str);
        let kind = kind.unwrap_or("application/json").to_owned();
        // No bytes are an empty file.
        let is_required = kind == "application/json";
        let content = json!({kind: {"schema": schema}});
        described["requestBody"] = json!({"required": is_required, "content": content});
    }
    let mut answers = Map::new();
    for (status, meaning, body) in operation.answers {
        let mut answer = json!({"description": meaning});
        if let Some(content) = content(body, going) {
            answer["content"] = content;
        }
        let links = links(operation.id, &status.to_string());
        if !links.is_empty() {
            answer["links"] = links.into();
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

fn links(operation: &str, status: &str) -> Map<String, Value> {
    let of_this = LINKS
        .iter()
        .filter(|(from, at, ..)| (*from, *at) == (operation, status));
    of_this
        .map(|(_, _, to, parameter, place)| {
            let link = json!({"operationId": to, "parameters": {*parameter: place}});
            ((*to).to_owned(), link)
        })
        .collect()
}

fn parameter(operation: &Operation, (name, place, meaning): &(&str, &str, &str)) -> Value {
    let is_session = operation.path.starts_with("/api/v1/sessions/");
    let schema = match *name {
        "overwrite" => json!({"type": "boolean", "default": false}),
        "wait" => json!({"type": "boolean", "default": true}),
        "version" => json!({"type": "integer", "format": "int64"}),
        "Idempotency-Key" => json!({"type": "string", "minLength": 1, "maxLength": 255}),
        "session_id" | "container_id" => json!({"type": "string", "pattern": SESSION_ID_PATTERN}),
        "id" if is_session => json!({"type": "string", "pattern": SESSION_ID_PATTERN}),
        "name" if operation.path.starts_with("/api/v1/environments/") => {
            json!({"type": "string", "pattern": ENVIRONMENT_PATTERN, "not": {"const": "latest"}})
        }
        "package" => json!({"type": "string", "pattern": PACKAGE_PATTERN}),
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
        Body::Events => json!({"text/event-stream": {"schema": event(going)}}),
    })
}

/// One event of an execution; programs that know such streams take the schema for one of each.
fn event(going: &mut SchemaGenerator) -> Value {
    let data = |schema: Value| json!({"type": "string", "contentMediaType": "application/json", "contentSchema": schema});
    let output = json!({
        "type": "object",
        "properties": {"stream": {"enum": ["stdout", "stderr"]}, "text": {"type": "string"}},
        "required": ["stream", "text"],
    });
    let end = json!(going.subschema_for::<ExecutionView<'static>>());
    json!({"description": "Each event.", "oneOf": [
        {
            "type": "object",
            "properties": {"event": {"const": "output"}, "id": {"type": "string"}, "data": data(output)},
            "required": ["event", "id", "data"],
        },
        {
            "type": "object",
            "properties": {"event": {"const": "end"}, "data": data(end)},
            "required": ["event", "data"],
        },
    ]})
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
