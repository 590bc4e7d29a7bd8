//! File descriptors: nothing inherited survives, only the four that the program needs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{error::JailError, spec::Layer, sys};

/// The descriptor on which the runner speaks with the server.
pub(crate) const CONTROL: i32 = 3;

/// The descriptors that came with the launch, for the program.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Becomes 3.
    pub(crate) control: OwnedFd,
    /// Becomes 1.
    pub(crate) stdout: OwnedFd,
    /// Becomes 2.
    pub(crate) stderr: OwnedFd,
}

/// Marks everything above the standard streams close-on-exec: whatever init still holds (its
/// channel to the keeper, mounts under construction) can never be seen by the program. CVE-2024-21626
/// was one such descriptor.
pub(crate) fn close_inherited() -> Result<String, JailError> {
    let failed = |step: &str| JailError::at(Layer::Descriptors, step.to_owned());
    sys::close_range(3, true).map_err(failed("close_range"))?;
    // Standard input is the launch socket, which is the server's.
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(failed("open /dev/null"))?;
    for standard in 0..=2 {
        sys::duplicate_onto(null.as_fd(), standard)
            .map_err(failed("replace the standard streams"))?;
    }
    Ok("only 0 to 3 are passed".to_owned())
}

/// Puts the program's four descriptors in place. The worker calls it last before exec.
///
/// # Errors
///
/// A descriptor could not be made; the worker must exit.
pub(crate) fn arrange(streams: &Streams) -> std::io::Result<()> {
    // High copies first: a source may itself be 0 to 3.
    let control = sys::duplicate_above(streams.control.as_fd(), 16)?;
    let stdout = sys::duplicate_above(streams.stdout.as_fd(), 16)?;
    let stderr = sys::duplicate_above(streams.stderr.as_fd(), 16)?;
    // The sandbox's own /dev/null: standard input is empty, and no host object.
    let stdin = std::fs::File::open("/dev/null")?;
    place(stdin.as_fd(), 0)?;
    place(stdout.as_fd(), 1)?;
    place(stderr.as_fd(), 2)?;
    place(control.as_fd(), CONTROL)
}

fn place(source: BorrowedFd<'_>, target: i32) -> std::io::Result<()> {
    if std::os::fd::AsRawFd::as_raw_fd(&source) == target {
        // dup2 onto itself would leave close-on-exec set.
        let copy = sys::duplicate_above(source, 16)?;
        return sys::duplicate_onto(copy.as_fd(), target);
    }
    sys::duplicate_onto(source, target)
}
