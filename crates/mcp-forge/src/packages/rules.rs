//! Which packages may be installed: what the operator lists, and what is known to be malicious.

use std::fmt;

use super::{
    malicious,
    name::{BadName, MAX_NAME, PackageName},
};
use crate::text::quoted;

/// Most entries of one list.
const MAX_ENTRIES: usize = 100_000;

/// The operator's lists, checked, and the built-in list of malicious names, which is always on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    allowlist: Vec<Pattern>,
    allowlist_only: bool,
    blocklist: Vec<Pattern>,
    manual_approval: Vec<Pattern>,
}

/// What the rules say of one package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may be installed.
    Allowed,
    /// It may never be installed, whoever approves it.
    Blocked {
        /// The rule in words: the list and its entry, or what was reported of the name.
        rule: String,
    },
    /// It may be installed once it is approved.
    NeedsApproval {
        /// The entry of `packages.manual_approval` that says so.
        pattern: String,
    },
    /// Only listed packages may be installed, and it is not listed.
    NotListed,
}

/// An entry of a list that is no pattern. There are no rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{list}: {problem}")]
pub struct RulesError {
    /// The key: `packages.blocklist`.
    pub list: &'static str,
    /// Which entry of the list, from 0.
    pub index: usize,
    /// The value, what is wrong with it, and what to write instead.
    pub problem: String,
}

/// Names, or beginnings, ends and parts of names with `*` between them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    /// Normalised as names are.
    text: String,
}

impl Rules {
    /// Checks the lists of the configuration. An entry is a name, or has `*` for any text in it.
    ///
    /// # Errors
    ///
    /// [`RulesError`] for the first entry that no name could match.
    pub fn new(
        allowlist: &[String],
        allowlist_only: bool,
        blocklist: &[String],
        manual_approval: &[String],
    ) -> Result<Self, RulesError> {
        Ok(Self {
            allowlist: patterns("packages.allowlist", allowlist)?,
            allowlist_only,
            blocklist: patterns("packages.blocklist", blocklist)?,
            manual_approval: patterns("packages.manual_approval", manual_approval)?,
        })
    }

    /// Judges one package. What is blocked is blocked whatever else is said of it; what is on the
    /// allowlist needs no approval; where only listed packages are allowed, approval is no way around.
    pub fn judge(&self, name: &PackageName, approved: bool) -> Verdict {
        let hit = |list: &[Pattern]| -> Option<String> {
            let pattern = list.iter().find(|pattern| pattern.matches(name))?;
            Some(pattern.text.clone())
        };
        if let Some(report) = malicious::report(name) {
            return Verdict::Blocked {
                rule: format!("the built-in list of malicious packages: {report}"),
            };
        }
        if let Some(entry) = hit(&self.blocklist) {
            return Verdict::Blocked {
                rule: format!("packages.blocklist: {entry}"),
            };
        }
        if hit(&self.allowlist).is_some() {
            return Verdict::Allowed;
        }
        if self.allowlist_only {
            return Verdict::NotListed;
        }
        match hit(&self.manual_approval) {
            Some(pattern) if !approved => Verdict::NeedsApproval { pattern },
            _ => Verdict::Allowed,
        }
    }
}

fn patterns(list: &'static str, entries: &[String]) -> Result<Vec<Pattern>, RulesError> {
    if entries.len() > MAX_ENTRIES {
        return Err(RulesError {
            list,
            index: MAX_ENTRIES,
            problem: format!("the list has more than {MAX_ENTRIES} entries: use patterns with *"),
        });
    }
    let pattern = |(index, entry): (usize, &String)| {
        Pattern::parse(entry).map_err(|problem| RulesError {
            list,
            index,
            problem: format!(
                "{} is neither a package's name nor a pattern: {problem}. Write one such as numpy or *crypto*, without versions",
                quoted(entry)
            ),
        })
    };
    entries.iter().enumerate().map(pattern).collect()
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, BadName> {
        if !text.contains('*') {
            let text = PackageName::parse(text)?.as_str().to_owned();
            return Ok(Self { text });
        }
        if text.len() > MAX_NAME {
            return Err(BadName::TooLong);
        }
        let fits =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'*');
        if !text.bytes().all(fits) {
            return Err(BadName::Character);
        }
        // No name begins or ends with a separator, so no name would match.
        if text.starts_with(['-', '_', '.']) || text.ends_with(['-', '_', '.']) {
            return Err(BadName::Edge);
        }
        let mut normal = String::with_capacity(text.len());
        for letter in text.chars() {
            match letter {
                '-' | '_' | '.' if normal.ends_with('-') => {}
                '-' | '_' | '.' => normal.push('-'),
                '*' if normal.ends_with('*') => {}
                letter => normal.push(letter.to_ascii_lowercase()),
            }
        }
        Ok(Self { text: normal })
    }

    /// Each part is looked for once, behind the one before: the time grows with the name's length
    /// times the pattern's, both of which are bounded.
    fn matches(&self, name: &PackageName) -> bool {
        let name = name.as_str();
        let Some((first, rest)) = self.text.split_once('*') else {
            return self.text == name;
        };
        let Some(mut left) = name.strip_prefix(first) else {
            return false;
        };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        for part in middle.split('*').filter(|part| !part.is_empty()) {
            let Some(at) = left.find(part) else {
                return false;
            };
            left = &left[at + part.len()..];
        }
        left.ends_with(last)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed => f.write_str("allowed"),
            Self::Blocked { rule } => write!(f, "blocked by {rule}"),
            Self::NeedsApproval { pattern } => write!(
                f,
                "needs the operator's approval, as packages.manual_approval: {pattern} says"
            ),
            Self::NotListed => {
                f.write_str("not on packages.allowlist, and only packages of it may be installed")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(entries: &[&str]) -> Vec<String> {
        entries.iter().map(|&entry| entry.to_owned()).collect()
    }

    fn name(text: &str) -> PackageName {
        PackageName::parse(text).unwrap()
    }

    fn matches(pattern: &str, text: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(&name(text))
    }

    #[test]
    fn each_list_has_its_place() {
        let rules = Rules::new(
            &list(&["cryptography", "bad-but-listed"]),
            false,
            &list(&["os-sys", "bad-*"]),
            &list(&["*crypto*", "*ssh*"]),
        )
        .unwrap();
        let verdict = |text: &str, approved| rules.judge(&name(text), approved);
        assert_eq!(verdict("numpy", false), Verdict::Allowed);
        assert_eq!(verdict("cryptography", false), Verdict::Allowed);
        let pattern = "*crypto*".to_owned();
        assert_eq!(
            verdict("pycryptodome", false),
            Verdict::NeedsApproval { pattern }
        );
        assert_eq!(verdict("pycryptodome", true), Verdict::Allowed);
        for blocked in ["os-sys", "OS_sys", "os.sys", "bad-but-listed", "bad.x"] {
            assert!(
                matches!(verdict(blocked, true), Verdict::Blocked { .. }),
                "{blocked}"
            );
        }
        // Near, and another project.
        assert_eq!(verdict("ossys", false), Verdict::Allowed);
    }

    #[test]
    fn approval_is_no_way_around_a_list_that_is_the_only_one() {
        let rules = Rules::new(&list(&["numpy", "scikit-*"]), true, &[], &list(&["*"])).unwrap();
        assert_eq!(rules.judge(&name("NumPy"), false), Verdict::Allowed);
        assert_eq!(rules.judge(&name("scikit_learn"), false), Verdict::Allowed);
        assert_eq!(rules.judge(&name("pandas"), true), Verdict::NotListed);
        let empty = Rules::new(&[], true, &[], &[]).unwrap();
        assert_eq!(empty.judge(&name("numpy"), true), Verdict::NotListed);
    }

    #[test]
    fn a_star_is_any_text() {
        for (pattern, text) in [
            ("*", "a"),
            ("*crypto*", "crypto"),
            ("*crypto*", "pycryptodome"),
            ("*Crypto_*", "my-crypto-x"),
            ("a*b*c", "abc"),
            ("a*b*c", "a-b-b-c"),
            ("a**c", "ac"),
            ("*ab", "aab"),
            ("*a*a*", "aa"),
            ("zope.*", "zope-interface"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("crypto", "pycrypto"),
            ("crypto*", "pycrypto"),
            ("*crypto", "cryptography"),
            ("ab*ba", "aba"),
            ("*a*a*", "a"),
            ("a*b*c", "a-c-b"),
            ("zope.*", "zope"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn an_entry_that_no_name_can_match_is_refused_and_told() {
        let error = Rules::new(&[], false, &list(&["ok", "numpy==1.0"]), &[]).unwrap_err();
        assert_eq!((error.list, error.index), ("packages.blocklist", 1));
        insta::assert_snapshot!(error, @r#"packages.blocklist: "numpy==1.0" is neither a package's name nor a pattern: a name has only ASCII letters, digits, -, _ and . in it. Write one such as numpy or *crypto*, without versions"#);
        for bad in [
            "", " numpy", "numpy ", "-*", "*-", "*.", "ｎ*", "[ab]*", "?", "a\n", "a,b",
        ] {
            assert!(
                Rules::new(&list(&[bad]), false, &[], &[]).is_err(),
                "{bad:?}"
            );
        }
    }

    proptest! {
        /// The quick way of matching says what trying everything says.
        #[test]
        fn patterns_match_as_they_should(pattern in "[ab*]{1,8}", text in "[ab]{1,8}") {
            fn slow(pattern: &[u8], text: &[u8]) -> bool {
                match (pattern, text) {
                    ([], []) => true,
                    ([b'*', rest @ ..], _) => {
                        slow(rest, text) || (!text.is_empty() && slow(pattern, &text[1..]))
                    }
                    ([letter, rest @ ..], [first, others @ ..]) => letter == first && slow(rest, others),
                    _ => false,
                }
            }
            prop_assert_eq!(matches(&pattern, &text), slow(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
