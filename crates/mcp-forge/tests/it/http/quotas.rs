//! CPU seconds that a principal may use in an hour: measured by the kernel, charged to nobody else.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    observed::{execute, metrics},
    served::{Reply, Served, token, write_private},
};

/// Uses somewhat more than a second of CPU time.
pub(super) const BURN: &str =
    "import time\nend = time.process_time() + 1.2\nwhile time.process_time() < end: pass";

fn tokens(served: &Served, quotas: &[(&str, &str)]) {
    let entries = quotas.iter().map(|(who, quotas)| {
        let hash = Sha256::digest(token(who));
        format!(
            "- {{principal: {who}, sha256: \"{hash:x}\", scopes: [run, admin], quotas: {{{quotas}}}}}\n"
        )
    });
    let text = format!("tokens:\n{}", entries.collect::<String>());
    write_private(&served.directory.path().join("tokens.yaml"), &text);
}

fn post(served: &Served, who: &str, address: &str, body: &Value) -> Reply {
    let authorization = format!("Authorization: Bearer {}", token(who));
    let headers = [authorization.as_str(), "Content-Type: application/json"];
    served.request(&format!("POST {address}"), &headers, &body.to_string())
}

fn assert_refused(reply: &Reply, per_hour: u32) {
    assert_eq!(reply.status, 429, "{reply:?}");
    let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((3_400..=3_660).contains(&wait), "{wait}");
    let detail = reply.json()["detail"].as_str().unwrap().to_owned();
    assert!(
        detail.contains(&format!("the {per_hour} CPU seconds")),
        "{detail}"
    );
}

#[test]
fn whoever_has_used_the_cpu_time_of_an_hour_waits_and_harms_nobody() {
    let served = Served::start(&[("MCP_FORGE_SERVER_CPU_SECONDS_PER_HOUR", "1")]);
    tokens(
        &served,
        &[
            ("ada", ""),
            ("bob", ""),
            ("rich", "cpu_seconds_per_hour: 1000"),
            ("admin", ""),
        ],
    );
    let burn = json!({"code": BURN});
    // One that has begun is not cut.
    assert_eq!(execute(&served, "ada", &burn)["outcome"], "completed");
    let small = json!({"code": "1"});
    assert_refused(&post(&served, "ada", "/api/v1/execute", &small), 1);
    assert_refused(
        &post(&served, "ada", "/api/v1/execute?wait=false", &small),
        1,
    );
    assert_refused(
        &post(&served, "ada", "/api/v1/sandbox/spawn", &json!({})),
        1,
    );
    let build = json!({"name": "mine", "packages": ["six"]});
    assert_refused(&post(&served, "ada", "/api/v1/environments", &build), 1);
    // Over MCP it is a tool's error, as with other quotas; what takes no CPU time goes on.
    let refused = served.tool("ada", "execute_python", &small);
    assert_eq!(refused["isError"], true, "{refused}");
    let text = refused["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("the 1 CPU seconds"), "{text}");
    let listed = served.tool("ada", "list_sessions", &json!({}));
    assert_ne!(listed["isError"], true, "{listed}");
    // Others have theirs, and one has more.
    assert_eq!(execute(&served, "bob", &small)["outcome"], "completed");
    assert_eq!(execute(&served, "rich", &burn)["outcome"], "completed");
    assert_eq!(execute(&served, "rich", &small)["outcome"], "completed");
    let page = metrics(&served);
    let refused = "mcp_forge_executions_refused_total{reason=\"cpu_quota\"} 4";
    assert!(page.lines().any(|line| line == refused), "{page}");
    // The operator gives more: at once.
    tokens(&served, &[("ada", "cpu_seconds_per_hour: 100")]);
    assert_eq!(execute(&served, "ada", &small)["outcome"], "completed");
}

/// Neither giving up nor leaving threads behind makes CPU time free.
#[test]
fn cpu_time_that_no_answer_tells_of_is_charged() {
    let served = Served::start(&[("MCP_FORGE_SERVER_CPU_SECONDS_PER_HOUR", "1")]);
    tokens(&served, &[("ada", ""), ("bob", "")]);
    // A session whose turn is over at once, and whose thread is not.
    let thread = "import threading\ndef burn():\n    while True: pass\nthreading.Thread(target=burn, daemon=True).start()";
    let body = json!({"code": thread, "session_id": "busy"});
    assert_eq!(execute(&served, "ada", &body)["outcome"], "completed");
    wait_refused(&served, "ada");
    // A turn that nobody waits for any more.
    let body = json!({"code": "while True: pass"});
    let started = post(&served, "bob", "/api/v1/execute?wait=false", &body);
    assert_eq!(started.status, 202, "{started:?}");
    // While it runs it counts as far as it has come.
    wait_refused(&served, "bob");
    let address = started.header("location").unwrap().to_owned();
    let authorization = format!("Authorization: Bearer {}", token("bob"));
    served.request(&format!("DELETE {address}"), &[&authorization], "");
    assert_refused(
        &post(&served, "bob", "/api/v1/execute", &json!({"code": "1"})),
        1,
    );
}

fn wait_refused(served: &Served, who: &str) {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let reply = post(served, who, "/api/v1/execute", &json!({"code": "1"}));
        if reply.status == 429 {
            return assert_refused(&reply, 1);
        }
        assert!(Instant::now() < deadline, "{reply:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
