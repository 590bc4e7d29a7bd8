//! What the suite's scenarios ask for by name.
#![expect(
    deprecated,
    reason = "sampling and logging are, and older versions have them"
)]

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities,
        CompleteRequestParams, CompleteResult, CompletionInfo, ElicitRequest, ErrorCode,
        GetPromptRequestParams, GetPromptResponse, GetPromptResult, Implementation,
        InputRequiredResult, InputResponses, ListPromptsResult, ListResourceTemplatesResult,
        ListResourcesResult, ListToolsResult, LoggingLevel, LoggingMessageNotificationParam,
        PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion,
        ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerCapabilities,
        ServerConfig, ServerRequest, SetLevelRequestParams, SubscribeRequestParams,
        SubscriptionFilter, Tool, UnsubscribeRequestParams,
    },
    service::{RequestContext, SubscriptionContext},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::broadcast;

/// A picture of one pixel, and a sound of no length.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

/// Between two notifications of one call.
const STEP: Duration = Duration::from_millis(50);

/// What the state of an unfinished call is signed with. Nobody else runs this.
const SECRET: &str = "of the fixture";

/// Told of a change: the lists of tools and of prompts.
static CHANGES: std::sync::LazyLock<broadcast::Sender<Changed>> =
    std::sync::LazyLock::new(|| broadcast::channel(16).0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Changed {
    Tools,
    Prompts,
}

/// One client's other end.
#[derive(Debug, Default)]
pub(super) struct Fixture {
    subscribed: Mutex<BTreeSet<String>>,
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        ServerConfig::new(capabilities).with_server_info(Implementation::new("fixture", "1"))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools().into_iter().find(|tool| tool.name == name)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if let Some(content) = content(&request.name) {
            return Ok(complete::<CallToolResult>(json!({"content": content})).into());
        }
        let answers = request.input_responses.unwrap_or_default();
        if let Some(name) = request.name.strip_prefix("test_input_required_result_") {
            let state = request.request_state.as_deref();
            let capabilities = context.client_capabilities().unwrap_or_default();
            return rounds(name, &answers, state, &capabilities);
        }
        let arguments = request.arguments.unwrap_or_default();
        let argument = |name: &str| {
            arguments
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let said = match &*request.name {
            "test_error_handling" => {
                let text = "This tool intentionally returns an error for testing";
                return Ok(complete::<CallToolResult>(
                    json!({"isError": true, "content": [{"type": "text", "text": text}]}),
                )
                .into());
            }
            "test_tool_with_logging" | "test_logging_tool" => log(&context).await,
            "test_tool_with_progress" => progress(&context).await,
            "test_sampling" => sample(&context, &argument("prompt")).await?,
            "test_elicitation" => elicit(&context, &argument("message"), two_words()).await?,
            "test_elicitation_sep1034_defaults" => {
                elicit(&context, "Defaults?", defaults()).await?
            }
            "test_elicitation_sep1330_enums" => elicit(&context, "Which?", choices()).await?,
            "test_missing_capability" => return Err(needs_sampling(&context)),
            "test_streaming_elicitation" => {
                return Ok(ask(&[("user_name", name_form("What is your name?"))], None));
            }
            "test_trigger_tool_change" => changed(Changed::Tools),
            "test_trigger_prompt_change" => changed(Changed::Prompts),
            "test_x_mcp_header" => argument("region"),
            "json_schema_2020_12_tool" | "test_reconnection" => "fine".to_owned(),
            name => {
                return Err(ErrorData::invalid_params(
                    format!("there is no tool {name}"),
                    None,
                ));
            }
        };
        Ok(text(&said))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resource = |name: &str, kind: &str| json!({"uri": format!("test://{name}"), "name": name, "description": "For the suite.", "mimeType": kind});
        let all = json!([
            resource("static-text", "text/plain"),
            resource("static-binary", "image/png"),
            resource("watched-resource", "text/plain"),
        ]);
        Ok(ListResourcesResult::with_all_items(read(all)))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let all = json!([{"uriTemplate": "test://template/{id}/data", "name": "template", "description": "For the suite.", "mimeType": "application/json"}]);
        Ok(ListResourceTemplatesResult::with_all_items(read(all)))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri;
        let id = uri
            .strip_prefix("test://template/")
            .and_then(|rest| rest.strip_suffix("/data"));
        let content = match (&*uri, id) {
            ("test://static-text", _) => {
                json!({"mimeType": "text/plain", "text": "This is the content of the static text resource."})
            }
            ("test://static-binary", _) => json!({"mimeType": "image/png", "blob": PNG}),
            ("test://watched-resource", _) => {
                json!({"mimeType": "text/plain", "text": "It changes."})
            }
            (_, Some(id)) => {
                let data =
                    json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
                json!({"mimeType": "application/json", "text": data.to_string()})
            }
            _ => {
                return Err(ErrorData::resource_not_found(
                    "there is no such resource",
                    Some(json!({"uri": uri})),
                ));
            }
        };
        let mut content = content;
        content["uri"] = json!(uri);
        Ok(complete::<ReadResourceResult>(json!({"contents": [content]})).into())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.subscribed.lock().unwrap().insert(request.uri);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.subscribed.lock().unwrap().remove(&request.uri);
        Ok(())
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, subscription: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = CHANGES.subscribe();
        loop {
            let changed = tokio::select! {
                changed = changes.recv() => changed,
                () = subscription.cancelled() => return Ok(()),
            };
            // One that was not asked for is refused by the sink.
            let _ = match changed {
                Ok(Changed::Tools) => subscription.sink().notify_tool_list_changed().await,
                Ok(Changed::Prompts) => subscription.sink().notify_prompt_list_changed().await,
                Err(_) => return Ok(()),
            };
        }
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompt = |name: &str, arguments: &[&str]| {
            let arguments: Vec<_> = arguments
                .iter()
                .map(
                    |name| json!({"name": name, "description": "For the suite.", "required": true}),
                )
                .collect();
            json!({"name": name, "description": "For the suite.", "arguments": arguments})
        };
        let all = json!([
            prompt("test_simple_prompt", &[]),
            prompt("test_prompt_with_arguments", &["arg1", "arg2"]),
            prompt("test_prompt_with_embedded_resource", &["resourceUri"]),
            prompt("test_prompt_with_image", &[]),
            prompt("test_input_required_result_prompt", &[]),
        ]);
        Ok(ListPromptsResult::with_all_items(read(all)))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let argument = |name: &str| {
            arguments
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let words = |text: String| json!({"type": "text", "text": text});
        let contents = match &*request.name {
            "test_simple_prompt" => vec![words("This is a simple prompt for testing.".to_owned())],
            "test_prompt_with_arguments" => vec![words(format!(
                "Prompt with arguments: arg1='{}', arg2='{}'",
                argument("arg1"),
                argument("arg2")
            ))],
            "test_prompt_with_embedded_resource" => vec![
                json!({"type": "resource", "resource": {"uri": argument("resourceUri"), "mimeType": "text/plain", "text": "Embedded resource content for testing."}}),
                words("Please process the embedded resource above.".to_owned()),
            ],
            "test_prompt_with_image" => vec![
                json!({"type": "image", "data": PNG, "mimeType": "image/png"}),
                words("Please analyze the image above.".to_owned()),
            ],
            "test_input_required_result_prompt" => match answered(
                &request.input_responses.unwrap_or_default(),
                "user_context",
                "context",
            ) {
                Some(context) => vec![words(format!("In the context of {context}."))],
                None => {
                    return Ok(read::<InputRequiredResult>(question(
                        &[(
                            "user_context",
                            form("What context should the prompt use?", "context"),
                        )],
                        None,
                    ))
                    .into());
                }
            },
            name => {
                return Err(ErrorData::invalid_params(
                    format!("there is no prompt {name}"),
                    None,
                ));
            }
        };
        let messages: Vec<_> = contents
            .into_iter()
            .map(|content| json!({"role": "user", "content": content}))
            .collect();
        Ok(complete::<GetPromptResult>(json!({"messages": messages})).into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let begun = &request.argument.value;
        let known = ["paris", "park", "party"]
            .into_iter()
            .filter(|word| word.starts_with(begun.as_str()));
        let values = CompletionInfo::new(known.map(str::to_owned).collect());
        Ok(CompleteResult::new(
            values.map_err(|error| ErrorData::internal_error(error, None))?,
        ))
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }
}

/// A value of the SDK's from how it looks on the wire.
fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A result that is no question.
fn complete<T: DeserializeOwned>(mut result: Value) -> T {
    result["resultType"] = json!("complete");
    read(result)
}

fn text(text: &str) -> CallToolResponse {
    complete::<CallToolResult>(json!({"content": [{"type": "text", "text": text}]})).into()
}

fn tools() -> Vec<Tool> {
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
    all.extend(WITHOUT_ARGUMENTS.iter().map(|name| tool(name, nothing())));
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
fn content(name: &str) -> Option<Value> {
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
async fn log(context: &RequestContext<RoleServer>) -> String {
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

async fn progress(context: &RequestContext<RoleServer>) -> String {
    for done in [0.0, 50.0, 100.0] {
        if let Some(token) = context.meta.get_progress_token() {
            let progress = ProgressNotificationParam::new(token, done).with_total(100.0);
            context.peer.notify_progress(progress).await.unwrap();
        }
        tokio::time::sleep(STEP).await;
    }
    "It is done.".to_owned()
}

async fn sample(context: &RequestContext<RoleServer>, prompt: &str) -> Result<String, ErrorData> {
    let params = json!({"messages": [{"role": "user", "content": {"type": "text", "text": prompt}}], "maxTokens": 100});
    let said = context.peer.create_message(read(params)).await;
    let said = said.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    let said = serde_json::to_value(said).unwrap();
    Ok(format!(
        "LLM response: {}",
        said["content"]["text"].as_str().unwrap_or_default()
    ))
}

async fn elicit(
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

fn two_words() -> Value {
    json!({"type": "object", "properties": {"username": {"type": "string", "description": "User's response"}, "email": {"type": "string", "description": "User's email address"}}, "required": ["username", "email"]})
}

fn defaults() -> Value {
    json!({"type": "object", "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": true},
    }})
}

fn choices() -> Value {
    let titled = |first: &str| json!([{"const": "value1", "title": format!("First {first}")}, {"const": "value2", "title": format!("Second {first}")}, {"const": "value3", "title": format!("Third {first}")}]);
    json!({"type": "object", "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": titled("Option")},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
    }})
}

fn needs_sampling(context: &RequestContext<RoleServer>) -> ErrorData {
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

fn changed(what: Changed) -> String {
    // Nobody may listen.
    let _ = CHANGES.send(what);
    "It changed.".to_owned()
}

fn form(message: &str, field: &str) -> Value {
    let kind = if field == "ok" { "boolean" } else { "string" };
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}}})
}

fn name_form(message: &str) -> Value {
    form(message, "name")
}

fn sampling(words: &str) -> Value {
    json!({"method": "sampling/createMessage", "params": {"messages": [{"role": "user", "content": {"type": "text", "text": words}}], "maxTokens": 100}})
}

fn roots() -> Value {
    json!({"method": "roots/list", "params": {}})
}

fn question(requests: &[(&str, Value)], state: Option<&str>) -> Value {
    let requests: serde_json::Map<_, _> = requests
        .iter()
        .map(|(key, request)| ((*key).to_owned(), request.clone()))
        .collect();
    let mut question = json!({"resultType": "input_required", "inputRequests": requests});
    if let Some(state) = state {
        question["requestState"] = json!(signed(state));
    }
    question
}

fn ask(requests: &[(&str, Value)], state: Option<&str>) -> CallToolResponse {
    read::<InputRequiredResult>(question(requests, state)).into()
}

/// The field of an accepted form, if that is what was answered.
fn answered(answers: &InputResponses, key: &str, field: &str) -> Option<String> {
    let content = answers.get(key)?.get("content")?;
    match content.get(field)? {
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn signed(state: &str) -> String {
    use sha2::{Digest, Sha256};
    format!(
        "{state}.{:x}",
        Sha256::digest(format!("{SECRET}{state}{SECRET}"))
    )
}

/// What was signed.
fn opened(state: Option<&str>) -> Result<Option<&str>, ErrorData> {
    let Some(text) = state else { return Ok(None) };
    let state = text.split_once('.').map(|(state, _)| state);
    match state {
        Some(state) if signed(state) == text => Ok(Some(state)),
        _ => Err(ErrorData::invalid_params("the state is not ours", None)),
    }
}

/// Calls that are answered with a question, and asked again with its answer.
fn rounds(
    name: &str,
    answers: &InputResponses,
    state: Option<&str>,
    client: &ClientCapabilities,
) -> Result<CallToolResponse, ErrorData> {
    let state = opened(state)?;
    let sampled = |key: &str| {
        answers
            .get(key)
            .and_then(|answer| answer.pointer("/content/text"))
            .and_then(Value::as_str)
    };
    let listed = |key: &str| {
        answers
            .get(key)
            .and_then(|answer| answer.get("roots"))
            .filter(|roots| roots.is_array())
    };
    let greeted = answered(answers, "user_name", "name");
    Ok(match name {
        "elicitation" => match greeted {
            Some(name) => text(&format!("Hello, {name}!")),
            None => ask(&[("user_name", name_form("What is your name?"))], None),
        },
        "sampling" => match sampled("capital_question") {
            Some(said) => text(said),
            None => ask(
                &[(
                    "capital_question",
                    sampling("What is the capital of France?"),
                )],
                None,
            ),
        },
        "list_roots" => match listed("client_roots") {
            Some(roots) => text(&roots.to_string()),
            None => ask(&[("client_roots", roots())], None),
        },
        "request_state" | "tampered_state" => match (answered(answers, "confirm", "ok"), state) {
            (Some(_), Some("begun")) => text("state-ok"),
            _ => ask(&[("confirm", form("Please confirm", "ok"))], Some("begun")),
        },
        "multiple_inputs" => match (greeted, sampled("greeting"), listed("client_roots"), state) {
            (Some(name), Some(greeting), Some(roots), Some("begun")) => {
                text(&format!("{greeting} {name} {roots}"))
            }
            _ => ask(
                &[
                    ("user_name", name_form("What is your name?")),
                    ("greeting", sampling("Generate a greeting")),
                    ("client_roots", roots()),
                ],
                Some("begun"),
            ),
        },
        "multi_round" => match (
            answered(answers, "step1", "name"),
            answered(answers, "step2", "color"),
            state,
        ) {
            (_, Some(color), Some("second")) => text(&format!("{color} it is.")),
            (Some(_), _, Some("first")) => ask(
                &[(
                    "step2",
                    form("Step 2: What is your favorite color?", "color"),
                )],
                Some("second"),
            ),
            _ => ask(
                &[("step1", name_form("Step 1: What is your name?"))],
                Some("first"),
            ),
        },
        "capabilities" => {
            let mut asked = Vec::new();
            if client.elicitation.is_some() {
                asked.push(("user_name", name_form("What is your name?")));
            }
            if client.sampling.is_some() {
                asked.push(("greeting", sampling("Generate a greeting")));
            }
            ask(&asked, None)
        }
        name => {
            return Err(ErrorData::invalid_params(
                format!("there is no tool {name}"),
                None,
            ));
        }
    })
}
