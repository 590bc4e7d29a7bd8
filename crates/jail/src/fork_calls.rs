//! System calls of the object alone: forking, waiting, and messages with descriptors.
#![expect(
    unsafe_code,
    reason = "system calls that must not go through a library are made here"
)]

use core::{ffi::CStr, mem::size_of};

use super::raw::{Errno, Plain, call, close, integers, open, with_struct};

/// System call numbers, beside those of `raw.rs`.
#[cfg(target_arch = "x86_64")]
pub(crate) mod number {
    pub(crate) const READ: i64 = 0;
    pub(crate) const WRITE: i64 = 1;
    pub(crate) const RT_SIGACTION: i64 = 13;
    pub(crate) const CLONE: i64 = 56;
    pub(crate) const EXIT_GROUP: i64 = 231;
    pub(crate) const WAIT4: i64 = 61;
    pub(crate) const RECVFROM: i64 = 45;
    pub(crate) const SENDMSG: i64 = 46;
    pub(crate) const RECVMSG: i64 = 47;
    pub(crate) const SETSID: i64 = 112;
    pub(crate) const DUP3: i64 = 292;
    pub(crate) const FCNTL: i64 = 72;
    pub(crate) const CLOSE_RANGE: i64 = 436;
}

/// System call numbers, beside those of `raw.rs`.
#[cfg(target_arch = "aarch64")]
pub(crate) mod number {
    pub(crate) const READ: i64 = 63;
    pub(crate) const WRITE: i64 = 64;
    pub(crate) const RT_SIGACTION: i64 = 134;
    pub(crate) const CLONE: i64 = 220;
    pub(crate) const EXIT_GROUP: i64 = 94;
    pub(crate) const WAIT4: i64 = 260;
    pub(crate) const RECVFROM: i64 = 207;
    pub(crate) const SENDMSG: i64 = 211;
    pub(crate) const RECVMSG: i64 = 212;
    pub(crate) const SETSID: i64 = 157;
    pub(crate) const DUP3: i64 = 24;
    pub(crate) const FCNTL: i64 = 25;
    pub(crate) const CLOSE_RANGE: i64 = 436;
}

/// Interrupted by a signal: try again.
pub(crate) const EINTR: Errno = 4;

/// The bytes of a plain value, to be read into.
pub(crate) fn bytes_of<T: Plain>(value: &mut T) -> &mut [u8] {
    let start = core::ptr::from_mut(value).cast::<u8>();
    // SAFETY: the value is one live object of that many bytes, borrowed mutably for as long as the
    // slice lives, and the trait promises that any bytes make a valid value.
    unsafe { core::slice::from_raw_parts_mut(start, size_of::<T>()) }
}

pub(crate) fn read(fd: i32, bytes: &mut [u8]) -> Result<usize, Errno> {
    let arguments = [fd as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: pointer and length are those of one live slice that is ours alone.
    unsafe { call(number::READ, arguments) }
}

/// Receives one message if there is one.
pub(crate) fn receive_now(socket: i32, bytes: &mut [u8]) -> Result<usize, Errno> {
    const MSG_DONTWAIT: usize = 0x40;
    let (start, length) = (bytes.as_mut_ptr() as usize, bytes.len());
    // SAFETY: pointer and length are those of one live slice that is ours alone; no address is
    // asked for.
    unsafe { call(number::RECVFROM, [socket as usize, start, length, MSG_DONTWAIT, 0, 0]) }
}

/// Writes the whole text to a file that is opened for it.
pub(crate) fn write_file(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    const O_WRONLY: usize = 1;
    let fd = open(path, O_WRONLY)?;
    let written = write(fd, text);
    close(fd);
    written.map(|_| ())
}

pub(crate) fn write(fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
    let arguments = [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: pointer and length are those of one live slice, which the kernel only reads.
    unsafe { call(number::WRITE, arguments) }
}

/// Ends this process.
pub(crate) fn exit(status: i32) -> ! {
    loop {
        let _ = integers(number::EXIT_GROUP, [status as usize, 0, 0, 0, 0, 0]);
    }
}

/// Waits for any child: its pid and status.
pub(crate) fn wait_any() -> Result<(i32, i32), Errno> {
    let mut status = 0_i32;
    let arguments = [usize::MAX, core::ptr::from_mut(&mut status) as usize, 0, 0, 0, 0];
    // SAFETY: the status is a live integer that is ours alone; usage is not asked for.
    let pid = unsafe { call(number::WAIT4, arguments) }?;
    Ok((pid as i32, status))
}

/// Forks. With `pidfd`, the kernel leaves a descriptor of the child there.
pub(crate) fn clone(flags: usize, pidfd: Option<&mut i32>) -> Result<i32, Errno> {
    let place = pidfd.map_or(0, |pidfd| core::ptr::from_mut(pidfd) as usize);
    // SAFETY: without CLONE_VM and with a null stack this is fork: the child gets a copy of the
    // address space and goes on from here. `pidfd` is a live integer that is ours alone.
    let pid = unsafe { call(number::CLONE, [flags, 0, place, 0, 0, 0]) }?;
    Ok(pid as i32)
}

/// Default action for a signal that the interpreter had changed.
pub(crate) fn default_signal(signal: usize) {
    set_signal(signal, 0);
}

/// No action for a signal; children that end are not kept for a parent that ignores their end.
pub(crate) fn ignore_signal(signal: usize) {
    set_signal(signal, 1);
}

fn set_signal(signal: usize, action: usize) {
    // A kernel `sigaction`: SIG_DFL or SIG_IGN, no flags, no restorer, empty mask.
    let action = [action, 0, 0, 0];
    let _ = with_struct(number::RT_SIGACTION, [signal, 0, 0, 8, 0, 0], 1, &action);
}

#[repr(C)]
struct Slice {
    start: usize,
    length: usize,
}

#[repr(C)]
struct Header {
    name: usize,
    name_length: u32,
    slices: usize,
    slice_count: usize,
    control: usize,
    control_length: usize,
    flags: i32,
}

/// Descriptors that travel with a message: at most four.
pub(crate) const MOST_DESCRIPTORS: usize = 4;

#[repr(C, align(8))]
struct Control {
    length: usize,
    level: i32,
    kind: i32,
    descriptors: [i32; MOST_DESCRIPTORS],
}

const CONTROL_HEADER: usize = size_of::<usize>() + 8;
const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;

/// Receives one message and the descriptors with it: their numbers, and how many bytes and
/// descriptors there were. Descriptors beyond the room for them are dropped by the kernel.
pub(crate) fn receive(
    socket: i32,
    bytes: &mut [u8],
    descriptors: &mut [i32; MOST_DESCRIPTORS],
) -> Result<(usize, usize), Errno> {
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    let slice = Slice {
        start: bytes.as_mut_ptr() as usize,
        length: bytes.len(),
    };
    let mut control = Control {
        length: 0,
        level: 0,
        kind: 0,
        descriptors: [-1; MOST_DESCRIPTORS],
    };
    let mut header = Header {
        name: 0,
        name_length: 0,
        slices: core::ptr::from_ref(&slice) as usize,
        slice_count: 1,
        control: core::ptr::from_mut(&mut control) as usize,
        control_length: size_of::<Control>(),
        flags: 0,
    };
    let place = core::ptr::from_mut(&mut header) as usize;
    // SAFETY: the header names one live slice and one live control structure, both ours alone and
    // with their true lengths, and all live across the call.
    let length = unsafe { call(number::RECVMSG, [socket as usize, place, MSG_CMSG_CLOEXEC, 0, 0, 0]) }?;
    let mut count = 0;
    if header.control_length >= CONTROL_HEADER && (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS) {
        count = (control.length.saturating_sub(CONTROL_HEADER) / size_of::<i32>()).min(MOST_DESCRIPTORS);
        *descriptors = control.descriptors;
    }
    Ok((length, count))
}

/// Sends one message, with one descriptor or none.
pub(crate) fn send(socket: i32, bytes: &[u8], descriptor: Option<i32>) -> Result<(), Errno> {
    const MSG_NOSIGNAL: usize = 0x4000;
    let slice = Slice {
        start: bytes.as_ptr() as usize,
        length: bytes.len(),
    };
    let control = Control {
        length: CONTROL_HEADER + size_of::<i32>(),
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        descriptors: [descriptor.unwrap_or(-1), 0, 0, 0],
    };
    let header = Header {
        name: 0,
        name_length: 0,
        slices: core::ptr::from_ref(&slice) as usize,
        slice_count: 1,
        control: if descriptor.is_some() { core::ptr::from_ref(&control) as usize } else { 0 },
        control_length: if descriptor.is_some() { CONTROL_HEADER + 8 } else { 0 },
        flags: 0,
    };
    let arguments = [socket as usize, 0, MSG_NOSIGNAL, 0, 0, 0];
    with_struct(number::SENDMSG, arguments, 1, &header).map(|_| ())
}
