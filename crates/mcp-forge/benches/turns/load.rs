//! Many turns at once: as fast as a number of clients can, or at a given rate.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_forge::service::Service;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{Failure, turn};

/// Sandboxes at once. Four times as many may wait, so that 64 clients find room.
pub(crate) const MAX_CONCURRENT: usize = 16;

/// Turns after which memory is first looked at.
const FIRST_LOOK: u64 = 1000;

/// This process's memory over its turns under load.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    turns: u64,
    after_first: Option<u64>,
}

impl Memory {
    fn add(&mut self, turns: u64) -> Result<u64, Failure> {
        self.turns += turns;
        let now = resident_kib()?;
        if self.turns >= FIRST_LOOK && self.after_first.is_none() {
            self.after_first = Some(now);
        }
        Ok(now)
    }
}

/// Each client asks again as soon as it was answered.
pub(crate) async fn closed(
    service: &Arc<Service>,
    code: &str,
    request: &Value,
    memory: &mut Memory,
) -> Result<Value, Failure> {
    let clients = request["clients"].as_u64().unwrap_or(1);
    let started = Instant::now();
    let until = started + seconds(request);
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let (service, code) = (Arc::clone(service), code.to_owned());
        tasks.spawn(async move {
            let mut results = Vec::new();
            while Instant::now() < until {
                results.push(turn::timed(&service, &code).await);
            }
            results
        });
    }
    let results: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    let elapsed = started.elapsed();
    let resident = memory.add(results.len() as u64)?;
    let mut summary = summary(&results, elapsed)?;
    summary["turns"] = json!(memory.turns);
    summary["resident_kib"] = json!(resident);
    summary["resident_kib_after_first"] = json!(memory.after_first);
    Ok(summary)
}

/// Turns begin at even intervals, whether earlier ones have ended or not.
pub(crate) async fn paced(
    service: &Arc<Service>,
    code: &str,
    request: &Value,
) -> Result<Value, Failure> {
    let rate = request["rate"]
        .as_f64()
        .unwrap_or(1.0)
        .clamp(0.1, 100_000.0);
    let started = Instant::now();
    let until = started + seconds(request);
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
    let mut tasks = JoinSet::new();
    while Instant::now() < until {
        ticks.tick().await;
        let (service, code) = (Arc::clone(service), code.to_owned());
        tasks.spawn(async move { turn::timed(&service, &code).await });
    }
    let results = tasks.join_all().await;
    summary(&results, started.elapsed())
}

fn seconds(request: &Value) -> Duration {
    Duration::from_secs(request["seconds"].as_u64().unwrap_or(1).min(600))
}

fn summary(results: &[Result<f64, Failure>], elapsed: Duration) -> Result<Value, Failure> {
    let times: Vec<f64> = results
        .iter()
        .filter_map(|r| r.as_ref().ok())
        .copied()
        .collect();
    if times.is_empty() {
        let first = results.iter().find_map(|result| result.as_ref().err());
        return Err(format!("no turn succeeded: {first:?}").into());
    }
    Ok(json!({
        "times_us": times,
        "failed": results.len() - times.len(),
        "seconds": elapsed.as_secs_f64(),
    }))
}

fn resident_kib() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .strip_suffix("kB")?
                .trim()
                .parse()
                .ok()
        })
        .ok_or_else(|| "no VmRSS in /proc/self/status".into())
}
