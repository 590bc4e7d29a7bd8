//! Traces: where they come from, and where they go.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use super::{
    collector::{Collector, Seen},
    observed::run,
    served::{PATIENCE, Reply, Served, modern_meta, token},
};

pub(super) const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Asks both upstreams what they were told, and prints it.
const CODE: &str = "import json\nprint(json.dumps([local_meta(), remote_meta()]))";

fn traceparent() -> String {
    format!("00-{TRACE}-{PARENT}-01")
}

/// A configuration file in which `upstream.py` is called by each of these names.
pub(super) fn config_with_upstreams(names: &[&str], more: Value) -> tempfile::NamedTempFile {
    let upstream = json!({"command": "python3", "args": ["-c", include_str!("upstream.py")]});
    let mut config = more;
    for name in names {
        config["mcp_tools"][name] = upstream.clone();
    }
    let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    std::fs::write(file.path(), config.to_string()).unwrap();
    file
}

/// `upstream.py` over HTTP, killed when dropped.
struct Remote {
    child: Child,
    url: String,
}

impl Remote {
    fn start() -> Self {
        let mut child = run("python3")
            .args(["-c", include_str!("upstream.py"), "http"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let url = format!("http://127.0.0.1:{}/mcp", line.trim());
        Self { child, url }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server with both upstreams, and whatever else.
fn served(remote: &Remote, telemetry: &Value, variables: &[(&str, &str)]) -> Served {
    let more = json!({"telemetry": telemetry, "mcp_tools": {"remote": {"url": remote.url}}});
    let config = config_with_upstreams(&["local"], more);
    let file = config.path().to_str().unwrap().to_owned();
    let mut all = vec![
        ("MCP_FORGE_CONFIG", file.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ];
    all.extend(variables);
    Served::start(&all)
}

fn execute(served: &Served, headers: &[&str], more: &Value) -> Reply {
    let mut body = json!({"code": CODE, "mcp_tools": ["local_meta", "remote_meta"]});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let mut all = vec![authorization.as_str(), "Content-Type: application/json"];
    all.extend(headers);
    served.request("POST /api/v1/execute", &all, &body.to_string())
}

/// What each upstream was told.
fn told(response: &Value) -> (Value, Value) {
    let text = response["stdout"]
        .as_str()
        .unwrap_or_else(|| panic!("{response}"));
    let mut both: Vec<Value> = serde_json::from_str(text).unwrap_or_else(|_| panic!("{response}"));
    let remote = both.pop().unwrap();
    (both.pop().unwrap(), remote)
}

fn one<'a>(spans: &'a [Seen], name: &str) -> &'a Seen {
    let mut found = spans.iter().filter(|span| span.name == name);
    let one = found
        .next()
        .unwrap_or_else(|| panic!("no {name} in {spans:#?}"));
    assert!(found.next().is_none(), "{name} twice in {spans:#?}");
    one
}

#[test]
fn one_trace_goes_from_a_request_through_the_turn_to_both_upstreams() {
    let (collector, remote) = (Collector::start(), Remote::start());
    let telemetry = json!({
        "otlp_endpoint": format!("http://{}", collector.address),
        "otlp_headers": {"x-key": "canary-of-collector"},
        "service_name": "forge-under-test",
    });
    let served = served(&remote, &telemetry, &[]);
    let parent = format!("traceparent: {}", traceparent());
    let reply = execute(
        &served,
        &[&parent, "tracestate: vendor=1", "baggage: user=1"],
        &json!({}),
    );
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(!format!("{reply:?}").contains(PARENT) && reply.header("traceparent").is_none());
    let (local, far) = told(&reply.json());

    let http = "POST /api/v1/execute";
    let spans = collector.wait(&[
        http,
        "execution",
        "queue",
        "sandbox",
        "run",
        "tools/call local_meta",
        "tools/call remote_meta",
    ]);
    for span in &spans {
        assert_eq!(
            (span.trace.as_str(), span.state.as_str()),
            (TRACE, "vendor=1"),
            "{span:?}"
        );
    }
    let (http, execution) = (one(&spans, http), one(&spans, "execution"));
    assert_eq!((http.parent.as_str(), http.kind), (PARENT, 2));
    assert_eq!(http.attributes["http.response.status_code"], "200");
    assert_eq!(http.attributes["principal"], "ada");
    assert_eq!(execution.parent, http.id);
    assert_eq!(execution.attributes["outcome"], "completed");
    assert_eq!(
        execution.attributes["execution_id"],
        reply.json()["execution_id"].as_str().unwrap()
    );
    for part in ["queue", "sandbox", "run"] {
        assert_eq!(one(&spans, part).parent, execution.id, "{part}");
    }
    for (name, told) in [
        ("tools/call local_meta", &local),
        ("tools/call remote_meta", &far),
    ] {
        let tool = one(&spans, name);
        assert_eq!(
            (tool.parent.as_str(), tool.kind),
            (execution.id.as_str(), 3),
            "{tool:?}"
        );
        assert_eq!(tool.attributes["status"], "ok");
        let expected = format!("00-{TRACE}-{}-01", tool.id);
        assert_eq!(told["meta"]["traceparent"], expected);
        assert_eq!(told["meta"]["tracestate"], "vendor=1");
        assert_eq!(told["meta"]["baggage"], "user=1");
    }
    // Who looks at headers finds the same there.
    for name in ["traceparent", "tracestate", "baggage"] {
        assert_eq!(far["headers"][name], far["meta"][name], "{name}");
    }
    assert!(
        collector
            .services()
            .iter()
            .all(|name| name == "forge-under-test")
    );
    assert!(
        collector
            .keys()
            .iter()
            .all(|key| key == "canary-of-collector")
            && !collector.keys().is_empty()
    );
    // Nothing of the code, and nobody's secrets.
    let all = format!("{spans:?}");
    for secret in ["json.dumps", "token-of-ada", "canary"] {
        assert!(!all.contains(secret), "{secret}: {all}");
    }
}

/// In a session's own task, over MCP, with the trace in the message: what the HTTP request says is linked.
#[test]
fn a_message_says_itself_which_trace_it_belongs_to() {
    let (collector, remote) = (Collector::start(), Remote::start());
    // As operators of other services say it.
    let endpoint = format!("http://{}", collector.address);
    let served = served(
        &remote,
        &json!({}),
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)],
    );
    let mut meta = modern_meta();
    meta["traceparent"] = traceparent().into();
    let arguments =
        json!({"code": CODE, "mcp_tools": ["local_meta", "remote_meta"], "session_id": "s"});
    let params = json!({"name": "execute_python", "arguments": arguments, "_meta": meta});
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let headers = [
        "MCP-Protocol-Version: 2026-07-28",
        "Mcp-Method: tools/call",
        "Mcp-Name: execute_python",
    ];
    let answer = served.post("ada", &headers, &message.to_string()).message();
    let (local, far) = told(&answer["result"]["structuredContent"]);
    let names = [
        "POST /mcp",
        "tools/call execute_python",
        "execution",
        "session",
        "tools/call local_meta",
        "tools/call remote_meta",
    ];
    let spans = collector.wait(&names);
    let (http, mcp) = (
        one(&spans, "POST /mcp"),
        one(&spans, "tools/call execute_python"),
    );
    assert_ne!(http.trace, TRACE);
    assert_eq!((mcp.trace.as_str(), mcp.parent.as_str()), (TRACE, PARENT));
    assert_eq!(mcp.links, std::slice::from_ref(&http.id));
    let execution = one(&spans, "execution");
    assert_eq!(execution.parent, mcp.id);
    assert_eq!(one(&spans, "session").parent, execution.id);
    for (name, told) in [
        ("tools/call local_meta", &local),
        ("tools/call remote_meta", &far),
    ] {
        let tool = one(&spans, name);
        assert_eq!((&tool.parent, tool.trace.as_str()), (&execution.id, TRACE));
        assert_eq!(
            told["meta"]["traceparent"],
            format!("00-{TRACE}-{}-01", tool.id)
        );
    }
    let services = collector.services();
    assert!(!services.is_empty() && services.iter().all(|name| name == "mcp-forge"));
}

#[test]
fn without_a_collector_a_trace_is_passed_on_as_it_came() {
    let remote = Remote::start();
    let served = served(&remote, &json!({}), &[]);
    let parent = format!("traceparent: {}", traceparent());
    let (local, far) = told(&execute(&served, &[&parent, "tracestate: a=1"], &json!({})).json());
    for told in [&local["meta"], &far["meta"], &far["headers"]] {
        assert_eq!(told["traceparent"], traceparent());
        assert_eq!(told["tracestate"], "a=1");
        assert_eq!(told["baggage"], Value::Null);
    }
    // Not asked for, or not by the grammar: nobody is told of it.
    let twice = [parent.as_str(), parent.as_str()];
    for headers in [
        &[][..],
        &["traceparent: 00-hostile"],
        &twice,
        &["tracestate: a=1"],
    ] {
        let reply = execute(&served, headers, &json!({"session_id": "s"}));
        let (local, far) = told(&reply.json());
        for told in [&local["meta"], &far["meta"], &far["headers"]] {
            assert_eq!(
                (&told["traceparent"], &told["tracestate"]),
                (&Value::Null, &Value::Null),
                "{headers:?}"
            );
        }
        assert!(!format!("{reply:?}").contains("hostile"));
    }
    // A request that nobody waits for keeps its trace.
    let body = json!({"code": CODE, "mcp_tools": ["local_meta", "remote_meta"]}).to_string();
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let headers = [
        authorization.as_str(),
        "Content-Type: application/json",
        &parent,
    ];
    let started = served.request("POST /api/v1/execute?wait=false", &headers, &body);
    let address = started.header("location").unwrap();
    let asked = std::time::Instant::now();
    let ended = loop {
        assert!(asked.elapsed() < PATIENCE, "it never ended");
        let view = served
            .request(&format!("GET {address}"), &[&authorization], "")
            .json();
        if view["state"] == "ended" {
            break view;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert!(ended.to_string().contains(PARENT), "{ended}");
}

/// Neither one that hangs nor one that is not there holds anything up, and the server ends.
#[test]
fn a_collector_that_is_dead_harms_nobody() {
    let remote = Remote::start();
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    // Nobody listens at the first of all ports.
    let refusing = SocketAddr::from(([127, 0, 0, 1], 1));
    for address in [hanging.local_addr().unwrap(), refusing] {
        let telemetry = json!({"otlp_endpoint": format!("http://user:canary@{address}")});
        let variables = [
            ("OTEL_BSP_MAX_QUEUE_SIZE", "64"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16"),
        ];
        let served = served(&remote, &telemetry, &variables);
        // Far more spans than wait.
        for _ in 0..40 {
            assert_eq!(execute(&served, &[], &json!({})).status, 200);
        }
        let pid = rustix::process::Pid::from_child(&served.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let (code, said) = served.wait();
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("canary"), "{said}");
        if address == refusing {
            assert_eq!(
                said.matches("do not reach the collector").count(),
                1,
                "{said}"
            );
        }
    }
}

/// On standard input and output: traces go to the collector, and nothing but protocol to the client.
#[test]
fn on_standard_output_there_is_only_protocol() {
    let collector = Collector::start();
    let directory = tempfile::tempdir().unwrap();
    let mut child = crate::cli::command(directory.path(), &["serve"])
        .env(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            format!("http://{}", collector.address),
        )
        .env("MCP_FORGE_LOG_FORMAT", "json")
        .env("MCP_FORGE_LOG", "info")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut meta = modern_meta();
    meta["traceparent"] = traceparent().into();
    let params = json!({"name": "execute_python", "arguments": {"code": "6 * 7"}, "_meta": meta});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{message}").unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(
        answer["result"]["structuredContent"]["result"], 42,
        "{answer}"
    );
    drop(input);
    for line in lines {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(message["jsonrpc"], "2.0");
    }
    assert!(child.wait().unwrap().success());
    // What the last batch had was sent at the end.
    let spans = collector.wait(&["tools/call execute_python", "execution"]);
    let mcp = one(&spans, "tools/call execute_python");
    assert_eq!((mcp.trace.as_str(), mcp.parent.as_str()), (TRACE, PARENT));
}
