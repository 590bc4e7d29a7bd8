//! What can go wrong with the audit log.

use std::{io, path::PathBuf};

/// The log could not be written or read. Whoever wanted to record something must not do it.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The directory cannot be used. Nothing was written.
    #[error("{}: the directory of the audit log cannot be used: {problem}", directory.display())]
    Directory {
        /// Its path.
        directory: PathBuf,
        /// Why, and what to do.
        problem: String,
    },
    /// A record could not be written. The file ends with the last complete record.
    #[error("{}: the audit log cannot be written, so nothing new is started: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The disk refused what the kernel had taken. Records may be lost; later ones are refused.
    #[error("{}: the audit log could not be brought to the disk, so nothing new is started", file.display())]
    Sync {
        /// The file.
        file: PathBuf,
    },
    /// A record used a name that every record has. A mistake of this program; nothing was written.
    #[error("the audit field `{0}` is reserved")]
    ReservedField(String),
    /// The log could not be read.
    #[error("{}: the audit log cannot be read: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}
