//! How much disk a hostile directory takes, looked at while it is written to.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};

/// Directories below each other that are looked into. Nothing that is meant to be published is deeper.
const DEEPEST: usize = 64;

/// What a file costs at least, in bytes, empty or not.
const LEAST: u64 = 4096;

/// Whether what was changed below since a moment, in seconds since 1970, takes more than `most` bytes.
/// No link is followed; what cannot be looked into, or is nested deeper than anything should be, counts
/// as too much.
///
/// # Errors
///
/// The directory itself cannot be opened.
pub(super) fn is_more_than(directory: &Path, most: u64, since: i64) -> io::Result<bool> {
    let top = rustix::fs::open(directory, FLAGS, Mode::empty())?;
    Ok(is_more(top.as_fd(), most, since))
}

/// As [`is_more_than`], of everything below.
pub(crate) fn takes_more_than(directory: impl AsFd, most: u64) -> bool {
    is_more(directory.as_fd(), most, i64::MIN)
}

fn is_more(directory: BorrowedFd<'_>, most: u64, since: i64) -> bool {
    let mut seen = Seen {
        left: most,
        since,
        linked: BTreeSet::new(),
    };
    seen.look_into(directory, DEEPEST).is_err()
}

const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

struct TooMuch;

struct Seen {
    left: u64,
    since: i64,
    /// Files of several names, by their numbers: a package cache links into what is installed from it.
    linked: BTreeSet<(u64, u64)>,
}

impl Seen {
    fn look_into(&mut self, directory: BorrowedFd<'_>, depth: usize) -> Result<(), TooMuch> {
        let depth = depth.checked_sub(1).ok_or(TooMuch)?;
        let entries = Dir::read_from(directory).map_err(|_| TooMuch)?;
        for entry in entries {
            let entry = entry.map_err(|_| TooMuch)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(_) => return Err(TooMuch),
            };
            self.count(&stat)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                continue;
            }
            match rustix::fs::openat(directory, name, FLAGS, Mode::empty()) {
                Ok(below) => self.look_into(below.as_fd(), depth)?,
                // It is gone, or has become something else.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(_) => return Err(TooMuch),
            }
        }
        Ok(())
    }

    fn count(&mut self, stat: &Stat) -> Result<(), TooMuch> {
        if stat.st_ctime < self.since {
            return Ok(());
        }
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_directory && stat.st_nlink > 1 && !self.linked.insert((stat.st_dev, stat.st_ino)) {
            return Ok(());
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(u64::MAX);
        let bytes = blocks.saturating_mul(512).max(LEAST);
        self.left = self.left.checked_sub(bytes).ok_or(TooMuch)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn files_count_once_links_are_not_followed_and_depth_is_too_much() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let more = |most| is_more_than(root, most, 0).unwrap();
        assert!(!more(0));
        fs::create_dir(root.join("a")).unwrap();
        fs::write(root.join("a/file"), vec![1; 1 << 20]).unwrap();
        assert!(more(1 << 20) && !more(2 << 20));
        // The same bytes under another name, and a way out.
        fs::hard_link(root.join("a/file"), root.join("b")).unwrap();
        symlink("/usr", root.join("usr")).unwrap();
        assert!(!more(2 << 20));
        assert!(!is_more_than(root, 0, i64::MAX).unwrap(), "of before");
        for index in 0..300 {
            fs::write(root.join(format!("empty-{index}")), "").unwrap();
        }
        assert!(more(2 << 20), "empty files are not free");
        assert!(!more(4 << 20));
        let deep = root.join("d/".repeat(DEEPEST + 1));
        fs::create_dir_all(deep).unwrap();
        assert!(more(1 << 40));
        assert!(is_more_than(&root.join("usr"), 1, 0).is_err());
    }
}
