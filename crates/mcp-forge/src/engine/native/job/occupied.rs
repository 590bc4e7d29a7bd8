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

/// What was found below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// It takes so many bytes, no more than it may.
    Bytes(u64),
    /// It takes more.
    TooMuch,
    /// Something cannot be looked into, or is nested deeper than anything should be.
    Hidden,
}

/// Whether what was changed below since a moment, in seconds since 1970, takes more than `most` bytes.
/// No link is followed.
///
/// # Errors
///
/// The directory itself cannot be opened.
pub(super) fn written_since(directory: &Path, most: u64, since: i64) -> io::Result<Written> {
    let top = rustix::fs::open(directory, FLAGS, Mode::empty())?;
    Ok(written(top.as_fd(), most, since))
}

/// As [`written_since`], of everything below; what is hidden counts as too much.
pub(crate) fn takes_more_than(directory: impl AsFd, most: u64) -> bool {
    !matches!(
        written(directory.as_fd(), most, i64::MIN),
        Written::Bytes(_)
    )
}

fn written(directory: BorrowedFd<'_>, most: u64, since: i64) -> Written {
    let mut seen = Seen {
        left: most,
        since,
        linked: BTreeSet::new(),
    };
    match seen.look_into(directory, DEEPEST) {
        Ok(()) => Written::Bytes(most - seen.left),
        Err(Stop::TooMuch) => Written::TooMuch,
        Err(Stop::Hidden) => Written::Hidden,
    }
}

const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Why the look ended before its time.
enum Stop {
    TooMuch,
    Hidden,
}

struct Seen {
    left: u64,
    since: i64,
    /// Files of several names, by their numbers: a package cache links into what is installed from it.
    linked: BTreeSet<(u64, u64)>,
}

impl Seen {
    fn look_into(&mut self, directory: BorrowedFd<'_>, depth: usize) -> Result<(), Stop> {
        let depth = depth.checked_sub(1).ok_or(Stop::Hidden)?;
        let entries = Dir::read_from(directory).map_err(|_| Stop::Hidden)?;
        for entry in entries {
            let entry = entry.map_err(|_| Stop::Hidden)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(_) => return Err(Stop::Hidden),
            };
            self.count(&stat)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                continue;
            }
            match rustix::fs::openat(directory, name, FLAGS, Mode::empty()) {
                Ok(below) => self.look_into(below.as_fd(), depth)?,
                // It is gone, or has become something else.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(_) => return Err(Stop::Hidden),
            }
        }
        Ok(())
    }

    fn count(&mut self, stat: &Stat) -> Result<(), Stop> {
        if stat.st_ctime < self.since {
            return Ok(());
        }
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_directory && stat.st_nlink > 1 && !self.linked.insert((stat.st_dev, stat.st_ino)) {
            return Ok(());
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(u64::MAX);
        let bytes = blocks.saturating_mul(512).max(LEAST);
        self.left = self.left.checked_sub(bytes).ok_or(Stop::TooMuch)?;
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
        let look = |most| written_since(root, most, 0).unwrap();
        let more = |most| look(most) == Written::TooMuch;
        assert!(!more(0));
        fs::create_dir(root.join("a")).unwrap();
        fs::write(root.join("a/file"), vec![1; 1 << 20]).unwrap();
        assert!(more(1 << 20) && !more(2 << 20));
        // The same bytes under another name, and a way out.
        fs::hard_link(root.join("a/file"), root.join("b")).unwrap();
        symlink("/usr", root.join("usr")).unwrap();
        assert!(matches!(look(2 << 20), Written::Bytes(bytes) if bytes > 1 << 20));
        assert_eq!(
            written_since(root, 0, i64::MAX).unwrap(),
            Written::Bytes(0),
            "of before"
        );
        for index in 0..300 {
            fs::write(root.join(format!("empty-{index}")), "").unwrap();
        }
        assert!(more(2 << 20), "empty files are not free");
        assert!(!more(4 << 20));
        let deep = root.join("d/".repeat(DEEPEST + 1));
        fs::create_dir_all(deep).unwrap();
        assert_eq!(look(1 << 40), Written::Hidden);
        assert!(written_since(&root.join("usr"), 1, 0).is_err());
    }
}
