//! What an environment is called: a name that is safe as a part of a path and as an image's tag.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::text::quoted;

/// Longest name of an environment, in characters.
const MAX_ENVIRONMENT_NAME: usize = 63;

/// What stands before the name where an environment is named as an image.
const IMAGE_PREFIX: &str = "mcp-forge/custom:";

/// An environment's or a template's name: 1 to 63 of lower-case letters, digits and `-`, no `-` first.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EnvironmentName(String);

/// A text that no environment may be called. Nothing was kept of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEnvironmentName {
    /// It has the wrong letters, or too many.
    #[error(
        "{text} cannot be an environment's name: it has 1 to {MAX_ENVIRONMENT_NAME} lower-case letters, digits and -, and does not begin with -"
    )]
    Shape {
        /// The text in quotes, made safe.
        text: String,
    },
    /// Image services give this name a meaning of their own.
    #[error(
        "\"latest\" cannot be an environment's name: image services use it for the newest of all. Write another name"
    )]
    Reserved,
}

impl EnvironmentName {
    /// Checks a name. Whether a template has it already is the caller's to say.
    ///
    /// # Errors
    ///
    /// [`BadEnvironmentName`].
    pub fn parse(text: &str) -> Result<Self, BadEnvironmentName> {
        let is_fit = (1..=MAX_ENVIRONMENT_NAME).contains(&text.len())
            && !text.starts_with('-')
            && text
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if !is_fit {
            return Err(BadEnvironmentName::Shape { text: quoted(text) });
        }
        if text == "latest" {
            return Err(BadEnvironmentName::Reserved);
        }
        Ok(Self(text.to_owned()))
    }

    /// Checks a name that may be written as the image that the environment is: `mcp-forge/custom:NAME`.
    ///
    /// # Errors
    ///
    /// [`BadEnvironmentName`].
    pub fn from_image(text: &str) -> Result<Self, BadEnvironmentName> {
        let name = text.strip_prefix(IMAGE_PREFIX).unwrap_or(text);
        Self::parse(name).map_err(|error| match error {
            BadEnvironmentName::Shape { .. } => BadEnvironmentName::Shape { text: quoted(text) },
            BadEnvironmentName::Reserved => error,
        })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The environment as an image is named: `mcp-forge/custom:NAME`.
    pub fn image(&self) -> String {
        format!("{IMAGE_PREFIX}{}", self.0)
    }
}

impl fmt::Display for EnvironmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for EnvironmentName {
    type Err = BadEnvironmentName;

    fn from_str(text: &str) -> Result<Self, BadEnvironmentName> {
        Self::parse(text)
    }
}

impl TryFrom<String> for EnvironmentName {
    type Error = BadEnvironmentName;

    fn try_from(text: String) -> Result<Self, BadEnvironmentName> {
        Self::parse(&text)
    }
}

impl From<EnvironmentName> for String {
    fn from(name: EnvironmentName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_parts_of_paths_and_as_tags() {
        let longest = "a".repeat(MAX_ENVIRONMENT_NAME);
        for good in ["a", "0", "my-ml-env", "a-", "3-11", "late", &longest] {
            let name = EnvironmentName::parse(good).unwrap();
            assert_eq!(name.as_str(), good);
            assert_eq!(EnvironmentName::from_image(&name.image()), Ok(name.clone()));
            assert_eq!(EnvironmentName::from_image(good), Ok(name));
        }
        let (long, longer) = ("a".repeat(64), "a".repeat(300));
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "/a",
            "-rf",
            "--",
            "A",
            "Env",
            "a_b",
            "a.b",
            "a b",
            "a\n",
            "a\0",
            "ä",
            "а",
            "ａ",
            "a\u{200b}",
            "%2e",
            "*",
            "a:b",
            "a@sha256:0",
            "~",
            "$HOME",
            "a;b",
            "docker://a",
            "mcp-forge/custom:a",
            &long,
            &longer,
        ] {
            let error = EnvironmentName::parse(bad).unwrap_err();
            assert!(matches!(error, BadEnvironmentName::Shape { .. }), "{bad:?}");
            assert!(!error.to_string().contains(['\n', '\0']), "{error}");
        }
        assert_eq!(
            EnvironmentName::parse("latest"),
            Err(BadEnvironmentName::Reserved)
        );
    }

    #[test]
    fn only_our_own_images_name_an_environment() {
        for bad in [
            "mcp-forge/custom:latest",
            "mcp-forge/custom:",
            "mcp-forge/custom:../x",
            "mcp-forge/custom:mcp-forge/custom:a",
            "mcp-forge/python:3.11",
            "docker.io/mcp-forge/custom:a",
            "oci:a",
            "mcp-forge/custom:a@sha256:0",
            "MCP-FORGE/custom:a",
        ] {
            assert!(EnvironmentName::from_image(bad).is_err(), "{bad}");
        }
    }
}
