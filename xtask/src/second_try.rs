//! One more try, alone, for a test that failed beside others.

use std::{fs::File, os::unix::fs::FileExt, process::Command};

use crate::process::{Ran, run};

/// Tests that are tried once more, at most. More of them are no accident of a busy machine.
const MOST: usize = 2;

/// In the names of tests that attack. What holds only sometimes does not hold: none is tried again.
const ATTACKS: [&str; 6] = [
    "escape",
    "hostile",
    "walls",
    "principals",
    "forged",
    "anothers",
];

/// Runs a test binary. What fails beside other tests and passes alone depends on what ran beside it:
/// it is [`Ran::Unsteady`], a fault of the test or of the product that is still to be found, and does
/// not pass for passed.
///
/// # Errors
///
/// More failed, or it failed again.
pub(crate) fn run_tests(tests: &mut Command, log: &File) -> anyhow::Result<Ran> {
    let Err(failure) = run(tests, log) else {
        return Ok(Ran::Tests);
    };
    let mut output = vec![0; usize::try_from(log.metadata()?.len())?];
    log.read_exact_at(&mut output, 0)?;
    let failed = failed_tests(&String::from_utf8_lossy(&output));
    let is_attack = failed
        .iter()
        .any(|test| ATTACKS.iter().any(|attack| test.contains(attack)));
    if failed.is_empty() || failed.len() > MOST || is_attack {
        return Err(failure);
    }
    // With this no other filter of the command fits any test.
    run(
        tests.args(["--test-threads=1", "--exact"]).args(&failed),
        log,
    )?;
    Ok(Ran::Unsteady(failed))
}

/// The tests that failed, if the binary came to its end: one that crashed leaves others unrun.
fn failed_tests(output: &str) -> Vec<String> {
    let failed: Vec<String> = output
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
        .map(str::to_owned)
        .collect();
    let told = format!("; {} failed; ", failed.len());
    let has_ended = |line: &str| line.starts_with("test result: FAILED.") && line.contains(&told);
    if output.lines().any(has_ended) {
        failed
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_known_once_all_have_run() {
        let run = "test a::b ... FAILED\ntest c ... ok\n";
        let end = "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured\n";
        assert_eq!(failed_tests(&format!("{run}{end}")), ["a::b"]);
        assert_eq!(failed_tests(run), Vec::<String>::new());
        let other = end.replace("1 failed", "2 failed");
        assert_eq!(failed_tests(&format!("{run}{other}")), Vec::<String>::new());
    }

    #[test]
    fn what_passes_alone_is_unsteady_and_what_does_not_has_failed() {
        // Fails beside others: without `--exact`.
        let script = |test: &str, alone: &str| {
            format!(
                "case \"$*\" in *--exact*) {alone};; esac; echo 'test {test} ... FAILED'; \
                 echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 1"
            )
        };
        let workspace = crate::workspace::Workspace::find().unwrap();
        let tried = |test: &str, alone: &str| {
            let log = workspace.create_log("second-try-test").unwrap();
            let mut tests = crate::process::command("sh");
            tests.args(["-c", &script(test, alone), "tests", "filter"]);
            run_tests(&mut tests, &log)
        };
        let unsteady = Ran::Unsteady(vec!["a".to_owned()]);
        let passes = "test \"$3\" = --exact && exit 0";
        assert_eq!(tried("a", passes).unwrap(), unsteady);
        assert!(tried("a", "exit 1").is_err());
        assert!(tried("escape::a", passes).is_err(), "an attack");
    }
}
