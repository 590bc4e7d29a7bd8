//! What operators see: metrics, scraped by a real Prometheus.

use std::{
    ffi::OsStr,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    served::{Served, token},
    traced::config_with_upstreams,
};
use crate::bridge::free_port;

/// A program of Debian's package; `cargo xtask test install` fetches it.
fn program(name: &str) -> PathBuf {
    let tools = std::env::var_os("FORGE_TEST_TOOLS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-tools"),
        PathBuf::from,
    );
    tools.join("prometheus").join(name)
}

#[expect(
    clippy::disallowed_methods,
    reason = "programs beside the one under test"
)]
pub(super) fn run(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// Prometheus, killed when dropped.
struct Prometheus {
    child: Child,
    address: String,
    data: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Scrapes a server every second, with the configuration that the documentation has.
    fn start(served: &Served) -> Self {
        let data = tempfile::tempdir().unwrap();
        let documented = include_str!("../../../../../docs/http.md");
        let (_, after) = documented.split_once("```yaml\nscrape_configs:\n").unwrap();
        let (scrape, _) = after.split_once("```").unwrap();
        let scrape = scrape
            .replace("mcpf_0d6f...", &token("admin"))
            .replace("127.0.0.1:3000", &served.address.to_string());
        let config = format!("global: {{scrape_interval: 1s}}\nscrape_configs:\n{scrape}");
        let file = data.path().join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let checked = run(program("promtool"))
            .args(["check", "config"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(checked.status.success(), "{checked:?}");
        let address = format!("127.0.0.1:{}", free_port());
        let said = fs::File::create(data.path().join("said")).unwrap();
        let child = run(program("prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                data.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .unwrap();
        Self {
            child,
            address,
            data,
        }
    }

    /// The value of an expression, once there is one.
    fn value(&self, expression: &str) -> f64 {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let answer = run("curl")
                .args(["--silent", "--get", "--data-urlencode"])
                .arg(format!("query={expression}"))
                .arg(format!("http://{}/api/v1/query", self.address))
                .output()
                .unwrap();
            let answer: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
            if let Some(value) = answer["data"]["result"][0]["value"][1].as_str() {
                return value.parse().unwrap();
            }
            assert!(
                Instant::now() < deadline,
                "{expression}: {answer}\n{}",
                fs::read_to_string(self.data.path().join("said")).unwrap()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until an expression has a value: what is there at this moment, a sandbox that is being ended
    /// among it, is told at the next scrape.
    fn becomes(&self, expression: &str, expected: f64) {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let found = self.value(expression);
            if (found - expected).abs() < 0.001 {
                return;
            }
            assert!(Instant::now() < deadline, "{expression}: {found}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn prometheus_reads_what_is_counted() {
    let config = config_with_upstreams(&["odd\"name"], json!({}));
    let served = Served::start(&[("MCP_FORGE_CONFIG", config.path().to_str().unwrap())]);
    let code = "x = bytearray(80 << 20)\nt = 0\nfor i in range(3_000_000): t += i\n\
                odd_name_meta()\n\
                try:\n    odd_name_fails()\nexcept Exception as e:\n    print(e)\n";
    let body = json!({"code": code, "mcp_tools": ["odd_name_meta", "odd_name_fails"]});
    let ran = execute(&served, "ada", &body);
    assert_eq!(ran["outcome"], "completed", "{ran}");
    let ran = execute(&served, "ada", &json!({"code": "1", "session_id": "kept"}));
    assert_eq!(ran["outcome"], "completed", "{ran}");

    let page = metrics(&served);
    let mut promtool = run(program("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(page.as_bytes())
        .unwrap();
    let checked = promtool.wait_with_output().unwrap();
    let said = [checked.stdout, checked.stderr].concat();
    assert!(
        checked.status.success() && said.is_empty(),
        "{}",
        String::from_utf8_lossy(&said)
    );
    // Nobody's name, and nothing of theirs.
    for word in ["ada", "kept", "token", "bytearray"] {
        assert!(!page.contains(word), "{word}: {page}");
    }

    let prometheus = Prometheus::start(&served);
    let value = |expression: &str| prometheus.value(expression);
    value("up{job=\"mcp-forge\"} == 1");
    for (expression, expected) in [
        (
            r#"mcp_forge_executions_total{sandbox="fresh",outcome="completed"}"#,
            1.0,
        ),
        (
            r#"mcp_forge_tool_calls_total{upstream="odd\"name",status="ok"}"#,
            1.0,
        ),
        (
            r#"mcp_forge_tool_calls_total{upstream="odd\"name",status="tool"}"#,
            1.0,
        ),
        (
            r#"mcp_forge_tool_call_duration_seconds_count{upstream="odd\"name"}"#,
            2.0,
        ),
        ("mcp_forge_sessions_live", 1.0),
        (r#"mcp_forge_sandboxes{state="in_use"}"#, 1.0),
        ("count(mcp_forge_sandboxes)", 3.0),
        (
            r#"mcp_forge_execution_duration_seconds_count{sandbox="fresh"}"#,
            1.0,
        ),
        (
            r#"mcp_forge_execution_overhead_seconds_count{sandbox="session"}"#,
            1.0,
        ),
        (r#"mcp_forge_queue_seconds_count{sandbox="fresh"}"#, 1.0),
        (r#"mcp_forge_upstreams{state="ready"}"#, 1.0),
        (
            r#"count(mcp_forge_sandbox_memory_bytes{engine="native"})"#,
            1.0,
        ),
    ] {
        prometheus.becomes(expression, expected);
    }
    // Some CPU time was measured, by both who can.
    value("mcp_forge_execution_cpu_seconds_total > 0.05");
    value(r#"mcp_forge_sandbox_cpu_seconds_total{engine="native"} > 0.05"#);
}

/// Where a cgroup counts memory, a turn that used 80 MiB is no small one, and what lives is summed.
#[test]
fn memory_is_told_where_it_is_counted() {
    let served = Served::start(&[]);
    let body = json!({"code": "x = bytearray(80 << 20)", "session_id": "kept"});
    let ran = execute(&served, "ada", &body);
    let is_counted = ran["usage"]["memory_peak_bytes"].is_u64();
    let page = metrics(&served);
    let value = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().parse::<f64>().unwrap())
    };
    let peak = "mcp_forge_execution_memory_peak_bytes_bucket{sandbox=\"session\",le=\"67108864\"}";
    let now = value("mcp_forge_sandbox_memory_bytes{engine=\"native\"}").unwrap();
    if is_counted {
        assert_eq!(value(peak), Some(0.0), "{page}");
        assert!(now > 80_000_000.0, "{now}");
    } else {
        assert_eq!(value(peak), None);
        assert!(now.abs() < 0.1);
    }
}

pub(super) fn execute(served: &Served, who: &str, body: &Value) -> Value {
    let authorization = format!("Authorization: Bearer {}", token(who));
    let headers = [authorization.as_str(), "Content-Type: application/json"];
    served
        .request("POST /api/v1/execute", &headers, &body.to_string())
        .json()
}

pub(super) fn metrics(served: &Served) -> String {
    let authorization = format!("Authorization: Bearer {}", token("admin"));
    served.request("GET /metrics", &[&authorization], "").body
}
