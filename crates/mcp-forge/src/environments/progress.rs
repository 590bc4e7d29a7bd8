//! How far a build is: for whoever waits for it.

use std::fmt;

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

/// Where a build tells how far it is.
#[derive(Debug, Clone)]
pub struct Teller(watch::Sender<Progress>);

impl Teller {
    /// A teller, and what hears it.
    pub fn new() -> (Self, watch::Receiver<Progress>) {
        let (sender, receiver) = watch::channel(Progress::default());
        (Self(sender), receiver)
    }

    pub(super) fn phase(&self, phase: Phase, detail: impl Into<String>) {
        let detail = detail.into();
        self.0.send_modify(|progress| {
            progress.phase = phase;
            progress.detail = detail;
        });
    }

    pub(super) fn total(&self, bytes: u64) {
        self.0.send_modify(|progress| progress.total_bytes = bytes);
    }

    pub(super) fn fetched(&self, bytes: u64) {
        self.0.send_if_modified(|progress| {
            let is_more = progress.fetched_bytes != bytes;
            progress.fetched_bytes = bytes;
            is_more
        });
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
}
