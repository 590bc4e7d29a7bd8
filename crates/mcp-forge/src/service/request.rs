//! What a caller may ask for, and the checks that every request passes before anything happens.
//!
//! Every refusal is one sentence with the field, the value and the fix: a model reads it and
//! repairs its next call.

use std::time::Duration;

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::{
    ServiceError,
    environments::selected,
    fields::{Fields, rejected},
};
use crate::{
    config::{
        Backend, Config,
        size::{duration_from_seconds, parse_bytes, show_size},
    },
    environments::Selection,
    limits::Limits,
    names::SessionId,
    session::{DEFAULT_ENVIRONMENT, Volume},
    telemetry::TraceContext,
    text::quoted,
};

/// Largest `code`, in bytes. Python compiles far less than this in a useful time.
const MAX_CODE_BYTES: usize = 1 << 20;

/// Most names in `mcp_tools`.
const MAX_TOOLS: usize = 512;

/// Shortest `timeout`.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

/// A request to run code: the parameters of the MCP tool `execute_python`, of `mcp-forge run`,
/// and later of the REST body.
#[derive(Debug, Clone, Default, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ExecuteRequest {
    /// Python source, at most 1 MiB. The value of the last expression is the result; top-level `await` works.
    pub code: String,
    /// Names of the tools the code may call as functions, as listed by `mcp://forge/tools/available`. Default: none.
    pub mcp_tools: Option<Vec<String>>,
    /// Names a session, whose variables, imports and files stay for later calls; made at its first use. `new` makes one with a new name.
    pub session_id: Option<String>,
    /// `simple`: a fresh sandbox for this call. `jupyter`: a session, by default a new one. A `session_id` alone says enough.
    pub backend: Option<String>,
    /// Seconds the code may run, tool calls included.
    pub timeout: Option<f64>,
    /// Copied into the session before the code runs, for example {"shared/readonly/data": "/workspace/data"}. There are `shared/readonly`, `uploads/{session_id}` and `sessions/{session_id}`, and what lies in them.
    pub volumes: Option<Map<String, Value>>,
    /// Name of a custom environment to run in, as `build_custom_environment` made it. A session keeps the one that it started with.
    pub custom_image: Option<String>,
    /// Name of a template environment to run in, built at its first use; `default` for none. `mcp://forge/environments/list` has those that there are.
    pub environment: Option<String>,
    /// Limits other than the defaults.
    pub limits: Option<LimitsRequest>,
    /// The trace that the request came with: beside its parameters, never among them.
    #[schemars(skip)]
    pub trace: Option<TraceContext>,
}

/// Limits a request asks for, each up to the operator's maximum.
#[derive(Debug, Clone, Default, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct LimitsRequest {
    /// Memory of all processes and files together, for example `512m` or `2g`.
    pub memory: Option<String>,
    /// Microseconds of CPU time per 100 ms; 100000 is one core.
    pub cpu_quota: Option<u64>,
    /// Processes and threads alive at once.
    pub pids: Option<u64>,
    /// Space in `/workspace` and `/tmp`, for example `1g`.
    pub storage: Option<String>,
}

impl ExecuteRequest {
    /// Reads a request from JSON. Says more than a derived parser would: which parameter,
    /// what was found there, what belongs there, and which known name an unknown one resembles.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Rejected`]; nothing has happened.
    pub fn from_json(parameters: Map<String, Value>) -> Result<Self, ServiceError> {
        let mut fields = Fields::new("", parameters);
        let request = Self {
            code: fields
                .take("code", "a string of Python source")?
                .ok_or_else(|| {
                    rejected(
                        "code",
                        "`code` is missing; pass the Python source to run as a string.",
                    )
                })?,
            mcp_tools: fields.take(
                "mcp_tools",
                "a list of tool names, for example [\"github_search_repos\"]",
            )?,
            session_id: fields.take("session_id", "a string, or \"new\"")?,
            backend: fields.take("backend", "the string \"simple\" or \"jupyter\"")?,
            timeout: fields.take("timeout", "a number of seconds, for example 30")?,
            volumes: fields.take(
                "volumes",
                "an object, for example {\"shared/readonly/data\": \"/workspace/data\"}",
            )?,
            custom_image: fields.take("custom_image", "a string")?,
            environment: fields.take("environment", "a string")?,
            limits: fields
                .take("limits", "an object, for example {\"memory\": \"1g\"}")?
                .map(LimitsRequest::from_json)
                .transpose()?,
            trace: None,
        };
        fields.finish("parameter")?;
        Ok(request)
    }
}

impl LimitsRequest {
    fn from_json(parameters: Map<String, Value>) -> Result<Self, ServiceError> {
        let mut fields = Fields::new("limits.", parameters);
        let request = Self {
            memory: fields.take("memory", "a size as a string, for example \"512m\"")?,
            cpu_quota: fields.take(
                "cpu_quota",
                "a whole number of microseconds per 100 ms, for example 50000",
            )?,
            pids: fields.take("pids", "a whole number of processes, for example 64")?,
            storage: fields.take("storage", "a size as a string, for example \"1g\"")?,
        };
        fields.finish("limit")?;
        Ok(request)
    }
}

/// A request that passed every check: what will run, in typed form.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Checked {
    pub(super) code: String,
    pub(super) tools: Vec<String>,
    /// What calls of tools take on.
    pub(super) trace: Option<TraceContext>,
    pub(super) limits: Limits,
    /// None: a fresh sandbox.
    pub(super) session: Option<CheckedSession>,
    /// None: the interpreter's own packages.
    pub(super) environment: Option<Selection>,
    /// Whether the request says which, `default` included.
    pub(super) has_own_environment: bool,
}

impl Checked {
    /// What a response calls the environment.
    pub(super) fn environment_name(&self) -> String {
        let selected = self.environment.as_ref();
        selected
            .map_or(DEFAULT_ENVIRONMENT, |it| it.name().as_str())
            .to_owned()
    }
}

/// The session that a request is for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CheckedSession {
    pub(super) id: SessionId,
    /// Whether limits beside the timeout were asked for.
    pub(super) has_own_limits: bool,
    pub(super) volumes: Vec<Volume>,
}

/// Checks every field of a request against the configuration. Pure: nothing has happened yet.
pub(super) fn check(request: ExecuteRequest, config: &Config) -> Result<Checked, ServiceError> {
    let templates = &config.environments.templates;
    let (environment, has_own_environment) =
        selected(&request, |name| templates.get(name).is_some())?;
    check_code(&request.code)?;
    let session = check_session(&request, config)?;
    let tools = check_tools(request.mcp_tools.unwrap_or_default())?;
    let limits = check_limits(request.timeout, &request.limits.unwrap_or_default(), config)?;
    Ok(Checked {
        code: request.code,
        tools,
        trace: request.trace,
        limits,
        session,
        environment,
        has_own_environment,
    })
}

/// A `session_id` alone selects a session; `jupyter` alone, or the name `new`, makes one.
fn check_session(
    request: &ExecuteRequest,
    config: &Config,
) -> Result<Option<CheckedSession>, ServiceError> {
    let asked = request.session_id.as_deref();
    let id = match (request.backend.as_deref(), asked) {
        (Some("simple"), Some(id)) => {
            let message = format!(
                "`session_id` is {} and `backend` is \"simple\", which has no sessions; leave `backend` out to use the session, or `session_id` for a fresh sandbox.",
                quoted(id)
            );
            return Err(rejected("backend", message));
        }
        (None | Some("jupyter"), Some("new")) | (Some("jupyter"), None) => mint_session_id()?,
        (None, None) if config.default_backend == Backend::Jupyter => mint_session_id()?,
        (None | Some("jupyter"), Some(id)) => parse_session_id(id)?,
        (None | Some("simple"), None) => {
            if request.volumes.as_ref().is_some_and(|map| !map.is_empty()) {
                // What nobody may have is told as such, session or not.
                check_volumes(request, &mint_session_id()?)?;
                return Err(rejected(
                    "volumes",
                    "`volumes` are copied into a session, and this call has none; pass a `session_id`, for example \"new\".",
                ));
            }
            return Ok(None);
        }
        (Some(other), _) => {
            let message = format!(
                "`backend` is {}; pass \"simple\" or \"jupyter\".",
                quoted(other)
            );
            return Err(rejected("backend", message));
        }
    };
    let volumes = check_volumes(request, &id)?;
    let limits = request.limits.as_ref();
    Ok(Some(CheckedSession {
        id,
        has_own_limits: limits.is_some_and(|limits| *limits != LimitsRequest::default()),
        volumes,
    }))
}

fn check_volumes(request: &ExecuteRequest, id: &SessionId) -> Result<Vec<Volume>, ServiceError> {
    let Some(volumes) = &request.volumes else {
        return Ok(Vec::new());
    };
    Volume::parse_all(volumes, id).map_err(|refusal| {
        let message = format!("{}.", refusal.message);
        if refusal.is_violation {
            let field = "volumes".to_owned();
            ServiceError::Forbidden { field, message }
        } else {
            rejected("volumes", message)
        }
    })
}

/// Reads a session's name.
///
/// # Errors
///
/// [`ServiceError::Rejected`].
pub(super) fn parse_session_id(text: &str) -> Result<SessionId, ServiceError> {
    if text == "new" {
        let message = "`session_id` is \"new\", which asks for a session that is not there yet; pass the name of one.";
        return Err(rejected("session_id", message));
    }
    SessionId::parse(text).map_err(|rule| {
        let message = format!("`session_id` is {}; {rule}.", quoted(text));
        rejected("session_id", message)
    })
}

/// A name that nobody has, and nobody guesses.
pub(super) fn mint_session_id() -> Result<SessionId, ServiceError> {
    let random = super::execution_id()?;
    SessionId::parse(&format!("s-{}", &random[..16]))
        .map_err(|rule| rejected("session_id", rule.to_string()))
}

fn check_code(code: &str) -> Result<(), ServiceError> {
    if code.len() > MAX_CODE_BYTES {
        return Err(rejected(
            "code",
            format!(
                "`code` has {} bytes, more than the maximum of {MAX_CODE_BYTES}; let the code read its data through a tool instead of carrying it.",
                code.len()
            ),
        ));
    }
    if let Some(position) = code.find('\0') {
        let line = code[..position].matches('\n').count() + 1;
        return Err(rejected(
            "code",
            format!(
                "`code` holds a NUL character on line {line}, which Python source cannot; remove it, or write it as the escape \\x00 in a string."
            ),
        ));
    }
    Ok(())
}

fn check_tools(tools: Vec<String>) -> Result<Vec<String>, ServiceError> {
    if tools.len() > MAX_TOOLS {
        return Err(rejected(
            "mcp_tools",
            format!(
                "`mcp_tools` names {} tools, more than the maximum of {MAX_TOOLS}; name only those that the code calls.",
                tools.len()
            ),
        ));
    }
    let mut unique: Vec<String> = Vec::with_capacity(tools.len());
    for tool in tools {
        if !unique.contains(&tool) {
            unique.push(tool);
        }
    }
    Ok(unique)
}

fn check_limits(
    timeout: Option<f64>,
    asked: &LimitsRequest,
    config: &Config,
) -> Result<Limits, ServiceError> {
    let (default, max) = (&config.default_limits, &config.max_limits);
    Ok(Limits {
        timeout: timeout.map_or(Ok(default.timeout), |seconds| {
            check_timeout(seconds, max.timeout)
        })?,
        memory_bytes: check_size(
            "limits.memory",
            asked.memory.as_deref(),
            default.memory_bytes,
            max.memory_bytes,
        )?,
        cpu_quota_us: check_number(
            "limits.cpu_quota",
            asked.cpu_quota,
            "microseconds",
            default.cpu_quota_us,
            max.cpu_quota_us,
        )?,
        pids: check_number(
            "limits.pids",
            asked.pids,
            "processes",
            default.pids,
            max.pids,
        )?,
        storage_bytes: check_size(
            "limits.storage",
            asked.storage.as_deref(),
            default.storage_bytes,
            max.storage_bytes,
        )?,
    })
}

fn check_timeout(seconds: f64, max: Duration) -> Result<Duration, ServiceError> {
    let most = max.as_secs_f64();
    if seconds > most {
        return Err(rejected(
            "timeout",
            format!(
                "`timeout` is {seconds} s, above the maximum of {most} s here; ask for at most that and split the work."
            ),
        ));
    }
    // Zero, less, NaN, and what rounds to no time at all.
    duration_from_seconds(seconds)
        .filter(|timeout| *timeout >= SHORTEST_TIMEOUT)
        .ok_or_else(|| {
            rejected(
                "timeout",
                format!("`timeout` is {seconds}; pass a number of seconds from 0.001 to {most}."),
            )
        })
}

fn check_number(
    field: &str,
    asked: Option<u64>,
    unit: &str,
    default: u64,
    max: u64,
) -> Result<u64, ServiceError> {
    match asked {
        None => Ok(default),
        Some(0) => Err(rejected(
            field,
            format!("`{field}` is 0; pass a number of {unit} from 1 to {max}."),
        )),
        Some(number) if number > max => Err(rejected(
            field,
            format!(
                "`{field}` is {number} {unit}, above the maximum of {max} here; ask for at most that."
            ),
        )),
        Some(number) => Ok(number),
    }
}

fn check_size(
    field: &str,
    asked: Option<&str>,
    default: u64,
    max: u64,
) -> Result<u64, ServiceError> {
    let Some(text) = asked else {
        return Ok(default);
    };
    let bytes = parse_bytes(text).map_err(|error| {
        rejected(
            field,
            format!(
                "`{field}` is {}, {error}; pass a size such as \"512m\" or \"2g\".",
                quoted(text)
            ),
        )
    })?;
    if bytes == 0 {
        return Err(rejected(
            field,
            format!(
                "`{field}` is {}; pass a size from 1 byte to {}.",
                quoted(text),
                show_size(max)
            ),
        ));
    }
    if bytes > max {
        return Err(rejected(
            field,
            format!(
                "`{field}` is {} ({bytes} bytes), above the maximum of {} ({max} bytes) here; ask for at most that.",
                quoted(text),
                show_size(max)
            ),
        ));
    }
    Ok(bytes)
}
