//! A copy that an interpreter has made of itself, as the keeper sees it.
//!
//! It lives in the sandbox of its original: a sealed process cannot make itself a new one. Its
//! limits, its end and the report of it are its own.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    cgroup::Cgroup,
    fork::{KILLED_FROM_OUTSIDE, cause_of},
    launch,
    meter::Meter,
    spec::{Cause, CopySpec, Layer, Report},
    watch::{self, Members},
};

/// How long init may take to say how a copy ended. It says so as soon as it is scheduled, unless it
/// had heard too late that it was to.
const INIT_PATIENCE: Duration = Duration::from_secs(2);

/// A living copy.
pub(crate) struct Twin {
    pub(crate) spec: CopySpec,
    /// The sandbox: its number, and pid 1 of it.
    pub(crate) sandbox: u64,
    pub(crate) init: i32,
    pub(crate) pid: i32,
    pub(crate) handle: Arc<OwnedFd>,
    /// To the server. The mover may hold it too.
    pub(crate) guard: Arc<OwnedFd>,
    pub(crate) cgroup: Option<Cgroup>,
    pub(crate) meter: Meter,
    /// Its end has begun at that time.
    pub(crate) dying: Option<Instant>,
    /// The interpreter is dead. What it has started may live on.
    pub(crate) is_dead: bool,
    /// All that init had to say of it was heard.
    pub(crate) is_told: bool,
    pub(crate) cause: Option<Cause>,
    /// Where no cgroup counted, when its end began.
    pub(crate) cpu_ms: u64,
}

impl Twin {
    pub(crate) fn interrupt(&self) {
        rustix::process::pidfd_send_signal(&*self.handle, Signal::INT).ok();
    }

    /// Ends it with all that it has started, for this cause unless there was one before.
    pub(crate) fn end(&mut self, cause: Option<Cause>) {
        self.cause = self.cause.or(cause);
        if self.dying.is_some() {
            return;
        }
        self.dying = Some(Instant::now());
        if self.cgroup.is_none() {
            self.cpu_ms = watch::children_cpu_ms(self.init, Some(self.pid));
        }
        self.kill();
    }

    /// Init has reaped it.
    pub(crate) fn reaped(&mut self, status: i32) {
        self.is_told = true;
        self.end(Some(cause_of(status)));
    }

    /// What can be done for an end that has begun. True when nothing is left of it.
    pub(crate) fn proceed(&mut self) -> bool {
        let Some(since) = self.dying else {
            return false;
        };
        let is_gone = match &self.cgroup {
            Some(cgroup) => cgroup.is_empty(),
            None => self.members().are_gone(),
        };
        if !is_gone {
            self.kill();
        }
        let is_told = self.is_told || since.elapsed() > INIT_PATIENCE;
        is_gone && self.is_dead && is_told
    }

    fn kill(&self) {
        // In case it is not in its cgroup yet.
        rustix::process::pidfd_send_signal(&*self.handle, Signal::KILL).ok();
        match &self.cgroup {
            Some(cgroup) => cgroup.kill(),
            None => self.members().kill(),
        }
    }

    pub(crate) fn is_over_its_limit(&self) -> bool {
        self.needs_watching() && self.members().hold_more_than(self.spec.limits.memory_bytes)
    }

    /// As for a sandbox.
    pub(crate) fn is_restless(&self) -> bool {
        self.needs_watching() || self.dying.is_some()
    }

    fn needs_watching(&self) -> bool {
        // A test build that leaves the cgroup out leaves its stand-in out too.
        self.cgroup.is_none() && !crate::omitted(Layer::Cgroup) && self.dying.is_none()
    }

    fn members(&self) -> Members {
        Members::Program {
            init: self.init,
            leader: self.pid,
        }
    }

    /// Says how it ended. Gives back its cgroup.
    pub(crate) fn bury(self) -> Option<Cgroup> {
        let starved = self.cgroup.as_ref().is_some_and(Cgroup::ran_out_of_memory);
        let cause = if starved {
            Cause::OutOfMemory
        } else {
            self.cause.unwrap_or(KILLED_FROM_OUTSIDE)
        };
        let counted = self.cgroup.as_ref().and_then(|_| self.meter.cpu_ms());
        let report = Report::Exited {
            cause,
            cpu_ms: counted.unwrap_or(self.cpu_ms),
            memory_peak_bytes: self.meter.memory_peak(),
        };
        launch::report(self.guard.as_fd(), &report);
        self.cgroup
    }
}
