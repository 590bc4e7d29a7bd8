//! What the server must outlive: floods, and the deaths of those it depends on.

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use mcp_forge::{
    engine::{Engine, Purpose, SandboxSpec, native::Native},
    turn::Outcome,
};

use super::host::{Host, Traces};
use crate::sandbox;

/// Their lines of `docs/security-tests.md`.
pub(super) fn rows() -> [String; 3] {
    [
        "| G14 | 10 GB of output, by both streams and a thread | output limit, and memory of the server bounded | - | none: behaviour, not a layer |",
        "| P1 | the server is killed | nothing is left | - | none: behaviour, not a layer |",
        "| P5 | its keeper is killed | the turn ends, nothing runs on | - | none: behaviour, not a layer |",
    ]
    .map(str::to_owned)
}

#[tokio::test]
async fn a_flood_of_output_ends_the_turn_and_costs_no_memory() {
    let mut config = sandbox::config();
    config.default_limits.timeout = Duration::from_mins(2);
    let code = "\
import os, threading
def flood(fd):
    for _ in range(10_000): os.write(fd, b'x' * (1 << 20))
threading.Thread(target=flood, args=(2,), daemon=True).start()
flood(1)";
    sandbox::run_with(&config, "1").await;
    let before = resident_bytes();
    let report = sandbox::run_with(&config, code).await;
    let grown = resident_bytes().saturating_sub(before);
    assert_eq!(report.outcome, Outcome::OutputLimit);
    assert!(
        report.stdout.dropped_bytes + report.stderr.dropped_bytes > 200 << 20,
        "{:?}",
        report.stdout.dropped_bytes
    );
    assert!(report.stdout.text.len() + report.stderr.text.len() < 3 << 20);
    // Twice the caps; the rest is for tests that run beside this one in the same process.
    assert!(
        grown < (4 << 20) + (96 << 20),
        "grew by {} MiB",
        grown >> 20
    );
}

#[tokio::test]
async fn a_killed_keeper_takes_its_sandbox_with_it() {
    let host = Host::prepare();
    let place = host.place(&[]);
    let mut config = sandbox::config();
    config.data_dir = host.data_directory();
    let spec = SandboxSpec {
        id: place.id.clone(),
        limits: config.default_limits.clone(),
        purpose: Purpose::default(),
    };
    let engine = Native::with_jail(&config, place.program());
    let sandbox = engine.launch(&spec).await.unwrap();
    let traces = Host::traces(&place).await.unwrap();
    let turn = sandbox::turn_in(
        sandbox,
        "import time\ntime.sleep(50)",
        &config.default_limits,
    );
    let kill = async {
        Host::kill_keeper(&traces);
    };
    let (report, ()) = tokio::join!(turn, kill);
    assert!(matches!(report.outcome, Outcome::Crashed(_)), "{report:?}");
    assert!(report.wall < Duration::from_secs(20), "{:?}", report.wall);
    // A cgroup without a keeper is removed by the next server, once it is surely nobody's.
    let left: Vec<String> = Host::left_behind(&traces)
        .await
        .into_iter()
        .filter(|left| left.starts_with("process"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    Host::remove_cgroups(&traces);
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a server to be killed")]
async fn a_killed_server_takes_its_sandbox_with_it() {
    let host = Host::prepare();
    let mut server = Command::new(sandbox::binary())
        .args(["run", "-c", "import time\ntime.sleep(50)"])
        .env("MCP_FORGE_DATA_DIR", host.data_directory())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let traces = Traces::below(server.id(), "").await.unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(Host::left_behind(&traces).await, Vec::<String>::new());
}

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10
}
