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

/// Clients of the soak, and its turns before memory is first looked at.
const SOAKING: u64 = 8;
const FIRST_LOOK: u64 = 1000;

/// This process's memory after the first thousand turns and after so many. Keeps nothing of them.
pub(crate) async fn soak(
    service: &Arc<Service>,
    code: &str,
    request: &Value,
) -> Result<Value, Failure> {
    let turns = request["turns"]
        .as_u64()
        .unwrap_or(FIRST_LOOK)
        .max(FIRST_LOOK);
    let failed = run(service, code, FIRST_LOOK).await;
    let first = resident_kib()?;
    let failed = failed + run(service, code, turns - FIRST_LOOK).await;
    Ok(json!({"turns": turns, "failed": failed, "first_kib": first, "last_kib": resident_kib()?}))
}

/// Runs so many turns, and counts those that failed.
async fn run(service: &Arc<Service>, code: &str, turns: u64) -> u64 {
    let mut tasks = JoinSet::new();
    for client in 0..SOAKING {
        let (service, code) = (Arc::clone(service), code.to_owned());
        tasks.spawn(async move {
            let mut failed = 0;
            for _ in 0..turns / SOAKING + u64::from(client < turns % SOAKING) {
                failed += u64::from(turn::timed(&service, &code).await.is_err());
            }
            failed
        });
    }
    tasks.join_all().await.into_iter().sum()
}

/// Each client asks again as soon as it was answered.
pub(crate) async fn closed(
    service: &Arc<Service>,
    code: &str,
    request: &Value,
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
    summary(&results, started.elapsed())
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
