//! Rows M1-M10: two principals on one server, who never notice each other.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::served::{Served, initialize, token, write_private};

#[test]
fn what_is_somebody_elses_is_as_if_it_were_not_there() {
    let served = Served::start(&[]);
    let run = |who: &str, code: &str| {
        served.tool(
            who,
            "execute_python",
            &json!({"code": code, "session_id": "shared"}),
        )["structuredContent"]
            .clone()
    };
    run(
        "ada",
        "secret = 'of ada'; open('/workspace/a.txt', 'w').write(secret)",
    );
    let sessions = |who: &str| {
        served.tool(who, "list_sessions", &json!({}))["structuredContent"]["sessions"].clone()
    };
    assert_eq!(sessions("ada").as_array().unwrap().len(), 1);
    assert_eq!(sessions("bob"), json!([]));

    let said = |who: &str, uri: &str| {
        let answer = served.call(who, "resources/read", json!({"uri": uri}));
        answer["error"]["message"].as_str().map(str::to_owned)
    };
    for what in ["state", "variables", "files/a.txt"] {
        assert_eq!(
            said("ada", &format!("mcp://forge/sessions/shared/{what}")),
            None
        );
        let foreign = said("bob", &format!("mcp://forge/sessions/shared/{what}")).unwrap();
        let unknown = said("bob", &format!("mcp://forge/sessions/unknown/{what}")).unwrap();
        assert_eq!(foreign.replace("shared", "unknown"), unknown);
    }
    for (tool, arguments) in [
        ("delete_session", json!({"session_id": "ID"})),
        ("fork_session", json!({"session_id": "ID"})),
        (
            "document_state",
            json!({"session_id": "ID", "variables": {}}),
        ),
    ] {
        let answer = |id: &str| {
            let arguments: Value =
                serde_json::from_str(&arguments.to_string().replace("ID", id)).unwrap();
            let answer = served.tool("bob", tool, &arguments);
            answer.to_string().replace(id, "ID")
        };
        assert_eq!(answer("shared"), answer("unknown"), "{tool}");
    }
    // The same name is another session, and the first one is whole.
    assert_eq!(run("bob", "'secret' in globals()")["result"], false);
    assert_eq!(run("ada", "secret")["result"], "of ada");
}

/// Two principals have sessions of one name, and what the operator put there for one of them.
#[test]
fn a_volume_of_a_session_is_its_owners() {
    let served = Served::start(&[]);
    let volumes = served.directory.path().join("volumes");
    for (place, text) in [
        ("uploads/s", "the local user's"),
        ("principals/ada/uploads/s", "ada's"),
        ("principals/bob/sessions/s", "bob's"),
        ("shared/readonly", "everybody's"),
    ] {
        std::fs::create_dir_all(volumes.join(place)).unwrap();
        std::fs::write(volumes.join(place).join("in.txt"), text).unwrap();
    }
    let read = |who: &str, volume: &str| {
        let arguments = json!({
            "code": "open('/workspace/there/in.txt').read()",
            "session_id": "s",
            "volumes": {volume: "/workspace/there"},
        });
        let answer = served.tool(who, "execute_python", &arguments);
        let session = json!({"session_id": "s"});
        served.tool(who, "delete_session", &session);
        answer["structuredContent"]["result"].clone()
    };
    assert_eq!(read("ada", "uploads/{session_id}"), "ada's");
    assert_eq!(read("bob", "uploads/{session_id}"), Value::Null);
    assert_eq!(read("bob", "sessions/s"), "bob's");
    assert_eq!(read("ada", "sessions/s"), Value::Null);
    assert_eq!(read("ada", "shared/readonly"), "everybody's");
    assert_eq!(read("ada", "uploads/../../bob/sessions/s"), Value::Null);
}

#[test]
fn an_mcp_session_is_its_owners_only() {
    let served = Served::start(&[]);
    let opened = served.post("ada", &[], &initialize("2025-11-25"));
    let session = format!(
        "Mcp-Session-Id: {}",
        opened.header("mcp-session-id").unwrap()
    );
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
    served.post(
        "ada",
        &[&session],
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    );
    assert_eq!(served.post("ada", &[&session], list).status, 200);
    let foreign = served.post("bob", &[&session], list);
    let unknown = served.post(
        "bob",
        &["Mcp-Session-Id: 00000000-0000-4000-8000-000000000000"],
        list,
    );
    assert_eq!((foreign.status, &foreign.body), (404, &unknown.body));
    let bob = format!("Authorization: Bearer {}", token("bob"));
    for line in ["GET /mcp", "DELETE /mcp"] {
        served.request(line, &[&bob, &session, "Accept: text/event-stream"], "");
    }
    assert_eq!(
        served.post("ada", &[&session], list).status,
        200,
        "the stranger's DELETE ended it"
    );
}

#[test]
fn the_audit_log_is_for_admins_and_names_who_asked() {
    let served = Served::start(&[]);
    served.tool("ada", "execute_python", &json!({"code": "1"}));
    let read = |who: &str| {
        served.call(
            who,
            "resources/read",
            json!({"uri": "mcp://forge/audit/operations"}),
        )
    };
    assert!(
        read("ada")["error"]["message"]
            .as_str()
            .unwrap()
            .contains("admin")
    );
    let log = read("admin")["result"]["contents"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    let records: Vec<Value> = serde_json::from_str(&log).unwrap();
    let started = records
        .iter()
        .find(|record| record["event"] == "execution" && record["phase"] == "started");
    assert_eq!(started.unwrap()["principal"], "ada", "{log}");
}

#[test]
fn a_token_that_is_taken_away_opens_nothing_from_then_on() {
    let served = Served::start(&[]);
    let opened = served.post("ada", &[], &initialize("2025-11-25"));
    let session = format!(
        "Mcp-Session-Id: {}",
        opened.header("mcp-session-id").unwrap()
    );
    let entry = format!(
        "tokens:\n- {{principal: bob, sha256: \"{:x}\"}}\n",
        Sha256::digest(token("bob"))
    );
    write_private(&served.directory.path().join("tokens.yaml"), &entry);
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
    assert_eq!(served.post("ada", &[&session], list).status, 401);
    assert_eq!(
        served.post("bob", &[], &initialize("2025-11-25")).status,
        200
    );
    // A file that is broken lets nobody in, and the server goes on.
    write_private(&served.directory.path().join("tokens.yaml"), "tokens: [");
    assert_eq!(
        served.post("bob", &[], &initialize("2025-11-25")).status,
        503
    );
    write_private(&served.directory.path().join("tokens.yaml"), &entry);
    assert_eq!(
        served.post("bob", &[], &initialize("2025-11-25")).status,
        200
    );
}

#[test]
fn who_is_over_a_quota_is_told_when_to_come_back_and_harms_nobody() {
    let served = Served::start(&[]);
    let entry = |who: &str, quotas: &str| {
        let hash = Sha256::digest(token(who));
        format!(
            "- {{principal: {who}, sha256: \"{hash:x}\", scopes: [run], quotas: {{{quotas}}}}}\n"
        )
    };
    let tokens = [
        entry("ada", "requests_per_minute: 1"),
        entry("bob", "requests_in_flight: 1"),
    ];
    write_private(
        &served.directory.path().join("tokens.yaml"),
        &format!("tokens:\n{}", tokens.concat()),
    );
    let list = |who: &str| {
        let authorization = format!("Authorization: Bearer {}", token(who));
        served.request("GET /api/v1/sessions", &[&authorization], "")
    };
    assert_eq!(list("ada").status, 200);
    let refused = list("ada");
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(
        refused
            .header("retry-after")
            .unwrap()
            .parse::<u64>()
            .unwrap()
            >= 1
    );
    assert!(
        refused.json()["detail"]
            .as_str()
            .unwrap()
            .contains("1 requests a minute")
    );
    assert_eq!(
        served.post("ada", &[], &initialize("2025-11-25")).status,
        429
    );

    assert_eq!(list("bob").status, 200);
    let authorization = format!("Authorization: Bearer {}", token("bob"));
    let body = json!({"code": "while True: pass"}).to_string();
    let request = served.bytes(
        "POST /api/v1/execute",
        &[&authorization, "Content-Type: application/json"],
        &body,
    );
    // A request counts until its answer is sent, which its client may have read a moment before.
    let deadline = Instant::now() + Duration::from_mins(1);
    let is_full = || {
        (0..3).all(|_| {
            thread::sleep(Duration::from_millis(10));
            list("bob").status == 429
        })
    };
    let stream = 'running: loop {
        let mut stream = served.connect();
        std::io::Write::write_all(&mut stream, &request).unwrap();
        for _ in 0..50 {
            assert!(Instant::now() < deadline, "it never ran");
            if is_full() {
                break 'running stream;
            }
        }
    };
    drop(stream);
    // Its place is free once the server has seen that it is gone.
    while list("bob").status == 429 {
        assert!(Instant::now() < deadline, "its place is never free");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Many calls of two principals at once, in sessions of the same names, fresh sandboxes and across
/// MCP sessions: every answer has the marker of its own call, and nothing of any other.
#[test]
fn many_calls_at_once_never_cross() {
    const CALLS: usize = 500;
    let served = Served::start(&[("MCP_FORGE_EXECUTION_MAX_CONCURRENT", "8")]);
    let next = std::sync::atomic::AtomicUsize::new(0);
    thread::scope(|scope| {
        for worker in 0..8 {
            let (served, next) = (&served, &next);
            let who = if worker % 2 == 0 { "ada" } else { "bob" };
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if number >= CALLS {
                        return;
                    }
                    one_call(served, who, number);
                }
            });
        }
    });
    for who in ["ada", "bob"] {
        let other = if who == "ada" {
            "marker-bob"
        } else {
            "marker-ada"
        };
        let state = served.call(
            who,
            "resources/read",
            json!({"uri": "mcp://forge/sessions/s/state"}),
        );
        let state = state.to_string();
        assert!(state.contains("mine_") && !state.contains(other), "{state}");
    }
}

fn one_call(served: &Served, who: &str, number: usize) {
    let marker = format!("marker-{who}-{number}");
    let mut arguments = json!({"code": format!(
        "import sys; mine_{number} = {marker:?}; print(mine_{number}); print(mine_{number}, file=sys.stderr)\n{{'m': mine_{number}, 'all': [v for k, v in list(globals().items()) if k.startswith('mine_')]}}"
    )});
    match number % 10 {
        // A mistake tells about itself only.
        0 => arguments["code"] = format!("raise ValueError({marker:?})").into(),
        1..=4 => arguments["session_id"] = "s".into(),
        _ => {}
    }
    let result = served.tool(who, "execute_python", &arguments);
    let text = result.to_string();
    let other = if who == "ada" {
        "marker-bob"
    } else {
        "marker-ada"
    };
    assert!(text.contains(&marker), "{marker}: {text}");
    assert!(!text.contains(other), "{marker}: {text}");
    let content = &result["structuredContent"];
    if number.is_multiple_of(10) {
        assert_eq!(content["error"]["message"], marker.as_str(), "{content}");
    } else {
        assert_eq!(content["result"]["m"], marker.as_str(), "{content}");
        assert_eq!(content["stdout"], format!("{marker}\n"));
        assert_eq!(content["stderr"], format!("{marker}\n"));
    }
    if number % 10 > 4 {
        // A fresh sandbox has nobody else's.
        assert_eq!(content["result"]["all"], json!([marker]), "{content}");
    }
}
