//! An engine whose sandboxes are scripts in this process, at the far end of a real byte stream.

use std::{path::Path, pin::Pin, sync::Arc, time::Duration};

use mcp_forge::{
    audit::Audit,
    bridge::Bridge,
    config::{Config, Sources},
    engine::{
        Branch, BranchError, Ending, Engine, ExitCause, Guard, Isolation, LaunchError, Layer,
        LayerState, LimitReport, Probe, Sandbox, SandboxSpec, Usage,
    },
    runner::wire::{Done, Event, Request},
    service::Service,
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};

type Script = dyn Fn(Runner) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// Starts scripted sandboxes and counts those that live.
pub(crate) struct FakeEngine {
    script: Box<Script>,
    cause: ExitCause,
    refuse: bool,
    launched: watch::Sender<usize>,
    alive: Arc<watch::Sender<usize>>,
}

impl std::fmt::Debug for FakeEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeEngine").finish_non_exhaustive()
    }
}

impl FakeEngine {
    pub(crate) fn new<F>(script: impl Fn(Runner) -> F + Send + Sync + 'static) -> Arc<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::ending(ExitCause::Killed, script)
    }

    /// As [`Self::new`], and the kernel says that a sandbox ended for this cause.
    pub(crate) fn ending<F>(
        cause: ExitCause,
        script: impl Fn(Runner) -> F + Send + Sync + 'static,
    ) -> Arc<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Arc::new(Self {
            script: Box::new(move |runner| Box::pin(script(runner))),
            cause,
            refuse: false,
            launched: watch::Sender::new(0),
            alive: Arc::new(watch::Sender::new(0)),
        })
    }

    /// An engine that can start nothing here.
    pub(crate) fn refusing() -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(|_| Box::pin(async {})),
            cause: ExitCause::Killed,
            refuse: true,
            launched: watch::Sender::new(0),
            alive: Arc::new(watch::Sender::new(0)),
        })
    }

    pub(crate) fn launches(&self) -> usize {
        *self.launched.borrow()
    }

    /// Waits until so many were launched.
    pub(crate) async fn wait_launched(&self, count: usize) {
        self.launched
            .subscribe()
            .wait_for(|launched| *launched >= count)
            .await
            .unwrap();
    }

    /// Waits until none lives.
    pub(crate) async fn wait_all_gone(&self) {
        self.alive
            .subscribe()
            .wait_for(|alive| *alive == 0)
            .await
            .unwrap();
    }
}

#[async_trait::async_trait]
impl Engine for FakeEngine {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn probe(&self) -> Probe {
        Probe {
            engine: "fake".to_owned(),
            usable: true,
            layers: vec![],
            limits: vec![],
            notes: vec![],
        }
    }

    async fn launch(&self, _: &SandboxSpec) -> Result<Sandbox, LaunchError> {
        if self.refuse {
            return Err(LaunchError::Start(
                "the fake engine starts nothing".to_owned(),
            ));
        }
        let (mut runner, ours) = pair();
        runner
            .send(&Event::Ready {
                python: "3.11.7".to_owned(),
            })
            .await;
        let task = tokio::spawn((self.script)(runner));
        self.alive.send_modify(|alive| *alive += 1);
        self.launched.send_modify(|launched| *launched += 1);
        Ok(ours.sandbox(task, self.cause.clone(), Arc::clone(&self.alive)))
    }
}

/// The server's ends of a sandbox.
struct Ends {
    streams: [DuplexStream; 3],
    interrupt: Arc<Notify>,
    branches: mpsc::UnboundedSender<Runner>,
}

fn pair() -> (Runner, Ends) {
    let (connection, theirs) = tokio::io::duplex(1 << 16);
    let (stdout, their_stdout) = tokio::io::duplex(1 << 16);
    let (stderr, their_stderr) = tokio::io::duplex(1 << 16);
    let interrupt = Arc::new(Notify::new());
    let (sender, branches) = mpsc::unbounded_channel();
    let runner = Runner {
        connection: theirs,
        stdout: their_stdout,
        stderr: their_stderr,
        interrupt: Arc::clone(&interrupt),
        branches,
    };
    let ends = Ends {
        streams: [connection, stdout, stderr],
        interrupt,
        branches: sender,
    };
    (runner, ends)
}

impl Ends {
    fn sandbox(
        self,
        task: JoinHandle<()>,
        cause: ExitCause,
        alive: Arc<watch::Sender<usize>>,
    ) -> Sandbox {
        let [connection, stdout, stderr] = self.streams;
        Sandbox {
            connection: Box::new(connection),
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
            guard: Box::new(FakeGuard {
                task,
                interrupt: self.interrupt,
                branches: self.branches,
                cause,
                alive,
            }),
            isolation: isolation(),
        }
    }
}

struct FakeGuard {
    task: JoinHandle<()>,
    interrupt: Arc<Notify>,
    branches: mpsc::UnboundedSender<Runner>,
    cause: ExitCause,
    alive: Arc<watch::Sender<usize>>,
}

#[async_trait::async_trait]
impl Guard for FakeGuard {
    async fn interrupt(&mut self) {
        self.interrupt.notify_one();
    }

    fn usage(&self) -> Usage {
        Usage {
            cpu_ms: Some(12),
            memory_peak_bytes: Some(9 << 20),
        }
    }

    /// As an engine passes descriptors: the script gets the ends of its copy, and answers itself.
    async fn branch(
        &mut self,
        _: &SandboxSpec,
        request: &[u8],
    ) -> Result<Box<dyn Branch>, BranchError> {
        assert_eq!(request, b"\0\0\0\x11{\"type\":\"branch\"}");
        let (runner, ends) = pair();
        self.branches
            .send(runner)
            .map_err(|_| BranchError::Unsupported)?;
        Ok(Box::new(FakeBranch {
            ends,
            cause: self.cause.clone(),
            alive: Arc::clone(&self.alive),
        }))
    }

    async fn end(self: Box<Self>, _: Duration) -> Ending {
        Ending {
            cause: self.cause.clone(),
            usage: self.usage(),
        }
    }
}

struct FakeBranch {
    ends: Ends,
    cause: ExitCause,
    alive: Arc<watch::Sender<usize>>,
}

#[async_trait::async_trait]
impl Branch for FakeBranch {
    async fn confirm(self: Box<Self>, _: i32) -> Result<Sandbox, BranchError> {
        self.alive.send_modify(|alive| *alive += 1);
        // The copy is a task of the script's own; it ends with its connection.
        let task = tokio::spawn(async {});
        Ok(self.ends.sandbox(task, self.cause, self.alive))
    }
}

impl Drop for FakeGuard {
    fn drop(&mut self) {
        self.task.abort();
        self.alive.send_modify(|alive| *alive -= 1);
    }
}

fn isolation() -> Isolation {
    Isolation {
        engine: "fake".to_owned(),
        profile: "desktop".to_owned(),
        layers: vec![Layer {
            name: "seccomp".to_owned(),
            state: LayerState::Enforced,
            detail: "scripted".to_owned(),
        }],
        limits: vec![LimitReport {
            name: "memory".to_owned(),
            state: LayerState::BestEffort,
            detail: "none".to_owned(),
        }],
    }
}

/// The far end of a sandbox's streams: what the Python side would hold.
pub(crate) struct Runner {
    pub(crate) connection: DuplexStream,
    pub(crate) stdout: DuplexStream,
    pub(crate) stderr: DuplexStream,
    /// Told when the sandbox is interrupted.
    pub(crate) interrupt: Arc<Notify>,
    /// The ends of copies to be made.
    pub(crate) branches: mpsc::UnboundedReceiver<Self>,
}

impl Runner {
    pub(crate) async fn code(&mut self) -> String {
        match self.receive().await {
            Request::Execute { code, .. } => code,
            other => panic!("expected code, got {other:?}"),
        }
    }

    pub(crate) async fn receive(&mut self) -> Request {
        receive(&mut self.connection).await
    }

    /// The next request, or the ends of a copy that is to be made. Nothing else is on its way then.
    pub(crate) async fn receive_or_branch(&mut self) -> Result<Request, Box<Self>> {
        tokio::select! {
            request = receive(&mut self.connection) => Ok(request),
            Some(copy) = self.branches.recv() => Err(Box::new(copy)),
        }
    }

    pub(crate) async fn send(&mut self, event: &Event) {
        let frame = serde_json::to_vec(event).unwrap();
        self.connection
            .write_u32(u32::try_from(frame.len()).unwrap())
            .await
            .unwrap();
        self.connection.write_all(&frame).await.unwrap();
    }

    pub(crate) async fn print(&mut self, text: &str) {
        self.stdout.write_all(text.as_bytes()).await.unwrap();
    }

    pub(crate) async fn done(mut self, done: Done) {
        self.send(&Event::Done(done)).await;
    }

    pub(crate) async fn returns(self, result: Value) {
        let result_repr = (!result.is_null()).then(|| result.to_string());
        self.done(Done {
            result,
            result_repr,
            ..Done::default()
        })
        .await;
    }
}

async fn receive(connection: &mut DuplexStream) -> Request {
    let length = connection.read_u32().await.unwrap();
    let mut frame = vec![0; length as usize];
    connection.read_exact(&mut frame).await.unwrap();
    serde_json::from_slice(&frame).unwrap()
}

/// A service on a fake engine, without upstreams, with its audit log in `directory`.
pub(crate) fn service(
    engine: Arc<FakeEngine>,
    directory: &Path,
    change: impl FnOnce(&mut Config),
) -> Arc<Service> {
    let sources = Sources {
        data_dir: Some(directory.to_owned()),
        ..Sources::default()
    };
    let mut config = Config::load(&sources).unwrap().config;
    config.max_concurrent = 2;
    change(&mut config);
    let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
    Service::new(
        config,
        engine,
        bridge,
        Audit::open(&directory.join("audit")).unwrap(),
    )
}

/// Waits for ever: the script of code that hangs.
pub(crate) async fn hang(mut runner: Runner) {
    runner.code().await;
    std::future::pending::<()>().await;
}

/// Returns its own source.
pub(crate) async fn echo(mut runner: Runner) {
    let code = runner.code().await;
    runner.returns(Value::String(code)).await;
}
