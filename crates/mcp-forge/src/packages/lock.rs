//! What an environment is made of, to the byte: the resolver's answer, checked and kept in our own form.
//!
//! The answer is a `pylock.toml` (PEP 751) that was written inside a sandbox, so it is hostile text.
//! Only wheels with a SHA-256 from places that the operator named become part of a [`Lock`], and an
//! installer is given only what [`Lock::requirements`] writes.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    name::{BadName, PackageName},
    python_version::PythonVersion,
    version::{Version, VersionError},
    wheel_name::WheelName,
};
use crate::text::{clipped, quoted};

/// Largest text that is read, in bytes.
pub const MAX_LOCK_BYTES: usize = 8 << 20;

/// Most packages of one lock.
const MAX_LOCKED_PACKAGES: usize = 2_000;

/// Most wheels of one package.
const MAX_WHEELS: usize = 500;

/// Longest address or path of a wheel, in bytes.
const MAX_LOCATION: usize = 2_048;

/// Largest wheel that is believed in, in bytes.
const MAX_WHEEL_BYTES: u64 = 1 << 40;

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
    #[error("{name} is in the lock twice: ask for one version of it")]
    Twice {
        /// The package.
        name: PackageName,
    },
    /// A package is installed under a condition only.
    #[error(
        "{name} is in the lock under a condition, and an environment is for one Python on one machine: resolve for that one"
    )]
    Conditional {
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
        version: Version,
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

/// A `pylock.toml` as uv writes it. What is not named here says nothing about what is installed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RawLock {
    lock_version: String,
    #[serde(default)]
    packages: Vec<RawPackage>,
}

#[derive(Debug, Deserialize)]
struct RawPackage {
    name: String,
    version: Option<String>,
    marker: Option<String>,
    #[serde(default)]
    wheels: Vec<RawWheel>,
    sdist: Option<toml::Value>,
    vcs: Option<toml::Value>,
    directory: Option<toml::Value>,
    archive: Option<toml::Value>,
}

#[derive(Debug, Deserialize)]
struct RawWheel {
    name: Option<String>,
    url: Option<String>,
    path: Option<String>,
    size: Option<i64>,
    #[serde(default)]
    hashes: BTreeMap<String, String>,
}

/// The form of [`Lock::to_json`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    python: PythonVersion,
    packages: Vec<LockedPackage>,
}

impl RawPackage {
    fn checked(&self, sources: &LockSources<'_>) -> Result<LockedPackage, LockError> {
        let name = PackageName::parse(&self.name).map_err(|problem| LockError::Name {
            name: quoted(&self.name),
            problem,
        })?;
        if self.marker.is_some() {
            return Err(LockError::Conditional { name });
        }
        let elsewhere = [
            (self.vcs.is_some(), "a repository"),
            (self.directory.is_some(), "a directory"),
            (self.archive.is_some(), "an archive"),
            (
                self.wheels.is_empty() && self.sdist.is_some(),
                "its source only",
            ),
            (self.wheels.is_empty(), "nothing"),
        ];
        if let Some((_, instead)) = elsewhere.into_iter().find(|(is_so, _)| *is_so) {
            return Err(LockError::NoWheel { name, instead });
        }
        if self.wheels.len() > MAX_WHEELS {
            let what = format!("more than {MAX_WHEELS} files of {name}");
            return Err(LockError::TooMany { what });
        }
        let written = self.version.as_deref().unwrap_or_default();
        let version = Version::parse(written).map_err(|problem| LockError::Version {
            name: name.clone(),
            version: quoted(written),
            problem,
        })?;
        let wheels = self
            .wheels
            .iter()
            .map(|wheel| wheel.checked(&name, &version, sources))
            .collect::<Result<_, _>>()?;
        Ok(LockedPackage {
            name,
            version,
            wheels,
        })
    }
}

impl RawWheel {
    fn checked(
        &self,
        name: &PackageName,
        version: &Version,
        sources: &LockSources<'_>,
    ) -> Result<Wheel, LockError> {
        let place = self.place(sources).ok_or_else(|| LockError::Location {
            name: name.clone(),
            location: quoted(self.written_place()),
        })?;
        let file_name = place.file_name();
        check_file_name(name, version, file_name)?;
        if self.name.as_deref().is_some_and(|given| given != file_name) {
            return Err(LockError::FileName {
                name: name.clone(),
                file: quoted(self.name.as_deref().unwrap_or_default()),
            });
        }
        let sha256 = check_hash(
            name,
            file_name,
            self.hashes.get("sha256").map(String::as_str),
        )?;
        let size = match self.size.map(u64::try_from) {
            None => None,
            Some(Ok(size)) if size <= MAX_WHEEL_BYTES => Some(size),
            Some(_) => {
                return Err(LockError::Size {
                    name: name.clone(),
                    file: quoted(file_name),
                });
            }
        };
        Ok(Wheel {
            sha256,
            file_name: file_name.to_owned(),
            url: place.url(),
            size,
        })
    }

    fn written_place(&self) -> &str {
        let place = self.url.as_deref().or(self.path.as_deref());
        place.unwrap_or_default()
    }

    fn place(&self, sources: &LockSources<'_>) -> Option<PlaceOfWheel> {
        let written = self.written_place();
        if written.is_empty() || written.len() > MAX_LOCATION {
            return None;
        }
        match (&self.url, &self.path) {
            (Some(url), None) => match url.strip_prefix("file://") {
                Some(path) => below(&unescaped(path)?, sources.wheel_directory?),
                None => listed(url, sources.origins),
            },
            (None, Some(path)) => below(path, sources.wheel_directory?),
            _ => None,
        }
    }
}

/// Where a wheel is, once that is allowed.
#[derive(Debug)]
enum PlaceOfWheel {
    Remote { url: String, file_name: String },
    Local { file_name: String },
}

impl PlaceOfWheel {
    fn file_name(&self) -> &str {
        match self {
            Self::Remote { file_name, .. } | Self::Local { file_name } => file_name,
        }
    }

    fn url(&self) -> Option<String> {
        match self {
            Self::Remote { url, .. } => Some(url.clone()),
            Self::Local { .. } => None,
        }
    }
}

/// An address below one of the origins, in letters that mean nothing to anybody: no user, no query.
fn listed(url: &str, origins: &[String]) -> Option<PlaceOfWheel> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~%+!/=,".contains(&byte);
    let path = origins.iter().find_map(|origin| {
        url.strip_prefix(origin.as_str())
            .filter(|path| path.starts_with('/'))
    })?;
    let is_plain =
        path.bytes().all(fits) && !path.split('/').any(|part| matches!(part, "." | ".."));
    let file_name = unescaped(path.rsplit('/').next()?)?;
    is_plain.then(|| PlaceOfWheel::Remote {
        url: url.to_owned(),
        file_name,
    })
}

/// A file below the directory, written from the root.
fn below(path: &str, directory: &Path) -> Option<PlaceOfWheel> {
    let path = PathBuf::from(path);
    let is_sound = path.starts_with(directory)
        && !path
            .components()
            .any(|part| matches!(part, Component::ParentDir));
    let file_name = path.file_name()?.to_str()?.to_owned();
    is_sound.then_some(PlaceOfWheel::Local { file_name })
}

/// Replaces `%2B` and the like; none that is no ASCII letter.
fn unescaped(text: &str) -> Option<String> {
    let mut pieces = text.split('%');
    let mut out = pieces.next()?.to_owned();
    for piece in pieces {
        let code = piece.get(..2)?;
        if !code.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let byte = u8::from_str_radix(code, 16).ok()?;
        if !byte.is_ascii_graphic() {
            return None;
        }
        out.push(char::from(byte));
        out.push_str(piece.get(2..)?);
    }
    Some(out)
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
            version: version.clone(),
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
