//! Who hears that environments are others now: what tells it, and whom, in both eras of MCP.

use std::time::Duration;

use mcp_forge::{
    environments::{Owner, Selection, Teller},
    names::Principal,
    packages::EnvironmentName,
    store::{EnvironmentRecord, Store, now_ms},
};
use serde_json::json;
use tokio::sync::broadcast::Receiver;

use super::place::Place;
use crate::{
    fake::{FakeEngine, echo},
    mcp::Client,
};

const LIST: &str = "mcp://forge/environments/list";

/// What was told so far, for whoever that concerns.
fn told(changes: &mut Receiver<Owner>) -> usize {
    let mut count = 0;
    while let Ok(owner) = changes.try_recv() {
        assert!(owner.concerns(&Principal::local()));
        assert!(!owner.concerns(&Principal::named("bob")));
        count += 1;
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_a_rebuild_an_archiving_a_return_and_a_deletion_are_told() {
    let place = Place::new(|config| {
        config.environments.archive_after = Duration::ZERO;
        config.environments.delete_after = Duration::from_hours(24);
    });
    let me = Principal::local();
    let name = EnvironmentName::parse("e").unwrap();
    let (teller, _told) = Teller::new();
    let mut changes = place.environments.changes();
    place.build("e", &["six"]).await.unwrap();
    assert_eq!(told(&mut changes), 1, "the build");
    place
        .environments
        .rebuild(&me, &name, &teller)
        .await
        .unwrap();
    assert_eq!(told(&mut changes), 1, "the rebuild");
    place.environments.tidy().await.unwrap();
    assert_eq!(told(&mut changes), 1, "the archiving");
    let selection = Selection::Custom(name.clone());
    let opened = place.environments.open(&me, &selection, &teller).await;
    opened.unwrap();
    assert_eq!(told(&mut changes), 1, "the return");
    place.environments.delete(&me, &name).await.unwrap();
    assert_eq!(told(&mut changes), 1, "the deletion");
    place.environments.delete(&me, &name).await.unwrap_err();
    assert_eq!(told(&mut changes), 0);
}

#[tokio::test]
async fn who_subscribed_to_the_list_hears_of_it_in_both_eras() {
    for version in ["2025-11-25", "2026-07-28"] {
        let mut data_dir = None;
        let mut client = Client::connect_with(FakeEngine::new(echo), |config| {
            data_dir = Some(config.data_dir.clone());
        });
        client.begin_as(version).await;
        if version == "2025-11-25" {
            let answer = client
                .request("resources/subscribe", json!({"uri": LIST}))
                .await;
            assert!(answer["error"].is_null(), "{answer}");
        } else {
            let wanted = json!({"notifications": {"resourceSubscriptions": [LIST]}});
            client.begin("subscriptions/listen", wanted).await;
            let accepted = client.receive().await;
            let uris = &accepted["params"]["notifications"]["resourceSubscriptions"];
            assert_eq!(*uris, json!([LIST]), "{accepted}");
        }
        let store = Store::new(&data_dir.unwrap());
        store.put_environment(&record()).await.unwrap();
        let call = json!({"name": "delete_custom_environment", "arguments": {"name": "e"}});
        client.begin("tools/call", call).await;
        loop {
            let message = client.receive().await;
            if message["method"] == "notifications/resources/updated" {
                assert_eq!(message["params"]["uri"], LIST, "{message}");
                break;
            }
        }
    }
}

fn record() -> EnvironmentRecord {
    EnvironmentRecord {
        principal: Principal::local().as_str().to_owned(),
        name: "e".to_owned(),
        tree: "0".repeat(64),
        description: String::new(),
        template: None,
        requested: vec!["six".to_owned()],
        request: "none".to_owned(),
        python: "3.11".to_owned(),
        lock: "{}".to_owned(),
        size_bytes: 1,
        build_ms: 1,
        created_ms: now_ms(),
        built_ms: now_ms(),
        used_ms: now_ms(),
        archived_ms: None,
    }
}
