//! The differences between two runs, and those that `docs/real-python.md` explains.

use super::places::{Cases, Ending};

/// The page that users read is also what the test reads.
const PAGE: &str = include_str!("../../../../../docs/real-python.md");

/// The sections about what bubblewrap would give and a sealed sandbox is not meant to have.
const WITHHELD: [&str; 3] = [
    "No network",
    "No terminals",
    "System calls that are left out",
];

/// One line of the page: a case of a module that a section explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Explained {
    pub(super) module: String,
    pub(super) case: String,
    /// The section's title.
    section: String,
}

impl Explained {
    /// Whether it is about this case.
    pub(super) fn covers(&self, module: &str, case: &str) -> bool {
        self.module == module && self.case == case
    }

    /// Whether the case needs what no sealed sandbox is meant to have.
    pub(super) fn is_withheld(&self) -> bool {
        WITHHELD.contains(&self.section.as_str())
    }
}

/// Everything on the page: modules are list items, their cases the lines below.
pub(super) fn explained() -> Vec<Explained> {
    let (mut section, mut module) = ("", "");
    let mut all = Vec::new();
    for line in PAGE.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            section = title;
        } else if let Some(name) = line
            .strip_prefix("- `")
            .and_then(|rest| rest.strip_suffix("`:"))
        {
            module = name;
        } else if let Some(case) = line.strip_prefix("  `") {
            let case = case.trim_end_matches(['`', ',']).to_owned();
            all.push(Explained {
                module: module.to_owned(),
                case,
                section: section.to_owned(),
            });
        }
    }
    all
}

/// The cases that do worse in the sandbox, and how they end there.
pub(super) fn worse<'a>(
    outside: &'a Cases,
    sandbox: &'a Cases,
) -> Vec<(&'a str, Option<&'a Ending>)> {
    let is_bad = |ending: &Ending| matches!(ending.0.as_str(), "failed" | "died");
    let lost = outside
        .iter()
        .filter(|(case, (status, _))| status == "passed" && !passes(sandbox, case))
        .map(|(case, _)| case);
    let broken = sandbox
        .iter()
        .filter(|(case, ending)| {
            is_bad(ending)
                && outside
                    .get(*case)
                    .is_none_or(|(status, _)| status == "skipped")
        })
        .map(|(case, _)| case);
    lost.chain(broken)
        .map(|case| (case.as_str(), sandbox.get(case)))
        .collect()
}

/// Whether the case passed in this run.
pub(super) fn passes(cases: &Cases, case: &str) -> bool {
    cases
        .get(case)
        .is_some_and(|(status, _)| status == "passed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(endings: &[(&str, &str)]) -> Cases {
        endings
            .iter()
            .map(|(case, status)| ((*case).to_owned(), ((*status).to_owned(), String::new())))
            .collect()
    }

    #[test]
    fn worse_is_what_is_lost_and_what_breaks_that_was_skipped() {
        let outside = cases(&[
            ("skipped inside", "passed"),
            ("never reached", "passed"),
            ("fails everywhere", "failed"),
            ("breaks", "skipped"),
            ("better inside", "failed"),
            ("same", "passed"),
        ]);
        let sandbox = cases(&[
            ("skipped inside", "skipped"),
            ("fails everywhere", "failed"),
            ("breaks", "failed"),
            ("better inside", "passed"),
            ("same", "passed"),
            ("(the module)", "died"),
        ]);
        let found: Vec<_> = worse(&outside, &sandbox)
            .into_iter()
            .map(|(case, _)| case)
            .collect();
        assert_eq!(
            found,
            ["never reached", "skipped inside", "(the module)", "breaks"]
        );
    }

    #[test]
    fn the_page_names_cases_of_modules_in_sections() {
        let page = explained();
        let network = page
            .iter()
            .find(|line| line.covers("test_signal", "WakeupFDTests.test_invalid_socket"))
            .unwrap();
        assert!(network.is_withheld());
        assert!(!network.covers("test_os", "WakeupFDTests.test_invalid_socket"));
    }
}
