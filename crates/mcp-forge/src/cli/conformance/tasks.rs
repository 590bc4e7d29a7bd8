//! Calls that become tasks. The suite's tools do no work, so a task is a moment at which it is done.

use std::{
    collections::BTreeMap,
    sync::{LazyLock, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolResponse, CallToolResult, CreateTaskResult, DetailedTask, ErrorCode, InputRequests,
        InputResponses, JsonObject, Task, TaskPayload,
    },
    service::RequestContext,
};
use serde_json::{Value, json};

use super::{
    questions::{answered, ask, form, name_form},
    tools::{read, text},
};

/// All of them, by name. Every request of 2026-07-28 is its own client.
static TASKS: LazyLock<Mutex<BTreeMap<String, Work>>> = LazyLock::new(Mutex::default);

/// One call.
struct Work {
    begun: Instant,
    since: Timestamp,
    lasts: Duration,
    /// What it waits for.
    open: InputRequests,
    then: TaskPayload,
}

/// What the suite calls by name, where a client wants tasks.
pub(super) const TOOLS: &[&str] = &[
    "failing_job",
    "protocol_error_job",
    "confirm_delete",
    "multi_input",
    "test_tool_with_task",
];

/// A call of a tool that takes long; `None` if it is none.
pub(super) async fn call(
    name: &str,
    arguments: &JsonObject,
    answers: &InputResponses,
    context: &RequestContext<RoleServer>,
) -> Option<Result<CallToolResponse, ErrorData>> {
    let wanted = context
        .client_capabilities()
        .is_some_and(|declared| declared.supports_tasks());
    let seconds = arguments.get("seconds").and_then(Value::as_f64);
    let lasts = Duration::from_secs_f64(seconds.unwrap_or(1.0));
    let (open, then): (&[&str], _) = match name {
        "slow_compute" if !wanted => {
            tokio::time::sleep(lasts).await;
            return Some(Ok(text("It is computed.")));
        }
        _ if !wanted && TOOLS.contains(&name) => return Some(Err(needs_tasks())),
        "slow_compute" => (&[], said("It is computed.")),
        "failing_job" => (&[], failed()),
        "protocol_error_job" => (&[], broken()),
        "confirm_delete" => (&["confirm"], said("It is deleted.")),
        "multi_input" => (&["first", "second"], said("It is known.")),
        "test_tool_with_task" => {
            let Some(name) = answered(answers, "user_name", "name") else {
                let question = ("user_name", name_form("What is your name?"));
                return Some(Ok(ask(&[question], None)));
            };
            (&[], said(&format!("Hello, {name}!")))
        }
        _ => return None,
    };
    let open = open.iter().map(|key| {
        let question = form(&format!("What of {key}?"), "confirm");
        ((*key).to_owned(), read(question))
    });
    let work = Work {
        begun: Instant::now(),
        since: Timestamp::now(),
        lasts,
        open: open.collect(),
        then,
    };
    let mut tasks = tasks();
    let id = format!("task-{}", tasks.len());
    let created = work.described(&id);
    tasks.insert(id, work);
    Some(Ok(CreateTaskResult::new(created).into()))
}

/// A task as it is now.
pub(super) fn look(id: &str) -> Result<DetailedTask, ErrorData> {
    change(id, |work| {
        DetailedTask::new(work.described(id), work.payload())
    })
}

/// Takes answers; those to what was not asked are passed over.
pub(super) fn answer(id: &str, answers: &InputResponses) -> Result<(), ErrorData> {
    change(id, |work| {
        work.open.retain(|key, _| !answers.contains_key(key));
    })
}

/// Ends a task, if it has not ended yet.
pub(super) fn cancel(id: &str) -> Result<(), ErrorData> {
    change(id, |work| {
        if !work.payload().status().is_terminal() {
            (work.lasts, work.then) = (Duration::ZERO, TaskPayload::Cancelled);
            work.open.clear();
        }
    })
}

fn tasks() -> MutexGuard<'static, BTreeMap<String, Work>> {
    TASKS.lock().unwrap()
}

fn change<T>(id: &str, change: impl FnOnce(&mut Work) -> T) -> Result<T, ErrorData> {
    let unknown = || ErrorData::invalid_params(format!("there is no task {id}"), None);
    tasks().get_mut(id).map(change).ok_or_else(unknown)
}

impl Work {
    fn payload(&self) -> TaskPayload {
        if !self.open.is_empty() {
            return TaskPayload::InputRequired {
                input_requests: self.open.clone(),
            };
        }
        if self.begun.elapsed() < self.lasts {
            return TaskPayload::Working;
        }
        self.then.clone()
    }

    fn described(&self, id: &str) -> Task {
        let since = self.since.to_string();
        Task::new(id, self.payload().status(), since.clone(), since)
            .with_ttl_ms(60_000)
            .with_poll_interval_ms(100)
    }
}

fn said(words: &str) -> TaskPayload {
    ended(&json!({"content": [{"type": "text", "text": words}]}))
}

fn failed() -> TaskPayload {
    ended(&json!({"isError": true, "content": [{"type": "text", "text": "It failed."}]}))
}

/// As the SDK writes it.
fn ended(result: &Value) -> TaskPayload {
    let mut result = result.clone();
    result["resultType"] = json!("complete");
    let result: CallToolResult = read(result);
    let Ok(Value::Object(result)) = serde_json::to_value(result) else {
        panic!("a result is an object");
    };
    TaskPayload::Completed { result }
}

fn broken() -> TaskPayload {
    TaskPayload::Failed {
        error: read(json!({"code": -32603, "message": "It broke."})),
    }
}

fn needs_tasks() -> ErrorData {
    let data =
        json!({"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}});
    ErrorData::new(
        ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY,
        "this becomes a task",
        Some(data),
    )
}
