//! Runs one case on a service, and gives what came back as lines.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_forge::{
    names::Principal,
    service::{
        DocumentRequest, ExecuteRequest, ExecuteResponse, LimitsRequest, Service, ServiceError,
    },
    turn::{Observer, Stream},
};
use serde_json::Value;
use tokio::sync::{broadcast::error::RecvError, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    case::{Case, Step, Stop, Turn, dedented},
    show,
};

/// Far above what any case takes: one that hangs is told as such.
const MOST: Duration = Duration::from_mins(3);

/// What came of a case.
pub(crate) struct Ran {
    /// All that came back, and `---` between the answers to the steps.
    pub(crate) lines: Vec<String>,
    /// Its executions, by which sandboxes are named.
    pub(crate) executions: Vec<String>,
}

/// Runs all steps of a case.
pub(crate) async fn run(service: Arc<Service>, number: usize, case: &'static Case) -> Ran {
    let running = Running {
        service,
        prefix: format!("contract{number}-"),
        executions: Mutex::default(),
    };
    let all = async {
        let mut lines = Vec::new();
        for (index, step) in case.steps.iter().enumerate() {
            if index > 0 {
                lines.push("---".to_owned());
            }
            lines.extend(running.step(step).await);
        }
        lines
    };
    let lines = tokio::time::timeout(MOST, all).await;
    running.forget(case).await;
    Ran {
        lines: lines.unwrap_or_else(|_| vec![format!("hung for {} s", MOST.as_secs())]),
        executions: running.executions.into_inner().unwrap(),
    }
}

struct Running {
    service: Arc<Service>,
    /// Before the names of the case's sessions.
    prefix: String,
    executions: Mutex<Vec<String>>,
}

impl Running {
    async fn step(&self, step: &Step) -> Vec<String> {
        let me = Principal::local();
        match *step {
            Step::Run(turn) => self.turn(&turn).await,
            Step::Document {
                session,
                variables,
                note,
            } => {
                let request = DocumentRequest {
                    session_id: self.full(session),
                    variables: owned(variables),
                    note: Some(note.to_owned()),
                    clear: None,
                };
                let answer = self.service.document_state(&me, request).await;
                self.told(answer.map(|answer| format!("documented {}", answer.documented_count)))
            }
            Step::State { session, members } => self.state(session, members).await,
            Step::File { session, path } => {
                let session = self.full(session);
                let read = self.service.session_file(&me, &session, path).await;
                let read = read.map(|file| {
                    let content = String::from_utf8_lossy(&file.bytes).into_owned();
                    format!("content {}", show::text(&content))
                });
                self.told(read)
            }
            Step::Delete(session) => {
                let deleted = self.service.delete_session(&me, &self.full(session)).await;
                self.told(deleted.map(|()| "deleted".to_owned()))
            }
            Step::Fork { from, to } => {
                let (from, to) = (self.full(from), self.full(to));
                let forked = self.service.fork_session(&me, &from, Some(&to)).await;
                self.told(forked.map(|_| "forked".to_owned()))
            }
        }
    }

    async fn turn(&self, turn: &Turn) -> Vec<String> {
        let request = self.request(turn);
        let (said, heard) = oneshot::channel();
        let interrupt = CancellationToken::new();
        let token = interrupt.clone();
        let service = Arc::clone(&self.service);
        let running = tokio::spawn(async move {
            let mut observer = FirstWord(Some(said));
            let interruptible = (&mut observer as &mut dyn Observer, token);
            let me = Principal::local();
            service
                .execute_interruptible(&me, request, interruptible)
                .await
        });
        if turn.stop != Stop::Never && heard.await.is_ok() {
            if turn.stop == Stop::Drop {
                running.abort();
            }
            interrupt.cancel();
        }
        match running.await {
            Ok(answer) => self.answer(&answer),
            Err(ended) if ended.is_cancelled() => vec!["dropped".to_owned()],
            Err(panicked) => vec![format!("the server panicked: {panicked}")],
        }
    }

    fn request(&self, turn: &Turn) -> ExecuteRequest {
        let limits = LimitsRequest {
            memory: turn.memory.map(str::to_owned),
            cpu_quota: turn.cpu_quota,
            pids: turn.pids,
            storage: turn.storage.map(str::to_owned),
        };
        ExecuteRequest {
            code: dedented(turn.code),
            mcp_tools: Some(turn.tools.iter().map(|&name| name.to_owned()).collect()),
            session_id: turn.session.map(|session| self.full(session)),
            timeout: turn.timeout,
            limits: (limits != LimitsRequest::default()).then_some(limits),
            ..ExecuteRequest::default()
        }
    }

    /// Members of a session's state, once the first of them is there: it is looked at after a turn.
    async fn state(&self, session: &str, members: &[&str]) -> Vec<String> {
        let mut changes = self.service.session_changes();
        loop {
            let state = self
                .service
                .session_state(&Principal::local(), &self.full(session))
                .await;
            let state = match state {
                Ok(state) => serde_json::to_value(state).unwrap(),
                Err(error) => return self.answer(&Err(error)),
            };
            let is_there = |member: &&&str| state.pointer(member).is_some_and(|one| !one.is_null());
            if members.first().is_none_or(|member| is_there(&member)) {
                let lines = members.iter().map(|member| {
                    let found = state.pointer(member).unwrap_or(&Value::Null);
                    format!("{member} {}", show::json(found))
                });
                return lines.collect();
            }
            // To have missed some is news too.
            match changes.recv().await {
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => panic!("nobody tells of changes any more"),
            }
        }
    }

    fn told(&self, answer: Result<String, ServiceError>) -> Vec<String> {
        match answer {
            Ok(line) => vec![line],
            Err(error) => self.answer(&Err(error)),
        }
    }

    fn answer(&self, answer: &Result<ExecuteResponse, ServiceError>) -> Vec<String> {
        if let Ok(response) = answer {
            let execution = response.execution_id.clone();
            self.executions.lock().unwrap().push(execution);
        }
        show::answer(answer, &|text| text.replace(&self.prefix, ""))
    }

    fn full(&self, session: &str) -> String {
        format!("{}{session}", self.prefix)
    }

    /// Ends the case's sessions, so that other cases have their room.
    async fn forget(&self, case: &Case) {
        let sessions = case.steps.iter().filter_map(|step| match step {
            Step::Run(turn) => turn.session,
            Step::Fork { to, .. } => Some(to),
            _ => None,
        });
        for session in sessions {
            // Gone already, or deleted by the case: nothing to do.
            let _ = self
                .service
                .delete_session(&Principal::local(), &self.full(session))
                .await;
        }
    }
}

fn owned(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = pairs
        .iter()
        .map(|&(name, text)| (name.to_owned(), text.to_owned()));
    owned.collect()
}

/// Tells when the code says something.
struct FirstWord(Option<oneshot::Sender<()>>);

impl Observer for FirstWord {
    fn output(&mut self, _: Stream, _: &str) {
        if let Some(said) = self.0.take() {
            said.send(()).ok();
        }
    }
}
