//! Sessions: their start, turns, branches, what they say of themselves, and many at once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_forge::{
    names::Principal,
    service::{ExecuteRequest, ExecuteResponse, Service},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    Failure, Setup,
    alive::{PROBES, SPARE_KIB, available_kib, descendants_pss_kib, raise_file_limit},
    turn::Deaf,
};

/// Sessions that may live at once.
pub(crate) const MOST: usize = 256;

/// Sessions that start at the same time: importing pandas is work for a processor.
const STARTING: usize = 4;

/// Time for what ended or began to settle before memory is looked at.
const SETTLE: Duration = Duration::from_secs(2);

/// The sessions of the workloads.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// Numbers those that are new for each sample.
    next: u64,
    /// Workloads whose session has what it is to have.
    prepared: Vec<String>,
}

impl Live {
    /// One sample of a workload: how long it took, what it gave, how much it printed.
    pub(crate) async fn measured(
        &mut self,
        service: &Service,
        request: &Value,
    ) -> Result<Value, Failure> {
        let workload = request["workload"].as_str().ok_or("no workload")?;
        let text = |name: &str| request[name].as_str().ok_or("no code");
        self.next += 1;
        match workload {
            "session-start" => started(service, self.next, text("code")?).await,
            "session-fork" => {
                self.prepare(service, workload, text("body")?).await?;
                branched(service, workload, self.next, text("last")?).await
            }
            "session-look" => {
                self.prepare(service, workload, text("body")?).await?;
                looked_at(service, workload, self.next, text("last")?).await
            }
            _ => {
                let (us, response) = run(service, "live", text("code")?).await?;
                Ok(sample(us, &response))
            }
        }
    }

    async fn prepare(
        &mut self,
        service: &Service,
        session: &str,
        body: &str,
    ) -> Result<(), Failure> {
        if !self.prepared.iter().any(|prepared| prepared == session) {
            run(service, session, body).await?;
            self.prepared.push(session.to_owned());
        }
        Ok(())
    }
}

/// A new session, to its first answer. Its end is not on the clock.
async fn started(service: &Service, number: u64, code: &str) -> Result<Value, Failure> {
    let session = format!("new-{number}");
    let (us, response) = run(service, &session, code).await?;
    delete(service, &session).await?;
    Ok(sample(us, &response))
}

/// A branch, to the moment when it is there. Then it must know what its parent knew.
async fn branched(
    service: &Service,
    parent: &str,
    number: u64,
    last: &str,
) -> Result<Value, Failure> {
    let session = format!("branch-{number}");
    let begun = Instant::now();
    service
        .fork_session(&Principal::local(), parent, Some(&session))
        .await?;
    let us = microseconds(begun);
    let (_, response) = run(service, &session, last).await?;
    delete(service, &session).await?;
    Ok(sample(us, &response))
}

/// All that a session holds, as its resource has it, right after a turn that bound a variable anew.
async fn looked_at(
    service: &Service,
    session: &str,
    number: u64,
    last: &str,
) -> Result<Value, Failure> {
    let code = format!("v0 = {number}\n{last}");
    let (_, response) = run(service, session, &code).await?;
    let begun = Instant::now();
    let state = service.session_state(&Principal::local(), session).await?;
    let text = serde_json::to_string(&state)?;
    let us = microseconds(begun);
    let told: Value = serde_json::from_str(&text)?;
    let variables = told["introspection"].as_object().ok_or("nothing is told")?;
    let described = variables
        .values()
        .filter(|variable| variable["type"].is_string());
    let count = described.count();
    if count != 1000 || variables["v0"]["repr"].as_str() != Some(&number.to_string()) {
        return Err(format!("{count} are described, v0 as {}", variables["v0"]).into());
    }
    Ok(sample(us, &response))
}

/// Starts `count` sessions that have imported pandas, fewer if memory or time end before; times turns
/// in one of them beside none and beside all others.
pub(crate) async fn many(setup: &Setup, request: &Value) -> Result<Value, Failure> {
    raise_file_limit()?;
    let count = usize::try_from(request["count"].as_u64().unwrap_or(1))?.min(MOST);
    let patience = Duration::from_secs(request["seconds"].as_u64().unwrap_or(60));
    // The workloads' own service goes on beside this one, with its sessions: they are not counted.
    let (service, _) = setup.service(STARTING)?;
    run(&service, "crowd-0", PANDAS).await?;
    tokio::time::sleep(SETTLE).await;
    let (free_before, pss_before) = (available_kib()?, descendants_pss_kib()?);
    let beside_one = probe(&service).await?;
    let begun = Instant::now();
    let (started, stopped) = grow(&service, count, begun + patience).await?;
    let start_seconds = begun.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let beside_all = probe(&service).await?;
    let listed = service.list_sessions(&Principal::local()).await?;
    let living = listed
        .iter()
        .filter(|session| session.session_id.starts_with("crowd-") && session.state == "live")
        .count();
    let each = |all: u64| all / u64::try_from(started.max(1)).unwrap_or(1);
    let answer = json!({
        "asked": count,
        "alive": living,
        "stopped": stopped,
        "start_seconds": start_seconds,
        "beside_one_us": beside_one,
        "beside_all_us": beside_all,
        "memory_kib_each": each(free_before.saturating_sub(available_kib()?)),
        "pss_kib_each": each(descendants_pss_kib()?.saturating_sub(pss_before)),
    });
    service.shutdown().await;
    Ok(answer)
}

const PANDAS: &str = "import pandas\nlen(pandas.DataFrame({'a': [1, 2, 3]}))";

/// Starts all but the first; how many, and why no more.
async fn grow(
    service: &Arc<Service>,
    count: usize,
    deadline: Instant,
) -> Result<(usize, Option<String>), Failure> {
    let mut starting = JoinSet::new();
    let mut stopped = None;
    let mut asked = 1;
    let mut started = 0;
    loop {
        while asked < count && starting.len() < STARTING && stopped.is_none() {
            stopped = must_stop(deadline)?;
            if stopped.is_none() {
                let (service, session) = (Arc::clone(service), format!("crowd-{asked}"));
                starting.spawn(async move { run(&service, &session, PANDAS).await });
                asked += 1;
            }
        }
        match starting.join_next().await {
            Some(Ok(Ok(_))) => started += 1,
            Some(Ok(Err(failure))) => stopped = Some(failure.to_string()),
            Some(Err(failure)) => stopped = Some(failure.to_string()),
            None => return Ok((started, stopped)),
        }
    }
}

fn must_stop(deadline: Instant) -> Result<Option<String>, Failure> {
    if available_kib()? < SPARE_KIB {
        return Ok(Some("memory is nearly full".to_owned()));
    }
    Ok((Instant::now() > deadline).then(|| "time was up".to_owned()))
}

async fn probe(service: &Service) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::with_capacity(PROBES);
    for _ in 0..PROBES {
        let (us, response) = run(service, "crowd-0", "1+1").await?;
        if response.result != json!(2) {
            return Err(format!("1+1 gave {}", response.result).into());
        }
        times.push(us);
    }
    Ok(times)
}

/// Runs code in a session: microseconds, and the answer.
async fn run(
    service: &Service,
    session: &str,
    code: &str,
) -> Result<(f64, ExecuteResponse), Failure> {
    let request = ExecuteRequest {
        code: code.to_owned(),
        session_id: Some(session.to_owned()),
        ..ExecuteRequest::default()
    };
    let begun = Instant::now();
    let response = service.execute(request, &mut Deaf).await?;
    let us = microseconds(begun);
    if response.outcome == "session_lost" {
        // Left by an earlier run of the bench in the same data directory: told once.
        return Box::pin(run(service, session, code)).await;
    }
    if !response.success {
        return Err(format!("{}: {:?}", response.outcome, response.error).into());
    }
    Ok((us, response))
}

async fn delete(service: &Service, session: &str) -> Result<(), Failure> {
    Ok(service.delete_session(&Principal::local(), session).await?)
}

fn sample(us: f64, response: &ExecuteResponse) -> Value {
    json!({
        "us": us,
        "result": response.result.to_string(),
        "printed": response.stdout.len(),
    })
}

fn microseconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}
