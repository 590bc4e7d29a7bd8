//! One attack: what it is, what must come of it, and how it is run, with and without its layer.

use std::{sync::LazyLock, time::Duration};

use mcp_forge::{
    config::Config,
    engine::{Engine, LaunchError, Purpose, SandboxSpec, native::Native},
    limits::Limits,
    turn::{Outcome, Report},
};
use serde_json::{Value, json};
use tokio::sync::RwLock;

use super::host::{Host, Place};
use crate::sandbox;

/// Cases that make the machine busy run alone; others share.
static MACHINE: LazyLock<RwLock<()>> = LazyLock::new(RwLock::default);

/// One attack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    /// The row of the threat model.
    pub(crate) id: &'static str,
    /// What is tried, in a few words.
    pub(crate) attack: &'static str,
    pub(crate) code: Code,
    pub(crate) expect: Expect,
    pub(crate) control: Control,
    pub(crate) setting: Setting,
}

/// The code that attacks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Code {
    /// Python whose last expression is a dict with `held`, behind `probes/prelude.py`.
    Probe(&'static str),
    /// Any Python, as it is.
    Plain(&'static str),
    /// Python that is too long or too odd to be written down.
    Made(fn() -> String),
}

/// What must come of it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Expect {
    /// The probe says that nothing it tried worked.
    Held,
    /// The code ran to its end with this result.
    Result(fn() -> Value),
    /// As this shows of the report.
    Report(&'static str, fn(&Report) -> bool),
    TimedOut,
    OutOfMemory,
    Raised(&'static str),
    Crashed,
    /// The turn ends in one of the ways there are; only what is around it matters.
    Ends,
}

/// What shows that the attack would work.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Control {
    /// It succeeds in a sandbox without these layers, for each of the sets.
    Without(&'static [&'static [&'static str]]),
    /// The same, but only a server that runs as root can show it; why.
    AsRootWithout(&'static [&'static [&'static str]], &'static str),
    /// It succeeds against the same bounds in a sandbox with four times the limits.
    Roomier,
    /// There is no layer to leave out; why.
    Nothing(&'static str),
}

/// The limits of the sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) seconds: u64,
    pub(crate) memory_mib: u64,
    pub(crate) pids: u64,
    /// Runs alone.
    pub(crate) heavy: bool,
}

/// Small enough to be reached quickly.
pub(crate) const USUAL: Setting = Setting {
    seconds: 60,
    memory_mib: 256,
    pids: 60,
    heavy: false,
};

impl Case {
    /// The line of `docs/security-tests.md`.
    pub(crate) fn row(&self) -> String {
        let sets = |sets: &[&[&str]]| {
            sets.iter()
                .map(|set| set.join(" + "))
                .collect::<Vec<_>>()
                .join("; or ")
        };
        let (held_by, control) = match self.control {
            Control::Without(layers) => (sets(layers), "yes".to_owned()),
            Control::AsRootWithout(layers, reason) => {
                (sets(layers), format!("as root only: {reason}"))
            }
            Control::Roomier => (
                "size limits".to_owned(),
                "with four times the limits".to_owned(),
            ),
            Control::Nothing(reason) => ("-".to_owned(), format!("none: {reason}")),
        };
        format!(
            "| {} | {} | {} | {held_by} | {control} |",
            self.id,
            self.attack,
            self.expect.words()
        )
    }

    fn limits(&self, times: u64) -> Limits {
        let setting = self.setting;
        Limits {
            timeout: Duration::from_secs(setting.seconds),
            memory_bytes: times * (setting.memory_mib << 20),
            cpu_quota_us: 200_000,
            pids: setting.pids,
            storage_bytes: 1 << 30,
        }
    }

    fn source(&self, host: &Host, world: bool) -> String {
        match self.code {
            Code::Probe(probe) => {
                let limits = self.limits(1);
                let mut facts = host.facts(world);
                facts["pids"] = limits.pids.into();
                facts["memory_bytes"] = limits.memory_bytes.into();
                let directory = limits.directory_bytes();
                facts["tmpfs"] = json!({"/tmp": directory, "/workspace": directory, "/dev/shm": limits.shared_memory_bytes()});
                format!(
                    "HOST = {facts}\n{}\n{probe}",
                    include_str!("probes/prelude.py")
                )
            }
            Code::Plain(code) => code.to_owned(),
            Code::Made(make) => make(),
        }
    }

    /// The sets of layers that this process, with its rights, can show to matter.
    fn sets(&self) -> &'static [&'static [&'static str]] {
        let root = rustix::process::geteuid().is_root();
        match self.control {
            Control::Without(sets) => sets,
            Control::AsRootWithout(sets, _) if root => sets,
            Control::AsRootWithout(..) | Control::Roomier | Control::Nothing(_) => &[],
        }
    }
}

impl Expect {
    const fn words(self) -> &'static str {
        match self {
            Self::Held => "nothing works",
            Self::Result(_) => "the right result",
            Self::Report(words, _) => words,
            Self::TimedOut => "timed out",
            Self::OutOfMemory => "out of memory",
            Self::Raised(_) => "raised",
            Self::Crashed => "crashed",
            Self::Ends => "an orderly end",
        }
    }

    fn check(self, report: &Report) -> Result<(), String> {
        let fine = match self {
            Self::Held => report.outcome == Outcome::Completed && report.result["held"] == true,
            Self::Result(expected) => {
                report.outcome == Outcome::Completed && report.result == expected()
            }
            Self::Report(_, check) => check(report),
            Self::TimedOut => report.outcome == Outcome::TimedOut,
            Self::OutOfMemory => report.outcome == Outcome::OutOfMemory,
            Self::Raised(kind) => {
                report.outcome == Outcome::Raised
                    && report
                        .error
                        .as_ref()
                        .is_some_and(|error| error.kind == kind)
            }
            Self::Crashed => matches!(report.outcome, Outcome::Crashed(_)),
            Self::Ends => true,
        };
        if fine {
            Ok(())
        } else {
            Err(format!("expected: {}; got {}", self.words(), brief(report)))
        }
    }
}

/// Runs every case with its controls; fails with all that went wrong.
#[expect(clippy::print_stderr, reason = "what a test tells a person")]
pub(crate) async fn run_all(cases: &[Case]) {
    let mut failures = Vec::new();
    for case in cases {
        let begun = std::time::Instant::now();
        let found = run(case).await;
        eprintln!(
            "{} {}: {:.1?}{}",
            case.id,
            case.attack,
            begun.elapsed(),
            if found.is_empty() { "" } else { " FAILED" }
        );
        failures.extend(
            found
                .into_iter()
                .map(|failure| format!("{} ({}): {failure}", case.id, case.attack)),
        );
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

async fn run(case: &Case) -> Vec<String> {
    let (_alone, _shared);
    if case.setting.heavy {
        _alone = MACHINE.write().await;
    } else {
        _shared = MACHINE.read().await;
    }
    let mut failures = real(case).await;
    for layers in case.sets() {
        failures.extend(
            control(case, layers)
                .await
                .err()
                .map(|why| format!("without {}: {why}", layers.join(" and "))),
        );
    }
    if matches!(case.control, Control::Roomier) {
        failures.extend(
            roomier(case)
                .await
                .err()
                .map(|why| format!("with four times the limits: {why}")),
        );
    }
    failures
}

/// The attack in a sandbox as everybody gets it.
async fn real(case: &Case) -> Vec<String> {
    let host = Host::prepare();
    let before = Host::mounts();
    let (place, limits) = (host.place(&[]), case.limits(1));
    let neighbour = match launch(&host, &host.place(&[]), &case.limits(4), "neighbour").await {
        Ok(neighbour) => neighbour,
        Err(error) => return vec![format!("no neighbour: {error}")],
    };
    let sandbox = match launch(&host, &place, &limits, case.id).await {
        Ok(sandbox) => sandbox,
        Err(error) => return vec![format!("no sandbox: {error}")],
    };
    let traces = match Host::traces(&place).await {
        Ok(traces) => traces,
        Err(error) => return vec![error],
    };
    let report = sandbox::turn_in(sandbox, &case.source(&host, true), &limits).await;
    let mut failures: Vec<String> = case.expect.check(&report).err().into_iter().collect();
    if report.wall > limits.timeout + Duration::from_secs(10) {
        failures.push(format!("it took {:?}", report.wall));
    }
    failures.extend(
        host.touched()
            .into_iter()
            .map(|canary| format!("the host saw {canary}")),
    );
    failures.extend(Host::left_behind(&traces).await);
    let answer = sandbox::turn_in(neighbour, "1 + 1", &case.limits(4)).await;
    if answer.result != 2 {
        failures.push(format!("the neighbour answered {}", brief(&answer)));
    }
    match launch(&host, &place, &limits, "next").await {
        Ok(next) => {
            let answer = sandbox::turn_in(next, "1 + 1", &limits).await;
            if answer.result != 2 {
                failures.push(format!("the next sandbox answered {}", brief(&answer)));
            }
        }
        Err(error) => failures.push(format!("no next sandbox: {error}")),
    }
    failures.extend(host.rubbish(&before).await);
    failures
}

/// The attack in a sandbox without some layers: it must succeed.
async fn control(case: &Case, layers: &[&str]) -> Result<(), String> {
    let host = Host::prepare();
    let place = host.place(layers);
    let report = attack(case, &host, &place, &case.limits(1)).await?;
    // What outlives the turn is a success of the attack, and is ended here.
    let survivors = Host::end_survivors(&report.1);
    let touched = host.touched();
    succeeded(&report.0, survivors, &touched)
}

/// The attack in a sandbox with more room than the probe was told.
async fn roomier(case: &Case) -> Result<(), String> {
    let host = Host::prepare();
    let (report, _) = attack(case, &host, &host.place(&[]), &case.limits(4)).await?;
    succeeded(&report, 0, &[])
}

async fn attack(
    case: &Case,
    host: &Host,
    place: &Place,
    limits: &Limits,
) -> Result<(Report, super::host::Traces), String> {
    let sandbox = launch(host, place, limits, case.id)
        .await
        .map_err(|error| format!("it could not be built: {error}"))?;
    let traces = match Host::traces(place).await {
        Ok(traces) => traces,
        Err(error) => {
            let report = sandbox::turn_in(sandbox, "1", limits).await;
            return Err(format!("{error}; it says {}", brief(&report)));
        }
    };
    let report = sandbox::turn_in(sandbox, &case.source(host, false), limits).await;
    Ok((report, traces))
}

#[expect(clippy::print_stderr, reason = "what a test tells a person")]
fn succeeded(report: &Report, survivors: usize, touched: &[String]) -> Result<(), String> {
    let breached = report.outcome == Outcome::Completed && report.result["held"] == false;
    if breached || survivors > 0 || !touched.is_empty() {
        eprintln!(
            "    control: {} survivors {survivors} touched {touched:?}",
            report.result["breaches"]
        );
        return Ok(());
    }
    Err(format!(
        "the attack fails all the same, so this probe proves nothing: {}",
        brief(report)
    ))
}

async fn launch(
    host: &Host,
    place: &Place,
    limits: &Limits,
    name: &str,
) -> Result<mcp_forge::engine::Sandbox, LaunchError> {
    let mut config: Config = sandbox::config();
    config.data_dir = host.data_directory();
    config.native.python = Some(Host::python());
    let spec = SandboxSpec {
        id: format!("{}-{}", place.id, name.to_lowercase()),
        limits: limits.clone(),
        purpose: Purpose::default(),
    };
    Native::with_jail(&config, place.program())
        .launch(&spec)
        .await
}

/// Enough of a report to see what went wrong.
fn brief(report: &Report) -> String {
    let cut = |text: &str| text.chars().take(3000).collect::<String>();
    let error = report.error.as_ref().map(|error| cut(&error.traceback));
    format!(
        "{:?} {} {} stderr {:?}",
        report.outcome,
        cut(&report.result.to_string()),
        error.unwrap_or_default(),
        cut(&report.stderr.text)
    )
}
