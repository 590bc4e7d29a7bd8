//! The suite's tools, but for those that ask questions in rounds.
#![expect(
    deprecated,
    reason = "sampling and logging are, and older versions have them"
)]

use std::time::Duration;

use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolResponse, CallToolResult, ElicitRequest, ErrorCode, LoggingLevel,
        LoggingMessageNotificationParam, ProgressNotificationParam, ProtocolVersion, ServerRequest,
        Tool,
    },
    service::RequestContext,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A picture of one pixel, and a sound of no length.
pub(super) const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

/// Between two notifications of one call.
const STEP: Duration = Duration::from_millis(50);

/// A value of the SDK's from how it looks on the wire.
pub(super) fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A result that is no question.
pub(super) fn complete<T: DeserializeOwned>(mut result: Value) -> T {
    result["resultType"] = json!("complete");
    read(result)
}

pub(super) fn text(text: &str) -> CallToolResponse {
    complete::<CallToolResult>(json!({"content": [{"type": "text", "text": text}]})).into()
}

pub(super) fn tools() -> Vec<Tool> {
    let tool = |name: &str, schema: Value| json!({"name": name, "description": "For the suite.", "inputSchema": schema});
    let nothing = || json!({"type": "object", "properties": {}});
    let one = |name: &str| json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]});
    let mut all = vec![
        tool("test_sampling", one("prompt")),
        tool("test_elicitation", one("message")),
        tool("json_schema_2020_12_tool", modern_schema()),
        tool(
            "test_x_mcp_header",
            json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}, "required": ["region"]}),
        ),
    ];
    all.extend([tool("greet", one("name")), tool("slow_compute", slow())]);
    let plain = WITHOUT_ARGUMENTS.iter().chain(super::tasks::TOOLS);
    all.extend(plain.map(|name| tool(name, nothing())));
    read(Value::Array(all))
}

const WITHOUT_ARGUMENTS: &[&str] = &[
    "test_simple_text",
    "test_image_content",
    "test_audio_content",
    "test_embedded_resource",
    "test_multiple_content_types",
    "test_error_handling",
    "test_tool_with_logging",
    "test_logging_tool",
    "test_tool_with_progress",
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
    "test_missing_capability",
    "test_reconnection",
    "test_streaming_elicitation",
    "test_trigger_tool_change",
    "test_trigger_prompt_change",
    "test_input_required_result_elicitation",
    "test_input_required_result_sampling",
    "test_input_required_result_list_roots",
    "test_input_required_result_request_state",
    "test_input_required_result_multiple_inputs",
    "test_input_required_result_multi_round",
    "test_input_required_result_tampered_state",
    "test_input_required_result_capabilities",
];

fn slow() -> Value {
    json!({"type": "object", "properties": {"seconds": {"type": "number"}, "label": {"type": "string"}}, "required": ["seconds"]})
}

fn modern_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}

/// Of tools that answer always the same.
pub(super) fn content(name: &str) -> Option<Value> {
    let image = json!({"type": "image", "data": PNG, "mimeType": "image/png"});
    let resource = |uri: &str, kind: &str, text: &str| json!({"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": text}});
    Some(match name {
        "test_simple_text" => {
            json!([{"type": "text", "text": "This is a simple text response for testing."}])
        }
        "test_image_content" => json!([image]),
        "test_audio_content" => json!([{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]),
        "test_embedded_resource" => json!([resource(
            "test://embedded-resource",
            "text/plain",
            "This is an embedded resource content."
        )]),
        "test_multiple_content_types" => json!([
            {"type": "text", "text": "Multiple content types test:"},
            image,
            resource("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
        ]),
        _ => return None,
    })
}

fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context
        .protocol_version()
        .is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}

/// From 2026-07-28 on a client says with each request whether it wants to hear such messages.
pub(super) async fn log(context: &RequestContext<RoleServer>) -> String {
    for message in [
        "Tool execution started",
        "Tool processing data",
        "Tool execution completed",
    ] {
        if !is_modern(context) || context.meta.log_level().is_some() {
            let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(message));
            context.peer.notify_logging_message(message).await.unwrap();
        }
        tokio::time::sleep(STEP).await;
    }
    "It was logged.".to_owned()
}

pub(super) async fn progress(context: &RequestContext<RoleServer>) -> String {
    for done in [0.0, 50.0, 100.0] {
        if let Some(token) = context.meta.get_progress_token() {
            let progress = ProgressNotificationParam::new(token, done).with_total(100.0);
            context.peer.notify_progress(progress).await.unwrap();
        }
        tokio::time::sleep(STEP).await;
    }
    "It is done.".to_owned()
}

pub(super) async fn sample(
    context: &RequestContext<RoleServer>,
    prompt: &str,
) -> Result<String, ErrorData> {
    let params = json!({"messages": [{"role": "user", "content": {"type": "text", "text": prompt}}], "maxTokens": 100});
    let said = context.peer.create_message(read(params)).await;
    let said = said.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    let said = serde_json::to_value(said).unwrap();
    Ok(format!(
        "LLM response: {}",
        said["content"]["text"].as_str().unwrap_or_default()
    ))
}

pub(super) async fn elicit(
    context: &RequestContext<RoleServer>,
    message: &str,
    schema: Value,
) -> Result<String, ErrorData> {
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    let question = ElicitRequest::new(read(params));
    let said = context
        .peer
        .send_request(ServerRequest::ElicitRequest(question))
        .await;
    let said = said.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    let said = serde_json::to_value(said).unwrap();
    let (action, content) = (said["action"].as_str().unwrap(), &said["content"]);
    Ok(format!(
        "Elicitation completed: action={action}, content={content}"
    ))
}

pub(super) fn two_words() -> Value {
    json!({"type": "object", "properties": {"username": {"type": "string", "description": "User's response"}, "email": {"type": "string", "description": "User's email address"}}, "required": ["username", "email"]})
}

pub(super) fn defaults() -> Value {
    json!({"type": "object", "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": true},
    }})
}

pub(super) fn choices() -> Value {
    let titled = |first: &str| json!([{"const": "value1", "title": format!("First {first}")}, {"const": "value2", "title": format!("Second {first}")}, {"const": "value3", "title": format!("Third {first}")}]);
    json!({"type": "object", "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": titled("Option")},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
    }})
}

pub(super) fn needs_sampling(context: &RequestContext<RoleServer>) -> ErrorData {
    let declared = context
        .client_capabilities()
        .is_some_and(|client| client.sampling.is_some());
    assert!(!declared, "the suite asks without it");
    let data = json!({"requiredCapabilities": {"sampling": {}}});
    ErrorData::new(
        ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY,
        "this needs sampling",
        Some(data),
    )
}
