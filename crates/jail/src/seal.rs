//! The seal: what a process does to itself last, after its surroundings are built and before it
//! reads a byte of the program. Everything here only ever takes away.
//!
//! One list, two places: init runs it on the cold path, and a fork of a zygote runs it on the
//! warm one. For the latter it is compiled a second time, without any library, into an object
//! that the zygote's interpreter loads (`object.rs`). It decides nothing: what to do is in the
//! [`Plan`], which [`crate::plan`] makes.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "arguments of system calls are registers: words without a sign"
)]

use core::ffi::CStr;

use super::raw::{self, EINVAL, Errno, number};

/// Instructions of the narrow seccomp filter, at most.
pub(crate) const MOST_INSTRUCTIONS: usize = 192;

/// Limits per process, at most.
pub(crate) const MOST_LIMITS: usize = 12;

/// Copies of one interpreter that are watched in its sandbox at the same time, at most.
pub(crate) const MOST_COPIES: usize = 256;

/// What the seal is to do. Plain bytes: it travels to a zygote as it is.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// What to leave out, a bit each by [`Step`] and [`Start`]: what an older kernel lacks, what a
    /// newer one makes needless, or what a test build omits.
    pub(crate) skip: u32,
    /// Not 0: the fork waits in a pool, and may rehearse before it is needed.
    pub(crate) has_time: u32,
    /// How many of `limits` count.
    pub(crate) limit_count: u64,
    /// Resource, soft and hard limit.
    pub(crate) limits: [[u64; 3]; MOST_LIMITS],
    /// Options of the tmpfs mounts for /tmp, /workspace and /dev/shm, NUL-terminated.
    pub(crate) directories: [[u8; 64]; 3],
    /// Landlock: rights over files and network that are taken, scopes, and rights for reading.
    pub(crate) landlock: [u64; 4],
    /// Not 0: this is a build job, which may connect to this port and write to /build.
    pub(crate) job_port: u64,
    /// How many bytes of those the kernel's Landlock knows.
    pub(crate) landlock_bytes: u64,
    /// How many of `filter` count.
    pub(crate) instruction_count: u64,
    /// The narrow seccomp filter: takes away what installed the rest.
    pub(crate) filter: [[u32; 2]; MOST_INSTRUCTIONS],
}

impl Plan {
    /// Nothing to do: to be filled, or received into.
    pub(crate) const EMPTY: Self = Self {
        skip: 0,
        has_time: 0,
        limit_count: 0,
        limits: [[0; 3]; MOST_LIMITS],
        directories: [[0; 64]; 3],
        landlock: [0; 4],
        job_port: 0,
        landlock_bytes: 0,
        instruction_count: 0,
        filter: [[0; 2]; MOST_INSTRUCTIONS],
    };

    /// Whether this bit of [`Plan::skip`] is clear.
    pub(crate) const fn has(&self, bit: u8) -> bool {
        self.skip & (1 << bit) == 0
    }
}

/// The steps, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Step {
    /// Its cgroup seen as the root.
    CgroupView = 7,
    /// A `/proc` of its own pid namespace.
    Proc = 0,
    /// Private writable directories.
    Directories = 1,
    /// Limits per process.
    Limits = 2,
    /// No capability to use, none to gain.
    Capabilities = 3,
    /// No privilege by exec.
    NoNewPrivs = 4,
    /// A second opinion on files.
    Landlock = 5,
    /// No way back.
    Seccomp = 6,
}

/// What a fork of a zygote starts with: its bits follow those of [`Step`].
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Start {
    /// Pids of its own.
    PidNamespace = 8,
    /// A network of its own: costly, and needless where Landlock keeps abstract sockets apart.
    Network = 9,
    /// A `/proc` that shows processes only.
    ProcSubset = 10,
    /// No descriptor of the zygote's.
    Descriptors = 11,
}

/// Seals this process and all it will start.
///
/// # Errors
///
/// The first step that failed, with the kernel's answer; the process must exit at once.
pub(crate) fn seal(plan: &Plan) -> Result<(), (Step, Errno)> {
    let steps: [(Step, Run); 8] = [
        (Step::CgroupView, leave_cgroup_view),
        (Step::Proc, mount_proc),
        (Step::Directories, mount_directories),
        (Step::Limits, set_limits),
        (Step::Capabilities, drop_capabilities),
        (Step::NoNewPrivs, forbid_privileges),
        // After the mounts: its rules name what is mounted.
        (Step::Landlock, restrict_files),
        // Last: the calls that installed the rest are gone after it.
        (Step::Seccomp, narrow_calls),
    ];
    for (step, run) in steps {
        if plan.has(step as u8) {
            run(plan).map_err(|errno| (step, errno))?;
        }
    }
    Ok(())
}

/// How a step is done.
type Run = fn(&Plan) -> Result<(), Errno>;

const NOSUID_NODEV: usize = 2 | 4;
const NOEXEC: usize = 8;

fn leave_cgroup_view(_: &Plan) -> Result<(), Errno> {
    const CLONE_NEWCGROUP: usize = 0x0200_0000;
    raw::integers(number::UNSHARE, [CLONE_NEWCGROUP, 0, 0, 0, 0, 0]).map(|_| ())
}

/// Processes only, and only one's own.
fn mount_proc(plan: &Plan) -> Result<(), Errno> {
    let options = if plan.has(Start::ProcSubset as u8) {
        c"subset=pid,hidepid=ptraceable"
    } else {
        c""
    };
    raw::mount(c"proc", c"/proc", NOSUID_NODEV | NOEXEC, options)
}

fn mount_directories(plan: &Plan) -> Result<(), Errno> {
    let targets = [c"/tmp", c"/workspace", c"/dev/shm"];
    for (target, options) in targets.into_iter().zip(&plan.directories) {
        let options = CStr::from_bytes_until_nul(options).map_err(|_| EINVAL)?;
        raw::mount(c"tmpfs", target, NOSUID_NODEV, options)?;
    }
    // The working directory was the one below the new mount.
    raw::chdir(c"/workspace")
}

fn set_limits(plan: &Plan) -> Result<(), Errno> {
    for [resource, soft, hard] in plan.limits.iter().take(plan.limit_count as usize) {
        let arguments = [0, *resource as usize, 0, 0, 0, 0];
        raw::with_struct(number::PRLIMIT64, arguments, 2, &[*soft, *hard])?;
    }
    Ok(())
}

/// Empties every capability set and locks the door: not even uid 0 or a file capability brings
/// one back.
fn drop_capabilities(_: &Plan) -> Result<(), Errno> {
    const PR_CAPBSET_DROP: usize = 24;
    const PR_SET_SECUREBITS: usize = 28;
    const PR_CAP_AMBIENT: usize = 47;
    const PR_CAP_AMBIENT_CLEAR_ALL: usize = 4;
    // NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, all four locked.
    const LOCKED: usize = 0b1110_1111;
    prctl(PR_SET_SECUREBITS, LOCKED, 0)?;
    // By number, until the kernel knows no more: a newer kernel may have some we cannot name.
    for capability in 0..64 {
        match prctl(PR_CAPBSET_DROP, capability, 0) {
            Err(EINVAL) => break,
            other => other?,
        }
    }
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0)?;
    raw::drop_capability_sets()
}

fn forbid_privileges(_: &Plan) -> Result<(), Errno> {
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0)
}

fn prctl(option: usize, first: usize, second: usize) -> Result<(), Errno> {
    raw::integers(number::PRCTL, [option, first, second, 0, 0, 0]).map(|_| ())
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

/// Reading everywhere, everything in the writable directories.
fn restrict_files(plan: &Plan) -> Result<(), Errno> {
    const O_PATH: usize = 0o10_000_000;
    const WRITE_FILE: u64 = 1 << 1;
    let [files, network, scopes, reading] = plan.landlock;
    let attributes = [files, network, scopes];
    let arguments = [0, plan.landlock_bytes as usize, 0, 0, 0, 0];
    let ruleset = raw::with_struct(number::LANDLOCK_CREATE_RULESET, arguments, 0, &attributes)?;
    let rules = [
        (c"/", reading),
        (c"/tmp", files),
        (c"/workspace", files),
        (c"/dev/shm", files),
        (c"/dev", reading | WRITE_FILE),
        (c"/proc", reading | WRITE_FILE),
    ];
    for (path, allowed) in rules {
        let parent = raw::open(path, O_PATH)?;
        let rule = PathBeneath { allowed, parent };
        let added = raw::with_struct(
            number::LANDLOCK_ADD_RULE,
            [ruleset, 1, 0, 0, 0, 0],
            2,
            &rule,
        );
        raw::close(parent);
        added?;
    }
    if plan.job_port != 0 {
        allow_job(plan, ruleset)?;
    }
    raw::integers(number::LANDLOCK_RESTRICT_SELF, [ruleset, 0, 0, 0, 0, 0])?;
    raw::close(ruleset as i32);
    Ok(())
}

#[repr(C)]
struct NetPort {
    allowed: u64,
    port: u64,
}

/// A build job's directory, without sockets, pipes and devices in it, and its one port.
fn allow_job(plan: &Plan, ruleset: usize) -> Result<(), Errno> {
    const O_PATH: usize = 0o10_000_000;
    const MAKE_SPECIAL: u64 = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11;
    const CONNECT_TCP: u64 = 1 << 1;
    let [files, network, ..] = plan.landlock;
    let parent = raw::open(c"/build", O_PATH)?;
    let rule = PathBeneath {
        allowed: files & !MAKE_SPECIAL,
        parent,
    };
    let arguments = [ruleset, 1, 0, 0, 0, 0];
    let added = raw::with_struct(number::LANDLOCK_ADD_RULE, arguments, 2, &rule);
    raw::close(parent);
    added?;
    if network & CONNECT_TCP == 0 {
        return Ok(());
    }
    let rule = NetPort {
        allowed: CONNECT_TCP,
        port: plan.job_port,
    };
    let arguments = [ruleset, 2, 0, 0, 0, 0];
    raw::with_struct(number::LANDLOCK_ADD_RULE, arguments, 2, &rule).map(|_| ())
}

#[repr(C)]
struct Program {
    length: u16,
    instructions: usize,
}

fn narrow_calls(plan: &Plan) -> Result<(), Errno> {
    const SET_MODE_FILTER: usize = 1;
    let program = Program {
        length: plan.instruction_count as u16,
        instructions: plan.filter.as_ptr() as usize,
    };
    raw::with_struct(
        number::SECCOMP,
        [SET_MODE_FILTER, 0, 0, 0, 0, 0],
        2,
        &program,
    )
    .map(|_| ())
}
