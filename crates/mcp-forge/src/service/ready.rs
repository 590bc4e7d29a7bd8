//! Whether the application can do its work now.

use std::time::Duration;

use tokio::{sync::Mutex, time::Instant};

use super::Service;
use crate::bridge::UpstreamState;

/// Free space that the data directory must have, in bytes.
const MIN_FREE_BYTES: u64 = 64 << 20;

/// How long it is believed what the engine said of itself: asking is work.
const BELIEVED: Duration = Duration::from_secs(30);

/// The same where it said that it cannot.
const DOUBTED: Duration = Duration::from_secs(5);

/// What is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a check of its own")]
pub struct Readiness {
    /// Sandboxes can be started under the profile.
    pub engine: bool,
    /// The store answers.
    pub store: bool,
    /// There is room for data.
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

impl Service {
    /// Looks whether the application can do its work now.
    pub async fn readiness(&self) -> Readiness {
        let upstreams = self.bridge.known().upstreams;
        Readiness {
            engine: self.engine_is_usable().await,
            store: self.sessions.store_answers().await,
            disk: self.has_room(),
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
