//! The project's chores. `cargo xtask test` is the one command that says whether a change is good.
#![expect(clippy::print_stdout, reason = "a chore's report is its output")]

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Parser};

mod bench;
mod clients;
mod counts;
mod groups;
mod install;
mod ordinary_user;
mod podman;
mod process;
mod runner;
mod schedule;
mod second_try;
mod workspace;

use groups::Group;
use workspace::Workspace;

/// The project's chores.
///
/// `test` installs what the tests need into target/test-tools, builds once, and runs every group
/// of tests, in parallel where they do not disturb each other. It works as root (then the sandbox
/// tests run a second time as an ordinary user) and as an ordinary user. Output of each group is
/// kept in target/xtask/GROUP.log and printed when the group fails.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = EXAMPLES)]
enum Chore {
    /// Install what the tests need, then run them all
    Test(Selection),
    /// The same as `test`, and the supply-chain check with cargo-deny where that is installed
    Ci(Selection),
    /// Measure mcp-forge against what one would use instead; writes docs/benchmarks
    Bench(bench::Options),
}

const EXAMPLES: &str = "Examples:
  cargo xtask test                       everything; CI runs exactly this
  cargo xtask test --list                the groups, and what each is for
  cargo xtask test --only fmt clippy     two groups, and what they need
  cargo xtask test --only escape         the escape tests with their negative controls
  cargo xtask bench --quick              benchmarks in about 5 minutes";

#[derive(Debug, Args)]
struct Selection {
    /// Run only these groups (and the ones they need)
    #[arg(long, value_name = "GROUP", num_args = 1..)]
    only: Vec<String>,
    /// Show the groups and stop
    #[arg(long)]
    list: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let (selection, all) = match Chore::parse() {
        Chore::Test(selection) => (selection, groups::test()),
        Chore::Ci(selection) => (selection, groups::ci()),
        Chore::Bench(options) => {
            bench::run(&options)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    if selection.list {
        list(&all);
        return Ok(ExitCode::SUCCESS);
    }
    let workspace = Workspace::find()?;
    let chosen = choose(&all, &selection.only)?;
    let reports = schedule::run(&chosen, &workspace);
    schedule::print_summary(&reports);
    let failed = reports.iter().any(|report| !report.passed());
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn list(groups: &[Group]) {
    for group in groups {
        println!("{:<17} {}", group.name, group.about);
    }
}

/// The named groups and everything they come after; all of them if none is named.
fn choose<'a>(all: &'a [Group], only: &[String]) -> anyhow::Result<Vec<&'a Group>> {
    let mut wanted: Vec<&str> = only.iter().map(String::as_str).collect();
    if wanted.is_empty() {
        return Ok(all.iter().collect());
    }
    let mut next = 0;
    while let Some(name) = wanted.get(next).copied() {
        let Some(group) = all.iter().find(|group| group.name == name) else {
            let names: Vec<_> = all.iter().map(|group| group.name).collect();
            bail!(
                "there is no group `{name}`; the groups are {}",
                names.join(", ")
            );
        };
        wanted.extend(group.after);
        next += 1;
    }
    Ok(all
        .iter()
        .filter(|group| wanted.contains(&group.name))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chosen_group_brings_what_it_needs() {
        let all = groups::test();
        let names: Vec<_> = choose(&all, &["escape".to_owned()])
            .unwrap()
            .iter()
            .map(|group| group.name)
            .collect();
        assert_eq!(names, ["install", "build", "escape"]);
    }

    #[test]
    fn an_unknown_group_is_named_in_the_error() {
        let error = choose(&groups::test(), &["escpae".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`escpae`") && error.contains("escape"),
            "{error}"
        );
    }

    #[test]
    fn every_group_comes_after_groups_that_exist_and_stand_before_it() {
        let all = groups::ci();
        for (index, group) in all.iter().enumerate() {
            for needed in group.after {
                assert!(
                    all[..index].iter().any(|earlier| earlier.name == *needed),
                    "{needed}"
                );
            }
        }
    }
}
