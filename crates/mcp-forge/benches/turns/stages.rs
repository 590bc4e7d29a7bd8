//! Where the time of a turn goes: each stage of `1+1` by itself, in the order of a request.

use std::time::{Duration, Instant};

use mcp_forge::{
    audit::Audit,
    engine::{Engine, Purpose, SandboxSpec, native::Native},
    runner::wire::{ToolFailure, ToolFailureKind, ToolValue},
    turn::{self, Observer, Stream, Tools, Turn},
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use crate::{Failure, Setup};

/// Time between two turns: the pool is full again, and the machine is as idle as for a person.
const PAUSE: Duration = Duration::from_millis(10);

/// Says when it runs, by the clock that both sides share, and how many pages were copied by then.
const CODE: &str = "\
import time
now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
faults = int(open('/proc/self/stat').read().rsplit(')')[1].split()[7])
[now // 1000000000, now % 1000000000, faults]";

struct Deaf;

impl Observer for Deaf {
    fn output(&mut self, _: Stream, _: &str) {}
}

struct NoTools;

#[async_trait::async_trait]
impl Tools for NoTools {
    async fn call(&self, _: &str, _: Map<String, Value>) -> Result<ToolValue, ToolFailure> {
        Err(ToolFailure {
            kind: ToolFailureKind::NotGranted,
            message: "no tools here".to_owned(),
        })
    }
}

/// What was measured, each in microseconds, one entry a turn.
#[derive(Default)]
struct Stages {
    audit: Vec<f64>,
    launch: Vec<f64>,
    to_code: Vec<f64>,
    to_report: Vec<f64>,
    end: Vec<f64>,
    faults: Vec<f64>,
}

/// Runs so many turns, and times their stages.
pub(crate) async fn measure(setup: &Setup, request: &Value) -> Result<Value, Failure> {
    let mut config = setup.config(8)?;
    config.data_dir = config.data_dir.join("stages");
    config.create_data_dir()?;
    let audit = Audit::open(&config.data_dir.join("audit"))?;
    let engine = Native::with_jail(&config, setup.binary.clone());
    engine.prepare().await?;
    let mut stages = Stages::default();
    for number in 0..request["count"].as_u64().unwrap_or(200) {
        tokio::time::sleep(PAUSE).await;
        let started = Instant::now();
        let record = Map::from_iter([("execution_id".to_owned(), json!(number.to_string()))]);
        audit
            .begin("execution", record)?
            .finish(Map::from_iter([("success".to_owned(), json!(true))]))?;
        stages.audit.push(micros(started));
        one(&engine, &config, number, &mut stages).await?;
    }
    Ok(json!({
        "stages": [
            ["two records in the audit log", median(stages.audit)],
            ["a sandbox from the pool", median(stages.launch)],
            ["code sent, until it runs", median(stages.to_code)],
            ["from there until its report is complete", median(stages.to_report)],
            ["the sandbox's end, after the answer", median(stages.end)],
        ],
        "faults": median(stages.faults),
    }))
}

async fn one(
    engine: &Native,
    config: &mcp_forge::config::Config,
    number: u64,
    stages: &mut Stages,
) -> Result<(), Failure> {
    let limits = &config.default_limits;
    let spec = SandboxSpec {
        id: format!("stage-{}-{number}", std::process::id()),
        limits: limits.clone(),
        purpose: Purpose::default(),
        environment: None,
    };
    let started = Instant::now();
    let sandbox = engine.launch(&spec).await?;
    stages.launch.push(micros(started));
    let turn = Turn {
        execution_id: None,
        code: CODE,
        stubs: Vec::new(),
        tools: &NoTools,
        observer: &mut Deaf,
        limits,
        caps: config.caps,
        max_calls: 1,
    };
    let sent = now();
    let (report, guard) = turn::run(sandbox, turn).await;
    let reported = now();
    let value = |place: usize| report.result[place].as_f64().ok_or("the code gave no time");
    let ran = value(0)? * 1e6 + value(1)? / 1e3;
    stages.to_code.push(ran - sent);
    stages.to_report.push(reported - ran);
    stages.faults.push(value(2)?);
    let started = Instant::now();
    guard
        .ok_or("the turn was not done")?
        .end(Duration::ZERO)
        .await;
    stages.end.push(micros(started));
    Ok(())
}

fn now() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds).as_secs_f64() * 1e6
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
