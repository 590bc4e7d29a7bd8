//! Forks of sessions in real sandboxes: what the two share, what each can do to the other, and
//! that either outlives the other.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use mcp_forge::{
    audit::Audit,
    bridge::Bridge,
    engine::{Engine, LayerState, Purpose, SandboxSpec, native::Native},
    runner::wire::{Parameter, Stub, ToolFailure, ToolValue},
    turn::{Resident, Tools, Turn},
};
use serde_json::Map;

use super::*;
use crate::{
    sandbox::{binary, config},
    warm::{keepers, kill_keepers, kill_zygotes, wait_until_no_keeper_is_left},
};

/// A service whose sandboxes are forks of zygotes, its data below a directory that goes with it.
struct Warm {
    service: Arc<Service>,
    /// Its data, and a name of the program by which its keepers are told from those of others.
    place: tempfile::TempDir,
}

impl Warm {
    async fn new() -> Self {
        let (engine, config, place) = engine().await;
        let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
        let audit = Audit::open(&place.path().join("audit")).unwrap();
        let service = Service::new(config, Arc::new(engine), bridge, audit);
        Self { service, place }
    }

    async fn run(&self, session: &str, code: &str) -> ExecuteResponse {
        run(&self.service, session, code).await
    }

    /// Runs code that must succeed, and gives its result.
    async fn value(&self, session: &str, code: &str) -> Value {
        let response = self.run(session, code).await;
        let said = (
            response.outcome.as_str(),
            &response.error,
            &response.session,
        );
        assert_eq!(response.outcome, "completed", "{session}: {code}: {said:?}");
        response.result
    }

    async fn fork(&self, session: &str, new: &str) {
        let me = Principal::local();
        let forked = self.service.fork_session(&me, session, Some(new)).await;
        forked.unwrap_or_else(|error| panic!("{session} to {new}: {error}"));
    }

    async fn delete(&self, session: &str) {
        let me = Principal::local();
        self.service.delete_session(&me, session).await.unwrap();
    }

    /// Ends everything, and sees that nothing is left of it.
    async fn end(self) {
        let names = keeper_names(self.place.path());
        assert!(!names.is_empty());
        self.service.shutdown().await;
        drop(Arc::into_inner(self.service).expect("nobody else uses it"));
        wait_until_no_keeper_is_left(self.place.path()).await;
        assert_eq!(cgroups(&names), BTreeSet::new());
    }
}

/// An engine whose sandboxes are forks of zygotes.
async fn engine() -> (Native, Config, tempfile::TempDir) {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("mcp-forge");
    std::os::unix::fs::symlink(binary(), &program).unwrap();
    let mut config = config();
    place.path().clone_into(&mut config.data_dir);
    config.native.warm = true;
    config.default_limits.timeout = Duration::from_mins(1);
    let engine = Native::with_jail(&config, program);
    engine.prepare().await.unwrap();
    (engine, config, place)
}

/// What the keepers of this place are called, as their cgroups are.
fn keeper_names(place: &Path) -> BTreeSet<String> {
    let command = |pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let name = |pid| command(pid).split('\0').nth(2).map(str::to_owned);
    keepers(place).into_iter().filter_map(name).collect()
}

/// Cgroups of these keepers' sandboxes.
fn cgroups(keepers: &BTreeSet<String>) -> BTreeSet<PathBuf> {
    let is_theirs = |name: &str| {
        let mut keepers = keepers.iter();
        keepers.any(|keeper| name.starts_with(&format!("mcp-forge-{keeper}-")))
    };
    let mut directories = vec![PathBuf::from("/sys/fs/cgroup")];
    let mut found = BTreeSet::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(entry.path());
                if is_theirs(&entry.file_name().to_string_lossy()) {
                    found.insert(entry.path());
                }
            }
        }
    }
    found
}

/// Living processes of the host that have this name or command.
fn processes(name: &str) -> BTreeSet<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let read = |file| fs::read_to_string(format!("/proc/{pid}/{file}"));
            let command = read("cmdline").unwrap_or_default().replace('\0', " ");
            let stat = read("stat").unwrap_or_default();
            let is_it = command.trim() == name || stat.contains(&format!("({name})"));
            is_it && !stat.contains(") Z")
        })
        .collect()
}

async fn wait_for_processes(name: &str, count: usize) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while processes(name).len() != count {
        let found = processes(name);
        assert!(Instant::now() < deadline, "{name}: {found:?}, not {count}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Code by which an interpreter gives itself a name in the host's list of processes.
fn take_name(name: &str) -> String {
    format!("import ctypes; _ = ctypes.CDLL(None).prctl(15, b'{name}')")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_everything_and_both_go_their_own_way() {
    let warm = Warm::new().await;
    let code = "x = [1]\ndef f(): return len(x)\nimport random, os\nloop_ran = False\nopen('f', 'w').write('a')";
    warm.value("a", code).await;
    warm.fork("a", "b").await;
    warm.value("b", "x += [2, 3]; y = 'b'; print('from b')")
        .await;
    let told = warm.run("a", "print('from a'); x.append(9)").await;
    assert_eq!(told.stdout, "from a\n");
    assert_eq!(told.between_turns, None);
    assert_eq!(
        warm.value("a", "(x, f(), 'y' in globals())").await,
        json!([[1, 9], 2, false])
    );
    assert_eq!(
        warm.value("b", "(x, f(), y)").await,
        json!([[1, 2, 3], 3, "b"])
    );
    // Their random numbers are not the same; asyncio and displays work in both.
    let draws = "random.random()";
    assert_ne!(warm.value("a", draws).await, warm.value("b", draws).await);
    for session in ["a", "b"] {
        let code = "import asyncio\nawait asyncio.sleep(0.01)\ndisplay({'text/html': '<b>x</b>'}, raw=True); 1";
        let shown = warm.run(session, code).await;
        assert_eq!(
            (&shown.result, shown.displays.len()),
            (&json!(1), 1),
            "{session} {shown:?}"
        );
    }
    // The files are the same ones.
    warm.value("b", "open('f', 'w').write('changed by b')")
        .await;
    assert_eq!(warm.value("a", "open('f').read()").await, "changed by b");
    let state = state_when(&warm.service, "b", |state| {
        state["introspection"]["x"]["length"] == 3
    });
    assert!(state.await["introspection"]["y"].is_object());
    warm.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_shares_memory_until_it_writes() {
    let warm = Warm::new().await;
    let name = take_name("fg-shared");
    warm.value(
        "a",
        &format!("{name}\ndata = bytearray(b'x') * (100 << 20)"),
    )
    .await;
    warm.fork("a", "b").await;
    assert_eq!(warm.value("b", "len(data)").await, json!(100 << 20));
    let both = processes("fg-shared");
    assert_eq!(both.len(), 2);
    let before: u64 = both.iter().copied().map(share_of_the_data).sum();
    assert!((100..110).contains(&before), "{before} MiB");
    warm.value("b", "data[::4096] = bytes(len(data) // 4096)")
        .await;
    let after: u64 = both.iter().copied().map(share_of_the_data).sum();
    assert!((200..210).contains(&after), "{before}, then {after} MiB");
    assert_eq!(warm.value("a", "data.count(0)").await, json!(0));
    warm.end().await;
}

/// The proportional share, in mebibytes, of the one mapping that has 100 of them resident. Those of
/// the interpreter are no measure: they shrink whenever the pool makes another fork.
fn share_of_the_data(pid: u32) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mebibytes = |field| {
        maps.lines()
            .filter_map(move |line| line.strip_prefix(field))
            .map(|value| value.trim_end_matches("kB").trim().parse::<u64>().unwrap() >> 10)
    };
    mebibytes("Rss:")
        .zip(mebibytes("Pss:"))
        .filter_map(|(resident, share)| (resident >= 100).then_some(share))
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_original_may_end_first_and_copies_may_be_copied() {
    let warm = Warm::new().await;
    let name = take_name("fg-chain");
    let code = format!("{name}\nimport subprocess\nchain = ['a']\n");
    let sleep = "child = subprocess.Popen(['sleep', '98701'])";
    warm.value("a", &code).await;
    warm.fork("a", "b").await;
    warm.value("a", &format!("{sleep}; 1")).await;
    warm.value("b", &format!("{sleep}; chain.append('b'); 1"))
        .await;
    wait_for_processes("sleep 98701", 2).await;
    warm.fork("b", "c").await;
    wait_for_processes("fg-chain", 3).await;
    warm.delete("a").await;
    // All of the original went with it, nothing of the others.
    wait_for_processes("sleep 98701", 1).await;
    wait_for_processes("fg-chain", 2).await;
    assert_eq!(warm.value("c", "chain").await, json!(["a", "b"]));
    assert_eq!(
        warm.value("b", "chain.append(2); chain").await,
        json!(["a", "b", 2])
    );
    // In a sandbox whose first interpreter is gone.
    warm.fork("c", "d").await;
    warm.delete("b").await;
    wait_for_processes("sleep 98701", 0).await;
    warm.delete("c").await;
    assert_eq!(warm.value("d", "chain").await, json!(["a", "b"]));
    warm.delete("d").await;
    wait_for_processes("fg-chain", 0).await;
    warm.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_one_is_told_as_its_own_and_the_other_goes_on() {
    let warm = Warm::new().await;
    for (number, (code, reason)) in [
        ("import os; os._exit(3)", "exited with status 3"),
        ("import ctypes; ctypes.string_at(0)", "ended by signal 11"),
        ("import os; os.kill(os.getpid(), 9)", "ended by signal 9"),
        (
            "import os\nif not os.fork(): os.execvp('sleep', ['sleep', '98702'])\nos._exit(4)",
            "exited with status 4",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        for dies_first in [true, false] {
            let original = format!("a{number}{dies_first}");
            let copy = format!("b{number}{dies_first}");
            warm.value(&original, "x = 'kept'").await;
            warm.fork(&original, &copy).await;
            let (dies, lives) = if dies_first {
                (&original, &copy)
            } else {
                (&copy, &original)
            };
            let response = warm.run(dies, code).await;
            assert_eq!(response.outcome, "crashed", "{code}: {:?}", response.error);
            let lost = response.session.unwrap().lost_reason.unwrap();
            assert!(lost.contains(reason), "{code}: {lost}");
            assert_eq!(warm.value(lives, "x").await, "kept", "{code}");
            wait_for_processes("sleep 98702", 0).await;
            assert_eq!(warm.run(dies, "x").await.outcome, "session_lost");
            assert_eq!(warm.run(dies, "x").await.error.unwrap().kind, "NameError");
            assert_eq!(warm.value(lives, "x").await, "kept", "{code}");
            warm.delete(&original).await;
            warm.delete(&copy).await;
        }
    }
    warm.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_one_that_takes_too_much_memory_dies() {
    let warm = Warm::new().await;
    for dies_first in [true, false] {
        let (original, copy) = (format!("a{dies_first}"), format!("b{dies_first}"));
        warm.value(&original, "x = bytearray(b'x') * (50 << 20)")
            .await;
        warm.fork(&original, &copy).await;
        let (dies, lives) = if dies_first {
            (&original, &copy)
        } else {
            (&copy, &original)
        };
        // More than the limit, in processes of which each stays below it.
        let code = "
import os, time
for _ in range(6):
    if not os.fork():
        held = bytearray(b'y') * (100 << 20)
        time.sleep(1000)
        os._exit(0)
time.sleep(1000)";
        let response = warm.run(dies, code).await;
        assert_eq!(response.outcome, "out_of_memory", "{:?}", response.error);
        assert_eq!(warm.value(lives, "len(x)").await, json!(50 << 20));
        assert_eq!(warm.run(dies, "x").await.outcome, "session_lost");
        warm.delete(&original).await;
        warm.delete(&copy).await;
    }
    warm.end().await;
}

/// What an interpreter leaves that has ended is in no count: it must not add up.
#[tokio::test(flavor = "multi_thread")]
async fn memory_cannot_be_handed_down_from_copy_to_copy() {
    let warm = Warm::new().await;
    let me = Principal::local();
    let mut holder = "s0".to_owned();
    let isolation = warm.run(&holder, "import os; held = []").await.isolation;
    let counted = isolation
        .limits
        .iter()
        .any(|limit| limit.name == "memory" && limit.state == LayerState::Enforced);
    for number in 1..=6 {
        let hold = "fd = os.memfd_create('x')\nfor _ in range(200): os.write(fd, bytes(1 << 20))\nheld.append(fd)";
        warm.value(&holder, hold).await;
        let next = format!("s{number}");
        match warm.service.fork_session(&me, &holder, Some(&next)).await {
            Ok(_) => warm.delete(&holder).await,
            Err(error) => {
                assert!(counted && number >= 4, "{number}: {error}");
                let said = error.to_string();
                assert!(said.contains("sessions that have ended"), "{said}");
                // It goes on all the same.
                warm.value(&holder, "len(held)").await;
                return warm.end().await;
            }
        }
        holder = next;
    }
    assert!(!counted, "six times 200 MiB, and nobody counted");
    warm.end().await;
}

/// A daemon is not in its interpreter's family any more. It is in its cgroup.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_ends_with_the_one_that_started_it() {
    let warm = Warm::new().await;
    let isolation = warm.run("a", "import os").await.isolation;
    let has_cgroup = isolation
        .layers
        .iter()
        .any(|layer| layer.name == "cgroup" && layer.state == LayerState::Enforced);
    warm.fork("a", "b").await;
    let daemon = |seconds| {
        format!(
            "if not (child := os.fork()):\n    os.setsid()\n    if os.fork(): os._exit(0)\n    \
             os.execvp('sleep', ['sleep', '{seconds}'])\nos.waitpid(child, 0)[1]"
        )
    };
    for (session, seconds) in [("a", "98703"), ("b", "98704")] {
        assert_eq!(warm.value(session, &daemon(seconds)).await, json!(0));
        wait_for_processes(&format!("sleep {seconds}"), 1).await;
    }
    warm.delete("a").await;
    wait_for_processes("sleep 98703", usize::from(!has_cgroup)).await;
    wait_for_processes("sleep 98704", 1).await;
    assert_eq!(warm.value("b", "1").await, json!(1));
    warm.delete("b").await;
    wait_for_processes("sleep 98703", 0).await;
    wait_for_processes("sleep 98704", 0).await;
    warm.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_is_for_one_of_them() {
    let warm = Warm::new().await;
    warm.value("a", "import time; x = 1").await;
    warm.fork("a", "b").await;
    for (stopped, goes_on) in [("a", "b"), ("b", "a")] {
        let request = ExecuteRequest {
            timeout: Some(0.5),
            ..request(stopped, "while True: time.sleep(10)")
        };
        let mut deaf = Quiet;
        let (stopped, whole) = tokio::join!(
            warm.service.execute(request, &mut deaf),
            warm.value(goes_on, "time.sleep(1.5); x"),
        );
        let stopped = stopped.unwrap();
        assert_eq!(stopped.outcome, "timed_out");
        assert_eq!(stopped.session.unwrap().lost_reason, None);
        assert_eq!(whole, json!(1));
    }
    assert_eq!(warm.value("a", "x").await, json!(1));
    assert_eq!(warm.value("b", "x").await, json!(1));
    warm.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_is_in_the_way_and_is_named() {
    let warm = Warm::new().await;
    let me = Principal::local();
    let code = "import threading\ngo = threading.Event()\nt = threading.Thread(target=go.wait, name='pump')\nt.start()";
    warm.value("a", code).await;
    let refused = warm.service.fork_session(&me, "a", Some("b")).await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        "session `a` cannot be forked now: thread `pump` is alive"
    );
    let alone = "go.set(); t.join()\nimport signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)";
    warm.value("a", &format!("{alone}; 1")).await;
    warm.fork("a", "b").await;
    // Code that has made itself a reaper keeps its copies from us, and is told so.
    warm.value("a", "import ctypes; ctypes.CDLL(None).prctl(36, 1)")
        .await;
    let refused = warm.service.fork_session(&me, "a", Some("c")).await;
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("made itself a reaper"), "{said}");
    warm.value("a", "1").await;
    warm.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_go_on_when_the_zygote_dies_and_can_be_copied_still() {
    let warm = Warm::new().await;
    warm.value("a", "x = 1").await;
    warm.fork("a", "b").await;
    assert!(kill_zygotes(warm.place.path()) > 0);
    warm.fork("b", "c").await;
    warm.fork("a", "d").await;
    for session in ["a", "b", "c", "d"] {
        assert_eq!(warm.value(session, "x").await, json!(1));
    }
    warm.end().await;
}

/// A killed keeper takes originals and copies with it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_outlives_a_killed_keeper() {
    let warm = Warm::new().await;
    warm.value("a", &take_name("fg-orphan")).await;
    warm.fork("a", "b").await;
    warm.delete("a").await;
    wait_for_processes("fg-orphan", 1).await;
    kill_keepers(warm.place.path()).await;
    wait_for_processes("fg-orphan", 0).await;
    state_when(&warm.service, "b", |state| state["state"] == "lost").await;
    assert_eq!(warm.run("b", "1").await.outcome, "session_lost");
    warm.service.shutdown().await;
    let Warm { service, place } = warm;
    drop(service);
    wait_until_no_keeper_is_left(place.path()).await;
}

#[tokio::test]
async fn without_a_zygote_the_refusal_names_the_setting() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config();
    directory.path().clone_into(&mut config.data_dir);
    config.native.warm = false;
    let engine = Arc::new(Native::with_jail(&config, binary()));
    let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
    let audit = Audit::open(&directory.path().join("audit")).unwrap();
    let service = Service::new(config, engine, bridge, audit);
    run(&service, "a", "x = 1").await;
    let refused = service.fork_session(&Principal::local(), "a", None).await;
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("`warm.enabled: true`"), "{said}");
    assert_eq!(run(&service, "a", "x").await.result, json!(1));
    service.shutdown().await;
}

/// Counts calls, and answers none.
#[derive(Default)]
struct Hanging {
    calls: AtomicUsize,
}

#[async_trait::async_trait]
impl Tools for Hanging {
    async fn call(&self, _: &str, _: Map<String, Value>) -> Result<ToolValue, ToolFailure> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_call_does_not_cross() {
    let (engine, config, place) = engine().await;
    let spec = |id: &str| SandboxSpec {
        id: format!("branch-{id}-{}", std::process::id()),
        limits: config.default_limits.clone(),
        purpose: Purpose::Session,
        environment: None,
    };
    let sandbox = engine.launch(&spec("original")).await.unwrap();
    let (mut original, _) = Resident::start(sandbox, config.caps).await.unwrap();
    let tools = Hanging::default();
    let code = "
import asyncio
async def ask():
    try:
        return await hang.aio()
    except BaseException as error:
        return type(error).__name__
task = asyncio.ensure_future(ask())
await asyncio.sleep(0)
await asyncio.sleep(0)";
    let report = turn(&mut original, code, &tools).await;
    assert_eq!(report, Ok(Value::Null));
    assert_eq!(tools.calls.load(Ordering::Relaxed), 1);
    let sandbox = original.branch(&spec("copy")).await.unwrap();
    let mut copy = Resident::adopt(sandbox, config.caps).await.unwrap();
    let first = turn(&mut original, "await task", &tools).await.unwrap();
    assert_eq!(first, json!("ToolError"));
    // It has either ended before the copy was made, or is the original's alone, as threads are.
    let second = turn(&mut copy, "await task", &tools).await;
    let is_known = match &second {
        Ok(value) => value == "ToolError",
        Err(report) => report.contains("attached to a different loop"),
    };
    assert!(is_known, "{second:?}");
    assert_eq!(tools.calls.load(Ordering::Relaxed), 1);
    // The copy's own calls are its own.
    let own =
        "again = asyncio.ensure_future(ask())\nawait asyncio.sleep(0)\nawait asyncio.sleep(0)";
    turn(&mut copy, own, &tools).await.unwrap();
    assert_eq!(tools.calls.load(Ordering::Relaxed), 2);
    original.end(Duration::ZERO).await;
    copy.end(Duration::ZERO).await;
    drop(engine);
    wait_until_no_keeper_is_left(place.path()).await;
}

/// One turn's result, or how it ended.
async fn turn(resident: &mut Resident, code: &str, tools: &dyn Tools) -> Result<Value, String> {
    let config = config();
    let turn = Turn {
        execution_id: None,
        code,
        stubs: vec![Stub {
            name: "hang".to_owned(),
            doc: String::new(),
            parameters: Vec::<Parameter>::new(),
            returns: "None".to_owned(),
        }],
        tools,
        observer: &mut Quiet,
        limits: &config.default_limits,
        caps: config.caps,
        max_calls: 100,
    };
    let before = resident.usage();
    let ran = resident.turn(turn, None, std::future::pending()).await;
    let report = resident.report(ran, before);
    match report.outcome {
        mcp_forge::turn::Outcome::Completed => Ok(report.result),
        _ => Err(format!("{report:?}")),
    }
}
