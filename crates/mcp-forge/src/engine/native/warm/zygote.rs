//! One zygote's keeper, and the sandboxes that it has forked, from the server's side.

use std::{
    io,
    os::fd::AsFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jail::spec::{ForkSpec, JailSpec};
use tokio::sync::{Mutex, Notify};

use crate::{
    config::Profile,
    engine::{
        Ending, Guard, LaunchError, Sandbox, Usage,
        native::{
            launch::{LifeLine, isolation, send, socket_pair},
            output_pipe::output_pipe,
        },
    },
};

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
    pub(super) async fn start(
        jail: &Path,
        spec: &JailSpec,
        profile: Profile,
    ) -> Result<Self, LaunchError> {
        let failed = |error: io::Error| LaunchError::Start(error.to_string());
        let mut line = LifeLine::spawn(jail, &spec.id).map_err(failed)?;
        // Pipes, as its forks will have: the interpreter's streams are made for what they find.
        let (stdout, _unread) = output_pipe().map_err(failed)?;
        let (stderr, _unread) = output_pipe().map_err(failed)?;
        let streams = [stdout.as_fd(), stdout.as_fd(), stderr.as_fd()];
        send(&mut line.socket, spec, &streams)
            .await
            .map_err(failed)?;
        isolation(line.entered().await?, profile)?;
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
        send(&mut self.line.lock().await.socket, spec, &theirs)
            .await
            .map_err(failed)?;
        drop((their_guard, their_control, their_stdout, their_stderr));
        let mut line = LifeLine::of_fork(guard);
        let isolation = isolation(line.entered().await?, profile)?;
        Ok(Fork {
            line,
            zygote: Arc::clone(self),
            ended: Arc::clone(ended),
            sandbox: Parts {
                connection: Box::new(control),
                stdout: Box::new(stdout),
                stderr: Box::new(stderr),
                isolation,
            },
        })
    }
}

/// A sandbox without its guard.
struct Parts {
    connection: Box<dyn crate::engine::Duplex>,
    stdout: Box<dyn tokio::io::AsyncRead + Send + Unpin>,
    stderr: Box<dyn tokio::io::AsyncRead + Send + Unpin>,
    isolation: crate::engine::Isolation,
}

/// A sandbox that waits to be used.
pub(super) struct Fork {
    line: LifeLine,
    zygote: Arc<Zygote>,
    ended: Arc<Notify>,
    sandbox: Parts,
}

impl Fork {
    /// Whether it may still be used: it lives, and its zygote is not too old.
    pub(super) fn is_fit(&self) -> bool {
        !self.zygote.is_old() && self.line.is_silent()
    }

    /// Gives it away, once.
    pub(super) fn used(self) -> Sandbox {
        self.line.begin_use();
        let Parts {
            connection,
            stdout,
            stderr,
            isolation,
        } = self.sandbox;
        Sandbox {
            connection,
            stdout,
            stderr,
            isolation,
            guard: Box::new(ForkGuard {
                line: self.line,
                ended: self.ended,
                _zygote: self.zygote,
            }),
        }
    }
}

/// A fork's life line, and a share in the zygote: one that was replaced lives until its last fork
/// has ended, since its pid namespace holds them all.
#[derive(Debug)]
struct ForkGuard {
    line: LifeLine,
    ended: Arc<Notify>,
    _zygote: Arc<Zygote>,
}

#[async_trait::async_trait]
impl Guard for ForkGuard {
    async fn interrupt(&mut self) {
        self.line.interrupt().await;
    }

    fn usage(&self) -> Usage {
        self.line.usage()
    }

    async fn end(self: Box<Self>, patience: Duration) -> Ending {
        let ending = Box::new(self.line).end(patience).await;
        self.ended.notify_one();
        ending
    }
}
