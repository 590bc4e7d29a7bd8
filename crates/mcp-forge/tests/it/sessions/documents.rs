//! What a session says of itself: documentation and introspection, also while a turn runs.

use super::*;

#[tokio::test]
async fn the_state_has_the_shape_of_the_specification_and_more() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |_| {});
    let run_id = run(&service, "a", "set df rows\nset temp 1")
        .await
        .execution_id;
    let documented = document(
        &service,
        json!({"session_id": "a", "variables": {"df": "Sales", "model": "Forest"}, "note": "ready"}),
    );
    assert_eq!(
        documented.await.unwrap(),
        json!({"success": true, "documented_count": 2, "session_id": "a"})
    );
    let state = state_when(&service, "a", |state| {
        state["history"][0]["outcome"] == "completed"
            && state["introspection"]["df"]["repr"].is_string()
    })
    .await;
    assert_eq!(
        state["documented_variables"],
        json!({"df": "Sales", "model": "Forest"})
    );
    assert_eq!(state["note"], "ready");
    assert_eq!(state["all_variables"], json!(["temp", "df"]));
    assert_eq!(
        state["introspection"]["df"],
        json!({"type": "str", "length": 4, "repr": "\"rows\"", "execution_id": run_id})
    );
    for time in ["last_updated", "as_of", "created_at", "last_used"] {
        let text = state[time].as_str().unwrap();
        assert!(
            text.ends_with('Z') && text.starts_with("20"),
            "{time}: {text}"
        );
    }
    assert_eq!(state["running"], false);

    let cleared = document(
        &service,
        json!({"session_id": "a", "variables": {"x": "y"}, "clear": true}),
    );
    assert_eq!(cleared.await.unwrap()["documented_count"], 1);
    let state = state_when(&service, "a", |_| true).await;
    assert_eq!(state["note"], "");
}

#[tokio::test]
async fn documentation_is_checked_and_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |_| {});
    run(&service, "a", "set x 1").await;
    let big = "x".repeat(20_000);
    let many: serde_json::Map<String, Value> =
        (0..1001).map(|n| (format!("v{n}"), json!(""))).collect();
    let mut sentences = Vec::new();
    for parameters in [
        json!({}),
        json!({"session_id": "a"}),
        json!({"session_id": "none", "variables": {}}),
        json!({"session_id": "../a", "variables": {}}),
        json!({"session_id": "a", "variables": ["x"]}),
        json!({"session_id": "a", "variables": {"x": 1}}),
        json!({"session_id": "a", "variables": {"x": big}}),
        json!({"session_id": "a", "variables": {}, "note": big}),
        json!({"session_id": "a", "variables": many}),
        json!({"session_id": "a", "variables": {}, "notes": "x"}),
    ] {
        let error = document(&service, parameters).await.unwrap_err();
        sentences.push(error.to_string());
    }
    insta::assert_snapshot!(sentences.join("\n"));
}

#[tokio::test]
async fn while_a_turn_runs_the_last_known_state_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, control) = service_in(directory.path(), |_| {});
    run(&service, "a", "set x 1").await;
    let before = state_when(&service, "a", |state| {
        state["all_variables"] == json!(["x"])
    })
    .await;
    let running = tokio::spawn({
        let service = Arc::clone(&service);
        async move { run(&service, "a", "set y 2\ngate").await }
    });
    let state = state_when(&service, "a", |state| state["running"] == true).await;
    assert_eq!(state["all_variables"], json!(["x"]));
    assert_eq!(state["as_of"], before["as_of"]);
    control.gate.add_permits(1);
    running.await.unwrap();
    state_when(&service, "a", |state| {
        state["all_variables"] == json!(["y", "x"])
    })
    .await;
}

#[tokio::test]
async fn code_is_kept_only_if_the_operator_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |config| {
        config.sessions.keep_code = true;
    });
    run(&service, "a", "set x 1").await;
    let state = state_when(&service, "a", |state| {
        state["history"][0]["outcome"] == "completed"
    })
    .await;
    assert_eq!(state["history"][0]["code"], "set x 1");
    service.shutdown().await;
    let secret = "set password hunter2";
    let (service, _, _) = service_in(directory.path(), |_| {});
    run(&service, "b", secret).await;
    state_when(&service, "b", |state| {
        state["history"][0]["outcome"] == "completed"
    })
    .await;
    service.shutdown().await;
    let bytes = std::fs::read(directory.path().join("store.db")).unwrap();
    assert!(
        !bytes
            .windows(secret.len())
            .any(|window| window == secret.as_bytes())
    );
}
