//! Whether another server process lives: each holds a lock on a file of its own, in a directory that
//! all look into.
//!
//! The kernel lets go of the lock however the process ends. A pid alone would not do: it is used
//! again, and it means something else in a container that shares the directory.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

use crate::lock::FileLock;

/// This process, as others see it for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Alive {
    name: String,
    directory: PathBuf,
    /// Until the process ends.
    _lock: FileLock,
}

impl Alive {
    /// Makes this process known under a name of its own. The directory is made.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(crate) fn register(directory: PathBuf) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        let name = random_name()?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        // Locked before it has its name: unlocked it would be taken for a dead server's.
        let unnamed = directory.join(format!("{name}.new"));
        let file = rustix::fs::open(&unnamed, flags, Mode::from_raw_mode(0o600))?;
        let lock = FileLock::try_alone(file)?.ok_or(Errno::WOULDBLOCK)?;
        fs::rename(unnamed, path_of(&directory, &name))?;
        Ok(Self {
            name,
            directory,
            _lock: lock,
        })
    }

    /// This process's name: 32 lower-case hexadecimal digits.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the process of this name lives. One without a file does not; one whose file cannot be
    /// looked at may. UNTRUSTED: what is no name is nobody's.
    pub(crate) fn is_alive(&self, name: &str) -> bool {
        if name == self.name {
            return true;
        }
        if !is_name(name) {
            return false;
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path_of(&self.directory, name), flags, Mode::empty()) {
            // Shared: two who look at the same time do not take each other for the owner.
            Ok(file) => !matches!(FileLock::try_share(file), Ok(Some(_))),
            Err(error) => error != Errno::NOENT,
        }
    }

    /// Removes the files of those that are gone. Call it when nothing of theirs is left.
    pub(crate) fn forget_dead(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return;
        };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let name = path.file_stem().and_then(|name| name.to_str());
            let is_lock = path.extension().is_some_and(|it| it == "lock");
            if is_lock && name.is_some_and(|name| is_name(name) && !self.is_alive(name)) {
                // It may be gone already.
                let _ = fs::remove_file(path);
            }
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        // Left behind it would be taken for a dead server's, which is what it is.
        let _ = fs::remove_file(path_of(&self.directory, &self.name));
    }
}

/// A name that nobody has or guesses.
///
/// # Errors
///
/// The system has no randomness to give.
pub(crate) fn random_name() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Whether this is how names look; then it is no path.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() == 32
        && name
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn path_of(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(directory: &Path) -> Alive {
        Alive::register(directory.to_owned()).unwrap()
    }

    #[test]
    fn whoever_is_gone_is_dead_and_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (register(directory.path()), register(directory.path()));
        let name = second.name().to_owned();
        assert!(first.is_alive(&name) && first.is_alive(first.name()));
        // As a process that is killed: nothing removes the file.
        let left = path_of(directory.path(), &name);
        fs::hard_link(&left, directory.path().join("kept")).unwrap();
        drop(second);
        assert!(!first.is_alive(&name), "no file");
        fs::rename(directory.path().join("kept"), &left).unwrap();
        assert!(!first.is_alive(&name), "no lock");
        first.forget_dead();
        assert!(!left.exists() && path_of(directory.path(), first.name()).exists());
        for name in ["", "..", "../../etc/passwd", "A", &"é".repeat(16)] {
            assert!(!first.is_alive(name), "{name:?}");
        }
    }

    #[test]
    fn one_whose_lock_cannot_be_looked_at_is_not_taken_for_dead() {
        let directory = tempfile::tempdir().unwrap();
        let first = register(directory.path());
        let name = random_name().unwrap();
        // As when this process has no descriptor left: opening it fails, and not for want of a file.
        std::os::unix::fs::symlink("elsewhere", path_of(directory.path(), &name)).unwrap();
        assert!(first.is_alive(&name));
    }

    #[test]
    fn a_process_has_its_lock_before_its_name_can_be_seen() {
        let directory = tempfile::tempdir().unwrap();
        let first = register(directory.path());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let other = register(directory.path());
                        first.forget_dead();
                        assert!(path_of(directory.path(), other.name()).exists());
                        assert!(first.is_alive(other.name()));
                    }
                });
            }
        });
    }
}
