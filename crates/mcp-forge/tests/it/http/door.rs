//! MCP over HTTP: every era on one address, and what an ordinary client meets.

use std::io::{Read, Write};

use serde_json::json;

use super::served::{Served, initialize, modern_meta, token};

#[test]
fn clients_of_every_version_are_served_at_one_address() {
    let served = Served::start(&[]);
    for version in ["2025-06-18", "2025-11-25"] {
        let opened = served.post("ada", &[], &initialize(version));
        assert_eq!(opened.status, 200, "{opened:?}");
        assert_eq!(opened.message()["result"]["protocolVersion"], version);
        let session = format!(
            "Mcp-Session-Id: {}",
            opened.header("mcp-session-id").unwrap()
        );
        let version = format!("MCP-Protocol-Version: {version}");
        let headers = [session.as_str(), version.as_str()];
        let told = served.post(
            "ada",
            &headers,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        );
        assert_eq!(told.status, 202, "{told:?}");
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "execute_python", "arguments": {"code": "print('hello'); 6 * 7"}}});
        let answer = served.post("ada", &headers, &call.to_string()).message();
        assert_eq!(answer["id"], 2);
        assert_eq!(
            answer["result"]["structuredContent"]["result"], 42,
            "{answer}"
        );

        let authorization = format!("Authorization: Bearer {}", token("ada"));
        let ended = served.request("DELETE /mcp", &[&authorization, headers[0], headers[1]], "");
        assert!(ended.status < 300, "{ended:?}");
        assert_eq!(served.post("ada", &headers, &call.to_string()).status, 404);
    }

    let discovered = served.call("ada", "server/discover", json!({}));
    let versions = discovered["result"]["supportedVersions"].to_string();
    assert!(versions.contains("2026-07-28"), "{discovered}");
    let result = served.tool("ada", "execute_python", &json!({"code": "6 * 7"}));
    assert_eq!(result["structuredContent"]["result"], 42, "{result}");
}

#[test]
fn a_version_without_a_handshake_does_not_know_one() {
    let served = Served::start(&[]);
    let modern = ["MCP-Protocol-Version: 2026-07-28", "Mcp-Method: initialize"];
    let refused = served.post("ada", &modern, &initialize("2025-11-25"));
    assert_eq!(refused.status, 404, "{refused:?}");
    let message = refused.message();
    assert_eq!(
        (&message["id"], &message["error"]["code"]),
        (&json!(1), &json!(-32601))
    );
    assert_eq!(refused.header("mcp-session-id"), None, "{refused:?}");
    let older = ["MCP-Protocol-Version: 2025-11-25"];
    let opened = served.post("ada", &older, &initialize("2025-11-25"));
    assert_eq!(opened.status, 200, "{opened:?}");
}

#[test]
fn headers_that_contradict_the_message_are_refused() {
    let served = Served::start(&[]);
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
        "name": "list_sessions", "arguments": {}, "_meta": modern_meta()}})
    .to_string();
    let send = |headers: &[&str]| {
        let reply = served.post("ada", headers, &message);
        let code = reply.message()["error"]["code"].as_i64();
        (reply.status, code)
    };
    let (version, method, name) = (
        "MCP-Protocol-Version: 2026-07-28",
        "Mcp-Method: tools/call",
        "Mcp-Name: list_sessions",
    );
    assert_eq!(send(&[version, method, name]), (200, None));
    for wrong in [
        &[version][..],
        &[method, name],
        &[version, method],
        &[version, method, "Mcp-Name: delete_session"],
        &[version, "Mcp-Method: tools/list", name],
        &["MCP-Protocol-Version: 2025-11-25", method, name],
    ] {
        assert_eq!(send(wrong), (400, Some(-32020)), "{wrong:?}");
    }
    // A session's name of the older versions is passed over and none is made.
    let reply = served.post(
        "ada",
        &[version, method, name, "Mcp-Session-Id: 1"],
        &message,
    );
    assert_eq!((reply.status, reply.header("mcp-session-id")), (200, None));
    // A version that nobody knows: the answer says which there are.
    let odd = message.replace("2026-07-28", "2030-01-01");
    let reply = served.post(
        "ada",
        &["MCP-Protocol-Version: 2030-01-01", method, name],
        &odd,
    );
    assert_eq!(reply.status, 400, "{reply:?}");
    let error = reply.message()["error"].clone();
    assert_eq!(error["code"], -32022, "{error}");
    assert!(
        error["data"]["supported"]
            .to_string()
            .contains("2026-07-28"),
        "{error}"
    );
}

#[test]
fn closing_the_stream_ends_the_turn_of_a_newer_client() {
    let served = Served::start(&[]);
    let mut message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
        "name": "execute_python", "arguments": {"code": "print('on', flush=True)\nimport time\ntime.sleep(1000)"},
        "_meta": modern_meta()}});
    message["params"]["_meta"]["progressToken"] = 1.into();
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let headers = [
        authorization.as_str(),
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        "MCP-Protocol-Version: 2026-07-28",
        "Mcp-Method: tools/call",
        "Mcp-Name: execute_python",
    ];
    let mut stream = served.connect();
    stream
        .write_all(&served.bytes("POST /mcp", &headers, &message.to_string()))
        .unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    // Progress with what the code printed: it runs.
    while !seen.contains(": on") {
        let read = stream.read(&mut buffer).unwrap();
        assert_ne!(read, 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    drop(stream);
    let ended = || {
        let audit = served.call(
            "admin",
            "resources/read",
            json!({"uri": "mcp://forge/audit/operations"}),
        );
        let records = audit["result"]["contents"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned();
        let records: Vec<serde_json::Value> = serde_json::from_str(&records).unwrap();
        records
            .iter()
            .any(|record| record["event"] == "execution" && record["outcome"] == "cancelled")
    };
    let deadline = std::time::Instant::now() + super::served::PATIENCE;
    while !ended() {
        assert!(std::time::Instant::now() < deadline, "the turn goes on");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn what_was_done_is_counted_for_those_who_may_see_it() {
    let served = Served::start(&[]);
    for code in ["1", "2", "1 / 0"] {
        served.tool("ada", "execute_python", &json!({"code": code}));
    }
    served.tool(
        "ada",
        "execute_python",
        &json!({"code": "1", "session_id": "s"}),
    );
    served.tool("ada", "execute_python", &json!({"code": "1", "timeot": 1}));
    served.tool(
        "ada",
        "execute_python",
        &json!({"code": "1", "timeout": -1}),
    );
    let read = |who: &str| {
        let authorization = format!("Authorization: Bearer {}", token(who));
        served.request("GET /metrics", &[&authorization], "")
    };
    assert_eq!(served.request("GET /metrics", &[], "").status, 401);
    assert_eq!(read("ada").status, 403);
    let metrics = read("admin");
    assert_eq!(
        metrics.header("content-type"),
        Some("text/plain; version=0.0.4")
    );
    for line in [
        "mcp_forge_executions_total{sandbox=\"fresh\",outcome=\"completed\"} 2",
        "mcp_forge_executions_total{sandbox=\"fresh\",outcome=\"raised\"} 1",
        "mcp_forge_executions_total{sandbox=\"session\",outcome=\"completed\"} 1",
        "mcp_forge_executions_refused_total{reason=\"invalid\"} 1",
        "mcp_forge_executions_running 0",
        "mcp_forge_sessions_live 1",
        "mcp_forge_execution_duration_seconds_count{sandbox=\"fresh\"} 3",
        "mcp_forge_execution_overhead_seconds_bucket{sandbox=\"session\",le=\"+Inf\"} 1",
    ] {
        assert!(
            metrics.body.lines().any(|known| known == line),
            "{line} is not in {}",
            metrics.body
        );
    }
    // Each has its help and its type, and is written as the format wants.
    for line in metrics.body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        assert!(
            metrics.body.contains(&format!("# TYPE {family} ")),
            "{line}"
        );
        assert!(
            metrics.body.contains(&format!("# HELP {family} ")),
            "{line}"
        );
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    }
}

#[test]
fn the_health_addresses_need_no_token_and_tell_nothing_else() {
    let served = Served::start(&[]);
    let health = served.request("GET /health", &[], "");
    assert_eq!(health.status, 200);
    assert_eq!(
        health.json(),
        json!({"status": "ok", "version": env!("CARGO_PKG_VERSION")})
    );
    assert_eq!(
        served.request("GET /livez", &[], "").json(),
        json!({"status": "ok"})
    );
    let ready = served.request_until("GET /readyz", &[], |ready| ready.status == 200);
    let checks = json!({"engine": "ok", "store": "ok", "disk": "ok", "upstreams": "ok"});
    assert_eq!(
        ready.json(),
        json!({"status": "ready", "checks": checks}),
        "{ready:?}"
    );
    assert_eq!(ready.status, 200);
    assert_eq!(served.request("HEAD /health", &[], "").status, 200);
    assert_eq!(served.request("POST /health", &[], "").status, 405);
}
