//! Sessions through the MCP front door, in both eras.

use super::*;
use crate::mcp::Client;

const ERAS: [&str; 2] = ["2025-11-25", "2026-07-28"];

async fn tool(client: &mut Client, name: &str, arguments: Value) -> Value {
    let params = json!({"name": name, "arguments": arguments});
    client.request("tools/call", params).await["result"].take()
}

async fn read(client: &mut Client, uri: &str) -> Value {
    client.request("resources/read", json!({"uri": uri})).await
}

async fn read_json(client: &mut Client, uri: &str) -> Value {
    let answer = read(client, uri).await;
    let contents = &answer["result"]["contents"][0];
    assert_eq!(contents["mimeType"], "application/json", "{answer}");
    serde_json::from_str(contents["text"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn the_agents_workflow_of_the_specification() {
    for version in ERAS {
        let mut client = Client::open(python::engine().0, version).await;
        let id = "analysis-123";
        client
            .call(json!({"code": "set df raw\nset df_clean 95000", "session_id": id, "backend": "jupyter"}))
            .await;
        let documented = tool(
            &mut client,
            "document_state",
            json!({
                "session_id": id,
                "variables": {"df": "Raw dataset", "df_clean": "Ready for modeling"},
                "note": "Data loading complete",
            }),
        )
        .await;
        assert_eq!(
            documented["structuredContent"],
            json!({"success": true, "documented_count": 2, "session_id": id})
        );
        let uri = format!("mcp://forge/sessions/{id}/state");
        let state = read_json(&mut client, &uri).await;
        assert_eq!(
            state["documented_variables"]["df_clean"],
            "Ready for modeling"
        );
        assert_eq!(state["note"], "Data loading complete");
        // What the look at a turn finds may come after the turn's answer.
        let uri_of_variables = format!("mcp://forge/sessions/{id}/variables");
        let told = async {
            while read_json(&mut client, &uri_of_variables).await != json!(["df_clean", "df"]) {}
        };
        let told = tokio::time::timeout(Duration::from_mins(1), told).await;
        told.expect("the names of both variables");
        let result = client
            .call(json!({"code": "get df_clean", "session_id": id}))
            .await;
        assert_eq!(result["structuredContent"]["result"], "95000");
        assert_eq!(result["structuredContent"]["session_id"], id);

        let listed = read_json(&mut client, "mcp://forge/sessions/list").await;
        let by_tool = tool(&mut client, "list_sessions", json!({})).await;
        assert_eq!(listed["sessions"][0]["session_id"], id);
        assert_eq!(by_tool["structuredContent"]["sessions"][0]["state"], "live");
        let deleted = tool(&mut client, "delete_session", json!({"session_id": id})).await;
        assert_eq!(deleted["isError"], false);
        let gone = read(&mut client, &uri).await;
        assert_eq!(
            gone["error"]["message"],
            format!("There is no session `{id}`; list_sessions shows those that there are.")
        );
    }
}

#[tokio::test]
async fn files_come_as_links_that_can_be_read() {
    for version in ERAS {
        let mut client = Client::open(python::engine().0, version).await;
        let result = client
            .call(json!({"code": "write out/month.csv a,b\nwrite plot.png notreally", "session_id": "a"}))
            .await;
        let links: Vec<&Value> = result["content"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|block| block["type"] == "resource_link")
            .collect();
        assert_eq!(links.len(), 2, "{result}");
        assert_eq!(
            links[0]["uri"],
            "mcp://forge/sessions/a/files/out/month.csv"
        );
        assert_eq!(links[0]["name"], "month.csv");
        assert_eq!(links[0]["mimeType"], "text/csv");
        assert_eq!(links[0]["size"], 3);
        let csv = read(&mut client, links[0]["uri"].as_str().unwrap()).await;
        assert_eq!(csv["result"]["contents"][0]["text"], "a,b");
        let image = read(&mut client, links[1]["uri"].as_str().unwrap()).await;
        assert_eq!(image["result"]["contents"][0]["blob"], "bm90cmVhbGx5");
        for path in ["%2e%2e/%2e%2e/etc/passwd", "../x", "nothing", "%zz"] {
            let uri = format!("mcp://forge/sessions/a/files/{path}");
            assert!(read(&mut client, &uri).await["error"].is_object(), "{path}");
        }
    }
}

#[tokio::test]
async fn who_subscribed_hears_of_each_turn() {
    let state = "mcp://forge/sessions/a/state";
    let mut client = Client::open(python::engine().0, "2025-11-25").await;
    for uri in [state, "mcp://forge/sessions/list"] {
        let answer = client
            .request("resources/subscribe", json!({"uri": uri}))
            .await;
        assert!(answer["error"].is_null(), "{answer}");
    }
    let refused = client
        .request(
            "resources/subscribe",
            json!({"uri": "mcp://forge/audit/operations"}),
        )
        .await;
    assert!(refused["error"].is_object(), "{refused}");
    client
        .begin(
            "tools/call",
            json!({"name": "execute_python", "arguments": {"code": "set x 1", "session_id": "a"}}),
        )
        .await;
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2 {
        let message = client.receive().await;
        if message["method"] == "notifications/resources/updated" {
            seen.insert(message["params"]["uri"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(
        seen.into_iter().collect::<Vec<_>>(),
        [state, "mcp://forge/sessions/list"]
    );

    let mut client = Client::open(python::engine().0, "2026-07-28").await;
    client
        .begin(
            "subscriptions/listen",
            json!({"notifications": {"resourceSubscriptions": [state, "mcp://forge/nothing"]}}),
        )
        .await;
    let accepted = client.receive().await;
    assert_eq!(
        accepted["method"],
        "notifications/subscriptions/acknowledged"
    );
    assert_eq!(
        accepted["params"]["notifications"]["resourceSubscriptions"],
        json!([state]),
        "{accepted}"
    );
    client
        .begin(
            "tools/call",
            json!({"name": "execute_python", "arguments": {"code": "set x 1", "session_id": "a"}}),
        )
        .await;
    loop {
        let message = client.receive().await;
        if message["method"] == "notifications/resources/updated" {
            assert_eq!(message["params"]["uri"], state);
            break;
        }
    }
}

#[tokio::test]
async fn a_lost_session_is_an_error_that_says_what_to_do() {
    let mut client = Client::open(python::engine().0, "2025-11-25").await;
    client
        .call(json!({"code": "set x 1", "session_id": "a"}))
        .await;
    let stuck = client
        .call(json!({"code": "hang", "session_id": "a", "timeout": 0.1}))
        .await;
    let lost = client
        .call(json!({"code": "get x", "session_id": "a"}))
        .await;
    assert_eq!(lost["isError"], true);
    let shown = format!(
        "{}\n---\n{}",
        stuck["content"][0]["text"].as_str().unwrap(),
        lost["content"][0]["text"].as_str().unwrap()
    );
    insta::assert_snapshot!(shown);
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_sessions_and_the_next_one_is_told() {
    let engine = python::engine().0;
    let mut client = Client::open(Arc::clone(&engine), "2025-11-25").await;
    client
        .call(json!({"code": "set x 1", "session_id": "a"}))
        .await;
    tokio::io::AsyncWriteExt::shutdown(&mut client.writer)
        .await
        .unwrap();
    client.server.await.unwrap().unwrap();
    engine.wait_all_gone().await;
}
