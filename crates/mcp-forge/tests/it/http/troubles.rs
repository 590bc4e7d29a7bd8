//! Rows M3, M4, N17, N19, P3, P6 and P7: names that are guessed, cursors and ids that were never
//! given, and a server that has no descriptors, no audit log and no time left.

use std::{
    collections::HashSet,
    fs,
    io::Write,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::{Value, json};

use super::served::{PATIENCE, Reply, Served, initialize, read_reply, token};

fn execute(served: &Served, who: &str, body: &Value) -> Reply {
    let authorization = format!("Authorization: Bearer {}", token(who));
    let headers = [authorization.as_str(), "Content-Type: application/json"];
    served.request("POST /api/v1/execute", &headers, &body.to_string())
}

#[test]
fn names_that_are_made_cannot_be_guessed_and_are_written_in_one_way() {
    let served = Served::start(&[]);
    let open = || {
        let reply = execute(&served, "ada", &json!({"code": "1", "session_id": "new"}));
        let id = reply.json()["session_id"].as_str().unwrap().to_owned();
        let authorization = format!("Authorization: Bearer {}", token("ada"));
        let line = format!("DELETE /api/v1/sessions/{id}");
        assert_eq!(served.request(&line, &[&authorization], "").status, 204);
        id
    };
    let ids: Vec<String> = (0..8).map(|_| open()).collect();
    let parts: HashSet<&str> = ids.iter().map(|id| &id[..id.len() / 2]).collect();
    assert_eq!(
        parts.len(),
        ids.len(),
        "their first halves are alike: {ids:?}"
    );
    let mut sorted = ids.clone();
    sorted.sort();
    assert_ne!(sorted, ids, "they say which came first");

    assert_eq!(
        execute(
            &served,
            "ada",
            &json!({"code": "x = 1", "session_id": "kept"})
        )
        .status,
        200
    );
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let look = |name: &str| {
        let line = format!("GET /api/v1/sessions/{name}");
        served.request(&line, &[&authorization], "").status
    };
    assert_eq!(look("kept"), 200);
    for other in [
        "Kept",
        "kep",
        "kept2",
        "kept%20",
        "%20kept",
        "kept%00",
        "kept/",
        "./kept",
        "%2e/kept",
        "k%C3%A9pt",
        "kept%0a",
        "k%ef%bd%85pt",
        "%6bept/",
        "*",
        "%25",
    ] {
        let status = look(other);
        assert!(matches!(status, 400 | 404), "{other}: {status}");
    }
}

#[test]
fn a_cursor_that_was_never_given_is_refused() {
    let served = Served::start(&[]);
    for method in ["tools/list", "resources/list", "resources/templates/list"] {
        let whole = served.call("ada", method, json!({}));
        assert!(whole["result"]["nextCursor"].is_null(), "{whole}");
        for cursor in ["", "2", "eyJvZmZzZXQiOi0xfQ==", "../../etc/passwd"] {
            let refused = served.call("ada", method, json!({"cursor": cursor}));
            assert_eq!(refused["error"]["code"], -32602, "{method}: {refused}");
        }
    }
}

#[test]
fn what_is_cancelled_was_the_callers_own_and_running() {
    let served = Served::start(&[]);
    let hello = |who: &str| {
        let opened = served.post(who, &[], &initialize("2025-11-25"));
        let session = format!(
            "Mcp-Session-Id: {}",
            opened.header("mcp-session-id").unwrap()
        );
        let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(served.post(who, &[&session], ready).status, 202);
        session
    };
    let (ada, bob) = (hello("ada"), hello("bob"));
    let call = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {
        "name": "execute_python",
        "arguments": {"code": "import time; time.sleep(20); 'finished'"},
        "_meta": {"progressToken": "same"},
    }});
    let answers: Vec<Value> = thread::scope(|scope| {
        let ask = |who: &'static str, session: &str| {
            let (served, call, session) = (&served, call.to_string(), session.to_owned());
            scope.spawn(move || served.post(who, &[&session], &call).message())
        };
        // The same id and the same token, for both.
        let running = [ask("ada", &ada), ask("bob", &bob)];
        let running_now = || {
            let reply = served.request(
                "GET /metrics",
                &["Authorization: Bearer token-of-admin"],
                "",
            );
            reply.body.contains("mcp_forge_executions_running 2\n")
        };
        let asked = Instant::now();
        while !running_now() {
            assert!(asked.elapsed() < PATIENCE, "they never ran");
            thread::sleep(Duration::from_millis(20));
        }
        for id in [json!(99), json!("5"), json!(-1), json!("never")] {
            let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
                "params": {"requestId": id}});
            let reply = served.post("ada", &[&ada], &cancel.to_string());
            assert!(matches!(reply.status, 202 | 400), "{reply:?}");
        }
        // In a conversation that is another's, nothing is its own.
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": 5}});
        assert_eq!(served.post("bob", &[&ada], &cancel.to_string()).status, 404);
        running.map(|asked| asked.join().unwrap()).into()
    });
    for answer in answers {
        assert_eq!(
            answer["result"]["structuredContent"]["result"], "finished",
            "{answer}"
        );
    }
    // What has ended cannot be ended again.
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}});
    assert_eq!(served.post("ada", &[&ada], &cancel.to_string()).status, 202);
    let list = r#"{"jsonrpc":"2.0","id":6,"method":"tools/list"}"#;
    assert!(served.post("ada", &[&ada], list).message()["result"].is_object());
}

#[test]
fn a_server_without_descriptors_refuses_and_recovers() {
    let served = Served::start(&[]);
    let code = json!({"code": "6 * 7"});
    assert_eq!(execute(&served, "ada", &code).json()["result"], 42);
    let pid = Pid::from_raw(i32::try_from(served.child.id()).unwrap());
    let before = getrlimit(Resource::Nofile);
    let open = fs::read_dir(format!("/proc/{}/fd", served.child.id()))
        .unwrap()
        .count();
    // Enough for the connection itself, and not for a sandbox.
    let few = Rlimit {
        current: Some(open as u64 + 3),
        ..before
    };
    prlimit(pid, Resource::Nofile, few).unwrap();
    for _ in 0..3 {
        let refused = execute(&served, "ada", &code);
        assert_eq!(refused.status, 503, "{refused:?}");
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
    }
    prlimit(pid, Resource::Nofile, before).unwrap();
    let reply = execute(&served, "ada", &code);
    assert_eq!(
        (reply.status, &reply.json()["result"]),
        (200, &json!(42)),
        "{reply:?}"
    );
}

#[test]
fn without_an_audit_log_nothing_runs() {
    let served = Served::start(&[]);
    let in_session =
        |code: &str| execute(&served, "ada", &json!({"code": code, "session_id": "s"}));
    assert_eq!(in_session("x = 1").status, 200);
    fs::remove_dir_all(served.directory.path().join("audit")).unwrap();
    let fresh = execute(&served, "ada", &json!({"code": "1"}));
    for refused in [fresh, in_session("x = 2")] {
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(
            refused.header("content-type"),
            Some("application/problem+json")
        );
        let place = served.directory.path().to_str().unwrap();
        assert!(!refused.body.contains(place), "{refused:?}");
    }
    let answer = served.call(
        "ada",
        "tools/call",
        json!({"name": "execute_python", "arguments": {"code": "1"}}),
    );
    assert!(
        answer["error"].is_object() || answer["result"]["isError"] == true,
        "{answer}"
    );
    // The session that runs is none the worse.
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    served.request_until("GET /api/v1/sessions/s", &[&authorization], |look| {
        assert_eq!(look.status, 200, "{look:?}");
        look.json()["introspection"]["x"]["repr"] == "1"
    });
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let mut served = Served::start(&[("MCP_FORGE_SERVER_DRAIN", "10m")]);
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let body =
        json!({"code": "import time; print('begun', flush=True); time.sleep(500)"}).to_string();
    let mut stream = served.connect();
    let request = served.bytes(
        "POST /api/v1/execute?wait=false",
        &[&authorization, "Content-Type: application/json"],
        &body,
    );
    stream.write_all(&request).unwrap();
    assert_eq!(read_reply(&mut stream).status, 202);
    let pid = Pid::from_raw(i32::try_from(served.child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    // Nobody new is let in once it has heard the first.
    let asked = Instant::now();
    while std::net::TcpStream::connect(served.address).is_ok() {
        assert!(asked.elapsed() < PATIENCE, "it lets others in");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(
        fs::exists(format!("/proc/{}/fd/0", served.child.id())).unwrap(),
        "it drains"
    );
    kill_process(pid, Signal::TERM).unwrap();
    while served.child.try_wait().unwrap().is_none() {
        assert!(asked.elapsed() < PATIENCE, "it drains on");
        thread::sleep(Duration::from_millis(20));
    }
}
