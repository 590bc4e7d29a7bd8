//! REST: what a program without MCP does.

use std::{
    io::{BufRead, BufReader, Write},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::served::{PATIENCE, Reply, Served, token};

/// One request of somebody's.
pub(super) fn ask(served: &Served, who: &str, line: &str, more: &[&str], body: &Value) -> Reply {
    let authorization = format!("Authorization: Bearer {}", token(who));
    let mut headers = vec![authorization.as_str(), "Content-Type: application/json"];
    headers.extend(more);
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    served.request(line, &headers, &body)
}

pub(super) fn get(served: &Served, who: &str, path: &str) -> Reply {
    ask(served, who, &format!("GET {path}"), &[], &Value::Null)
}

fn execute(served: &Served, who: &str, body: &Value) -> Value {
    let reply = ask(served, who, "POST /api/v1/execute", &[], body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

#[test]
fn code_runs_and_its_outcome_is_no_error() {
    let served = Served::start(&[]);
    let done = execute(&served, "ada", &json!({"code": "print('hello'); 6 * 7"}));
    assert_eq!(
        (&done["outcome"], &done["result"], &done["stdout"]),
        (&json!("completed"), &json!(42), &json!("hello\n"))
    );
    let failed = execute(&served, "ada", &json!({"code": "1 / 0"}));
    assert_eq!(
        (&failed["success"], &failed["error"]["type"]),
        (&json!(false), &json!("ZeroDivisionError"))
    );
    let late = execute(
        &served,
        "ada",
        &json!({"code": "while True: pass", "timeout": 0.5}),
    );
    assert_eq!(late["outcome"], "timed_out");
    // What is no stream says how long it is.
    let reply = get(&served, "ada", "/api/v1/sessions");
    let length = reply.body.len().to_string();
    assert_eq!(reply.header("content-length"), Some(length.as_str()));
    assert_eq!(reply.header("transfer-encoding"), None);
}

#[test]
fn a_bad_request_is_a_problem_that_names_the_field() {
    let served = Served::start(&[]);
    let refused = |body: &Value| {
        let reply = ask(&served, "ada", "POST /api/v1/execute", &[], body);
        assert_eq!(
            reply.header("content-type"),
            Some("application/problem+json"),
            "{reply:?}"
        );
        let problem = reply.json();
        assert_eq!(problem["status"], reply.status);
        (reply.status, problem["field"].as_str().map(str::to_owned))
    };
    for (body, status, field) in [
        (json!({}), 400, Some("code")),
        (json!({"code": 7}), 400, Some("code")),
        (json!({"code": "1", "timeot": 3}), 400, Some("timeot")),
        (
            json!({"code": "1", "limits": {"memory": "9t"}}),
            400,
            Some("limits.memory"),
        ),
        (
            json!({"code": "1", "mcp_tools": ["none_such"]}),
            400,
            Some("mcp_tools"),
        ),
        (
            json!({"code": "1", "volumes": {"/etc": "/workspace/x"}}),
            403,
            Some("volumes"),
        ),
        (json!([]), 400, None),
        (json!("code"), 400, None),
    ] {
        assert_eq!(refused(&body), (status, field.map(str::to_owned)), "{body}");
    }
    let raw = |line: &str, kind: &str, body: &str| {
        let authorization = format!("Authorization: Bearer {}", token("ada"));
        served
            .request(
                line,
                &[&authorization, &format!("Content-Type: {kind}")],
                body,
            )
            .status
    };
    assert_eq!(
        raw(
            "POST /api/v1/execute",
            "application/json",
            r#"{"code":"1","code":"2"}"#
        ),
        400
    );
    assert_eq!(
        raw("POST /api/v1/execute", "application/json", r#"{"code":"1""#),
        400
    );
    assert_eq!(
        raw("POST /api/v1/execute", "text/plain", r#"{"code":"1"}"#),
        415
    );
    for query in [
        "wait=maybe",
        "wait=false&wait=true",
        "token=x",
        "WAIT=false",
    ] {
        assert_eq!(
            raw(
                &format!("POST /api/v1/execute?{query}"),
                "application/json",
                r#"{"code":"1"}"#
            ),
            400,
            "{query}"
        );
    }
    // It is refused when it is sent, not later.
    assert_eq!(
        raw(
            "POST /api/v1/execute?wait=false",
            "application/json",
            r#"{"code":1}"#
        ),
        400
    );
    for path in [
        "/api/v1/executions/00000000000000000000000000000000",
        "/api/v1/executions/%ff",
        "/api/v1/sessions/..",
        "/api/v1/sessions/a%00b",
        "/api/v1/sessions/none",
        "/api/v1/tools/none",
        "/api/v1/nothing",
    ] {
        let reply = get(&served, "ada", path);
        assert!(matches!(reply.status, 400 | 404), "{path}: {reply:?}");
        reply.json();
    }
    assert_eq!(raw("PUT /api/v1/execute", "application/json", "{}"), 405);
    assert_eq!(served.request("GET /api/v1/sessions", &[], "").status, 401);
    assert_eq!(get(&served, "nobody", "/api/v1/sessions").status, 403);
    assert_eq!(get(&served, "ada", "/api/v1/audit").status, 403);
    assert_eq!(get(&served, "admin", "/api/v1/audit").status, 200);
}

#[test]
fn an_execution_that_nobody_waits_for_is_watched_and_asked_for_later() {
    let served = Served::start(&[]);
    let code = "import sys, time\nprint('first', flush=True)\nn = 0\nwhile n < 300:\n    n += 1\n    time.sleep(0.05)\nprint('second', file=sys.stderr)\n'done'";
    let begun = ask(
        &served,
        "ada",
        "POST /api/v1/execute?wait=false",
        &[],
        &json!({"code": code}),
    );
    assert_eq!(begun.status, 202, "{begun:?}");
    let address = begun.header("location").unwrap().to_owned();
    assert_eq!(begun.json()["state"], "running");

    let mut stream = served.connect();
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    stream
        .write_all(&served.bytes(&format!("GET {address}/events"), &[&authorization], ""))
        .unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut next = |start: &str| {
        lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| Some(line.strip_prefix(start)?.to_owned()))
            .unwrap()
    };
    let first: Value = serde_json::from_str(&next("data: ")).unwrap();
    assert_eq!(first, json!({"stream": "stdout", "text": "first\n"}));
    // It was told while the code ran.
    assert_eq!(get(&served, "ada", &address).json()["state"], "running");
    let second: Value = serde_json::from_str(&next("data: ")).unwrap();
    assert_eq!(second, json!({"stream": "stderr", "text": "second\n"}));
    assert_eq!(next("event: "), "end");
    let end: Value = serde_json::from_str(&next("data: ")).unwrap();
    assert_eq!(
        (&end["state"], &end["response"]["result"]),
        (&json!("ended"), &json!("done"))
    );
    let known = get(&served, "ada", &address).json();
    assert_eq!(known, end);
    assert_eq!(known["execution_id"], known["response"]["execution_id"]);
    // From the second event on.
    let again = ask(
        &served,
        "ada",
        &format!("GET {address}/events"),
        &["Last-Event-ID: 1"],
        &Value::Null,
    );
    assert!(
        again.body.contains("second") && !again.body.contains("\"text\":\"first"),
        "{again:?}"
    );

    // Somebody else's is as one that does not exist.
    let unknown = get(
        &served,
        "bob",
        "/api/v1/executions/00000000000000000000000000000000",
    );
    for line in [
        format!("GET {address}"),
        format!("GET {address}/events"),
        format!("DELETE {address}"),
    ] {
        let foreign = ask(&served, "bob", &line, &[], &Value::Null);
        assert_eq!(
            (foreign.status, &foreign.body),
            (404, &unknown.body),
            "{line}"
        );
    }
}

/// Each takes some 4 MB, and 64 MiB are remembered: of twenty the last, and never the first.
#[test]
fn large_executions_are_forgotten_before_they_are_many() {
    let served = Served::start(&[]);
    let code = "import sys\nsys.stdout.write('o' * 900_000)\nsys.stderr.write('e' * 900_000)\n'r' * 900_000";
    let begin = |code: &str| {
        let line = "POST /api/v1/execute?wait=false";
        let begun = ask(&served, "ada", line, &[], &json!({"code": code}));
        let address = begun.header("location").unwrap().to_owned();
        let asked = Instant::now();
        while get(&served, "ada", &address).json()["state"] == "running" {
            assert!(asked.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(10));
        }
        address
    };
    let small = begin("1");
    let large: Vec<String> = (0..20).map(|_| begin(code)).collect();
    let status = |address: &String| get(&served, "ada", address).status;
    assert_eq!((status(&small), status(&large[0])), (404, 404));
    assert_eq!((status(&large[12]), status(&large[19])), (200, 200));
}

#[test]
fn an_execution_is_cancelled_and_a_session_goes_on_after_that() {
    let served = Served::start(&[]);
    let start = |body: &Value| {
        let begun = ask(&served, "ada", "POST /api/v1/execute?wait=false", &[], body);
        assert_eq!(begun.status, 202, "{begun:?}");
        begun.header("location").unwrap().to_owned()
    };
    let cancel = |address: &str| {
        ask(
            &served,
            "ada",
            &format!("DELETE {address}"),
            &[],
            &Value::Null,
        )
        .json()
    };
    let address = start(&json!({"code": "while True: pass"}));
    assert_eq!(cancel(&address)["state"], "cancelled");
    assert_eq!(get(&served, "ada", &address).json()["state"], "cancelled");

    execute(
        &served,
        "ada",
        &json!({"code": "x = 41", "session_id": "s"}),
    );
    let address =
        start(&json!({"code": "print('on', flush=True)\nwhile True: pass", "session_id": "s"}));
    // It runs when it has written.
    let mut stream = served.connect();
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    stream
        .write_all(&served.bytes(&format!("GET {address}/events"), &[&authorization], ""))
        .unwrap();
    let seen = BufReader::new(stream)
        .lines()
        .map(Result::unwrap)
        .any(|line| line.contains("on\\n"));
    assert!(seen);
    let ended = cancel(&address);
    assert_eq!(
        (&ended["state"], &ended["response"]["outcome"]),
        (&json!("ended"), &json!("cancelled")),
        "{ended}"
    );
    assert_eq!(
        execute(&served, "ada", &json!({"code": "x + 1", "session_id": "s"}))["result"],
        42
    );
    // An end is an end.
    assert_eq!(cancel(&address), ended);
}

#[test]
fn a_request_with_a_key_runs_once() {
    let served = Served::start(&[]);
    let count = json!({"code": "n = globals().get('n', 0) + 1; n", "session_id": "count"});
    let send = |who: &str, key: &str, body: &Value| {
        ask(
            &served,
            who,
            "POST /api/v1/execute",
            &[&format!("Idempotency-Key: {key}")],
            body,
        )
    };
    let replies: Vec<Reply> = thread::scope(|scope| {
        let sent: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| send("ada", "one", &count)))
            .collect();
        sent.into_iter().map(|sent| sent.join().unwrap()).collect()
    });
    for reply in &replies {
        assert_eq!(
            (reply.status, &reply.json()["result"]),
            (200, &json!(1)),
            "{reply:?}"
        );
        assert_eq!(reply.body, replies[0].body);
    }
    let replayed = replies
        .iter()
        .filter(|reply| reply.header("idempotency-replayed").is_some());
    assert_eq!(replayed.count(), 7);
    assert_eq!(send("ada", "two", &count).json()["result"], 2);
    // The key of one is not the key of another.
    assert_eq!(send("bob", "one", &count).json()["result"], 1);
    let other = send("ada", "one", &json!({"code": "2"}));
    assert_eq!(other.status, 422, "{other:?}");
    // A refusal is an answer too.
    assert_eq!(send("ada", "bad", &json!({"code": 1})).status, 400);
    assert_eq!(send("ada", "", &count).status, 400);
    assert_eq!(send("ada", &"k".repeat(256), &count).status, 400);
}

#[test]
fn sessions_and_their_files_are_their_owners() {
    let served = Served::start(&[]);
    let code = "x = 1; import pathlib; pathlib.Path('/workspace/d').mkdir(); pathlib.Path('/workspace/d/ä b.html').write_text('<script>')";
    execute(&served, "ada", &json!({"code": code, "session_id": "s"}));
    let listed = get(&served, "ada", "/api/v1/sessions").json();
    assert_eq!(listed["sessions"][0]["session_id"], "s");
    assert_eq!(
        get(&served, "bob", "/api/v1/sessions").json()["sessions"],
        json!([])
    );
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    served.request_until("GET /api/v1/sessions/s", &[&authorization], |look| {
        look.json()["all_variables"][0] == "x"
    });
    let files = get(&served, "ada", "/api/v1/sessions/s/files").json();
    assert_eq!(files["files"][0]["path"], "d/ä b.html", "{files}");
    let path = "/api/v1/sessions/s/files/d/%C3%A4%20b.html";
    let file = get(&served, "ada", path);
    assert_eq!((file.status, file.body.as_str()), (200, "<script>"));
    // No browser takes it for a page.
    assert_eq!(
        file.header("content-type"),
        Some("application/octet-stream")
    );
    assert_eq!(file.header("content-disposition"), Some("attachment"));
    for outside in [
        "../../../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "/etc/passwd",
        "d/../../x",
        "d%00",
        "d",
    ] {
        let reply = get(
            &served,
            "ada",
            &format!("/api/v1/sessions/s/files/{outside}"),
        );
        assert!(matches!(reply.status, 400 | 404), "{outside}: {reply:?}");
    }
    for foreign in ["/api/v1/sessions/s", "/api/v1/sessions/s/files", path] {
        assert_eq!(get(&served, "bob", foreign).status, 404, "{foreign}");
    }
    assert_eq!(
        ask(
            &served,
            "bob",
            "DELETE /api/v1/sessions/s",
            &[],
            &Value::Null
        )
        .status,
        404
    );
    assert_eq!(
        ask(
            &served,
            "ada",
            "DELETE /api/v1/sessions/s",
            &[],
            &Value::Null
        )
        .status,
        204
    );
    assert_eq!(get(&served, "ada", "/api/v1/sessions/s").status, 404);
}

#[test]
fn a_sandbox_that_stays_is_spawned_used_and_ended() {
    let served = Served::start(&[]);
    let spawn = |body: &Value| ask(&served, "ada", "POST /api/v1/sandbox/spawn", &[], body);
    let spawned = spawn(&json!({"limits": {"memory": "256m"}}));
    assert_eq!(spawned.status, 201, "{spawned:?}");
    let sandbox = spawned.json();
    assert_eq!(sandbox["limits"]["memory_bytes"], 256 << 20, "{sandbox}");
    let id = sandbox["container_id"].as_str().unwrap().to_owned();
    let address = format!("/api/v1/sandbox/{id}");
    for value in [1, 2] {
        let code = "n = globals().get('n', 0) + 1; n";
        let done = execute(&served, "ada", &json!({"code": code, "session_id": id}));
        assert_eq!(
            (&done["result"], &done["session"]["generation"]),
            (&json!(value), &json!(1))
        );
    }
    let named = spawn(&json!({"session_id": "mine"}));
    assert_eq!(
        (named.status, &named.json()["container_id"]),
        (201, &json!("mine"))
    );
    assert_eq!(spawn(&json!({"session_id": "mine"})).status, 200);
    let listed = get(&served, "ada", "/api/v1/sandbox").json();
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(get(&served, "ada", &address).json()["state"], "idle");
    for wrong in [
        json!({"code": "1"}),
        json!({"limits": 3}),
        json!({"session_id": "../x"}),
        json!([]),
    ] {
        assert_eq!(spawn(&wrong).status, 400, "{wrong}");
    }

    assert_eq!(
        get(&served, "bob", "/api/v1/sandbox").json()["sandboxes"],
        json!([])
    );
    let end = |who: &str, address: &str| {
        ask(
            &served,
            who,
            &format!("DELETE {address}"),
            &[],
            &Value::Null,
        )
    };
    let foreign = end("bob", &address);
    assert_eq!(
        (foreign.status, &foreign.body),
        (404, &end("bob", "/api/v1/sandbox/unknown").body)
    );
    assert_eq!(end("ada", &address).status, 204);
    assert_eq!(end("ada", &address).status, 404);
    assert_eq!(get(&served, "ada", &address).status, 404);
}

#[test]
fn a_state_is_kept_with_its_version_and_outlives_the_server() {
    let mut served = Served::start(&[]);
    let put = |served: &Served, who: &str, body: &Value| {
        ask(served, who, "POST /api/v1/context/state", &[], body)
    };
    let state = json!({"step": 3, "null": null, "text": "ä\u{0}", "list": [1.5, {"deep": []}]});
    let kept = put(
        &served,
        "ada",
        &json!({"session_id": "s", "state": state, "version": 0}),
    );
    assert_eq!(
        (kept.status, &kept.json()["version"]),
        (200, &json!(1)),
        "{kept:?}"
    );
    let stale = put(
        &served,
        "ada",
        &json!({"session_id": "s", "state": 2, "version": 0}),
    );
    assert_eq!(stale.status, 409, "{stale:?}");
    assert!(
        stale.json()["detail"]
            .as_str()
            .unwrap()
            .contains("version 1")
    );
    // Another principal's is another, and there is none.
    let address = "/api/v1/context/state?session_id=s";
    assert_eq!(get(&served, "bob", address).status, 404);
    assert_eq!(
        put(&served, "bob", &json!({"session_id": "s", "state": null})).json()["version"],
        1
    );
    assert_eq!(get(&served, "bob", address).json()["state"], Value::Null);
    for (body, field) in [
        (json!({"session_id": "s"}), "state"),
        (json!({"state": 1}), "session_id"),
        (json!({"session_id": "a/b", "state": 1}), "session_id"),
        (json!({"session_id": "s", "state": 1, "ttl": -1}), "ttl"),
        (json!({"session_id": "s", "state": 1, "ttl": 1e300}), "ttl"),
        (
            json!({"session_id": "s", "state": 1, "version": "1"}),
            "version",
        ),
        (json!({"session_id": "s", "state": 1, "more": 1}), "more"),
        (
            json!({"session_id": "s", "state": "x".repeat(300_000)}),
            "state",
        ),
    ] {
        let refused = put(&served, "ada", &body);
        assert_eq!(
            (refused.status, &refused.json()["field"]),
            (400, &json!(field)),
            "{field}"
        );
    }
    // One that is over is not there.
    let brief = put(
        &served,
        "ada",
        &json!({"session_id": "brief", "state": 1, "ttl": 0.001}),
    );
    assert_eq!(brief.status, 200);
    let gone = || get(&served, "ada", "/api/v1/context/state?session_id=brief").status == 404;
    while !gone() {
        thread::sleep(std::time::Duration::from_millis(5));
    }

    let directory = std::mem::replace(&mut served.directory, tempfile::tempdir().unwrap());
    drop(served);
    let served = Served::start_in(directory, &["serve", "--http", "127.0.0.1:0"], &[]);
    let read = get(&served, "ada", address).json();
    assert_eq!((&read["state"], &read["version"]), (&state, &json!(1)));
    let remove = |query: &str| {
        ask(
            &served,
            "ada",
            &format!("DELETE {address}{query}"),
            &[],
            &Value::Null,
        )
        .status
    };
    assert_eq!(remove("&version=7"), 409);
    assert_eq!(remove("&version=1"), 204);
    assert_eq!(remove(""), 404);
}

/// Every operation of the document is there, and what it says no to is the document's problem.
#[test]
fn the_document_is_served_and_tells_the_truth() {
    let served = Served::start(&[]);
    let document = get(&served, "ada", "/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, methods) in document["paths"].as_object().unwrap() {
        let filled = path
            .replace("{id}", "none")
            .replace("{name}", "none")
            .replace("{container_id}", "none")
            // None is called so.
            .replace("{package}", "-")
            .replace("{path}", "none");
        for (method, operation) in methods.as_object().unwrap() {
            let reply = ask(
                &served,
                "admin",
                &format!("{} {filled}", method.to_uppercase()),
                &[],
                &json!({"code": "1"}),
            );
            assert_ne!(reply.status, 405, "{method} {path}");
            let told = &operation["responses"][reply.status.to_string()];
            assert!(
                told.is_object(),
                "{method} {path}: {} is not in the document",
                reply.status
            );
            let Some(kind) = reply.header("content-type") else {
                assert_eq!(reply.status, 204, "{method} {path}");
                continue;
            };
            assert!(told["content"][kind].is_object(), "{method} {path}: {kind}");
        }
    }
    let page = get(&served, "ada", "/docs");
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert!(
        page.header("content-security-policy")
            .unwrap()
            .starts_with("default-src 'none'")
    );
    assert!(page.body.contains("/api/v1/execute"));
}
