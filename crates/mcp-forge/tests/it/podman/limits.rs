//! Limits as they hold inside and as the host's control groups have them.

use mcp_forge::service::LimitsRequest;

use super::*;

const WHAT_HOLDS: &str = "
import os, resource
def read(*paths):
    for path in paths:
        try:
            return open('/sys/fs/cgroup/' + path).read().split()
        except OSError:
            pass
{
    'memory': read('memory.max', 'memory/memory.limit_in_bytes'),
    'pids': read('pids.max', 'pids/pids.max'),
    'cpu': read('cpu.max') or read('cpu/cpu.cfs_quota_us') + read('cpu/cpu.cfs_period_us'),
    'files': resource.getrlimit(resource.RLIMIT_NOFILE),
    'core': resource.getrlimit(resource.RLIMIT_CORE),
    'tmp': os.statvfs('/tmp').f_blocks * os.statvfs('/tmp').f_frsize,
    'shm': os.statvfs('/dev/shm').f_blocks * os.statvfs('/dev/shm').f_frsize,
}
";

fn asked(code: &str) -> ExecuteRequest {
    ExecuteRequest {
        limits: Some(LimitsRequest {
            memory: Some("128m".to_owned()),
            cpu_quota: Some(40_000),
            pids: Some(20),
            ..LimitsRequest::default()
        }),
        ..stateless(code)
    }
}

/// A value of the container's cgroup as the host has it, by its file's name in either version.
fn of_the_host(pid: i64, controller: &str, names: [&str; 2]) -> String {
    let lines = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let candidates = lines.lines().filter_map(|line| {
        let (kinds, path) = line.split_once(':')?.1.split_once(':')?;
        let base = if kinds.split(',').any(|kind| kind == controller) {
            format!("/sys/fs/cgroup/{controller}{path}/{}", names[1])
        } else if kinds.is_empty() {
            format!("/sys/fs/cgroup{path}/{}", names[0])
        } else {
            return None;
        };
        std::fs::read_to_string(base).ok()
    });
    let found: Vec<String> = candidates.map(|text| text.trim().to_owned()).collect();
    assert_eq!(found.len(), 1, "{controller}: {lines}");
    found[0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_inside_and_in_the_hosts_control_groups() {
    let field = Field::new();
    let service = field.server(|_| {});
    let answer = execute(&service, asked(WHAT_HOLDS)).await;
    let inside = answer.result;
    assert_eq!(inside["memory"], json!(["134217728"]), "{:?}", answer.error);
    // The relay is one more.
    assert_eq!(inside["pids"], json!(["21"]));
    assert_eq!(inside["cpu"], json!(["40000", "100000"]));
    assert_eq!(inside["files"], json!([4096, 4096]));
    assert_eq!(inside["core"], json!([0, 0]));
    for (name, least) in [("tmp", (128 << 20) / 5), ("shm", (128 << 20) / 8)] {
        let size = inside[name].as_u64().unwrap();
        assert!(size.abs_diff(least) < 8192, "{name}: {size}");
    }
    assert!(
        answer
            .isolation
            .limits
            .iter()
            .all(|limit| limit.state == mcp_forge::engine::LayerState::Enforced),
        "{:?}",
        answer.isolation.limits
    );

    let turn = begin(&service, asked(ENDLESS)).await;
    let [one] = &field.wait_running(1).await[..] else {
        panic!("{:?}", field.containers())
    };
    let pid = inspect(&one.id)["State"]["Pid"].as_i64().unwrap();
    assert_eq!(
        of_the_host(pid, "memory", ["memory.max", "memory.limit_in_bytes"]),
        "134217728"
    );
    assert_eq!(of_the_host(pid, "pids", ["pids.max", "pids.max"]), "21");
    let cpu = of_the_host(pid, "cpu", ["cpu.max", "cpu.cfs_quota_us"]);
    assert!(cpu.starts_with("40000"), "{cpu}");
    turn.abort();
    field.wait_empty().await;
    service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_over_a_limit_is_ended_or_refused() {
    let field = Field::new();
    let service = field.server(|_| {});
    let hoard = "blocks = []\nwhile True: blocks.append(bytearray(1 << 20))";
    let answer = execute(&service, asked(hoard)).await;
    assert_eq!(answer.outcome, "out_of_memory", "{:?}", answer.error);
    let in_child = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'x = []\\nwhile True: x.append(bytearray(1 << 20))']).returncode";
    let answer = execute(&service, asked(in_child)).await;
    assert_ne!(answer.result, 0, "{:?}", answer.error);
    let threads = "
import threading
count = 0
try:
    for _ in range(100):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        count += 1
except RuntimeError:
    pass
count";
    let answer = execute(&service, asked(threads)).await;
    // The relay and the interpreter are two of the 21.
    assert_eq!(answer.result, 19, "{:?}", answer.error);
    let fill = "
written = 0
try:
    with open('/tmp/full', 'wb') as file:
        while True: written += file.write(b'x' * 65536)
except OSError as problem:
    pass
written < 30_000_000";
    assert_eq!(execute(&service, asked(fill)).await.result, true);
    service.shutdown().await;
    field.wait_empty().await;
}
