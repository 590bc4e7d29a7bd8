//! Turns of a session: order, queue, interrupts, what belongs to which.

use super::*;

#[tokio::test]
async fn variables_stay_and_an_id_alone_selects() {
    let directory = tempfile::tempdir().unwrap();
    let (service, engine, _) = service_in(directory.path(), |_| {});
    let first = run(&service, "a", "set x 1").await;
    assert_eq!(first.session_id.as_deref(), Some("a"));
    let view = first.session.unwrap();
    assert!(
        view.is_fresh && view.generation == 1 && view.shell == "plain",
        "{view:?}"
    );
    let second = run(&service, "a", "get x").await;
    assert_eq!(second.result, json!("1"));
    assert!(!second.session.unwrap().is_fresh);
    assert_eq!(run(&service, "b", "get x").await.outcome, "raised");
    assert_eq!(engine.launches(), 2);

    let minted = |backend: Option<&str>, id: Option<&str>| ExecuteRequest {
        code: "set x 1".to_owned(),
        backend: backend.map(str::to_owned),
        session_id: id.map(str::to_owned),
        ..ExecuteRequest::default()
    };
    for request in [
        minted(Some("jupyter"), None),
        minted(Some("jupyter"), Some("new")),
        minted(None, Some("new")),
    ] {
        let made = service.execute(request, &mut Quiet).await.unwrap();
        let id = made.session_id.unwrap();
        assert!(id.starts_with("s-") && id.len() == 18, "{id}");
        assert_eq!(run(&service, &id, "get x").await.result, json!("1"));
    }
    service.shutdown().await;
    engine.wait_all_gone().await;
}

#[tokio::test]
async fn what_does_not_fit_together_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (service, engine, _) = service_in(directory.path(), |_| {});
    let mut sentences = Vec::new();
    for parameters in [
        json!({"code": "x", "backend": "simple", "session_id": "a"}),
        json!({"code": "x", "session_id": "../a"}),
        json!({"code": "x", "session_id": ""}),
        json!({"code": "x", "session_id": 5}),
        json!({"code": "x", "session_id": "a", "backend": "ipython"}),
        json!({"code": "x", "volumes": {"shared/readonly": "/workspace"}}),
        json!({"code": "x", "volumes": {"/var/run/docker.sock": "/workspace/s"}}),
        json!({"code": "x", "session_id": "a", "volumes": {"/etc": "/workspace/etc"}}),
        json!({"code": "x", "session_id": "a", "volumes": {"shared/readonly": "/etc"}}),
        json!({"code": "x", "session_id": "a", "volumes": {"sessions/b": "/workspace"}}),
    ] {
        let parsed = ExecuteRequest::from_json(parameters.as_object().unwrap().clone());
        let error = match parsed {
            Ok(request) => refused(&service, request).await,
            Err(error) => error,
        };
        sentences.push(format!("{parameters}\n    {error}"));
    }
    insta::assert_snapshot!(sentences.join("\n"));
    assert_eq!(engine.launches(), 0);
    let records = service.audit_operations().unwrap();
    let violations = records
        .iter()
        .filter(|record| record["event"] == "security.violation");
    assert_eq!(violations.count(), 4);
}

#[tokio::test]
async fn turns_run_in_the_order_of_their_calls_and_too_many_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, control) = service_in(directory.path(), |config| {
        config.sessions.queue_length = 3;
    });
    run(&service, "a", "set n 0").await;
    let mut calls = Vec::new();
    for number in 0..4 {
        let (task_service, code) = (Arc::clone(&service), format!("gate\nset n {number}\nget n"));
        calls.push(tokio::spawn(
            async move { run(&task_service, "a", &code).await },
        ));
        // Each is running or in the queue before the next is made.
        let seen = number + 2;
        while executions(&service) < seen {
            tokio::task::yield_now().await;
        }
    }
    state_when(&service, "a", |state| state["running"] == true).await;
    let error = refused(&service, request("a", "get n")).await;
    assert!(
        matches!(
            &error,
            ServiceError::Session(SessionError::Busy { waiting: 3, .. })
        ),
        "{error}"
    );
    control.gate.add_permits(4);
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().result, json!(number.to_string()));
    }
}

fn executions(service: &Service) -> usize {
    let records = service.audit_operations().unwrap();
    records
        .iter()
        .filter(|record| record["event"] == "execution" && record["phase"] == "started")
        .count()
}

#[tokio::test]
async fn a_timeout_interrupts_and_keeps_the_session() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |_| {});
    let slow = ExecuteRequest {
        timeout: Some(0.1),
        ..request("a", "set x 1\nprint before\nsleep")
    };
    let response = service.execute(slow, &mut Quiet).await.unwrap();
    assert_eq!(response.outcome, "timed_out");
    assert_eq!(response.stdout, "before");
    let error = response.error.unwrap();
    assert_eq!(error.kind, "TimedOut");
    assert!(
        error.message.contains("Session `a` was kept"),
        "{}",
        error.message
    );
    assert!(
        error.traceback.contains("KeyboardInterrupt"),
        "{}",
        error.traceback
    );
    assert_eq!(response.session.unwrap().lost_reason, None);
    assert_eq!(run(&service, "a", "get x").await.result, json!("1"));
}

#[tokio::test]
async fn what_does_not_stop_is_killed_and_the_next_call_says_so_once() {
    let directory = tempfile::tempdir().unwrap();
    let (service, engine, _) = service_in(directory.path(), |_| {});
    run(&service, "a", "set x 1").await;
    let stuck = ExecuteRequest {
        timeout: Some(0.1),
        ..request("a", "hang")
    };
    let response = service.execute(stuck, &mut Quiet).await.unwrap();
    assert_eq!(response.outcome, "timed_out");
    let reason = response.session.unwrap().lost_reason.unwrap();
    assert!(
        reason.contains("did not stop when it was interrupted"),
        "{reason}"
    );

    let next = run(&service, "a", "write made yes").await;
    assert_eq!(
        (next.success, next.outcome.as_str()),
        (false, "session_lost")
    );
    let view = next.session.unwrap();
    assert_eq!(
        (view.generation, view.lost_reason.as_deref()),
        (2, Some(reason.as_str()))
    );
    assert!(next.error.unwrap().message.contains("did not run"));
    assert_eq!(engine.launches(), 1, "nothing ran");

    let fresh = run(&service, "a", "get x").await;
    assert_eq!(fresh.outcome, "raised", "the interpreter is empty");
    let view = fresh.session.unwrap();
    assert!(view.is_fresh && view.generation == 2 && view.lost_reason.is_none());
    assert_eq!(run(&service, "a", "read made").await.outcome, "raised");
    assert_eq!(
        session_events(&service),
        [
            "session.created a 1",
            "session.lost a 1",
            "session.started a 2"
        ]
    );
}

#[tokio::test]
async fn calls_that_waited_for_a_lost_interpreter_do_not_run_in_another() {
    let directory = tempfile::tempdir().unwrap();
    let (service, engine, control) = service_in(directory.path(), |_| {});
    run(&service, "a", "set x 1").await;
    let crash = tokio::spawn({
        let service = Arc::clone(&service);
        async move { run(&service, "a", "gate\ndie").await }
    });
    state_when(&service, "a", |state| state["running"] == true).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let task_service = Arc::clone(&service);
        waiting.push(tokio::spawn(async move {
            run(&task_service, "a", "set x 2").await
        }));
    }
    while executions(&service) < 5 {
        tokio::task::yield_now().await;
    }
    control.gate.add_permits(1);
    let crashed = crash.await.unwrap();
    assert_eq!(crashed.outcome, "crashed");
    for call in waiting {
        let response = call.await.unwrap();
        assert_eq!(response.outcome, "session_lost");
        assert_eq!(response.session.unwrap().generation, 2);
    }
    // They were told: this one runs.
    assert_eq!(
        run(&service, "a", "set x 3\nget x").await.result,
        json!("3")
    );
    assert_eq!(engine.launches(), 2);
}

#[tokio::test]
async fn a_dropped_call_is_interrupted_and_never_hits_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let (service, engine, control) = service_in(directory.path(), |_| {});
    let running = tokio::spawn({
        let service = Arc::clone(&service);
        async move { run(&service, "a", "set x 1\nsleep").await }
    });
    engine.wait_launched(1).await;
    state_when(&service, "a", |state| state["running"] == true).await;
    // A call in the queue that is dropped before its turn never runs.
    let queued = tokio::spawn({
        let service = Arc::clone(&service);
        async move { run(&service, "a", "set x 2").await }
    });
    while executions(&service) < 2 {
        tokio::task::yield_now().await;
    }
    queued.abort();
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    control.gate.add_permits(1);
    let next = run(&service, "a", "gate\nget x").await;
    assert_eq!(
        (next.outcome.as_str(), next.result),
        ("completed", json!("1"))
    );
    assert_eq!(engine.launches(), 1);
    let ends: Vec<Value> = service
        .audit_operations()
        .unwrap()
        .into_iter()
        .filter(|record| record["event"] == "execution" && record["phase"] == "finished")
        .map(|record| record["outcome"].clone())
        .collect();
    assert_eq!(ends, ["completed", "cancelled", "cancelled"]);
}

#[tokio::test]
async fn late_output_is_told_apart_and_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |_| {});
    let first = run(&service, "a", "print now\nlate afterwards").await;
    assert_eq!(first.stdout, "now");
    assert_eq!(first.between_turns, None);
    // It arrives while nobody asks, or at the latest before the next turn's own output.
    state_when(&service, "a", |state| state["as_of"].is_string()).await;
    let second = run(&service, "a", "print again").await;
    assert_eq!(second.stdout, "again");
    assert_eq!(second.between_turns.unwrap().stdout, "afterwards");

    let flood = format!("late {}", "y".repeat(1_000_000));
    run(&service, "a", &flood).await;
    state_when(&service, "a", |state| state["running"] == false).await;
    let third = run(&service, "a", "print more").await;
    let between = third.between_turns.unwrap();
    assert!(between.stdout.len() < 80_000, "{}", between.stdout.len());
    assert!(between.dropped_bytes > 900_000);
    assert_eq!(run(&service, "a", "print x").await.between_turns, None);
}

#[tokio::test]
async fn limits_are_those_of_the_first_call() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |_| {});
    let with_memory = |memory: &str| {
        let parameters =
            json!({"code": "set x 1", "session_id": "a", "limits": {"memory": memory}});
        ExecuteRequest::from_json(parameters.as_object().unwrap().clone()).unwrap()
    };
    let first = service
        .execute(with_memory("1g"), &mut Quiet)
        .await
        .unwrap();
    assert_eq!(first.limits.memory_bytes, 1 << 30);
    let second = run(&service, "a", "get x").await;
    assert_eq!(second.limits.memory_bytes, 1 << 30);
    service
        .execute(with_memory("1g"), &mut Quiet)
        .await
        .unwrap();
    let error = refused(&service, with_memory("2g")).await;
    assert!(error.to_string().contains("limits are fixed"), "{error}");
}

#[tokio::test]
async fn a_call_to_a_tool_that_was_not_granted_is_refused_in_a_session_too() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |_| {});
    let response = run(&service, "a", "tool anything").await;
    assert!(
        response.result.as_str().unwrap().contains("NotGranted"),
        "{}",
        response.result
    );
    assert_eq!(response.tool_calls[0].status, "not_granted");
}
