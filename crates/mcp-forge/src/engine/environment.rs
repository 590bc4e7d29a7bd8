//! An environment: one published tree of packages, held for as long as anything uses it.
//!
//! Several servers share a data directory, so what keeps a tree from being removed is a lock that the
//! kernel drops with the process: whoever uses it has a share, whoever removes it has it alone.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::lock::FileLock;

/// What the tree is described by.
const META: &str = "meta.json";

/// What is locked.
const IN_USE: &str = "in-use";

/// Longest description that is read, in bytes.
const MAX_META_BYTES: u64 = 1 << 20;

/// One published tree of packages, with a share in it: nobody removes it meanwhile.
#[derive(Debug)]
pub struct Environment {
    /// The hash of its lock: 64 hexadecimal digits. Two trees with the same hold the same.
    pub id: String,
    /// Holds `lib/pythonX.Y/site-packages`. Canonical.
    pub directory: PathBuf,
    /// The Python that it is for: major and minor version.
    pub python: (u8, u8),
    /// The interpreter of this host that it was built for, which is in no virtual environment.
    pub interpreter: PathBuf,
    /// Top-level modules that it has.
    pub modules: Vec<String>,
    /// For others to see, until the last owner lets go.
    _lease: FileLock,
}

/// What is written beside a tree, as `meta.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The hash of its lock: 64 hexadecimal digits.
    pub id: String,
    /// For example `3.11`.
    pub python: String,
    /// The interpreter that it was built for.
    pub interpreter: PathBuf,
    /// Top-level modules that it has.
    #[serde(default)]
    pub modules: Vec<String>,
    /// When it was published: a timestamp of RFC 3339.
    #[serde(default)]
    pub built_at: String,
    /// Bytes of all files.
    #[serde(default)]
    pub size_bytes: u64,
    /// Each as `name==version`.
    #[serde(default)]
    pub packages: Vec<String>,
}

impl Meta {
    /// Reads what is written beside the tree in this directory. Takes no share in it.
    ///
    /// # Errors
    ///
    /// [`EnvironmentError::Missing`] or [`EnvironmentError::Damaged`].
    pub fn read(directory: &Path) -> Result<Self, EnvironmentError> {
        let path = directory.join(META);
        let text = read_bounded(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => EnvironmentError::Missing(directory.to_owned()),
            _ => damaged(directory, format!("{META} cannot be read: {error}")),
        })?;
        let meta: Self = serde_json::from_slice(&text)
            .map_err(|error| damaged(directory, format!("{META} is not what it was: {error}")))?;
        if !is_id(&meta.id) {
            return Err(damaged(directory, format!("its id in {META} is no hash")));
        }
        meta.version()
            .ok_or_else(|| damaged(directory, format!("its Python in {META} is no version")))?;
        Ok(meta)
    }

    /// Writes it beside a tree that is about to be published.
    ///
    /// # Errors
    ///
    /// The file could not be written.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        fs::write(directory.join(META), text)
    }

    fn version(&self) -> Option<(u8, u8)> {
        let (major, minor) = self.python.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }
}

/// An environment cannot be used. Nothing was changed, and nothing is held.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// It is not there, or somebody is removing it just now.
    #[error("there is no environment at {}: build it again", .0.display())]
    Missing(PathBuf),
    /// It is not as it was published.
    #[error("the environment at {} is damaged: {problem}. Remove it and build it again", directory.display())]
    Damaged {
        /// Where it is.
        directory: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Its lock cannot be taken.
    #[error("the environment at {} cannot be held: {source}", directory.display())]
    Lease {
        /// Where it is.
        directory: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl Environment {
    /// Opens the tree in this directory, and takes a share in it.
    ///
    /// # Errors
    ///
    /// [`EnvironmentError`].
    pub fn open(directory: &Path) -> Result<Self, EnvironmentError> {
        let lease = lock(directory, FileLock::try_share)?;
        let lease = lease.ok_or_else(|| EnvironmentError::Missing(directory.to_owned()))?;
        // Read under the lock: before it, the tree could have been another.
        let meta = Meta::read(directory)?;
        let python = meta
            .version()
            .ok_or_else(|| damaged(directory, "its Python is no version".to_owned()))?;
        let directory = directory
            .canonicalize()
            .map_err(|error| damaged(directory, error.to_string()))?;
        let environment = Self {
            id: meta.id,
            directory,
            python,
            interpreter: meta.interpreter,
            modules: meta.modules,
            _lease: lease,
        };
        let packages = environment.site_packages();
        // A link would show whatever it leads to.
        match fs::symlink_metadata(&packages) {
            Ok(found) if found.is_dir() => Ok(environment),
            _ => Err(damaged(
                &environment.directory,
                format!("{} is no directory", packages.display()),
            )),
        }
    }

    /// Claims the tree in this directory for its removal: none while anybody has a share in it, in
    /// whatever process, and while the claim lives nobody gets one.
    ///
    /// # Errors
    ///
    /// [`EnvironmentError::Missing`] or [`EnvironmentError::Lease`].
    pub fn try_claim(directory: &Path) -> Result<Option<Claim>, EnvironmentError> {
        let lock = lock(directory, FileLock::try_alone)?;
        Ok(lock.map(|lock| Claim {
            directory: directory.to_owned(),
            _lock: lock,
        }))
    }

    /// Whether it is where others find it: in a directory of its own name. Before that nobody shares it.
    pub fn is_published(&self) -> bool {
        self.directory
            .file_name()
            .is_some_and(|name| name == self.id.as_str())
    }

    /// Where its packages are, on this host.
    pub fn site_packages(&self) -> PathBuf {
        let (major, minor) = self.python;
        self.directory
            .join(format!("lib/python{major}.{minor}/site-packages"))
    }
}

/// The same tree is the same environment.
impl PartialEq for Environment {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, &self.directory) == (&other.id, &other.directory)
    }
}

impl Eq for Environment {}

/// A tree that nobody uses and nobody gets until this is dropped.
#[derive(Debug)]
pub struct Claim {
    directory: PathBuf,
    _lock: FileLock,
}

impl Claim {
    /// The tree's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes the tree: first its name, so that none of it is ever taken for a whole one.
    ///
    /// # Errors
    ///
    /// What could not be removed; the tree may be left without its name, as `.removed-<name>` beside it.
    pub fn remove(self) -> io::Result<()> {
        let name = self.directory.file_name().unwrap_or_default();
        let mut removed = std::ffi::OsString::from(".removed-");
        removed.push(name);
        let removed = self.directory.with_file_name(removed);
        // Left by one who did not come to its end.
        if removed.exists() {
            fs::remove_dir_all(&removed)?;
        }
        fs::rename(&self.directory, &removed)?;
        fs::remove_dir_all(&removed)
    }
}

/// Opens and locks the file of a tree that is still there. `None` when others have the lock.
fn lock(
    directory: &Path,
    take: fn(OwnedFd) -> io::Result<Option<FileLock>>,
) -> Result<Option<FileLock>, EnvironmentError> {
    let cannot = |source: io::Error| EnvironmentError::Lease {
        directory: directory.to_owned(),
        source,
    };
    let path = directory.join(IN_USE);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => {
            return Err(EnvironmentError::Missing(directory.to_owned()));
        }
        Err(error) => return Err(cannot(error.into())),
    };
    let Some(lock) = take(file).map_err(cannot)? else {
        return Ok(None);
    };
    // Whoever had it alone may have removed the tree since the file was opened.
    let ours = lock.file().metadata().map_err(cannot)?;
    match fs::symlink_metadata(&path) {
        Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => Ok(Some(lock)),
        _ => Err(EnvironmentError::Missing(directory.to_owned())),
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut text = Vec::new();
    file.take(MAX_META_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_META_BYTES {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
}

fn damaged(directory: &Path, problem: String) -> EnvironmentError {
    EnvironmentError::Damaged {
        directory: directory.to_owned(),
        problem,
    }
}

fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 64 && text.bytes().all(is_digit)
}
