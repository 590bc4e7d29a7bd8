//! The keeper: the process `mcp-forge jail`. Makes one sandbox, watches it, ends it, cleans up.
//!
//! It stays outside the sandbox's namespaces and runs no byte of what is inside. It lives exactly
//! as long as the sandbox, and the sandbox no longer than the server's end of the launch socket.

use std::{
    fs,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::ExitCode,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, Signal},
};

use crate::{
    cgroup::{Cgroup, CgroupError},
    channel::{Channel, MAX_MESSAGE_BYTES},
    descriptors::Streams,
    error::JailError,
    explain, init, launch,
    meter::Meter,
    namespaces::{self, Outside, User},
    omitted, rlimits,
    rootfs::Sources,
    spec::{Cause, JailLimits, JailSpec, Layer, LayerReport, LimitReport, Report, State},
    sys::{self, Side},
    watch::{self, Members},
    zygote,
};

/// Time for a killed init to die by itself. Normal is a few milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);

/// Time for a cgroup to be removed whose processes are gone. The last report comes after it, and the
/// server waits for that for twice as long.
const REMOVAL: Duration = Duration::from_secs(5);

/// Serves the launch socket on standard input: one sandbox, from spec to exit report.
pub fn main() -> ExitCode {
    let socket = rustix::stdio::stdin();
    let (spec, streams) = match launch::receive(socket) {
        Ok(launch) => launch,
        Err(error) => {
            launch::report(
                socket,
                &Report::Failed {
                    message: error.to_string(),
                },
            );
            return ExitCode::FAILURE;
        }
    };
    match keep(socket, &spec, streams) {
        Ok(()) => ExitCode::SUCCESS,
        Err(report) => {
            launch::report(socket, &report);
            ExitCode::FAILURE
        }
    }
}

/// One sandbox's life. An error is the report to give; nothing is left running then.
fn keep(socket: BorrowedFd<'_>, spec: &JailSpec, streams: Streams) -> Result<(), Report> {
    if spec.zygote && spec.job.is_some() {
        return Err(failure(&"a zygote is no build job"));
    }
    if spec.zygote {
        return zygote::keep(socket, spec, streams);
    }
    let (cgroup, cgroup_layer) =
        join_plan(&spec.required, || Cgroup::create(&spec.id, &spec.limits))?;
    let started = stand_in(spec, cgroup.as_ref())
        .map_err(|error| refusal(&error))
        .and_then(|()| Starting::fork(spec, streams))
        .and_then(|starting| starting.release(cgroup.as_ref()));
    let sandbox = match started {
        Ok(sandbox) => sandbox,
        Err(report) => {
            remove(cgroup);
            return Err(report);
        }
    };
    let (layers, listener) = match sandbox.wait_until_sealed() {
        Ok(sealed) => sealed,
        Err(report) => {
            sandbox.end(cgroup.as_ref());
            remove(cgroup);
            return Err(report);
        }
    };
    let limits = limit_reports(&spec.limits, cgroup.as_ref());
    let layers = std::iter::once(cgroup_layer).chain(layers).collect();
    let init = sandbox.init.as_raw_nonzero().get();
    let meter = meter_of(init, cgroup.as_ref());
    let entered = Report::Entered {
        layers,
        limits,
        meter: Some(meter.clone()),
    };
    match listener {
        None => launch::report(socket, &entered),
        // Without it the server ends the job: it waits for the report until then.
        Some(listener) => launch::report_with(socket, &entered, listener.as_fd()).unwrap_or(()),
    }
    let end = sandbox.supervise(socket, spec, cgroup.as_ref(), &meter);
    let memory_peak_bytes = meter.memory_peak();
    remove(cgroup);
    match end {
        Ok((cause, cpu_ms)) => launch::report(
            socket,
            &Report::Exited {
                cause,
                cpu_ms,
                memory_peak_bytes,
            },
        ),
        Err(message) => return Err(Report::Failed { message }),
    }
    Ok(())
}

/// Limits per process that stand in for what no cgroup counts. Init inherits them.
fn stand_in(spec: &JailSpec, cgroup: Option<&Cgroup>) -> Result<(), JailError> {
    let counted = |controller| cgroup.is_some_and(|cgroup| cgroup.has(controller));
    if omitted(Layer::Rlimits) {
        return Ok(());
    }
    // A job's files are on disk, bounded by its own seal, and it has no memfd.
    if !counted("memory") && spec.job.is_none() {
        rlimits::bound_files(spec.limits.memory_bytes)?;
    }
    if !counted("cpu") {
        rlimits::bound_cpu_time(spec.limits.cpu_seconds)?;
    }
    Ok(())
}

pub(crate) fn meter_of(init: i32, cgroup: Option<&Cgroup>) -> Meter {
    cgroup.map_or_else(
        || Meter {
            init,
            program: None,
            cpu: None,
            memory_peak: None,
        },
        |cgroup| cgroup.meter(init),
    )
}

fn remove(cgroup: Option<Cgroup>) {
    if let Some(cgroup) = cgroup {
        cgroup.remove(Instant::now() + REMOVAL);
    }
}

/// Makes the cgroup, or decides that the run goes on without.
pub(crate) fn join_plan(
    required: &[Layer],
    create: impl FnOnce() -> Result<Cgroup, CgroupError>,
) -> Result<(Option<Cgroup>, LayerReport), Report> {
    let layer = Layer::Cgroup;
    let missing = |detail: String| {
        (
            None,
            LayerReport {
                layer,
                state: State::Missing,
                detail,
            },
        )
    };
    if omitted(layer) {
        return Ok(missing("left out by a test build".to_owned()));
    }
    match create() {
        Ok(cgroup) => {
            let detail = cgroup.describe();
            Ok((
                Some(cgroup),
                LayerReport {
                    layer,
                    state: State::Enforced,
                    detail,
                },
            ))
        }
        Err(error) if required.contains(&layer) => {
            let (reason, fix) = explain::cgroup(&error);
            Err(Report::Refused { layer, reason, fix })
        }
        Err(error) => Ok(missing(explain::cgroup(&error).0)),
    }
}

/// Which limits the kernel holds for the whole sandbox, and which have only a stand-in.
pub(crate) fn limit_reports(limits: &JailLimits, cgroup: Option<&Cgroup>) -> Vec<LimitReport> {
    let report = |name: &str, state, detail: &str| LimitReport {
        name: name.to_owned(),
        state,
        detail: detail.to_owned(),
    };
    let held = |controller, stand_in: &str| {
        if cgroup.is_some_and(|cgroup| cgroup.has(controller)) {
            report(controller, State::Enforced, "cgroup")
        } else {
            report(controller, State::BestEffort, stand_in)
        }
    };
    let storage = format!(
        "tmpfs sizes: /tmp and /workspace {} MiB each, /dev/shm {} MiB",
        limits.tmp_bytes >> 20,
        limits.shm_bytes >> 20
    );
    vec![
        held(
            "memory",
            "per process by rlimit, all together by a watch ten times a second",
        ),
        held(
            "cpu",
            "CPU seconds per process by rlimit; no share of a core is set",
        ),
        held("pids", "per user namespace by rlimit"),
        report("storage", State::Enforced, &storage),
        report(
            "timeout",
            State::Enforced,
            "wall clock, then SIGKILL to pid 1 of the sandbox",
        ),
    ]
}

/// Init, forked and waiting for its release.
pub(crate) struct Starting {
    init: Pid,
    pub(crate) handle: OwnedFd,
    pub(crate) channel: Channel,
    user: User,
}

impl Starting {
    /// Forks init. In the child this does not return.
    pub(crate) fn fork(spec: &JailSpec, streams: Streams) -> Result<Self, Report> {
        let privileged = rustix::process::geteuid().is_root();
        // Root of a container or a plain user namespace may lack the privilege all the same: then
        // init opens them, as for an ordinary user.
        let sources = if privileged {
            Sources::open(spec).unwrap_or_default()
        } else {
            Sources::default()
        };
        if privileged {
            // The server's groups must not follow into the sandbox; without privilege they cannot be left.
            rustix::thread::set_thread_groups(&[]).ok();
        }
        let (ours, theirs) = Channel::pair().map_err(|error| failure(&error))?;
        let surroundings = init::Surroundings {
            sources,
            outside: Outside::read(),
        };
        match namespaces::fork_init().map_err(|error| refusal(&error))? {
            Side::Child => {
                drop(ours);
                init::run(spec, streams, surroundings, &theirs)
            }
            Side::Parent(init) => {
                drop((theirs, streams, surroundings));
                let pid = Pid::from_raw(init).ok_or_else(|| failure(&"clone gave no pid"))?;
                let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())
                    .map_err(|error| failure(&error));
                match handle {
                    Ok(handle) => Ok(Self {
                        init: pid,
                        handle,
                        channel: ours,
                        user: match spec.job {
                            None => User::Code(std::process::id()),
                            Some(_) => User::Builder,
                        },
                    }),
                    Err(report) => {
                        rustix::process::kill_process(pid, Signal::KILL).ok();
                        sys::wait_with_usage(init).ok();
                        Err(report)
                    }
                }
            }
        }
    }

    /// Gives init its ids and its cgroup, then lets it go on.
    pub(crate) fn release(self, cgroup: Option<&Cgroup>) -> Result<Self, Report> {
        let init = self.init.as_raw_nonzero().get();
        let prepared = namespaces::map_ids(init, self.user)
            .map_err(|error| refusal(&error))
            .and_then(|()| {
                cgroup
                    .map_or(Ok(()), |cgroup| cgroup.add(init))
                    .map_err(|error| failure(&error))
            });
        if let Err(report) = prepared {
            self.end(None);
            return Err(report);
        }
        // The first to die when the host runs out of memory, and never exempt from its own limit.
        // From outside: once it has the sandbox's user, init may not.
        fs::write(format!("/proc/{init}/oom_score_adj"), "500").ok();
        self.channel.send(&[1]);
        Ok(self)
    }

    /// Waits for init's word that every layer is in place, which brings a job's listener.
    pub(crate) fn wait_until_sealed(&self) -> Result<(Vec<LayerReport>, Option<OwnedFd>), Report> {
        let (bytes, listener) = self
            .channel
            .receive_with(MAX_MESSAGE_BYTES)
            .ok_or_else(|| failure(&"it was killed while it was being built"))?;
        match init::parse(&bytes).map_err(|error| failure(&error))? {
            init::Message::Sealed { layers } => Ok((layers, listener)),
            init::Message::Refused { layer, step, errno } => {
                let (reason, fix) = explain::layer(layer, &step, errno, &explain::Facts::read());
                Err(Report::Refused { layer, reason, fix })
            }
            init::Message::Failed { message } => Err(Report::Failed { message }),
            init::Message::Ended { .. } => Err(failure(&"it ended before it began")),
        }
    }

    /// Kills everything in the sandbox and waits until it is gone: the kernel reaps the whole pid
    /// namespace before it lets its init be waited for.
    pub(crate) fn end(&self, cgroup: Option<&Cgroup>) -> u64 {
        rustix::process::pidfd_send_signal(&self.handle, Signal::KILL).ok();
        while !self.is_dead_within(PATIENCE) {
            // Init must run to die, and what it is to take with it competes for the processor:
            // that goes first, and with whatever processor there is.
            match cgroup {
                Some(cgroup) => cgroup.kill(),
                None => self.members().kill(),
            }
        }
        sys::wait_with_usage(self.init.as_raw_nonzero().get()).unwrap_or(0)
    }

    fn members(&self) -> Members {
        Members::Sandbox(self.init.as_raw_nonzero().get())
    }

    fn is_dead_within(&self, time: Duration) -> bool {
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: time.subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(&self.handle, PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&time)) == Ok(1)
    }

    /// Watches until the program, the server or a limit ends it.
    fn supervise(
        &self,
        socket: BorrowedFd<'_>,
        spec: &JailSpec,
        cgroup: Option<&Cgroup>,
        meter: &Meter,
    ) -> Result<(Cause, u64), String> {
        // A test build that leaves the cgroup out leaves its stand-in out too.
        let counted = cgroup.is_some_and(|cgroup| cgroup.has("memory")) || omitted(Layer::Cgroup);
        let holds_too_much = || self.members().hold_more_than(spec.limits.memory_bytes);
        let cause = loop {
            match self.wait(socket, cgroup, !counted) {
                Wake::ServerSpoke => match launch::word(socket) {
                    launch::Word::Interrupt => watch::interrupt(self.init.as_raw_nonzero().get()),
                    launch::Word::Used => {}
                    launch::Word::Stop => break Ok(Cause::Killed),
                },
                Wake::OutOfMemory => break Ok(Cause::OutOfMemory),
                Wake::Tick if !counted && holds_too_much() => {
                    break Ok(Cause::OutOfMemory);
                }
                Wake::Tick => {}
                Wake::InitSpoke => break self.last_words(),
            }
        };
        let seen_ms = if cgroup.is_none() {
            self.members().cpu_ms()
        } else {
            0
        };
        let cpu_ms = self.end(cgroup).max(seen_ms);
        let counted = cgroup.and_then(|_| meter.cpu_ms());
        let cpu_ms = counted.unwrap_or(cpu_ms);
        // The kernel's count is the last word: with one limit for the group it also kills init.
        let cause = if cgroup.is_some_and(Cgroup::ran_out_of_memory) {
            Ok(Cause::OutOfMemory)
        } else {
            cause
        };
        cause.map(|cause| (cause, cpu_ms))
    }

    fn wait(&self, socket: BorrowedFd<'_>, cgroup: Option<&Cgroup>, tick: bool) -> Wake {
        let memory_events = cgroup.and_then(Cgroup::memory_events);
        let mut polled = vec![
            PollFd::new(&self.channel, PollFlags::IN),
            PollFd::from_borrowed_fd(socket, PollFlags::IN),
        ];
        if let Some(events) = &memory_events {
            polled.push(PollFd::from_borrowed_fd(events.as_fd(), PollFlags::IN));
        }
        let timeout = tick.then_some(Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        });
        if rustix::event::poll(&mut polled, timeout.as_ref()).is_err() {
            return Wake::Tick;
        }
        let woken: Vec<bool> = polled
            .iter()
            .map(|poll| !poll.revents().is_empty())
            .collect();
        if woken.get(2) == Some(&true) {
            return Wake::OutOfMemory;
        }
        // How it ended is known before the server's word that it shall.
        if woken[0] {
            Wake::InitSpoke
        } else if woken[1] {
            Wake::ServerSpoke
        } else {
            Wake::Tick
        }
    }

    fn last_words(&self) -> Result<Cause, String> {
        let message = self
            .channel
            .receive()
            .and_then(|bytes| init::parse(&bytes).ok());
        match message {
            Some(init::Message::Ended {
                exited: Some(status),
                ..
            }) => Ok(Cause::Exited { status }),
            Some(init::Message::Ended {
                signaled: Some(signal),
                ..
            }) => Ok(Cause::Signaled { signal }),
            Some(init::Message::Failed { message }) => Err(message),
            // Killed from outside: by the kernel's OOM killer, or by an administrator.
            _ => Ok(Cause::Signaled {
                signal: Signal::KILL.as_raw(),
            }),
        }
    }
}

/// What ended a wait.
enum Wake {
    ServerSpoke,
    OutOfMemory,
    InitSpoke,
    Tick,
}

pub(crate) fn refusal(error: &JailError) -> Report {
    match error {
        JailError::Step {
            layer,
            step,
            source,
        } => {
            let errno = source.raw_os_error().unwrap_or_default();
            let (reason, fix) = explain::layer(
                *layer,
                &format!("{step}: {source}"),
                errno,
                &explain::Facts::read(),
            );
            Report::Refused {
                layer: *layer,
                reason,
                fix,
            }
        }
        JailError::Launch(_) | JailError::Execute { .. } => failure(error),
    }
}

pub(crate) fn failure(error: &impl std::fmt::Display) -> Report {
    Report::Failed {
        message: error.to_string(),
    }
}
