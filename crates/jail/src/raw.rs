//! System calls without any library: the seal also runs inside a foreign interpreter.
#![expect(
    unsafe_code,
    reason = "system calls that must not go through a library are made here"
)]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "arguments of system calls are registers: words without a sign"
)]

use core::{arch::asm, ffi::CStr};

/// A system call's error number.
pub(crate) type Errno = i32;

/// Not a valid argument, or not known to this kernel.
pub(crate) const EINVAL: Errno = 22;

/// A type that is nothing but its bytes.
///
/// # Safety
///
/// Every pattern of bytes is a valid value, and there is no padding.
pub(crate) unsafe trait Plain: Copy {
    /// Its bytes, to be sent.
    fn bytes(&self) -> &[u8] {
        let start = core::ptr::from_ref(self).cast::<u8>();
        // SAFETY: the value is one live object of that many bytes, borrowed for as long as the slice
        // lives, and without padding every byte is initialised.
        unsafe { core::slice::from_raw_parts(start, size_of::<Self>()) }
    }
}

// SAFETY: `repr(C)`, and all fields are integers or arrays of them that leave no gap: two `u32` first,
// then `u64`, 192 bytes, `u64` again, and pairs of `u32`.
unsafe impl Plain for super::seal::Plan {}

/// Makes a system call.
///
/// # Safety
///
/// The arguments are what the call's manual page asks for, and pointers among them stay valid for
/// as long as the kernel uses them.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: i64, arguments: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: this is the calling convention: number in rax, arguments from rdi to r9; rcx and
    // r11 are lost. What the kernel does to memory is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    outcome(result)
}

/// Makes a system call.
///
/// # Safety
///
/// As on x86-64.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(number: i64, arguments: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: this is the calling convention: number in x8, arguments from x0 to x5, result in x0.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") arguments[0] as isize => result,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            in("x5") arguments[5],
            options(nostack),
        );
    }
    outcome(result)
}

fn outcome(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno::try_from(-result).unwrap_or(Errno::MAX))
}

/// System call numbers: the ones used here, on both architectures.
#[cfg(target_arch = "x86_64")]
pub(crate) mod number {
    pub(crate) const CLOSE: i64 = 3;
    pub(crate) const CAPSET: i64 = 126;
    pub(crate) const PRCTL: i64 = 157;
    pub(crate) const CHDIR: i64 = 80;
    pub(crate) const MOUNT: i64 = 165;
    pub(crate) const UNSHARE: i64 = 272;
    pub(crate) const OPENAT: i64 = 257;
    pub(crate) const PRLIMIT64: i64 = 302;
    pub(crate) const SECCOMP: i64 = 317;
    pub(crate) const LANDLOCK_CREATE_RULESET: i64 = 444;
    pub(crate) const LANDLOCK_ADD_RULE: i64 = 445;
    pub(crate) const LANDLOCK_RESTRICT_SELF: i64 = 446;
}

/// System call numbers: the ones used here, on both architectures.
#[cfg(target_arch = "aarch64")]
pub(crate) mod number {
    pub(crate) const CLOSE: i64 = 57;
    pub(crate) const CAPSET: i64 = 91;
    pub(crate) const PRCTL: i64 = 167;
    pub(crate) const CHDIR: i64 = 49;
    pub(crate) const MOUNT: i64 = 40;
    pub(crate) const UNSHARE: i64 = 97;
    pub(crate) const OPENAT: i64 = 56;
    pub(crate) const PRLIMIT64: i64 = 261;
    pub(crate) const SECCOMP: i64 = 277;
    pub(crate) const LANDLOCK_CREATE_RULESET: i64 = 444;
    pub(crate) const LANDLOCK_ADD_RULE: i64 = 445;
    pub(crate) const LANDLOCK_RESTRICT_SELF: i64 = 446;
}

/// Calls that take only integers cannot touch memory, so they are safe to make with any of them.
pub(crate) fn integers(number: i64, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: callers use this for calls whose every argument is an integer.
    unsafe { call(number, arguments) }
}

const AT_FDCWD: usize = -100_isize as usize;
const O_CLOEXEC: usize = 0o2_000_000;

/// Opens a file. `flags` as in open(2).
pub(crate) fn open(path: &CStr, flags: usize) -> Result<i32, Errno> {
    let arguments = [AT_FDCWD, path.as_ptr() as usize, flags | O_CLOEXEC, 0, 0, 0];
    // SAFETY: the path is NUL-terminated and lives across the call.
    let fd = unsafe { call(number::OPENAT, arguments) }?;
    Ok(fd as i32)
}

pub(crate) fn close(fd: i32) {
    let _ = integers(number::CLOSE, [fd as usize, 0, 0, 0, 0, 0]);
}

/// Mounts a file system without a source.
pub(crate) fn mount(kind: &CStr, target: &CStr, flags: usize, options: &CStr) -> Result<(), Errno> {
    let arguments = [
        kind.as_ptr() as usize,
        target.as_ptr() as usize,
        kind.as_ptr() as usize,
        flags,
        options.as_ptr() as usize,
        0,
    ];
    // SAFETY: four NUL-terminated strings that live across the call.
    unsafe { call(number::MOUNT, arguments) }.map(|_| ())
}

/// Passes a structure that the kernel only reads, as the argument at `place`.
pub(crate) fn with_struct<T>(
    number: i64,
    mut arguments: [usize; 6],
    place: usize,
    value: &T,
) -> Result<usize, Errno> {
    if let Some(argument) = arguments.get_mut(place) {
        *argument = core::ptr::from_ref(value) as usize;
    }
    // SAFETY: callers pass the structure that this call reads at this place; it lives across the
    // call, and the other arguments are integers.
    unsafe { call(number, arguments) }
}

/// Changes the working directory.
pub(crate) fn chdir(path: &CStr) -> Result<(), Errno> {
    // SAFETY: the path is NUL-terminated and lives across the call.
    unsafe { call(number::CHDIR, [path.as_ptr() as usize, 0, 0, 0, 0, 0]) }.map(|_| ())
}

/// Gives up every capability.
pub(crate) fn drop_capability_sets() -> Result<(), Errno> {
    // Version 3, this process; two words each of effective, permitted and inheritable.
    let (header, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
    let arguments = [0, core::ptr::from_ref(&none) as usize, 0, 0, 0, 0];
    with_struct(number::CAPSET, arguments, 0, &header).map(|_| ())
}
