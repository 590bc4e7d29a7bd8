//! Two servers on one directory, deaths included: each `Store` is a server of its own, with its own lock.

use std::{os::unix::fs::PermissionsExt, sync::Arc};

use serde_json::json;

use super::*;
use crate::names::{Principal, SessionId, SessionName};

fn name(id: &str) -> SessionName {
    SessionName {
        principal: Principal::local(),
        id: SessionId::parse(id).unwrap(),
    }
}

fn start(execution_id: &str) -> ExecutionStart<'_> {
    ExecutionStart {
        execution_id,
        generation: 1,
        code_sha256: "00",
        code: None,
        keep: 3,
        started_ms: 1,
    }
}

async fn taken(store: &Store, id: &str) -> SessionRecord {
    match store.claim(&name(id)).await.unwrap() {
        Claim::Taken { record, .. } => *record,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_session_of_a_living_server_is_refused_with_its_pid() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (Store::new(directory.path()), Store::new(directory.path()));
    assert_eq!(taken(&one, "a").await.life, Life::Here);
    let pid = i64::from(std::process::id());
    assert_eq!(
        two.claim(&name("a")).await.unwrap(),
        Claim::Elsewhere { pid }
    );
    assert_eq!(
        two.forget(&name("a")).await.unwrap(),
        Forgotten::Elsewhere { pid }
    );
    assert_eq!(
        two.session(&name("a")).await.unwrap().unwrap().life,
        Life::Elsewhere { pid }
    );
    // What is not ours we do not change.
    two.lose(&name("a"), "stolen", true).await.unwrap();
    two.know(&name("a"), &json!(1)).await.unwrap();
    let record = one.session(&name("a")).await.unwrap().unwrap();
    assert_eq!(
        (record.generation, record.life, record.known),
        (1, Life::Here, None)
    );
}

#[tokio::test]
async fn a_loss_is_told_once_and_documentation_outlives_it() {
    let directory = tempfile::tempdir().unwrap();
    let one = Store::new(directory.path());
    taken(&one, "a").await;
    let more = Documentation {
        variables: [("df".to_owned(), "sales".to_owned())].into(),
        note: "half done".to_owned(),
        updated_ms: None,
    };
    assert_eq!(
        one.document(&name("a"), more, false, 10).await.unwrap(),
        Documented::Yes(1)
    );
    one.know(&name("a"), &json!({"x": 1})).await.unwrap();
    one.begin(&name("a"), start("e1")).await.unwrap();
    // As a SIGKILL: nothing is written, the lock is let go.
    drop(one);

    let two = Store::new(directory.path());
    let seen = two.session(&name("a")).await.unwrap().unwrap();
    assert_eq!(
        (seen.life.clone(), seen.generation),
        (Life::Lost, 2),
        "{seen:?}"
    );
    let Claim::Lost(record) = two.claim(&name("a")).await.unwrap() else {
        panic!("not told")
    };
    assert_eq!(record.generation, 2);
    assert!(
        record
            .lost_reason
            .as_deref()
            .unwrap()
            .contains("that ran it ended")
    );
    assert_eq!(record.documentation.variables["df"], "sales");
    assert_eq!(record.documentation.note, "half done");
    assert_eq!(record.known, Some(json!({"x": 1})));
    let again = taken(&two, "a").await;
    assert_eq!((again.generation, again.life), (2, Life::Here));
    let history = two.history(&name("a"), 10).await.unwrap();
    assert_eq!(history[0].outcome.as_deref(), Some("session_lost"));

    two.lose(&name("a"), "it was idle", false).await.unwrap();
    assert!(
        matches!(two.claim(&name("a")).await.unwrap(), Claim::Lost(record) if record.generation == 3)
    );
    two.forget(&name("a")).await.unwrap();
    assert_eq!(taken(&two, "a").await.generation, 1);
}

#[tokio::test]
async fn one_principals_sessions_are_nothing_to_another() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::new(directory.path());
    taken(&store, "a").await;
    let foreign = SessionName {
        principal: Principal::named("other"),
        ..name("a")
    };
    assert_eq!(store.session(&foreign).await.unwrap(), None);
    assert_eq!(store.forget(&foreign).await.unwrap(), Forgotten::Unknown);
    assert_eq!(
        store
            .document(&foreign, Documentation::default(), false, 1)
            .await
            .unwrap(),
        Documented::Unknown
    );
    assert_eq!(store.sessions(&foreign.principal).await.unwrap(), []);
    assert!(store.session(&name("a")).await.unwrap().is_some());
}

#[tokio::test]
async fn the_history_is_bounded_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::new(directory.path());
    taken(&store, "a").await;
    taken(&store, "b").await;
    store.begin(&name("b"), start("other")).await.unwrap();
    for id in ["e1", "e2", "e3", "e4", "e5"] {
        store.begin(&name("a"), start(id)).await.unwrap();
        store.finish(&name("a"), id, "completed", 2).await.unwrap();
    }
    let history = store.history(&name("a"), 10).await.unwrap();
    let ids: Vec<&str> = history
        .iter()
        .map(|execution| execution.execution_id.as_str())
        .collect();
    assert_eq!(ids, ["e5", "e4", "e3"]);
    assert_eq!(store.history(&name("b"), 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn too_much_documentation_is_refused_whole() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::new(directory.path());
    taken(&store, "a").await;
    let many = |names: &[&str]| Documentation {
        variables: names
            .iter()
            .map(|name| ((*name).to_owned(), String::new()))
            .collect(),
        ..Documentation::default()
    };
    let document = |names: &[&str], clear| {
        let (store, more) = (&store, many(names));
        async move { store.document(&name("a"), more, clear, 2).await.unwrap() }
    };
    assert_eq!(document(&["x", "y"], false).await, Documented::Yes(2));
    assert_eq!(document(&["z"], false).await, Documented::TooMany(3));
    assert_eq!(document(&["y"], false).await, Documented::Yes(2));
    assert_eq!(document(&["z"], true).await, Documented::Yes(1));
}

#[tokio::test]
async fn many_servers_open_and_claim_at_once() {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    let mut claims = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let directory = Arc::clone(&directory);
        claims.spawn(async move {
            let store = Store::new(directory.path());
            let claim = store.claim(&name("a")).await.unwrap();
            store.claim(&name("own")).await.unwrap();
            (store, claim)
        });
    }
    let all = claims.join_all().await;
    let taken = all
        .iter()
        .filter(|(_, claim)| matches!(claim, Claim::Taken { .. }))
        .count();
    assert_eq!(taken, 1);
    let mode = std::fs::metadata(directory.path().join("store.db"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn what_nobody_used_is_forgotten_and_dead_servers_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let dead = Store::new(directory.path());
    taken(&dead, "old").await;
    drop(dead);
    let store = Store::new(directory.path());
    taken(&store, "live").await;
    let later = now_ms() + 1000;
    assert_eq!(store.forget_unused(later).await.unwrap(), [name("old")]);
    store.forget_unused(later).await.unwrap();
    let locks = std::fs::read_dir(directory.path().join("servers"))
        .unwrap()
        .count();
    assert_eq!(locks, 1);
    assert_eq!(store.sessions(&Principal::local()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_newer_file_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::new(directory.path());
    let pool = &store.opened().await.unwrap().pool;
    sqlx::query("PRAGMA user_version = 99")
        .execute(pool)
        .await
        .unwrap();
    let error = Store::new(directory.path())
        .claim(&name("a"))
        .await
        .unwrap_err();
    assert!(
        matches!(error, StoreError::Newer { found: 99, .. }),
        "{error}"
    );
}
