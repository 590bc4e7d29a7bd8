//! Names of packages that were reported as malicious, and are nobody's honest package today.

use super::name::PackageName;

/// One line each: the name, and behind `#` the year and what was reported.
const LIST: &str = include_str!("malicious.txt");

/// What was reported of a name, if anything was.
pub(super) fn report(name: &PackageName) -> Option<&'static str> {
    entries()
        .find(|(listed, _)| *listed == name.as_str())
        .map(|(_, report)| report)
}

/// The names, normalised as they stand in the file, and what was reported of each.
fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    LIST.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('#'))
        .map(|(name, report)| (name.trim(), report.trim()))
}
