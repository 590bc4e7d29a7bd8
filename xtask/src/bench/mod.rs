//! `cargo xtask bench`: mcp-forge against what a user would pick instead, all in one run.
#![expect(
    clippy::cast_precision_loss,
    reason = "counts and sizes far below what a float holds exactly"
)]

use std::{
    fs::{self, File},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;

mod containers;
mod contenders;
mod environments;
mod http;
mod machine;
mod measure;
mod plot;
mod programs;
mod report;
mod results;
mod statistics;
mod targets;
mod tools;
mod watchdog;
mod workloads;

use contenders::{Contender, Start};
use measure::{Entrant, Rounds};
use results::{Alive, Cell, ContenderRow, Pair, Results, WorkloadRow};
use tools::Tools;
use watchdog::Watchdog;
use workloads::{SESSION_CONTENDER, SESSION_GROUP, Workload};

use crate::{process::command, workspace::Workspace};

/// Sustained load and living sandboxes, on the command line.
const LOAD: &str = "load";
const ALIVE: &str = "alive";
const SESSIONS: &str = "session-alive";

/// Turns whose stages are timed.
const STAGED_TURNS: u32 = 200;

/// A page beside the results, written by hand, that ends the report.
const ANALYSIS: &str = "analysis.md";

/// Clients of the sustained load.
const CLIENTS: [u32; 3] = [1, 8, 64];

/// Contenders that the sustained load is put on.
const LOADED: [&str; 4] = ["forge", contenders::HTTP, "forge-cold", "bubblewrap"];

/// At a workload, one contender and another that a target holds against it.
const PAIRS: [(&str, &str, &str); 5] = [
    ("one", "forge", "forge-empty"),
    ("session-start", SESSION_CONTENDER, "jupyter"),
    ("session-turn", SESSION_CONTENDER, "jupyter-warm"),
    ("session-print", SESSION_CONTENDER, "jupyter-warm"),
    ("session-lines", SESSION_CONTENDER, "jupyter-warm"),
];

/// Tool calls without a sandbox, for a tool's own time.
const DIRECT_CALLS: u32 = 1000;

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag on the command line"
)]
pub(crate) struct Options {
    /// About 5 minutes instead of 30
    #[arg(long)]
    quick: bool,
    /// With --quick: as many sandboxes, sessions and turns all the same (adds some 3 minutes)
    #[arg(long)]
    full_counts: bool,
    /// Only these contenders (see --list)
    #[arg(long, value_name = "NAME", num_args = 1..)]
    contenders: Vec<String>,
    /// Only these workloads (see --list)
    #[arg(long, value_name = "NAME", num_args = 1..)]
    workloads: Vec<String>,
    /// Run everything on these processors, as `taskset` names them
    #[arg(long, value_name = "CPUS")]
    pin: Option<String>,
    /// Where results.json, README.md and latency.svg go
    #[arg(long, value_name = "DIR", default_value = "docs/benchmarks")]
    output: PathBuf,
    /// A sentence about this run for the report, such as what else the machine was doing
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Measure environments against plain uv instead: builds, and turns in them
    #[arg(long)]
    environments: bool,
    /// Show contenders and workloads, and stop
    #[arg(long)]
    list: bool,
}

/// Installs, builds, measures, and writes the report.
///
/// # Errors
///
/// Nothing could be built or written. Contenders that fail are reported, not errors.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let chosen: Vec<Contender> = contenders::all()
        .into_iter()
        .filter(|contender| wanted(&options.contenders, contender.name))
        .collect();
    if options.list {
        list();
        return Ok(());
    }
    check_names(options)?;
    if let Some(processors) = &options.pin {
        machine::pin(processors)?;
    }
    let workspace = Workspace::find()?;
    let log = workspace.create_log("bench")?;
    let tools = Tools::prepare(&workspace)?;
    println!("build   release binaries");
    tools::build(&tools, &log)?;
    if options.environments {
        let rounds = if options.quick { 5 } else { 15 };
        let output = workspace.root.join(&options.output);
        return environments::measure((&tools, &workspace), rounds, &output, &log);
    }
    let bench = Bench {
        options,
        tools,
        watchdog: Watchdog::start(),
        started: Instant::now(),
    };
    let results = bench.measure(&chosen, &workspace, &log)?;
    let directory = workspace.root.join(&options.output);
    fs::create_dir_all(&directory)?;
    // What people found out about the numbers; the bench only knows the numbers.
    let analysis = fs::read_to_string(directory.join(ANALYSIS)).unwrap_or_default();
    let page = format!("{}\n{analysis}", report::markdown(&results));
    fs::write(
        directory.join("results.json"),
        serde_json::to_string_pretty(&results)? + "\n",
    )?;
    fs::write(directory.join("README.md"), &page)?;
    fs::write(directory.join("latency.svg"), plot::svg(&results))?;
    println!("\n{page}\nWritten to {}", options.output.display());
    Ok(())
}

struct Bench<'a> {
    options: &'a Options,
    tools: Tools,
    watchdog: Watchdog,
    started: Instant,
}

impl Bench<'_> {
    fn measure(
        &self,
        chosen: &[Contender],
        workspace: &Workspace,
        log: &File,
    ) -> anyhow::Result<Results> {
        let mut results = Results {
            date: machine::now()?,
            version: machine::version(&workspace.root),
            mode: match (self.options.quick, self.options.full_counts) {
                (true, false) => " --quick",
                (true, true) => " --quick --full-counts",
                (false, _) => "",
            },
            machine: machine::read()?,
            notes: contenders::notes(workspace),
            contenders: Vec::new(),
            workloads: Vec::new(),
            cells: Vec::new(),
            pairs: Vec::new(),
            loads: Vec::new(),
            half_rate: None,
            alive: None,
            stages: None,
            soak: None,
            handshakes: None,
            sessions: None,
            direct_tool_call_us: None,
            mcp_above_ping_us: None,
            http_above_call_us: None,
            targets: Vec::new(),
        };
        results.notes.push(
            "Contenders take turns, in another order each round, so ratios hold when the machine's speed drifts; \
             ratios are medians over the rounds that both took part in. With fewer than 100 runs, p99 is the \
             slowest run. Every answer was checked."
                .to_owned(),
        );
        results.notes.extend(self.options.note.clone());
        let mut entrants = self.open(chosen, workspace, log, &mut results);
        for workload in workloads::all() {
            if is_wanted_workload(&self.options.workloads, workload.name) {
                self.rounds(chosen, &mut entrants, &workload, &mut results);
            }
        }
        if let Some(forge) = entrant(&mut entrants, "forge") {
            results.direct_tool_call_us = measure::direct_tool_call(forge, DIRECT_CALLS).ok();
            results.stages = measure::stages(forge, STAGED_TURNS).ok();
        }
        if wanted(&self.options.workloads, LOAD) {
            self.load(&mut entrants, &mut results)?;
        }
        if wanted(&self.options.workloads, ALIVE) {
            let size = if self.has_small_counts() {
                (200, 20)
            } else {
                (1000, 120)
            };
            results.alive = self.alive(&mut entrants, "forge", "alive", size);
        }
        if is_wanted_workload(&self.options.workloads, SESSIONS) {
            let size = if self.has_small_counts() {
                (20, 120)
            } else {
                (200, 600)
            };
            results.sessions = self.alive(&mut entrants, SESSION_CONTENDER, "sessions", size);
        }
        results.targets = targets::judge(&results);
        Ok(results)
    }

    /// Installs and starts the contenders; those that do not start are reported with the reason.
    fn open(
        &self,
        chosen: &[Contender],
        workspace: &Workspace,
        log: &File,
        results: &mut Results,
    ) -> Vec<Entrant> {
        let mut entrants = Vec::new();
        for contender in chosen {
            self.say(&format!("start   {}", contender.name));
            let start = Start {
                watchdog: self.watchdog.clone(),
                log: workspace.log_path(&format!("bench-{}", contender.name)),
            };
            let opened = (contender.install)(&self.tools, log)
                .and_then(|()| (contender.open)(&self.tools, &start));
            let unavailable = match opened {
                Ok(sampler) => {
                    entrants.push(Entrant {
                        name: contender.name,
                        sampler,
                    });
                    None
                }
                Err(error) => Some(format!("{error:#}")),
            };
            if let Some(reason) = &unavailable {
                self.say(&format!("missing {}: {reason}", contender.name));
            }
            results.contenders.push(ContenderRow {
                name: contender.name,
                about: contender.about,
                unavailable,
            });
        }
        let empty = contenders::EMPTY.map(|(name, about)| ContenderRow {
            name,
            about,
            unavailable: None,
        });
        results.contenders.extend(empty);
        entrants
    }

    fn rounds(
        &self,
        chosen: &[Contender],
        entrants: &mut [Entrant],
        workload: &Workload,
        results: &mut Results,
    ) {
        self.say(&format!("run     {}", workload.name));
        let refusal = |name: &str| {
            chosen
                .iter()
                .find(|contender| contender.name == name)
                .and_then(|contender| contender.refusal(workload.name))
        };
        let mut missing: Vec<(&'static str, String)> = entrants
            .iter()
            .filter_map(|entrant| Some((entrant.name, refusal(entrant.name)?.to_owned())))
            .filter(|(name, _)| {
                !matches!(*name, "true" | "socket" | "forge-empty" | contenders::HTTP)
            })
            .filter(|(name, _)| workload.is_for(name))
            .collect();
        let mut able: Vec<&mut Entrant> = entrants
            .iter_mut()
            .filter(|entrant| workload.is_for(entrant.name) && refusal(entrant.name).is_none())
            .collect();
        let budget = Duration::from_secs(if self.options.quick {
            workload.seconds / 5
        } else {
            workload.seconds
        });
        let rounds = measure::rounds(&mut able, workload, budget);
        for (name, reason) in &rounds.dropped {
            self.say(&format!("missing {name}: {reason}"));
        }
        let names = chosen.iter().map(|contender| contender.name);
        for name in names.chain(contenders::EMPTY.map(|(name, _)| name)) {
            results.cells.extend(cell(&rounds, workload, name));
        }
        results.pairs.extend(pairs(&rounds, workload));
        if workload.name == "one" {
            let above = |this: &str, other: &str| {
                let (this, other) = (rounds.rows.get(this)?, rounds.rows.get(other)?);
                this.paired(other, |this, other| this - other)
            };
            results.mcp_above_ping_us = above("forge-mcp", contenders::PING.0);
            results.http_above_call_us = above(contenders::HTTP, "forge");
        }
        missing.extend(rounds.dropped);
        results.workloads.push(WorkloadRow {
            name: workload.name,
            about: workload.about,
            missing,
        });
    }

    fn load(&self, entrants: &mut [Entrant], results: &mut Results) -> anyhow::Result<()> {
        let one = first_workload()?;
        let seconds = if self.options.quick { 4 } else { 30 };
        for clients in CLIENTS {
            for name in LOADED {
                let Some(entrant) = entrant(entrants, name) else {
                    continue;
                };
                self.say(&format!("load    {name}, {clients} clients"));
                match measure::load(entrant, &one, clients, seconds) {
                    Ok(load) => results.loads.push(load),
                    Err(error) => self.say(&format!("missing {name}: {error:#}")),
                }
            }
        }
        let rate = results.load("forge", 8).map(|load| load.per_second / 2.0);
        if let Some((rate, forge)) = rate.zip(entrant(entrants, "forge")) {
            self.say("load    forge, half of the rate of 8 clients");
            results.half_rate = measure::paced(forge, &one, rate, seconds).ok();
            let turns = if self.has_small_counts() {
                5_000
            } else {
                100_000
            };
            self.say(&format!("load    forge, memory over {turns} turns"));
            results.soak = measure::soak(forge, &one, turns).ok();
        }
        if let Some(http) = entrant(entrants, contenders::HTTP) {
            let clients = if self.has_small_counts() {
                20_000
            } else {
                100_000
            };
            self.say(&format!("load    {clients} MCP clients that leave at once"));
            match measure::handshakes(http, clients) {
                Ok(found) => results.handshakes = Some(found),
                Err(error) => self.say(&format!("missing {}: {error:#}", contenders::HTTP)),
            }
        }
        Ok(())
    }

    fn has_small_counts(&self) -> bool {
        self.options.quick && !self.options.full_counts
    }

    /// Has so many live, and gives them so many seconds to start.
    fn alive(
        &self,
        entrants: &mut [Entrant],
        name: &str,
        what: &str,
        (count, seconds): (u64, u64),
    ) -> Option<Alive> {
        let forge = entrant(entrants, name)?;
        self.say(&format!("alive   {count} of {name}"));
        match measure::alive(forge, what, count, seconds) {
            Ok(alive) => Some(alive),
            Err(error) => {
                self.say(&format!("missing {name}: {error:#}"));
                None
            }
        }
    }

    fn say(&self, what: &str) {
        println!("{:>5.0} s  {what}", self.started.elapsed().as_secs_f64());
    }
}

/// What the rounds say of one contender; nothing if it has no samples.
fn cell(rounds: &Rounds, workload: &Workload, contender: &'static str) -> Option<Cell> {
    let series = rounds.rows.get(contender)?;
    let others = |name: &str| rounds.rows.get(name).filter(|_| name != contender);
    Some(Cell {
        workload: workload.name,
        contender,
        samples: series.count(),
        p50_us: series.median()?,
        p99_us: series.percentile(0.99)?,
        to_floor: others("true").and_then(|floor| series.paired(floor, |this, floor| this / floor)),
        bubblewrap_to_this: others("bubblewrap")
            .and_then(|other| other.paired(series, |other, this| other / this)),
    })
}

/// What the rounds say of those that targets hold against each other.
fn pairs(rounds: &Rounds, workload: &Workload) -> Vec<Pair> {
    let here = PAIRS.iter().filter(|(at, ..)| *at == workload.name);
    here.filter_map(|&(_, contender, other)| {
        let this = rounds.rows.get(contender)?;
        let other_takes = rounds
            .rows
            .get(other)?
            .paired(this, |other, this| other / this)?;
        Some(Pair {
            workload: workload.name,
            contender,
            other,
            other_takes,
        })
    })
    .collect()
}

fn entrant<'a>(entrants: &'a mut [Entrant], name: &str) -> Option<&'a mut Entrant> {
    entrants.iter_mut().find(|entrant| entrant.name == name)
}

fn first_workload() -> anyhow::Result<Workload> {
    workloads::all()
        .into_iter()
        .next()
        .context("there are workloads")
}

fn wanted(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|wanted| wanted == name)
}

/// As [`wanted`], but one name stands for all workloads of sessions.
fn is_wanted_workload(names: &[String], name: &str) -> bool {
    let is_session = name.starts_with(&format!("{SESSION_GROUP}-"));
    wanted(names, name) || is_session && names.iter().any(|wanted| wanted == SESSION_GROUP)
}

fn check_names(options: &Options) -> anyhow::Result<()> {
    let known: Vec<_> = contenders::all().iter().map(|it| it.name).collect();
    check_among("contender", &options.contenders, &known)?;
    let mut known: Vec<_> = workloads::all().iter().map(|it| it.name).collect();
    known.extend([LOAD, ALIVE, SESSIONS, SESSION_GROUP]);
    check_among("workload", &options.workloads, &known)
}

fn check_among(what: &str, names: &[String], known: &[&str]) -> anyhow::Result<()> {
    match names.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => bail!(
            "there is no {what} `{name}`; there are {}",
            known.join(", ")
        ),
    }
}

fn list() {
    println!("contenders");
    for contender in contenders::all() {
        println!("  {:<15} {}", contender.name, contender.about);
    }
    println!("workloads");
    for workload in workloads::all() {
        println!("  {:<15} {}", workload.name, workload.about);
    }
    println!("  {LOAD:<15} `1+1` in fresh sandboxes, 1, 8 and 64 clients");
    println!("  {ALIVE:<15} 1,000 sandboxes alive at once (--quick: 200)");
    println!("  {SESSIONS:<15} 200 sessions with pandas alive at once (--quick: 20)");
    println!("  {SESSION_GROUP:<15} all whose name begins so");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_named_in_the_error() {
        let error = check_among("workload", &["pandsa".to_owned()], &["one", "pandas"])
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "there is no workload `pandsa`; there are one, pandas"
        );
    }

    #[test]
    fn no_names_mean_all() {
        assert!(wanted(&[], "one"));
        assert!(!wanted(&["pandas".to_owned()], "one"));
    }

    #[test]
    fn a_group_is_all_workloads_of_sessions_and_no_other() {
        let group = [SESSION_GROUP.to_owned()];
        assert!(is_wanted_workload(&group, "session-start"));
        assert!(is_wanted_workload(&group, SESSIONS));
        assert!(!is_wanted_workload(&group, "one"));
        assert!(!is_wanted_workload(&["one".to_owned()], "session-start"));
    }

    #[test]
    fn pairs_take_part_in_their_workload() {
        for (at, contender, other) in PAIRS {
            let all = workloads::all();
            let workload = all.iter().find(|workload| workload.name == at).unwrap();
            assert!(workload.is_for(contender) && workload.is_for(other), "{at}");
        }
    }
}
