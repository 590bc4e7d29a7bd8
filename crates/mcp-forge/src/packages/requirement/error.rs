//! Why a text names no package: each reason with the text, the rule and the way out.

use super::{MAX_EXTRAS, MAX_REQUIREMENT, MAX_SPECIFIERS};
use crate::packages::{name::BadName, version::VersionError};

/// A text that names no package. Nothing was kept of it, and nobody else has seen it.
///
/// `spec` is the text in quotes, made safe to show.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequirementError {
    /// Nothing but spaces.
    #[error("a package has a name: write one such as numpy, or leave the entry out")]
    Empty,
    /// Longer than any real one.
    #[error("{spec} is too long: a package is written in at most {MAX_REQUIREMENT} bytes")]
    TooLong {
        /// Its beginning.
        spec: String,
    },
    /// A letter that may look like an ASCII one.
    #[error(
        "{spec} has {letter} in it: packages are written in ASCII letters only. Type the name instead of copying it"
    )]
    NotAscii {
        /// The text.
        spec: String,
        /// The letter's code.
        letter: String,
    },
    /// A line break, tab, NUL or another letter that is not seen.
    #[error(
        "{spec} has a line break or another control character in it: write one package an entry, in one line"
    )]
    Control {
        /// The text.
        spec: String,
    },
    /// `-r`, `--index-url` and the like, alone or behind a package.
    #[error(
        "{spec} has an option in it, and options are not packages: where packages come from is the operator's configuration. Write the name and its versions only"
    )]
    Option {
        /// The text.
        spec: String,
    },
    /// `#`, alone or behind a package.
    #[error("{spec} has a comment in it: leave out # and what follows")]
    Comment {
        /// The text.
        spec: String,
    },
    /// `; python_version > "3"`.
    #[error(
        "{spec} has a condition in it, and an environment is for one Python on one machine: leave out ; and what follows"
    )]
    Marker {
        /// The text.
        spec: String,
    },
    /// `$NAME`, `%NAME%` or backticks.
    #[error(
        "{spec} has $, % or ` in it, and nothing is ever replaced in a package's name: write the name itself"
    )]
    Expansion {
        /// The text.
        spec: String,
    },
    /// `name @ address`.
    #[error(
        "{spec} says where a package is to come from, and packages come from the operator's indexes only: leave out @ and what follows"
    )]
    DirectReference {
        /// The text.
        spec: String,
    },
    /// `https://`, `git+ssh://`, `file:` and the like.
    #[error(
        "{spec} is an address, and packages come from the operator's indexes only: write the package's name"
    )]
    Address {
        /// The text.
        spec: String,
    },
    /// A path, or the name of a file to install from.
    #[error(
        "{spec} is a path or a file, and packages come from the operator's indexes only: write the package's name"
    )]
    Path {
        /// The text.
        spec: String,
    },
    /// `\`, which would continue a line or name a path.
    #[error("{spec} has a backslash in it, which no package has: leave it out")]
    Backslash {
        /// The text.
        spec: String,
    },
    /// No name stands where one belongs.
    #[error("{spec} does not begin with a package's name: {problem}")]
    Name {
        /// The text.
        spec: String,
        /// What is wrong with the name.
        problem: BadName,
    },
    /// `[` without `]`, nothing between the two, or too many.
    #[error(
        "{spec} has brackets that hold no extras: write 1 to {MAX_EXTRAS} such as requests[socks,security]"
    )]
    Extras {
        /// The text.
        spec: String,
    },
    /// What stands between brackets is no name.
    #[error("{spec} has {extra} among its extras: {problem}")]
    Extra {
        /// The text.
        spec: String,
        /// The extra, in quotes and made safe.
        extra: String,
        /// What is wrong with it.
        problem: BadName,
    },
    /// `name (>=1.0)`.
    #[error("{spec} has parentheses in it: write the versions without them, such as numpy>=1.24")]
    Parentheses {
        /// The text.
        spec: String,
    },
    /// Something stands behind the name that begins no comparison.
    #[error(
        "{spec} has {rest} behind the name: write one package an entry, and its versions with ==, !=, <=, >=, <, > or ~="
    )]
    Trailing {
        /// The text.
        spec: String,
        /// The rest, in quotes and made safe.
        rest: String,
    },
    /// `===`, which compares texts instead of versions.
    #[error("{spec} uses ===, which compares letters instead of versions: write ==")]
    ArbitraryEquality {
        /// The text.
        spec: String,
    },
    /// `=`, `=>` and the like, or none where one belongs.
    #[error(
        "{spec} has {part} where versions are compared: write one of ==, !=, <=, >=, <, >, ~= and a version, with a comma between two"
    )]
    Operator {
        /// The text.
        spec: String,
        /// The part, in quotes and made safe.
        part: String,
    },
    /// What stands behind an operator is no version.
    #[error("{spec} has {version} where a version belongs: {problem}")]
    Version {
        /// The text.
        spec: String,
        /// What stands there, in quotes and made safe.
        version: String,
        /// What is wrong with it.
        problem: VersionError,
    },
    /// `1.0+local`.
    #[error("{spec} asks for a local version, which no index has: leave out + and what follows")]
    Local {
        /// The text.
        spec: String,
    },
    /// A `*` where none may stand.
    #[error(
        "{spec} has a * where none may stand: it is written as ==1.* or !=1.*, behind whole numbers"
    )]
    Wildcard {
        /// The text.
        spec: String,
    },
    /// `~=1`.
    #[error(
        "{spec} uses ~= with one number, which has no beginning to keep: write two, such as ~=1.0, or >="
    )]
    Compatible {
        /// The text.
        spec: String,
    },
    /// More comparisons than any real one has.
    #[error("{spec} compares the version too often: write at most {MAX_SPECIFIERS} comparisons")]
    TooManySpecifiers {
        /// The text.
        spec: String,
    },
}
