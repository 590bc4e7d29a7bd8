//! Takes the samples: contenders in turns, so that a machine that drifts drifts for all of them.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use serde_json::json;

use super::{
    programs::{OneShot, Sampler},
    results::{Alive, Handshakes, Load, Soak, Stages},
    statistics::{Series, percentile},
    workloads::Workload,
};

/// Most samples of one contender at one workload.
const MAX_ROUNDS: u32 = 400;

/// Samples that even a slow contender gives.
const MIN_SAMPLES: f64 = 5.0;

/// A contender that is ready, under its name.
pub(crate) struct Entrant {
    pub(crate) name: &'static str,
    pub(crate) sampler: Box<dyn Sampler>,
}

/// What a workload's rounds gave.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Samples by row.
    pub(crate) rows: BTreeMap<&'static str, Series>,
    /// Why a contender dropped out.
    pub(crate) dropped: Vec<(&'static str, String)>,
}

/// Runs rounds of all contenders for about `budget`, in another order each time: what one leaves
/// behind (caches, work that the kernel put off) must not always fall on the same other one. Slow
/// contenders sit out some of the rounds, so that each has about the same share of the time.
pub(crate) fn rounds(
    entrants: &mut Vec<&mut Entrant>,
    workload: &Workload,
    budget: Duration,
) -> Rounds {
    let mut result = Rounds::default();
    let mut strides = warm_up(entrants, workload, budget, &mut result);
    let started = Instant::now();
    for round in 0..MAX_ROUNDS {
        if started.elapsed() > budget {
            break;
        }
        shuffle(entrants, round);
        entrants.retain_mut(|entrant| {
            let stride = strides.get(entrant.name).copied().unwrap_or(1);
            if round % stride != 0 {
                return true;
            }
            match entrant.sampler.sample(workload) {
                Ok(sample) => {
                    for (row, microseconds) in sample {
                        result.rows.entry(row).or_default().add(round, microseconds);
                    }
                    true
                }
                Err(error) => {
                    result.dropped.push((entrant.name, format!("{error:#}")));
                    strides.remove(entrant.name);
                    false
                }
            }
        });
    }
    result
}

/// Fisher and Yates, with a small generator: the same orders in every run of the bench.
fn shuffle<T>(items: &mut [T], seed: u32) {
    let mut state = u64::from(seed) + 1;
    for last in (1..items.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let high = usize::try_from(state >> 33).unwrap_or_default();
        items.swap(last, high % (last + 1));
    }
}

/// Two runs that do not count; the second says how often each takes part.
fn warm_up(
    entrants: &mut Vec<&mut Entrant>,
    workload: &Workload,
    budget: Duration,
    result: &mut Rounds,
) -> BTreeMap<&'static str, u32> {
    let mut times = BTreeMap::new();
    entrants.retain_mut(|entrant| {
        let mut run = || {
            let started = Instant::now();
            entrant.sampler.sample(workload)?;
            anyhow::Ok(started.elapsed())
        };
        match run().and_then(|_| run()) {
            Ok(taken) => {
                times.insert(entrant.name, taken);
                true
            }
            Err(error) => {
                result.dropped.push((entrant.name, format!("{error:#}")));
                false
            }
        }
    });
    let share = budget.as_secs_f64() / times.len().max(1) as f64;
    times
        .into_iter()
        .map(|(name, taken)| (name, stride(share, taken.as_secs_f64())))
        .collect()
}

/// Takes part in every n-th round. A power of two, so that a slow contender's rounds are also those
/// of every quicker one, and can be compared.
fn stride(share: f64, taken: f64) -> u32 {
    let affordable = (share / taken.max(1e-6)).clamp(MIN_SAMPLES, f64::from(MAX_ROUNDS));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and MAX_ROUNDS"
    )]
    let stride = (f64::from(MAX_ROUNDS) / affordable).round() as u32;
    1 << stride.max(1).ilog2()
}

/// As many fresh runs as `clients` can get done, each asking again as soon as it was answered.
///
/// # Errors
///
/// The contender cannot, or no run succeeded.
pub(crate) fn load(
    entrant: &mut Entrant,
    workload: &Workload,
    clients: u32,
    seconds: u64,
) -> anyhow::Result<Load> {
    if let Some(program) = entrant.sampler.one_shot() {
        return load_of_programs(entrant.name, program, workload, clients, seconds);
    }
    let request = json!({
        "op": "load", "code": workload.snippet(), "clients": clients, "seconds": seconds,
    });
    let answer = entrant
        .sampler
        .ask(&request, Duration::from_secs(seconds + 120))?;
    let failed = answer["failed"].as_u64().unwrap_or_default();
    let seconds = answer["seconds"].as_f64().context("no seconds")?;
    if let Some(completed) = answer["completed"].as_f64() {
        // It has summed up itself.
        ensure!(completed > 0.0, "no run succeeded");
        return Ok(Load {
            contender: entrant.name,
            clients,
            seconds,
            per_second: completed / seconds,
            p50_us: answer["p50_us"].as_f64().context("no p50")?,
            p99_us: answer["p99_us"].as_f64().context("no p99")?,
            failed,
        });
    }
    let times: Vec<f64> = serde_json::from_value(answer["times_us"].clone())?;
    summarise(entrant.name, clients, times, failed, seconds)
}

/// The server's memory over so many clients that say hello and are never heard of again.
///
/// # Errors
///
/// The contender cannot.
pub(crate) fn handshakes(entrant: &mut Entrant, count: u64) -> anyhow::Result<Handshakes> {
    let request = json!({"op": "handshakes", "count": count});
    let answer = entrant.sampler.ask(&request, Duration::from_mins(10))?;
    Ok(serde_json::from_value(answer)?)
}

/// Runs that begin at even intervals. Only for contenders with a driver.
///
/// # Errors
///
/// The contender cannot, or no run succeeded.
pub(crate) fn paced(
    entrant: &mut Entrant,
    workload: &Workload,
    rate: f64,
    seconds: u64,
) -> anyhow::Result<Load> {
    let request = json!({
        "op": "paced", "code": workload.snippet(), "rate": rate, "seconds": seconds,
    });
    let answer = entrant
        .sampler
        .ask(&request, Duration::from_secs(seconds + 120))?;
    let times: Vec<f64> = serde_json::from_value(answer["times_us"].clone())?;
    let failed = answer["failed"].as_u64().unwrap_or_default();
    let seconds = answer["seconds"].as_f64().context("no seconds")?;
    summarise(entrant.name, 0, times, failed, seconds)
}

/// Many sandboxes (`alive`) or sessions (`sessions`) that live at the same time.
///
/// # Errors
///
/// The contender cannot.
pub(crate) fn alive(
    entrant: &mut Entrant,
    what: &str,
    count: u64,
    seconds: u64,
) -> anyhow::Result<Alive> {
    let request = json!({"op": what, "count": count, "seconds": seconds});
    let answer = entrant
        .sampler
        .ask(&request, Duration::from_secs(2 * seconds + 300))?;
    let p50 = |key: &str| {
        let times: Vec<f64> = serde_json::from_value(answer[key].clone())?;
        percentile(times, 0.5).context("no turn beside the living sandboxes")
    };
    Ok(Alive {
        asked: count,
        living: answer["alive"].as_u64().context("no count")?,
        stopped: answer["stopped"].as_str().map(str::to_owned),
        start_seconds: answer["start_seconds"].as_f64().context("no seconds")?,
        beside_one_p50_us: p50("beside_one_us")?,
        beside_all_p50_us: p50("beside_all_us")?,
        memory_kib_each: answer["memory_kib_each"].as_u64().context("no memory")?,
        pss_kib_each: answer["pss_kib_each"].as_u64().context("no memory")?,
    })
}

/// Where the time of a turn goes, over so many turns.
///
/// # Errors
///
/// The contender cannot.
pub(crate) fn stages(entrant: &mut Entrant, count: u32) -> anyhow::Result<Stages> {
    let request = json!({"op": "stages", "count": count});
    let answer = entrant.sampler.ask(&request, Duration::from_mins(2))?;
    Ok(serde_json::from_value(answer)?)
}

/// The server's memory over so many turns.
///
/// # Errors
///
/// The contender cannot.
pub(crate) fn soak(entrant: &mut Entrant, workload: &Workload, turns: u64) -> anyhow::Result<Soak> {
    let request = json!({"op": "soak", "code": workload.snippet(), "turns": turns});
    let answer = entrant.sampler.ask(&request, Duration::from_mins(20))?;
    Ok(serde_json::from_value(answer)?)
}

/// A tool's own time: microseconds a call, without a sandbox.
///
/// # Errors
///
/// The contender cannot.
pub(crate) fn direct_tool_call(entrant: &mut Entrant, count: u32) -> anyhow::Result<f64> {
    let request = json!({"op": "direct", "count": count});
    let answer = entrant.sampler.ask(&request, Duration::from_mins(2))?;
    Ok(answer["us"].as_f64().context("no time")? / f64::from(count))
}

fn load_of_programs(
    name: &'static str,
    program: &OneShot,
    workload: &Workload,
    clients: u32,
    seconds: u64,
) -> anyhow::Result<Load> {
    let started = Instant::now();
    let until = started + Duration::from_secs(seconds);
    let client = || {
        let mut runs = Vec::new();
        while Instant::now() < until {
            runs.push(program.run(workload));
        }
        runs
    };
    let runs: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .flatten()
            .collect()
    });
    let elapsed = started.elapsed().as_secs_f64();
    let all = runs.len();
    let times: Vec<f64> = runs.into_iter().filter_map(Result::ok).collect();
    let failed = (all - times.len()) as u64;
    summarise(name, clients, times, failed, elapsed)
}

fn summarise(
    contender: &'static str,
    clients: u32,
    times: Vec<f64>,
    failed: u64,
    seconds: f64,
) -> anyhow::Result<Load> {
    Ok(Load {
        contender,
        clients,
        seconds,
        per_second: times.len() as f64 / seconds,
        p50_us: percentile(times.clone(), 0.5).context("no run succeeded")?,
        p99_us: percentile(times, 0.99).context("no run succeeded")?,
        failed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_follows_everyone_at_times() {
        let mut followed = std::collections::BTreeSet::new();
        for round in 0..200 {
            let mut items = [0, 1, 2, 3, 4];
            shuffle(&mut items, round);
            followed.extend(items.windows(2).map(|pair| (pair[0], pair[1])));
        }
        assert_eq!(followed.len(), 20);
    }

    #[test]
    fn slow_contenders_sit_out_most_rounds_but_not_all() {
        assert_eq!(stride(5.0, 0.000_5), 1);
        assert_eq!(stride(5.0, 0.1), 8);
        assert_eq!(stride(5.0, 30.0), 64);
    }
}
