//! One zygote's keeper, and the sandboxes that it has forked, from the server's side.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jail::spec::{ForkSpec, JailSpec, KeeperRequest};
use tokio::{
    net::UnixStream,
    sync::{Mutex, Notify},
};

use crate::{
    config::Profile,
    engine::{
        Isolation, LaunchError, Purpose, Sandbox,
        native::{
            launch::{LifeLine, isolation, send, socket_pair},
            output_pipe::{OutputPipe, output_pipe},
        },
    },
};

use super::{Origin, guard::ForkGuard};

/// Forks of one zygote, at most: they share its address layout and its hash seed.
const MOST_FORKS: u64 = 10_000;

/// Age of a zygote, at most, for the same reason.
const OLDEST: Duration = Duration::from_mins(30);

/// One zygote's keeper. The last owner to let go ends it.
#[derive(Debug)]
pub(super) struct Zygote {
    line: Mutex<LifeLine>,
    forks: AtomicU64,
    born: Instant,
}

impl Zygote {
    /// Starts one, and waits until it can fork.
    ///
    /// # Errors
    ///
    /// [`LaunchError`]; nothing is left running.
    pub(super) async fn start(origin: &Origin, spec: &JailSpec) -> Result<Self, LaunchError> {
        let failed = |error: io::Error| LaunchError::Start(error.to_string());
        let environment = origin.environment.clone();
        let mut line = LifeLine::spawn(&origin.jail, &spec.id, environment).map_err(failed)?;
        // Pipes, as its forks will have: the interpreter's streams are made for what they find.
        let (stdout, _unread) = output_pipe().map_err(failed)?;
        let (stderr, _unread) = output_pipe().map_err(failed)?;
        let streams = [stdout.as_fd(), stdout.as_fd(), stderr.as_fd()];
        send(&mut line.socket, spec, &streams)
            .await
            .map_err(failed)?;
        isolation(line.entered().await?, origin.profile)?;
        Ok(Self {
            line: Mutex::new(line),
            forks: AtomicU64::new(0),
            born: Instant::now(),
        })
    }

    /// Whether it may fork once more.
    pub(super) fn is_fit(&self) -> bool {
        self.forks.load(Ordering::Relaxed) < MOST_FORKS && !self.is_old()
    }

    /// Whether nothing that it forked should be used any more.
    pub(super) fn is_old(&self) -> bool {
        self.born.elapsed() > OLDEST
    }

    /// Forks one sandbox. `ended` hears when its turn is over.
    ///
    /// # Errors
    ///
    /// [`LaunchError`]; nothing is left running.
    pub(super) async fn fork(
        self: &Arc<Self>,
        spec: &ForkSpec,
        profile: Profile,
        ended: &Arc<Notify>,
    ) -> Result<Fork, LaunchError> {
        let failed = |error: io::Error| LaunchError::Start(error.to_string());
        self.forks.fetch_add(1, Ordering::Relaxed);
        let (control, their_control) = socket_pair().map_err(failed)?;
        let (guard, their_guard) = socket_pair().map_err(failed)?;
        let (their_stdout, stdout) = output_pipe().map_err(failed)?;
        let (their_stderr, stderr) = output_pipe().map_err(failed)?;
        let theirs = [&their_guard, &their_control, &their_stdout, &their_stderr].map(AsFd::as_fd);
        let request = KeeperRequest::Fork(spec.clone());
        self.ask(&request, &theirs).await.map_err(failed)?;
        drop((their_guard, their_control, their_stdout, their_stderr));
        let mut line = LifeLine::of_fork(guard);
        let isolation = isolation(line.entered().await?, profile)?;
        Ok(Fork {
            id: spec.id.clone(),
            profile,
            line,
            zygote: Arc::clone(self),
            ended: Arc::clone(ended),
            streams: Streams {
                control,
                stdout,
                stderr,
            },
            isolation,
        })
    }

    /// Sends its keeper a request.
    pub(super) async fn ask(
        &self,
        request: &KeeperRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        send(&mut self.line.lock().await.socket, request, descriptors).await
    }
}

/// Our ends of a sandbox's streams.
pub(super) struct Streams {
    pub(super) control: UnixStream,
    pub(super) stdout: OutputPipe,
    pub(super) stderr: OutputPipe,
}

/// A sandbox that waits to be used.
pub(super) struct Fork {
    id: String,
    profile: Profile,
    line: LifeLine,
    zygote: Arc<Zygote>,
    ended: Arc<Notify>,
    streams: Streams,
    isolation: Isolation,
}

impl Fork {
    /// Whether it may still be used: it lives, and its zygote is not too old.
    pub(super) fn is_fit(&self) -> bool {
        !self.zygote.is_old() && self.line.is_silent()
    }

    /// Has its memory watched from now on.
    pub(super) fn begin_use(&self) {
        self.line.begin_use();
    }

    /// Gives it away, once. Only one for a session can be copied later.
    pub(super) fn used(self, purpose: &Purpose) -> Sandbox {
        self.line.begin_use();
        let control = match purpose {
            Purpose::Session => self.streams.control.as_fd().try_clone_to_owned().ok(),
            Purpose::Turn(_) => None,
        };
        let guard = ForkGuard {
            id: self.id,
            profile: self.profile,
            line: self.line,
            control,
            ended: self.ended,
            zygote: self.zygote,
        };
        guard.into_sandbox(self.streams, self.isolation)
    }
}
