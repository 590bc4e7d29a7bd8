//! Approvals asked in place: who is asked, how in each era, and what each answer leads to.
//!
//! There is no `uv` here: a build that passes the rules ends there, which is how it is told from one
//! that does not.

use mcp_forge::{config::Config, packages::Rules};
use serde_json::{Value, json};

use crate::{
    fake::{FakeEngine, echo},
    mcp::Client,
};

const OLD: [&str; 2] = ["2025-06-18", "2025-11-25"];
const ROUNDS: &str = "2026-07-28";

fn hold_back(config: &mut Config) {
    let list = |names: &[&str]| -> Vec<String> { names.iter().map(|&name| name.into()).collect() };
    let held = list(&["*crypto*", "paramiko"]);
    config.environments.rules = Rules::new(&[], false, &list(&["os-sys"]), &held).unwrap();
    config.environments.uv = Some("/nonexistent/uv".into());
}

/// A client that says this of itself.
async fn client(version: &str, capabilities: &Value) -> Client {
    let mut client = Client::connect_with(FakeEngine::new(echo), hold_back);
    if version == ROUNDS {
        client.meta = json!({
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        });
        return client;
    }
    let hello = json!({
        "protocolVersion": version,
        "capabilities": capabilities,
        "clientInfo": {"name": "test", "version": "1"},
    });
    client.request("initialize", hello).await;
    client
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        .await;
    client
}

fn build(packages: &[&str]) -> Value {
    json!({"name": "build_custom_environment", "arguments": {"name": "e", "packages": packages}})
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_default()
}

fn is_held_back(result: &Value) -> bool {
    result["isError"] == true && text(result).contains("waits for an approval")
}

/// The rules let it pass, and there is no `uv`.
fn is_let_in(result: &Value) -> bool {
    result["isError"] == true && text(result).contains("/nonexistent/uv")
}

/// The next message that is a request of the server's.
async fn asked(client: &mut Client) -> Value {
    loop {
        let message = client.receive().await;
        if message.get("method").is_some() && message.get("id").is_some() {
            return message;
        }
        assert!(message.get("id").is_none(), "no question came: {message}");
    }
}

#[tokio::test]
async fn an_older_client_is_asked_by_a_request_and_the_build_goes_on() {
    for version in OLD {
        let mut client = client(version, &json!({"elicitation": {}})).await;
        let call = build(&["PyCrypto==2.6", "paramiko", "six"]);
        for action in ["decline", "cancel", "accept"] {
            let id = client.begin("tools/call", call.clone()).await;
            let question = asked(&mut client).await;
            assert_eq!(question["method"], "elicitation/create");
            let message = question["params"]["message"].as_str().unwrap();
            for part in ["`e`", "pycrypto (", "*crypto*", "paramiko (", "everybody"] {
                assert!(message.contains(part), "{part}: {message}");
            }
            assert!(!message.contains("six"), "{message}");
            client
                .send(
                    &json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": action}}),
                )
                .await;
            let result = client.answer(id).await["result"].take();
            if action == "accept" {
                assert!(is_let_in(&result), "{result}");
            } else {
                assert!(is_held_back(&result), "{action}: {result}");
            }
        }
        // What was approved is not asked for again.
        let again = client.request("tools/call", call).await["result"].take();
        assert!(is_let_in(&again), "{again}");
    }
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_is_no_approval() {
    let mut client = client("2025-11-25", &json!({"elicitation": {"form": {}}})).await;
    for answer in [
        json!({"error": {"code": -32601, "message": "what?"}}),
        json!({"result": {}}),
        json!({"result": {"action": "maybe"}}),
        json!({"result": {"approve": true}}),
    ] {
        let id = client.begin("tools/call", build(&["paramiko"])).await;
        let question = asked(&mut client).await;
        let mut message = json!({"jsonrpc": "2.0", "id": question["id"]});
        for (key, value) in answer.as_object().unwrap() {
            message[key] = value.clone();
        }
        client.send(&message).await;
        let result = client.answer(id).await["result"].take();
        assert!(is_held_back(&result), "{answer}: {result}");
    }
}

#[tokio::test]
async fn a_newer_client_is_answered_with_the_question_and_calls_again() {
    let mut client = client(ROUNDS, &json!({"elicitation": {"form": {}}})).await;
    let call = build(&["paramiko"]);
    let asked = client.request("tools/call", call.clone()).await["result"].take();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let questions = asked["inputRequests"].as_object().unwrap();
    assert_eq!(questions.len(), 1);
    let (key, question) = questions.iter().next().unwrap();
    assert_eq!(question["method"], "elicitation/create");
    let message = question["params"]["message"].as_str().unwrap();
    assert!(message.contains("paramiko"), "{message}");

    let answered = |call: &Value, key: &str, answer: Value| {
        let mut call = call.clone();
        call["inputResponses"] = json!({ key: answer });
        call
    };
    let accept = json!({"action": "accept", "content": {}});
    for (again, is_asked) in [
        (answered(&call, key, json!({"action": "decline"})), false),
        (answered(&call, key, json!({"action": "yes"})), false),
        (answered(&call, key, json!("accept")), false),
        // An answer to another question is none to this one.
        (answered(&call, "approve", accept.clone()), true),
        (answered(&build(&["pycrypto"]), key, accept.clone()), true),
        (
            answered(&build(&["paramiko", "pycrypto"]), key, accept.clone()),
            true,
        ),
    ] {
        let result = client.request("tools/call", again.clone()).await["result"].take();
        if is_asked {
            assert_eq!(result["resultType"], "input_required", "{again}: {result}");
        } else {
            assert!(is_held_back(&result), "{again}: {result}");
        }
    }
    // Whatever it says of the state, the packages are judged anew.
    let mut forged = call.clone();
    forged["requestState"] = json!("approved");
    let result = client.request("tools/call", forged).await["result"].take();
    assert_eq!(result["resultType"], "input_required", "{result}");

    let result = client
        .request("tools/call", answered(&call, key, accept))
        .await["result"]
        .take();
    assert!(is_let_in(&result), "{result}");
}

#[tokio::test]
async fn who_cannot_be_asked_is_refused_and_what_is_blocked_is_not_asked_for() {
    for version in ["2025-11-25", ROUNDS] {
        for capabilities in [json!({}), json!({"elicitation": {"url": {}}})] {
            let mut client = client(version, &capabilities).await;
            let result = client.request("tools/call", build(&["paramiko"])).await["result"].take();
            assert!(is_held_back(&result), "{result}");
            assert!(text(&result).contains("mcp-forge env approve"), "{result}");
        }
        let mut client = client(version, &json!({"elicitation": {}})).await;
        let result = client
            .request("tools/call", build(&["os-sys", "paramiko"]))
            .await["result"]
            .take();
        assert!(
            text(&result).contains("packages.blocklist: os-sys"),
            "{result}"
        );
    }
}

#[tokio::test]
async fn a_call_that_is_cancelled_takes_its_question_back() {
    let mut client = client("2025-11-25", &json!({"elicitation": {}})).await;
    let id = client.begin("tools/call", build(&["paramiko"])).await;
    let question = asked(&mut client).await;
    client
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}))
        .await;
    loop {
        let message = client.receive().await;
        if message["method"] == "notifications/cancelled" {
            assert_eq!(message["params"]["requestId"], question["id"]);
            break;
        }
    }
    // Too late.
    client
        .send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}))
        .await;
    let next = client.begin("tools/call", build(&["paramiko"])).await;
    let question = asked(&mut client).await;
    client
        .send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}))
        .await;
    let result = loop {
        let message = client.receive().await;
        if message["id"] == next && message.get("method").is_none() {
            break message["result"].clone();
        }
    };
    assert!(is_held_back(&result), "{result}");
}
