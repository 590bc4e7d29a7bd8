//! What the server must outlive: floods, and the deaths of those it depends on.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use mcp_forge::{
    engine::{Engine, Purpose, SandboxSpec, native::Native},
    limits::Limits,
    turn::Outcome,
};

use super::{
    case::{MACHINE, Way},
    host::Host,
    traces::Wanted,
};
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
    // Other attacks in this process would be counted: some are megabytes of code.
    let _alone = MACHINE.write().await;
    let mut config = sandbox::config();
    config.default_limits.timeout = Duration::from_mins(2);
    let code = "\
import os, threading
def flood(fd):
    for _ in range(10_000): os.write(fd, b'x' * (1 << 20))
threading.Thread(target=flood, args=(2,), daemon=True).start()
flood(1)";
    for way in Way::ALL {
        config.native.warm = way == Way::Warm;
        sandbox::run_with(&config, "1").await;
        let before = resident_bytes();
        let report = sandbox::run_with(&config, code).await;
        let grown = resident_bytes().saturating_sub(before);
        assert_eq!(report.outcome, Outcome::OutputLimit, "{way:?}");
        assert!(
            report.stdout.dropped_bytes + report.stderr.dropped_bytes > 200 << 20,
            "{way:?}: {:?}",
            report.stdout.dropped_bytes
        );
        assert!(report.stdout.text.len() + report.stderr.text.len() < 3 << 20);
        // Twice the caps; the rest is for tests beside it that attack nothing.
        assert!(
            grown < (4 << 20) + (96 << 20),
            "{way:?}: grew by {} MiB",
            grown >> 20
        );
    }
}

#[tokio::test]
async fn a_killed_keeper_takes_its_sandbox_with_it() {
    let _shared = MACHINE.read().await;
    for way in Way::ALL {
        let host = Host::prepare();
        let place = host.place(&[]);
        let mut config = sandbox::config();
        config.data_dir = host.data_directory();
        config.native.warm = way == Way::Warm;
        let spec = SandboxSpec {
            id: place.id.clone(),
            limits: Limits {
                pids: 77,
                ..config.default_limits.clone()
            },
            purpose: Purpose::default(),
            environment: None,
        };
        let engine = Native::with_jail(&config, place.program());
        engine.prepare().await.unwrap();
        let sandbox = engine.launch(&spec).await.unwrap();
        let wanted = Wanted {
            server: std::process::id(),
            jail: &place.jail(),
            id: &place.id,
            limits: &spec.limits,
            way,
        };
        let traces = wanted.traces().await.unwrap();
        let family = traces.family();
        let turn = sandbox::turn_in(sandbox, "import time\ntime.sleep(1000)", &spec.limits);
        let kill = async {
            traces.kill_keeper();
        };
        let (report, ()) = tokio::join!(turn, kill);
        assert!(
            matches!(report.outcome, Outcome::SandboxError(_)),
            "{way:?}: {report:?}"
        );
        assert!(report.wall < Duration::from_secs(45), "{:?}", report.wall);
        assert_eq!(family.survivors().await, Vec::<String>::new(), "{way:?}");
        // A cgroup without a keeper is removed by the next server, once it is surely nobody's.
        assert_eq!(
            family.remove_cgroups().await,
            Vec::<String>::new(),
            "{way:?}"
        );
    }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a server to be killed")]
async fn a_killed_server_takes_its_sandbox_with_it() {
    let _shared = MACHINE.read().await;
    for way in Way::ALL {
        let host = Host::prepare();
        let warm = way == Way::Warm;
        let mut server = Command::new(sandbox::binary())
            .arg("serve")
            .env("MCP_FORGE_DATA_DIR", host.data_directory())
            .env("MCP_FORGE_WARM_ENABLED", warm.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Held until the end: a client that hangs up ends the server by itself.
        let mut client = server.stdin.take().unwrap();
        client.write_all(MESSAGES.as_bytes()).unwrap();
        let wanted = Wanted {
            server: server.id(),
            jail: Path::new(""),
            id: "",
            limits: &sandbox::config().default_limits,
            way,
        };
        let traces = wanted.traces().await.unwrap();
        let family = traces.family();
        server.kill().unwrap();
        server.wait().unwrap();
        assert_eq!(traces.left_behind().await, Vec::<String>::new(), "{way:?}");
        assert_eq!(family.left_behind().await, Vec::<String>::new(), "{way:?}");
    }
}

/// A client that greets, and runs something that takes long.
const MESSAGES: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#,
    "\n",
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    "\n",
    r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"execute_python","arguments":{"code":"import time\ntime.sleep(1000)"}}}"#,
    "\n",
);

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
