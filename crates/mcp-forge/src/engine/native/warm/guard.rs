//! The guard of a fork, and how its interpreter is copied into the same sandbox.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use jail::{
    meter::OpenMeter,
    spec::{CopySpec, JailLimits, KeeperRequest},
};
use tokio::sync::Notify;

use super::zygote::{Streams, Zygote};
use crate::{
    config::Profile,
    engine::{
        Branch, BranchError, Ending, Guard, Isolation, Sandbox, SandboxSpec, Usage,
        native::{
            launch::{LifeLine, isolation, send_with, socket_pair},
            output_pipe::output_pipe,
            render,
        },
    },
};

/// A fork's life line, and a share in the zygote: one that was replaced lives until its last fork
/// has ended, since its pid namespace holds them all.
#[derive(Debug)]
pub(super) struct ForkGuard {
    /// What the keeper calls it.
    pub(super) id: String,
    pub(super) profile: Profile,
    pub(super) line: LifeLine,
    /// The sandbox's connection once more, if its interpreter may be copied.
    pub(super) control: Option<OwnedFd>,
    pub(super) ended: Arc<Notify>,
    pub(super) zygote: Arc<Zygote>,
}

impl ForkGuard {
    /// The sandbox that it guards.
    pub(super) fn into_sandbox(self, streams: Streams, isolation: Isolation) -> Sandbox {
        Sandbox {
            connection: Box::new(streams.control),
            stdout: Box::new(streams.stdout),
            stderr: Box::new(streams.stderr),
            guard: Box::new(self),
            isolation,
        }
    }
}

#[async_trait::async_trait]
impl Guard for ForkGuard {
    async fn interrupt(&mut self) {
        self.line.interrupt().await;
    }

    fn usage(&self) -> Usage {
        self.line.usage()
    }

    fn meter(&self) -> Option<Arc<OpenMeter>> {
        self.line.meter()
    }

    async fn branch(
        &mut self,
        spec: &SandboxSpec,
        request: &[u8],
    ) -> Result<Box<dyn Branch>, BranchError> {
        let own = self.control.as_ref().ok_or(BranchError::Unsupported)?;
        let (control, their_control) = socket_pair().map_err(failed)?;
        let (their_stdout, stdout) = output_pipe().map_err(failed)?;
        let (their_stderr, stderr) = output_pipe().map_err(failed)?;
        let theirs = [&their_control, &their_stdout, &their_stderr].map(AsFd::as_fd);
        let limits = render::jail_limits(&spec.limits);
        let expect = KeeperRequest::Expect {
            of: self.id.clone(),
            limits,
        };
        self.zygote.ask(&expect, &[]).await.map_err(failed)?;
        send_with(own.as_fd(), request, &theirs).map_err(failed)?;
        self.line.narrow_meter();
        Ok(Box::new(Copy {
            id: spec.id.clone(),
            of: self.id.clone(),
            limits,
            profile: self.profile,
            streams: Streams {
                control,
                stdout,
                stderr,
            },
            ended: Arc::clone(&self.ended),
            zygote: Arc::clone(&self.zygote),
        }))
    }

    async fn end(self: Box<Self>, patience: Duration) -> Ending {
        // Only the connection itself keeps the interpreter.
        drop(self.control);
        let ending = Box::new(self.line).end(patience).await;
        self.ended.notify_one();
        ending
    }
}

/// A copy that is being made.
struct Copy {
    id: String,
    of: String,
    limits: JailLimits,
    profile: Profile,
    streams: Streams,
    ended: Arc<Notify>,
    zygote: Arc<Zygote>,
}

#[async_trait::async_trait]
impl Branch for Copy {
    async fn confirm(self: Box<Self>, pid: i32) -> Result<Sandbox, BranchError> {
        let (guard, their_guard) = socket_pair().map_err(failed)?;
        let request = KeeperRequest::Adopt(CopySpec {
            id: self.id.clone(),
            of: self.of,
            pid,
            limits: self.limits,
        });
        let asked = self.zygote.ask(&request, &[their_guard.as_fd()]).await;
        asked.map_err(failed)?;
        drop(their_guard);
        let mut line = LifeLine::of_fork(guard);
        let entered = line.entered().await;
        let isolation = entered.and_then(|report| isolation(report, self.profile));
        let isolation = isolation.map_err(|error| BranchError::Failed(error.to_string()))?;
        let guard = ForkGuard {
            id: self.id,
            profile: self.profile,
            line,
            control: Some(
                self.streams
                    .control
                    .as_fd()
                    .try_clone_to_owned()
                    .map_err(failed)?,
            ),
            ended: self.ended,
            zygote: self.zygote,
        };
        Ok(guard.into_sandbox(self.streams, isolation))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: io::Error) -> BranchError {
    BranchError::Failed(error.to_string())
}
