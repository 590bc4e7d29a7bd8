//! One package as somebody asks for it: our own bounded reading of a part of PEP 508.
//!
//! Read are a name, extras and versions. Everything else that an installer would take (options,
//! addresses, paths, markers, comments, variables) is refused, and nothing but what
//! [`Requirement`]'s `Display` writes is ever given to one.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    name::{BadName, Extra, PackageName},
    version::Version,
};
use crate::text::quoted;

pub use error::RequirementError;

mod error;
#[cfg(test)]
mod tests;

/// Longest text that is read, in bytes.
const MAX_REQUIREMENT: usize = 512;

/// Most extras of one package.
const MAX_EXTRAS: usize = 16;

/// Most comparisons of one package's version.
const MAX_SPECIFIERS: usize = 16;

/// Ends of files that an installer would install from.
const ARCHIVES: &[&str] = &[
    ".whl", ".egg", ".zip", ".tar", ".tgz", ".tbz", ".gz", ".bz2", ".xz", ".lzma", ".zst",
];

/// A package, some of its extras, and which of its versions will do.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Requirement {
    /// Its name.
    pub name: PackageName,
    /// The extras that are wanted.
    pub extras: BTreeSet<Extra>,
    /// All of them hold for the version; with none any version will do. In the order of the text.
    pub specifiers: Vec<Specifier>,
}

/// One comparison of a package's version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Specifier {
    /// How it is compared.
    pub operator: Operator,
    /// With what.
    pub version: Version,
    /// Whether only the beginning counts: `==1.*`.
    pub is_prefix: bool,
}

/// How a version is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<=`
    AtMost,
    /// `>=`
    AtLeast,
    /// `<`
    Below,
    /// `>`
    Above,
    /// `~=`: at least this, with the same beginning.
    Compatible,
}

impl Requirement {
    /// Reads one package: `name[extra]>=1.0,<2`. Spaces between the parts do no harm.
    ///
    /// # Errors
    ///
    /// [`RequirementError`]: names the text, what is wrong with it, and what to write instead.
    pub fn parse(text: &str) -> Result<Self, RequirementError> {
        let spec = || quoted(text);
        if text.len() > MAX_REQUIREMENT {
            return Err(RequirementError::TooLong { spec: spec() });
        }
        refuse_letters(text)?;
        let trimmed = text.trim_matches(' ');
        if trimmed.is_empty() {
            return Err(RequirementError::Empty);
        }
        refuse_syntax(text, trimmed)?;
        let end = trimmed
            .find(|letter: char| !is_in_name(letter))
            .unwrap_or(trimmed.len());
        let (name, rest) = trimmed.split_at(end);
        let name = PackageName::parse(name).map_err(|problem| {
            // What stops a name at once is a wrong letter, not an empty name.
            let problem = match problem {
                BadName::Empty => BadName::Character,
                problem => problem,
            };
            RequirementError::Name {
                spec: spec(),
                problem,
            }
        })?;
        let (extras, rest) = extras(text, rest.trim_start_matches(' '))?;
        let specifiers = specifiers(text, rest.trim_start_matches(' '))?;
        let requirement = Self {
            name,
            extras,
            specifiers,
        };
        // The canonical text may be the longer one, and is read again.
        if requirement.to_string().len() > MAX_REQUIREMENT {
            return Err(RequirementError::TooLong { spec: spec() });
        }
        Ok(requirement)
    }
}

fn is_in_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.')
}

/// Refuses letters that are not what they look like, or that end a line.
fn refuse_letters(text: &str) -> Result<(), RequirementError> {
    let spec = || quoted(text);
    if let Some(letter) = text.chars().find(|letter| !letter.is_ascii()) {
        return Err(RequirementError::NotAscii {
            spec: spec(),
            letter: format!("U+{:04X}", u32::from(letter)),
        });
    }
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(RequirementError::Control { spec: spec() });
    }
    Ok(())
}

/// Refuses everything that an installer understands beside packages, each with its own reason.
fn refuse_syntax(text: &str, trimmed: &str) -> Result<(), RequirementError> {
    let spec = quoted(text);
    let at = trimmed.find('@');
    let colon = trimmed.find(':');
    Err(if trimmed.starts_with('-') || trimmed.contains(" -") {
        RequirementError::Option { spec }
    } else if trimmed.contains('#') {
        RequirementError::Comment { spec }
    } else if trimmed.contains(['$', '%', '`']) {
        RequirementError::Expansion { spec }
    } else if at.is_some_and(|at| colon.is_none_or(|colon| at < colon)) {
        RequirementError::DirectReference { spec }
    } else if colon.is_some() {
        RequirementError::Address { spec }
    } else if trimmed.contains(';') {
        RequirementError::Marker { spec }
    } else if trimmed.contains('\\') {
        RequirementError::Backslash { spec }
    } else if is_path(trimmed) {
        RequirementError::Path { spec }
    } else {
        return Ok(());
    })
}

fn is_path(trimmed: &str) -> bool {
    let lower = trimmed.to_ascii_lowercase();
    trimmed.contains('/')
        || trimmed.starts_with('.')
        || (trimmed.starts_with('~') && !trimmed.starts_with("~="))
        || ARCHIVES.iter().any(|end| lower.ends_with(end))
}

/// What stands between brackets, and what stands behind them.
fn extras<'a>(text: &str, rest: &'a str) -> Result<(BTreeSet<Extra>, &'a str), RequirementError> {
    let Some(inside) = rest.strip_prefix('[') else {
        return Ok((BTreeSet::new(), rest));
    };
    let malformed = || RequirementError::Extras { spec: quoted(text) };
    let (inside, rest) = inside.split_once(']').ok_or_else(malformed)?;
    if inside.trim_matches(' ').is_empty() || inside.split(',').count() > MAX_EXTRAS {
        return Err(malformed());
    }
    let extras = inside.split(',').map(|extra| {
        let extra = extra.trim_matches(' ');
        Extra::parse(extra).map_err(|problem| RequirementError::Extra {
            spec: quoted(text),
            extra: quoted(extra),
            problem,
        })
    });
    Ok((extras.collect::<Result<_, _>>()?, rest))
}

fn specifiers(text: &str, rest: &str) -> Result<Vec<Specifier>, RequirementError> {
    let spec = || quoted(text);
    if rest.is_empty() {
        return Ok(Vec::new());
    }
    if rest.starts_with('(') {
        return Err(RequirementError::Parentheses { spec: spec() });
    }
    if !rest.starts_with(['=', '!', '<', '>', '~']) {
        return Err(RequirementError::Trailing {
            spec: spec(),
            rest: quoted(rest),
        });
    }
    if rest.split(',').count() > MAX_SPECIFIERS {
        return Err(RequirementError::TooManySpecifiers { spec: spec() });
    }
    rest.split(',')
        .map(|part| specifier(text, part.trim_matches(' ')))
        .collect()
}

fn specifier(text: &str, part: &str) -> Result<Specifier, RequirementError> {
    let spec = || quoted(text);
    if part.starts_with("===") {
        return Err(RequirementError::ArbitraryEquality { spec: spec() });
    }
    let (operator, written) = OPERATORS
        .iter()
        .find_map(|(sign, operator)| Some((*operator, part.strip_prefix(sign)?)))
        .filter(|(_, version)| !version.starts_with(['=', '!', '<', '>', '~']))
        .ok_or_else(|| RequirementError::Operator {
            spec: spec(),
            part: quoted(part),
        })?;
    let written = written.trim_start_matches(' ');
    let (plain, is_prefix) = match written.strip_suffix(".*") {
        Some(plain) => (plain, true),
        None => (written, false),
    };
    if plain.contains('*') {
        return Err(RequirementError::Wildcard { spec: spec() });
    }
    let version = Version::parse(plain).map_err(|problem| RequirementError::Version {
        spec: spec(),
        version: quoted(written),
        problem,
    })?;
    if version.local().is_some() {
        return Err(RequirementError::Local { spec: spec() });
    }
    let may_be_prefix = matches!(operator, Operator::Equal | Operator::NotEqual);
    if is_prefix && !(may_be_prefix && version.is_plain()) {
        return Err(RequirementError::Wildcard { spec: spec() });
    }
    if operator == Operator::Compatible && version.release().len() < 2 {
        return Err(RequirementError::Compatible { spec: spec() });
    }
    Ok(Specifier {
        operator,
        version,
        is_prefix,
    })
}

/// Longer ones before those that they begin with.
const OPERATORS: [(&str, Operator); 7] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::AtMost),
    (">=", Operator::AtLeast),
    ("~=", Operator::Compatible),
    ("<", Operator::Below),
    (">", Operator::Above),
];

impl Operator {
    /// As it is written.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::AtMost => "<=",
            Self::AtLeast => ">=",
            Self::Below => "<",
            Self::Above => ">",
            Self::Compatible => "~=",
        }
    }
}

impl fmt::Display for Specifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.is_prefix { ".*" } else { "" };
        write!(f, "{}{}{end}", self.operator.sign(), self.version)
    }
}

/// The one text that may reach another program: lower case, no spaces.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_str())?;
        for (index, extra) in self.extras.iter().enumerate() {
            let before = if index == 0 { "[" } else { "," };
            write!(f, "{before}{extra}")?;
        }
        if !self.extras.is_empty() {
            f.write_str("]")?;
        }
        for (index, specifier) in self.specifiers.iter().enumerate() {
            let before = if index == 0 { "" } else { "," };
            write!(f, "{before}{specifier}")?;
        }
        Ok(())
    }
}

impl FromStr for Requirement {
    type Err = RequirementError;

    fn from_str(text: &str) -> Result<Self, RequirementError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Requirement {
    type Error = RequirementError;

    fn try_from(text: String) -> Result<Self, RequirementError> {
        Self::parse(&text)
    }
}

impl From<Requirement> for String {
    fn from(requirement: Requirement) -> Self {
        requirement.to_string()
    }
}
