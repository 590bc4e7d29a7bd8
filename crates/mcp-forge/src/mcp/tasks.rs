//! Tasks (the extension `io.modelcontextprotocol/tasks`): calls that take long, for clients that would
//! rather ask for the answer than wait for it.
//!
//! A task is an execution of the service: its name is the execution's, and REST finds it, too. A client
//! that declares the extension gets a task for a call that is not done after a moment, or that needs an
//! approval. Until then the call is one as any other, and ends with the client.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolResponse, CallToolResult, CreateTaskResult, DetailedTask, ElicitResult,
        InputRequest, InputResponses, JsonObject, ProtocolVersion, Task, TaskPayload, TaskStatus,
    },
    service::RequestContext,
};
use serde_json::Value;

use super::{
    Client, approval,
    environments::{self, Work},
    progress, render,
};
use crate::{
    identity::Scope,
    service::{ExecuteRequest, Execution, How, REMEMBERED, ServiceError, Standing},
    telemetry::TraceContext,
    text::{clipped, printable},
    turn::Outcome,
};

/// How long a call may take before it becomes a task.
const GRACE: Duration = Duration::from_secs(2);

/// How often a client should ask.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Whether the client can have tasks. Before 2026-07-28 an answer had one shape only.
pub(super) fn are_wanted(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
        && context
            .client_capabilities()
            .is_some_and(|declared| declared.supports_tasks())
}

impl Client {
    /// Runs code; the answer is a task if it takes long.
    pub(super) async fn execute_or_task(
        &self,
        arguments: JsonObject,
        trace: Option<TraceContext>,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResponse {
        let begun = ExecuteRequest::from_json(arguments).and_then(|request| {
            let request = ExecuteRequest { trace, ..request };
            let (execution, kept) = Execution::new(&self.service, &self.principal)?;
            let work = Arc::clone(&execution).run(Arc::clone(&self.service), request, kept);
            self.service.executions().spawn(&execution, work);
            Ok(execution)
        });
        self.answer_begun(begun, context).await
    }

    /// Builds; the answer is a task if it takes long or has a question.
    pub(super) async fn build_or_task(
        &self,
        name: &str,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResponse {
        let can_ask = context
            .client_capabilities()
            .is_some_and(|declared| approval::has_forms(&declared));
        let may_ask = can_ask && self.may(Scope::Admin, context);
        let begun = Work::of(name, arguments).and_then(|work| {
            let (execution, kept) = Execution::new(&self.service, &self.principal)?;
            let owned = (Arc::clone(&self.service), self.principal.clone());
            let heard = (Arc::clone(&execution), kept);
            let work = environments::build_as(heard, owned, work, may_ask);
            self.service.executions().spawn(&execution, work);
            Ok(execution)
        });
        self.answer_begun(begun, context).await
    }

    async fn answer_begun(
        &self,
        begun: Result<Arc<Execution>, ServiceError>,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResponse {
        let answered = match begun {
            Ok(execution) => self.answer_or_task(execution, context).await,
            Err(error) => Some(self.refuse(&error).into()),
        };
        answered.unwrap_or_else(|| render::refuse(&"the call was cancelled").into())
    }

    /// The answer to a call whose work has begun: what came of it, if that is known soon, else a task.
    /// `None` when nobody waits for it any more; then it is ended.
    async fn answer_or_task(
        &self,
        execution: Arc<Execution>,
        context: &RequestContext<RoleServer>,
    ) -> Option<CallToolResponse> {
        let mut unpromised = Unpromised(Some(Arc::clone(&execution)));
        let decided = Box::pin(self.becomes_task(&execution));
        let told = async {
            match context.meta.get_progress_token() {
                Some(token) => {
                    progress::report(&context.peer, token, execution.newest(), decided).await
                }
                None => decided.await,
            }
        };
        let is_task = tokio::select! {
            is_task = told => is_task,
            () = context.ct.cancelled() => return None,
        };
        unpromised.0 = None;
        if is_task {
            let task = described(&execution, TaskStatus::Working);
            return Some(CreateTaskResult::new(task).into());
        }
        let how = execution.take()?;
        Some(match how {
            How::Ran(response) => render::render(*response).into(),
            How::Built(built) => environments::built_result(&built).into(),
            How::Refused(error) => self.refuse_quietly(&error).into(),
            How::Cancelled => render::refuse(&"the call was cancelled").into(),
        })
    }

    /// Waits until a call has ended, or has become a task.
    async fn becomes_task(&self, execution: &Arc<Execution>) -> bool {
        let _ = tokio::time::timeout(GRACE, execution.needs_attention()).await;
        if execution.has_ended() {
            return false;
        }
        execution.promise();
        if self.service.executions().keep(execution) {
            return true;
        }
        // No room for a further task: the call is answered as it would be without the extension.
        execution.stop_asking();
        execution.ended().await;
        false
    }

    /// A task as it is now.
    pub(super) fn task(
        &self,
        id: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<DetailedTask, ErrorData> {
        let execution = self.find_task(id)?;
        let can_ask = context
            .client_capabilities()
            .is_some_and(|declared| approval::has_forms(&declared));
        let payload = execution.look(|standing, _| self.payload(&execution, standing, can_ask));
        let mut task = described(&execution, payload.status());
        if let Some(said) = said(&execution, &payload) {
            task = task.with_status_message(said);
        }
        Ok(DetailedTask::new(task, payload))
    }

    /// Passes answers on to what asked. Those to questions that are not open are passed over.
    pub(super) fn answer_task(
        &self,
        id: &str,
        answers: &InputResponses,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let execution = self.find_task(id)?;
        if !self.may(Scope::Admin, context) {
            let message =
                "Approving packages needs a token with the scope `admin`; cancel the task instead.";
            return Err(ErrorData::invalid_params(message, None));
        }
        for (key, answer) in answers {
            let answer = serde_json::from_value::<ElicitResult>(answer.clone());
            execution.answer(key, answer.is_ok_and(|answer| approval::is_yes(&answer)));
        }
        Ok(())
    }

    /// Ends a task, if it has not ended yet.
    pub(super) async fn end_task(&self, id: &str) -> Result<(), ErrorData> {
        self.find_task(id)?.cancel().await;
        Ok(())
    }

    /// The client's task. Somebody else's is as if it were not there.
    fn find_task(&self, id: &str) -> Result<Arc<Execution>, ErrorData> {
        let found = self.service.executions().get(&self.principal, id);
        found.ok_or_else(|| {
            let message = format!(
                "There is no task `{}`. Tasks are remembered for an hour after their end, and gone with the server.",
                clipped(id)
            );
            ErrorData::invalid_params(message, None)
        })
    }

    fn payload(&self, execution: &Execution, standing: Standing<'_>, can_ask: bool) -> TaskPayload {
        let how = match standing {
            Standing::Ended(how) => how,
            Standing::Asking(question) if can_ask => {
                let request = approval::form(&question.environment, &question.packages);
                let request = InputRequest::Elicitation(request);
                let input_requests = BTreeMap::from([(question.key.clone(), request)]);
                return TaskPayload::InputRequired { input_requests };
            }
            Standing::Asking(_) | Standing::Running => return TaskPayload::Working,
        };
        execution.seen();
        let result = match how {
            How::Cancelled => return TaskPayload::Cancelled,
            // A session's turn, which tells how far it came.
            How::Ran(response)
                if execution.is_cancelled() && response.outcome == Outcome::Cancelled.name() =>
            {
                return TaskPayload::Cancelled;
            }
            How::Ran(response) => render::render((**response).clone()),
            How::Built(built) => environments::built_result(built),
            How::Refused(error) => self.refuse_quietly(error),
        };
        completed(&result)
    }
}

fn completed(result: &CallToolResult) -> TaskPayload {
    match serde_json::to_value(result) {
        Ok(Value::Object(result)) => TaskPayload::Completed { result },
        // Results are objects; this one could not be written.
        _ => TaskPayload::Failed {
            error: JsonObject::from_iter([
                ("code".to_owned(), (-32603).into()),
                (
                    "message".to_owned(),
                    "the result could not be written".into(),
                ),
            ]),
        },
    }
}

/// What a task is for its client, whatever came of it. While it runs it is kept for an hour from now.
fn described(execution: &Execution, status: TaskStatus) -> Task {
    let (begun, changed) = (
        execution.started_at,
        execution.look(|_, changed_at| changed_at),
    );
    let until = if status.is_terminal() {
        changed
    } else {
        jiff::Timestamp::now()
    };
    let lived = u64::try_from(until.duration_since(begun).as_millis()).unwrap_or(0);
    let kept = u64::try_from(REMEMBERED.as_millis()).unwrap_or(u64::MAX);
    let ask_every = u64::try_from(ASK_EVERY.as_millis()).unwrap_or(u64::MAX);
    Task::new(
        &*execution.id,
        status,
        begun.to_string(),
        changed.to_string(),
    )
    .with_ttl_ms(lived.saturating_add(kept))
    .with_poll_interval_ms(ask_every)
}

fn said(execution: &Execution, payload: &TaskPayload) -> Option<String> {
    let newest = execution.newest();
    let newest = newest.borrow();
    match payload {
        TaskPayload::Working | TaskPayload::InputRequired { .. } if !newest.is_empty() => {
            Some(printable(newest.as_str()))
        }
        _ => None,
    }
}

/// A call that nobody was promised a task for: it ends when nobody waits for it any more.
struct Unpromised(Option<Arc<Execution>>);

impl Drop for Unpromised {
    fn drop(&mut self) {
        if let Some(execution) = self.0.take() {
            execution.begin_cancel();
        }
    }
}
