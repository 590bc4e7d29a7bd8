//! How far a build is: for whoever waits for it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jail::meter::OpenMeter;

use tokio::sync::watch;

/// Where a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Other builds are before it.
    #[default]
    Waiting,
    /// `uv` decides on versions.
    Resolving,
    /// `uv` fetches wheels.
    Downloading,
    /// `uv` writes the packages and compiles them.
    Installing,
    /// The packages are imported in a sandbox, and looked at.
    Checking,
    /// The files get their name.
    Publishing,
}

impl Phase {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Resolving => "resolving",
            Self::Downloading => "downloading",
            Self::Installing => "installing",
            Self::Checking => "checking",
            Self::Publishing => "publishing",
        }
    }
}

/// One look at a build.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Where it is.
    pub phase: Phase,
    /// What `uv` or the check said last: a package, a number of packages.
    pub detail: String,
    /// Bytes that came from the index.
    pub fetched_bytes: u64,
    /// Bytes of all wheels, once that is known.
    pub total_bytes: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.phase.name())?;
        if self.phase == Phase::Downloading && self.total_bytes > 0 {
            let fetched = self.fetched_bytes.min(self.total_bytes);
            write!(
                f,
                " {} of {} MB",
                fetched.div_ceil(1_000_000),
                self.total_bytes.div_ceil(1_000_000)
            )?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

/// Where a build tells how far it is, and what it took.
#[derive(Debug, Clone)]
pub struct Teller {
    progress: watch::Sender<Progress>,
    cpu_ms: Arc<AtomicU64>,
}

impl Teller {
    /// A teller, and what hears it.
    pub fn new() -> (Self, watch::Receiver<Progress>) {
        let (sender, receiver) = watch::channel(Progress::default());
        let teller = Self {
            progress: sender,
            cpu_ms: Arc::default(),
        };
        (teller, receiver)
    }

    /// CPU time of all jobs and sandboxes of the build so far, in milliseconds, where they could be
    /// measured.
    pub fn cpu_ms(&self) -> u64 {
        self.cpu_ms.load(Ordering::Relaxed)
    }

    pub(super) fn phase(&self, phase: Phase, detail: impl Into<String>) {
        let detail = detail.into();
        self.progress.send_modify(|progress| {
            progress.phase = phase;
            progress.detail = detail;
        });
    }

    pub(super) fn total(&self, bytes: u64) {
        self.progress
            .send_modify(|progress| progress.total_bytes = bytes);
    }

    pub(super) fn fetched(&self, bytes: u64) {
        self.progress.send_if_modified(|progress| {
            let is_more = progress.fetched_bytes != bytes;
            progress.fetched_bytes = bytes;
            is_more
        });
    }
}

/// What one job or sandbox of a build takes: told at its end, also if that is because nobody waits for
/// it any more.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    teller: &'a Teller,
    meter: Option<Arc<OpenMeter>>,
    told_ms: u64,
}

impl<'a> Taken<'a> {
    pub(super) fn begin(teller: &'a Teller, meter: Option<Arc<OpenMeter>>) -> Self {
        Self {
            teller,
            meter,
            told_ms: 0,
        }
    }

    /// It has taken so much by now.
    pub(super) fn tell(&mut self, cpu_ms: Option<u64>) {
        let more = cpu_ms.unwrap_or_default().saturating_sub(self.told_ms);
        self.told_ms += more;
        self.teller.cpu_ms.fetch_add(more, Ordering::Relaxed);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let last = self.meter.as_ref().and_then(|meter| meter.cpu_ms());
        self.tell(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_says_phase_share_and_detail() {
        let (teller, heard) = Teller::new();
        assert_eq!(heard.borrow().to_string(), "waiting");
        teller.total(16_100_000);
        teller.phase(Phase::Downloading, "numpy");
        teller.fetched(3_000_000);
        assert_eq!(heard.borrow().to_string(), "downloading 3 of 17 MB: numpy");
        teller.fetched(99_000_000);
        assert_eq!(heard.borrow().to_string(), "downloading 17 of 17 MB: numpy");
        teller.phase(Phase::Checking, "");
        assert_eq!(heard.borrow().to_string(), "checking");
    }

    #[test]
    fn what_is_told_twice_is_taken_once() {
        let (teller, _) = Teller::new();
        let mut job = Taken::begin(&teller, None);
        job.tell(Some(300));
        job.tell(None);
        job.tell(Some(450));
        drop(job);
        Taken::begin(&teller, None).tell(Some(50));
        assert_eq!(teller.cpu_ms(), 500);
    }
}
