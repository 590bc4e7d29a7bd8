//! Names of packages and of their extras, normalised as PEP 503 has it: one name, one text.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Longest name of a package or an extra, in characters.
pub(super) const MAX_NAME: usize = 128;

/// A package's normalised name: lower-case letters and digits in parts, with one `-` between two.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PackageName(String);

/// An extra's normalised name, by the same rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Extra(String);

/// A text that is no name. Nothing was kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// There is no text.
    #[error("a name has at least one letter or digit")]
    Empty,
    /// It is longer than any real name.
    #[error("a name has at most {MAX_NAME} characters")]
    TooLong,
    /// It has something else than ASCII letters, digits, `-`, `_` and `.` in it.
    #[error("a name has only ASCII letters, digits, -, _ and . in it")]
    Character,
    /// It begins or ends with `-`, `_` or `.`.
    #[error("a name begins and ends with a letter or a digit")]
    Edge,
}

impl PackageName {
    /// Checks and normalises a name: `Scikit_Learn` is `scikit-learn`.
    ///
    /// # Errors
    ///
    /// [`BadName`].
    pub fn parse(text: &str) -> Result<Self, BadName> {
        normalised(text).map(Self)
    }

    /// The normalised name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Extra {
    /// Checks and normalises a name.
    ///
    /// # Errors
    ///
    /// [`BadName`].
    pub fn parse(text: &str) -> Result<Self, BadName> {
        normalised(text).map(Self)
    }

    /// The normalised name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `re.sub("[-_.]+", "-", text).lower()`, of a text that is a name.
fn normalised(text: &str) -> Result<String, BadName> {
    if text.is_empty() {
        return Err(BadName::Empty);
    }
    if text.len() > MAX_NAME {
        return Err(BadName::TooLong);
    }
    let is_separator = |byte: u8| matches!(byte, b'-' | b'_' | b'.');
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || is_separator(byte);
    if !text.bytes().all(fits) {
        return Err(BadName::Character);
    }
    if text.starts_with(['-', '_', '.']) || text.ends_with(['-', '_', '.']) {
        return Err(BadName::Edge);
    }
    Ok(text
        .split(['-', '_', '.'])
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("-")
        .to_ascii_lowercase())
}

impl fmt::Display for PackageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for Extra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for PackageName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        Self::parse(text)
    }
}

impl FromStr for Extra {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        Self::parse(text)
    }
}

impl TryFrom<String> for PackageName {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        Self::parse(&text)
    }
}

impl TryFrom<String> for Extra {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        Self::parse(&text)
    }
}

impl From<PackageName> for String {
    fn from(name: PackageName) -> Self {
        name.0
    }
}

impl From<Extra> for String {
    fn from(extra: Extra) -> Self {
        extra.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_project_has_one_name() {
        for (text, name) in [
            ("numpy", "numpy"),
            ("NumPy", "numpy"),
            ("scikit--LEARN", "scikit-learn"),
            ("zope.interface", "zope-interface"),
            ("a-_.b", "a-b"),
            ("num_py", "num-py"),
            ("0", "0"),
            ("7z", "7z"),
        ] {
            assert_eq!(PackageName::parse(text).unwrap().as_str(), name);
            assert_eq!(Extra::parse(text).unwrap().as_str(), name);
        }
        let longest = "a".repeat(MAX_NAME);
        assert_eq!(PackageName::parse(&longest).unwrap().as_str(), longest);
    }

    #[test]
    fn what_only_looks_like_a_name_is_none() {
        let long = "a".repeat(MAX_NAME + 1);
        for (text, error) in [
            ("", BadName::Empty),
            (&long, BadName::TooLong),
            ("numpy.", BadName::Edge),
            ("-numpy", BadName::Edge),
            ("_", BadName::Edge),
            (".", BadName::Edge),
            ("numpyſ", BadName::Character),
            ("ｎｕｍｐｙ", BadName::Character),
            ("numpy\u{200b}", BadName::Character),
            ("nu mpy", BadName::Character),
            ("numpy\n", BadName::Character),
            ("numpy\0", BadName::Character),
            ("num/py", BadName::Character),
            ("*", BadName::Character),
        ] {
            assert_eq!(PackageName::parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_name_that_is_read_is_checked_too() {
        let name: PackageName = serde_json::from_str("\"Zope.Interface\"").unwrap();
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"zope-interface\"");
        assert!(serde_json::from_str::<PackageName>("\"../x\"").is_err());
    }
}
