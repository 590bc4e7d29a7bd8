//! Running code: waiting for the answer, or asking for it later.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Path, RawQuery, State, rejection::PathRejection},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header::LOCATION};
use serde_json::{Map, Value};

use super::{Answer, Api, json, keys::Replay, refusal, views::ExecutionView};
use crate::{
    identity::{Caller, Scope},
    service::{ExecuteRequest, Execution, MAX_RUNNING},
    telemetry::TraceContext,
    turn::{Observer, Stream},
    web::{Problem, check_json, is_json, needs, read_body},
};

/// Longest `Idempotency-Key`.
const MAX_KEY_BYTES: usize = 255;

/// `POST /api/v1/execute`
pub(super) async fn execute(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
    request: Request<Body>,
) -> Answer {
    needs(&caller, Scope::Run)?;
    let waits = wait(query.as_deref())?;
    let key = idempotency_key(request.headers())?;
    let trace = TraceContext::from_headers(request.headers());
    let (parameters, body) = read_object(&api, request).await?;
    let asked = ExecuteRequest::from_json(parameters).map_err(|error| refusal::problem(&error))?;
    let asked = ExecuteRequest { trace, ..asked };
    let Some(key) = key else {
        return run(&api, &caller, (asked, waits)).await;
    };
    let marked = [&[u8::from(waits)][..], &body].concat();
    let (its_api, its_caller) = (api.clone(), caller.clone());
    let work = Box::pin(async move { run(&its_api, &its_caller, (asked, waits)).await });
    once(&api, &caller, (&key, &marked), work).await
}

/// Does a request's work once for its key, on its own: a client that goes away and comes back gets the
/// answer of the one run. `marked` tells this request from every other.
pub(super) async fn once(
    api: &Api,
    caller: &Caller,
    (key, marked): (&str, &[u8]),
    work: impl Future<Output = Answer> + Send + 'static,
) -> Answer {
    let keyed = (&caller.principal, key);
    match api.keys.once(keyed, marked, (work, &api.background)).await {
        Replay::Answer(response) => Ok(response),
        Replay::Other => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "The Idempotency-Key was used for another request; take a new one for each request.",
        )),
        Replay::Ended => Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "The server ends; the request was ended with it.",
        )),
        Replay::Full => Err(Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "Too many requests with an Idempotency-Key run at once; wait for their answers.",
        )
        .again_in(1)),
    }
}

/// `GET /api/v1/executions/{id}`
pub(super) async fn show(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Answer {
    let execution = find(&api, &caller, id)?;
    Ok(ExecutionView::of(&execution, |view| {
        json(StatusCode::OK, view)
    }))
}

/// `DELETE /api/v1/executions/{id}`
pub(super) async fn cancel(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Answer {
    let execution = find(&api, &caller, id)?;
    execution.cancel().await;
    Ok(ExecutionView::of(&execution, |view| {
        json(StatusCode::OK, view)
    }))
}

/// The caller's execution of that name. Somebody else's is as if it were not there.
pub(super) fn find(
    api: &Api,
    caller: &Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<Arc<Execution>, Problem> {
    needs(caller, Scope::Run)?;
    let Path(id) = id.map_err(|_| Problem::bad_path())?;
    let found = api.service.executions().get(&caller.principal, &id);
    found.ok_or_else(|| {
        let detail = "There is no such execution. Those of `wait=false` are remembered for an hour after their end.";
        Problem::new(StatusCode::NOT_FOUND, detail)
    })
}

async fn run(api: &Api, caller: &Caller, (request, waits): (ExecuteRequest, bool)) -> Answer {
    // What is refused at once is refused here, with a record of who asked.
    if waits || !api.service.accepts(&caller.principal, &request) {
        let done = api
            .service
            .execute_for(&caller.principal, request, &mut Unheard)
            .await;
        return match done {
            Ok(response) => Ok(json(StatusCode::OK, &response)),
            Err(error) => Err(refusal::problem(&error)),
        };
    }
    let execution = start(api, caller, request)?;
    let mut response = ExecutionView::of(&execution, |view| json(StatusCode::ACCEPTED, view));
    let address = format!("/api/v1/executions/{}", execution.id);
    if let Ok(address) = HeaderValue::from_str(&address) {
        response.headers_mut().insert(LOCATION, address);
    }
    Ok(response)
}

/// Starts an execution that nobody waits for.
fn start(api: &Api, caller: &Caller, request: ExecuteRequest) -> Result<Arc<Execution>, Problem> {
    let (execution, kept) = Execution::new(&api.service, &caller.principal)
        .map_err(|error| refusal::problem(&error))?;
    let executions = api.service.executions();
    if !executions.keep(&execution) {
        let detail = format!(
            "{MAX_RUNNING} executions run or wait already; wait for their ends, or cancel some."
        );
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).again_in(1));
    }
    let service = Arc::clone(&api.service);
    executions.spawn(
        &execution,
        Arc::clone(&execution).run(service, request, kept),
    );
    Ok(execution)
}

/// A request's parameters, and its body as it came.
pub(super) async fn read_object(
    api: &Api,
    request: Request<Body>,
) -> Result<(Map<String, Value>, Bytes), Problem> {
    let (parts, body) = request.into_parts();
    if !is_json(&parts.headers) {
        let detail = "The body is JSON: say so with Content-Type: application/json.";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let body = read_body(body, api.service.config().server.max_body)
        .await
        .map_err(|error| error.problem())?;
    let bad = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
    check_json(&body).map_err(|error| bad(error.to_string()))?;
    let parameters = serde_json::from_slice(&body)
        .map_err(|_| bad("The body is an object, for example {\"code\": \"1 + 1\"}.".to_owned()))?;
    Ok((parameters, body))
}

/// The one parameter of the address.
fn wait(query: Option<&str>) -> Result<bool, Problem> {
    match query {
        None | Some("" | "wait=true") => Ok(true),
        Some("wait=false") => Ok(false),
        Some(_) => {
            let detail = "The address takes `wait=true` or `wait=false`, and nothing else.";
            Err(Problem::new(StatusCode::BAD_REQUEST, detail))
        }
    }
}

/// The key that a request has, if it has one.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else {
        return Ok(None);
    };
    let text = key
        .to_str()
        .ok()
        .filter(|text| keys.next().is_none() && (1..=MAX_KEY_BYTES).contains(&text.len()));
    text.map(|text| Some(text.to_owned())).ok_or_else(|| {
        let detail = format!(
            "An Idempotency-Key is one header with 1 to {MAX_KEY_BYTES} visible characters."
        );
        Problem::new(StatusCode::BAD_REQUEST, detail)
    })
}

/// Whoever waits for the answer hears nothing before it.
pub(super) struct Unheard;

impl Observer for Unheard {
    fn output(&mut self, _: Stream, _: &str) {}
}
