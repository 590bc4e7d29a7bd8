//! A zygote's keeper: has sandboxes forked on request, puts each into its cgroup, ends each.
//!
//! One loop over everything that can happen: a request of the server, a word of a sandbox's init,
//! a word of its guard, memory that runs out, a death. It waits for nothing else, but for the
//! zygote while that forks.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::{
    cgroup::{Cgroup, Stock},
    channel::Channel,
    descriptors::Streams,
    error::JailError,
    fork::{Fork, Heard},
    keeper::{self, Starting, failure},
    launch,
    mover::{Move, Mover},
    plan,
    raw::Plain,
    ready::Ready,
    seal::{MOST_COPIES, Plan, Start},
    spec::{Cause, ForkSpec, JailLimits, JailSpec, KeeperRequest, Layer, LayerReport, Report},
    twin::Twin,
    watch,
};

mod twins;

/// Time for a zygote to fork. Normal is under a millisecond.
const FORK_TIMEOUT: Duration = Duration::from_secs(5);

/// Words that an init can have waiting: that it is sealed, its program's end, and one for each copy.
const MOST_WORDS: usize = MOST_COPIES + 2;

/// Time between two looks at what no descriptor tells.
const TICK: Duration = Duration::from_millis(100);

/// Builds the zygote's jail, then serves forks until the server is gone, or the zygote and all
/// that it forked.
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
    let (layers, _) = starting.wait_until_sealed().inspect_err(|_| {
        starting.end(None);
    })?;
    let zygote = Zygote::new(spec, layers, ours).and_then(|zygote| {
        zygote.watch_over(socket, &starting)?;
        Ok(zygote)
    });
    let mut zygote = zygote.map_err(|error| {
        starting.end(None);
        failure(&error)
    })?;
    launch::report(
        socket,
        &Report::Entered {
            layers: zygote.layers.clone(),
            limits: Vec::new(),
            meter: None,
        },
    );
    zygote.serve(socket);
    // The pid namespace takes all forks with it.
    starting.end(None);
    zygote.end();
    Ok(())
}

struct Zygote<'a> {
    spec: &'a JailSpec,
    layers: Vec<LayerReport>,
    channel: Channel,
    /// The zygote is dead: nothing is forked any more, and what it has forked goes on.
    is_barren: bool,
    forks: HashMap<u64, Fork>,
    /// Copies that were made in them.
    twins: HashMap<u64, Twin>,
    /// Numbers both.
    next: u64,
    cgroups: Stock,
    mover: Mover,
    ready: Ready,
    /// The last plan that was made, and for what: most forks have the same limits.
    plan: Option<(JailLimits, bool, Plan)>,
}

/// What is waited for: a fork's number and one of these in the lowest bits.
const DESCRIPTORS: [fn(u64) -> Event; 4] = [
    Event::Spoke,
    Event::GuardSpoke,
    Event::OutOfMemory,
    Event::Died,
];
const BITS: u32 = 2;

/// The keeper's own descriptors, as forks of number 0.
const REQUEST: u64 = 0;
const ZYGOTE_GONE: u64 = 1;
const ALL_GONE: u64 = 2;
const FIRST: u64 = 1;

/// What happened to whom.
enum Event {
    Spoke(u64),
    GuardSpoke(u64),
    OutOfMemory(u64),
    Died(u64),
}

impl<'a> Zygote<'a> {
    fn new(
        spec: &'a JailSpec,
        layers: Vec<LayerReport>,
        channel: Channel,
    ) -> std::io::Result<Self> {
        Ok(Self {
            spec,
            layers,
            channel,
            is_barren: false,
            forks: HashMap::new(),
            twins: HashMap::new(),
            next: FIRST,
            cgroups: Stock::new(&spec.id),
            mover: Mover::start()?,
            ready: Ready::new()?,
            plan: None,
        })
    }

    fn watch_over(&self, socket: BorrowedFd<'_>, zygote: &Starting) -> rustix::io::Result<()> {
        self.ready.add(socket, REQUEST)?;
        self.ready.add(&self.channel, ZYGOTE_GONE)?;
        self.ready.add(&zygote.handle, ALL_GONE)
    }

    fn serve(&mut self, socket: BorrowedFd<'_>) {
        loop {
            let restless = self.forks.values().any(Fork::is_restless)
                || self.twins.values().any(Twin::is_restless);
            for name in self.ready.wait(restless.then_some(TICK)) {
                match name {
                    REQUEST => {
                        if self.obey(socket).is_err() {
                            return;
                        }
                    }
                    ZYGOTE_GONE => self.grow_barren(),
                    ALL_GONE => return,
                    name => {
                        let event =
                            DESCRIPTORS[usize::try_from(name & ((1 << BITS) - 1)).unwrap_or(0)];
                        self.handle(&event(name >> BITS));
                    }
                }
            }
            if restless {
                self.look_around();
            }
        }
    }

    /// One request of the server.
    fn obey(&mut self, socket: BorrowedFd<'_>) -> Result<(), JailError> {
        let (request, descriptors) = launch::receive_message(socket)?;
        match request {
            KeeperRequest::Fork(spec) => self.fork(spec, launch::exactly(descriptors)?),
            KeeperRequest::Expect { of, limits } => self.expect_copy(&of, &limits),
            KeeperRequest::Adopt(spec) => {
                let [guard] = launch::exactly(descriptors)?;
                self.adopt(spec, guard);
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: &Event) {
        let (Event::Spoke(id) | Event::GuardSpoke(id) | Event::OutOfMemory(id) | Event::Died(id)) =
            event;
        // Neither, if it was buried by an earlier event of the same look.
        if self.forks.contains_key(id) {
            self.handle_fork(*id, event);
            self.settle(*id);
        } else if let Some(twin) = self.twins.get_mut(id) {
            let sandbox = twin.sandbox;
            self.handle_twin(*id, event);
            self.settle(sandbox);
        }
    }

    fn handle_fork(&mut self, id: u64, event: &Event) {
        let Some(fork) = self.forks.get_mut(&id) else {
            return;
        };
        match event {
            Event::Spoke(_) => {
                // The word may have been heard with an order to stop that came in the same look: to
                // wait for the next one would hold up every other sandbox.
                if fork.report.is_ready()
                    && !self.hear(id)
                    && let Some(fork) = self.forks.get(&id)
                {
                    // It is dying: what is left to say, its death says.
                    self.ready.remove(&*fork.report);
                }
            }
            Event::GuardSpoke(_) => match launch::word(fork.guard.as_fd()) {
                launch::Word::Interrupt => watch::interrupt(fork.pid),
                launch::Word::Used => fork.is_used = true,
                launch::Word::Stop => {
                    self.ready.remove(&fork.guard);
                    self.hear_all(id);
                    if let Some(fork) = self.forks.get_mut(&id) {
                        fork.end(Cause::Killed);
                    }
                }
            },
            Event::OutOfMemory(_) => {
                if let Some(events) = fork.cgroup.as_ref().and_then(Cgroup::memory_events) {
                    self.ready.remove(events);
                }
                fork.end(Cause::OutOfMemory);
            }
            Event::Died(_) => self.bury(id),
        }
    }

    /// Hears one word of a sandbox's init, which must be there. False if no more will come.
    fn hear(&mut self, id: u64) -> bool {
        let Some(fork) = self.forks.get_mut(&id) else {
            return false;
        };
        match fork.listen(&self.layers) {
            Heard::Word => {}
            Heard::CopyEnded(pid, status) => {
                let mut twins = self.twins.values_mut();
                if let Some(twin) = twins.find(|twin| twin.sandbox == id && twin.spec.pid == pid) {
                    twin.reaped(status);
                }
            }
            Heard::Nothing => return false,
        }
        true
    }

    /// Hears what a sandbox's init has said already. Before an end that the server orders: how it
    /// ended by itself is then known, however late the server's patience found us. Bounded: an init
    /// that was taken over could talk for ever.
    fn hear_all(&mut self, id: u64) {
        let has_more = |fork: &Fork| fork.report.is_ready();
        for _ in 0..MOST_WORDS {
            if !self.forks.get(&id).is_some_and(has_more) || !self.hear(id) {
                return;
            }
        }
    }

    fn handle_twin(&mut self, id: u64, event: &Event) {
        let Some(twin) = self.twins.get_mut(&id) else {
            return;
        };
        match event {
            // It has no line of its own to init.
            Event::Spoke(_) => {}
            Event::GuardSpoke(_) => match launch::word(twin.guard.as_fd()) {
                launch::Word::Interrupt => twin.interrupt(),
                launch::Word::Used => {}
                launch::Word::Stop => {
                    self.ready.remove(&*twin.guard);
                    let sandbox = twin.sandbox;
                    self.hear_all(sandbox);
                    if let Some(twin) = self.twins.get_mut(&id) {
                        twin.end(Some(Cause::Killed));
                    }
                }
            },
            Event::OutOfMemory(_) => {
                if let Some(events) = twin.cgroup.as_ref().and_then(Cgroup::memory_events) {
                    self.ready.remove(events);
                }
                twin.end(Some(Cause::OutOfMemory));
            }
            Event::Died(_) => {
                self.ready.remove(&*twin.handle);
                twin.is_dead = true;
                twin.end(None);
            }
        }
    }

    /// What no descriptor tells: memory that no cgroup counts, and processes that will not die.
    fn look_around(&mut self) {
        for fork in self.forks.values_mut() {
            if fork.is_over_its_limit() {
                fork.end(Cause::OutOfMemory);
            }
        }
        for twin in self.twins.values_mut() {
            if twin.is_over_its_limit() {
                twin.end(Some(Cause::OutOfMemory));
            }
        }
        let restless = self.forks.iter().filter(|(_, fork)| fork.is_restless());
        let twins = self.twins.values().filter(|twin| twin.is_restless());
        let sandboxes: BTreeSet<u64> = restless
            .map(|(number, _)| *number)
            .chain(twins.map(|twin| twin.sandbox))
            .collect();
        for sandbox in sandboxes {
            self.settle(sandbox);
        }
    }

    fn grow_barren(&mut self) {
        self.is_barren = true;
        self.ready.remove(&self.channel);
    }

    /// Has one sandbox forked. A zygote that cannot is replaced by the server.
    fn fork(&mut self, spec: ForkSpec, [guard, control, stdout, stderr]: [OwnedFd; 4]) {
        if self.is_barren {
            launch::report(guard.as_fd(), &failure(&"the zygote is gone"));
            return;
        }
        let (cgroup, cgroup_layer) =
            match keeper::join_plan(&self.spec.required, || self.cgroups.take(&spec.limits)) {
                Ok(plan) => plan,
                Err(report) => return launch::report(guard.as_fd(), &report),
            };
        let begun = self
            // Memory is counted by every cgroup, CPU time by most.
            .plan(
                &spec,
                cgroup.as_ref().is_some_and(|cgroup| cgroup.has("cpu")),
            )
            .map_err(|error| keeper::refusal(&error))
            .and_then(|plan| Ok((plan, self.ask(&plan, &[control, stdout, stderr])?)));
        let (plan, (handle, pid, report)) = match begun {
            Ok(begun) => begun,
            Err(report) => {
                launch::report(guard.as_fd(), &report);
                if let Some(cgroup) = cgroup {
                    self.cgroups.give_back(spec.limits, cgroup, true);
                }
                return self.grow_barren();
            }
        };
        let fork = Fork {
            meter: keeper::meter_of(pid, cgroup.as_ref()),
            spec,
            pid,
            handle,
            guard,
            report: Arc::new(report),
            cgroup,
            cgroup_layer,
            landlock: plan::describe_landlock(&plan),
            is_used: false,
            dying: None,
            cause: None,
            cpu_ms: 0,
            shared: None,
        };
        self.welcome_fork(fork);
    }

    /// Watches over a new fork and lets it go on, into its cgroup.
    fn welcome_fork(&mut self, mut fork: Fork) {
        let id = self.next;
        self.next += 1;
        let memory = fork.cgroup.as_ref().and_then(Cgroup::memory_events);
        let descriptors = [
            Some(fork.report.as_fd()),
            Some(fork.guard.as_fd()),
            memory,
            Some(fork.handle.as_fd()),
        ];
        let watched = (0..).zip(descriptors).try_for_each(|(kind, descriptor)| {
            descriptor.map_or(Ok(()), |descriptor| {
                self.ready.add(descriptor, id << BITS | kind)
            })
        });
        let entrances = fork.cgroup.as_mut().map(Cgroup::entrances).transpose();
        match (watched, entrances) {
            (Ok(()), Ok(Some(entrances))) => {
                let report = Arc::clone(&fork.report);
                self.mover.request(Move {
                    moves: vec![(fork.pid, entrances)],
                    // It has done nothing yet, and ends if it is not where it belongs.
                    then: Box::new(move |moved| {
                        if moved {
                            report.send(&[1]);
                        } else {
                            report.close();
                        }
                    }),
                });
            }
            (Ok(()), Ok(None)) => fork.report.send(&[1]),
            // It has done nothing yet, and will not.
            (Err(_), _) | (_, Err(_)) => fork.end(Cause::Killed),
        }
        self.forks.insert(id, fork);
    }

    /// The plan for these limits. `counted`: a cgroup holds them.
    fn plan(&mut self, spec: &ForkSpec, counted: bool) -> Result<Plan, JailError> {
        let known = self
            .plan
            .filter(|(limits, with, _)| *limits == spec.limits && *with == counted);
        let mut plan = match known {
            Some((.., plan)) => plan,
            None => plan::make(&spec.limits, counted)?,
        };
        if self.spec.own_networks {
            plan.skip &= !(1 << Start::Network as u8);
        }
        self.plan = Some((spec.limits, counted, plan));
        plan.has_time = spec.has_time.into();
        Ok(plan)
    }

    /// Asks the zygote for a fork: its handle, its pid, and the line to its init, which waits.
    fn ask(&self, plan: &Plan, streams: &[OwnedFd; 3]) -> Result<(OwnedFd, i32, Channel), Report> {
        let (ours, theirs) = Channel::pair().map_err(|error| failure(&error))?;
        let theirs = theirs.into_fd();
        let [control, stdout, stderr] = streams;
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
        Ok((handle, pid, ours))
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
            .receive_with(64)
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

    fn bury(&mut self, id: u64) {
        let Some(fork) = self.forks.remove(&id) else {
            return;
        };
        self.ready.remove(&*fork.report);
        // The cgroup outlives it.
        if let Some(events) = fork.cgroup.as_ref().and_then(Cgroup::memory_events) {
            self.ready.remove(events);
        }
        for (limits, cgroup, is_fit) in fork.bury() {
            self.cgroups.give_back(limits, cgroup, is_fit);
        }
        self.orphan(id);
    }

    fn end(mut self) {
        let ids: Vec<u64> = self.forks.keys().copied().collect();
        for id in ids {
            self.bury(id);
        }
        self.cgroups.remove();
    }
}

/// The pid of a pidfd, as we see it.
fn pid_of(handle: &OwnedFd) -> Option<i32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd())).ok()?;
    info.lines()
        .find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
}
