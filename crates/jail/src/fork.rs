//! One sandbox of a zygote, as its keeper sees it.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

use rustix::process::Signal;

use crate::{
    cgroup::Cgroup,
    channel::Channel,
    explain, keeper, launch,
    meter::Meter,
    plan, rlimits,
    spec::{Cause, ForkSpec, Layer, LayerReport, Report, State},
    watch::{self, MemoryWatch},
};

/// By the kernel's OOM killer, or by an administrator.
const KILLED_FROM_OUTSIDE: Cause = Cause::Signaled {
    signal: libc::SIGKILL,
};

/// A living sandbox.
pub(crate) struct Fork {
    pub(crate) spec: ForkSpec,
    /// Pid 1 of it.
    pub(crate) pid: i32,
    pub(crate) handle: OwnedFd,
    /// To the server.
    pub(crate) guard: OwnedFd,
    /// To its init. The mover may hold it too.
    pub(crate) report: Arc<Channel>,
    pub(crate) cgroup: Option<Cgroup>,
    pub(crate) cgroup_layer: LayerReport,
    pub(crate) meter: Meter,
    pub(crate) landlock: (State, String),
    /// Code runs in it: only then can its memory grow.
    pub(crate) is_used: bool,
    /// Killed at that time, and not gone yet.
    pub(crate) dying: Option<Instant>,
    pub(crate) cause: Option<Cause>,
    /// Of one that no cgroup counted, when it was killed.
    pub(crate) cpu_ms: u64,
}

impl Fork {
    /// Hears one word of its init: sealed, failed, or ended. False when no more will come.
    pub(crate) fn listen(&mut self, layers: &[LayerReport]) -> bool {
        match self.report.receive().as_deref().and_then(Word::parse) {
            Some(Word::Sealed) => self.tell(&self.entered(layers.to_vec())),
            Some(Word::Ended(status)) => {
                self.cause.get_or_insert(cause_of(status));
            }
            Some(Word::Failed(step, errno)) => {
                let layer = plan::layer_of(step);
                let answer = std::io::Error::from_raw_os_error(errno).to_string();
                let (reason, fix) = explain::layer(layer, &answer, errno, &explain::Facts::read());
                self.tell(&Report::Refused { layer, reason, fix });
                self.cause.get_or_insert(Cause::Killed);
            }
            None => return false,
        }
        true
    }

    /// Kills it. Its death is an event of its own.
    pub(crate) fn kill(&mut self, cause: Cause) {
        if self.dying.is_some() {
            return;
        }
        if self.cgroup.is_none() {
            self.cpu_ms = watch::children_cpu_ms(self.pid);
        }
        self.cause.get_or_insert(cause);
        self.dying = Some(Instant::now());
        rustix::process::pidfd_send_signal(&self.handle, Signal::KILL).ok();
    }

    /// What keeps its init from dying goes first, and with whatever processor there is.
    pub(crate) fn press_on(&self) {
        match &self.cgroup {
            Some(cgroup) => cgroup.kill(),
            None => watch::kill(self.pid),
        }
    }

    /// Whether it holds more memory than it may, where no cgroup counts.
    pub(crate) fn is_over_its_limit(&self) -> bool {
        self.needs_watching()
            && MemoryWatch::new(self.pid, self.spec.limits.memory_bytes).exceeded()
    }

    pub(crate) fn needs_watching(&self) -> bool {
        // A test build that leaves the cgroup out leaves its stand-in out too.
        let stands_in = self.cgroup.is_none() && !crate::omitted(Layer::Cgroup);
        self.is_used && stands_in && self.dying.is_none()
    }

    /// Says how it ended; every process of it is gone. Gives back its cgroup, and whether that may
    /// serve another.
    pub(crate) fn bury(mut self) -> Option<(Cgroup, bool)> {
        // Its last words may still lie in the line.
        while self.listen(&[]) {}
        let counted = self.cgroup.as_ref().and_then(|_| self.meter.cpu_ms());
        let starved = self.cgroup.as_ref().is_some_and(Cgroup::ran_out_of_memory);
        let cause = if starved {
            Cause::OutOfMemory
        } else {
            self.cause.unwrap_or(KILLED_FROM_OUTSIDE)
        };
        self.tell(&Report::Exited {
            cause,
            cpu_ms: counted.unwrap_or(self.cpu_ms),
            memory_peak_bytes: self.meter.memory_peak(),
        });
        let pressed = self
            .dying
            .is_some_and(|since| since.elapsed() > keeper::PATIENCE);
        self.cgroup.map(|cgroup| (cgroup, !starved && !pressed))
    }

    fn tell(&self, report: &Report) {
        launch::report(self.guard.as_fd(), report);
    }

    fn entered(&self, mut layers: Vec<LayerReport>) -> Report {
        let mut note = |layer, state, detail: String| {
            layers.retain(|report| report.layer != layer);
            layers.push(LayerReport {
                layer,
                state,
                detail,
            });
        };
        let limits = &self.spec.limits;
        note(Layer::Rlimits, State::Enforced, rlimits::describe(limits));
        note(Layer::Landlock, self.landlock.0, self.landlock.1.clone());
        layers.insert(0, self.cgroup_layer.clone());
        Report::Entered {
            layers,
            limits: keeper::limit_reports(limits, self.cgroup.as_ref()),
            meter: Some(self.meter.clone()),
        }
    }
}

/// What a fork's init says, in the nine bytes of `object.rs`.
enum Word {
    /// Every layer is in place.
    Sealed,
    /// The program ended, with this wait status.
    Ended(i32),
    /// A step of the seal failed, with the kernel's answer.
    Failed(i32, i32),
}

impl Word {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (what, rest) = bytes.split_first()?;
        let first = i32::from_ne_bytes(*rest.first_chunk()?);
        let second = i32::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
        Some(match what {
            1 => Self::Sealed,
            2 => Self::Ended(first),
            _ => Self::Failed(first, second),
        })
    }
}

fn cause_of(status: i32) -> Cause {
    if libc::WIFEXITED(status) {
        Cause::Exited {
            status: libc::WEXITSTATUS(status),
        }
    } else {
        Cause::Signaled {
            signal: libc::WTERMSIG(status),
        }
    }
}
