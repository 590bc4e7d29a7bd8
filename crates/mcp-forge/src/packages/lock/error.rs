//! What can be wrong with a lock, told with the package and the way out.

use super::MAX_LOCK_BYTES;
use crate::packages::{
    name::{BadName, PackageName},
    version::VersionError,
};

/// The resolver's answer, or a kept lock, cannot be used. Nothing of it was kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// It is longer than any real one.
    #[error("the lock is larger than {MAX_LOCK_BYTES} bytes: ask for fewer packages")]
    TooLarge,
    /// It has more packages or files than any real one.
    #[error("the lock has {what}: ask for fewer packages")]
    TooMany {
        /// Of what, and how many are read.
        what: String,
    },
    /// It is not TOML, or not in the form of a lock.
    #[error("the lock cannot be read: {problem}. Use a version of uv that writes PEP 751 locks")]
    Syntax {
        /// What the parser says, made safe.
        problem: String,
    },
    /// Its form is another one than 1.x.
    #[error("the lock has the version {version}, and 1.0 is read: use another version of uv")]
    FormatVersion {
        /// What it says, in quotes and made safe.
        version: String,
    },
    /// A package's name is none.
    #[error("the lock has a package called {name}: {problem}. Ask for other packages")]
    Name {
        /// What it says, in quotes and made safe.
        name: String,
        /// What is wrong with it.
        problem: BadName,
    },
    /// A package has no version, or one that is none.
    #[error("{name} has the version {version}: {problem}. Ask for another version of it")]
    Version {
        /// The package.
        name: PackageName,
        /// What it says, in quotes and made safe.
        version: String,
        /// What is wrong with it.
        problem: VersionError,
    },
    /// A package is there twice.
    #[error("{name} is in the lock twice: resolve for one Python on this machine")]
    Twice {
        /// The package.
        name: PackageName,
    },
    /// A package would have to be built, or comes from somewhere else than an index.
    #[error(
        "{name} has {instead} instead of a wheel for this Python: ask for another version of it, or put a wheel into the operator's directory"
    )]
    NoWheel {
        /// The package.
        name: PackageName,
        /// What it has: `its source only`, `a repository`.
        instead: &'static str,
    },
    /// A file's name is not a wheel's.
    #[error(
        "{name} has the file {file}, which is not named as a wheel is: ask for another version of it"
    )]
    FileName {
        /// The package.
        name: PackageName,
        /// The file, in quotes and made safe.
        file: String,
    },
    /// A file says that it holds another package, or another version.
    #[error(
        "{name} {version} has the file {file}, which is of another package or version: do not use this package, and tell whoever runs the index"
    )]
    OtherPackage {
        /// The package.
        name: PackageName,
        /// Its version.
        version: String,
        /// The file, in quotes and made safe.
        file: String,
    },
    /// A file has no SHA-256, or one that is none.
    #[error(
        "{name} has the file {file} without a SHA-256 of 64 hexadecimal digits: use an index that tells it"
    )]
    Hash {
        /// The package.
        name: PackageName,
        /// The file, in quotes and made safe.
        file: String,
    },
    /// A file comes from a place that the operator did not name.
    #[error(
        "{name} has a file at {location}, which is neither on a listed host nor in the directory of wheels: add the host to environment_builder.file_hosts if it is trusted"
    )]
    Location {
        /// The package.
        name: PackageName,
        /// The address or path, in quotes and made safe.
        location: String,
    },
    /// A file's size is beyond belief.
    #[error("{name} has the file {file} of an impossible size: ask for another version of it")]
    Size {
        /// The package.
        name: PackageName,
        /// The file, in quotes and made safe.
        file: String,
    },
}
