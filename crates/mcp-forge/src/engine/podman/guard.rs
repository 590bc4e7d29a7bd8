//! The guard of a container: its link, and its removal.

use std::{sync::Arc, time::Duration};

use jail::meter::OpenMeter;
use tokio::time::timeout;

use super::{
    containers::Containers,
    link::{Ended, Link},
};
use crate::engine::{Ending, Environment, ExitCause, Guard, Usage};

/// Time for a container to be killed and removed.
const REMOVAL: Duration = Duration::from_secs(30);

/// A container that runs.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: String,
    /// None once it is being removed.
    pub(super) link: Option<Link>,
    pub(super) meter: Option<Arc<OpenMeter>>,
    /// The limit that its memory is held to.
    pub(super) memory_bytes: u64,
    pub(super) containers: Containers,
    /// A share in the packages that its image was made of.
    pub(super) _environment: Option<Arc<Environment>>,
    /// Whether its removal has been seen to.
    pub(super) is_removed: bool,
}

impl Container {
    /// Whether its stream stands: it lives, as far as one can tell without asking.
    pub(super) fn is_fit(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_open)
    }

    fn measured(&self) -> Usage {
        self.meter
            .as_ref()
            .map_or_else(Usage::default, |meter| Usage {
                cpu_ms: meter.cpu_ms(),
                memory_peak_bytes: meter.memory_peak(),
            })
    }

    /// How it ended, from what the relay said, or from its silence.
    fn cause(&self, ended: Option<&Ended>, usage: &Usage) -> ExitCause {
        let is_full = usage
            .memory_peak_bytes
            .is_some_and(|peak| peak >= self.memory_bytes - self.memory_bytes / 64);
        match ended {
            Some(Ended {
                signaled: Some(9),
                oom_kills,
                ..
            }) if oom_kills.map_or(is_full, |kills| kills > 0) => ExitCause::OutOfMemory,
            Some(Ended {
                exited: Some(status),
                ..
            }) => ExitCause::Exited(*status),
            Some(Ended {
                signaled: Some(signal),
                ..
            }) => ExitCause::Signaled(*signal),
            // Only the kernel kills a container's first process without being asked by the service.
            _ if is_full => ExitCause::OutOfMemory,
            _ => ExitCause::Lost("the container's stream ended".to_owned()),
        }
    }
}

#[async_trait::async_trait]
impl Guard for Container {
    async fn interrupt(&mut self) {
        if let Some(link) = &self.link {
            link.interrupt();
        }
    }

    fn usage(&self) -> Usage {
        self.measured()
    }

    fn meter(&self) -> Option<Arc<OpenMeter>> {
        self.meter.clone()
    }

    async fn end(mut self: Box<Self>, patience: Duration) -> Ending {
        let mut cause = ExitCause::Killed;
        let mut usage = self.measured();
        if let Some(link) = &mut self.link
            && let Ok(ended) = timeout(patience, link.ended()).await
        {
            usage = self.measured().or(usage);
            cause = self.cause(ended.as_ref(), &usage);
        }
        self.link = None;
        let removed = timeout(REMOVAL, self.containers.remove(&self.id)).await;
        self.is_removed = true;
        if removed != Ok(true) {
            tracing::warn!(
                id = self.id,
                "a container is not removed yet; it is tried again"
            );
            self.containers.remove_later(std::mem::take(&mut self.id));
        }
        Ending { cause, usage }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if self.is_removed {
            return;
        }
        // Hanging up ends it already, unless code inside has broken the relay.
        self.link = None;
        self.containers.remove_later(std::mem::take(&mut self.id));
    }
}

impl Usage {
    /// These figures, and the others' where these are missing: a cgroup may be gone.
    fn or(self, earlier: Self) -> Self {
        Self {
            cpu_ms: self.cpu_ms.or(earlier.cpu_ms),
            memory_peak_bytes: self.memory_peak_bytes.or(earlier.memory_peak_bytes),
        }
    }
}
