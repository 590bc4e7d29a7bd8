//! How code can end, on a real sandbox: after each way the next turn works, and of the sandbox
//! nothing is left: no process, no cgroup, no mount, no directory. And what hostile code can do to
//! its own turn.

use std::{os::unix::fs::MetadataExt, time::Duration};

use mcp_forge::{
    config::Rootfs,
    engine::ExitCause,
    turn::{Outcome, Report},
};
use serde_json::{Value, json};

use crate::sandbox::{config, ends_clean, run_with};

/// Runs code with a short timeout, then looks for what it left and runs another turn.
async fn run(code: &str) -> Report {
    let mut config = config();
    config.default_limits.timeout = Duration::from_mins(1);
    ends_clean(&config, code).await
}

/// What the answers say is the contract's: `contract/outcomes.rs`, `limits.rs`, `processes.rs`.
/// Here each way to end is followed by a look at what it left.
const ENDS: &[(&str, &str)] = &[
    (
        "completed",
        "import os\nprint('hi')\nos.system('echo from a child')\n{'a': [1, 2.5, None]}",
    ),
    ("raised", "def f():\n    return 1 / 0\nf()"),
    ("raised", "x = 1\ny = (\n"),
    (
        "out_of_memory",
        "chunks = []\nwhile True: chunks.append(bytearray(8 << 20))",
    ),
    (
        "out_of_memory",
        "
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = [b'x' * (1 << 20) for _ in range(120)]
        time.sleep(1000)
time.sleep(1000)",
    ),
    (
        "crashed",
        "import os\nprint('last words', flush=True)\nos._exit(7)",
    ),
    ("crashed", "import ctypes\nctypes.string_at(0)"),
    ("raised", "def f(): return f()\nf()"),
    (
        "completed",
        "
import os, signal, time
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 64):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        os.write(write, b'ready')
        while True:
            time.sleep(0.1)
    os._exit(0)
os.read(read, 5).decode()",
    ),
    (
        "completed",
        "import os\nfor fd in (0, 1, 2): os.close(fd)\nos.system('echo unheard')",
    ),
    (
        "crashed",
        "import os, time\nos.closerange(0, 4096)\ntime.sleep(1000)",
    ),
    ("completed", "import sys\nsys.modules.clear()\n6 * 7"),
];

#[tokio::test]
async fn whichever_way_code_ends_nothing_of_its_sandbox_is_left() {
    for (outcome, code) in ENDS {
        let report = run(code).await;
        assert_eq!(report.outcome.name(), *outcome, "{code}: {report:?}");
    }
}

#[tokio::test]
async fn after_a_timeout_nothing_is_left_either() {
    let bomb = "
import os
while True:
    try:
        os.fork()
    except OSError:
        pass";
    let mut config = config();
    config.default_limits.timeout = Duration::from_secs(2);
    for code in ["while True: pass", bomb] {
        let report = ends_clean(&config, code).await;
        assert_eq!(report.outcome, Outcome::TimedOut, "{report:?}");
    }
}

/// Ten gigabytes are offered; what is kept stays within the cap, and the reader gives up early.
#[tokio::test]
async fn a_flood_of_output_is_cut_and_ended() {
    let code = "
import os
piece = b'x' * (1 << 20)
for _ in range(10 << 10):
    os.write(1, piece)";
    let report = run(code).await;
    assert_eq!(report.outcome, Outcome::OutputLimit, "{:?}", report.outcome);
    let cap = config().caps.output_bytes;
    assert!(
        report.stdout.text.len() < cap + 100,
        "{}",
        report.stdout.text.len()
    );
    assert!(report.stdout.text.contains("bytes left out"));
    assert!(report.stdout.dropped_bytes > 200 << 20);
}

/// With Python's own guard removed it is the C stack that ends it.
#[tokio::test]
async fn recursion_without_a_guard() {
    let code = "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr(self)\nrepr(A())";
    let report = run(code).await;
    let crashed = report.outcome == Outcome::Crashed(ExitCause::Signaled(11));
    assert!(crashed || report.outcome == Outcome::Raised, "{report:?}");
}

/// What code writes to the control descriptor can only be about itself: it ends its own turn.
#[tokio::test]
async fn forged_frames_end_the_turn_and_are_no_more_than_a_claim() {
    let forge = |body: &str| {
        format!("import os, struct, time\nbody = {body}\nos.write(3, body)\ntime.sleep(1000)")
    };
    let frame = |json: &str| {
        forge(&format!(
            "struct.pack('>I', {}) + b'''{json}'''",
            json.len()
        ))
    };
    let claimed = run(&frame(r#"{"type":"done","result":"forged"}"#)).await;
    assert_eq!(
        (claimed.outcome, claimed.result),
        (Outcome::Completed, json!("forged"))
    );
    for body in [
        "b'garbage garbage garbage'".to_owned(),
        "struct.pack('>I', 0xFFFFFFFF) + b'x'".to_owned(),
        "struct.pack('>I', 3) + b'{{{'".to_owned(),
    ] {
        let report = run(&forge(&body)).await;
        assert!(
            matches!(report.outcome, Outcome::Crashed(ExitCause::Lost(_))),
            "{body}: {report:?}"
        );
        assert_eq!(report.result, Value::Null);
    }
    // A call of a tool that was not granted is refused by the server, whatever the stubs say.
    let call = r#"{"type":"tool_call","call_id":1,"name":"anything","arguments":{}}"#;
    let code = frame(call).replace(
        "time.sleep(1000)",
        "os.read(3, 4); os.read(3, 4096).decode()",
    );
    let report = run(&code).await;
    assert!(
        report
            .result
            .as_str()
            .is_some_and(|text| text.contains("not_granted")),
        "{report:?}"
    );
    assert_eq!(report.tool_calls[0].status, "not_granted");
}

/// A runner that was replaced by user code caps nothing: then the server does.
#[tokio::test]
async fn frames_that_cost_memory_are_refused_or_cut() {
    let forge = |body: &str| {
        format!(
            "import os, struct\nbody = {body}\nframe = struct.pack('>I', len(body)) + body\nwhile frame: frame = frame[os.write(3, frame):]\nos.read(3, 1)"
        )
    };
    let many = r#"b'{"type":"done","result":[' + b'0,' * 3_000_000 + b'0]}'"#;
    let report = run(&forge(many)).await;
    assert!(matches!(report.outcome, Outcome::Crashed(_)), "{report:?}");
    let long = r#"b'{"type":"done","result":"' + b'x' * (5 << 20) + b'"}'"#;
    let report = run(&forge(long)).await;
    assert_eq!(
        (report.outcome, report.result),
        (Outcome::Completed, Value::Null)
    );
    assert!(
        report.truncated["result"]
            .as_u64()
            .is_some_and(|bytes| bytes > 5 << 20)
    );
}

/// Calls that are made without end, and whose answers nobody takes, end the turn.
#[tokio::test]
async fn calls_without_end_are_ended() {
    let code = r#"
import os, struct
call = b'{"type":"tool_call","call_id":1,"name":"anything","arguments":{}}'
frame = struct.pack('>I', len(call)) + call
while True:
    os.write(3, frame)
    os.read(3, 65536)"#;
    let report = run(code).await;
    assert!(matches!(report.outcome, Outcome::Crashed(_)), "{report:?}");
    assert!(
        report.tool_calls.len() <= 200,
        "{}",
        report.tool_calls.len()
    );
}

/// Pid 1 has the same user as the code: its priority and its limits must be out of reach, or it
/// could be kept from ending the sandbox.
#[tokio::test]
async fn the_sandboxs_init_cannot_be_starved() {
    let code = "
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
tries = {
    'setpriority': lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    'group': lambda: os.setpriority(os.PRIO_USER, 0, 19),
    'affinity': lambda: os.sched_setaffinity(1, {0}),
    'idle': lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
    'prlimit': lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)),
}
held = {}
for name, attempt in tries.items():
    try:
        attempt()
        held[name] = False
    except OSError:
        held[name] = True
os.setpriority(os.PRIO_PROCESS, 0, 5)
os.sched_setaffinity(0, os.sched_getaffinity(0))
held";
    let report = run(code).await;
    let all = ["setpriority", "group", "affinity", "idle", "prlimit"];
    for name in all {
        assert_eq!(report.result[name], json!(true), "{report:?}");
    }
}

/// A watch, a lock or a socket below a host tree would reach the host if it were the same object.
#[tokio::test]
async fn host_trees_are_not_the_hosts_own_objects() {
    let code = "
import os
[os.stat('/usr').st_dev, os.stat('/usr/bin/env').st_dev, os.stat('/etc/ld.so.cache').st_dev, int(open('/proc/self/oom_score_adj').read())]";
    let report = run(code).await;
    let values = report.result.as_array().expect("a list");
    let host = std::fs::metadata("/usr").unwrap().dev();
    for device in &values[..3] {
        assert_ne!(device.as_u64(), Some(host), "{report:?}");
    }
    assert_eq!(values[3], json!(500));
}

/// What the root shows can be listed as well as opened, whichever root it is.
#[tokio::test]
async fn both_roots_have_what_programs_look_for() {
    let code = "
import os, ssl, sqlite3, subprocess, sys, zoneinfo
shell = subprocess.run('ls /usr | grep -c bin', shell=True, capture_output=True, text=True)
[
    {'bin', 'lib'} <= set(os.listdir('/usr')),
    'python' in os.path.basename(sys.executable),
    len(os.listdir(os.path.dirname(os.__file__))) > 100,
    len(ssl.create_default_context().get_ca_certs()) > 10,
    str(zoneinfo.ZoneInfo('Europe/Berlin')),
    int(shell.stdout) >= 1,
    sqlite3.connect(':memory:').execute('select 41 + 1').fetchone(),
]";
    let home = tempfile::tempdir().unwrap();
    for rootfs in [Rootfs::Host, Rootfs::Minimal] {
        let mut config = config();
        config.native.rootfs = rootfs;
        config.data_dir = home.path().to_owned();
        let report = ends_clean(&config, code).await;
        let expected = json!([true, true, true, true, "Europe/Berlin", true, [42]]);
        assert_eq!(report.result, expected, "{rootfs:?}: {report:?}");
    }
}

#[tokio::test]
async fn two_turns_at_once_do_not_see_each_other() {
    let config = config();
    let code = "import os, time\nopen('/tmp/mine', 'x').close()\ntime.sleep(0.3)\n(sorted(os.listdir('/tmp')), len([p for p in os.listdir('/proc') if p.isdigit()]))";
    let (one, two) = tokio::join!(run_with(&config, code), run_with(&config, code));
    for report in [one, two] {
        // Its own process only: even the sandbox's init is hidden.
        assert_eq!(report.result, json!([["mine"], 1]), "{report:?}");
    }
}
