//! Deaths in the middle of turns: of the server, of podman's service, of what runs a container. Each is
//! followed by a correct reply, and nothing is left.

use mcp_forge::engine::Engine as _;

use super::*;

fn kill(pid: &Value) {
    signal(pid, Signal::KILL);
}

fn begin_stateless(program: &mut Program, code: &str) -> i64 {
    let params = json!({"name": "execute_python", "arguments": {"code": code}, "_meta": {"progressToken": "q"}});
    program.send("tools/call", &params)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_leaves_no_container_and_the_next_one_answers() {
    let field = Field::new();
    // None is made ahead: it would have no relay yet that notices the death, and run no process.
    let mut first = start_with(&field, 0);
    let made = first.run("x = 1\nopen('f.txt', 'w').write('kept')");
    assert_eq!(made["outcome"], "completed", "{made}");
    let id = first.send(
        "resources/read",
        &json!({"uri": "mcp://forge/sessions/a/files/f.txt"}),
    );
    assert_eq!(first.answer(id)["contents"][0]["text"], "kept");
    first.begin_run(ENDLESS);
    first.wait_begun();
    begin_stateless(&mut first, ENDLESS);
    first.wait_begun();
    let [dead] = &field.servers()[..] else {
        panic!("{:?}", field.servers())
    };
    // One that does not notice that its server is gone, as one that was stopped by the host.
    let all = field.wait_running(2).await;
    stop(&all[0]);
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while field.containers().len() > 1 {
        assert!(Instant::now() < deadline, "{:?}", field.containers());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    let mut next = start(&field);
    let id = begin_stateless(&mut next, "20 + 22");
    let answer = next.answer(id);
    assert_eq!(answer["structuredContent"]["result"], 42, "{answer}");
    let left = field.containers();
    assert!(left.iter().all(|one| one.server != *dead), "{left:?}");
    assert!(!field.servers().contains(dead));
    let told = next.run("x");
    assert_eq!(told["outcome"], "session_lost", "{told}");
    assert_eq!(told["session"]["generation"], 2);
    let fresh = next.run("(open('f.txt').read(), 'x' in globals())");
    assert_eq!(fresh["result"], json!(["kept", false]), "{fresh}");
    // The end of its input ends a server.
    drop(next.stdin.take());
    next.child.wait().unwrap();
    field.wait_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_killed_in_the_middle_of_turns_is_told_and_found_again() {
    let mut podman_service = OwnService::start().await;
    let field = Field::on(podman_service.socket());
    let service = field.server(|config| config.containers.ready = 1);
    let kept = "x = 1\nopen('f.txt', 'w').write('kept')";
    assert_eq!(
        execute(&service, in_session("a", kept)).await.outcome,
        "completed"
    );
    let me = mcp_forge::names::Principal::local();
    service.session_file(&me, "a", "f.txt").await.unwrap();
    let in_turn = begin(&service, stateless(ENDLESS)).await;
    let in_session_turn = begin(&service, in_session("a", ENDLESS)).await;

    podman_service.kill();
    let answer = in_turn.await.unwrap().unwrap();
    assert_eq!(answer.outcome, "sandbox_error");
    let words = answer.error.unwrap().message;
    assert!(words.contains("container's stream ended"), "{words}");
    let answer = in_session_turn.await.unwrap().unwrap();
    assert_eq!(answer.outcome, "sandbox_error");
    let reason = answer.session.unwrap().lost_reason.unwrap();
    assert!(reason.contains("container's stream ended"), "{reason}");
    // As long as it is away each call says so, and what to do; it is not asked each time.
    let mut told = refused(&service, stateless("1")).await.to_string();
    let deadline = Instant::now() + PATIENCE;
    while !told.contains("asked again in") {
        assert!(told.contains("container"), "{told}");
        assert!(Instant::now() < deadline, "{told}");
        told = refused(&service, stateless("1")).await.to_string();
    }
    // Its socket may have gone with it.
    let fixes = ["start the service", "must name the socket"];
    assert!(fixes.iter().any(|fix| told.contains(fix)), "{told}");

    podman_service.start_again().await;
    assert_eq!(
        execute_once_back(&service, stateless("20 + 22"))
            .await
            .result,
        42
    );
    let lost = execute_once_back(&service, in_session("a", "x")).await;
    assert_eq!(lost.outcome, "session_lost", "{:?}", lost.error);
    let session = lost.session.unwrap();
    assert_eq!(session.generation, 2);
    assert!(
        session
            .lost_reason
            .unwrap()
            .contains("container's stream ended")
    );
    let fresh = execute(&service, in_session("a", "open('f.txt').read()")).await;
    assert_eq!(fresh.result, "kept", "{:?}", fresh.error);
    service.shutdown().await;
    field.wait_empty().await;
}

/// What could not be removed while the service was away is removed once it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_outlives_its_service_is_removed_when_that_is_back() {
    let mut podman_service = OwnService::start().await;
    let field = Field::on(podman_service.socket());
    let service = field.server(|_| {});
    let turn = begin(&service, stateless(ENDLESS)).await;
    let [one] = &field.wait_running(1).await[..] else {
        panic!("{:?}", field.containers())
    };
    stop(one);
    podman_service.kill();
    assert_eq!(turn.await.unwrap().unwrap().outcome, "sandbox_error");
    assert_eq!(
        field.containers().len(),
        1,
        "it does not notice: it is stopped"
    );
    podman_service.start_again().await;
    assert_eq!(execute_once_back(&service, stateless("1")).await.result, 1);
    // The server is still there: nothing but that removes it.
    field.wait_empty().await;
    service.shutdown().await;
}

/// Kills what a container's inspection calls so, in the middle of a turn and of a session's.
async fn kill_in_turns(what: &str) {
    let field = Field::new();
    let service = field.server(|_| {});
    for request in [stateless(ENDLESS), in_session("a", ENDLESS)] {
        let is_session = request.session_id.is_some();
        let turn = begin(&service, request).await;
        let [one] = &field.wait_running(1).await[..] else {
            panic!("{:?}", field.containers())
        };
        kill(&inspect(&one.id)["State"][what]);
        let answer = turn.await.unwrap().unwrap();
        assert_eq!(answer.outcome, "sandbox_error", "{:?}", answer.error);
        let words = answer.error.unwrap().message;
        assert!(words.contains("stream ended"), "{words}");
        assert_eq!(answer.session.is_some(), is_session);
        field.wait_empty().await;
        assert_eq!(execute(&service, stateless("20 + 22")).await.result, 42);
    }
    let told = execute(&service, in_session("a", "1")).await;
    assert_eq!(told.outcome, "session_lost", "{:?}", told.error);
    assert_eq!(execute(&service, in_session("a", "7")).await.result, 7);
    service.shutdown().await;
    field.wait_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_conmon_is_a_loss_and_nothing_worse() {
    kill_in_turns("ConmonPid").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_first_process_is_a_loss_and_nothing_worse() {
    kill_in_turns("Pid").await;
}

async fn wait_ready(engine: &Podman, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while engine.ready() != count {
        assert!(Instant::now() < deadline, "{} wait", engine.ready());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What waits is not handed out once it is dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_container_that_dies_is_not_handed_out() {
    let field = Field::new();
    let (service, engine) = field.server_and_engine(|config| config.containers.ready = 2);
    assert_eq!(execute(&service, stateless("1")).await.result, 1);
    for what in ["Pid", "ConmonPid"] {
        // Neither what has answered, which is removed after that, nor what died before.
        wait_ready(&engine, 2).await;
        let waiting = field.wait_running(2).await;
        let states: Vec<Value> = waiting
            .iter()
            .map(|one| inspect(&one.id)["State"].clone())
            .collect();
        for state in &states {
            kill(&state[what]);
        }
        let deadline = Instant::now() + PATIENCE;
        for state in &states {
            for name in ["Pid", "ConmonPid"] {
                while Path::new(&format!("/proc/{}", state[name])).exists() {
                    assert!(Instant::now() < deadline, "{what}: {state}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        // The server hears of it from the service, a moment later.
        wait_ready(&engine, 0).await;
        assert_eq!(
            execute(&service, stateless("20 + 22")).await.result,
            42,
            "{what}"
        );
    }
    service.shutdown().await;
    field.wait_empty().await;
}
