//! Versions of packages, as PEP 440 has them: read in every spelling, written in one.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Longest version, in characters.
const MAX_VERSION: usize = 128;

/// Digits of one number in a version: more than any date has, and far below overflow.
const MAX_DIGITS: usize = 18;

/// A version. Two are equal if their canonical texts are; see [`Version::is_same`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    epoch: u64,
    release: Vec<u64>,
    pre: Option<(Phase, u64)>,
    post: Option<u64>,
    dev: Option<u64>,
    local: Option<String>,
}

/// What comes before a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// `a`, `alpha`.
    Alpha,
    /// `b`, `beta`.
    Beta,
    /// `rc`, `c`, `pre`, `preview`.
    Candidate,
}

/// A text that is no version. Nothing was kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// There is no text.
    #[error("there is no version")]
    Empty,
    /// It is longer than any real version.
    #[error("a version has at most {MAX_VERSION} characters")]
    TooLong,
    /// One of its numbers is longer than any real one.
    #[error("a number in a version has at most {MAX_DIGITS} digits")]
    Number,
    /// It does not have the form of a version.
    #[error("a version has a form such as 1.24, 2.0.0rc1 or 1.0.post1")]
    Form,
}

impl Version {
    /// Reads a version in any of PEP 440's spellings.
    ///
    /// # Errors
    ///
    /// [`VersionError`].
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        if text.is_empty() {
            return Err(VersionError::Empty);
        }
        if text.len() > MAX_VERSION {
            return Err(VersionError::TooLong);
        }
        let lower = text.to_ascii_lowercase();
        let (public, local) = match lower.split_once('+') {
            Some((public, local)) => (public, Some(local_label(local)?)),
            None => (lower.as_str(), None),
        };
        let mut cursor = Cursor { rest: public };
        cursor.take("v");
        let first = cursor.number()?.ok_or(VersionError::Form)?;
        let (epoch, first) = if cursor.take("!") {
            (first, cursor.number()?.ok_or(VersionError::Form)?)
        } else {
            (0, first)
        };
        let mut release = vec![first];
        while let Some(number) = cursor.after(|rest| rest.strip_prefix('.'))? {
            release.push(number);
        }
        let pre = cursor.labelled(PHASES)?;
        let post = match cursor.after(|rest| rest.strip_prefix('-'))? {
            Some(number) => Some(number),
            None => cursor.labelled(POST)?.map(|((), number)| number),
        };
        let dev = cursor.labelled(DEV)?.map(|((), number)| number);
        if !cursor.rest.is_empty() {
            return Err(VersionError::Form);
        }
        let version = Self {
            epoch,
            release,
            pre,
            post,
            dev,
            local,
        };
        // The canonical text may be the longer one, and is read again.
        if version.to_string().len() > MAX_VERSION {
            return Err(VersionError::TooLong);
        }
        Ok(version)
    }

    /// The numbers between the dots.
    pub fn release(&self) -> &[u64] {
        &self.release
    }

    /// What stands after `+`: a build of the same version from elsewhere.
    pub fn local(&self) -> Option<&str> {
        self.local.as_deref()
    }

    /// Whether it is an alpha, a beta, a candidate or a development version.
    pub fn is_prerelease(&self) -> bool {
        self.pre.is_some() || self.dev.is_some()
    }

    /// Whether it is nothing but an epoch and a release.
    pub(super) fn is_plain(&self) -> bool {
        self.pre.is_none() && self.post.is_none() && self.dev.is_none() && self.local.is_none()
    }

    /// Whether both are the same version: `1.0` is `1.0.0`.
    pub fn is_same(&self, other: &Self) -> bool {
        let shortest = |version: &Self| {
            let mut version = version.clone();
            while version.release.len() > 1 && version.release.last() == Some(&0) {
                version.release.pop();
            }
            version
        };
        shortest(self) == shortest(other)
    }
}

/// Words before the number of a part; longer ones before those that they begin with.
type Labels<T> = &'static [(&'static str, T)];

const PHASES: Labels<Phase> = &[
    ("alpha", Phase::Alpha),
    ("a", Phase::Alpha),
    ("beta", Phase::Beta),
    ("b", Phase::Beta),
    ("preview", Phase::Candidate),
    ("pre", Phase::Candidate),
    ("rc", Phase::Candidate),
    ("c", Phase::Candidate),
];
const POST: Labels<()> = &[("post", ()), ("rev", ()), ("r", ())];
const DEV: Labels<()> = &[("dev", ())];

/// What is left of a text that is read from its beginning.
struct Cursor<'a> {
    rest: &'a str,
}

impl Cursor<'_> {
    fn take(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// A number, if one stands here.
    fn number(&mut self) -> Result<Option<u64>, VersionError> {
        let end = self
            .rest
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        if digits.is_empty() {
            return Ok(None);
        }
        if digits.len() > MAX_DIGITS {
            return Err(VersionError::Number);
        }
        self.rest = rest;
        digits.parse().map(Some).map_err(|_| VersionError::Number)
    }

    /// A number behind what `skip` takes away. Where there is none, nothing was read.
    fn after(&mut self, skip: impl Fn(&str) -> Option<&str>) -> Result<Option<u64>, VersionError> {
        let Some(rest) = skip(self.rest) else {
            return Ok(None);
        };
        let mut ahead = Cursor { rest };
        let number = ahead.number()?;
        if number.is_some() {
            self.rest = &self.rest[self.rest.len() - ahead.rest.len()..];
        }
        Ok(number)
    }

    /// One of these words with its number, which is 0 where none is written.
    fn labelled<T: Copy>(&mut self, labels: Labels<T>) -> Result<Option<(T, u64)>, VersionError> {
        let rest = without_separator(self.rest);
        let found = labels
            .iter()
            .find_map(|(word, label)| Some((*label, rest.strip_prefix(word)?)));
        let Some((label, rest)) = found else {
            return Ok(None);
        };
        self.rest = &self.rest[self.rest.len() - rest.len()..];
        let number = match self.number()? {
            Some(number) => number,
            None => self
                .after(|rest| rest.strip_prefix(['-', '_', '.']))?
                .unwrap_or(0),
        };
        Ok(Some((label, number)))
    }
}

fn without_separator(text: &str) -> &str {
    text.strip_prefix(['-', '_', '.']).unwrap_or(text)
}

fn local_label(text: &str) -> Result<String, VersionError> {
    let parts: Vec<&str> = text.split(['-', '_', '.']).collect();
    let mut canonical = Vec::with_capacity(parts.len());
    for part in parts {
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(VersionError::Form);
        }
        let is_number = part.bytes().all(|byte| byte.is_ascii_digit());
        let trimmed = part.trim_start_matches('0');
        canonical.push(match (is_number, trimmed) {
            (true, "") => "0",
            (true, digits) => digits,
            (false, _) => part,
        });
    }
    Ok(canonical.join("."))
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.epoch > 0 {
            write!(f, "{}!", self.epoch)?;
        }
        for (index, number) in self.release.iter().enumerate() {
            let dot = if index == 0 { "" } else { "." };
            write!(f, "{dot}{number}")?;
        }
        if let Some((phase, number)) = self.pre {
            let word = match phase {
                Phase::Alpha => "a",
                Phase::Beta => "b",
                Phase::Candidate => "rc",
            };
            write!(f, "{word}{number}")?;
        }
        if let Some(number) = self.post {
            write!(f, ".post{number}")?;
        }
        if let Some(number) = self.dev {
            write!(f, ".dev{number}")?;
        }
        if let Some(local) = &self.local {
            write!(f, "+{local}")?;
        }
        Ok(())
    }
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Version {
    type Error = VersionError;

    fn try_from(text: String) -> Result<Self, VersionError> {
        Self::parse(&text)
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_spelling_has_one_canonical_text() {
        for (text, canonical) in [
            ("1", "1"),
            ("1.24.0", "1.24.0"),
            ("v1.0", "1.0"),
            ("V1.0", "1.0"),
            ("01.020", "1.20"),
            ("0!1.0", "1.0"),
            ("2!1.0", "2!1.0"),
            ("1.0a1", "1.0a1"),
            ("1.0-alpha.1", "1.0a1"),
            ("1.0ALPHA", "1.0a0"),
            ("1.0_beta_2", "1.0b2"),
            ("1.0c3", "1.0rc3"),
            ("1.0-preview4", "1.0rc4"),
            ("1.0pre", "1.0rc0"),
            ("1.0rc05", "1.0rc5"),
            ("1.0-1", "1.0.post1"),
            ("1.0r2", "1.0.post2"),
            ("1.0.rev.3", "1.0.post3"),
            ("1.0post", "1.0.post0"),
            ("1.0.dev", "1.0.dev0"),
            ("1.0dev4", "1.0.dev4"),
            ("1.0a1.post2.dev3", "1.0a1.post2.dev3"),
            ("1.0a1-2", "1.0a1.post2"),
            ("1.0a.post1", "1.0a0.post1"),
            ("1.0+CPU", "1.0+cpu"),
            ("1.0+ubuntu-1_007", "1.0+ubuntu.1.7"),
            ("2026.10.19.post1", "2026.10.19.post1"),
        ] {
            let version = Version::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(version.to_string(), canonical, "{text}");
            assert_eq!(Version::parse(canonical), Ok(version), "{canonical}");
        }
    }

    #[test]
    fn what_is_no_version() {
        let long = "1.".repeat(100) + "1";
        let digits = format!("1.{}", "9".repeat(19));
        for (text, error) in [
            ("", VersionError::Empty),
            (&long, VersionError::TooLong),
            (&digits, VersionError::Number),
            ("abc", VersionError::Form),
            ("vv1", VersionError::Form),
            ("1.", VersionError::Form),
            (".1", VersionError::Form),
            ("1..0", VersionError::Form),
            ("1.0x", VersionError::Form),
            ("1.0.*", VersionError::Form),
            ("1.0+", VersionError::Form),
            ("1.0+a..b", VersionError::Form),
            ("1.0+a+b", VersionError::Form),
            ("1!2!3", VersionError::Form),
            ("!1", VersionError::Form),
            ("-1", VersionError::Form),
            (" 1", VersionError::Form),
            ("1 ", VersionError::Form),
            ("1.0a.", VersionError::Form),
            ("1.0.dev1.post1", VersionError::Form),
            ("1.٣", VersionError::Form),
            ("1\n", VersionError::Form),
        ] {
            assert_eq!(Version::parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn zeros_at_the_end_do_not_make_another_version() {
        let version = |text| Version::parse(text).unwrap();
        assert!(version("1.0").is_same(&version("1.0.0")));
        assert!(version("1").is_same(&version("1.0")));
        assert!(!version("1.0").is_same(&version("1.0.1")));
        assert!(!version("1.0").is_same(&version("1.0+cpu")));
        assert!(!version("1.0").is_same(&version("1!1.0")));
        assert!(!version("1.0").is_same(&version("1.0rc1")));
        assert!(version("1.0rc1").is_prerelease() && version("1.0.dev0").is_prerelease());
        assert!(!version("1.0.post1").is_prerelease());
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_so_that_it_is_read_again(text in "[0-9v!.+_a-zA-Z-]{0,30}", near in "v?([0-9]{1,3}!)?[0-9]{1,3}(\\.[0-9]{1,3}){0,3}([-_.]?(a|alpha|b|c|rc|pre|post|rev|r|dev)[-_.]?[0-9]{0,3}){0,3}(\\+[a-z0-9._-]{0,8})?") {
            for text in [text, near] {
                if let Ok(version) = Version::parse(&text) {
                    prop_assert_eq!(Version::parse(&version.to_string()), Ok(version));
                }
            }
        }
    }
}
