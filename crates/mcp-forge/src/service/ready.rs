//! Whether the application can do its work now.

use std::{io, path::Path, sync::Arc, time::Duration};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use tokio::{
    sync::{Mutex, Semaphore},
    time::{Instant, timeout},
};

use super::Service;
use crate::bridge::UpstreamState;

/// Free space that the data directory must have, in bytes.
const MIN_FREE_BYTES: u64 = 64 << 20;

/// How long it is believed what the engine said of itself: asking is work.
const BELIEVED: Duration = Duration::from_secs(30);

/// The same where it said that it cannot.
const DOUBTED: Duration = Duration::from_secs(5);

/// How long a disk may take for a byte.
const DISK_PATIENCE: Duration = Duration::from_secs(2);

/// What is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a check of its own")]
pub struct Readiness {
    /// Sandboxes can be started under the profile.
    pub engine: bool,
    /// The store answers.
    pub store: bool,
    /// There is room for data, and it can be written.
    pub disk: bool,
    /// No upstream has failed.
    pub upstreams: bool,
}

impl Readiness {
    /// Whether code can be run. That needs no upstream.
    pub fn is_ready(&self) -> bool {
        self.engine && self.store && self.disk
    }
}

/// What the engine last said of itself, and when.
#[derive(Debug, Default)]
pub(super) struct LastProbe(Mutex<Option<(Instant, bool)>>);

/// One look at the disk: another that comes while it stands still would wait as long.
#[derive(Debug)]
pub(super) struct DiskProbe(Arc<Semaphore>);

impl Default for DiskProbe {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl DiskProbe {
    /// Whether something new can be written in this directory.
    async fn can_write(&self, directory: &Path) -> bool {
        let directory = directory.to_owned();
        let looked = async {
            let sole = Arc::clone(&self.0).acquire_owned().await;
            let written = tokio::task::spawn_blocking(move || {
                let _sole = sole;
                write_somewhere(&directory)
            });
            matches!(written.await, Ok(Ok(())))
        };
        timeout(DISK_PATIENCE, looked).await.unwrap_or(false)
    }
}

/// Writes a file that never has a name, so that nothing is left of it.
fn write_somewhere(directory: &Path) -> io::Result<()> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(directory, flags, Mode::from_raw_mode(0o600)) {
        // A file system that has no such files says nothing of those that it has.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => return Ok(()),
        opened => opened?,
    };
    rustix::io::write(file, b"1")?;
    Ok(())
}

impl Service {
    /// Looks whether the application can do its work now.
    pub async fn readiness(&self) -> Readiness {
        let upstreams = self.bridge.known().upstreams;
        Readiness {
            engine: self.engine_is_usable().await,
            store: self.sessions.store_answers().await,
            disk: self.has_room() && self.disk_probe.can_write(&self.config.data_dir).await,
            upstreams: upstreams
                .iter()
                .all(|upstream| upstream.state != UpstreamState::Failed),
        }
    }

    async fn engine_is_usable(&self) -> bool {
        let mut last = self.last_probe.0.lock().await;
        if let Some((asked, usable)) = *last
            && asked.elapsed() < if usable { BELIEVED } else { DOUBTED }
        {
            return usable;
        }
        let usable = self.engine.probe().await.usable;
        *last = Some((Instant::now(), usable));
        usable
    }

    fn has_room(&self) -> bool {
        rustix::fs::statvfs(&self.config.data_dir).is_ok_and(|filesystem| {
            filesystem.f_bavail.saturating_mul(filesystem.f_frsize) >= MIN_FREE_BYTES
        })
    }
}
