//! Runs code in a real sandbox of the native engine, for tests.

use std::{
    fs,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use mcp_forge::{
    config::{Config, Sources},
    engine::{Engine, Purpose, Sandbox, SandboxSpec, native::Native},
    limits::Limits,
    runner::wire::{Stub, ToolFailure, ToolFailureKind, ToolValue},
    turn::{self, Observer, Report, Stream, Tools, Turn},
};
use serde_json::{Map, Value};

/// The defaults, with a whole core: tests share two.
pub(crate) fn config() -> Config {
    let sources = Sources {
        data_dir: Some(std::env::temp_dir().join("mcp-forge-tests")),
        ..Sources::default()
    };
    let mut config = Config::load(&sources).unwrap().config;
    config.default_limits.timeout = Duration::from_mins(1);
    config.default_limits.cpu_quota_us = 100_000;
    config.native.warm = std::env::var_os("FORGE_TEST_WARM").is_some();
    config
}

/// Refuses every call.
struct NoTools;

#[async_trait::async_trait]
impl Tools for NoTools {
    async fn call(&self, name: &str, _: Map<String, Value>) -> Result<ToolValue, ToolFailure> {
        Err(ToolFailure {
            kind: ToolFailureKind::NotGranted,
            message: format!("{name} is not granted"),
        })
    }
}

/// Hears nothing.
struct Deaf;

impl Observer for Deaf {
    fn output(&mut self, _: Stream, _: &str) {}
}

/// Runs one turn in a fresh sandbox.
pub(crate) async fn run_with(config: &Config, code: &str) -> Report {
    let (sandbox, _) = launch(config).await;
    turn_in(sandbox, code, &config.default_limits).await
}

/// Runs one turn, then sees that nothing of its sandbox is left and that the next turn works.
pub(crate) async fn ends_clean(config: &Config, code: &str) -> Report {
    let mounts = host_mounts();
    let (sandbox, id) = launch(config).await;
    let trace = Trace::of(&id);
    let report = turn_in(sandbox, code, &config.default_limits).await;
    let deadline = Instant::now() + PATIENCE;
    while let Some(left) = trace.left() {
        assert!(Instant::now() < deadline, "left after a minute: {left}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(host_mounts(), mounts);
    assert_eq!(
        run_with(config, "20 + 22").await.result,
        42,
        "the next turn"
    );
    report
}

/// Runs one turn in a sandbox, and ends the sandbox.
pub(crate) async fn turn_in(sandbox: Sandbox, code: &str, limits: &Limits) -> Report {
    turn_with(sandbox, code, limits, (Vec::new(), &NoTools)).await
}

/// The same, of code that has tools: as it sees them, and what answers.
pub(crate) async fn turn_with(
    sandbox: Sandbox,
    code: &str,
    limits: &Limits,
    (stubs, tools): (Vec<Stub>, &dyn Tools),
) -> Report {
    let caps = config().caps;
    let turn = Turn {
        execution_id: None,
        code,
        stubs,
        tools,
        observer: &mut Deaf,
        limits,
        caps,
        max_calls: 100,
    };
    let (report, guard) = turn::run(sandbox, turn).await;
    if let Some(guard) = guard {
        let ending = guard.end(std::time::Duration::ZERO).await;
        assert!(
            !matches!(ending.cause, mcp_forge::engine::ExitCause::Lost(_)),
            "{:?}",
            ending.cause
        );
    }
    report
}

/// Starts a sandbox, and says what it is called.
pub(crate) async fn launch(config: &Config) -> (Sandbox, String) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = format!(
        "test-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let engine = Native::with_jail(config, binary());
    let spec = SandboxSpec {
        id: id.clone(),
        limits: config.default_limits.clone(),
        purpose: Purpose::default(),
        environment: None,
    };
    engine.prepare().await.unwrap();
    (engine.launch(&spec).await.unwrap(), id)
}

/// The program: the one that was built with this test, unless the test was moved elsewhere.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("FORGE_TEST_BINARY")
        .map_or_else(|| env!("CARGO_BIN_EXE_mcp-forge").into(), PathBuf::from)
}

/// Time for a sandbox to appear, and for all of it to be gone, on a machine that is busy.
const PATIENCE: Duration = Duration::from_mins(1);

/// What a living sandbox can be found by.
struct Trace {
    id: String,
    keeper: u32,
    pid_namespace: PathBuf,
    /// Held open: the kernel gives a name again as soon as nobody has it.
    _held: fs::File,
}

impl Trace {
    fn of(id: &str) -> Self {
        // Init has the same command line, and a smaller pid where pids have begun anew.
        let keeper = processes()
            .filter(|pid| is_child(*pid))
            .find(|pid| {
                let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                command
                    .split(|byte| *byte == 0)
                    .any(|argument| argument == id.as_bytes())
            })
            .expect("the keeper is not to be found");
        let deadline = Instant::now() + PATIENCE;
        let (pid_namespace, held) = loop {
            // Init hides itself; the program in it does not.
            let worker = children(keeper).into_iter().flat_map(children).next();
            if let Some(namespace) = worker.and_then(pid_namespace) {
                break namespace;
            }
            assert!(Instant::now() < deadline, "no program in the sandbox");
            std::thread::sleep(Duration::from_millis(1));
        };
        Self {
            id: id.to_owned(),
            keeper,
            pid_namespace,
            _held: held,
        }
    }

    /// Something that is still there.
    fn left(&self) -> Option<String> {
        let process = processes().find(|pid| {
            *pid == self.keeper
                || fs::read_link(format!("/proc/{pid}/ns/pid"))
                    .is_ok_and(|namespace| namespace == self.pid_namespace)
        });
        if let Some(pid) = process {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            return Some(format!("process {pid}: {status}"));
        }
        let mut cgroups = Vec::new();
        named(&PathBuf::from("/sys/fs/cgroup"), &self.id, &mut cgroups);
        named(&std::env::temp_dir(), &self.id, &mut cgroups);
        cgroups.pop().map(|path| path.display().to_string())
    }
}

/// Its name, and what keeps that from being given to another.
fn pid_namespace(pid: u32) -> Option<(PathBuf, fs::File)> {
    let file = fs::File::open(format!("/proc/{pid}/ns/pid")).ok()?;
    let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    Some((name, file))
}

/// Whether this process has started it.
fn is_child(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.and_then(|parent| parent.trim().parse().ok()) == Some(std::process::id())
}

/// Direct children, of the main thread.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let children =
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Directories at any depth whose name contains the text.
fn named(directory: &Path, text: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        // Whole names: `test-1-1` is not `test-1-10`.
        if entry
            .file_name()
            .to_string_lossy()
            .split("mcp-forge-")
            .any(|name| name == text)
        {
            found.push(entry.path());
        }
        named(&entry.path(), text, found);
    }
}

fn host_mounts() -> usize {
    fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .count()
}
