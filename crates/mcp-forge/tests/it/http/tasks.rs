//! Tasks over HTTP: what closing the stream ends and what it does not, whose they are, and their one table
//! with REST.

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    rest::{ask, get},
    served::{PATIENCE, Served, modern_meta, token},
};

/// A request of a client that can have tasks.
fn call(served: &Served, who: &str, method: &str, params: &Value) -> Value {
    served
        .post(who, &headers(method, params), &message(method, params))
        .message()
}

fn headers(method: &str, params: &Value) -> Vec<&'static str> {
    let name = params.get("name").or_else(|| params.get("taskId"));
    let name = name.and_then(Value::as_str).unwrap_or_default();
    let lines = [
        "MCP-Protocol-Version: 2026-07-28".to_owned(),
        format!("Mcp-Method: {method}"),
        format!("Mcp-Name: {name}"),
    ];
    lines.map(|line| &*line.leak()).into()
}

fn message(method: &str, params: &Value) -> String {
    let mut params = params.clone();
    params["_meta"] = modern_meta();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
        json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string()
}

fn python(code: &str) -> Value {
    json!({"name": "execute_python", "arguments": {"code": code}})
}

/// Asks until it says that.
fn until(told: impl Fn() -> Value, is_it: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let now = told();
        if is_it(&now) {
            return now;
        }
        assert!(begun.elapsed() < PATIENCE, "{now}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_task_outlives_its_connection_and_is_an_execution_of_its_owners() {
    let served = Served::start(&[]);
    let code = "import time\nprint('begun', flush=True)\ntime.sleep(20)\n'of ada'";
    let seed = call(&served, "ada", "tools/call", &python(code));
    let task = seed["result"]["taskId"].as_str().unwrap().to_owned();
    assert_eq!(seed["result"]["resultType"], "task", "{seed}");

    // REST knows it by the same name, and has what it writes.
    let path = format!("/api/v1/executions/{task}");
    assert_eq!(get(&served, "ada", &path).json()["state"], "running");
    let foreign = |who: &str, id: &str| {
        let mut answers = Vec::new();
        for method in ["tasks/get", "tasks/cancel"] {
            answers.push(call(&served, who, method, &json!({"taskId": id})).to_string());
        }
        let update = json!({"taskId": id, "inputResponses": {}});
        answers.push(call(&served, who, "tasks/update", &update).to_string());
        let reply = get(&served, who, &format!("/api/v1/executions/{id}"));
        answers.push(format!("{} {}", reply.status, reply.body));
        answers.concat().replace(id, "ID")
    };
    let unknown = "0".repeat(32);
    assert_eq!(foreign("bob", &task), foreign("bob", &unknown));

    let asked = || call(&served, "ada", "tasks/get", &json!({"taskId": task}))["result"].take();
    let ended = until(asked, |told| told["status"] != "working");
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(ended["result"]["structuredContent"]["result"], "of ada");
    let execution = get(&served, "ada", &path).json();
    assert_eq!(
        (&execution["state"], &execution["response"]["result"]),
        (&json!("ended"), &json!("of ada"))
    );
    let events = get(&served, "ada", &format!("{path}/events"));
    assert!(events.body.contains("begun"), "{events:?}");

    // And the other way round.
    let code = json!({"code": "import time; time.sleep(60)"});
    let begun = ask(
        &served,
        "ada",
        "POST /api/v1/execute?wait=false",
        &[],
        &code,
    )
    .json();
    let id = json!({"taskId": begun["execution_id"]});
    assert_eq!(
        call(&served, "ada", "tasks/get", &id)["result"]["status"],
        "working"
    );
    call(&served, "ada", "tasks/cancel", &id);
    assert_eq!(
        call(&served, "ada", "tasks/get", &id)["result"]["status"],
        "cancelled"
    );
}

#[test]
fn a_closed_stream_ends_a_call_that_is_no_task_yet() {
    let served = Served::start(&[]);
    let params = python("import time\nopen('/workspace/x', 'w')\ntime.sleep(60)");
    let body = message("tools/call", &params);
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let mut lines = vec![
        authorization.as_str(),
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
    ];
    lines.extend(headers("tools/call", &params));
    let running = || {
        let metrics = get(&served, "admin", "/metrics").body;
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("mcp_forge_executions_running "));
        json!(line.unwrap_or_else(|| panic!("{metrics}")))
    };
    let begun = Instant::now();
    loop {
        let mut stream = served.connect();
        stream
            .write_all(&served.bytes("POST /mcp", &lines, &body))
            .unwrap();
        until(running, |running| running == "1");
        // On a machine that is busy enough it is a task by now, which is another matter.
        let mut answered = Vec::new();
        stream.set_nonblocking(true).unwrap();
        let _ = stream.read_to_end(&mut answered);
        let answered = String::from_utf8(answered).unwrap();
        let Some((_, task)) = answered.split_once("\"taskId\":\"") else {
            drop(stream);
            break;
        };
        assert!(begun.elapsed() < PATIENCE, "it is always a task");
        let id = task.split('"').next().unwrap();
        call(&served, "ada", "tasks/cancel", &json!({"taskId": id}));
        until(running, |running| running == "0");
    }
    until(running, |running| running == "0");

    // One that is a task goes on after its answer, and ends with the server.
    let seed = call(&served, "ada", "tools/call", &params);
    assert_eq!(seed["result"]["status"], "working", "{seed}");
    assert_eq!(running(), "1");
}

#[test]
fn a_cancelled_task_of_a_session_leaves_the_session() {
    let served = Served::start(&[]);
    // Without the extension: however busy the machine is, these two are no tasks.
    let in_session = |code: &str| {
        let arguments = json!({"code": code, "session_id": "s"});
        served.tool("ada", "execute_python", &arguments)
    };
    in_session("x = 41");
    let mut params = python("import time; time.sleep(60)");
    params["arguments"]["session_id"] = json!("s");
    let seed = call(&served, "ada", "tools/call", &params);
    let id = json!({"taskId": seed["result"]["taskId"]});
    assert!(
        call(&served, "ada", "tasks/cancel", &id)
            .get("error")
            .is_none()
    );
    let told = call(&served, "ada", "tasks/get", &id)["result"].take();
    assert_eq!(told["status"], "cancelled", "{told}");
    assert_eq!(in_session("x + 1")["structuredContent"]["result"], 42);
}
