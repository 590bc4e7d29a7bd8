//! The tools for environments: their schemas, what calling one asks of the service, and how it answers.
//!
//! A build takes long, so it reports progress or becomes a task (`tasks.rs`); and it may need a person's
//! word (`approval.rs`).

use std::{fmt::Write as _, pin::pin, sync::Arc};

use rmcp::{
    RoleServer,
    model::{
        CallToolResponse, CallToolResult, ContentBlock, InputRequiredResult, InputResponses,
        JsonObject, Tool, ToolAnnotations,
    },
    service::RequestContext,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    approval::{Asking, Said},
    progress,
    tool::{NoParameters, add, tool},
};
use crate::{
    config::Config,
    environments::{Built, EnvironmentsError, Listed, Refusal, Teller},
    names::Principal,
    service::{
        BuildEnvironmentRequest, EnvironmentDeleted, Execution, How, Kept, NewestLine, Service,
        ServiceError,
    },
    text::printable,
    turn::Observer,
};

pub(super) const BUILD: &str = "build_custom_environment";
const LIST: &str = "list_custom_environments";
pub(super) const REBUILD: &str = "rebuild_custom_environment";
const DELETE: &str = "delete_custom_environment";

/// The names of the tools here.
pub(super) const NAMES: [&str; 4] = [BUILD, LIST, REBUILD, DELETE];

/// Questions of one call: each approval can bring dependencies to light that need one.
const MOST_QUESTIONS: usize = 8;

/// Packages and environments that a text names; the structured content has all.
const MOST_NAMED: usize = 20;

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "describes what is read by name")]
struct RebuildParameters {
    /// The environment to build anew.
    name: String,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "describes what is read by name")]
struct DeleteParameters {
    /// The environment to forget.
    name: String,
}

/// The tools as a client lists them. Where nothing may be built, none that builds.
pub(super) fn tools(config: &Config) -> Vec<Tool> {
    let mut tools = Vec::new();
    if config.environments.enabled {
        let mut build = tool::<BuildEnvironmentRequest, Built>(
            BUILD,
            "Build an environment",
            "Install Python packages, wheels only, into a new environment; code finds them with `custom_image` of execute_python. \
             This takes seconds to minutes, once: the same packages again are there at once. \
             A refusal names each package and the rule that it is held back by.",
            ToolAnnotations::new().destructive(false).idempotent(true),
        );
        build.input_schema = with_templates(config, &build.input_schema).into();
        tools.push(build.with_annotations(reaches_out(false)));
    }
    tools.push(tool::<NoParameters, Listed>(
        LIST,
        "List environments",
        "List your environments with their packages, and the templates.",
        ToolAnnotations::new().read_only(true),
    ));
    if config.environments.enabled {
        let rebuild = tool::<RebuildParameters, Built>(
            REBUILD,
            "Rebuild an environment",
            "Build an environment anew, with the newest versions that its requirements allow. What runs in it keeps the old ones.",
            ToolAnnotations::new(),
        );
        tools.push(rebuild.with_annotations(reaches_out(true)));
    }
    tools.push(tool::<DeleteParameters, EnvironmentDeleted>(
        DELETE,
        "Delete an environment",
        "Forget an environment. Sessions that run in it go on.",
        ToolAnnotations::new().destructive(true).idempotent(true),
    ));
    tools
}

/// One call, and who makes it.
pub(super) struct Call<'a> {
    /// Whom the tools ask.
    pub(super) service: &'a Arc<Service>,
    /// Who asks.
    pub(super) principal: &'a Principal,
    /// Whether the caller may approve packages.
    pub(super) may_approve: bool,
    /// The request around it.
    pub(super) context: &'a RequestContext<RoleServer>,
    /// What the client answers to the questions of an earlier round.
    pub(super) answers: Option<InputResponses>,
}

/// Calls one of the tools; `None` if it is none of them.
///
/// # Cancel safety
///
/// Dropping the future ends a build and removes what it wrote.
pub(super) async fn call(
    call: &Call<'_>,
    name: &str,
    mut arguments: Map<String, Value>,
) -> Option<Result<CallToolResponse, ServiceError>> {
    let answered = match name {
        BUILD | REBUILD => match Work::of(name, arguments) {
            Ok(work) => call.build(&work).await,
            Err(error) => Err(error),
        },
        LIST => call.list().await,
        DELETE => match name_parameter(&mut arguments) {
            Ok(name) => call.delete(&name).await,
            Err(error) => Err(error),
        },
        _ => return None,
    };
    Some(answered)
}

/// What is to be built.
pub(super) enum Work {
    Build(BuildEnvironmentRequest),
    Rebuild(String),
}

impl Work {
    /// What a call of `name`, which builds, asks for.
    pub(super) fn of(name: &str, mut arguments: Map<String, Value>) -> Result<Self, ServiceError> {
        if name == BUILD {
            BuildEnvironmentRequest::from_json(arguments).map(Self::Build)
        } else {
            name_parameter(&mut arguments).map(Self::Rebuild)
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Build(request) => &request.name,
            Self::Rebuild(name) => name,
        }
    }
}

impl Call<'_> {
    /// Builds while telling the client how far it is, if it wants to know.
    async fn build(&self, work: &Work) -> Result<CallToolResponse, ServiceError> {
        let (mut observer, newest) = NewestLine::new();
        let asking = self
            .may_approve
            .then(|| Asking::of(self.context, self.answers.as_ref()))
            .flatten();
        let builder = Builder {
            service: self.service,
            principal: self.principal,
            asking,
        };
        let work = Box::pin(builder.build(work, &mut observer));
        let told = match self.context.meta.get_progress_token() {
            Some(token) => progress::report(&self.context.peer, token, newest, work).await,
            None => work.await,
        };
        Ok(match told? {
            Come::Built(built) => built_result(&built).into(),
            Come::Question(question) => (*question).into(),
        })
    }

    async fn list(&self) -> Result<CallToolResponse, ServiceError> {
        let listed = self.service.list_environments(self.principal).await?;
        Ok(result(list_text(&listed), &listed).into())
    }

    async fn delete(&self, name: &str) -> Result<CallToolResponse, ServiceError> {
        let deleted = self
            .service
            .delete_environment(self.principal, name)
            .await?;
        let text = format!("Environment `{}` is gone.", deleted.name);
        Ok(result(text, &deleted).into())
    }
}

/// A build on its own: who may be asked finds the questions in the execution.
pub(super) async fn build_as(
    (execution, mut kept): (Arc<Execution>, Kept),
    (service, principal): (Arc<Service>, Principal),
    work: Work,
    may_ask: bool,
) -> How {
    let builder = Builder {
        service: &service,
        principal: &principal,
        asking: may_ask.then_some(Asking::Task(&execution)),
    };
    let built = tokio::select! {
        built = builder.build(&work, &mut kept) => built,
        () = execution.cancelled() => return How::Cancelled,
    };
    match built {
        Ok(Come::Built(built)) => How::Built(built),
        // A task is not answered with questions.
        Ok(Come::Question(_)) => How::Cancelled,
        Err(error) => How::Refused(error),
    }
}

/// What comes of a build.
enum Come {
    Built(Box<Built>),
    /// The call is to be made again, with an answer.
    Question(Box<InputRequiredResult>),
}

/// Who builds, and whom it asks.
struct Builder<'a> {
    service: &'a Service,
    principal: &'a Principal,
    asking: Option<Asking<'a>>,
}

impl Builder<'_> {
    async fn build(&self, work: &Work, observer: &mut dyn Observer) -> Result<Come, ServiceError> {
        observer.status("begun");
        for number in 0..MOST_QUESTIONS {
            let built = self.attempt(work, observer).await;
            let (Some(asking), Some(waiting)) = (&self.asking, waiting(&built)) else {
                return built.map(|built| Come::Built(Box::new(built)));
            };
            observer.status("waiting for an approval");
            match asking.ask(number, work.name(), waiting).await {
                Said::Yes => {
                    let packages: Vec<String> = waiting
                        .iter()
                        .map(|refusal| refusal.package.clone())
                        .collect();
                    let by = self.principal.as_str();
                    self.service.approve_packages(&packages, by).await?;
                }
                Said::No => return built.map(|built| Come::Built(Box::new(built))),
                Said::Later(question) => return Ok(Come::Question(question)),
            }
        }
        let built = self.attempt(work, observer).await?;
        Ok(Come::Built(Box::new(built)))
    }

    async fn attempt(
        &self,
        work: &Work,
        observer: &mut dyn Observer,
    ) -> Result<Built, ServiceError> {
        let (teller, mut told) = Teller::new();
        let mut building = pin!(async {
            match work {
                Work::Build(request) => {
                    let request = request.clone();
                    self.service
                        .build_environment(self.principal, request, &teller)
                        .await
                }
                Work::Rebuild(name) => {
                    self.service
                        .rebuild_environment(self.principal, name, &teller)
                        .await
                }
            }
        });
        loop {
            tokio::select! {
                biased;
                built = &mut building => return built,
                Ok(()) = told.changed() => {
                    let line = told.borrow_and_update().to_string();
                    observer.status(&line);
                }
            }
        }
    }
}

/// The packages that a build waits for.
fn waiting(built: &Result<Built, ServiceError>) -> Option<&[Refusal]> {
    match built {
        Err(ServiceError::Environments(error)) => match &**error {
            EnvironmentsError::NeedsApproval(waiting) => Some(waiting),
            _ => None,
        },
        _ => None,
    }
}

pub(super) fn built_result(built: &Built) -> CallToolResult {
    let more = match built.installed_packages.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named: Vec<&str> = built
        .installed_packages
        .iter()
        .take(MOST_NAMED)
        .map(String::as_str)
        .collect();
    let mut text = format!(
        "Environment `{}` is ready: pass `custom_image`: \"{}\" to execute_python. Python {}, {} MB: {}{more}.",
        built.name,
        built.name,
        built.python_version,
        built.size_mb,
        named.join(", "),
    );
    let scan = &built.scan;
    if scan.scanned {
        let _ = write!(
            text,
            "\nKnown vulnerabilities: {} critical, {} high, {} other.",
            scan.critical, scan.high, scan.other
        );
    }
    for warning in built.warnings.iter().take(MOST_NAMED) {
        let _ = write!(text, "\nWarning: {}", printable(warning));
    }
    result(text, built)
}

fn list_text(listed: &Listed) -> String {
    let mut text = String::new();
    if listed.custom.is_empty() {
        text.push_str("There are no environments yet; build_custom_environment makes one.\n");
    }
    for view in listed.custom.iter().take(MOST_NAMED) {
        let _ = write!(
            text,
            "{}: {}, Python {}, {} MB, packages installed: {}",
            view.name,
            view.state,
            view.python_version,
            view.size_mb,
            view.packages.len(),
        );
        if !view.requested.is_empty() {
            let _ = write!(text, "; asked for {}", view.requested.join(", "));
        }
        if !view.description.is_empty() {
            let _ = write!(text, "; {}", printable(&view.description));
        }
        if let Some(notice) = &view.notice {
            let _ = write!(text, ". {notice}");
        }
        text.push('\n');
    }
    for template in listed.templates.iter().take(MOST_NAMED) {
        let packages = template.packages.join(", ");
        let _ = writeln!(text, "template {}: {packages}", template.name);
    }
    text.truncate(text.trim_end().len());
    text
}

fn result(text: String, value: &impl Serialize) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = Some(json!(value));
    result
}

/// The one parameter; one that is missing is told by the check of names.
fn name_parameter(arguments: &mut Map<String, Value>) -> Result<String, ServiceError> {
    let rejected = |field: &str, message: String| ServiceError::Rejected {
        field: field.to_owned(),
        message,
    };
    let name = match arguments.remove("name") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(name)) => name,
        Some(_) => {
            let message = "`name` must be an environment's name, a string.".to_owned();
            return Err(rejected("name", message));
        }
    };
    match arguments.keys().next() {
        Some(other) => {
            let message = format!(
                "unknown parameter {}; there is `name`.",
                crate::text::quoted(other)
            );
            Err(rejected(other, message))
        }
        None => Ok(name),
    }
}

/// The schema of a build, with the templates of this server.
fn with_templates(config: &Config, schema: &JsonObject) -> JsonObject {
    let names: Vec<String> = config
        .environments
        .templates
        .iter()
        .map(|(name, _)| name.to_string())
        .collect();
    let mut schema = Value::Object(schema.clone());
    add(&mut schema, "/properties/template", json!({"enum": names}));
    match schema {
        Value::Object(schema) => schema,
        _ => JsonObject::new(),
    }
}

/// A build speaks with an index; what has the name before is replaced once it is done.
fn reaches_out(is_destructive: bool) -> ToolAnnotations {
    ToolAnnotations::new()
        .destructive(is_destructive)
        .idempotent(true)
        .open_world(true)
}
