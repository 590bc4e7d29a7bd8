//! Sessions on a scripted interpreter: how they live, what they tell, what outlives them.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_forge::{
    config::Config,
    names::Principal,
    service::{DocumentRequest, ExecuteRequest, ExecuteResponse, Service, ServiceError},
    session::SessionError,
    turn::{Observer, Stream},
};
use serde_json::{Value, json};

use tokio::{sync::oneshot, task::JoinHandle};

use crate::fake::{self, FakeEngine};

mod branches;
mod deaths;
mod documents;
mod files;
mod hostile;
mod lifecycle;
mod protocol;
mod python;
pub(crate) mod real;
pub(crate) mod rows;
mod turns;

struct Quiet;
impl Observer for Quiet {
    fn output(&mut self, _: Stream, _: &str) {}
}

/// A service with scripted interpreters, its data below a directory that the test holds.
fn service_in(
    directory: &Path,
    change: impl FnOnce(&mut Config),
) -> (Arc<Service>, Arc<FakeEngine>, python::Control) {
    let (engine, control) = python::engine();
    let service = fake::service(Arc::clone(&engine), directory, |config| {
        config.default_limits.timeout = Duration::from_secs(30);
        change(config);
    });
    (service, engine, control)
}

fn request(session: &str, code: &str) -> ExecuteRequest {
    ExecuteRequest {
        code: code.to_owned(),
        session_id: Some(session.to_owned()),
        ..ExecuteRequest::default()
    }
}

async fn run(service: &Service, session: &str, code: &str) -> ExecuteResponse {
    service
        .execute(request(session, code), &mut Quiet)
        .await
        .unwrap()
}

async fn refused(service: &Service, request: ExecuteRequest) -> ServiceError {
    service.execute(request, &mut Quiet).await.unwrap_err()
}

/// Begins a turn, and waits until its code has said something.
async fn begin(
    service: &Arc<Service>,
    request: ExecuteRequest,
) -> JoinHandle<Result<ExecuteResponse, ServiceError>> {
    let (said, heard) = oneshot::channel();
    let service = Arc::clone(service);
    let turn = tokio::spawn(async move {
        let mut observer = FirstWord(Some(said));
        service.execute(request, &mut observer).await
    });
    heard.await.expect("it ended without a word");
    turn
}

struct FirstWord(Option<oneshot::Sender<()>>);
impl Observer for FirstWord {
    fn output(&mut self, _: Stream, _: &str) {
        if let Some(said) = self.0.take() {
            said.send(()).ok();
        }
    }
}

/// The state as JSON, once this holds of it: a turn's end is looked at after its answer.
async fn state_when(service: &Service, session: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut changes = service.session_changes();
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let state = service
            .session_state(&Principal::local(), session)
            .await
            .unwrap();
        let state = serde_json::to_value(state).unwrap();
        if holds(&state) {
            return state;
        }
        assert!(Instant::now() < deadline, "never: {state:#}");
        // A change, or a look that came too late for its reader.
        let _ = tokio::time::timeout(Duration::from_millis(100), changes.recv()).await;
    }
}

async fn document(service: &Service, request: Value) -> Result<Value, ServiceError> {
    let Value::Object(parameters) = request else {
        panic!("not an object")
    };
    let request = DocumentRequest::from_json(parameters)?;
    let response = service.document_state(&Principal::local(), request).await?;
    Ok(serde_json::to_value(response).unwrap())
}

/// The audit's events of sessions, oldest first.
fn session_events(service: &Service) -> Vec<String> {
    let records = service.audit_operations().unwrap();
    let events = records.iter().rev().filter_map(|record| {
        let event = record["event"].as_str()?;
        event.starts_with("session.").then(|| {
            format!(
                "{event} {} {}",
                record["session_id"].as_str().unwrap(),
                record["generation"]
            )
        })
    });
    events.collect()
}
