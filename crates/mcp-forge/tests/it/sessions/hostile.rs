//! What hostile code and hostile clients try with sessions, in real sandboxes. Which row of the threat
//! model each belongs to, and what else covers it, is in `rows.rs`.

use std::time::Instant;

use mcp_forge::{audit::Audit, bridge::Bridge, engine::Engine, engine::native::Native};

use super::{
    real::{Program, real_service},
    *,
};
use crate::{
    bridge::hostile,
    real_python::packages,
    sandbox::{binary, children, config},
};

#[tokio::test]
async fn a_forged_result_costs_the_session_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |_| {});
    let forger = "
import json, os, threading
begin, sent = threading.Event(), threading.Event()
def forge():
    begin.wait()
    message = json.dumps({'type': 'done', 'result': 'forged'}).encode()
    os.write(3, len(message).to_bytes(4, 'big') + message)
    sent.set()
threading.Thread(target=forge).start()";
    run(&service, "b", "x = 1").await;
    let begun = run(&service, "a", forger).await;
    assert_eq!(begun.outcome, "completed", "{:?}", begun.error);
    let second = run(&service, "a", "begin.set(); sent.wait(); 'mine'").await;
    assert!(
        [json!("forged"), json!("mine")].contains(&second.result),
        "{}",
        second.result
    );
    // Its own result is one too many: it must not become another call's.
    let third = run(&service, "a", "'third'").await;
    assert_eq!(third.outcome, "session_lost", "{}", third.result);
    let fourth = run(&service, "a", "'fourth'").await;
    assert_eq!(fourth.result, json!("fourth"));
    assert_eq!(fourth.session.unwrap().generation, 2);
    let other = run(&service, "b", "x").await;
    assert_eq!(other.result, json!(1));
    assert_eq!(other.session.unwrap().generation, 1);
    service.shutdown().await;
}

/// Looks everywhere for what the planting session left, by its form alone: the probe has no copy of it.
const LOOK: &str = "
import ctypes, os, re
form = re.compile(rb'needle-[0-9a-f]{32}')
found = set()
for place in ('/tmp', '/workspace', '/dev/shm'):
    for directory, _, names in os.walk(place):
        for name in names:
            if form.search(open(os.path.join(directory, name), 'rb').read()):
                found.add(place)
if any(form.search(value) for value in os.environb.values()):
    found.add('environment')
for line in open('/proc/self/maps'):
    span, rights = line.split()[:2]
    if rights.startswith('rw'):
        start, end = (int(address, 16) for address in span.split('-'))
        if form.search(ctypes.string_at(start, end - start)):
            found.add('memory')
sorted(found)";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_principals_session_is_found_in_anothers() {
    for warm in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config();
        config.native.warm = warm;
        directory.path().clone_into(&mut config.data_dir);
        let engine = Arc::new(Native::with_jail(&config, binary()));
        engine.prepare().await.unwrap();
        let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
        let audit = Audit::open(&directory.path().join("audit")).unwrap();
        let service = Service::new(config, engine, bridge, audit);
        let other = Principal::named("other");
        let look = async |session: &str| {
            let looking = request(session, LOOK);
            let answer = service.execute_for(&other, looking, &mut Quiet).await;
            let answer = answer.unwrap();
            assert_eq!(answer.outcome, "completed", "{:?}", answer.error);
            answer.result
        };
        assert_eq!(look("before").await, json!([]), "warm: {warm}");
        let plant = "
import os, secrets
kept = 'needle-' + secrets.token_hex(16)
os.environ['LEFT'] = kept
for place in ('/tmp', '/workspace', '/dev/shm'):
    with open(place + '/left', 'w') as file: file.write(kept)";
        run(&service, "mine", plant).await;
        let own = run(&service, "mine", LOOK).await;
        assert_eq!(
            own.result,
            json!(["/dev/shm", "/tmp", "/workspace", "environment", "memory"]),
            "the probe is blind (warm: {warm}): {:?}",
            own.error
        );
        // The other has sessions of its own: one that lived already, one of the same name, a new one.
        for session in ["before", "mine", "beside"] {
            assert_eq!(look(session).await, json!([]), "{session}, warm: {warm}");
        }
        service
            .delete_session(&Principal::local(), "mine")
            .await
            .unwrap();
        for session in ["before", "after"] {
            assert_eq!(look(session).await, json!([]), "{session}, warm: {warm}");
        }
        service.shutdown().await;
    }
}

#[tokio::test]
async fn what_a_session_replaces_it_replaces_for_itself() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |_| {});
    run(&service, "b", "x = 'theirs'").await;
    let replace = "
import builtins, json, sys
x = 1
def f(): return 'first'
sys.displayhook = lambda value: print('hooked', value)
json.dumps = lambda *_: 'hijacked'
builtins.len = lambda _: -1
_ = 'bound'";
    assert_eq!(run(&service, "a", replace).await.outcome, "completed");
    let own = run(&service, "a", "x, f(), json.dumps(1), len([]), _").await;
    assert_eq!(
        own.result,
        json!([1, "first", "hijacked", -1, "bound"]),
        "{:?}",
        own.error
    );
    run(&service, "a", "def f(): return 'second'\ndel x").await;
    let own = run(&service, "a", "f(), 'x' in globals()").await;
    assert_eq!(own.result, json!(["second", false]), "{:?}", own.error);
    let look = "import json\n(json.dumps(1), len([]), 'f' in globals())";
    let other = run(&service, "b", look).await;
    assert_eq!(other.result, json!(["1", 0, false]), "{:?}", other.error);
    assert_eq!(other.stdout, "");
    assert_eq!(run(&service, "b", "x").await.result, json!("theirs"));
    let stateless = ExecuteRequest {
        code: look.to_owned(),
        ..ExecuteRequest::default()
    };
    let stateless = service.execute(stateless, &mut Quiet).await.unwrap();
    assert_eq!(stateless.result, json!(["1", 0, false]));
    service.shutdown().await;
}

#[test]
fn a_thousand_turns_leave_nothing_in_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = Program::start(directory.path());
    program.run("n = 0");
    let held = |program: &Program| {
        let process = format!("/proc/{}", program.child.id());
        let descriptors = std::fs::read_dir(format!("{process}/fd")).unwrap().count();
        let resident = memory_kib(program.child.id());
        let threads = std::fs::read_dir(format!("{process}/task"))
            .unwrap()
            .count();
        (descriptors, threads, resident)
    };
    let turn = |program: &mut Program| {
        let answer = program.run("n += 1");
        assert_eq!(answer["outcome"], "completed", "{answer}");
    };
    (0..200).for_each(|_| turn(&mut program));
    let before = held(&program);
    (0..800).for_each(|_| turn(&mut program));
    let after = held(&program);
    assert_eq!(program.run("n")["result"], 1000);
    // Sandboxes that wait come and go, and so do threads for files: a few, not one a turn.
    assert!(after.0 < before.0 + 100, "{before:?} then {after:?}");
    assert!(after.1 < before.1 + 100, "{before:?} then {after:?}");
    assert!(
        after.2 < before.2 + (64 << 10),
        "KiB: {before:?} then {after:?}"
    );
    let state = program.read_state();
    assert_eq!(state["history"].as_array().unwrap().len(), 20);
    // What grows is the session, and it says so.
    let grown = program.run("held = bytearray(b'x' * (64 << 20))");
    let peak = grown["usage"]["memory_peak_bytes"].as_u64();
    assert!(
        peak.is_none_or(|peak| peak > 64 << 20),
        "{}",
        grown["usage"]
    );
    let deadline = Instant::now() + Duration::from_mins(1);
    let held = loop {
        let state = program.read_state();
        if let Some(held) = state["introspection"]["held"]["memory_mb"].as_f64() {
            break held;
        }
        assert!(Instant::now() < deadline, "{}", state["introspection"]);
    };
    assert!(held > 60.0, "{held}");
}

fn memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sessions_at_once_are_as_many_as_there_may_be() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |config| {
        config.sessions.max_concurrent = 4;
    });
    let mut made = tokio::task::JoinSet::new();
    for number in 0..1000 {
        let service = Arc::clone(&service);
        made.spawn(async move {
            let id = format!("s{number}");
            let answer = service.execute(request(&id, "20 + 22"), &mut Quiet).await;
            (id, answer)
        });
    }
    let mut live = Vec::new();
    for (id, answer) in made.join_all().await {
        match answer {
            Ok(answer) => {
                assert_eq!(answer.result, json!(42), "{:?}", answer.error);
                live.push(id);
            }
            Err(error) => assert!(
                error.to_string().contains("there are 4 sessions alive"),
                "{error}"
            ),
        }
    }
    assert_eq!(live.len(), 4);
    let me = Principal::local();
    assert_eq!(service.list_sessions(&me).await.unwrap().len(), 4);
    for id in &live {
        // Both find it, or the second finds nothing any more.
        let (first, second) = tokio::join!(
            service.delete_session(&me, id),
            service.delete_session(&me, id)
        );
        first.unwrap();
        for unknown in [second.err(), service.delete_session(&me, id).await.err()] {
            assert!(
                unknown.is_none_or(|error| matches!(
                    error,
                    ServiceError::Session(SessionError::Unknown(_))
                )),
                "{id}"
            );
        }
    }
    assert!(service.list_sessions(&me).await.unwrap().is_empty());
    let left = std::fs::read_dir(directory.path().join("sessions"));
    assert_eq!(left.map_or(0, Iterator::count), 0);
    assert_eq!(run(&service, "next", "20 + 22").await.result, json!(42));
    service.shutdown().await;
}

#[tokio::test]
async fn a_hundred_calls_at_once_run_in_their_order() {
    for queue_length in [16, 100] {
        let directory = tempfile::tempdir().unwrap();
        let service = real_service(directory.path(), |config| {
            config.sessions.queue_length = queue_length;
        });
        run(&service, "a", "ran = []").await;
        let calls = (0..100).map(|number| {
            let code = format!("ran.append({number}); list(ran)");
            let service = Arc::clone(&service);
            async move { service.execute(request("a", &code), &mut Quiet).await }
        });
        let mut ran = Vec::new();
        let answers = futures_util::future::join_all(calls).await;
        for (number, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(answer) => {
                    ran.push(number);
                    assert_eq!(answer.result, json!(ran), "{:?}", answer.error);
                }
                Err(error) => assert!(
                    matches!(&error, ServiceError::Session(SessionError::Busy { waiting, .. }) if *waiting == queue_length),
                    "{error}"
                ),
            }
        }
        assert!(ran.len() >= queue_length, "{ran:?}");
        if queue_length < 100 {
            assert!(ran.len() < 100, "nobody was told that the queue is full");
        }
        assert_eq!(run(&service, "a", "ran").await.result, json!(ran));
        service.shutdown().await;
    }
}

#[test]
fn cancelled_at_any_time_the_next_call_is_right() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = Program::start(directory.path());
    let mut stranger = Program::start(directory.path());
    let cancel = |program: &mut Program, id: i64| {
        program.notify("notifications/cancelled", &json!({"requestId": id}));
    };
    let is_right = |program: &mut Program, what: &str| {
        let next = program.run("kept");
        assert_eq!(next["result"], 1, "{what}: {next}");
        assert_eq!(next["session"]["generation"], 1, "{what}: {next}");
    };
    program.run("kept = 1");
    // Before it has begun: it waits behind another.
    let running = program.begin_run("print('begun', flush=True)\nwhile True: pass");
    program.wait_begun();
    let queued = program.begin_run("kept = 'cancelled'");
    wait_for_executions(directory.path(), "started", 3);
    cancel(&mut program, queued);
    cancel(&mut program, running);
    is_right(&mut program, "in the queue, and running");
    // From the moment when it is accepted, over its compilation, to its run.
    let long = format!(
        "many = [{}]\nwhile True: pass",
        "(lambda: 1),".repeat(1_000)
    );
    for moment in 0..6 {
        let compiling = program.begin_run(&long);
        wait_for_executions(directory.path(), "started", 5 + 2 * moment);
        std::thread::sleep(Duration::from_millis(20) * u32::try_from(moment).unwrap());
        cancel(&mut program, compiling);
        is_right(&mut program, "compiling");
    }
    // Twice, and after its end.
    let running = program.begin_run("print('begun', flush=True)\nwhile True: pass");
    program.wait_begun();
    cancel(&mut program, running);
    cancel(&mut program, running);
    is_right(&mut program, "twice");
    cancel(&mut program, running);
    is_right(&mut program, "after its end");
    // By another client, whose requests have the same numbers.
    let code = "print('begun', flush=True)\nimport time\ntime.sleep(10)\n'done'";
    let running = program.begin_run(code);
    program.wait_begun();
    (0..=running).for_each(|id| cancel(&mut stranger, id));
    let ping = stranger.send("ping", &json!({}));
    stranger.answer(ping);
    assert_eq!(
        program.answer(running)["structuredContent"]["result"],
        "done"
    );
    let ends = executions(directory.path(), "finished");
    let cancelled = ends.iter().filter(|end| end["outcome"] == "cancelled");
    assert_eq!(cancelled.count(), 9, "{ends:?}");
}

/// The records of this phase in the audit log of a data directory.
fn executions(data: &Path, phase: &str) -> Vec<Value> {
    let files = std::fs::read_dir(data.join("audit")).unwrap().flatten();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    texts
        .flat_map(|text| {
            let lines = text.lines();
            // A line that is being written is not whole yet.
            let records = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
            records.collect::<Vec<_>>()
        })
        .filter(|record| record["event"] == "execution" && record["phase"] == phase)
        .collect()
}

/// Waits until so many are recorded.
fn wait_for_executions(data: &Path, phase: &str, count: usize) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while executions(data, phase).len() < count {
        assert!(Instant::now() < deadline, "no {count} {phase}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn a_running_call_is_not_idle_and_ends_with_the_lifetime() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |config| {
        config.sessions.idle_timeout = Duration::from_millis(300);
        config.sessions.cleanup_interval = Duration::from_millis(20);
    });
    let me = Principal::local();
    let long = "open('f.txt', 'w').write('kept')\nimport time\ntime.sleep(1)\n7";
    let answer = run(&service, "a", long).await;
    assert_eq!(answer.result, json!(7), "{:?}", answer.error);
    state_when(&service, "a", |state| state["state"] == "lost").await;
    let read = service.session_file(&me, "a", "f.txt").await.unwrap();
    assert_eq!(read.bytes, b"kept");
    service.shutdown().await;

    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |config| {
        config.sessions.max_lifetime = Duration::from_secs(5);
        config.sessions.cleanup_interval = Duration::from_millis(20);
    });
    let endless = run(&service, "a", "while True: pass").await;
    assert_eq!(endless.outcome, "cancelled", "{:?}", endless.error);
    let reason = endless.session.unwrap().lost_reason.unwrap();
    assert!(reason.contains("maximum lifetime of 5"), "{reason}");
    assert_eq!(run(&service, "a", "7").await.outcome, "session_lost");
    service.shutdown().await;
}

#[test]
fn a_client_that_goes_in_the_middle_of_a_turn_leaves_no_process() {
    type Start = fn(&Path) -> Program;
    type Leave = fn(&mut Program);
    let eras: [(&str, Start); 2] = [
        ("first", Program::start),
        ("second", Program::start_of_second_era),
    ];
    let ways: [(&str, Leave); 3] = [
        ("says no more", |program| drop(program.stdin.take())),
        ("is gone", |program| {
            drop(program.stdout.take());
            drop(program.stdin.take());
        }),
        ("does not listen any more, then is gone", |program| {
            drop(program.stdout.take());
            program.send("tools/list", &json!({}));
            drop(program.stdin.take());
        }),
    ];
    for (era, start) in eras {
        for (way, leave) in ways {
            let directory = tempfile::tempdir().unwrap();
            let mut program = start(directory.path());
            program.run("x = 1");
            program.begin_run("print('begun', flush=True)\nimport time\nwhile True:\n    print('begun')\n    time.sleep(0.01)");
            program.wait_begun();
            let family = descendants(program.child.id());
            assert!(
                family.len() > 2,
                "a keeper, an init and an interpreter: {family:?}"
            );
            leave(&mut program);
            let deadline = Instant::now() + Duration::from_mins(1);
            while program.child.try_wait().unwrap().is_none() {
                assert!(
                    Instant::now() < deadline,
                    "{era} era: the client {way}, the server stays"
                );
                std::thread::sleep(Duration::from_millis(10));
            }
            while let Some(left) = family.iter().find(|pid| is_alive(**pid)) {
                assert!(
                    Instant::now() < deadline,
                    "{era} era: the client {way}, process {left} is left"
                );
                std::thread::sleep(Duration::from_millis(10));
            }
            let mut next = start(directory.path());
            assert_eq!(next.run("x")["outcome"], "session_lost", "{era} era, {way}");
            assert_eq!(next.run("20 + 22")["result"], 42, "{era} era, {way}");
        }
    }
}

fn descendants(pid: u32) -> Vec<u32> {
    // The server's threads start keepers, too.
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten();
    let direct: Vec<u32> = tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| {
            let pids = text.split_whitespace().map(|pid| pid.parse().unwrap());
            pids.collect::<Vec<u32>>()
        })
        .collect();
    let mut family = direct;
    let mut seen = 0;
    while seen < family.len() {
        family.extend(children(family[seen]));
        seen += 1;
    }
    family
}

fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

#[test]
fn a_client_that_does_not_read_holds_up_no_turn() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = Program::start(directory.path());
    program.run("x = 1");
    let before = memory_kib(program.child.id());
    let ends = executions(directory.path(), "finished").len();
    let code = "print('begun', flush=True)\nimport time\ntime.sleep(10)\nfor _ in range(16_000): print('x' * 1023)\nprint('last')\n7";
    let running = program.begin_run(code);
    program.wait_begun();
    // From here on nothing is read. These answers are more than the pipe holds.
    for _ in 0..50 {
        program.send("tools/list", &json!({}));
    }
    // The turn does not wait for its client to read.
    wait_for_executions(directory.path(), "finished", ends + 1);
    let grown = memory_kib(program.child.id()).saturating_sub(before);
    assert!(grown < 32 << 10, "grew by {grown} KiB");
    let answer = program.answer(running)["structuredContent"].clone();
    assert_eq!(
        (&answer["outcome"], &answer["result"]),
        (&json!("completed"), &json!(7))
    );
    assert!(answer["stdout"].as_str().unwrap().ends_with("last\n"));
    assert_eq!(program.run("x")["result"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_a_tool_call_in_flight_and_a_loop_of_numpy() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |config| {
        let upstream = hostile("calls", None);
        config.upstreams.insert("hostile".to_owned(), upstream);
        config.native.python = Some(packages::python());
        config.default_limits.memory_bytes = 1 << 30;
        config.max_limits.memory_bytes = 1 << 30;
    });
    run(
        &service,
        "a",
        "import asyncio\nimport numpy as np\nkept = np.ones((300, 300))",
    )
    .await;
    for code in [
        "print('begun', flush=True)\nhostile_silent(x=1)",
        "print('begun', flush=True)\nawait hostile_silent.aio(x=1)",
        "print('begun', flush=True)\nawait asyncio.gather(*(hostile_silent.aio(x=n) for n in range(20)))",
        "print('begun', flush=True)\nwhile True: kept = kept @ kept * 0 + 1",
    ] {
        let stopped = ExecuteRequest {
            timeout: Some(5.0),
            mcp_tools: Some(vec!["hostile_silent".to_owned(), "hostile_echo".to_owned()]),
            ..request("a", code)
        };
        let response = service.execute(stopped.clone(), &mut Quiet).await.unwrap();
        assert_eq!(
            response.outcome, "timed_out",
            "{code}: {:?}",
            response.error
        );
        assert_eq!(response.stdout, "begun\n", "{code}");
        let view = response.session.unwrap();
        assert_eq!((view.lost_reason, view.generation), (None, 1), "{code}");
        // The next one has the state, and its calls get their own answers.
        let next = ExecuteRequest {
            code: "hostile_echo(x=7)['got']['x'], kept.shape".to_owned(),
            timeout: None,
            ..stopped
        };
        let next = service.execute(next, &mut Quiet).await.unwrap();
        assert_eq!(
            next.result,
            json!([7, [300, 300]]),
            "{code}: {:?}",
            next.error
        );
        // A dropped call is the same interrupt.
        let turn = begin(&service, request_with_tools(code)).await;
        turn.abort();
        assert!(turn.await.unwrap_err().is_cancelled());
        let next = run(&service, "a", "kept.shape").await;
        assert_eq!(next.result, json!([300, 300]), "{code}: {:?}", next.error);
        assert_eq!(next.session.unwrap().generation, 1, "{code}");
    }
    service.shutdown().await;
}

fn request_with_tools(code: &str) -> ExecuteRequest {
    ExecuteRequest {
        mcp_tools: Some(vec!["hostile_silent".to_owned()]),
        ..request("a", code)
    }
}
