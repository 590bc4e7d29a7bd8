//! A zygote's keeper: has sandboxes forked on request, puts each into its cgroup, ends each.
//!
//! One loop over everything that can happen: a request of the server, a word of a sandbox's init,
//! a guard that closes, memory that runs out, a death. It waits for nothing else.

use std::{
    collections::HashMap,
    fs,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::Signal,
};

use crate::{
    cgroup::Cgroup,
    channel::Channel,
    descriptors::Streams,
    error::JailError,
    explain,
    keeper::{self, Starting, failure},
    launch,
    meter::Meter,
    plan,
    raw::Plain,
    rlimits,
    spec::{Cause, ForkSpec, JailSpec, Layer, LayerReport, Report, State},
    watch::{self, MemoryWatch},
};

/// Time for a zygote to fork. Normal is under a millisecond.
const FORK_TIMEOUT: Duration = Duration::from_secs(5);

/// By the kernel's OOM killer, or by an administrator.
const KILLED_FROM_OUTSIDE: Cause = Cause::Signaled {
    signal: libc::SIGKILL,
};

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

/// Builds the zygote's jail, then serves forks until the server or the zygote is gone.
pub(crate) fn keep(
    socket: BorrowedFd<'_>,
    spec: &JailSpec,
    streams: Streams,
) -> Result<(), Report> {
    let (ours, theirs) = Channel::pair().map_err(|error| failure(&error))?;
    let streams = Streams {
        control: theirs.into_fd(),
        ..streams
    };
    let starting = Starting::fork(spec, streams)?.release(None)?;
    let layers = starting.wait_until_sealed().inspect_err(|_| {
        starting.end(None);
    })?;
    launch::report(
        socket,
        &Report::Entered {
            layers: layers.clone(),
            limits: Vec::new(),
            meter: None,
        },
    );
    let mut zygote = Zygote {
        spec,
        layers,
        channel: ours,
        children: HashMap::new(),
        leftovers: Vec::new(),
        next: 0,
    };
    zygote.serve(socket, &starting);
    starting.end(None);
    // The pid namespace took them all with it.
    let children: Vec<u64> = zygote.children.keys().copied().collect();
    for child in children {
        zygote.bury(child);
    }
    for cgroup in zygote.leftovers {
        cgroup.remove();
    }
    Ok(())
}

struct Zygote<'a> {
    spec: &'a JailSpec,
    layers: Vec<LayerReport>,
    channel: Channel,
    children: HashMap<u64, Child>,
    /// Cgroups that were busy when their sandbox ended.
    leftovers: Vec<Cgroup>,
    next: u64,
}

/// One sandbox.
struct Child {
    spec: ForkSpec,
    pid: i32,
    handle: OwnedFd,
    /// To the server.
    guard: OwnedFd,
    /// To its init.
    report: Channel,
    cgroup: Option<Cgroup>,
    meter: Meter,
    cgroup_layer: LayerReport,
    landlock: (State, String),
    cause: Option<Cause>,
    cpu_ms: u64,
}

/// What happened to whom.
enum Event {
    Spoke(u64),
    GuardSpoke(u64),
    OutOfMemory(u64),
    Died(u64),
}

impl Zygote<'_> {
    fn serve(&mut self, socket: BorrowedFd<'_>, zygote: &Starting) {
        loop {
            let Some((request, events)) = self.wait(socket, zygote) else {
                return;
            };
            for event in events {
                self.handle(&event);
            }
            if request {
                let Ok((spec, descriptors)) = launch::receive_message::<ForkSpec, 4>(socket) else {
                    return;
                };
                if !self.fork(spec, descriptors) {
                    return;
                }
            }
        }
    }

    /// Waits for something to happen; `None` when the zygote is gone.
    fn wait(&self, socket: BorrowedFd<'_>, zygote: &Starting) -> Option<(bool, Vec<Event>)> {
        let ids: Vec<u64> = self.children.keys().copied().collect();
        // A test build that leaves the cgroup out leaves its stand-in out too.
        let watches = !crate::omitted(Layer::Cgroup)
            && ids.iter().any(|id| self.children[id].cgroup.is_none());
        let mut polled = vec![
            PollFd::from_borrowed_fd(socket, PollFlags::IN),
            PollFd::new(&zygote.handle, PollFlags::IN),
        ];
        for id in &ids {
            let child = &self.children[id];
            polled.push(PollFd::new(&child.handle, PollFlags::IN));
            polled.push(PollFd::new(&child.report, PollFlags::IN));
            polled.push(PollFd::new(&child.guard, PollFlags::IN));
            // Never ready where there is no such event: the pidfd stands in, and comes first.
            let memory = child.cgroup.as_ref().and_then(Cgroup::memory_events);
            polled.push(PollFd::from_borrowed_fd(
                memory.unwrap_or(child.handle.as_fd()),
                PollFlags::IN,
            ));
        }
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        let waited = rustix::event::poll(&mut polled, watches.then_some(&tick));
        let ready: Vec<bool> = polled
            .iter()
            .map(|poll| !poll.revents().is_empty())
            .collect();
        drop(polled);
        if ready[1] {
            return None;
        }
        let mut events = Vec::new();
        for (id, ready) in ids.iter().zip(ready[2..].chunks(4)) {
            // The last word before the death, the death before everything else.
            match ready {
                [_, true, ..] => events.push(Event::Spoke(*id)),
                [true, ..] => events.push(Event::Died(*id)),
                [_, _, true, _] => events.push(Event::GuardSpoke(*id)),
                [_, _, _, true] => events.push(Event::OutOfMemory(*id)),
                _ => {}
            }
        }
        if watches && waited == Ok(0) {
            events.extend(self.over_their_limit());
        }
        Some((ready[0], events))
    }

    fn over_their_limit(&self) -> Vec<Event> {
        let parents = watch::parents();
        let over = |child: &Child| {
            child.cgroup.is_none()
                && MemoryWatch::new(child.pid, child.spec.limits.memory_bytes).exceeded_in(&parents)
        };
        self.children
            .iter()
            .filter(|(_, child)| over(child))
            .map(|(id, _)| Event::OutOfMemory(*id))
            .collect()
    }

    fn handle(&mut self, event: &Event) {
        match event {
            Event::Spoke(id) => self.listen(*id),
            Event::GuardSpoke(id) => {
                let Some(child) = self.children.get(id) else {
                    return;
                };
                match launch::word(child.guard.as_fd()) {
                    launch::Word::Interrupt => watch::interrupt(child.pid),
                    launch::Word::Stop => self.end(*id, Cause::Killed),
                }
            }
            Event::OutOfMemory(id) => self.end(*id, Cause::OutOfMemory),
            Event::Died(id) => self.bury(*id),
        }
    }

    /// Has one sandbox forked. False when the zygote is of no more use.
    fn fork(&mut self, spec: ForkSpec, [guard, control, stdout, stderr]: [OwnedFd; 4]) -> bool {
        let refuse = |report: Report| launch::report(guard.as_fd(), &report);
        let (cgroup, cgroup_layer) =
            match keeper::join_plan(&spec.id, &spec.limits, &self.spec.required) {
                Ok(plan) => plan,
                Err(report) => {
                    refuse(report);
                    return true;
                }
            };
        // Memory is counted by every cgroup, CPU time by most.
        let counted = cgroup.as_ref().is_some_and(|cgroup| cgroup.has("cpu"));
        let made = plan::make(&spec.limits, counted).map_err(|error| keeper::refusal(&error));
        let forked = made.and_then(|plan| {
            let (ours, theirs) = Channel::pair().map_err(|error| failure(&error))?;
            let theirs = theirs.into_fd();
            let descriptors = [
                control.as_fd(),
                stdout.as_fd(),
                stderr.as_fd(),
                theirs.as_fd(),
            ];
            self.channel
                .send_with(plan.bytes(), &descriptors)
                .map_err(|error| failure(&error))?;
            let handle = self.forked()?;
            let pid = pid_of(&handle).ok_or_else(|| failure(&"the fork has no pid"))?;
            if let Some(cgroup) = &cgroup {
                cgroup.add(pid).map_err(|error| failure(&error))?;
            }
            fs::write(format!("/proc/{pid}/oom_score_adj"), "500").ok();
            // It waits for this byte before it does anything.
            ours.send(&[1]);
            Ok((plan, ours, handle, pid))
        });
        match forked {
            Ok((plan, report, handle, pid)) => {
                let landlock = plan::describe_landlock(&plan);
                let child = Child {
                    meter: keeper::meter_of(pid, cgroup.as_ref()),
                    spec,
                    pid,
                    handle,
                    guard,
                    report,
                    cgroup,
                    cgroup_layer,
                    landlock,
                    cause: None,
                    cpu_ms: 0,
                };
                self.children.insert(self.next, child);
                self.next += 1;
                true
            }
            Err(report) => {
                refuse(report);
                if let Some(cgroup) = cgroup {
                    cgroup.remove();
                }
                // A zygote that does not fork any more is replaced by the server.
                false
            }
        }
    }

    fn forked(&self) -> Result<OwnedFd, Report> {
        let timeout = Timespec {
            tv_sec: i64::try_from(FORK_TIMEOUT.as_secs()).unwrap_or(1),
            tv_nsec: 0,
        };
        let mut polled = [PollFd::new(&self.channel, PollFlags::IN)];
        if rustix::event::poll(&mut polled, Some(&timeout)) != Ok(1) {
            return Err(failure(&"the zygote does not answer"));
        }
        let (answer, handle) = self
            .channel
            .receive_with()
            .ok_or_else(|| failure(&"the zygote is gone"))?;
        handle.ok_or_else(|| {
            let errno = answer
                .first_chunk::<4>()
                .map_or(0, |bytes| i32::from_ne_bytes(*bytes));
            let source = std::io::Error::from_raw_os_error(errno);
            keeper::refusal(&JailError::Step {
                layer: Layer::UserNamespace,
                step: "fork of a zygote".to_owned(),
                source,
            })
        })
    }

    /// A word of a sandbox's init: sealed, failed, or ended.
    fn listen(&mut self, id: u64) {
        let Some(child) = self.children.get_mut(&id) else {
            return;
        };
        match child.report.receive().as_deref().and_then(Word::parse) {
            Some(Word::Sealed) => {
                let report = entered(child, self.layers.clone());
                launch::report(child.guard.as_fd(), &report);
            }
            Some(Word::Ended(status)) => {
                let cause = if libc::WIFEXITED(status) {
                    Cause::Exited {
                        status: libc::WEXITSTATUS(status),
                    }
                } else {
                    Cause::Signaled {
                        signal: libc::WTERMSIG(status),
                    }
                };
                child.cause.get_or_insert(cause);
            }
            Some(Word::Failed(step, errno)) => {
                let layer = plan::layer_of(step);
                let answer = std::io::Error::from_raw_os_error(errno).to_string();
                let (reason, fix) = explain::layer(layer, &answer, errno, &explain::Facts::read());
                launch::report(child.guard.as_fd(), &Report::Refused { layer, reason, fix });
                child.cause.get_or_insert(Cause::Killed);
            }
            // It is dying: what is left to say, its death says.
            None => self.end(id, KILLED_FROM_OUTSIDE),
        }
    }

    fn end(&mut self, id: u64, cause: Cause) {
        let Some(child) = self.children.get_mut(&id) else {
            return;
        };
        if child.cgroup.is_none() {
            child.cpu_ms = watch::cpu_ms(child.pid);
        }
        child.cause.get_or_insert(cause);
        rustix::process::pidfd_send_signal(&child.handle, Signal::KILL).ok();
        loop {
            let mut polled = [PollFd::new(&child.handle, PollFlags::IN)];
            if rustix::event::poll(&mut polled, Some(&keeper::GRACE)) == Ok(1) {
                break;
            }
            match &child.cgroup {
                Some(cgroup) => cgroup.kill(),
                None => watch::kill(child.pid),
            }
        }
        self.bury(id);
    }

    /// Every process of it is gone: the kernel reaps a pid namespace before its init is dead.
    fn bury(&mut self, id: u64) {
        let Some(child) = self.children.remove(&id) else {
            return;
        };
        let memory_peak_bytes = child.meter.memory_peak();
        let counted = child.cgroup.as_ref().and_then(|_| child.meter.cpu_ms());
        let cpu_ms = counted.unwrap_or(child.cpu_ms);
        let starved = child.cgroup.as_ref().is_some_and(Cgroup::ran_out_of_memory);
        let cause = if starved {
            Cause::OutOfMemory
        } else {
            child.cause.unwrap_or(KILLED_FROM_OUTSIDE)
        };
        launch::report(
            child.guard.as_fd(),
            &Report::Exited {
                cause,
                cpu_ms,
                memory_peak_bytes,
            },
        );
        self.leftovers.extend(child.cgroup);
        self.leftovers = std::mem::take(&mut self.leftovers)
            .into_iter()
            .filter_map(Cgroup::try_remove)
            .collect();
    }
}

fn entered(child: &Child, mut layers: Vec<LayerReport>) -> Report {
    let mut note = |layer, state, detail: String| {
        layers.retain(|report| report.layer != layer);
        layers.push(LayerReport {
            layer,
            state,
            detail,
        });
    };
    note(
        Layer::Rlimits,
        State::Enforced,
        rlimits::describe(&child.spec.limits),
    );
    note(Layer::Landlock, child.landlock.0, child.landlock.1.clone());
    layers.insert(0, child.cgroup_layer.clone());
    Report::Entered {
        layers,
        limits: keeper::limit_reports(&child.spec.limits, child.cgroup.as_ref()),
        meter: Some(child.meter.clone()),
    }
}

/// The pid of a pidfd, as we see it.
fn pid_of(handle: &OwnedFd) -> Option<i32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd())).ok()?;
    info.lines()
        .find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
}
