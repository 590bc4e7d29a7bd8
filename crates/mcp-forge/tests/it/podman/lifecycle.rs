//! Ends in order: of sessions, of the server by its signal and by the end of its input.

use mcp_forge::names::Principal;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_and_a_deleted_one_leave_no_container() {
    let field = Field::new();
    let service = field.server(|config| {
        config.sessions.idle_timeout = Duration::from_secs(2);
        config.sessions.cleanup_interval = Duration::from_millis(200);
    });
    service.start();
    let me = Principal::local();
    let made = execute(
        &service,
        in_session("idle", "open('f', 'w').write('kept')\nx = 1"),
    )
    .await;
    assert_eq!(made.outcome, "completed", "{:?}", made.error);
    field.wait_empty().await;
    let again = execute(
        &service,
        in_session("idle", "(open('f').read(), 'x' in globals())"),
    )
    .await;
    let (outcome, result) = (again.outcome.as_str(), again.result);
    // Whether it was told of the end before depends on what ended it; the files are there either way.
    if outcome == "session_lost" {
        let fresh = execute(&service, in_session("idle", "open('f').read()")).await;
        assert_eq!(fresh.result, "kept");
    } else {
        assert_eq!(result, json!(["kept", false]));
    }
    execute(&service, in_session("gone", "1")).await;
    service.delete_session(&me, "gone").await.unwrap();
    service.delete_session(&me, "idle").await.unwrap();
    field.wait_empty().await;
    service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_refused_in_words_and_the_session_goes_on() {
    let field = Field::new();
    let service = field.server(|_| {});
    execute(&service, in_session("a", "x = 41")).await;
    let me = Principal::local();
    let refused = service.fork_session(&me, "a", Some("b")).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("this engine cannot fork live sessions"),
        "{refused}"
    );
    assert_eq!(execute(&service, in_session("a", "x + 1")).await.result, 42);
    service.shutdown().await;
    field.wait_empty().await;
}

/// Waits until some wait for code, and one is a session's.
async fn settled(field: &Field, program: &mut Program) {
    let made = program.run("x = 1");
    assert_eq!(made["outcome"], "completed", "{made}");
    // The session's, one more for sessions, and one for turns.
    field.wait_running(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_server_and_its_containers() {
    let field = Field::new();
    let mut program = start(&field);
    settled(&field, &mut program).await;
    signal(&json!(program.child.id()), Signal::TERM);
    program.child.wait().unwrap();
    // Not a moment later: a server that ends in order waits for them.
    assert_eq!(field.containers(), []);
    assert_eq!(field.servers(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_its_input_ends_the_server_and_its_containers() {
    let field = Field::new();
    let mut program = start(&field);
    settled(&field, &mut program).await;
    drop(program.stdin.take());
    program.child.wait().unwrap();
    assert_eq!(field.containers(), []);
    assert_eq!(field.servers(), [""; 0]);
}

/// Whenever a call is given up, in the middle of a launch too, its container goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_at_any_time_leaves_no_container() {
    let field = Field::new();
    let service = field.server(|_| {});
    assert_eq!(execute(&service, stateless("1")).await.result, 1);
    for milliseconds in (0..1000).step_by(60) {
        give_up(&service, milliseconds).await;
    }
    // All of them are made and removed, one waiting for the other.
    field.wait_empty_for(3 * PATIENCE).await;
    // And the end of the server waits for those that are being made.
    for _ in 0..3 {
        give_up(&service, 150).await;
    }
    service.shutdown().await;
    assert_eq!(field.containers(), []);
}

async fn give_up(service: &Service, milliseconds: u64) {
    let mut observer = Quiet;
    let turn = service.execute(stateless("while True: pass"), &mut observer);
    let patience = Duration::from_millis(milliseconds);
    assert!(tokio::time::timeout(patience, turn).await.is_err());
}
