//! The launch socket, from the server's side: spec and descriptors out, reports in.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use jail::{
    launch::{INTERRUPT, MAX_REPORT_BYTES, USED, frame},
    meter::OpenMeter,
    spec::{Cause, JailSpec, Report, State},
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::output_pipe::{OutputPipe, output_pipe};
use crate::{
    config::Profile,
    engine::{
        Branch, BranchError, Ending, Environment, ExitCause, Guard, Isolation, LaunchError, Layer,
        LayerState, LimitReport, Sandbox, SandboxSpec, Usage,
    },
};

/// Time for the layers to be built. Normal is 10 to 30 ms.
const ENTER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for a killed sandbox to be gone. Normal is under 100 ms, fork bombs included.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a keeper, hands it the spec, and waits until the sandbox is sealed.
pub(super) async fn launch(
    jail: &Path,
    spec: &JailSpec,
    profile: Profile,
    environment: Option<Arc<Environment>>,
) -> Result<Sandbox, LaunchError> {
    let failed = |error: io::Error| LaunchError::Start(error.to_string());
    let (control, their_control) = socket_pair().map_err(failed)?;
    let (their_stdout, stdout) = output_pipe().map_err(failed)?;
    let (their_stderr, stderr) = output_pipe().map_err(failed)?;
    let mut keeper = LifeLine::spawn(jail, &spec.id, environment).map_err(failed)?;
    let theirs = [&their_control, &their_stdout, &their_stderr].map(AsFd::as_fd);
    send(&mut keeper.socket, spec, &theirs)
        .await
        .map_err(failed)?;
    drop((their_control, their_stdout, their_stderr));
    let isolation = isolation(keeper.entered().await?, profile)?;
    Ok(Sandbox {
        connection: Box::new(control),
        stdout: Box::new(stdout),
        stderr: Box::new(stderr),
        guard: Box::new(keeper),
        isolation,
    })
}

/// A launched build job: what it has beside a sandbox's streams.
pub(super) struct LaunchedJob {
    pub(super) stdout: OutputPipe,
    pub(super) stderr: OutputPipe,
    pub(super) keeper: LifeLine,
    /// Listens in the job's own network.
    pub(super) listener: OwnedFd,
    pub(super) isolation: Isolation,
}

/// As [`launch`], for a build job: its report brings a listener. Its control socket has no other end.
pub(super) async fn launch_job(
    jail: &Path,
    spec: &JailSpec,
    profile: Profile,
) -> Result<LaunchedJob, LaunchError> {
    let failed = |error: io::Error| LaunchError::Start(error.to_string());
    let (_, their_control) = socket_pair().map_err(failed)?;
    let (their_stdout, stdout) = output_pipe().map_err(failed)?;
    let (their_stderr, stderr) = output_pipe().map_err(failed)?;
    let mut keeper = LifeLine::spawn(jail, &spec.id, None).map_err(failed)?;
    let theirs = [&their_control, &their_stdout, &their_stderr].map(AsFd::as_fd);
    send(&mut keeper.socket, spec, &theirs)
        .await
        .map_err(failed)?;
    drop((their_control, their_stdout, their_stderr));
    let (report, listener) = keeper.entered_with_descriptor().await?;
    let isolation = isolation(report, profile)?;
    let listener =
        listener.ok_or_else(|| LaunchError::Start("it brought no listener".to_owned()))?;
    Ok(LaunchedJob {
        stdout,
        stderr,
        keeper,
        listener,
        isolation,
    })
}

/// Sends one message to a keeper, the descriptors with its first bytes.
pub(super) async fn send(
    socket: &mut UnixStream,
    message: &impl serde::Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let message = frame(message)?;
    let (head, rest) = message.split_at(4);
    send_with(socket.as_fd(), head, descriptors)?;
    socket.write_all(rest).await
}

/// Sends bytes and at most four descriptors, if there is room for all of them now.
pub(super) fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(descriptors));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::WriteZero))
    }
}

/// A connected pair of sockets: one for us, one that blocks, as the other side expects.
pub(super) fn socket_pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = theirs.into_std()?;
    theirs.set_nonblocking(false)?;
    Ok((ours, theirs.into()))
}

/// The layers and limits, or the refusal, in the engine's words.
pub(super) fn isolation(report: Report, profile: Profile) -> Result<Isolation, LaunchError> {
    let profile = profile.name();
    match report {
        Report::Entered { layers, limits, .. } => Ok(Isolation {
            engine: "native".to_owned(),
            profile: profile.to_owned(),
            layers: layers
                .into_iter()
                .map(|layer| Layer {
                    name: layer.layer.name().to_owned(),
                    state: state(layer.state),
                    detail: layer.detail,
                })
                .collect(),
            limits: limits
                .into_iter()
                .map(|limit| LimitReport {
                    name: limit.name,
                    state: state(limit.state),
                    detail: limit.detail,
                })
                .collect(),
        }),
        Report::Refused { layer, reason, fix } => Err(LaunchError::LayerMissing {
            layer: layer.name().to_owned(),
            profile: profile.to_owned(),
            reason,
            fix,
        }),
        Report::Failed { message } => Err(LaunchError::Start(message)),
        Report::Exited { .. } => Err(LaunchError::Start("it ended before it began".to_owned())),
    }
}

const fn state(state: State) -> LayerState {
    match state {
        State::Enforced => LayerState::Enforced,
        State::BestEffort => LayerState::BestEffort,
        State::Missing => LayerState::Missing,
    }
}

/// The layer that a refusal is about, for `doctor`.
pub(super) fn refused_layer(error: &LaunchError) -> Option<Layer> {
    match error {
        LaunchError::LayerMissing {
            layer, reason, fix, ..
        } => Some(Layer {
            name: layer.clone(),
            state: LayerState::Missing,
            detail: format!("{reason}. {fix}"),
        }),
        LaunchError::Forbidden(_)
        | LaunchError::Unreachable(_)
        | LaunchError::Python(_)
        | LaunchError::Start(_) => None,
    }
}

/// The server's end of a sandbox's life line: reports come in, and when it closes, however, the
/// keeper kills the sandbox and cleans up.
#[derive(Debug)]
pub(super) struct LifeLine {
    pub(super) socket: UnixStream,
    /// The process `mcp-forge jail`, where it keeps this one sandbox; tokio reaps it. A zygote's
    /// keeper outlives its forks.
    process: Option<tokio::process::Child>,
    /// Known once the sandbox is sealed.
    meter: Option<Arc<OpenMeter>>,
    /// A share in the packages that are seen inside.
    _environment: Option<Arc<Environment>>,
}

impl LifeLine {
    /// Of a fork: the keeper has the other end.
    pub(super) fn of_fork(socket: UnixStream) -> Self {
        Self {
            socket,
            process: None,
            meter: None,
            // Its zygote has one, and outlives it.
            _environment: None,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the engine starts its sandboxes")]
    pub(super) fn spawn(
        jail: &Path,
        id: &str,
        environment: Option<Arc<Environment>>,
    ) -> io::Result<Self> {
        let (socket, theirs) = socket_pair()?;
        let mut command = tokio::process::Command::new(jail);
        command
            // The name is for whoever reads a list of processes.
            .args(["jail", id])
            .env_clear()
            // A Ctrl-C is for the server: the keeper must live to clean up.
            .process_group(0)
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // A test build's way to leave a layer out; a release does not read it.
        #[cfg(feature = "negative-controls")]
        command.envs(std::env::vars_os().filter(|(name, _)| name == "MCP_FORGE_OMIT_LAYERS"));
        Ok(Self {
            process: Some(command.spawn()?),
            socket,
            meter: None,
            _environment: environment,
        })
    }

    /// Waits for the next report. Descriptors that came with it are closed by the kernel: nobody asked.
    ///
    /// # Cancel safety
    ///
    /// None: a report that was begun is lost, and what is read next is the rest of it.
    pub(super) async fn report(&mut self) -> io::Result<Report> {
        read_report(&mut self.socket).await
    }

    /// Waits for the word that the sandbox is sealed, or was refused.
    pub(super) async fn entered(&mut self) -> Result<Report, LaunchError> {
        let report = in_time(self.report()).await?;
        self.open_meter(&report);
        Ok(report)
    }

    /// The same, with the descriptor that came with it.
    async fn entered_with_descriptor(&mut self) -> Result<(Report, Option<OwnedFd>), LaunchError> {
        let answer = in_time(async {
            let (length, descriptor) = first_with_descriptor(&self.socket).await?;
            Ok((read_body(&mut self.socket, length).await?, descriptor))
        });
        let (report, descriptor) = answer.await?;
        self.open_meter(&report);
        Ok((report, descriptor))
    }

    fn open_meter(&mut self, report: &Report) {
        if let Report::Entered { meter, .. } = report {
            self.meter = meter.as_ref().map(|meter| Arc::new(meter.open()));
        }
    }

    /// Another handle of the socket, to end the sandbox while somebody waits for its last report.
    pub(super) fn stopper(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Whether it has said nothing since it was sealed: it lives, and waits.
    pub(super) fn is_silent(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(&self.socket, &mut [0], flags) == Err(rustix::io::Errno::AGAIN)
    }

    /// Tells the keeper of a sandbox that was made ahead that code will run in it, where memory
    /// must be watched from then on.
    pub(super) fn begin_use(&self) {
        if self.meter.as_ref().is_some_and(|meter| !meter.is_counted()) {
            // It cannot be full, and a keeper that is gone has killed it already.
            rustix::net::send(
                &self.socket,
                &[USED],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            )
            .ok();
        }
    }

    /// Counts the first interpreter of the sandbox alone: there is a copy of it.
    pub(super) fn narrow_meter(&self) {
        if let Some(meter) = &self.meter {
            meter.narrow();
        }
    }

    async fn end_within(&mut self, patience: Duration) -> io::Result<Report> {
        let (mut incoming, mut outgoing) = self.socket.split();
        // One and the same: it may have been begun when the patience is over.
        let mut report = std::pin::pin!(read_report(&mut incoming));
        let report = if let Ok(report) = tokio::time::timeout(patience, &mut report).await {
            report?
        } else {
            // Fails when the keeper has already said its last word; that is read next either way.
            outgoing.shutdown().await.ok();
            report.await?
        };
        if let Some(process) = &mut self.process {
            process.wait().await?;
        }
        Ok(report)
    }
}

#[async_trait::async_trait]
impl Guard for LifeLine {
    async fn interrupt(&mut self) {
        // A keeper that is gone has killed it already.
        self.socket.write_all(&[INTERRUPT]).await.ok();
    }

    fn usage(&self) -> Usage {
        self.meter
            .as_ref()
            .map_or_else(Usage::default, |meter| Usage {
                cpu_ms: meter.cpu_ms(),
                memory_peak_bytes: meter.memory_peak(),
            })
    }

    fn meter(&self) -> Option<Arc<OpenMeter>> {
        self.meter.clone()
    }

    async fn branch(&mut self, _: &SandboxSpec, _: &[u8]) -> Result<Box<dyn Branch>, BranchError> {
        Err(BranchError::Cold)
    }

    async fn end(mut self: Box<Self>, patience: Duration) -> Ending {
        let lost = |reason: String| Ending {
            cause: ExitCause::Lost(reason),
            usage: Usage::default(),
        };
        match tokio::time::timeout(patience + KILL_TIMEOUT, self.end_within(patience)).await {
            Ok(Ok(Report::Exited {
                cause,
                cpu_ms,
                memory_peak_bytes,
            })) => Ending {
                cause: exit_cause(cause),
                usage: Usage {
                    cpu_ms: Some(cpu_ms),
                    memory_peak_bytes,
                },
            },
            Ok(Ok(Report::Failed { message })) => lost(message),
            Ok(Ok(other)) => lost(format!("unexpected report {other:?}")),
            Ok(Err(error)) => lost(format!("its keeper is gone: {error}")),
            // The keeper goes on killing: without it nobody would.
            Err(_) => lost(format!("it was not gone in {} s", KILL_TIMEOUT.as_secs())),
        }
    }
}

async fn read_report(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<Report> {
    let length = socket.read_u32().await?;
    read_body(socket, length).await
}

async fn read_body(socket: &mut (impl AsyncRead + Unpin), length: u32) -> io::Result<Report> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_REPORT_BYTES {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

async fn in_time<T>(report: impl Future<Output = io::Result<T>>) -> Result<T, LaunchError> {
    tokio::time::timeout(ENTER_TIMEOUT, report)
        .await
        .map_err(|_| {
            LaunchError::Start(format!("it was not built in {} s", ENTER_TIMEOUT.as_secs()))
        })?
        .map_err(|error| LaunchError::Start(error.to_string()))
}

/// The first four bytes of a report, and the one descriptor that may come with them.
async fn first_with_descriptor(socket: &UnixStream) -> io::Result<(u32, Option<OwnedFd>)> {
    let mut bytes = [0; 4];
    let mut descriptor = None;
    let received = socket
        .async_io(tokio::io::Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let slices = &mut [IoSliceMut::new(&mut bytes)];
            let received = rustix::net::recvmsg(socket, slices, &mut control, flags)?;
            descriptor = control
                .drain()
                .filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                    _ => None,
                })
                .flatten()
                .next();
            Ok(received.bytes)
        })
        .await?;
    // The keeper sends the header whole.
    if received < bytes.len() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    Ok((u32::from_be_bytes(bytes), descriptor))
}

const fn exit_cause(cause: Cause) -> ExitCause {
    match cause {
        Cause::Killed => ExitCause::Killed,
        Cause::Exited { status } => ExitCause::Exited(status),
        Cause::Signaled { signal } => ExitCause::Signaled(signal),
        Cause::OutOfMemory => ExitCause::OutOfMemory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The patience of a turn that was answered is none, and the keeper's last word comes in pieces.
    #[tokio::test]
    async fn a_report_that_was_begun_when_the_patience_was_over_is_read_to_its_end() {
        let report = Report::Exited {
            cause: Cause::Exited { status: 7 },
            cpu_ms: 5,
            memory_peak_bytes: None,
        };
        let body = serde_json::to_vec(&report).unwrap();
        let mut whole = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
        whole.extend(body);
        for begun in 1..whole.len() {
            let (ours, mut keeper) = UnixStream::pair().unwrap();
            keeper.write_all(&whole[..begun]).await.unwrap();
            let line = Box::new(LifeLine::of_fork(ours));
            let rest = async {
                // The patience is over when the server says so.
                assert_eq!(keeper.read(&mut [0]).await.unwrap(), 0);
                keeper.write_all(&whole[begun..]).await.unwrap();
            };
            let (ending, ()) = tokio::join!(line.end(Duration::from_millis(1)), rest);
            assert_eq!(
                ending.cause,
                ExitCause::Exited(7),
                "{begun} bytes were there"
            );
        }
    }
}
