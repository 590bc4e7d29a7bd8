//! What an environment is made of, to the byte: the resolver's answer, checked and kept in our own form.
//!
//! The answer is a `pylock.toml` (PEP 751) that was written inside a sandbox, so it is hostile text.
//! Only wheels with a SHA-256 from places that the operator named become part of a [`Lock`], and an
//! installer is given only what [`Lock::requirements`] writes.

use std::{fmt::Write as _, path::Path};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    name::PackageName, python_version::PythonVersion, version::Version, wheel_name::WheelName,
};
use crate::text::{clipped, quoted};

use pylock::RawLock;

pub use error::LockError;

mod error;
mod pylock;
#[cfg(test)]
mod tests;

/// Largest text that is read, in bytes.
pub const MAX_LOCK_BYTES: usize = 8 << 20;

/// Most packages of one lock.
const MAX_LOCKED_PACKAGES: usize = 2_000;

/// Where wheels may come from.
#[derive(Debug, Clone, Copy)]
pub struct LockSources<'a> {
    /// Beginnings of addresses: `https://files.pythonhosted.org`, with a port where it is not the usual one.
    pub origins: &'a [String],
    /// The operator's directory of wheels, as the resolver saw it.
    pub wheel_directory: Option<&'a Path>,
}

/// Every package of an environment, with the wheels that will do for each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lock {
    /// For which Python it was resolved.
    python: PythonVersion,
    /// By name, each once.
    packages: Vec<LockedPackage>,
}

/// One package of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedPackage {
    /// Its name.
    pub name: PackageName,
    /// Its version, which may be a pre-release or have a local part: see [`Version`].
    pub version: Version,
    /// The files, by their hashes: at least one.
    pub wheels: Vec<Wheel>,
}

/// One file that a package may be installed from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    /// SHA-256 of the file, as 64 lower-case hexadecimal digits.
    pub sha256: String,
    /// Its name; package and version in it are the package's.
    pub file_name: String,
    /// Its address; none for a file of the operator's directory.
    pub url: Option<String>,
    /// Its size in bytes, if the index tells it.
    pub size: Option<u64>,
}

impl Lock {
    /// Reads a `pylock.toml` that was resolved for one Python on this machine.
    ///
    /// # Errors
    ///
    /// [`LockError`] for the first thing that is not as it must be; it names the package.
    pub fn parse(
        text: &str,
        python: PythonVersion,
        sources: &LockSources<'_>,
    ) -> Result<Self, LockError> {
        if text.len() > MAX_LOCK_BYTES {
            return Err(LockError::TooLarge);
        }
        let raw: RawLock = toml::from_str(text).map_err(|error| LockError::Syntax {
            problem: clipped(error.message()),
        })?;
        if raw.lock_version != "1" && !raw.lock_version.starts_with("1.") {
            return Err(LockError::FormatVersion {
                version: quoted(&raw.lock_version),
            });
        }
        bounded(raw.packages.len())?;
        let packages = raw
            .packages
            .iter()
            .map(|package| package.checked(sources))
            .collect::<Result<_, _>>()?;
        Self::of(python, packages)
    }

    /// Reads what [`Lock::to_json`] wrote. Where the files come from was checked before it was written.
    ///
    /// # Errors
    ///
    /// [`LockError`]: the text was changed, or is from another version of this program.
    pub fn from_json(text: &str) -> Result<Self, LockError> {
        if text.len() > MAX_LOCK_BYTES {
            return Err(LockError::TooLarge);
        }
        let kept: Kept = serde_json::from_str(text).map_err(|error| LockError::Syntax {
            problem: clipped(&error.to_string()),
        })?;
        bounded(kept.packages.len())?;
        for package in &kept.packages {
            if package.wheels.is_empty() {
                let name = package.name.clone();
                let instead = "nothing";
                return Err(LockError::NoWheel { name, instead });
            }
            for wheel in &package.wheels {
                check_file_name(&package.name, &package.version, &wheel.file_name)?;
                check_hash(&package.name, &wheel.file_name, Some(&wheel.sha256))?;
            }
        }
        Self::of(kept.python, kept.packages)
    }

    /// The lock as JSON, to be kept.
    pub fn to_json(&self) -> String {
        // Texts and numbers only: this cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// For which Python it was resolved.
    pub fn python(&self) -> PythonVersion {
        self.python
    }

    /// The packages by name, each once.
    pub fn packages(&self) -> &[LockedPackage] {
        &self.packages
    }

    /// What `uv pip sync --require-hashes` is given: one package a line, with every hash that will do.
    pub fn requirements(&self) -> String {
        let mut text = String::new();
        for package in &self.packages {
            // Writing to a String cannot fail.
            let _ = write!(text, "{}=={}", package.name, package.version);
            for wheel in &package.wheels {
                let _ = write!(text, " --hash=sha256:{}", wheel.sha256);
            }
            text.push('\n');
        }
        text
    }

    /// The name of what is installed by this lock: SHA-256 over the version of Python, the packages
    /// and the files' hashes, as 64 hexadecimal digits. Where files come from does not change it.
    pub fn id(&self) -> String {
        let mut hasher = Sha256::new();
        // No value has a line break in it, so no two locks have one text.
        hasher.update(format!("mcp-forge lock 1\npython {}\n", self.python));
        hasher.update(self.requirements());
        hasher
            .finalize()
            .iter()
            .fold(String::with_capacity(64), |mut id, byte| {
                let _ = write!(id, "{byte:02x}");
                id
            })
    }

    /// Bytes to download at most: of each package the largest file, as far as sizes are told.
    pub fn download_bytes(&self) -> u64 {
        let largest = |package: &LockedPackage| {
            let sizes = package.wheels.iter().filter_map(|wheel| wheel.size);
            sizes.max().unwrap_or(0)
        };
        self.packages
            .iter()
            .map(largest)
            .fold(0, u64::saturating_add)
    }

    /// Puts everything into its one order.
    fn of(python: PythonVersion, mut packages: Vec<LockedPackage>) -> Result<Self, LockError> {
        packages.sort_by(|left, right| left.name.cmp(&right.name));
        if let Some(pair) = packages
            .windows(2)
            .find(|pair| pair[0].name == pair[1].name)
        {
            let name = pair[0].name.clone();
            return Err(LockError::Twice { name });
        }
        for package in &mut packages {
            package.wheels.sort();
            package
                .wheels
                .dedup_by(|left, right| left.sha256 == right.sha256);
        }
        Ok(Self { python, packages })
    }
}

/// The form of [`Lock::to_json`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    python: PythonVersion,
    packages: Vec<LockedPackage>,
}

fn check_file_name(
    name: &PackageName,
    version: &Version,
    file_name: &str,
) -> Result<(), LockError> {
    let wheel = WheelName::parse(file_name).ok_or_else(|| LockError::FileName {
        name: name.clone(),
        file: quoted(file_name),
    })?;
    if wheel.name != *name || !wheel.version.is_same(version) {
        return Err(LockError::OtherPackage {
            name: name.clone(),
            version: version.to_string(),
            file: quoted(file_name),
        });
    }
    Ok(())
}

fn check_hash(
    name: &PackageName,
    file_name: &str,
    hash: Option<&str>,
) -> Result<String, LockError> {
    let is_sound = |hash: &&str| {
        hash.len() == 64
            && hash
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    hash.filter(is_sound)
        .map(str::to_owned)
        .ok_or_else(|| LockError::Hash {
            name: name.clone(),
            file: quoted(file_name),
        })
}

fn bounded(packages: usize) -> Result<(), LockError> {
    if packages > MAX_LOCKED_PACKAGES {
        let what = format!("more than {MAX_LOCKED_PACKAGES} packages");
        return Err(LockError::TooMany { what });
    }
    Ok(())
}
