//! The attacks of the escape tests, in containers: the same expectations, and the differences that are
//! accepted, each with its reason. A difference that is not listed fails, and so does a listed one
//! that is none any more.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use mcp_forge::engine::{Engine, Purpose, SandboxSpec};

use super::*;
use crate::{
    escape::elsewhere::{self, Case},
    sandbox,
};

/// Attacks that come out otherwise in a container.
struct Difference {
    id: &'static str,
    attack: &'static str,
    /// What a probe may say worked; names that begin so, where one ends with `*`.
    breaches: &'static [&'static str],
    what: &'static str,
    reason: &'static str,
    /// Whether it is so here: some depend on the host.
    holds_here: fn() -> bool,
}

const ALWAYS: fn() -> bool = || true;

const DIFFERENCES: &[Difference] = &[
    Difference {
        id: "B2",
        attack: "twice the memory limit in a child that its parent waits for",
        breaches: &[],
        what: "with `security.allow_degraded: [cgroup]`, where the host ignores limits: the child fails, and its parent goes on",
        reason: "each process is held to the limit on its own; a launch is refused there unless the operator allows it by name",
        holds_here: ignores_limits,
    },
    Difference {
        id: "B3",
        attack: "twice the memory limit as shared memory",
        breaches: &["twice the limit"],
        what: "with `security.allow_degraded: [cgroup]`, where the host ignores limits: it works",
        reason: "nothing counts shared memory there; a launch is refused unless the operator allows it by name",
        holds_here: ignores_limits,
    },
    Difference {
        id: "C15",
        attack: "writes to the root, to system directories and to its own packages",
        breaches: &[
            "make /opt/mcp-forge/*",
            "mkdir /opt/mcp-forge/*",
            "link /opt/mcp-forge/*",
            "touch /opt/mcp-forge",
            "append /opt/mcp-forge/*",
            "truncate /opt/mcp-forge/*",
        ],
        what: "it can change `/opt/mcp-forge`, the runner's files",
        reason: "they are memory of that one container, written there since nothing is mounted; the relay has read what it needs, and no other sandbox reads them",
        holds_here: ALWAYS,
    },
    Difference {
        id: "D1",
        attack: "reads pid 1 and every other process in /proc",
        breaches: &["1/cmdline"],
        what: "it can read the command line of pid 1",
        reason: "that is the relay's first lines, which are public; memory, environment and descriptors of pid 1 are closed to it",
        holds_here: ALWAYS,
    },
    Difference {
        id: "D3",
        attack: "looks for the host's paths in the mount table",
        breaches: &[
            "finds /root",
            "finds /home",
            "/proc/self/mounts",
            "/proc/self/mountstats",
            "/proc/mounts",
            "/etc/mtab",
        ],
        what: "the mount table names the directories where the service stores images and containers",
        reason: "no container API hides them; a service of root's stores below `/var/lib/containers`, a user's own below the user's home, whose name is told so",
        holds_here: names_private_storage,
    },
    Difference {
        id: "D4",
        attack: "reads its own cgroup's path",
        breaches: &["tells more than /"],
        what: "it can read the id of its container",
        reason: "services give no namespace of control groups on version 1; with version 2 they do, and the row holds",
        holds_here: || !Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
    },
    Difference {
        id: "D5",
        attack: "reads and writes the kernel's files in /proc",
        breaches: KERNEL_FILES,
        what: "it can read facts of the host: its processors, memory, load, devices, kernel and its command line",
        reason: "runtimes show them to every container; what tells of other processes, of keys or of addresses is masked or reads as nothing, and nothing can be written",
        holds_here: ALWAYS,
    },
    Difference {
        id: "D7",
        attack: "looks for /sys and mounts it",
        breaches: &["list /sys", "list /sys/*"],
        what: "`/sys` is there, read-only, with the names of devices and the container's control groups",
        reason: "runtimes mount it in every container; the firmware's and the kernel's debug files are masked, and the relay reads the limits there",
        holds_here: ALWAYS,
    },
    Difference {
        id: "D8",
        attack: "lists, opens and makes devices",
        breaches: &["more than the harmless ones", "open ptmx 0", "open ptmx 2"],
        what: "there are `mqueue`, `ptmx`, `pts` and `tty`",
        reason: "runtimes make them, each of the container's own; the filter refuses message queues and what injects input (E7)",
        holds_here: ALWAYS,
    },
    Difference {
        id: "D9",
        attack: "asks for the host's name and ids",
        breaches: &[
            "/etc/hosts",
            "/proc/sys/kernel/random/boot_id",
            "/proc/cmdline",
        ],
        what: "it can read the host's boot id, and in `/etc/hosts` the names that the host's own file has",
        reason: "runtimes show the one, and podman copies the other unless `base_hosts_file = \"none\"` is in the service's `containers.conf`",
        holds_here: ALWAYS,
    },
    Difference {
        id: "D10",
        attack: "looks for variables of the server; a secret was planted",
        breaches: &["not on the list"],
        what: "there are `container` and `HOSTNAME` too",
        reason: "the service adds them: its own name, and `sandbox`",
        holds_here: ALWAYS,
    },
];

/// Names that some kernels have are here, too. Not here is what must not be read: `read kcore`,
/// `read kmsg`, `read keys`, `read timer_list`, `read slabinfo`, `write sysrq-trigger`.
#[rustfmt::skip] // A list of names.
const KERNEL_FILES: &[&str] = &[
    "kcore", "kmsg", "keys", "timer_list", "sched_debug", "sysrq-trigger", "bus", "irq", "fs", "acpi", "scsi",
    "slabinfo", "pagetypeinfo", "vmallocinfo", "driver", "tty", "sys", "latency_stats",
    "kallsyms", "read kallsyms", "config.gz", "read config.gz", "interrupts", "read interrupts",
    "meminfo", "read meminfo", "loadavg", "read loadavg", "stat", "read stat", "cpuinfo", "read cpuinfo",
    "version", "read version", "cmdline", "read cmdline", "modules", "read modules", "partitions", "read partitions",
    "diskstats", "read diskstats", "vmstat", "read vmstat", "key-users", "read key-users", "crypto", "read crypto",
    "iomem", "read iomem", "ioports", "read ioports", "uptime", "read uptime", "swaps", "read swaps",
    "zoneinfo", "read zoneinfo", "buddyinfo", "read buddyinfo",
];

/// Whether the service stores below a directory whose name the probe looks for.
fn names_private_storage() -> bool {
    let stores = podman(&[
        "info",
        "--format",
        "{{.Store.GraphRoot}} {{.Store.RunRoot}}",
    ]);
    assert!(stores.contains('/'), "{stores}");
    ["/root", "/home"].iter().any(|name| stores.contains(name))
}

/// The lines of `docs/security-tests.md`.
pub(crate) fn rows() -> impl Iterator<Item = String> {
    DIFFERENCES.iter().map(|difference| {
        let Difference {
            id,
            attack,
            what,
            reason,
            ..
        } = difference;
        format!("| {id} | {attack} | {what} | {reason} |")
    })
}

impl Difference {
    fn of(case: &Case) -> Option<&'static Self> {
        let listed = DIFFERENCES
            .iter()
            .find(|difference| (difference.id, difference.attack) == (case.id, case.attack));
        listed.filter(|difference| (difference.holds_here)())
    }

    fn accepts(&self, breach: &str) -> bool {
        self.breaches
            .iter()
            .any(|name| match name.strip_suffix('*') {
                Some(start) => breach.starts_with(start),
                None => breach == *name,
            })
    }
}

/// What is wrong with what came of it.
async fn run(case: &'static Case, engine: &dyn Engine) -> Vec<String> {
    let attacked = elsewhere::attack(case, engine).await;
    let mut failures = attacked.failures;
    match (Difference::of(case), attacked.unexpected) {
        (None, None) => {}
        (None, Some(unexpected)) => {
            failures.push(format!("breaches {:?}; {unexpected}", attacked.breaches));
        }
        (Some(_), None) => failures.push("a listed difference that is none".to_owned()),
        (Some(difference), Some(unexpected)) => {
            let beyond: Vec<_> = attacked
                .breaches
                .iter()
                .filter(|breach| !difference.accepts(breach))
                .collect();
            if !beyond.is_empty() || attacked.breaches.is_empty() != difference.breaches.is_empty()
            {
                failures.push(format!("beyond what is listed: {beyond:?}; {unexpected}"));
            }
        }
    }
    let failures = failures.into_iter();
    failures
        .map(|failure| format!("{} ({}): {failure}", case.id, case.attack))
        .collect()
}

#[expect(clippy::print_stderr, reason = "what a test tells a person")]
async fn run_all(topic: impl Fn(&str) -> bool) {
    let field = Field::new();
    let config = field.config();
    let engine = Arc::new(Podman::new(&config));
    // Started before all attacks, asked after them.
    let limits = config.default_limits.clone();
    let spec = SandboxSpec {
        id: "neighbour".to_owned(),
        limits: limits.clone(),
        purpose: Purpose::default(),
        environment: None,
    };
    let neighbour = engine.launch(&spec).await.unwrap();
    let cases: Vec<&'static Case> = elsewhere::cases()
        .filter(|case| topic(&case.id[..1]))
        .collect();
    assert!(!cases.is_empty());
    let found = stream::iter(&cases).map(|case| {
        let engine = Arc::clone(&engine);
        async move {
            let begun = Instant::now();
            let failures = run(case, engine.as_ref()).await;
            eprintln!(
                "{} {}: {:.1?}{}",
                case.id,
                case.attack,
                begun.elapsed(),
                if failures.is_empty() { "" } else { " FAILED" }
            );
            failures
        }
    });
    let mut failures: Vec<String> = found.buffer_unordered(2).concat().await;
    let answer = sandbox::turn_in(neighbour, "20 + 22", &limits).await;
    if answer.result != 42 {
        failures.push(format!(
            "the neighbour answered {:?} {}",
            answer.outcome, answer.result
        ));
    }
    failures.extend(elsewhere::answers(engine.as_ref(), cases[0]).await);
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
    engine.shutdown().await;
    field.wait_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes() {
    run_all(|topic| topic == "A").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_and_files() {
    run_all(|topic| matches!(topic, "B" | "C")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn views() {
    run_all(|topic| topic == "D").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kernel() {
    run_all(|topic| topic == "E").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn network() {
    run_all(|topic| topic == "F").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python() {
    run_all(|topic| topic == "G").await;
}

#[test]
fn each_listed_difference_is_about_an_attack_that_is_tried() {
    let listed: BTreeSet<_> = DIFFERENCES.iter().map(|one| (one.id, one.attack)).collect();
    assert_eq!(listed.len(), DIFFERENCES.len(), "listed twice");
    let tried: BTreeSet<_> = elsewhere::cases()
        .map(|case| (case.id, case.attack))
        .collect();
    assert_eq!(listed.difference(&tried).next(), None);
}
