//! The rules, applied to what was asked for and to what it resolved to.

use std::collections::BTreeSet;

use super::{EnvironmentsError, error::Refusal};
use crate::{
    config::EnvironmentSettings,
    packages::{Lock, PackageName, Requirement, Rules, Verdict},
};

/// What the rules say of a set of packages.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judged {
    /// Those that are never let in.
    pub(super) refused: Vec<Refusal>,
    /// Those that wait for an approval: the pattern that says so is in the rule.
    pub(super) waiting: Vec<Refusal>,
}

/// Judges packages by name.
pub(super) fn judge<'a>(
    rules: &Rules,
    names: impl IntoIterator<Item = &'a PackageName>,
    approved: &BTreeSet<String>,
) -> Judged {
    let mut judged = Judged::default();
    let unique: BTreeSet<&PackageName> = names.into_iter().collect();
    for name in unique {
        let refusal = |rule: String, reason: &str| Refusal {
            package: name.to_string(),
            rule,
            reason: reason.to_owned(),
        };
        match rules.judge(name, approved.contains(name.as_str())) {
            Verdict::Allowed => {}
            Verdict::Blocked { rule } => judged.refused.push(refusal(rule, "is blocked")),
            Verdict::NotListed => judged.refused.push(refusal(
                "packages.allowlist_only".to_owned(),
                "is not on the allowlist",
            )),
            Verdict::NeedsApproval { pattern } => judged.waiting.push(refusal(
                format!("packages.manual_approval: {pattern}"),
                "needs an approval",
            )),
        }
    }
    judged
}

/// The names that were asked for.
pub(super) fn asked(requirements: &[Requirement]) -> impl Iterator<Item = &PackageName> {
    requirements.iter().map(|requirement| &requirement.name)
}

/// The names of a lock.
pub(super) fn locked(lock: &Lock) -> impl Iterator<Item = &PackageName> {
    lock.packages().iter().map(|package| &package.name)
}

/// Checks that each package came from the index that the operator names for it: a listed one from
/// its own, every other one from the main one. `found` is what the resolver says of each.
///
/// # Errors
///
/// [`EnvironmentsError::Refused`]: a name that is on two indexes would be whoever's was faster.
pub(super) fn sources(
    settings: &EnvironmentSettings,
    lock: &Lock,
    found: &[(String, String)],
) -> Result<(), EnvironmentsError> {
    let mut refused = Vec::new();
    for name in locked(lock) {
        let listed = settings
            .extra_indexes
            .iter()
            .find(|index| index.packages.contains(name));
        let (wanted, wanted_name) = match listed {
            Some(index) => (&index.url, format!("`{}`", index.name)),
            None => (&settings.index, "the main index".to_owned()),
        };
        let from = found
            .iter()
            .find(|(package, _)| PackageName::parse(package).as_ref() == Ok(name));
        // Shown forms have neither user nor password, on both sides.
        let is_right = from.is_some_and(|(_, from)| {
            from.trim_end_matches('/') == wanted.to_string().trim_end_matches('/')
        });
        if !is_right {
            let from = from.map_or("nowhere that it names", |(_, from)| from.as_str());
            refused.push(Refusal {
                package: name.to_string(),
                rule: "environment_builder.extra_indexes".to_owned(),
                reason: format!(
                    "would come from {}, and belongs to {wanted_name}",
                    crate::text::clipped(from)
                ),
            });
        }
    }
    if refused.is_empty() {
        Ok(())
    } else {
        Err(EnvironmentsError::Refused(refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_is_judged_once_and_named_with_its_rule() {
        let list = |names: &[&str]| {
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>()
        };
        let rules = Rules::new(&[], false, &list(&["os-sys"]), &list(&["*crypto*"])).unwrap();
        let names: Vec<PackageName> = ["os_sys", "OS.SYS", "pycrypto", "cryptography", "numpy"]
            .iter()
            .map(|name| PackageName::parse(name).unwrap())
            .collect();
        let approved = BTreeSet::from(["pycrypto".to_owned()]);
        let judged = judge(&rules, &names, &approved);
        let shown: Vec<String> = judged.refused.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["`os-sys` is blocked (packages.blocklist: os-sys)"]);
        let shown: Vec<String> = judged.waiting.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            ["`cryptography` needs an approval (packages.manual_approval: *crypto*)"]
        );
    }
}
