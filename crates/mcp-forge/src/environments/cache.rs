//! `uv`'s cache, which the builds of all servers share: cleaned and bounded whenever nobody builds.
//!
//! Whoever builds holds a shared lock on the directory, and whoever cleans an exclusive one. A job can
//! lock it as well, which hinders cleaning for as long as the job lives and nothing else: its own build
//! holds the lock already.

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::places::{create, names};
use crate::{
    engine::native::job::{hand_over, takes_more_than},
    lock::FileLock,
};

/// How the names of what is being unpacked begin.
const UNFINISHED: &str = ".tmp";

/// The cache.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    directory: PathBuf,
    /// Bytes that it may take while nobody builds.
    most: u64,
}

impl Cache {
    pub(super) fn new(directory: PathBuf, most: u64) -> Self {
        Self { directory, most }
    }

    /// Makes the directory and gives it to the jobs, after waiting for whoever cleans it. Nothing is
    /// removed from it as long as the lock is held.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn enter(&self) -> io::Result<FileLock> {
        create(&self.directory)?;
        let in_use = FileLock::share(open(&self.directory)?)?;
        hand_over(&self.directory)?;
        Ok(in_use)
    }

    /// Removes what `uv` was killed over, and everything where it has become too much. While anybody
    /// builds nothing happens: the last one to be done cleans.
    ///
    /// # Errors
    ///
    /// The system's; the rest is left for the next time.
    pub(super) fn clean(&self) -> io::Result<()> {
        let opened = match open(&self.directory) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
        let Some(alone) = FileLock::try_alone(opened)? else {
            return Ok(());
        };
        let opened = alone.file();
        // Jobs own it, and could put a link in its place: only what was opened is touched.
        let cache = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let unfinished = |name: &String| name.starts_with(UNFINISHED);
        remove(&cache, names(&cache)?.into_iter().filter(unfinished))?;
        if takes_more_than(opened, self.most) {
            tracing::info!("uv's cache has become too large and is emptied");
            remove(&cache, names(&cache)?.into_iter())?;
        }
        Ok(())
    }
}

fn open(directory: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, Mode::empty())
}

/// Removes as many of them as can be.
fn remove(from: &Path, names: impl Iterator<Item = String>) -> io::Result<()> {
    let mut removed = Ok(());
    for name in names {
        let path = from.join(name);
        let is_directory = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        removed = removed.and(if is_directory {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        });
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(most: u64) -> (tempfile::TempDir, Cache) {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path().join("cache"), most);
        (directory, cache)
    }

    #[test]
    fn what_is_in_use_is_left_alone_and_cleaned_by_the_last() {
        let (_directory, cache) = with(1 << 20);
        let (first, second) = (cache.enter().unwrap(), cache.enter().unwrap());
        let unfinished = cache.directory.join(".tmp12");
        fs::create_dir(&unfinished).unwrap();
        fs::write(cache.directory.join("kept"), "kept").unwrap();
        drop(first);
        cache.clean().unwrap();
        assert!(unfinished.exists(), "another builds");
        drop(second);
        cache.clean().unwrap();
        assert_eq!(names(&cache.directory).unwrap(), ["kept"]);
    }

    #[test]
    fn what_takes_too_much_is_emptied_and_links_lead_nowhere() {
        let (directory, cache) = with(1 << 20);
        drop(cache.enter().unwrap());
        let outside = directory.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        std::os::unix::fs::symlink(&outside, cache.directory.join("link")).unwrap();
        fs::create_dir_all(cache.directory.join("archive/a")).unwrap();
        fs::write(cache.directory.join("archive/a/large"), vec![1; 2 << 20]).unwrap();
        cache.clean().unwrap();
        assert_eq!(names(&cache.directory).unwrap(), [""; 0]);
        assert!(outside.join("kept").exists());
        fs::remove_dir(&cache.directory).unwrap();
        std::os::unix::fs::symlink(&outside, &cache.directory).unwrap();
        cache.clean().unwrap_err();
        cache.enter().unwrap_err();
        assert!(outside.join("kept").exists());
    }
}
