//! How many sandboxes can live at once, what each takes, and what the next one feels of it.

use std::{
    collections::HashSet,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_forge::{
    service::{ExecuteRequest, Service},
    turn::{Observer, Stream},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};

use crate::{Failure, Setup, turn};

/// Sandboxes that start at the same time.
const STARTING: u32 = 8;

/// Memory that stays free.
pub(crate) const SPARE_KIB: u64 = 3 << 20;

/// Turns that are timed beside the living sandboxes.
pub(crate) const PROBES: usize = 25;

/// Says that it lives, and goes on living.
const LIVE: &str = "print('alive', flush=True)\nimport time\ntime.sleep(3600)";

/// Frees its place among the starting as soon as its sandbox says something.
struct Started(Option<OwnedSemaphorePermit>);

impl Observer for Started {
    fn output(&mut self, _: Stream, _: &str) {
        self.0 = None;
    }
}

/// Starts `count` sandboxes, fewer if memory or time end before; times turns beside one and beside all.
pub(crate) async fn many(setup: &Setup, request: &Value) -> Result<Value, Failure> {
    raise_file_limit()?;
    let count = usize::try_from(request["count"].as_u64().unwrap_or(1))?;
    let patience = Duration::from_secs(request["seconds"].as_u64().unwrap_or(60));
    let (service, _) = setup.service(count + usize::try_from(STARTING)?)?;
    turn::timed(&service, "1+1").await?;
    let free_before = available_kib()?;
    let mut crowd = Crowd::default();

    crowd.grow(&service, 1, patience).await?;
    let beside_one = probe(&service).await?;
    let started = Instant::now();
    let stopped = crowd.grow(&service, count, patience).await?;
    let start_seconds = started.elapsed().as_secs_f64();
    let beside_all = probe(&service).await?;

    let alive = crowd.tasks.len();
    let taken = free_before.saturating_sub(available_kib()?);
    let answer = json!({
        "asked": count,
        "alive": alive,
        "stopped": stopped,
        "start_seconds": start_seconds,
        "beside_one_us": beside_one,
        "beside_all_us": beside_all,
        "memory_kib_each": taken / alive as u64,
        "pss_kib_each": descendants_pss_kib()? / alive as u64,
    });
    crowd.tasks.shutdown().await;
    service.shutdown().await;
    Ok(answer)
}

/// Sandboxes that live.
#[derive(Default)]
struct Crowd {
    tasks: JoinSet<Result<(), String>>,
}

impl Crowd {
    /// Grows to `count`; gives back why it had to stop before, if it had to.
    async fn grow(
        &mut self,
        service: &Arc<Service>,
        count: usize,
        patience: Duration,
    ) -> Result<Option<String>, Failure> {
        let deadline = Instant::now() + patience;
        let starting = Arc::new(Semaphore::new(usize::try_from(STARTING)?));
        let mut stopped = None;
        while self.tasks.len() < count && stopped.is_none() {
            let place = Arc::clone(&starting).acquire_owned().await?;
            stopped = self.must_stop(deadline)?;
            if stopped.is_none() {
                self.tasks.spawn(live(Arc::clone(service), place));
            }
        }
        // All have started once all places are free again.
        let _all = starting.acquire_many(STARTING).await?;
        Ok(stopped.or(self.must_stop(deadline + patience)?))
    }

    fn must_stop(&mut self, deadline: Instant) -> Result<Option<String>, Failure> {
        if let Some(ended) = self.tasks.try_join_next() {
            return Ok(Some(format!("one did not start: {:?}", ended?)));
        }
        if available_kib()? < SPARE_KIB {
            return Ok(Some("memory is nearly full".to_owned()));
        }
        let late = Instant::now() > deadline;
        Ok(late.then(|| "time was up".to_owned()))
    }
}

async fn live(service: Arc<Service>, place: OwnedSemaphorePermit) -> Result<(), String> {
    let request = ExecuteRequest {
        code: LIVE.to_owned(),
        ..ExecuteRequest::default()
    };
    let mut observer = Started(Some(place));
    let ended = service.execute(request, &mut observer).await;
    Err(ended.map_or_else(|error| error.to_string(), |response| response.outcome))
}

async fn probe(service: &Service) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::with_capacity(PROBES);
    for _ in 0..PROBES {
        times.push(turn::timed(service, "1+1").await?);
    }
    Ok(times)
}

/// A living sandbox needs some descriptors of this process.
pub(crate) fn raise_file_limit() -> Result<(), Failure> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )?)
}

pub(crate) fn available_kib() -> Result<u64, Failure> {
    field_kib(&fs::read_to_string("/proc/meminfo")?, "MemAvailable:")
        .ok_or_else(|| "no MemAvailable in /proc/meminfo".into())
}

fn field_kib(text: &str, field: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(field)?
            .strip_suffix("kB")?
            .trim()
            .parse()
            .ok()
    })
}

/// Proportional memory of everything that this process started.
pub(crate) fn descendants_pss_kib() -> Result<u64, Failure> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // Those that end while we look are none of those that live.
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
            continue;
        };
        let parent = status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok());
        parents.push((pid, parent.unwrap_or_default()));
    }
    let mut family = HashSet::from([std::process::id()]);
    let mut size = 0;
    while size != family.len() {
        size = family.len();
        let children = parents.iter().filter(|(_, parent)| family.contains(parent));
        let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
        family.extend(children);
    }
    family.remove(&std::process::id());
    let pss = family.iter().filter_map(|pid| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        field_kib(&rollup, "Pss:")
    });
    Ok(pss.sum())
}
