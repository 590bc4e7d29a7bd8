//! A wheel's file name, taken apart: it says which package and which version are in the file.

use super::{name::PackageName, version::Version};

/// What the name of a wheel says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WheelName {
    /// Of which package.
    pub(super) name: PackageName,
    /// Of which version.
    pub(super) version: Version,
}

impl WheelName {
    /// Reads `name-version(-build)-python-abi-platform.whl`.
    pub(super) fn parse(file_name: &str) -> Option<Self> {
        let stem = file_name.strip_suffix(".whl")?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+!".contains(&byte);
        if !stem.bytes().all(fits) {
            return None;
        }
        let parts: Vec<&str> = stem.split('-').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return None;
        }
        let begins_with_digit =
            |part: &str| part.starts_with(|letter: char| letter.is_ascii_digit());
        match parts.as_slice() {
            [_, _, _, _, _] => {}
            [_, _, build, _, _, _] if begins_with_digit(build) => {}
            _ => return None,
        }
        Some(Self {
            name: PackageName::parse(parts[0]).ok()?,
            // A version's own dashes are written as underscores.
            version: Version::parse(&parts[1].replace('_', "-")).ok()?,
        })
    }
}
