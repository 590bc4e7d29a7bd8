//! One sandbox of a zygote, as its keeper sees it.
//!
//! It ends with its interpreter, unless that has been copied (`twin.rs`): then the interpreter's
//! processes end, and the sandbox goes on until the last copy is gone.

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
    spec::{Cause, ForkSpec, JailLimits, Layer, LayerReport, Report, State},
    watch::{self, Members},
};

/// By the kernel's OOM killer, or by an administrator.
pub(crate) const KILLED_FROM_OUTSIDE: Cause = Cause::Signaled {
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
    /// What it is to have copies.
    pub(crate) shared: Option<Shared>,
}

/// What a sandbox has more when its interpreter was copied.
pub(crate) struct Shared {
    /// The first interpreter, which is then not all there is.
    pub(crate) program: i32,
    /// Init's own: it must not die with any of them.
    pub(crate) init_cgroup: Option<Cgroup>,
    /// Copies that are not buried yet.
    pub(crate) copies: usize,
    /// Of interpreters that are gone, with memory that others still hold.
    pub(crate) leftovers: Vec<(JailLimits, Cgroup)>,
    /// The first interpreter is gone, and this was told.
    pub(crate) is_headless: bool,
}

/// What was heard of a sandbox's init.
pub(crate) enum Heard {
    /// Something that is done with.
    Word,
    /// How a copy ended: its pid inside, and its wait status.
    CopyEnded(i32, i32),
    /// No more will come.
    Nothing,
}

impl Fork {
    /// Hears one word of its init.
    pub(crate) fn listen(&mut self, layers: &[LayerReport]) -> Heard {
        match self.report.receive().as_deref().and_then(Word::parse) {
            Some(Word::Sealed) => self.tell(&self.entered(layers.to_vec())),
            Some(Word::Ended(status)) => self.end(cause_of(status)),
            Some(Word::CopyEnded(pid, status)) => return Heard::CopyEnded(pid, status),
            Some(Word::Failed(step, errno)) => {
                let layer = plan::layer_of(step);
                let answer = std::io::Error::from_raw_os_error(errno).to_string();
                let (reason, fix) = explain::layer(layer, &answer, errno, &explain::Facts::read());
                self.tell(&Report::Refused { layer, reason, fix });
                self.cause.get_or_insert(Cause::Killed);
            }
            None => return Heard::Nothing,
        }
        Heard::Word
    }

    /// Kills it, for this cause unless there was one before. Its death is an event of its own.
    pub(crate) fn end(&mut self, cause: Cause) {
        self.cause.get_or_insert(cause);
        if self.dying.is_some() {
            return;
        }
        self.dying = Some(Instant::now());
        if self.cgroup.is_none() {
            let program = self.shared.as_ref().map(|shared| shared.program);
            self.cpu_ms = watch::children_cpu_ms(self.pid, program);
        }
        if self.has_copies() {
            self.kill_program();
        } else {
            self.kill_init();
        }
    }

    /// What can be done for an end that has begun, once more or for the first time. True if its
    /// interpreter is gone and copies go on.
    pub(crate) fn proceed(&mut self) -> bool {
        let Some(since) = self.dying else {
            return false;
        };
        if self.has_copies() {
            let is_headless = self
                .shared
                .as_ref()
                .is_some_and(|shared| shared.is_headless);
            if is_headless || self.is_program_gone() {
                return !is_headless;
            }
            self.kill_program();
            return false;
        }
        self.kill_init();
        if since.elapsed() > keeper::PATIENCE {
            self.press_on();
        }
        false
    }

    /// Says how its interpreter ended, whose copies go on. Gives back what that leaves.
    pub(crate) fn behead(&mut self) -> Option<Cgroup> {
        self.tell_end();
        if let Some(shared) = &mut self.shared {
            shared.is_headless = true;
        }
        self.cgroup.take()
    }

    fn has_copies(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.copies > 0)
    }

    fn kill_init(&self) {
        rustix::process::pidfd_send_signal(&self.handle, Signal::KILL).ok();
    }

    fn kill_program(&self) {
        match &self.cgroup {
            Some(cgroup) => cgroup.kill(),
            None => self.members().kill(),
        }
    }

    fn is_program_gone(&self) -> bool {
        match &self.cgroup {
            Some(cgroup) => cgroup.is_empty(),
            None => self.members().are_gone(),
        }
    }

    /// What keeps its init from dying goes first, and with whatever processor there is.
    fn press_on(&self) {
        let own = self
            .shared
            .as_ref()
            .and_then(|shared| shared.init_cgroup.as_ref());
        match &self.cgroup {
            Some(cgroup) => [Some(cgroup), own]
                .into_iter()
                .flatten()
                .for_each(Cgroup::kill),
            None => Members::Sandbox(self.pid).kill(),
        }
    }

    /// Whether it holds more memory than it may, where no cgroup counts.
    pub(crate) fn is_over_its_limit(&self) -> bool {
        self.needs_watching() && self.members().hold_more_than(self.spec.limits.memory_bytes)
    }

    /// Whether something about it must be looked at that no descriptor tells.
    pub(crate) fn is_restless(&self) -> bool {
        let shared = self.shared.as_ref();
        let waits = shared.is_some_and(|shared| shared.is_headless && shared.copies > 0);
        self.needs_watching() || (self.dying.is_some() && !waits)
    }

    fn needs_watching(&self) -> bool {
        // A test build that leaves the cgroup out leaves its stand-in out too.
        let stands_in = self.cgroup.is_none() && !crate::omitted(Layer::Cgroup);
        self.is_used && stands_in && self.dying.is_none()
    }

    /// Those of its interpreter.
    fn members(&self) -> Members {
        match &self.shared {
            Some(shared) if shared.copies > 0 => Members::Program {
                init: self.pid,
                leader: shared.program,
            },
            _ => Members::Sandbox(self.pid),
        }
    }

    /// Says how it ended; every process of it is gone. Gives back its cgroup, and whether that may
    /// serve another.
    pub(crate) fn bury(mut self) -> Vec<(JailLimits, Cgroup, bool)> {
        // Its last words may still lie in the line.
        while !matches!(self.listen(&[]), Heard::Nothing) {}
        let shared = self.shared.take();
        if !shared.as_ref().is_some_and(|shared| shared.is_headless) {
            self.tell_end();
        }
        let starved = self.cgroup.as_ref().is_some_and(Cgroup::ran_out_of_memory);
        let pressed = self
            .dying
            .is_some_and(|since| since.elapsed() > keeper::PATIENCE);
        let is_fit = shared.is_none() && !starved && !pressed;
        let limits = self.spec.limits;
        let own = self.cgroup.map(|cgroup| (limits, cgroup, is_fit));
        let Some(shared) = shared else {
            return own.into_iter().collect();
        };
        let of_init = shared.init_cgroup.map(|cgroup| (limits, cgroup));
        let others = shared.leftovers.into_iter().chain(of_init);
        let others = others.map(|(limits, cgroup)| (limits, cgroup, false));
        own.into_iter().chain(others).collect()
    }

    fn tell_end(&self) {
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
    }

    fn tell(&self, report: &Report) {
        launch::report(self.guard.as_fd(), report);
    }

    fn entered(&self, layers: Vec<LayerReport>) -> Report {
        let limits = &self.spec.limits;
        Report::Entered {
            layers: self.layers(layers, self.cgroup_layer.clone()),
            limits: keeper::limit_reports(limits, self.cgroup.as_ref()),
            meter: Some(self.meter.clone()),
        }
    }

    /// Its layers: those of its zygote, and what it has added. With the cgroup's line, which each
    /// interpreter has for itself.
    pub(crate) fn layers(
        &self,
        mut layers: Vec<LayerReport>,
        cgroup: LayerReport,
    ) -> Vec<LayerReport> {
        let mut note = |layer, state, detail: String| {
            layers.retain(|report| report.layer != layer);
            layers.push(LayerReport {
                layer,
                state,
                detail,
            });
        };
        let limits = rlimits::describe(&self.spec.limits);
        note(Layer::Rlimits, State::Enforced, limits);
        note(Layer::Landlock, self.landlock.0, self.landlock.1.clone());
        layers.insert(0, cgroup);
        layers
    }
}

/// What a fork's init says, in the nine bytes of `object.rs`.
enum Word {
    /// Every layer is in place.
    Sealed,
    /// The program ended, with this wait status.
    Ended(i32),
    /// The copy with this pid inside ended, with this wait status.
    CopyEnded(i32, i32),
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
            3 => Self::CopyEnded(first, second),
            _ => Self::Failed(first, second),
        })
    }
}

pub(crate) fn cause_of(status: i32) -> Cause {
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
