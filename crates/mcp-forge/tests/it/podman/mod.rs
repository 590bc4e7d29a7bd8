//! The podman engine against a real service: what it leaves alone, what it survives, what it holds.
//!
//! `MCP_FORGE_PODMAN_SOCKET` names the socket of a service that has the images, and
//! `FORGE_TEST_PODMAN` the command line, up to the command, of a `podman` on the same storage: with
//! it the tests play bystanders and start services of their own. `cargo xtask test` sets both. Without
//! them these tests fail; `--skip podman::` leaves them out by name. `rootless` is for the service of an
//! ordinary user whose limits the host ignores, `limits` for any other.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_forge::{
    audit::Audit,
    bridge::Bridge,
    config::{Config, EngineKind},
    engine::podman::Podman,
    service::{ExecuteRequest, ExecuteResponse, Service, ServiceError},
    turn::{Observer, Stream},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};

use crate::sessions::real::Program;

mod builds;
mod bystanders;
mod data;
mod deaths;
mod denials;
mod environments;
pub(crate) mod escape;
mod liar;
mod lifecycle;
mod limits;
mod parallel;
mod rootless;

/// Long enough for a busy machine: what is awaited comes within a second or two.
const PATIENCE: Duration = Duration::from_mins(1);

/// The data directory of a server, and the service that its containers are asked of.
struct Field {
    data: TempDir,
    socket: PathBuf,
}

impl Field {
    /// On the service that the environment names.
    fn new() -> Self {
        Self::on(socket())
    }

    fn on(socket: PathBuf) -> Self {
        let data = tempfile::tempdir().unwrap();
        Self { data, socket }
    }

    fn config(&self) -> Config {
        let mut config = crate::sandbox::config();
        config.engine = EngineKind::Podman;
        config.containers.socket = Some(self.socket.clone());
        config.containers.ready = 0;
        if ignores_limits() {
            config.allow_degraded = vec!["cgroup".to_owned()];
        }
        self.data.path().clone_into(&mut config.data_dir);
        config
    }

    /// A server in this process.
    fn server(&self, change: impl FnOnce(&mut Config)) -> Arc<Service> {
        self.server_and_engine(change).0
    }

    /// With its engine, which can be asked how many containers wait.
    fn server_and_engine(&self, change: impl FnOnce(&mut Config)) -> (Arc<Service>, Podman) {
        let mut config = self.config();
        change(&mut config);
        let engine = Podman::new(&config);
        let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
        let audit = Audit::open(&self.data.path().join("audit")).unwrap();
        let service = Service::new(config, Arc::new(engine.clone()), bridge, audit);
        (service, engine)
    }

    /// The program's own variables, for a server in a process of its own that keeps so many
    /// containers ready.
    fn variables(&self, ready: usize) -> Vec<(&'static str, String)> {
        let degraded = if ignores_limits() { "cgroup" } else { "" };
        vec![
            ("MCP_FORGE_SECURITY_ALLOW_DEGRADED", degraded.to_owned()),
            ("MCP_FORGE_PODMAN_SOCKET", self.socket.display().to_string()),
            ("MCP_FORGE_EXECUTION_ENGINE", "podman".to_owned()),
            ("MCP_FORGE_CONTAINERS_READY", ready.to_string()),
            ("MCP_FORGE_EXECUTION_DEFAULT_CPU_QUOTA", "100000".to_owned()),
        ]
    }

    /// The label's value that names this data directory, once a server has made it.
    fn place(&self) -> Option<String> {
        std::fs::read_to_string(self.data.path().join("containers/place")).ok()
    }

    /// The names of this data directory's servers that have a lock file, living or dead.
    fn servers(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.data.path().join("containers")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .filter_map(|name| name.strip_suffix(".lock").map(str::to_owned))
            .collect()
    }

    /// Its containers, in any state, with how they are now.
    fn containers(&self) -> Vec<Seen> {
        self.try_containers().unwrap()
    }

    fn try_containers(&self) -> Result<Vec<Seen>, String> {
        self.place().map_or(Ok(Vec::new()), |place| {
            try_seen(&format!("label={PLACE}={place}"))
        })
    }

    /// Waits until it has none.
    async fn wait_empty(&self) {
        self.wait_empty_for(PATIENCE).await;
    }

    async fn wait_empty_for(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        loop {
            let left = self.containers();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left: {left:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until so many run, and there are no others: none that is just made or removed.
    async fn wait_running(&self, count: usize) -> Vec<Seen> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.containers();
            if found.len() == count && found.iter().all(|one| one.state == "running") {
                return found;
            }
            assert!(Instant::now() < deadline, "never {count}: {found:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        // Of a test that failed: nothing of it shall disturb another. A panic here would end all tests.
        for left in self.try_containers().unwrap_or_default() {
            remove(&left.id);
        }
    }
}

const PLACE: &str = "io.mcp-forge.place";
const SERVER: &str = "io.mcp-forge.server";

/// A container as the command line lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    id: String,
    state: String,
    server: String,
}

fn try_seen(filter: &str) -> Result<Vec<Seen>, String> {
    let arguments = ["ps", "--all", "--no-trunc", "--format", "json", "--filter"];
    let arguments: Vec<&str> = arguments.into_iter().chain([filter]).collect();
    let read = |output: &Output| serde_json::from_str(&said(output)?).ok();
    let listed: Vec<Value> = try_ask(&arguments, read)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = listed.iter().map(|one| Seen {
        id: text(&one["Id"]),
        state: text(&one["State"]),
        server: text(&one["Labels"][SERVER]),
    });
    Ok(all.collect())
}

/// A container in full; null if it is gone.
fn inspect(id: &str) -> Value {
    let read = |output: &Output| {
        let is_gone = String::from_utf8_lossy(&output.stderr).contains("no such");
        let told = said(output).or_else(|| is_gone.then(|| "[]".to_owned()));
        serde_json::from_str(&told?).ok()
    };
    let told: Value = try_ask(&["inspect", id], read).unwrap();
    told[0].clone()
}

/// Whether the service is an ordinary user's on a host that gives such a user no control groups. There
/// `rootless` is run in place of `limits`.
fn ignores_limits() -> bool {
    let is_version_2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    !rustix::process::geteuid().is_root() && !is_version_2
}

/// Sends a signal to a process that an inspection names.
fn signal(pid: &Value, signal: Signal) {
    let pid = i32::try_from(pid.as_i64().unwrap()).unwrap();
    assert!(pid > 1, "{pid}");
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Stops a container's first process: it no longer notices what happens to those that it serves.
fn stop(one: &Seen) {
    signal(&inspect(&one.id)["State"]["Pid"], Signal::STOP);
}

/// The service's socket.
fn socket() -> PathBuf {
    variable("MCP_FORGE_PODMAN_SOCKET").into()
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: these tests need a podman service that has the images. `cargo xtask test` starts \
             one; `--skip podman::` leaves them out"
        )
    })
}

#[expect(clippy::disallowed_methods, reason = "a test asks podman")]
fn podman_command(arguments: &[&str]) -> Command {
    let line = variable("FORGE_TEST_PODMAN");
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("FORGE_TEST_PODMAN is empty"));
    command.args(words).args(arguments).stdin(Stdio::null());
    command
}

/// What a command of podman says.
fn podman(arguments: &[&str]) -> String {
    try_ask(arguments, said).unwrap()
}

/// What is read of a command's answer, or how it failed to the last. It is asked until it can be read:
/// podman fails to list what is removed at the same time.
fn try_ask<T>(arguments: &[&str], read: impl Fn(&Output) -> Option<T>) -> Result<T, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = podman_command(arguments).output();
        let output = output.map_err(|error| error.to_string())?;
        if let Some(answer) = read(&output) {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            return Err(format!("podman {arguments:?}: {output:?}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn said(output: &Output) -> Option<String> {
    let text = || String::from_utf8(output.stdout.clone()).ok();
    output.status.success().then(text).flatten()
}

/// Removes a container, if it is there.
fn remove(id: &str) {
    let mut command = podman_command(&["rm", "--force", "--time", "0", id]);
    command.output().ok();
}

/// A service of a test's own, on the same storage.
struct OwnService {
    child: Child,
    directory: TempDir,
}

impl OwnService {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let child = Self::spawn(directory.path()).await;
        Self { child, directory }
    }

    async fn spawn(directory: &Path) -> Child {
        let socket = directory.join("s.sock");
        let address = format!("unix://{}", socket.display());
        let mut command = podman_command(&["system", "service", "--time", "0", &address]);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < deadline, "the service did not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        child
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("s.sock")
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    async fn start_again(&mut self) {
        self.child = Self::spawn(self.directory.path()).await;
    }
}

impl Drop for OwnService {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

struct Quiet;
impl Observer for Quiet {
    fn output(&mut self, _: Stream, _: &str) {}
}

struct FirstWord(Option<oneshot::Sender<()>>);
impl Observer for FirstWord {
    fn output(&mut self, _: Stream, _: &str) {
        if let Some(said) = self.0.take() {
            said.send(()).ok();
        }
    }
}

fn stateless(code: &str) -> ExecuteRequest {
    ExecuteRequest {
        code: code.to_owned(),
        ..ExecuteRequest::default()
    }
}

fn in_session(session: &str, code: &str) -> ExecuteRequest {
    ExecuteRequest {
        session_id: Some(session.to_owned()),
        ..stateless(code)
    }
}

async fn execute(service: &Service, request: ExecuteRequest) -> ExecuteResponse {
    let answer = service.execute(request, &mut Quiet).await;
    answer.unwrap()
}

async fn refused(service: &Service, request: ExecuteRequest) -> ServiceError {
    service.execute(request, &mut Quiet).await.unwrap_err()
}

/// Begins a turn, and waits until its code has said something.
async fn begin(
    service: &Arc<Service>,
    request: ExecuteRequest,
) -> JoinHandle<Result<ExecuteResponse, ServiceError>> {
    let (said, heard) = oneshot::channel();
    let service = Arc::clone(service);
    let turn = tokio::spawn(async move {
        let mut observer = FirstWord(Some(said));
        service.execute(request, &mut observer).await
    });
    heard.await.expect("it ended without a word");
    turn
}

/// A program on its standard input and output, whose containers are this data directory's.
fn start(field: &Field) -> Program {
    start_with(field, 1)
}

fn start_with(field: &Field, ready: usize) -> Program {
    let variables = field.variables(ready);
    let variables: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    Program::start_with(field.data.path(), &variables)
}

/// Says a word, then never ends.
const ENDLESS: &str = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(1)";

/// Answers until it does not fail any more: a service that was away is asked again after a pause.
async fn execute_once_back(service: &Service, request: ExecuteRequest) -> ExecuteResponse {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match service.execute(request.clone(), &mut Quiet).await {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < deadline, "never: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The rules of all denials in the audit log.
fn violations(service: &Service) -> Vec<Value> {
    let records = service.audit_operations().unwrap();
    let denials = records
        .iter()
        .filter(|record| record["event"] == "security.violation");
    denials.map(|record| record["rule"].clone()).collect()
}
