//! Files of sessions: links to what a turn made, copies on the host, volumes from the host.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

#[tokio::test]
async fn what_a_turn_made_or_changed_is_linked_and_can_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |_| {});
    let me = Principal::local();
    let first = run(&service, "a", "write out/a b.txt x\nwrite keep y").await;
    let links: Vec<&str> = first.files.iter().map(|file| file.uri.as_str()).collect();
    assert_eq!(
        links,
        [
            "mcp://forge/sessions/a/files/keep",
            "mcp://forge/sessions/a/files/out/a"
        ],
    );
    let second = run(&service, "a", "write keep changed").await;
    assert_eq!(second.files.len(), 1);
    assert_eq!(
        (second.files[0].path.as_str(), second.files[0].size),
        ("keep", 7)
    );
    assert_eq!(run(&service, "a", "get nothing").await.files, []);
    let read = service.session_file(&me, "a", "keep").await.unwrap();
    assert_eq!(
        (read.bytes.as_slice(), read.size),
        (b"changed".as_slice(), 7)
    );
    let mode = std::fs::metadata(directory.path().join("sessions/a/files/keep"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    run(&service, "a", "remove keep").await;
    for path in [
        "keep",
        "../../../etc/passwd",
        "/etc/passwd",
        "out",
        "out/../keep",
        "",
    ] {
        let error = service.session_file(&me, "a", path).await.unwrap_err();
        assert!(
            matches!(error, ServiceError::Session(SessionError::NoFile { .. })),
            "{path}: {error}"
        );
    }
}

#[tokio::test]
async fn files_larger_than_a_piece_come_out_and_go_back_whole() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |_| {});
    let text = "0123456789".repeat(90_000);
    run(&service, "a", &format!("write big {text}")).await;
    service
        .session_file(&Principal::local(), "a", "big")
        .await
        .unwrap();
    service.shutdown().await;
    let kept = std::fs::read_to_string(directory.path().join("sessions/a/files/big")).unwrap();
    assert!(kept == text, "{} bytes", kept.len());
    let (service, _, _) = service_in(directory.path(), |_| {});
    run(&service, "a", "get x").await;
    let back = run(&service, "a", "read big").await.result;
    assert!(back == json!(text));
}

#[tokio::test]
async fn a_quota_leaves_out_what_is_beyond_it_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |config| {
        config.volumes.session_quota = 10;
        config.sessions.max_files = 3;
    });
    run(
        &service,
        "a",
        "write a 12345\nwrite b 1234567890\nwrite c 12345",
    )
    .await;
    let state = state_when(&service, "a", |state| {
        state["files"][1]["not_kept"].is_string()
    })
    .await;
    assert!(
        state["files"][1]["not_kept"]
            .as_str()
            .unwrap()
            .contains("quota of 10"),
        "{}",
        state["files"]
    );
    service.shutdown().await;
    let names = names_in(&directory.path().join("sessions/a/files"));
    assert_eq!(names, ["a", "c"]);
}

#[tokio::test]
async fn a_runner_that_lies_about_its_files_gains_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (service, _, _) = service_in(directory.path(), |_| {});
    run(&service, "a", "write real x\nboast").await;
    let state = state_when(&service, "a", |state| state["files"][2].is_object()).await;
    let files = state["files"].as_array().unwrap();
    let paths: Vec<&Value> = files.iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, ["real", "huge", "liar"]);
    assert!(state["functions"].to_string().len() < 10_000);
    run(&service, "a", "get x").await;
    service.shutdown().await;
    assert_eq!(
        names_in(&directory.path().join("sessions/a/files")),
        ["real"]
    );
    assert!(!directory.path().join("escaped").exists());
    assert!(!directory.path().join("sessions/escaped").exists());
}

#[tokio::test]
async fn volumes_are_copied_in_once_and_never_more_than_may_be() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().join("volumes");
    let shared = base.join("shared/readonly/data");
    std::fs::create_dir_all(shared.join("deep")).unwrap();
    std::fs::write(shared.join("deep/x.csv"), "1,2").unwrap();
    std::fs::write(directory.path().join("secret"), "s").unwrap();
    symlink(directory.path(), shared.join("link")).unwrap();
    std::fs::create_dir_all(base.join("uploads/a")).unwrap();
    std::fs::write(base.join("uploads/a/in.txt"), "up").unwrap();
    let (service, _, _) = service_in(directory.path(), |config| {
        config.volumes.session_quota = 100;
    });
    let with = |code: &str, volumes: Value| ExecuteRequest {
        volumes: volumes.as_object().cloned(),
        ..request("a", code)
    };
    let volumes = json!({
        "shared/readonly/data": "/workspace/in",
        "uploads/{session_id}/in.txt": {"bind": "/workspace/in.txt", "mode": "ro"},
    });
    let first = service
        .execute(with("read in/deep/x.csv", volumes.clone()), &mut Quiet)
        .await
        .unwrap();
    assert_eq!(first.result, json!("1,2"));
    assert_eq!(first.files, [], "they were there before the turn");
    assert_eq!(run(&service, "a", "read in.txt").await.result, json!("up"));
    assert_eq!(
        run(&service, "a", "read in/link/secret").await.outcome,
        "raised"
    );
    run(&service, "a", "write in.txt changed").await;
    let again = service
        .execute(with("read in.txt", volumes), &mut Quiet)
        .await
        .unwrap();
    assert_eq!(
        again.result,
        json!("changed"),
        "not copied over what the code made of it"
    );

    std::fs::write(base.join("uploads/a/large"), "x".repeat(200)).unwrap();
    for (name, told) in [
        ("uploads/a/large", "quota"),
        ("uploads/a/none", "No such file"),
    ] {
        let error = refused(&service, with("set x 1", json!({name: "/workspace/l"}))).await;
        assert!(error.to_string().contains(told), "{error}");
    }
    assert_eq!(
        run(&service, "a", "get x").await.outcome,
        "raised",
        "the code did not run"
    );
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
