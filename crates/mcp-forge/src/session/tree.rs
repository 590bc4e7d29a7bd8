//! Directories on the host that a session's files come from or go to.
//!
//! Everything is relative to one open directory, and no link is followed at any component: whatever
//! a path says, and whoever swaps what it names meanwhile, nothing outside is read or written.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags},
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

/// Longest path, in bytes.
pub(super) const MAX_PATH_BYTES: usize = 1024;

/// Most components of a path.
const MAX_DEPTH: usize = 32;

/// Longest component, in bytes: what file systems take.
const MAX_NAME_BYTES: usize = 255;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// An open directory and what is below it.
#[derive(Debug)]
pub(super) struct Tree(OwnedFd);

/// A regular file of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Relative to where the listing began.
    pub(super) path: String,
    /// Bytes.
    pub(super) size: u64,
    /// Nanoseconds since 1970.
    pub(super) modified_ns: u64,
}

/// What a listing gave.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// Regular files, in the order of their paths.
    pub(super) files: Vec<Found>,
    /// Whether some were left out: too many, too deep, or with names that are no text.
    pub(super) is_cut: bool,
}

/// Whether a text can be a path below a tree: no empty, `.` or `..` component, nothing absurd.
pub(super) fn is_path(path: &str) -> bool {
    path.len() <= MAX_PATH_BYTES
        && path.split('/').count() <= MAX_DEPTH
        && path.split('/').all(|name| {
            !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME_BYTES && !name.contains('\0')
        })
}

impl Tree {
    /// Opens a directory; the last component may not be a link.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(directory, flags, Mode::empty())?))
    }

    /// Makes a directory, for its owner only, and opens it.
    pub(super) fn create(directory: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        Self::open(directory)
    }

    /// Opens a directory below; an empty path is this one.
    pub(super) fn subtree(&self, path: &str) -> io::Result<Self> {
        let path = if path.is_empty() { "." } else { path };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self(self.at(path, flags)?))
    }

    /// Opens a regular file for reading, without ever waiting for one that is not.
    pub(super) fn file(&self, path: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = File::from(self.at(path, flags)?);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ))
        }
    }

    /// Makes a new file for its owner only, in this very directory.
    pub(super) fn new_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        Ok(File::from(rustix::fs::openat2(
            &self.0, name, flags, mode, RESOLVE,
        )?))
    }

    /// Makes a file in this very directory that has no name any more: nothing has to remove it.
    pub(super) fn nameless(&self) -> io::Result<File> {
        let name = random_name()?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = rustix::fs::openat2(&self.0, &name, flags, mode, RESOLVE)?;
        rustix::fs::unlinkat(&self.0, &name, AtFlags::empty())?;
        Ok(File::from(file))
    }

    /// Moves a file of this very directory to a path in another tree; missing directories are made.
    pub(super) fn move_to(&self, name: &str, other: &Self, path: &str) -> io::Result<()> {
        let (parent, last) = other.parent_of(path, true)?;
        Ok(rustix::fs::renameat(&self.0, name, parent.fd(), last)?)
    }

    /// Removes a file, and the directories above it that are empty then. None is no error.
    pub(super) fn remove(&self, path: &str) -> io::Result<()> {
        let removed = self.parent_of(path, false).and_then(|(parent, last)| {
            Ok(rustix::fs::unlinkat(parent.fd(), last, AtFlags::empty())?)
        });
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut above = path;
        while let Some((directory, _)) = above.rsplit_once('/') {
            let Ok((parent, last)) = self.parent_of(directory, false) else {
                break;
            };
            if rustix::fs::unlinkat(parent.fd(), last, AtFlags::REMOVEDIR).is_err() {
                break;
            }
            above = directory;
        }
        Ok(())
    }

    /// The regular files below, `most` at most.
    pub(super) fn list(&self, most: usize) -> io::Result<Listing> {
        let mut listing = Listing::default();
        self.list_into("", most, &mut listing)?;
        listing
            .files
            .sort_by(|left, right| left.path.cmp(&right.path));
        Ok(listing)
    }

    fn list_into(&self, prefix: &str, most: usize, listing: &mut Listing) -> io::Result<()> {
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let path = name.to_str().map(|name| format!("{prefix}{name}"));
            let Some(path) = path.filter(|path| is_path(path)) else {
                listing.is_cut = true;
                continue;
            };
            let stat = rustix::fs::statx(
                &self.0,
                name,
                AtFlags::SYMLINK_NOFOLLOW,
                StatxFlags::BASIC_STATS,
            )?;
            match FileType::from_raw_mode(stat.stx_mode.into()) {
                FileType::RegularFile if listing.files.len() >= most => listing.is_cut = true,
                FileType::RegularFile => listing.files.push(Found {
                    path,
                    size: stat.stx_size,
                    modified_ns: nanoseconds(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
                }),
                FileType::Directory => {
                    let below = name.to_str().map(|name| self.subtree(name));
                    if let Some(Ok(below)) = below {
                        below.list_into(&format!("{path}/"), most, listing)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The directory that a path's last component lies in, and that component.
    fn parent_of<'p>(&self, path: &'p str, make: bool) -> io::Result<(Parent<'_>, &'p str)> {
        if !is_path(path) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let Some((directory, last)) = path.rsplit_once('/') else {
            return Ok((Parent::Root(self), path));
        };
        if make {
            self.make_directories(directory)?;
        }
        Ok((Parent::Below(self.subtree(directory)?), last))
    }

    fn make_directories(&self, path: &str) -> io::Result<()> {
        let mut above: Option<Self> = None;
        for name in path.split('/') {
            let here = above.as_ref().unwrap_or(self);
            match rustix::fs::mkdirat(&here.0, name, Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            above = Some(here.subtree(name)?);
        }
        Ok(())
    }

    fn at(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat2(
            &self.0,
            path,
            flags,
            Mode::empty(),
            RESOLVE,
        )?)
    }
}

enum Parent<'a> {
    Root(&'a Tree),
    Below(Tree),
}

impl Parent<'_> {
    fn fd(&self) -> impl AsFd {
        match self {
            Self::Root(tree) => tree.0.as_fd(),
            Self::Below(tree) => tree.0.as_fd(),
        }
    }
}

/// A name that nobody else chooses.
pub(super) fn random_name() -> rustix::io::Result<String> {
    let mut bytes = [0_u8; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_be_bytes(bytes)))
}

/// A piece of a file, `most` bytes at most.
pub(super) fn read_piece(file: &File, offset: u64, most: usize) -> io::Result<Vec<u8>> {
    let mut piece = Vec::new();
    let mut file = file;
    file.seek(SeekFrom::Start(offset))?;
    file.take(most as u64).read_to_end(&mut piece)?;
    Ok(piece)
}

/// Writes a piece where the last one ended.
pub(super) fn append(mut file: &File, piece: &[u8]) -> io::Result<()> {
    file.write_all(piece)
}

fn nanoseconds(seconds: i64, more: u32) -> u64 {
    u64::try_from(seconds)
        .unwrap_or_default()
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::from(more))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn paths_are_plain() {
        for good in ["a", "a/b.txt", "ä/b c/'$(x)'", "-x", "a.. b/..c"] {
            assert!(is_path(good), "{good}");
        }
        let long = "x/".repeat(40) + "x";
        for bad in [
            "",
            "/etc/passwd",
            "..",
            "a/../b",
            "a//b",
            ".",
            "a/",
            "a\0b",
            &long,
            &"y".repeat(300),
        ] {
            assert!(!is_path(bad), "{bad}");
        }
    }

    #[test]
    fn links_are_never_followed() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::create(&directory.path().join("files")).unwrap();
        let root = directory.path().join("files");
        symlink(outside.path(), root.join("out")).unwrap();
        symlink(outside.path().join("secret"), root.join("link")).unwrap();
        assert!(tree.file("link").is_err());
        assert!(tree.file("out/secret").is_err());
        assert!(tree.subtree("out").is_err());
        let partial = Tree::create(&directory.path().join("partial")).unwrap();
        partial.new_file("p").unwrap();
        assert!(partial.move_to("p", &tree, "out/new").is_err());
        assert!(partial.move_to("p", &tree, "../new").is_err());
        assert!(!outside.path().join("new").exists());
        assert_eq!(tree.list(10).unwrap(), Listing::default());
    }

    #[test]
    fn files_come_list_and_go_with_their_directories() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::create(&directory.path().join("files")).unwrap();
        let partial = Tree::create(&directory.path().join("partial")).unwrap();
        for path in ["a/b/c.txt", "a/d", "e"] {
            append(&partial.new_file("p").unwrap(), path.as_bytes()).unwrap();
            partial.move_to("p", &tree, path).unwrap();
        }
        let listing = tree.list(10).unwrap();
        let paths: Vec<&str> = listing
            .files
            .iter()
            .map(|file| file.path.as_str())
            .collect();
        assert_eq!(paths, ["a/b/c.txt", "a/d", "e"]);
        assert!(tree.list(2).unwrap().is_cut);
        let file = tree.file("a/b/c.txt").unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_piece(&file, 4, 100).unwrap(), b"c.txt");
        tree.remove("a/b/c.txt").unwrap();
        tree.remove("a/b/c.txt").unwrap();
        assert!(!directory.path().join("files/a/b").exists());
        assert!(directory.path().join("files/a/d").exists());
    }

    #[test]
    fn nothing_waits_for_what_is_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::create(directory.path()).unwrap();
        rustix::fs::mknodat(
            &tree.0,
            "fifo",
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(tree.file("fifo").is_err());
        assert_eq!(tree.list(10).unwrap(), Listing::default());
    }
}
