//! One turn, and one tool call without a turn around it.

use std::{sync::Arc, time::Instant};

use mcp_forge::{
    bridge::Bridge,
    service::{ExecuteRequest, Service},
    turn::{Observer, Stream, Tools as _},
};
use serde_json::{Map, Value, json};

use crate::Failure;

/// Hears nothing.
pub(crate) struct Deaf;

impl Observer for Deaf {
    fn output(&mut self, _: Stream, _: &str) {}
}

/// Runs code, and says how long that took and what it gave.
pub(crate) async fn measured(service: &Service, code: &str, tools: bool) -> Result<Value, Failure> {
    let request = ExecuteRequest {
        code: code.to_owned(),
        mcp_tools: tools.then(|| vec!["bench_echo".to_owned(), "bench_large".to_owned()]),
        ..ExecuteRequest::default()
    };
    let started = Instant::now();
    let response = service.execute(request, &mut Deaf).await?;
    let taken = started.elapsed();
    if !response.success {
        return Err(format!("{}: {:?}", response.outcome, response.error).into());
    }
    Ok(json!({"us": taken.as_secs_f64() * 1e6, "result": response.result.to_string()}))
}

/// Runs code, and says how many microseconds it took.
pub(crate) async fn timed(service: &Service, code: &str) -> Result<f64, Failure> {
    let sample = measured(service, code, false).await?;
    sample["us"].as_f64().ok_or_else(|| "no time".into())
}

/// Calls a tool many times from here: the tool's own time, which no sandbox can beat.
pub(crate) async fn direct(bridge: &Arc<Bridge>, request: &Value) -> Result<Value, Failure> {
    let count = request["count"].as_u64().unwrap_or(1);
    let grant = bridge.grant(&["bench_echo".to_owned()]).await?;
    let arguments: Map<String, Value> = [("text".to_owned(), json!("x"))].into_iter().collect();
    let started = Instant::now();
    for _ in 0..count {
        grant
            .call("bench_echo", arguments.clone())
            .await
            .map_err(|failure| failure.message)?;
    }
    Ok(json!({"us": started.elapsed().as_secs_f64() * 1e6}))
}
