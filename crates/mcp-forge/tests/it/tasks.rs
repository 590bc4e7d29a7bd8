//! Tasks: who gets one, when, what it says of itself, and what ends it.

use std::time::Duration;

use mcp_forge::{config::Config, packages::Rules};
use serde_json::{Value, json};

use crate::{
    fake::{FakeEngine, Runner, echo, hang},
    mcp::Client,
};

/// What a client sends that can have tasks, and what else it can.
fn meta(more: &Value) -> Value {
    let mut capabilities = more.clone();
    capabilities["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    })
}

fn connect(engine: std::sync::Arc<FakeEngine>) -> Client {
    let mut client = Client::connect(engine);
    client.meta = meta(&json!({}));
    client
}

async fn task(client: &mut Client, method: &str, id: &Value) -> Value {
    client
        .request(&format!("tasks/{method}"), json!({"taskId": id}))
        .await
}

/// Asks until the task has ended.
async fn ended(client: &mut Client, id: &Value) -> Value {
    loop {
        let told = task(client, "get", id).await["result"].take();
        if !["working", "input_required"].contains(&told["status"].as_str().unwrap()) {
            return told;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Asks until the task asks.
async fn asking(client: &mut Client, id: &Value) -> Value {
    loop {
        let told = task(client, "get", id).await["result"].take();
        if told["status"] == "input_required" {
            return told;
        }
        assert_eq!(told["status"], "working", "{told}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Prints, waits for five seconds of the paused clock, and returns its code.
async fn slow(mut runner: Runner) {
    let code = runner.code().await;
    runner.print("on the way\n").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    runner.returns(Value::String(code)).await;
}

#[tokio::test(start_paused = true)]
async fn a_long_turn_becomes_a_task_whose_result_is_the_calls() {
    let mut client = connect(FakeEngine::new(slow));
    let seed = client.call(json!({"code": "x"})).await;
    assert_eq!(
        (&seed["resultType"], &seed["status"]),
        (&json!("task"), &json!("working")),
        "{seed}"
    );
    assert!(seed["ttlMs"].as_u64().unwrap() >= 3_600_000, "{seed}");
    let id = seed["taskId"].clone();
    let told = task(&mut client, "get", &id).await["result"].take();
    assert_eq!(
        (&told["resultType"], &told["status"], &told["statusMessage"]),
        (&json!("complete"), &json!("working"), &json!("on the way")),
        "{told}"
    );
    for _ in 0..2 {
        let told = ended(&mut client, &id).await;
        assert_eq!(told["status"], "completed", "{told}");
        assert_eq!(told["result"]["isError"], false);
        assert_eq!(told["result"]["structuredContent"]["result"], "x");
        assert_eq!(
            told["result"]["structuredContent"]["execution_id"], id,
            "a task is an execution"
        );
    }
    // One that has ended is not cancelled any more.
    assert!(
        task(&mut client, "cancel", &id)
            .await
            .get("error")
            .is_none()
    );
    assert_eq!(ended(&mut client, &id).await["status"], "completed");
}

#[tokio::test(start_paused = true)]
async fn a_quick_turn_and_a_client_without_the_extension_are_answered() {
    let mut client = connect(FakeEngine::new(echo));
    for (arguments, is_error) in [(json!({"code": "x"}), false), (json!({"cod": "x"}), true)] {
        let answer = client.call(arguments).await;
        assert_eq!(
            (&answer["resultType"], &answer["isError"]),
            (&json!("complete"), &json!(is_error)),
            "{answer}"
        );
    }
    let mut plain = Client::open(FakeEngine::new(echo), "2026-07-28").await;
    let refused = task(&mut plain, "get", &json!("x")).await;
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    for version in ["2025-06-18", "2025-11-25"] {
        let mut older = Client::open(FakeEngine::new(echo), version).await;
        let answer = older.call(json!({"code": "x"})).await;
        assert!(answer.get("taskId").is_none(), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_without_the_extension_waits_for_a_long_turn() {
    let mut client = Client::open(FakeEngine::new(slow), "2026-07-28").await;
    let answer = client.call(json!({"code": "x"})).await;
    assert_eq!(answer["structuredContent"]["result"], "x", "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_task_has_no_sandbox_any_more() {
    let engine = FakeEngine::new(hang);
    let mut client = connect(engine.clone());
    let id = client.call(json!({"code": "x"})).await["taskId"].take();
    let answer = task(&mut client, "cancel", &id).await;
    assert_eq!(answer["result"], json!({"resultType": "complete"}));
    engine.wait_all_gone().await;
    assert_eq!(ended(&mut client, &id).await["status"], "cancelled");
}

#[tokio::test(start_paused = true)]
async fn before_it_is_a_task_a_call_is_cancelled_as_any_other() {
    let engine = FakeEngine::new(hang);
    let mut client = connect(engine.clone());
    let call = json!({"name": "execute_python", "arguments": {"code": "x"}});
    let id = client.begin("tools/call", call).await;
    engine.wait_launched(1).await;
    client
        .send(&json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id},
        }))
        .await;
    engine.wait_all_gone().await;
}

#[tokio::test(start_paused = true)]
async fn unknown_tasks_and_wrong_parameters_are_refused_in_words() {
    let mut client = connect(FakeEngine::new(echo));
    for method in ["get", "cancel"] {
        let refused = task(&mut client, method, &json!("none")).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("no task `none`"), "{message}");
        let refused = task(&mut client, method, &json!(7)).await;
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("params.taskId"), "{message}");
    }
    let refused = client
        .request(
            "tasks/update",
            json!({"taskId": "none", "inputResponses": {}}),
        )
        .await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
}

#[tokio::test(start_paused = true)]
async fn with_as_many_as_may_be_a_call_is_answered_without_a_task() {
    let mut client = Client::connect_with(FakeEngine::new(slow), |config: &mut Config| {
        config.max_concurrent = 200;
    });
    client.meta = meta(&json!({}));
    let call = json!({"name": "execute_python", "arguments": {"code": "x"}});
    let mut begun = Vec::new();
    for _ in 0..70 {
        begun.push(client.begin("tools/call", call.clone()).await);
    }
    let (mut tasks, mut answers) = (Vec::new(), 0);
    for _ in begun {
        let answer = client.receive().await["result"].take();
        if let Some(id) = answer.get("taskId") {
            tasks.push(id.clone());
        } else {
            assert_eq!(answer["structuredContent"]["result"], "x", "{answer}");
            answers += 1;
        }
    }
    assert_eq!((tasks.len(), answers), (64, 6));
    // What was promised is kept until it was seen; then there is room again.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(
        client
            .call(json!({"code": "x"}))
            .await
            .get("taskId")
            .is_none()
    );
    ended(&mut client, &tasks[0]).await;
    let seed = client.call(json!({"code": "x"})).await;
    assert!(seed.get("taskId").is_some(), "{seed}");
    assert_eq!(ended(&mut client, &tasks[63]).await["status"], "completed");
}

/// There is no `uv`: a build that passes the rules ends with saying so.
fn hold_back(config: &mut Config) {
    let list = |names: &[&str]| -> Vec<String> { names.iter().map(|&name| name.into()).collect() };
    let held = list(&["*crypto*", "paramiko"]);
    config.environments.rules = Rules::new(&[], false, &list(&["os-sys"]), &held).unwrap();
    config.environments.uv = Some("/nonexistent/uv".into());
}

async fn build(client: &mut Client, packages: &[&str]) -> Value {
    let arguments = json!({"name": "e", "packages": packages});
    let call = json!({"name": "build_custom_environment", "arguments": arguments});
    client.request("tools/call", call).await["result"].take()
}

fn answers(told: &Value, action: &str) -> Value {
    let asked = told["inputRequests"].as_object().unwrap();
    let answers = asked
        .keys()
        .map(|key| (key.clone(), json!({"action": action})));
    Value::Object(answers.collect())
}

#[tokio::test]
async fn a_build_asks_for_an_approval_as_a_task() {
    for (action, says) in [
        ("accept", "/nonexistent/uv"),
        ("decline", "waits for an approval"),
    ] {
        let mut client = Client::connect_with(FakeEngine::new(echo), hold_back);
        client.meta = meta(&json!({"elicitation": {}}));
        let seed = build(&mut client, &["PyCrypto==2.6", "six"]).await;
        assert_eq!(seed["resultType"], "task", "{seed}");
        let id = seed["taskId"].clone();
        let told = asking(&mut client, &id).await;
        let asked = told["inputRequests"].as_object().unwrap();
        let question = asked.values().next().unwrap();
        assert_eq!(question["method"], "elicitation/create", "{question}");
        let message = question["params"]["message"].as_str().unwrap();
        assert!(message.contains("pycrypto"), "{message}");

        // Answers to what nobody asked change nothing.
        let nothing = json!({"taskId": id, "inputResponses": {"approve-1": {"action": "accept"}}});
        client.request("tasks/update", nothing).await;
        let same = task(&mut client, "get", &id).await["result"].take();
        assert_eq!(same["inputRequests"], told["inputRequests"]);
        // Who cannot show it is not asked.
        let shows = std::mem::replace(&mut client.meta, meta(&json!({})));
        let other = task(&mut client, "get", &id).await["result"].take();
        assert_eq!(
            (&other["status"], &other["statusMessage"]),
            (&json!("working"), &json!("waiting for an approval"))
        );
        client.meta = shows;

        let update = json!({"taskId": id, "inputResponses": answers(&told, action)});
        let acknowledged = client.request("tasks/update", update).await;
        assert_eq!(acknowledged["result"], json!({"resultType": "complete"}));
        let told = ended(&mut client, &id).await;
        assert_eq!(told["status"], "completed", "{told}");
        assert_eq!(told["result"]["isError"], true);
        let text = told["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains(says), "{text}");
    }
}

#[tokio::test]
async fn a_build_is_cancelled_while_it_asks() {
    let mut client = Client::connect_with(FakeEngine::new(echo), hold_back);
    client.meta = meta(&json!({"elicitation": {}}));
    let id = build(&mut client, &["pycrypto"]).await["taskId"].take();
    asking(&mut client, &id).await;
    task(&mut client, "cancel", &id).await;
    assert_eq!(ended(&mut client, &id).await["status"], "cancelled");
}

#[tokio::test]
async fn a_build_that_nobody_can_be_asked_about_is_refused() {
    let mut client = Client::connect_with(FakeEngine::new(echo), hold_back);
    client.meta = meta(&json!({}));
    for packages in [&["os-sys"][..], &["pycrypto"]] {
        let mut answer = build(&mut client, packages).await;
        // On a machine that is busy enough this takes longer than a moment.
        if let Some(id) = answer.get("taskId").cloned() {
            answer = ended(&mut client, &id).await["result"].take();
        }
        assert_eq!(
            (&answer["resultType"], &answer["isError"]),
            (&json!("complete"), &json!(true)),
            "{answer}"
        );
    }
}
