//! The resolver's answer: a `pylock.toml` as uv writes it, checked value by value.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;

use super::{LockError, LockSources, LockedPackage, Wheel, check_file_name, check_hash};
use crate::{
    packages::{name::PackageName, version::Version},
    text::quoted,
};

/// Most wheels of one package.
const MAX_WHEELS: usize = 500;

/// Longest address or path of a wheel, in bytes.
const MAX_LOCATION: usize = 2_048;

/// Largest wheel that is believed in, in bytes.
const MAX_WHEEL_BYTES: u64 = 1 << 40;

/// A `pylock.toml` as uv writes it. What is not named here says nothing about what is installed:
/// a `marker` too, since uv lists only what this Python on this machine needs, and all of it is judged and installed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct RawLock {
    pub(super) lock_version: String,
    #[serde(default)]
    pub(super) packages: Vec<RawPackage>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RawPackage {
    name: String,
    version: Option<String>,
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

impl RawPackage {
    /// The package, if every file of it may be installed.
    ///
    /// # Errors
    ///
    /// [`LockError`] for the first thing that is not as it must be.
    pub(super) fn checked(&self, sources: &LockSources<'_>) -> Result<LockedPackage, LockError> {
        let name = PackageName::parse(&self.name).map_err(|problem| LockError::Name {
            name: quoted(&self.name),
            problem,
        })?;
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
    let whole = unescaped(path)?;
    let is_plain =
        path.bytes().all(fits) && !whole.split('/').any(|part| matches!(part, "." | ".."));
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
        if !byte.is_ascii_graphic() && byte != b' ' {
            return None;
        }
        out.push(char::from(byte));
        out.push_str(piece.get(2..)?);
    }
    Some(out)
}
