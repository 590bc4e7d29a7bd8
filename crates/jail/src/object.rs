//! The object that a zygote's interpreter loads: forks sealed sandboxes on request.
//!
//! Built by `build.rs` from this file, `seal.rs` and `raw.rs` alone, without any library, and
//! carried in the binary. The interpreter loads it as a module with one function.
#![no_std]

mod fork_calls;
mod python;
mod raw;
mod seal;

use fork_calls::{EINTR, bytes_of, number};
use seal::{Plan, Start, Step};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    fork_calls::exit(70)
}

/// Named by the unwinding tables of `core`, which nothing here unwinds through.
#[unsafe(no_mangle)]
pub extern "C" fn rust_eh_personality() {}

/// What is left to do for a fork that the keeper asked for.
const READY: u8 = 1;

/// One fork that is asked for: what it is to do to itself, and its descriptors.
struct Request {
    plan: Plan,
    /// Control socket, standard output, standard error, and the line to the keeper.
    descriptors: [i32; 4],
}

impl Request {
    /// Whether nobody waits for this fork.
    fn has_time(&self) -> bool {
        self.plan.has_time != 0
    }
}

/// Waits for a request: the plan's bytes, with four descriptors beside it. `None` when the keeper
/// is gone.
fn receive(channel: i32) -> Option<Request> {
    let mut request = Request {
        plan: Plan::EMPTY,
        descriptors: [-1; fork_calls::MOST_DESCRIPTORS],
    };
    loop {
        match fork_calls::receive(channel, bytes_of(&mut request.plan), &mut request.descriptors) {
            Err(EINTR) => {}
            Ok((length, 4)) if length == size_of::<Plan>() => return Some(request),
            _ => return None,
        }
    }
}

/// Forks. True in the sandbox's program, which has descriptors 0 to 3 in place and nothing else,
/// and is sealed. The caller is single-threaded and brackets the call as CPython brackets a fork.
fn serve(channel: i32, request: &Request) -> bool {
    const PIDFD: usize = 0x1000;
    const SIGCHLD: usize = 17;
    let [control, stdout, stderr, report] = request.descriptors;
    let mut pidfd = -1;
    // Ends of forks are the keeper's business; nobody here waits for them.
    fork_calls::ignore_signal(SIGCHLD);
    let forked = fork_calls::clone(namespaces(&request.plan) | PIDFD | SIGCHLD, Some(&mut pidfd));
    if forked == Ok(0) {
        raw::close(channel);
        become_init(&request.plan, [control, stdout, stderr], report);
        return true;
    }
    for descriptor in request.descriptors {
        raw::close(descriptor);
    }
    let errno = forked.err().unwrap_or(0);
    let sent = fork_calls::send(channel, &errno.to_ne_bytes(), forked.ok().map(|_| pidfd));
    if forked.is_ok() {
        raw::close(pidfd);
    }
    if sent.is_err() {
        fork_calls::exit(0);
    }
    false
}

/// The flags of clone for the namespaces that siblings do not share.
fn namespaces(plan: &Plan) -> usize {
    const USER_AND_MOUNT: usize = 0x1000_0000 | 0x0002_0000;
    let own = |start: Start, flag: usize| if plan.has(start as u8) { flag } else { 0 };
    USER_AND_MOUNT | own(Start::PidNamespace, 0x2000_0000) | own(Start::Network, 0x4000_0000)
}

/// Pid 1 of the sandbox: seals itself, forks the program, and reaps. Returns in the program only.
fn become_init(plan: &Plan, streams: [i32; 3], report: i32) {
    const PR_SET_DUMPABLE: usize = 4;
    const SIGCHLD: usize = 17;
    fork_calls::default_signal(SIGCHLD);
    // One byte: it is in its cgroup. Nothing when the keeper is gone.
    if fork_calls::read(report, &mut [0]) != Ok(1) {
        fork_calls::exit(1);
    }
    if let Err((step, errno)) = map_own_ids().and_then(|()| seal::seal(plan)) {
        tell(report, 0, step as i32, errno);
        fork_calls::exit(1);
    }
    let worker = match fork_calls::clone(SIGCHLD, None) {
        Ok(0) => {
            raw::close(report);
            return enter_program(plan, streams);
        }
        Ok(worker) => worker,
        Err(_) => fork_calls::exit(1),
    };
    // The program must not read init's memory or descriptors through /proc/1.
    let _ = raw::integers(raw::number::PRCTL, [PR_SET_DUMPABLE, 0, 0, 0, 0, 0]);
    for stream in streams {
        raw::close(stream);
    }
    tell(report, READY, 0, 0);
    reap(worker, report)
}

/// Reaps until no child is left, or until it is killed: copies of the program may outlive it. Tells
/// how the program ended, and each copy that it was told to watch for.
fn reap(mut worker: i32, report: i32) -> ! {
    let mut watched = [0; seal::MOST_COPIES];
    loop {
        let (pid, status) = match fork_calls::wait_any() {
            Ok(reaped) => reaped,
            Err(EINTR) => continue,
            Err(_) => fork_calls::exit(0),
        };
        if pid == worker {
            tell(report, 2, status, 0);
            // The number may come again.
            worker = 0;
            continue;
        }
        note_watched(&mut watched, report);
        if let Some(place) = watched.iter_mut().find(|watched| **watched == pid) {
            *place = 0;
            tell(report, 3, pid, status);
        }
    }
}

/// Takes the keeper's words: each is the pid of a copy.
fn note_watched(watched: &mut [i32], report: i32) {
    let mut pid = [0; 4];
    while fork_calls::receive_now(report, &mut pid) == Ok(4) {
        if let Some(place) = watched.iter_mut().find(|watched| **watched == 0) {
            *place = i32::from_ne_bytes(pid);
        }
    }
}

/// Its own user namespace, with the one user there was.
fn map_own_ids() -> Result<(), (Step, raw::Errno)> {
    let write = |path, text| fork_calls::write_file(path, text).map_err(|errno| (Step::Proc, errno));
    write(c"/proc/self/setgroups", b"deny")?;
    write(c"/proc/self/uid_map", b"1000 1000 1")?;
    write(c"/proc/self/gid_map", b"1000 1000 1")
}

/// Puts the program's descriptors in place and closes every other one.
fn enter_program(plan: &Plan, streams: [i32; 3]) {
    const F_DUPFD_CLOEXEC: usize = 1030;
    let high = |fd: i32| raw::integers(number::FCNTL, [fd as usize, F_DUPFD_CLOEXEC, 16, 0, 0, 0]);
    let place = |fd: usize, target: usize| raw::integers(number::DUP3, [fd, target, 0, 0, 0, 0]);
    let arranged = (|| {
        let [control, stdout, stderr] = [high(streams[0])?, high(streams[1])?, high(streams[2])?];
        let null = raw::open(c"/dev/null", 0)?;
        let null = high(null)?;
        place(null, 0)?;
        place(stdout, 1)?;
        place(stderr, 2)?;
        place(control, 3)?;
        if plan.has(Start::Descriptors as u8) {
            raw::integers(number::CLOSE_RANGE, [4, u32::MAX as usize, 0, 0, 0, 0])?;
        }
        raw::integers(number::SETSID, [0; 6])
    })();
    if arranged.is_err() {
        fork_calls::exit(126);
    }
}

/// Nine bytes: what happened, and two numbers with it.
fn tell(report: i32, what: u8, first: i32, second: i32) {
    let mut message = [0; 9];
    message[0] = what;
    message[1..5].copy_from_slice(&first.to_ne_bytes());
    message[5..9].copy_from_slice(&second.to_ne_bytes());
    let _ = fork_calls::send(report, &message, None);
}
