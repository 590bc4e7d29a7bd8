//! The system calls that code in a sandbox may make: the one list, for every engine.

/// A system call's name, as container runtimes want it, and its number here.
pub(super) type Call = (&'static str, i64);

/// `cachestat`, by the number that new calls share on all architectures; libc has no name yet.
const CACHESTAT: i64 = 451;

/// Allowed whatever the arguments. In groups; within a group by name.
pub(super) const ALLOWED: &[Call] = &[
    // Files and directories.
    ("chdir", libc::SYS_chdir),
    ("copy_file_range", libc::SYS_copy_file_range),
    ("faccessat", libc::SYS_faccessat),
    ("faccessat2", libc::SYS_faccessat2),
    ("fadvise64", libc::SYS_fadvise64),
    ("fallocate", libc::SYS_fallocate),
    ("fchdir", libc::SYS_fchdir),
    ("fchmod", libc::SYS_fchmod),
    ("fchmodat", libc::SYS_fchmodat),
    ("fchmodat2", libc::SYS_fchmodat2),
    ("fchown", libc::SYS_fchown),
    ("fchownat", libc::SYS_fchownat),
    ("fdatasync", libc::SYS_fdatasync),
    ("fgetxattr", libc::SYS_fgetxattr),
    ("flistxattr", libc::SYS_flistxattr),
    ("flock", libc::SYS_flock),
    ("fremovexattr", libc::SYS_fremovexattr),
    ("fsetxattr", libc::SYS_fsetxattr),
    ("fstat", libc::SYS_fstat),
    ("fstatfs", libc::SYS_fstatfs),
    ("fsync", libc::SYS_fsync),
    ("ftruncate", libc::SYS_ftruncate),
    ("getcwd", libc::SYS_getcwd),
    ("getdents64", libc::SYS_getdents64),
    ("getxattr", libc::SYS_getxattr),
    ("inotify_add_watch", libc::SYS_inotify_add_watch),
    ("inotify_init1", libc::SYS_inotify_init1),
    ("inotify_rm_watch", libc::SYS_inotify_rm_watch),
    ("lgetxattr", libc::SYS_lgetxattr),
    ("linkat", libc::SYS_linkat),
    ("listxattr", libc::SYS_listxattr),
    ("llistxattr", libc::SYS_llistxattr),
    ("lremovexattr", libc::SYS_lremovexattr),
    ("lseek", libc::SYS_lseek),
    ("lsetxattr", libc::SYS_lsetxattr),
    ("mkdirat", libc::SYS_mkdirat),
    // For FIFOs: mounts are nodev, so a device node does nothing.
    ("mknodat", libc::SYS_mknodat),
    ("newfstatat", libc::SYS_newfstatat),
    ("openat", libc::SYS_openat),
    ("openat2", libc::SYS_openat2),
    ("pread64", libc::SYS_pread64),
    ("preadv", libc::SYS_preadv),
    ("preadv2", libc::SYS_preadv2),
    ("pwrite64", libc::SYS_pwrite64),
    ("pwritev", libc::SYS_pwritev),
    ("pwritev2", libc::SYS_pwritev2),
    ("read", libc::SYS_read),
    ("readahead", libc::SYS_readahead),
    ("readlinkat", libc::SYS_readlinkat),
    ("readv", libc::SYS_readv),
    ("removexattr", libc::SYS_removexattr),
    ("renameat", libc::SYS_renameat),
    ("renameat2", libc::SYS_renameat2),
    ("sendfile", libc::SYS_sendfile),
    ("setxattr", libc::SYS_setxattr),
    ("statfs", libc::SYS_statfs),
    ("statx", libc::SYS_statx),
    ("symlinkat", libc::SYS_symlinkat),
    ("sync_file_range", libc::SYS_sync_file_range),
    ("truncate", libc::SYS_truncate),
    ("umask", libc::SYS_umask),
    ("unlinkat", libc::SYS_unlinkat),
    ("utimensat", libc::SYS_utimensat),
    ("write", libc::SYS_write),
    ("writev", libc::SYS_writev),
    // Descriptors and waiting on them.
    ("close", libc::SYS_close),
    ("close_range", libc::SYS_close_range),
    ("dup", libc::SYS_dup),
    ("dup3", libc::SYS_dup3),
    ("epoll_create1", libc::SYS_epoll_create1),
    ("epoll_ctl", libc::SYS_epoll_ctl),
    ("epoll_pwait", libc::SYS_epoll_pwait),
    ("epoll_pwait2", libc::SYS_epoll_pwait2),
    ("eventfd2", libc::SYS_eventfd2),
    ("fcntl", libc::SYS_fcntl),
    ("pipe2", libc::SYS_pipe2),
    ("ppoll", libc::SYS_ppoll),
    ("pselect6", libc::SYS_pselect6),
    ("signalfd4", libc::SYS_signalfd4),
    ("timerfd_create", libc::SYS_timerfd_create),
    ("timerfd_gettime", libc::SYS_timerfd_gettime),
    ("timerfd_settime", libc::SYS_timerfd_settime),
    // Sockets; which family is decided in the prologue.
    ("accept", libc::SYS_accept),
    ("accept4", libc::SYS_accept4),
    ("bind", libc::SYS_bind),
    ("connect", libc::SYS_connect),
    ("getpeername", libc::SYS_getpeername),
    ("getsockname", libc::SYS_getsockname),
    ("getsockopt", libc::SYS_getsockopt),
    ("listen", libc::SYS_listen),
    ("recvfrom", libc::SYS_recvfrom),
    ("recvmmsg", libc::SYS_recvmmsg),
    ("recvmsg", libc::SYS_recvmsg),
    ("sendmmsg", libc::SYS_sendmmsg),
    ("sendmsg", libc::SYS_sendmsg),
    ("sendto", libc::SYS_sendto),
    ("setsockopt", libc::SYS_setsockopt),
    ("shutdown", libc::SYS_shutdown),
    // Memory.
    ("brk", libc::SYS_brk),
    ("cachestat", CACHESTAT),
    ("get_mempolicy", libc::SYS_get_mempolicy),
    ("madvise", libc::SYS_madvise),
    ("mbind", libc::SYS_mbind),
    ("membarrier", libc::SYS_membarrier),
    ("memfd_create", libc::SYS_memfd_create),
    ("mincore", libc::SYS_mincore),
    ("mlock", libc::SYS_mlock),
    ("mlock2", libc::SYS_mlock2),
    ("mlockall", libc::SYS_mlockall),
    ("mmap", libc::SYS_mmap),
    ("mprotect", libc::SYS_mprotect),
    ("mremap", libc::SYS_mremap),
    ("msync", libc::SYS_msync),
    ("munlock", libc::SYS_munlock),
    ("munlockall", libc::SYS_munlockall),
    ("munmap", libc::SYS_munmap),
    ("pkey_alloc", libc::SYS_pkey_alloc),
    ("pkey_free", libc::SYS_pkey_free),
    ("pkey_mprotect", libc::SYS_pkey_mprotect),
    ("set_mempolicy", libc::SYS_set_mempolicy),
    // Processes and threads; clone has a rule of its own.
    ("execve", libc::SYS_execve),
    ("execveat", libc::SYS_execveat),
    ("exit", libc::SYS_exit),
    ("exit_group", libc::SYS_exit_group),
    ("futex", libc::SYS_futex),
    ("futex_waitv", libc::SYS_futex_waitv),
    ("get_robust_list", libc::SYS_get_robust_list),
    ("getpgid", libc::SYS_getpgid),
    ("getpid", libc::SYS_getpid),
    ("getppid", libc::SYS_getppid),
    ("getpriority", libc::SYS_getpriority),
    ("getrlimit", libc::SYS_getrlimit),
    ("getrusage", libc::SYS_getrusage),
    ("getsid", libc::SYS_getsid),
    ("gettid", libc::SYS_gettid),
    ("ioprio_get", libc::SYS_ioprio_get),
    ("kill", libc::SYS_kill),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
    ("restart_syscall", libc::SYS_restart_syscall),
    ("rseq", libc::SYS_rseq),
    ("sched_get_priority_max", libc::SYS_sched_get_priority_max),
    ("sched_get_priority_min", libc::SYS_sched_get_priority_min),
    ("sched_getaffinity", libc::SYS_sched_getaffinity),
    ("sched_getattr", libc::SYS_sched_getattr),
    ("sched_getparam", libc::SYS_sched_getparam),
    ("sched_getscheduler", libc::SYS_sched_getscheduler),
    ("sched_rr_get_interval", libc::SYS_sched_rr_get_interval),
    ("sched_yield", libc::SYS_sched_yield),
    ("set_robust_list", libc::SYS_set_robust_list),
    ("set_tid_address", libc::SYS_set_tid_address),
    ("setpgid", libc::SYS_setpgid),
    ("setrlimit", libc::SYS_setrlimit),
    ("setsid", libc::SYS_setsid),
    ("tgkill", libc::SYS_tgkill),
    ("tkill", libc::SYS_tkill),
    ("wait4", libc::SYS_wait4),
    ("waitid", libc::SYS_waitid),
    // Users: without capabilities these change nothing, and programs ask.
    ("capget", libc::SYS_capget),
    ("capset", libc::SYS_capset),
    ("getegid", libc::SYS_getegid),
    ("geteuid", libc::SYS_geteuid),
    ("getgid", libc::SYS_getgid),
    ("getgroups", libc::SYS_getgroups),
    ("getresgid", libc::SYS_getresgid),
    ("getresuid", libc::SYS_getresuid),
    ("getuid", libc::SYS_getuid),
    ("setfsgid", libc::SYS_setfsgid),
    ("setfsuid", libc::SYS_setfsuid),
    ("setgid", libc::SYS_setgid),
    ("setgroups", libc::SYS_setgroups),
    ("setregid", libc::SYS_setregid),
    ("setresgid", libc::SYS_setresgid),
    ("setresuid", libc::SYS_setresuid),
    ("setreuid", libc::SYS_setreuid),
    ("setuid", libc::SYS_setuid),
    // Signals.
    ("rt_sigaction", libc::SYS_rt_sigaction),
    ("rt_sigpending", libc::SYS_rt_sigpending),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask),
    ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo),
    ("rt_sigreturn", libc::SYS_rt_sigreturn),
    ("rt_sigsuspend", libc::SYS_rt_sigsuspend),
    ("rt_sigtimedwait", libc::SYS_rt_sigtimedwait),
    ("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo),
    ("sigaltstack", libc::SYS_sigaltstack),
    // Time.
    ("clock_getres", libc::SYS_clock_getres),
    ("clock_gettime", libc::SYS_clock_gettime),
    ("clock_nanosleep", libc::SYS_clock_nanosleep),
    ("getitimer", libc::SYS_getitimer),
    ("gettimeofday", libc::SYS_gettimeofday),
    ("nanosleep", libc::SYS_nanosleep),
    ("setitimer", libc::SYS_setitimer),
    ("timer_create", libc::SYS_timer_create),
    ("timer_delete", libc::SYS_timer_delete),
    ("timer_getoverrun", libc::SYS_timer_getoverrun),
    ("timer_gettime", libc::SYS_timer_gettime),
    ("timer_settime", libc::SYS_timer_settime),
    ("times", libc::SYS_times),
    // The rest.
    ("getcpu", libc::SYS_getcpu),
    ("getrandom", libc::SYS_getrandom),
    ("sync", libc::SYS_sync),
    ("syncfs", libc::SYS_syncfs),
    ("sysinfo", libc::SYS_sysinfo),
    ("uname", libc::SYS_uname),
];

/// Calls of older architectures that newer ones express through the ones above.
#[cfg(target_arch = "x86_64")]
pub(super) const LEGACY: &[Call] = &[
    ("access", libc::SYS_access),
    ("alarm", libc::SYS_alarm),
    ("arch_prctl", libc::SYS_arch_prctl),
    ("chmod", libc::SYS_chmod),
    ("chown", libc::SYS_chown),
    ("creat", libc::SYS_creat),
    ("dup2", libc::SYS_dup2),
    ("epoll_create", libc::SYS_epoll_create),
    ("epoll_wait", libc::SYS_epoll_wait),
    ("eventfd", libc::SYS_eventfd),
    ("fork", libc::SYS_fork),
    ("futimesat", libc::SYS_futimesat),
    ("getdents", libc::SYS_getdents),
    ("getpgrp", libc::SYS_getpgrp),
    ("inotify_init", libc::SYS_inotify_init),
    ("lchown", libc::SYS_lchown),
    ("link", libc::SYS_link),
    ("lstat", libc::SYS_lstat),
    ("mkdir", libc::SYS_mkdir),
    ("mknod", libc::SYS_mknod),
    ("open", libc::SYS_open),
    ("pause", libc::SYS_pause),
    ("pipe", libc::SYS_pipe),
    ("poll", libc::SYS_poll),
    ("readlink", libc::SYS_readlink),
    ("rename", libc::SYS_rename),
    ("rmdir", libc::SYS_rmdir),
    ("select", libc::SYS_select),
    ("signalfd", libc::SYS_signalfd),
    ("stat", libc::SYS_stat),
    ("symlink", libc::SYS_symlink),
    ("time", libc::SYS_time),
    ("unlink", libc::SYS_unlink),
    ("utime", libc::SYS_utime),
    ("utimes", libc::SYS_utimes),
    ("vfork", libc::SYS_vfork),
];
#[cfg(target_arch = "aarch64")]
pub(super) const LEGACY: &[Call] = &[];

/// Allowed with some arguments only.
#[derive(Debug)]
pub(super) struct Conditional {
    pub(super) call: Call,
    /// One of these must hold, with all that is in it.
    pub(super) any: Vec<Vec<Compare>>,
}

/// The low half of an argument, masked, must have a value. What the kernel takes as 32 bits is
/// compared as 32 bits: else a high bit makes the rule read another value than the kernel does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compare {
    pub(super) argument: u8,
    pub(super) mask: u64,
    pub(super) value: u64,
}

impl Compare {
    /// The mask for all that is compared.
    pub(super) const LOW_HALF: u64 = 0xFFFF_FFFF;

    const fn equal(argument: u8, value: u64) -> Self {
        Self {
            argument,
            mask: Self::LOW_HALF,
            value,
        }
    }
}

/// Calls that are allowed with some arguments only.
pub(super) fn conditional() -> [Conditional; 10] {
    // The other ioctls that reach a descriptor in here push input into terminals (TIOCSTI,
    // TIOCLINUX) or load line disciplines (TIOCSETD).
    const IOCTLS: [u64; 11] = [
        libc::TCGETS,
        libc::TCSETS,
        libc::TCSETSW,
        libc::TCSETSF,
        libc::TIOCGWINSZ,
        libc::TIOCGPGRP,
        // Acts only on the caller's own terminal, and there is none: the answer is what matters.
        libc::TIOCSPGRP,
        libc::FIONREAD,
        libc::FIONBIO,
        libc::FIOCLEX,
        libc::FIONCLEX,
    ];
    let only = |call, all: &[Compare]| Conditional {
        call,
        any: vec![all.to_vec()],
    };
    let one_of = |call, argument, values: &[u64]| Conditional {
        call,
        any: values
            .iter()
            .map(|value| vec![Compare::equal(argument, *value)])
            .collect(),
    };
    let no_namespace = Compare {
        argument: 0,
        mask: NAMESPACES,
        value: 0,
    };
    // Of oneself only. Pid 1 of the sandbox has the same user: starved by its priority, or robbed of
    // its descriptors, it could not end the sandbox.
    let own = Compare::equal(0, 0);
    [
        only(("prlimit64", libc::SYS_prlimit64), &[own]),
        only(("sched_setaffinity", libc::SYS_sched_setaffinity), &[own]),
        only(("sched_setattr", libc::SYS_sched_setattr), &[own]),
        only(("sched_setparam", libc::SYS_sched_setparam), &[own]),
        only(("sched_setscheduler", libc::SYS_sched_setscheduler), &[own]),
        only(
            ("setpriority", libc::SYS_setpriority),
            &[own, Compare::equal(1, 0)],
        ),
        only(("clone", libc::SYS_clone), &[no_namespace]),
        one_of(("ioctl", libc::SYS_ioctl), 1, &IOCTLS),
        // Asking for the current personality only: others switch off address randomisation.
        one_of(
            ("personality", libc::SYS_personality),
            0,
            &[Compare::LOW_HALF],
        ),
        one_of(("prctl", libc::SYS_prctl), 0, &PRCTLS.map(u64::from)),
    ]
}

/// Of one family only; others are answered as where the kernel has none of them.
pub(super) const SOCKETS: [Call; 2] = [
    ("socket", libc::SYS_socket),
    ("socketpair", libc::SYS_socketpair),
];

/// That family.
pub(super) const FAMILY: u32 = libc::AF_UNIX.unsigned_abs();

/// More families in a build job, for streams alone: their type is argument 1, with two flags above it.
pub(super) const JOB_FAMILIES: [u32; 2] =
    [libc::AF_INET.unsigned_abs(), libc::AF_INET6.unsigned_abs()];

/// The half of a socket's type that is not flags.
pub(super) const TYPE_MASK: u32 = 0xF;

/// That type.
pub(super) const STREAM: u32 = libc::SOCK_STREAM.unsigned_abs();

/// Protocols of those streams: what Landlock's rules for ports are about. Multipath TCP is not among
/// them: older kernels do not apply those rules to it.
pub(super) const JOB_PROTOCOLS: [u32; 2] = [0, libc::IPPROTO_TCP.unsigned_abs()];

/// Not in a build job: its directory is the host's, which is to find no pipes and devices there, and
/// its files are bounded by the disk's means, which a file of memory would be none of.
pub(super) const NOT_IN_JOBS: &[Call] = &[
    ("memfd_create", libc::SYS_memfd_create),
    ("mknodat", libc::SYS_mknodat),
    #[cfg(target_arch = "x86_64")]
    ("mknod", libc::SYS_mknod),
];

/// Calls that programs make knowing that they need a privilege: refused as to any user.
pub(super) const REFUSED: [Call; 2] = [
    ("clock_settime", libc::SYS_clock_settime),
    ("settimeofday", libc::SYS_settimeofday),
];

/// The flags of clone that make namespaces.
pub(super) const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32 as u64;

/// What programs ask of prctl. Left out: `PR_SET_MM`, `PR_SET_PTRACER`, `PR_SET_SECCOMP` and all
/// that is newer.
pub(super) const PRCTLS: [u32; 11] = [
    libc::PR_SET_PDEATHSIG.unsigned_abs(),
    libc::PR_GET_PDEATHSIG.unsigned_abs(),
    libc::PR_GET_DUMPABLE.unsigned_abs(),
    libc::PR_SET_DUMPABLE.unsigned_abs(),
    libc::PR_SET_NAME.unsigned_abs(),
    libc::PR_GET_NAME.unsigned_abs(),
    libc::PR_GET_NO_NEW_PRIVS.unsigned_abs(),
    libc::PR_SET_NO_NEW_PRIVS.unsigned_abs(),
    libc::PR_CAPBSET_READ.unsigned_abs(),
    libc::PR_SET_CHILD_SUBREAPER.unsigned_abs(),
    // Names memory areas in /proc: glibc and CPython 3.13 do; inert otherwise.
    libc::PR_SET_VMA.unsigned_abs(),
];
