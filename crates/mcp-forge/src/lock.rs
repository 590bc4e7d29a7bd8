//! Locks on files, by which servers that share a directory keep out of each other's way.
//!
//! The kernel takes them off however a process ends. Until then a lock lives as long as any copy of its
//! descriptor, and a child process that is just being started has copies of all of them, until its
//! `exec`. So a lock that is dropped is taken off, and not only closed: else whoever looks a moment
//! later takes for used what is free, and the next look may be an hour away.

use std::{fs::File, io, os::fd::OwnedFd};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// A file that is locked until this is dropped.
#[derive(Debug)]
pub(crate) struct FileLock(File);

impl FileLock {
    /// Has it alone, if nobody else has it.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(crate) fn try_alone(file: impl Into<OwnedFd>) -> io::Result<Option<Self>> {
        Self::take(file, FlockOperation::NonBlockingLockExclusive)
    }

    /// Has a share in it, if nobody else has it alone.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(crate) fn try_share(file: impl Into<OwnedFd>) -> io::Result<Option<Self>> {
        Self::take(file, FlockOperation::NonBlockingLockShared)
    }

    /// Waits until it has it alone.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(crate) fn alone(file: impl Into<OwnedFd>) -> io::Result<Self> {
        let file = File::from(file.into());
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self(file))
    }

    /// Waits until it has a share in it.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(crate) fn share(file: impl Into<OwnedFd>) -> io::Result<Self> {
        let file = File::from(file.into());
        flock(&file, FlockOperation::LockShared)?;
        Ok(Self(file))
    }

    /// What is locked.
    pub(crate) fn file(&self) -> &File {
        &self.0
    }

    fn take(file: impl Into<OwnedFd>, how: FlockOperation) -> io::Result<Option<Self>> {
        let file = File::from(file.into());
        match flock(&file, how) {
            Ok(()) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Fails on no descriptor that could be locked.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lock_is_off_though_a_child_has_a_copy_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let open = || File::create(&path).unwrap();
        for take in [
            |file: File| FileLock::alone(file),
            |file| FileLock::share(file),
        ] {
            let lock = take(open()).unwrap();
            // What a child has between its fork and its exec.
            let _copy = lock.file().try_clone().unwrap();
            assert!(FileLock::try_alone(open()).unwrap().is_none());
            drop(lock);
            assert!(FileLock::try_alone(open()).unwrap().is_some());
        }
    }

    #[test]
    fn shares_go_together_and_keep_out_who_wants_it_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let open = || File::create(&path).unwrap();
        let shares = (
            FileLock::try_share(open()).unwrap(),
            FileLock::share(open()).unwrap(),
        );
        assert!(shares.0.is_some());
        assert!(FileLock::try_alone(open()).unwrap().is_none());
        drop(shares);
        let _alone = FileLock::try_alone(open()).unwrap().unwrap();
        assert!(FileLock::try_share(open()).unwrap().is_none());
    }
}
