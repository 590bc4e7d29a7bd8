//! The directory of the log: checked, listed, and its files opened without following links.

use std::{
    fs::{DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rustix::fs::{Mode, OFlags};

use super::{error::AuditError, record::show_time};

/// A name such as `audit-20260206T103000Z-1234-0011aabb.0001.jsonl`: the chain, then the part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileName {
    /// Start time, process and a random part: one chain.
    pub(super) chain: String,
    /// From 1 on.
    pub(super) part: u32,
}

impl FileName {
    /// The name in the directory.
    pub(super) fn text(&self) -> String {
        format!("audit-{}.{:04}.jsonl", self.chain, self.part)
    }

    fn parse(name: &str) -> Option<Self> {
        let (chain, part) = name
            .strip_prefix("audit-")?
            .strip_suffix(".jsonl")?
            .rsplit_once('.')?;
        let parsed = Self {
            chain: chain.to_owned(),
            part: part.parse().ok()?,
        };
        (parsed.text() == name).then_some(parsed)
    }
}

/// A file of the log.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) name: FileName,
    pub(super) path: PathBuf,
    /// When it was last written, as records show times.
    pub(super) modified: String,
}

/// Makes the directory if need be, for its owner only, and opens it.
///
/// # Errors
///
/// [`AuditError::Directory`] if it is a link, or others could replace the files in it.
pub(super) fn prepare(directory: &Path) -> Result<File, AuditError> {
    let refused = |problem: String| AuditError::Directory {
        directory: directory.to_owned(),
        problem,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| refused(error.to_string()))?;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let opened =
        rustix::fs::open(directory, flags, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => refused(
                "it is a symbolic link or no directory: name the directory itself".to_owned(),
            ),
            error => refused(io::Error::from(error).to_string()),
        })?;
    let file = File::from(opened);
    let metadata = file
        .metadata()
        .map_err(|error| refused(error.to_string()))?;
    let me = rustix::process::geteuid().as_raw();
    if metadata.uid() != me && metadata.uid() != 0 {
        return Err(refused(format!(
            "it belongs to another user ({})",
            metadata.uid()
        )));
    }
    if metadata.mode() & 0o002 != 0 {
        return Err(refused(format!(
            "every user can write to it: chmod 700 '{}'",
            directory.display()
        )));
    }
    Ok(file)
}

/// Makes a new file that only grows.
///
/// # Errors
///
/// The system's; the name being taken, by a link too, is one.
pub(super) fn create(directory: &File, name: &FileName) -> io::Result<File> {
    let flags = OFlags::CREATE
        | OFlags::EXCL
        | OFlags::NOFOLLOW
        | OFlags::APPEND
        | OFlags::WRONLY
        | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(
        directory,
        name.text(),
        flags,
        Mode::from_raw_mode(0o600),
    )?))
}

/// Opens a file of the log for reading; anything but a regular file is refused, without waiting.
///
/// # Errors
///
/// [`AuditError::Read`].
pub(super) fn open(path: &Path) -> Result<File, AuditError> {
    let failed = |source: io::Error| AuditError::Read {
        path: path.to_owned(),
        source,
    };
    // A named pipe would block the open, or the reads.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?,
    );
    if file.metadata().map_err(failed)?.is_file() {
        return Ok(file);
    }
    Err(failed(io::Error::new(
        io::ErrorKind::InvalidInput,
        "this is not a regular file",
    )))
}

/// The files of the log, by chain and part, and the names of other things that lie there.
///
/// # Errors
///
/// [`AuditError::Read`]. A directory that is not there is an empty one.
pub(super) fn list(directory: &Path) -> Result<(Vec<Listed>, Vec<String>), AuditError> {
    let failed = |source: io::Error| AuditError::Read {
        path: directory.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok((Vec::new(), Vec::new()));
        }
        Err(error) => return Err(failed(error)),
    };
    let (mut files, mut others) = (Vec::new(), Vec::new());
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(parsed) = name.to_str().and_then(FileName::parse) else {
            others.push(name.to_string_lossy().into_owned());
            continue;
        };
        let modified = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .ok();
        let modified = modified
            .and_then(|time| Timestamp::try_from(time).ok())
            .unwrap_or(Timestamp::MAX);
        files.push(Listed {
            name: parsed,
            path: entry.path(),
            modified: show_time(modified),
        });
    }
    files.sort_by(|left, right| left.name.cmp(&right.name));
    others.sort();
    Ok((files, others))
}
