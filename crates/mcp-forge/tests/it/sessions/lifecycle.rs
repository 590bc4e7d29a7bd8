//! How sessions begin and end: limits in number, idle time, age, deletion, restarts, other servers.

use super::*;

#[tokio::test]
async fn there_are_only_so_many() {
    let directory = tempfile::tempdir().unwrap();
    let (service, engine, _) = service_in(directory.path(), |config| {
        config.sessions.max_concurrent = 2;
    });
    run(&service, "a", "set x 1").await;
    run(&service, "b", "set x 1").await;
    let error = refused(&service, request("c", "set x 1")).await;
    assert_eq!(
        error.to_string(),
        "there are 2 sessions alive, as many as there may be; end one with delete_session; `a` has been idle for longest"
    );
    assert_eq!(engine.launches(), 2);
    service
        .delete_session(&Principal::local(), "a")
        .await
        .unwrap();
    run(&service, "c", "set x 1").await;
}

#[tokio::test]
async fn one_principal_cannot_take_all_the_room() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |config| {
        config.sessions.max_concurrent = 3;
        config.sessions.max_per_principal = 2;
    });
    run(&service, "a", "set x 1").await;
    run(&service, "b", "set x 1").await;
    let error = refused(&service, request("c", "set x 1")).await;
    assert!(
        error.to_string().contains("there are 2 sessions alive"),
        "{error}"
    );
    let other = Principal::named("other");
    let theirs = request("a", "set x 1");
    service
        .execute_for(&other, theirs, &mut Quiet)
        .await
        .unwrap();
    let full = service
        .execute_for(&other, request("b", "set x 1"), &mut Quiet)
        .await;
    let error = full.unwrap_err();
    // It hears of its own sessions only.
    assert_eq!(
        error.to_string(),
        "there are 3 sessions alive, as many as there may be; end one with delete_session; `a` has been idle for longest"
    );
}

#[tokio::test]
async fn an_idle_session_is_warned_of_and_then_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (service, engine, _) = service_in(directory.path(), |config| {
        config.sessions.idle_timeout = Duration::from_secs(6);
        config.sessions.cleanup_interval = Duration::from_millis(20);
    });
    run(&service, "quiet", "set x 1").await;
    // Kept alive by its own use, it hears of the other one.
    let warned = loop {
        let response = run(&service, "busy", "set y 1").await;
        if !response.notices.is_empty() {
            break response.notices;
        }
        let listed = service.list_sessions(&Principal::local()).await.unwrap();
        assert!(
            listed
                .iter()
                .any(|session| session.session_id == "quiet" && session.state == "live"),
            "it ended without a warning"
        );
    };
    assert!(
        warned[0].contains("Session `quiet` is idle and ends in"),
        "{warned:?}"
    );
    let state = state_when(&service, "quiet", |state| state["state"] == "lost").await;
    assert_eq!(
        state["lost_reason"],
        "it was idle for 6 s, its idle timeout"
    );
    assert_eq!(state["all_variables"], json!(["x"]));
    assert_eq!(
        run(&service, "quiet", "get x").await.outcome,
        "session_lost"
    );
    assert_eq!(run(&service, "quiet", "get x").await.outcome, "raised");
    service.shutdown().await;
    engine.wait_all_gone().await;
}

#[tokio::test]
async fn a_running_turn_is_not_idle_but_has_a_lifetime() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |config| {
        config.sessions.idle_timeout = Duration::from_millis(100);
        config.sessions.max_lifetime = Duration::from_millis(500);
        config.sessions.cleanup_interval = Duration::from_millis(20);
    });
    let response = run(&service, "a", "sleep").await;
    assert_eq!(response.outcome, "cancelled");
    let reason = response.session.unwrap().lost_reason.unwrap();
    assert_eq!(reason, "it reached its maximum lifetime of 0.5 s");
    assert_eq!(run(&service, "a", "set x 1").await.outcome, "session_lost");
}

#[tokio::test]
async fn a_deleted_session_is_forgotten_whatever_it_was_doing() {
    let directory = tempfile::tempdir().unwrap();
    let (service, engine, _) = service_in(directory.path(), |_| {});
    let me = Principal::local();
    run(&service, "a", "set x 1\nwrite f.txt hello").await;
    document(
        &service,
        json!({"session_id": "a", "variables": {"x": "one"}}),
    )
    .await
    .unwrap();
    let running = tokio::spawn({
        let service = Arc::clone(&service);
        async move { run(&service, "a", "sleep").await }
    });
    state_when(&service, "a", |state| state["running"] == true).await;
    service.delete_session(&me, "a").await.unwrap();
    assert_eq!(running.await.unwrap().outcome, "cancelled");
    engine.wait_all_gone().await;
    assert!(service.list_sessions(&me).await.unwrap().is_empty());
    assert!(!directory.path().join("sessions/a").exists());
    let unknown = service.session_state(&me, "a").await.unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "there is no session `a`; list_sessions shows those that there are"
    );
    let again = service.delete_session(&me, "a").await.unwrap_err();
    assert_eq!(again.to_string(), unknown.to_string());
    // The name is free: nothing is lost, nothing is left.
    let fresh = run(&service, "a", "read f.txt").await;
    assert_eq!(
        (fresh.outcome.as_str(), fresh.session.unwrap().generation),
        ("raised", 1)
    );
}

#[tokio::test]
async fn a_restart_is_a_loss_with_documentation_files_and_history_intact() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |_| {});
    let first = run(&service, "a", "set x 1\nwrite out/f.txt hello").await;
    document(
        &service,
        json!({"session_id": "a", "variables": {"x": "one"}, "note": "begun"}),
    )
    .await
    .unwrap();
    state_when(&service, "a", |state| {
        state["files"][0]["path"] == "out/f.txt"
    })
    .await;
    service.shutdown().await;

    let (service, engine, _) = service_in(directory.path(), |_| {});
    let state = state_when(&service, "a", |_| true).await;
    assert_eq!(state["state"], "lost");
    assert_eq!(state["lost_reason"], "the server was stopped");
    assert_eq!(state["documented_variables"], json!({"x": "one"}));
    assert_eq!(state["note"], "begun");
    assert_eq!(state["all_variables"], json!(["x"]));
    assert_eq!(
        state["history"][0]["execution_id"],
        json!(first.execution_id)
    );
    assert_eq!(state["history"][0]["outcome"], "completed");
    assert_eq!(
        state["history"][0].get("code"),
        None,
        "code is not kept by default"
    );
    assert_eq!(engine.launches(), 0);

    let lost = run(&service, "a", "get x").await;
    assert_eq!(
        (lost.outcome.as_str(), lost.session.unwrap().generation),
        ("session_lost", 2)
    );
    let fresh = run(&service, "a", "read out/f.txt").await;
    assert_eq!(
        (fresh.outcome.as_str(), fresh.result),
        ("completed", json!("hello"))
    );
    assert_eq!(
        fresh.files,
        [],
        "what was put back was not made by this call"
    );
    assert_eq!(fresh.session.unwrap().warnings, Vec::<String>::new());
    let state = state_when(&service, "a", |state| {
        state["history"][0]["outcome"] == "completed"
    })
    .await;
    assert_eq!(state["documented_variables"], json!({"x": "one"}));
}

#[tokio::test]
async fn a_session_of_another_server_is_named_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let (one, _, _) = service_in(directory.path(), |_| {});
    let (two, engine, _) = service_in(directory.path(), |_| {});
    run(&one, "a", "set x 1").await;
    let error = refused(&two, request("a", "get x")).await;
    let pid = std::process::id();
    assert_eq!(
        error.to_string(),
        format!(
            "session `a` lives in another mcp-forge server (pid {pid}); use it there, end that server, or choose another name"
        )
    );
    let me = Principal::local();
    assert!(two.delete_session(&me, "a").await.is_err());
    let listed = two.list_sessions(&me).await.unwrap();
    assert_eq!(
        (listed[0].state, listed[0].pid),
        ("elsewhere", Some(i64::from(pid)))
    );
    // To write about it is no matter of the interpreter.
    document(&two, json!({"session_id": "a", "variables": {"x": "one"}}))
        .await
        .unwrap();
    assert_eq!(run(&one, "a", "get x").await.result, json!("1"));
    assert_eq!(engine.launches(), 0);
}

#[tokio::test]
async fn one_principals_sessions_are_unknown_to_another() {
    let directory = tempfile::tempdir().unwrap();
    let (service, engine, _) = service_in(directory.path(), |_| {});
    let other = Principal::named("other");
    run(&service, "mine", "set x 1\nwrite f.txt secret").await;
    let told = |error: ServiceError| {
        error
            .to_string()
            .replace("mine", "ID")
            .replace("none", "ID")
    };
    for operation in ["state", "delete", "file", "fork", "document"] {
        let mut answers = Vec::new();
        for id in ["mine", "none"] {
            let error = match operation {
                "state" => service.session_state(&other, id).await.err(),
                "delete" => service.delete_session(&other, id).await.err(),
                "file" => service.session_file(&other, id, "f.txt").await.err(),
                "fork" => service.fork_session(&other, id, None).await.err(),
                _ => {
                    let request = DocumentRequest {
                        session_id: id.to_owned(),
                        ..DocumentRequest::default()
                    };
                    service.document_state(&other, request).await.err()
                }
            };
            answers.push(told(error.unwrap()));
        }
        assert_eq!(answers[0], answers[1], "{operation}");
    }
    assert!(service.list_sessions(&other).await.unwrap().is_empty());
    // The same name is another session, with files of its own.
    let theirs = service
        .execute_for(&other, request("mine", "get x"), &mut Quiet)
        .await
        .unwrap();
    assert_eq!((theirs.outcome.as_str(), engine.launches()), ("raised", 2));
    assert!(service.session_file(&other, "mine", "f.txt").await.is_err());
    assert!(theirs.notices.is_empty());
    assert_eq!(run(&service, "mine", "get x").await.result, json!("1"));
}

#[tokio::test]
async fn an_engine_that_starts_nothing_leaves_no_session() {
    let directory = tempfile::tempdir().unwrap();
    let service = fake::service(FakeEngine::refusing(), directory.path(), |_| {});
    let error = refused(&service, request("a", "set x 1")).await;
    assert!(
        matches!(error, ServiceError::Session(SessionError::Launch(_))),
        "{error}"
    );
    let me = Principal::local();
    assert!(service.list_sessions(&me).await.unwrap().is_empty());
}

#[tokio::test]
async fn many_are_made_and_deleted_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let (service, engine, _) = service_in(directory.path(), |config| {
        config.sessions.max_concurrent = 100;
        config.sessions.max_per_principal = 100;
    });
    let mut races = tokio::task::JoinSet::new();
    for number in 0..40 {
        let service = Arc::clone(&service);
        races.spawn(async move {
            let id = format!("s{}", number % 10);
            if number % 2 == 0 {
                let _ = service.execute(request(&id, "set x 1"), &mut Quiet).await;
            } else {
                let _ = service.delete_session(&Principal::local(), &id).await;
            }
        });
    }
    races.join_all().await;
    service.shutdown().await;
    engine.wait_all_gone().await;
}

#[tokio::test]
async fn a_fork_has_all_that_its_parent_had_and_goes_its_own_way() {
    let directory = tempfile::tempdir().unwrap();
    let (service, engine, control) = service_in(directory.path(), |config| {
        config.sessions.max_concurrent = 3;
    });
    let me = Principal::local();
    run(&service, "a", "set x 1\nwrite f.txt hello").await;
    let forked = service.fork_session(&me, "a", Some("b")).await.unwrap();
    assert_eq!(
        (forked.session_id.as_str(), forked.forked_from.as_str()),
        ("b", "a")
    );
    assert_eq!(run(&service, "b", "get x").await.result, json!("1"));
    run(&service, "b", "set x 2\nwrite f.txt changed").await;
    assert_eq!(run(&service, "a", "get x").await.result, json!("1"));
    assert_eq!(engine.launches(), 1);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (of_a, of_b) = (
        service.session_file(&me, "a", "f.txt").await.unwrap(),
        service.session_file(&me, "b", "f.txt").await.unwrap(),
    );
    assert_eq!(
        (text(of_a.bytes), text(of_b.bytes)),
        ("hello".to_owned(), "changed".to_owned())
    );
    let state = state_when(&service, "b", |state| {
        state["all_variables"] == json!(["x"])
    })
    .await;
    assert_eq!(
        (&state["generation"], &state["state"]),
        (&json!(1), &json!("live"))
    );

    let taken = service.fork_session(&me, "a", Some("b")).await.unwrap_err();
    assert!(
        taken.to_string().contains("there is a session `b` already"),
        "{taken}"
    );
    let minted = service.fork_session(&me, "a", None).await.unwrap();
    let full = service.fork_session(&me, "a", None).await.unwrap_err();
    assert!(
        full.to_string().contains("there are 3 sessions alive"),
        "{full}"
    );
    service
        .delete_session(&me, &minted.session_id)
        .await
        .unwrap();

    let running = tokio::spawn({
        let service = Arc::clone(&service);
        async move { run(&service, "a", "gate\nthread").await }
    });
    state_when(&service, "a", |state| state["running"] == true).await;
    let busy = service.fork_session(&me, "a", None).await.unwrap_err();
    assert!(busy.to_string().contains("a turn is running"), "{busy}");
    control.gate.add_permits(1);
    running.await.unwrap();
    let unfit = service.fork_session(&me, "a", None).await.unwrap_err();
    assert_eq!(
        unfit.to_string(),
        "session `a` cannot be forked now: thread `worker` is alive"
    );
    assert_eq!(run(&service, "a", "get x").await.result, json!("1"));
    let events = session_events(&service);
    assert_eq!(events[..2], ["session.created a 1", "session.created b 1"]);
    service.shutdown().await;
    engine.wait_all_gone().await;
}

#[tokio::test]
async fn only_a_live_session_can_be_forked() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |_| {});
    let me = Principal::local();
    run(&service, "a", "set x 1").await;
    run(&service, "a", "die").await;
    let lost = service.fork_session(&me, "a", None).await.unwrap_err();
    assert_eq!(
        lost.to_string(),
        "session `a` has no live interpreter; run something in it first"
    );
    assert_eq!(
        run(&service, "a", "get x").await.outcome,
        "session_lost",
        "it was not told yet"
    );
}
