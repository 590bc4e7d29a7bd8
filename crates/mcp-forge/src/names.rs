//! Who asks, and what a session is called: names that were checked, and so may become parts of paths.

use std::fmt;

use serde::Serialize;

/// Longest name of a session, in characters.
pub const MAX_SESSION_ID: usize = 64;

/// What [`SessionId::parse`] takes, as JSON Schema says it.
pub const SESSION_ID_PATTERN: &str = "^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$";

/// Who is asking: the user who started the server, or whoever a token belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Principal(String);

impl Principal {
    /// The user who started the server.
    pub fn local() -> Self {
        Self("local".to_owned())
    }

    /// The owner of a token: a name of the file of tokens, or an issuer's name, `/`, and whom its token is for.
    pub fn named(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A session's name: 1 to 64 of letters, digits, `.`, `_` and `-`, with neither a dot nor a dash first.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct SessionId(String);

/// A text that no session may be called.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "a session's name has 1 to {MAX_SESSION_ID} letters, digits, dots, underscores and dashes, and begins with a letter, a digit or an underscore"
)]
pub struct BadSessionId;

impl SessionId {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`BadSessionId`].
    pub fn parse(text: &str) -> Result<Self, BadSessionId> {
        let is_fit = (1..=MAX_SESSION_ID).contains(&text.len())
            && !text.starts_with(['.', '-'])
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
        is_fit.then(|| Self(text.to_owned())).ok_or(BadSessionId)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One session of one principal: two principals may use the same name, and never notice.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionName {
    /// Whose it is.
    pub principal: Principal,
    /// What its owner calls it.
    pub id: SessionId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_parts_of_paths() {
        for good in ["a", "analysis-123", "A.b_c-9", "_x", &"a".repeat(64)] {
            assert_eq!(SessionId::parse(good).unwrap().as_str(), good);
        }
        let long = "a".repeat(65);
        for bad in [
            "", ".", "..", ".a", "-a", "a/b", "a b", "a\n", "ä", "a\0", "%2e", "*", &long,
        ] {
            assert_eq!(SessionId::parse(bad), Err(BadSessionId), "{bad:?}");
        }
    }
}
