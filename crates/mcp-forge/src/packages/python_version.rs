//! The versions of Python that an environment may be for.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::text::quoted;

/// The oldest and the newest minor version.
const MINORS: std::ops::RangeInclusive<u8> = 10..=14;

/// Python 3.10 to 3.14.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PythonVersion {
    minor: u8,
}

/// A text that is no such version. Nothing was kept of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text} is not a version of Python that can be had here: write one of {}",
    PythonVersion::listed()
)]
pub struct BadPythonVersion {
    /// The text in quotes, made safe.
    text: String,
}

impl PythonVersion {
    /// Checks a version: `3.11`, without a patch level.
    ///
    /// # Errors
    ///
    /// [`BadPythonVersion`].
    pub fn parse(text: &str) -> Result<Self, BadPythonVersion> {
        Self::all()
            .find(|version| version.to_string() == text)
            .ok_or_else(|| BadPythonVersion { text: quoted(text) })
    }

    /// All of them, the oldest first.
    pub fn all() -> impl Iterator<Item = Self> {
        MINORS.map(|minor| Self { minor })
    }

    /// The second number: 11 of 3.11.
    pub fn minor(self) -> u8 {
        self.minor
    }

    fn listed() -> String {
        let all: Vec<String> = Self::all().map(|version| version.to_string()).collect();
        all.join(", ")
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "3.{}", self.minor)
    }
}

impl FromStr for PythonVersion {
    type Err = BadPythonVersion;

    fn from_str(text: &str) -> Result<Self, BadPythonVersion> {
        Self::parse(text)
    }
}

impl TryFrom<String> for PythonVersion {
    type Error = BadPythonVersion;

    fn try_from(text: String) -> Result<Self, BadPythonVersion> {
        Self::parse(&text)
    }
}

impl From<PythonVersion> for String {
    fn from(version: PythonVersion) -> Self {
        version.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_versions_and_nothing_else() {
        for minor in 10..=14 {
            let text = format!("3.{minor}");
            let version = PythonVersion::parse(&text).unwrap();
            assert_eq!((version.minor(), version.to_string()), (minor, text));
        }
        for text in [
            "",
            "3",
            "3.9",
            "3.15",
            "3.1",
            "3.011",
            "3.11.4",
            " 3.11",
            "3.11\n",
            "3.12\nRUN id",
            "v3.11",
            "python3.11",
            "٣.11",
            "3.11t",
            "2.7",
            "4.11",
            "3.-11",
            "3.+11",
            "3.12 AS x",
            "3.12@sha256:0",
        ] {
            let error = PythonVersion::parse(text).unwrap_err().to_string();
            assert!(!error.contains('\n'), "{error}");
            assert!(error.contains("3.10, 3.11, 3.12, 3.13, 3.14"), "{error}");
        }
        assert!(PythonVersion::parse("3.10").unwrap() < PythonVersion::parse("3.14").unwrap());
        let read: PythonVersion = serde_json::from_str("\"3.12\"").unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), "\"3.12\"");
    }
}
