//! One attack: what it is, what must come of it, and how it is run, with and without its layer.

use std::{sync::LazyLock, time::Duration};

use mcp_forge::{
    config::Config,
    engine::{Engine, LaunchError, Purpose, Sandbox, SandboxSpec, native::Native},
    limits::Limits,
    turn::{Outcome, Report},
};
use serde_json::{Value, json};
use tokio::sync::RwLock;

use super::{
    host::{Host, Place},
    traces::{Traces, Wanted},
};
use crate::sandbox;

/// Cases that make the machine busy run alone; others share.
pub(super) static MACHINE: LazyLock<RwLock<()>> = LazyLock::new(RwLock::default);

/// How a sandbox comes to be: each attack is tried on both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It starts its own interpreter.
    Cold,
    /// It is forked from a zygote.
    Warm,
}

impl Way {
    pub(crate) const ALL: [Self; 2] = [Self::Cold, Self::Warm];
}

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
    /// The same, but only a server that runs as root can show it, and on the cold path; why.
    ColdAsRootWithout(&'static [&'static [&'static str]], &'static str),
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
            Control::ColdAsRootWithout(layers, reason) => (
                sets(layers),
                format!("as root and on the cold path only: {reason}"),
            ),
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

    pub(super) fn limits(&self, times: u64) -> Limits {
        let setting = self.setting;
        Limits {
            timeout: Duration::from_secs(setting.seconds),
            memory_bytes: times * (setting.memory_mib << 20),
            cpu_quota_us: 200_000,
            pids: setting.pids,
            storage_bytes: 1 << 30,
        }
    }

    /// Limits of sandboxes beside the attack's, by which they can be told from it.
    fn others(&self, times: u64, more: u64) -> Limits {
        Limits {
            pids: self.setting.pids + more,
            ..self.limits(times)
        }
    }

    pub(super) fn source(&self, host: &Host, world: bool) -> String {
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
    fn sets(&self, way: Way) -> &'static [&'static [&'static str]] {
        let root = rustix::process::geteuid().is_root();
        match self.control {
            Control::Without(sets) => sets,
            Control::ColdAsRootWithout(sets, _) if root && way == Way::Cold => sets,
            Control::ColdAsRootWithout(..) | Control::Roomier | Control::Nothing(_) => &[],
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

    pub(super) fn check(self, report: &Report) -> Result<(), String> {
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
    let [cold, warm] = Way::ALL.map(|way| run_on(case, way));
    let (cold, warm) = if case.setting.heavy {
        (cold.await, warm.await)
    } else {
        tokio::join!(cold, warm)
    };
    cold.into_iter().chain(warm).collect()
}

async fn run_on(case: &Case, way: Way) -> Vec<String> {
    let mut failures = real(case, way).await;
    for layers in case.sets(way) {
        let shown = control(case, way, layers).await;
        failures.extend(
            shown
                .err()
                .map(|why| format!("without {}: {why}", layers.join(" and "))),
        );
    }
    if matches!(case.control, Control::Roomier) {
        let shown = roomier(case, way).await;
        failures.extend(
            shown
                .err()
                .map(|why| format!("with four times the limits: {why}")),
        );
    }
    failures
        .into_iter()
        .map(|failure| format!("{way:?}: {failure}"))
        .collect()
}

/// The attack in a sandbox as everybody gets it. On the warm path its neighbour and the next are
/// forks of the same zygote.
async fn real(case: &Case, way: Way) -> Vec<String> {
    let host = Host::prepare();
    let before = Host::mounts();
    let (field, limits) = (
        Field::prepare(waiting(case.others(3, 2)), &host, &[], way),
        case.limits(1),
    );
    let neighbours = case.others(4, 1);
    let neighbour = match field.launch(&neighbours, "neighbour").await {
        Ok(neighbour) => neighbour,
        Err(error) => return vec![format!("no neighbour: {error}")],
    };
    let sandbox = match field.launch(&limits, case.id).await {
        Ok(sandbox) => sandbox,
        Err(error) => return vec![format!("no sandbox: {error}")],
    };
    let traces = match field.traces(&limits, case.id).await {
        Ok(traces) => traces,
        Err(error) => return vec![error],
    };
    let report = sandbox::turn_in(sandbox, &case.source(&host, true), &limits).await;
    let mut failures: Vec<String> = case.expect.check(&report).err().into_iter().collect();
    if report.wall > limits.timeout + Duration::from_secs(40) {
        failures.push(format!("it took {:?}", report.wall));
    }
    failures.extend(
        host.touched()
            .into_iter()
            .map(|canary| format!("the host saw {canary}")),
    );
    failures.extend(traces.left_behind().await);
    let answer = sandbox::turn_in(neighbour, "1 + 1", &neighbours).await;
    if answer.result != 2 {
        failures.push(format!("the neighbour answered {}", brief(&answer)));
    }
    match field.launch(&limits, "next").await {
        Ok(next) => {
            let answer = sandbox::turn_in(next, "1 + 1", &limits).await;
            if answer.result != 2 {
                failures.push(format!("the next sandbox answered {}", brief(&answer)));
            }
        }
        Err(error) => failures.push(format!("no next sandbox: {error}")),
    }
    let family = traces.family();
    drop(field);
    failures.extend(family.left_behind().await);
    failures.extend(host.rubbish(&before).await);
    failures
}

/// The attack in a sandbox without some layers: it must succeed.
async fn control(case: &Case, way: Way, layers: &[&str]) -> Result<(), String> {
    let host = Host::prepare();
    let field = Field::prepare(waiting(case.others(3, 2)), &host, layers, way);
    let (report, traces) = attack(case, &host, &field, &case.limits(1)).await?;
    // What outlives the turn is a success of the attack, and is ended here.
    let survivors = traces.end_survivors();
    let touched = host.touched();
    succeeded(&report, survivors, &touched)
}

/// The attack in a sandbox with more room than the probe was told.
async fn roomier(case: &Case, way: Way) -> Result<(), String> {
    let host = Host::prepare();
    let field = Field::prepare(waiting(case.others(3, 2)), &host, &[], way);
    let (report, _) = attack(case, &host, &field, &case.limits(4)).await?;
    succeeded(&report, 0, &[])
}

async fn attack(
    case: &Case,
    host: &Host,
    field: &Field,
    limits: &Limits,
) -> Result<(Report, Traces), String> {
    let sandbox = field
        .launch(limits, case.id)
        .await
        .map_err(|error| format!("it could not be built: {error}"))?;
    let traces = match field.traces(limits, case.id).await {
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

/// The configuration of an engine whose waiting sandboxes, on the warm path, have these limits. No
/// attack has them, so that each is found by its own.
pub(super) fn waiting(limits: Limits) -> Config {
    let mut config = sandbox::config();
    config.native.python = Some(Host::python());
    config.default_limits = limits;
    config
}

/// An engine on one of the two paths, and the place that it starts jails from.
pub(super) struct Field {
    engine: Native,
    place: Place,
    way: Way,
    /// What its sandboxes are for.
    pub(super) purpose: Purpose,
}

impl Field {
    pub(super) fn prepare(config: Config, host: &Host, without: &[&str], way: Way) -> Self {
        let place = host.place(without);
        let mut config = config;
        config.data_dir = host.data_directory();
        config.native.warm = way == Way::Warm;
        Self {
            engine: Native::with_jail(&config, place.program()),
            place,
            way,
            purpose: Purpose::default(),
        }
    }

    pub(super) async fn launch(&self, limits: &Limits, name: &str) -> Result<Sandbox, LaunchError> {
        let spec = SandboxSpec {
            id: self.id(name),
            limits: limits.clone(),
            purpose: self.purpose.clone(),
            environment: None,
        };
        // Where it fails the cold path would serve, and be noticed by where the sandbox is found.
        self.engine.prepare().await.ok();
        self.engine.launch(&spec).await
    }

    pub(super) async fn traces(&self, limits: &Limits, name: &str) -> Result<Traces, String> {
        let wanted = Wanted {
            server: std::process::id(),
            jail: &self.place.jail(),
            id: &self.id(name),
            limits,
            way: self.way,
        };
        wanted.traces().await
    }

    fn id(&self, name: &str) -> String {
        format!("{}-{}", self.place.id, name.to_lowercase())
    }
}

/// Enough of a report to see what went wrong.
pub(super) fn brief(report: &Report) -> String {
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
