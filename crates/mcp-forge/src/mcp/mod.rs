//! The MCP front door: parse, call the service, render. No logic.
//!
//! One service speaks to clients of 2025-06-18 and 2025-11-25, which begin with `initialize`, and
//! of 2026-07-28, which do not; `rmcp` tells them apart. Standard output carries only protocol.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams,
        CustomNotification, CustomRequest, CustomResult, ErrorCode, GetTaskParams, GetTaskResult,
        Implementation, InputResponses, JsonObject, ListResourceTemplatesResult,
        ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams,
        ReadResourceResponse, ServerCapabilities, ServerConfig, SubscribeRequestParams,
        SubscriptionFilter, UnsubscribeRequestParams, UpdateTaskParams,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
};
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument as _;

mod approval;
pub(crate) mod client;
mod console;
mod endpoint;
mod environments;
mod handshakes;
mod listen;
mod progress;
pub(crate) mod render;
mod resources;
mod serve;
mod sessions;
mod subscriptions;
mod tasks;
mod tool;
mod trace;
mod transport;

pub use client::ClientError;
pub(crate) use endpoint::Endpoint;
pub(crate) use listen::serve_socket;
pub(crate) use serve::{Door, serve_client};
pub use serve::{ServeError, serve, serve_background, serve_stdio};
pub use transport::MAX_LINE_BYTES;

use crate::{
    identity::{Caller, Scope},
    names::Principal,
    service::{ExecuteRequest, NewestLine, Service, ServiceError},
    telemetry::TraceContext,
    text::clipped,
    turn::Observer,
};
use console::{Pieces, Running};
use subscriptions::{Changes, Subscribed};

/// How long a list of tools waits for upstreams that are still starting. A client asks for it
/// while it starts, and its user waits.
const CATALOGUE_PATIENCE: Duration = Duration::from_secs(2);

/// What a client may tell its model about the server as a whole.
const INSTRUCTIONS: &str = "\
MCP-Forge runs Python in a sealed sandbox. Prefer one execute_python call that calls several tools, filters their \
answers and returns a small result over many single tool calls whose answers all pass through the conversation. \
The resource mcp://forge/tools/available lists the tools that code can call, mcp://forge/tools/{tool_name}/schema \
describes one, and mcp://forge/environment/info lists the installed packages; build_custom_environment installs \
others, once, and custom_image then names that environment. For work in several steps pass a \
session_id; document_state writes down where it stands, and mcp://forge/sessions/{session_id}/state shows it.";

/// The other end of one connection.
#[derive(Debug)]
struct Client {
    service: Arc<Service>,
    door: Door,
    /// Who it is.
    principal: Principal,
    /// Its turns that can be interrupted.
    running: Running,
    /// Cancelled when the client hung up, at the latest when nothing serves it any more.
    gone: CancellationToken,
    _gone_at_end: DropGuard,
    /// Whether the client will be told once the tools are known.
    announcing: AtomicBool,
    /// What the client wants to hear of, and whether somebody tells it.
    subscribed: Arc<Subscribed>,
    telling: AtomicBool,
}

impl ServerHandler for Client {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tasks()
            .build();
        if self.door == Door::Socket {
            let console = (console::CONSOLE.to_owned(), console::capability());
            capabilities.experimental = Some(BTreeMap::from_iter([console]));
        }
        ServerConfig::new(capabilities)
            .with_server_info(
                Implementation::new("mcp-forge", env!("CARGO_PKG_VERSION"))
                    .with_title("MCP-Forge")
                    .with_description(env!("CARGO_PKG_DESCRIPTION")),
            )
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        is_first(page)?;
        let (known, whole) = self.service.tools(CATALOGUE_PATIENCE).await;
        if !whole {
            self.announce_later(&context);
        }
        let mut tools = vec![tool::execute_python(self.service.config(), &known)];
        tools.extend(sessions::tools());
        tools.extend(environments::tools(self.service.config()));
        Ok(ListToolsResult::with_all_items(tools))
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        let uris = requested.resource_subscriptions.iter().flatten();
        let known: Vec<String> = uris
            .filter(|uri| resources::can_change(uri))
            .cloned()
            .collect();
        let filter = SubscriptionFilter::builder()
            .tools_list_changed()
            .resource_subscriptions(known);
        Some(filter.build())
    }

    async fn listen(&self, subscription: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = Changes::of(&self.service, &self.principal);
        let (_, whole) = self.service.tools(Duration::ZERO).await;
        let announced = async {
            if !whole {
                self.service.tools(Duration::MAX).await;
                // A client that is gone ends the subscription below.
                let _ = subscription.sink().notify_tool_list_changed().await;
            }
            std::future::pending::<()>().await;
        };
        let updated = async {
            while let Some(uris) = changes.next().await {
                for uri in uris {
                    // One that was not asked for is refused by the sink.
                    let _ = subscription.sink().notify_resource_updated(uri).await;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = announced => {}
            () = updated => {}
            () = subscription.cancelled() => {}
        }
        Ok(())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if !resources::can_change(&request.uri) {
            let message = format!(
                "`{}` does not change; mcp://forge/sessions/list, mcp://forge/environments/list and the state and variables of sessions do.",
                clipped(&request.uri)
            );
            return Err(ErrorData::invalid_params(message, None));
        }
        if !self.subscribed.add(request.uri) {
            let message = "There are too many subscriptions; unsubscribe from some.";
            return Err(ErrorData::invalid_params(message, None));
        }
        self.tell_updates(&context);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.subscribed.remove(&request.uri);
        Ok(())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let trace = trace::of(&context);
        let span = trace::span(&request.name, &self.principal, (&context, &trace));
        self.call(request, context, trace).instrument(span).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.task(&request.task_id, &context)
            .map(GetTaskResult::new)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.answer_task(&request.task_id, &request.input_responses, &context)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.end_task(&request.task_id).await
    }

    async fn list_resources(
        &self,
        page: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        is_first(page)?;
        Ok(ListResourcesResult::with_all_items(resources::list()))
    }

    async fn list_resource_templates(
        &self,
        page: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        is_first(page)?;
        Ok(ListResourceTemplatesResult::with_all_items(
            resources::templates(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let reader = resources::Reader {
            service: &self.service,
            principal: &self.principal,
            may_audit: self.may(Scope::Admin, &context),
        };
        tokio::select! {
            read = resources::read(&reader, &request.uri) => Ok(read?.into()),
            () = context.ct.cancelled() => Err(ErrorData::internal_error("The reading was cancelled.", None)),
        }
    }

    async fn on_custom_notification(
        &self,
        notification: CustomNotification,
        _: NotificationContext<RoleServer>,
    ) {
        if notification.method == console::INTERRUPT {
            self.running.interrupt(notification.params.as_ref());
        }
    }

    /// Reached by methods that nobody knows, and by known ones whose parameters have a wrong shape.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(explain_shape(&request))
    }
}

impl Client {
    fn new(
        service: Arc<Service>,
        (door, principal): (Door, Principal),
        gone: CancellationToken,
    ) -> Self {
        Self {
            service,
            door,
            principal,
            running: Running::default(),
            _gone_at_end: gone.clone().drop_guard(),
            gone,
            announcing: AtomicBool::new(false),
            subscribed: Arc::default(),
            telling: AtomicBool::new(false),
        }
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
        trace: Option<TraceContext>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        if environments::NAMES.contains(&&*request.name) {
            let builds = [environments::BUILD, environments::REBUILD].contains(&&*request.name);
            if builds && request.input_responses.is_none() && tasks::are_wanted(&context) {
                return Ok(self.build_or_task(&request.name, arguments, &context).await);
            }
            return self
                .call_for_environments(&request.name, (arguments, request.input_responses), context)
                .await;
        }
        let is_console = self.door == Door::Socket && console::is_asked_for(&context.meta);
        if request.name == tool::EXECUTE_PYTHON && !is_console && tasks::are_wanted(&context) {
            return Ok(self.execute_or_task(arguments, trace, &context).await);
        }
        let called = if request.name == tool::EXECUTE_PYTHON {
            let asked = ExecuteRequest::from_json(arguments);
            match asked.map(|request| ExecuteRequest { trace, ..request }) {
                Ok(request) if is_console => self.execute_for_console(request, context).await,
                Ok(request) => self.execute(request, context).await,
                Err(error) => Some(Err(error)),
            }
        } else {
            let called = sessions::call((&self.service, &self.principal), &request.name, arguments);
            tokio::select! {
                called = called => Some(called.ok_or_else(|| unknown_tool(&request.name))?),
                () = context.ct.cancelled() => None,
            }
        };
        let result = match called {
            Some(Ok(result)) => result,
            Some(Err(error)) if is_console => console::refusal(&error),
            Some(Err(error)) => self.refuse(&error),
            None => render::refuse(&"the call was cancelled"),
        };
        Ok(result.into())
    }

    /// The refusal as the client may read it. Over a network nobody learns places of this machine.
    fn refuse(&self, error: &ServiceError) -> CallToolResult {
        if self.door == Door::Http && error.is_internal() {
            tracing::error!("a call failed: {error}");
        }
        self.refuse_quietly(error)
    }

    /// As [`Self::refuse`], for one that the log has already.
    fn refuse_quietly(&self, error: &ServiceError) -> CallToolResult {
        if self.door == Door::Http && error.is_internal() {
            return render::refuse(&error.in_short());
        }
        render::refuse(error)
    }

    /// Whether the client may do this. Who started the server, or is its user, may do everything;
    /// over HTTP each request shows a token of its own.
    fn may(&self, scope: Scope, context: &RequestContext<RoleServer>) -> bool {
        let parts = context.extensions.get::<http::request::Parts>();
        match self.door {
            Door::Stdio | Door::Socket => true,
            Door::Http => parts
                .and_then(|parts| parts.extensions.get::<Caller>())
                .is_some_and(|caller| caller.may(scope)),
        }
    }

    /// Runs code until its end, or `None` when nobody waits for it any more: dropping the
    /// execution kills its sandbox.
    async fn execute(
        &self,
        request: ExecuteRequest,
        context: RequestContext<RoleServer>,
    ) -> Option<Result<CallToolResult, ServiceError>> {
        let (mut observer, newest) = NewestLine::new();
        let work = Box::pin(
            self.service
                .execute_for(&self.principal, request, &mut observer),
        );
        let told = async {
            match context.meta.get_progress_token() {
                Some(token) => progress::report(&context.peer, token, newest, work).await,
                None => work.await,
            }
        };
        tokio::select! {
            ended = told => Some(ended.map(render::render)),
            () = context.ct.cancelled() => None,
        }
    }

    /// Calls a tool for environments, whose answer may be a question.
    async fn call_for_environments(
        &self,
        name: &str,
        (arguments, answers): (JsonObject, Option<InputResponses>),
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = environments::Call {
            service: &self.service,
            principal: &self.principal,
            may_approve: self.may(Scope::Admin, &context),
            context: &context,
            answers,
        };
        let called = tokio::select! {
            called = environments::call(&call, name, arguments) => called.ok_or_else(|| unknown_tool(name))?,
            () = context.ct.cancelled() => return Ok(render::refuse(&"the call was cancelled").into()),
        };
        Ok(called.unwrap_or_else(|error| self.refuse(&error).into()))
    }

    /// As [`Self::execute`], with all output as it comes, and interrupts.
    async fn execute_for_console(
        &self,
        request: ExecuteRequest,
        context: RequestContext<RoleServer>,
    ) -> Option<Result<CallToolResult, ServiceError>> {
        let (mut observer, pieces) = Pieces::new();
        let running = self.running.begin(&context.id);
        let interrupt = running.interrupt.clone();
        let work = Box::pin(async move {
            let interruptible = (&mut observer as &mut dyn Observer, interrupt);
            self.service
                .execute_interruptible(&self.principal, request, interruptible)
                .await
        });
        tokio::select! {
            ended = console::stream(&context.peer, &context.id, pieces, work) => Some(ended.map(console::answer)),
            () = context.ct.cancelled() => None,
        }
    }
}

/// All lists come whole, so that no cursor was ever given: one that is shown is somebody's invention.
fn is_first(page: Option<PaginatedRequestParams>) -> Result<(), ErrorData> {
    match page.and_then(|page| page.cursor) {
        None => Ok(()),
        Some(_) => Err(ErrorData::invalid_params(
            "params.cursor is none of this server's: its lists come whole, so leave it out",
            None,
        )),
    }
}

fn unknown_tool(name: &str) -> ErrorData {
    let message = format!(
        "Unknown tool `{}`; this server has `{}`, `{}`, `{}`.",
        clipped(name),
        tool::EXECUTE_PYTHON,
        sessions::NAMES.join("`, `"),
        environments::NAMES.join("`, `")
    );
    ErrorData::invalid_params(message, None)
}

fn explain_shape(request: &CustomRequest) -> ErrorData {
    let parameter = |name: &str| request.params.as_ref().and_then(|params| params.get(name));
    let message = match request.method.as_str() {
        "tools/call" if !parameter("name").is_some_and(Value::is_string) => {
            "`params.name` must be the tool's name, a string."
        }
        "tools/call" => "`params.arguments` must be an object, for example {\"code\": \"1 + 1\"}.",
        "resources/read" => "`params.uri` must be the resource's address, a string.",
        "tasks/get" | "tasks/cancel" => "`params.taskId` must be the task's name, a string.",
        "tasks/update" => "`params` must have `taskId`, a string, and `inputResponses`, an object.",
        "initialize" => "`params` must have `protocolVersion`, `capabilities` and `clientInfo`.",
        "tools/list" | "resources/list" | "resources/templates/list" => {
            "`params` must be an object or left out."
        }
        method => {
            return ErrorData::new(
                ErrorCode::METHOD_NOT_FOUND,
                format!("There is no method `{}`.", clipped(method)),
                None,
            );
        }
    };
    ErrorData::invalid_params(message, None)
}
