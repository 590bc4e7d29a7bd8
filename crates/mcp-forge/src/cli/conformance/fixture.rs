//! What the suite's scenarios ask for by name.
#![expect(
    deprecated,
    reason = "sampling and logging are, and older versions have them"
)]

use std::{
    collections::BTreeSet,
    sync::{LazyLock, Mutex},
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams,
        CompleteRequestParams, CompleteResult, CompletionInfo, GetPromptRequestParams,
        GetPromptResponse, GetPromptResult, GetTaskParams, GetTaskResult, Implementation,
        InputRequiredResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
        ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
        ReadResourceResult, ServerCapabilities, ServerConfig, SetLevelRequestParams,
        SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
        UpdateTaskParams,
    },
    service::{RequestContext, SubscriptionContext},
};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::{
    questions::{answered, ask, form, name_form, question, rounds},
    tasks,
    tools::{
        PNG, choices, complete, content, defaults, elicit, log, needs_sampling, progress, read,
        sample, text, tools, two_words,
    },
};

/// Told of a change: the lists of tools and of prompts.
static CHANGES: LazyLock<broadcast::Sender<Changed>> = LazyLock::new(|| broadcast::channel(16).0);

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
            .enable_tasks()
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
        if let Some(answer) = tasks::call(&request.name, &arguments, &answers, &context).await {
            return answer;
        }
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
            "greet" => format!("Hello, {}!", argument("name")),
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

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        tasks::look(&request.task_id).map(GetTaskResult::new)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::answer(&request.task_id, &request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::cancel(&request.task_id)
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }
}

fn changed(what: Changed) -> String {
    // Nobody may listen.
    let _ = CHANGES.send(what);
    "It changed.".to_owned()
}
