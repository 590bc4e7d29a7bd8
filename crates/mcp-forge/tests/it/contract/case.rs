//! A case of the contract as data: what is asked, and all that must come back.

use std::collections::BTreeSet;

/// One case: steps one after the other, and what they must give.
#[derive(Debug)]
pub(crate) struct Case {
    /// A sentence.
    pub(crate) name: &'static str,
    pub(crate) steps: &'static [Step],
    /// What comes back, as `show.rs` writes it: the answers to the steps with a line `---` between.
    /// Indentation does not count; `…` stands for any text within a line.
    pub(crate) expected: &'static str,
    /// Engines that give something else.
    pub(crate) differs: &'static [Difference],
}

/// What one engine gives instead.
#[derive(Debug)]
pub(crate) struct Difference {
    /// Its name.
    pub(crate) engine: &'static str,
    /// Only where the engine says that it holds this limit as `best_effort`: `cpu`.
    pub(crate) without: Option<&'static str>,
    /// What is different, for readers of `docs/engines.md`.
    pub(crate) what: &'static str,
    /// Why it cannot or should not be the same.
    pub(crate) reason: &'static str,
    /// As [`Case::expected`].
    pub(crate) expected: &'static str,
}

/// One thing that is asked of the service.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Runs code.
    Run(Turn),
    /// Describes variables of a session.
    Document {
        session: &'static str,
        variables: &'static [(&'static str, &'static str)],
        note: &'static str,
    },
    /// Looks at these members of a session's state, each a JSON pointer, once the first of them is there.
    State {
        session: &'static str,
        members: &'static [&'static str],
    },
    /// Reads a file of a session's `/workspace`.
    File {
        session: &'static str,
        path: &'static str,
    },
    /// Ends a session.
    Delete(&'static str),
    /// Copies a live session.
    Fork {
        from: &'static str,
        to: &'static str,
    },
}

impl Step {
    /// The same turn, with these tools.
    pub(crate) const fn with_tools(self, tools: &'static [&'static str]) -> Self {
        match self {
            Self::Run(turn) => Self::Run(Turn { tools, ..turn }),
            other => other,
        }
    }
}

/// A request to run code. Sessions' names are the case's own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    /// Python source; its common indentation is taken off.
    pub(crate) code: &'static str,
    pub(crate) session: Option<&'static str>,
    pub(crate) tools: &'static [&'static str],
    /// Seconds.
    pub(crate) timeout: Option<f64>,
    pub(crate) memory: Option<&'static str>,
    /// Microseconds in 100 ms.
    pub(crate) cpu_quota: Option<u64>,
    pub(crate) pids: Option<u64>,
    pub(crate) storage: Option<&'static str>,
    pub(crate) stop: Stop,
}

/// Whether the caller ends the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Never,
    /// Interrupts it when it says its first word: the answer tells how it ended.
    AtFirstWord,
    /// Drops the call when it says its first word: there is no answer.
    Drop,
}

/// A case in which no engine may differ.
pub(crate) const fn case(
    name: &'static str,
    steps: &'static [Step],
    expected: &'static str,
) -> Case {
    Case {
        name,
        steps,
        expected,
        differs: &[],
    }
}

/// A turn in a fresh sandbox.
pub(crate) const fn run(code: &'static str) -> Step {
    Step::Run(turn(code))
}

/// A turn in one of the case's sessions.
pub(crate) const fn run_in(session: &'static str, code: &'static str) -> Step {
    Step::Run(Turn {
        session: Some(session),
        ..turn(code)
    })
}

/// A turn in a fresh sandbox that may call these tools.
pub(crate) const fn run_with(tools: &'static [&'static str], code: &'static str) -> Step {
    run(code).with_tools(tools)
}

/// A turn that asks for nothing else; a start for others.
pub(crate) const fn turn(code: &'static str) -> Turn {
    Turn {
        code,
        session: None,
        tools: &[],
        timeout: None,
        memory: None,
        cpu_quota: None,
        pids: None,
        storage: None,
        stop: Stop::Never,
    }
}

impl Case {
    /// What this engine must give, line by line. `weak` are the limits that it does not enforce here.
    pub(crate) fn expected_of(&self, engine: &str, weak: &BTreeSet<String>) -> Vec<&'static str> {
        let difference = self.difference(engine, weak);
        let expected = difference.map_or(self.expected, |one| one.expected);
        expected.trim().lines().map(str::trim).collect()
    }

    /// The line of the table that lets this engine differ.
    pub(crate) fn difference(&self, engine: &str, weak: &BTreeSet<String>) -> Option<&Difference> {
        let is_so = |one: &&Difference| {
            one.engine == engine && one.without.is_none_or(|limit| weak.contains(limit))
        };
        self.differs.iter().find(is_so)
    }
}

/// The lines of `docs/engines.md` about a case.
pub(crate) fn rows(case: &Case) -> impl Iterator<Item = String> {
    case.differs.iter().map(|one| {
        let engine = one.without.map_or_else(
            || one.engine.to_owned(),
            |limit| format!("{}, where {limit} is `best_effort`", one.engine),
        );
        format!(
            "| {} | {engine} | {} | {} |",
            case.name, one.what, one.reason
        )
    })
}

/// Source without the indentation that all of its lines have, and without an empty first line.
pub(crate) fn dedented(code: &str) -> String {
    let code = code.strip_prefix('\n').unwrap_or(code);
    let lines = || code.lines().filter(|line| !line.trim().is_empty());
    let indentation = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let common = lines().map(indentation).min().unwrap_or(0);
    let shorter = code
        .split('\n')
        .map(|line| line.get(common..).unwrap_or(""));
    shorter.collect::<Vec<_>>().join("\n")
}

#[test]
fn code_loses_only_its_common_indentation() {
    assert_eq!(
        dedented("\n    if x:\n        y = 'a  b'\n\n    z"),
        "if x:\n    y = 'a  b'\n\nz"
    );
    assert_eq!(dedented("1 + 1"), "1 + 1");
}
