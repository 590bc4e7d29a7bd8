//! Copies of interpreters: how the keeper takes charge of them, and how their sandboxes end.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::process::Signal;

use super::{BITS, Zygote};
use crate::{
    cgroup::Cgroup,
    fork::{Fork, Shared},
    keeper::{self, failure},
    launch,
    meter::Meter,
    mover::Move,
    seal::MOST_COPIES,
    spec::{CopySpec, JailLimits, Layer, LayerReport, Report, State},
    twin::Twin,
    watch,
};

/// Bytes charged to a cgroup without processes that are not worth to be kept in mind.
const NEGLIGIBLE: u64 = 1 << 20;

impl Zygote<'_> {
    /// Makes ready for a copy. To move a process into a cgroup takes the kernel 8 to 30 ms, and next
    /// to nothing when another was moved just before: that wait passes while the copy is made.
    pub(super) fn expect_copy(&mut self, of: &str, limits: &JailLimits) {
        let Some(sandbox) = self.sandbox_of(of) else {
            return;
        };
        if self.share(sandbox).is_err() {
            // Adopting it fails the same way, and tells.
            return;
        }
        self.cgroups.provide(limits);
        let Some(fork) = self.forks.get_mut(&sandbox) else {
            return;
        };
        if let Ok(moves) = moves(fork, None) {
            self.mover.request(Move {
                moves,
                then: Box::new(|_| {}),
            });
        }
    }

    /// Takes charge of a copy. One that cannot be had is killed.
    pub(super) fn adopt(&mut self, spec: CopySpec, guard: OwnedFd) {
        let guard = Arc::new(guard);
        if let Err(report) = self.try_adopt(spec, &guard) {
            launch::report(guard.as_fd(), &report);
        }
    }

    fn try_adopt(&mut self, spec: CopySpec, guard: &Arc<OwnedFd>) -> Result<(), Report> {
        let sandbox = self
            .sandbox_of(&spec.of)
            .ok_or_else(|| failure(&"the interpreter that was copied has ended"))?;
        self.check_leftovers(sandbox, &spec.limits)?;
        let (pid, handle) = self.find(sandbox, spec.pid)?;
        let handle = Arc::new(handle);
        match self.take_cgroup(sandbox, &spec.limits) {
            Ok((cgroup, layer)) => {
                let init = self.forks.get(&sandbox).map_or(0, |fork| fork.pid);
                let twin = Twin {
                    spec,
                    sandbox,
                    init,
                    pid,
                    handle,
                    guard: Arc::clone(guard),
                    meter: Meter {
                        program: Some(pid),
                        ..keeper::meter_of(init, cgroup.as_ref())
                    },
                    cgroup,
                    dying: None,
                    is_dead: false,
                    is_told: false,
                    cause: None,
                    cpu_ms: 0,
                };
                self.welcome(twin, layer);
                Ok(())
            }
            Err(report) => {
                rustix::process::pidfd_send_signal(&handle, Signal::KILL).ok();
                Err(report)
            }
        }
    }

    /// The sandbox in which the interpreter of this name lives.
    fn sandbox_of(&self, name: &str) -> Option<u64> {
        let first = self
            .forks
            .iter()
            .find(|(_, fork)| fork.spec.id == name && fork.dying.is_none())
            .map(|(number, _)| *number);
        first.or_else(|| {
            let twin = self
                .twins
                .values()
                .find(|twin| twin.spec.id == name && twin.dying.is_none())?;
            Some(twin.sandbox)
        })
    }

    /// Memory of interpreters that have ended is in no living one's count. It must not grow from
    /// copy to copy.
    fn check_leftovers(&mut self, sandbox: u64, limits: &JailLimits) -> Result<(), Report> {
        let Some(shared) = self
            .forks
            .get_mut(&sandbox)
            .and_then(|fork| fork.shared.as_mut())
        else {
            return Ok(());
        };
        let leftovers = std::mem::take(&mut shared.leftovers);
        let (kept, gone): (Vec<_>, Vec<_>) = leftovers
            .into_iter()
            .partition(|(_, cgroup)| cgroup.memory_use(u64::MAX) > NEGLIGIBLE);
        let sum = |enough| -> u64 {
            let uses = kept.iter().map(|(_, cgroup)| cgroup.memory_use(enough));
            uses.sum()
        };
        let is_too_much = sum(u64::MAX) > limits.memory_bytes && sum(0) > limits.memory_bytes;
        shared.leftovers = kept;
        for (limits, cgroup) in gone {
            self.cgroups.give_back(limits, cgroup, false);
        }
        if is_too_much {
            return Err(failure(
                &"it holds more memory of sessions that have ended than one session may use",
            ));
        }
        Ok(())
    }

    /// Finds the copy among the children of its sandbox's init.
    fn find(&self, sandbox: u64, inner: i32) -> Result<(i32, OwnedFd), Report> {
        let fork = self
            .forks
            .get(&sandbox)
            .ok_or_else(|| failure(&"its sandbox has ended"))?;
        if fork
            .shared
            .as_ref()
            .is_some_and(|shared| shared.copies >= MOST_COPIES)
        {
            return Err(failure(&"it has too many copies already"));
        }
        // Before it is looked for: if it dies later, init has heard of it.
        fork.report.send(&inner.to_ne_bytes());
        let found = watch::child(fork.pid, inner).filter(|(pid, _)| {
            let is_known = self.twins.values().any(|twin| twin.pid == *pid);
            inner != watch::PROGRAM && !is_known
        });
        found.ok_or_else(|| {
            failure(&"the copy is not where it should be; code may have made itself a reaper")
        })
    }

    /// Makes a sandbox ready to have more than one interpreter. Init needs a cgroup of its own: it
    /// must not be in that of one that may be killed.
    fn share(&mut self, sandbox: u64) -> Result<&Shared, Report> {
        let ended = || failure(&"the interpreter that was copied has ended");
        let fork = self.forks.get_mut(&sandbox).ok_or_else(ended)?;
        if fork.shared.is_none() {
            let (program, _) = watch::child(fork.pid, watch::PROGRAM).ok_or_else(ended)?;
            let init_cgroup = fork
                .cgroup
                .as_ref()
                .map(|_| self.cgroups.take(&fork.spec.limits))
                .transpose()
                .map_err(|error| failure(&error))?;
            fork.shared = Some(Shared {
                program,
                init_cgroup,
                copies: 0,
                leftovers: Vec::new(),
                is_headless: false,
            });
        }
        fork.shared.as_ref().ok_or_else(ended)
    }

    fn take_cgroup(
        &mut self,
        sandbox: u64,
        limits: &JailLimits,
    ) -> Result<(Option<Cgroup>, LayerReport), Report> {
        let is_counted = self.share(sandbox)?.init_cgroup.is_some();
        let taken = keeper::join_plan(&self.spec.required, || self.cgroups.take(limits))?;
        if is_counted && taken.0.is_none() {
            return Err(failure(&"there is no cgroup for it"));
        }
        Ok(taken)
    }

    /// Watches over a copy, and has it moved into its cgroup.
    fn welcome(&mut self, mut twin: Twin, cgroup_layer: LayerReport) {
        let number = self.next;
        self.next += 1;
        let Some(fork) = self.forks.get_mut(&twin.sandbox) else {
            return;
        };
        let memory = twin.cgroup.as_ref().and_then(Cgroup::memory_events);
        let guard: &OwnedFd = &twin.guard;
        let handle: &OwnedFd = &twin.handle;
        let descriptors = [None, Some(guard.as_fd()), memory, Some(handle.as_fd())];
        let watched = (0..).zip(descriptors).try_for_each(|(kind, descriptor)| {
            descriptor.map_or(Ok(()), |descriptor| {
                self.ready.add(descriptor, number << BITS | kind)
            })
        });
        let moves = moves(fork, Some(&mut twin));
        if let Some(shared) = &mut fork.shared {
            shared.copies += 1;
        }
        let entered = entered(fork, &twin, self.layers.clone(), cgroup_layer);
        let (guard, handle) = (Arc::clone(&twin.guard), Arc::clone(&twin.handle));
        let then = move |moved: bool| {
            // Still alive: the number was its own all the time.
            if moved && watch::is_alive(&handle) {
                launch::report(guard.as_fd(), &entered);
            } else {
                rustix::process::pidfd_send_signal(&*handle, Signal::KILL).ok();
                let report = failure(&"the copy could not be moved into its cgroup");
                launch::report(guard.as_fd(), &report);
            }
        };
        match moves {
            Ok(moves) if watched.is_ok() => self.mover.request(Move {
                moves,
                then: Box::new(then),
            }),
            _ => then(false),
        }
        self.twins.insert(number, twin);
    }

    /// Goes on with what has begun to end in one sandbox.
    pub(super) fn settle(&mut self, sandbox: u64) {
        let twins = self.twins.iter_mut();
        let gone: Vec<u64> = twins
            .filter(|(_, twin)| twin.sandbox == sandbox)
            .filter_map(|(number, twin)| twin.proceed().then_some(*number))
            .collect();
        for number in gone {
            self.bury_twin(number);
        }
        if let Some(fork) = self.forks.get_mut(&sandbox)
            && fork.proceed()
        {
            self.ready.remove(&fork.guard);
            if let Some(events) = fork.cgroup.as_ref().and_then(Cgroup::memory_events) {
                self.ready.remove(events);
            }
            let limits = fork.spec.limits;
            if let Some(cgroup) = fork.behead() {
                self.put_aside(sandbox, limits, cgroup);
            }
        }
    }

    fn bury_twin(&mut self, number: u64) {
        let Some(twin) = self.twins.remove(&number) else {
            return;
        };
        self.ready.remove(&*twin.guard);
        if let Some(events) = twin.cgroup.as_ref().and_then(Cgroup::memory_events) {
            self.ready.remove(events);
        }
        let (sandbox, limits) = (twin.sandbox, twin.spec.limits);
        if let Some(cgroup) = twin.bury() {
            self.put_aside(sandbox, limits, cgroup);
        }
        let fork = self.forks.get_mut(&sandbox);
        if let Some(shared) = fork.and_then(|fork| fork.shared.as_mut()) {
            shared.copies -= 1;
        }
    }

    /// Keeps a cgroup for as long as others in its sandbox hold memory that is charged to it.
    fn put_aside(&mut self, sandbox: u64, limits: JailLimits, cgroup: Cgroup) {
        let fork = self.forks.get_mut(&sandbox);
        match fork.and_then(|fork| fork.shared.as_mut()) {
            Some(shared) if cgroup.memory_use(u64::MAX) > NEGLIGIBLE => {
                shared.leftovers.push((limits, cgroup));
            }
            _ => self.cgroups.give_back(limits, cgroup, false),
        }
    }

    /// A sandbox is gone, with every copy in it.
    pub(super) fn orphan(&mut self, sandbox: u64) {
        let twins = self.twins.values_mut();
        for twin in twins.filter(|twin| twin.sandbox == sandbox) {
            twin.is_told = true;
        }
        self.settle(sandbox);
    }
}

/// Who has to go where.
fn moves(
    fork: &mut Fork,
    twin: Option<&mut Twin>,
) -> std::io::Result<Vec<(i32, Arc<[std::fs::File]>)>> {
    let shared = fork.shared.as_mut();
    let init = shared.and_then(|shared| Some((fork.pid, shared.init_cgroup.as_mut()?)));
    let twin = twin.and_then(|twin| Some((twin.pid, twin.cgroup.as_mut()?)));
    init.into_iter()
        .chain(twin)
        .map(|(pid, cgroup)| Ok((pid, cgroup.entrances()?)))
        .collect()
}

/// What a copy is told: the layers of its original, but for the cgroup.
fn entered(
    fork: &Fork,
    twin: &Twin,
    zygote: Vec<LayerReport>,
    cgroup_layer: LayerReport,
) -> Report {
    let mut layers = fork.layers(zygote, cgroup_layer);
    for layer in &mut layers {
        if layer.layer == Layer::CgroupNamespace && twin.cgroup.is_some() {
            layer.state = State::BestEffort;
            "a copy sees the name of its own cgroup, beside that of its original"
                .clone_into(&mut layer.detail);
        }
    }
    Report::Entered {
        layers,
        limits: keeper::limit_reports(&twin.spec.limits, twin.cgroup.as_ref()),
        meter: Some(twin.meter.clone()),
    }
}
