//! System calls that no safe wrapper offers, by way of libc.
#![expect(
    unsafe_code,
    reason = "raw system calls without a safe wrapper live here only"
)]

use std::{
    ffi::CString,
    io,
    mem::{MaybeUninit, size_of},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

/// Where a process finds itself after [`fork_into`] or [`fork`].
pub(crate) enum Side {
    /// In the new process.
    Child,
    /// In the old one.
    Parent(i32),
}

/// Forks into new namespaces. The caller must be single-threaded: the child goes on in Rust.
///
/// # Errors
///
/// The kernel's answer; there is no child.
pub(crate) fn fork_into(namespaces: libc::c_int) -> io::Result<Side> {
    let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a null stack, clone(2) is fork(2) with flags: the child
    // gets a copy of this address space and returns here. No pointer is passed, so the kernel
    // writes no memory. The process is single-threaded (the jail starts no thread), so no lock
    // can be held by a thread that does not exist in the child.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(i32::try_from(pid).unwrap_or(i32::MAX))),
    }
}

/// Forks. Same requirement as [`fork_into`].
pub(crate) fn fork() -> io::Result<Side> {
    fork_into(0)
}

/// Ends this process now: no destructor, no `atexit` of the parent's copy.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// Waits for `pid`; gives the CPU time, in milliseconds, of it and all it waited for.
pub(crate) fn wait_with_usage(pid: i32) -> io::Result<u64> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are to live, writable objects of the types that wait4 fills.
        let done = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
        if done >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: zero-initialised above, and all-zero is a valid `rusage` (integers only), so it is
    // initialised whatever wait4 wrote.
    let usage = unsafe { usage.assume_init() };
    let milliseconds = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1000
            + u64::try_from(time.tv_usec).unwrap_or(0) / 1000
    };
    Ok(milliseconds(usage.ru_utime) + milliseconds(usage.ru_stime))
}

/// Sets attributes of a mount and, if asked, of all mounts below it.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    attributes: u64,
    recursive: bool,
) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a NUL-terminated literal, `attr` lives across the call and its true
    // size is passed; the kernel only reads both.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result)
}

/// Brings the loopback of this network namespace up, which needs the privilege to in its user
/// namespace.
pub(crate) fn bring_loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: `ifreq` is a name and a union of integers and addresses: all-zero is a valid one.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    for (place, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *place = byte.cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP).unwrap_or_default();
    let descriptor = socket.as_raw_fd();
    // SAFETY: the descriptor is a live socket, and the request is a live object of the type that
    // this call reads.
    let result = unsafe { libc::ioctl(descriptor, libc::SIOCSIFFLAGS, &raw const request) };
    check(result.into())
}

/// Leaves the cgroup namespace for a new one rooted at the current cgroup.
pub(crate) fn unshare_cgroup() -> io::Result<()> {
    // SAFETY: takes an integer; CLONE_NEWCGROUP changes no memory and no file descriptor.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }.into())
}

/// Marks every descriptor from `first` on as close-on-exec, or closes it.
pub(crate) fn close_range(first: u32, only_on_exec: bool) -> io::Result<()> {
    let flags = if only_on_exec {
        libc::CLOSE_RANGE_CLOEXEC
    } else {
        0
    };
    // SAFETY: takes integers. With 0 flags, descriptors that Rust objects own are closed under
    // them: callers do so only right before exec or when nothing owns one in that range.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) })
}

/// Makes `target` refer to what `source` refers to, without close-on-exec.
pub(crate) fn duplicate_onto(source: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    // SAFETY: takes integers. Callers use targets 0 to 3 only, in the worker right before exec,
    // where no Rust object owns them.
    check(unsafe { libc::dup2(source.as_raw_fd(), target) }.into())
}

/// Takes a duplicate of `source` at or above `least`, close-on-exec.
pub(crate) fn duplicate_above(source: BorrowedFd<'_>, least: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes integers and makes a new descriptor.
    let fd = unsafe { libc::fcntl(source.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    check(fd.into())?;
    // SAFETY: the call above just made `fd`; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Replaces this process by `program`. Returns only to say why it could not.
pub(crate) fn execute(
    program: &CString,
    arguments: &[CString],
    environment: &[CString],
) -> io::Error {
    let arguments = null_terminated(arguments);
    let environment = null_terminated(environment);
    // SAFETY: the three pointers are to NUL-terminated strings, or arrays of such closed by a
    // null pointer, all of which outlive the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

fn null_terminated(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([ptr::null()])
        .collect()
}

/// Gives all signals their default action and an empty mask, as the program expects them.
pub(crate) fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL is a valid disposition; for SIGKILL, SIGSTOP and unknown numbers the
        // call fails and changes nothing.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut empty = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    unsafe { libc::sigemptyset(empty.as_mut_ptr()) };
    // SAFETY: the set was initialised above; the old mask is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, empty.as_ptr(), ptr::null_mut()) };
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
