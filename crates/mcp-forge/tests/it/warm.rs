//! The warm path: sandboxes forked from a zygote behave as those that start their own interpreter,
//! and nothing but the zygote is shared between them.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use mcp_forge::{
    config::Config,
    engine::{Engine, ExitCause, LayerState, Purpose, SandboxSpec, native::Native},
    runner::{self, wire::Event},
    turn::{Outcome, Report},
};
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::{
    escape::cgroups,
    real_python::packages,
    sandbox::{binary, children, config, turn_in},
};

/// One test at a time: one of them kills every zygote of this process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// One engine, and what its sandboxes are given.
struct Warm {
    engine: Native,
    config: Config,
    /// Holds a name of the program by which its keepers are told from those of other tests.
    place: tempfile::TempDir,
}

impl Warm {
    async fn new() -> Self {
        Self::with_ready(config().native.ready).await
    }

    /// One in which so many sandboxes may wait.
    async fn with_ready(ready: usize) -> Self {
        let mut config = config();
        config.native.warm = true;
        config.native.ready = ready;
        config.default_limits.timeout = Duration::from_secs(20);
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("mcp-forge");
        std::os::unix::fs::symlink(binary(), &program).unwrap();
        let engine = Native::with_jail(&config, program);
        engine.prepare().await.unwrap();
        Self {
            engine,
            config,
            place,
        }
    }

    async fn run(&self, code: &str) -> Report {
        self.run_for(code, Duration::from_secs(20)).await
    }

    async fn run_for(&self, code: &str, timeout: Duration) -> Report {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("warmtest-{}-{number}", std::process::id());
        let mut limits = self.config.default_limits.clone();
        let spec = SandboxSpec {
            id,
            limits: limits.clone(),
            purpose: Purpose::default(),
            environment: None,
        };
        let sandbox = self.engine.launch(&spec).await.unwrap();
        let seccomp = sandbox
            .isolation
            .layers
            .iter()
            .find(|layer| layer.name == "seccomp");
        assert_eq!(seccomp.unwrap().state, LayerState::Enforced);
        limits.timeout = timeout;
        turn_in(sandbox, code, &limits).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forked_sandbox_is_fresh_and_sealed() {
    let _alone = ALONE.lock().await;
    let warm = Warm::new().await;
    let code = "
import os
marks = [os.path.exists('/tmp/mark'), os.path.exists('/workspace/mark'), os.path.exists('/dev/shm/mark')]
for place in ('/tmp', '/workspace', '/dev/shm'):
    open(place + '/mark', 'x').close()
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())
{
    'marks': marks,
    'processes': len([name for name in os.listdir('/proc') if name.isdigit()]),
    'caps': {status[name] for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')},
    'seccomp': (status['Seccomp'], status['NoNewPrivs']),
    'cgroup': {line.split(':')[2] for line in open('/proc/self/cgroup').read().split()},
    'fds': len(os.listdir('/proc/self/fd')),
    'oom': open('/proc/self/oom_score_adj').read(),
    'globals': sorted(name for name in globals() if not name.startswith('__')),
}";
    for _ in 0..4 {
        let report = warm.run(code).await;
        assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
        assert_eq!(report.result["marks"], json!([false, false, false]));
        assert_eq!(report.result["processes"], json!(1));
        assert_eq!(report.result["caps"], json!(["0000000000000000"]));
        assert_eq!(report.result["seccomp"], json!(["2", "1"]));
        assert_eq!(report.result["cgroup"], json!(["/"]));
        // The first to die when the host runs out of memory.
        assert_eq!(report.result["oom"], json!("500\n"));
        // The four it has, and the one that lists them.
        assert_eq!(report.result["fds"], json!(5));
    }
}

/// How a fork can end is the contract's, which runs on warm sandboxes too.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_the_child_of_its_init_and_waits_for_its_own() {
    let _alone = ALONE.lock().await;
    let warm = Warm::new().await;
    let children = "import os\n(os.system('exit 3'), os.getpid(), os.getppid())";
    let report = warm.run(children).await;
    assert_eq!(report.result, json!([3 << 8, 2, 1]), "{report:?}");
}

/// What a fork could give away about its siblings: random states, and anything it can see.
#[tokio::test(flavor = "multi_thread")]
async fn siblings_share_no_randomness_and_cannot_name_each_other() {
    let _alone = ALONE.lock().await;
    let warm = Warm::new().await;
    let code = "
import os, random, secrets, socket, tempfile, uuid
listener = socket.socket(socket.AF_UNIX)
try:
    listener.bind('\\0sibling')
    bound = True
except OSError:
    bound = False
[random.random(), uuid.uuid4().hex, secrets.token_hex(8), tempfile.mkdtemp(), bound]";
    let mut seen = BTreeSet::new();
    for _ in 0..5 {
        let report = warm.run(code).await;
        let values = report.result.as_array().expect("a list").clone();
        assert_eq!(
            values[4],
            json!(true),
            "an abstract name of a sibling is in the way: {report:?}"
        );
        for value in &values[..4] {
            assert!(seen.insert(value.to_string()), "seen twice: {value}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_sandbox_is_given_twice_to_64_clients() {
    let _alone = ALONE.lock().await;
    let warm = Arc::new(Warm::new().await);
    let code =
        "import os\nfresh = not os.path.exists('/tmp/used')\nopen('/tmp/used', 'w').close()\nfresh";
    let runs = (0..64).map(|_| {
        let warm = Arc::clone(&warm);
        async move { warm.run(code).await }
    });
    for report in futures_util::future::join_all(runs).await {
        assert_eq!(report.result, json!(true), "{report:?}");
    }
}

/// A zygote that dies is replaced, and what it has forked goes on: nobody notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_zygote_fails_no_turn() {
    let _alone = ALONE.lock().await;
    let warm = Arc::new(Warm::new().await);
    let running = tokio::spawn({
        let warm = Arc::clone(&warm);
        async move { warm.run("import time\ntime.sleep(1)\n'done'").await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(kill_zygotes(warm.place.path()), 1, "one tier is in use");
    for _ in 0..20 {
        assert_eq!(warm.run("2").await.result, json!(2));
    }
    assert_eq!(running.await.unwrap().result, json!("done"));
    end(warm).await;
}

/// A killed keeper takes its zygote and all of its sandboxes with it; the next turn has others.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_keeper_is_replaced_and_nothing_outlives_the_engine() {
    let _alone = ALONE.lock().await;
    let warm = Arc::new(Warm::new().await);
    assert_eq!(warm.run("1").await.result, json!(1));
    kill_keepers(warm.place.path()).await;
    wait_until_no_keeper_is_left(warm.place.path()).await;
    for _ in 0..20 {
        let report = warm.run("2").await;
        assert_eq!(report.result, json!(2), "{report:?}");
    }
    end(warm).await;
}

/// As many wait as may wait, however many were asked for at once; with none allowed each is forked.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_sandboxes_wait_than_may_wait() {
    let _alone = ALONE.lock().await;
    for ready in [0, 1, 3] {
        let warm = Arc::new(Warm::with_ready(ready).await);
        // The zygote is there before anybody asks; its init has said so just before it starts it.
        let deadline = Instant::now() + Duration::from_mins(1);
        while zygotes(warm.place.path()).is_empty() {
            assert!(Instant::now() < deadline, "{ready}: no zygote");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(waiting(&warm).len(), ready.min(2), "{ready}");
        let runs = (0..16).map(|_| warm.run("20 + 22"));
        for report in futures_util::future::join_all(runs).await {
            assert_eq!(report.result, json!(42), "{report:?}");
        }
        let deadline = Instant::now() + Duration::from_mins(1);
        while waiting(&warm).len() != ready {
            assert!(Instant::now() < deadline, "{ready}: {:?}", waiting(&warm));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        end(warm).await;
    }
}

/// Cgroups that wait empty for the next sandbox look like those that a killed keeper left.
#[tokio::test(flavor = "multi_thread")]
async fn another_server_takes_no_cgroup_from_a_living_keeper() {
    let _alone = ALONE.lock().await;
    let warm = Arc::new(Warm::with_ready(0).await);
    assert_eq!(warm.run("1").await.result, json!(1));
    let kept = kept_cgroups(warm.place.path());
    // v2's are not used again, and v1's are for root.
    let can_be_kept = rustix::process::geteuid().is_root() && Path::new(V1_MEMORY).exists();
    assert_eq!(!kept.is_empty(), can_be_kept, "{kept:?}");
    for path in &kept {
        let long_ago = SystemTime::now() - Duration::from_mins(5);
        let directory = fs::File::open(path).unwrap();
        directory.set_modified(long_ago).unwrap();
    }
    let looks = || drop(Native::with_jail(&warm.config, binary()));
    looks();
    assert!(kept.iter().all(|path| Path::new(path).exists()), "{kept:?}");
    assert_eq!(warm.run("2").await.result, json!(2));
    kill_keepers(warm.place.path()).await;
    let deadline = Instant::now() + Duration::from_mins(1);
    while kept.iter().any(|path| Path::new(path).exists()) {
        assert!(Instant::now() < deadline, "left: {kept:?}");
        looks();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    end(warm).await;
}

/// Where v1 counts memory.
const V1_MEMORY: &str = "/sys/fs/cgroup/memory/cgroup.procs";

/// What the keepers of this place have of cgroups, while no turn runs and no sandbox waits.
fn kept_cgroups(place: &Path) -> Vec<String> {
    let names: Vec<String> = keepers(place)
        .iter()
        .filter_map(|keeper| fs::read_to_string(format!("/proc/{keeper}/cmdline")).ok())
        .filter_map(|line| Some(line.trim_end_matches('\0').rsplit_once('\0')?.1.to_owned()))
        .collect();
    let is_theirs = |path: &String| {
        let mut names = names.iter();
        names.any(|name| path.contains(&format!("mcp-forge-{name}-")))
    };
    cgroups().into_iter().filter(is_theirs).collect()
}

/// The forks of its zygote: while no turn runs, those that wait.
fn waiting(warm: &Warm) -> Vec<u32> {
    let zygotes = zygotes(warm.place.path());
    assert_eq!(zygotes.len(), 1, "one tier is in use");
    zygotes.into_iter().flat_map(children).collect()
}

async fn end(warm: Arc<Warm>) {
    let Warm { engine, place, .. } = Arc::into_inner(warm).expect("nobody else uses it");
    drop(engine);
    wait_until_no_keeper_is_left(place.path()).await;
}

pub(crate) async fn wait_until_no_keeper_is_left(place: &Path) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !keepers(place).is_empty() {
        assert!(Instant::now() < deadline, "left: {:?}", keepers(place));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Kills every zygote, and says how many there were.
pub(crate) fn kill_zygotes(place: &Path) -> usize {
    let zygotes = zygotes(place);
    zygotes.iter().copied().for_each(kill);
    zygotes.len()
}

/// Kills every keeper, and waits until each has closed what it had open: a process loses its command
/// line some time before that.
pub(crate) async fn kill_keepers(place: &Path) {
    let keepers = keepers(place);
    keepers.iter().copied().for_each(kill);
    let deadline = Instant::now() + Duration::from_mins(1);
    for keeper in keepers {
        while !is_over(keeper) {
            assert!(Instant::now() < deadline, "keeper {keeper} goes on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Whether no thread of this process runs any more.
fn is_over(pid: u32) -> bool {
    let stat = |path: std::path::PathBuf| fs::read_to_string(path.join("stat")).unwrap_or_default();
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let stat = stat(thread.path());
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        state.is_empty() || state.starts_with(['Z', 'X'])
    })
}

pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // One that died with another is as good as killed.
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
}

/// The prepared interpreters below the keepers of this place.
pub(crate) fn zygotes(place: &Path) -> Vec<u32> {
    let families = keepers(place);
    let inits = families.iter().flat_map(|keeper| children(*keeper));
    let inits = inits.filter(|init| families.contains(init));
    inits.flat_map(children).collect()
}

/// Keepers, and their zygotes' inits, that were started by the name of the program in this place.
pub(crate) fn keepers(place: &Path) -> Vec<u32> {
    let name = place.to_string_lossy();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(&*name)
        })
        .collect()
}

/// What the code imports decides which zygote serves it; numpy's own random state is not shared.
#[tokio::test(flavor = "multi_thread")]
async fn tiers_have_imported_what_the_code_imports() {
    let _alone = ALONE.lock().await;
    let mut config = config();
    config.native.warm = true;
    config.native.python = Some(packages::python());
    config.native.tiers = ["numpy", "numpy+pandas", "no_such_module"]
        .map(str::to_owned)
        .to_vec();
    config.default_limits.timeout = Duration::from_mins(1);
    let engine = Native::with_jail(&config, binary());
    engine.prepare().await.unwrap();
    let code = "
import sys
loaded = [name for name in ('numpy', 'pandas', 'no_such_module') if name in sys.modules]
numpy = sys.modules.get('numpy')
loaded, numpy and float(numpy.random.random()), len(__import__('os').listdir('/proc/self/task'))";
    let mut draws = BTreeSet::new();
    for (imports, expected) in [
        (vec![], json!([])),
        (vec!["no_such_module"], json!([])),
        (vec!["numpy"], json!(["numpy"])),
        (vec!["numpy"], json!(["numpy"])),
        (vec!["json", "pandas"], json!(["numpy", "pandas"])),
        (vec!["pandas"], json!(["numpy", "pandas"])),
    ] {
        let spec = SandboxSpec {
            id: format!("tier-{}-{}", std::process::id(), draws.len()),
            limits: config.default_limits.clone(),
            purpose: Purpose::Turn(imports.iter().map(|&name| name.to_owned()).collect()),
            environment: None,
        };
        let sandbox = engine.launch(&spec).await.unwrap();
        let report = turn_in(sandbox, code, &config.default_limits).await;
        assert_eq!(report.result[0], expected, "{imports:?}: {report:?}");
        assert_eq!(report.result[2], json!(1), "one thread: {report:?}");
        if report.result[1].is_number() {
            assert!(draws.insert(report.result[1].to_string()), "drawn twice");
        }
    }
    assert_eq!(draws.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_reaches_the_code_on_both_paths() {
    let _alone = ALONE.lock().await;
    for warm in [false, true] {
        let mut config = config();
        config.native.warm = warm;
        let engine = Native::with_jail(&config, binary());
        engine.prepare().await.unwrap();
        let spec = SandboxSpec {
            id: format!("interrupt-{}-{warm}", std::process::id()),
            limits: config.default_limits.clone(),
            purpose: Purpose::default(),
            environment: None,
        };
        let mut sandbox = engine.launch(&spec).await.unwrap();
        let (mut events, mut requests) = runner::connect(sandbox.connection);
        assert!(matches!(events.next().await.unwrap(), Event::Ready { .. }));
        let code = "import time\nprint('asleep', flush=True)\ntime.sleep(60)";
        let execute = json!({
            "type": "execute", "code": code, "tools": [],
            "caps": {"result_bytes": 1000, "repr_chars": 1000, "display_bytes": 1000, "displays": 1},
        });
        requests
            .send(&serde_json::from_value(execute).unwrap())
            .await
            .unwrap();
        let mut said = [0; 7];
        sandbox.stdout.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"asleep\n");
        sandbox.guard.interrupt().await;
        let Event::Done(done) = events.next().await.unwrap() else {
            panic!("not done");
        };
        assert_eq!(done.error.unwrap().kind, "KeyboardInterrupt");
        assert!(sandbox.guard.usage().cpu_ms.is_some());
        let ending = sandbox.guard.end(Duration::ZERO).await;
        assert_eq!(ending.cause, ExitCause::Killed);
    }
}
