//! Reads from a group's output how many tests passed and failed.

/// Tests of one group, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Counts {
    /// Adds up the closing lines of cargo test, of unittest, and of our own drivers. A group that
    /// runs no test runner counts as one test; a failed group has at least one failure.
    pub(crate) fn read(output: &str, succeeded: bool) -> Self {
        let mut counts = output
            .lines()
            .filter_map(closing_line)
            .fold(Self::default(), Self::plus);
        // unittest says how many ran and, on another line, how many of those failed.
        let failed_of_unittest: u64 = output.lines().filter_map(unittest_failures).sum();
        counts.failed += failed_of_unittest;
        counts.passed = counts.passed.saturating_sub(failed_of_unittest);
        if counts == Self::default() && succeeded {
            counts.passed = 1;
        }
        if !succeeded {
            counts.failed = counts.failed.max(1);
        }
        counts
    }

    /// Whether a test runner ran and found no test: a filter or a path that fits nothing.
    pub(crate) fn ran_nothing(output: &str) -> bool {
        let mut lines = output.lines().filter_map(closing_line).peekable();
        lines.peek().is_some() && lines.all(|counts| counts == Self::default())
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
        }
    }
}

fn closing_line(line: &str) -> Option<Counts> {
    if let Some(rest) = line.strip_prefix("test result: ") {
        // "test result: ok. 12 passed; 0 failed; 0 ignored; ..."
        let (_, numbers) = rest.split_once(". ")?;
        return passed_and_failed(numbers, "; ");
    }
    if let Some(rest) = line.strip_prefix("Ran ") {
        // "Ran 12 tests in 0.3s"
        let (number, rest) = rest.split_once(' ')?;
        return rest.starts_with("test").then_some(Counts {
            passed: number.parse().ok()?,
            failed: 0,
        });
    }
    if line.starts_with(|first: char| first.is_ascii_digit()) {
        return passed_and_failed(line, ", ");
    }
    None
}

/// `FAILED (failures=1, errors=2, skipped=5)`
fn unittest_failures(line: &str) -> Option<u64> {
    let numbers = line.strip_prefix("FAILED (")?.strip_suffix(')')?;
    let failures = numbers.split(", ").filter_map(|part| {
        part.strip_prefix("failures=")
            .or(part.strip_prefix("errors="))
    });
    Some(
        failures
            .filter_map(|number| number.parse::<u64>().ok())
            .sum(),
    )
}

/// `12 passed, 0 failed`, with whatever stands between and after.
fn passed_and_failed(text: &str, separator: &str) -> Option<Counts> {
    let mut parts = text.split(separator);
    let passed = parts.next()?.strip_suffix(" passed")?.parse().ok()?;
    let failed = parts.next()?.strip_suffix(" failed")?.parse().ok()?;
    Some(Counts { passed, failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_unittest_and_plain_lines_are_added_up() {
        let output = "running 2 tests\n\
            test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
            test result: FAILED. 3 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out\n\
            Ran 10 tests in 0.120s\n\
            5 passed, 1 failed\n";
        assert_eq!(
            Counts::read(output, false),
            Counts {
                passed: 20,
                failed: 5
            }
        );
    }

    #[test]
    fn a_group_without_a_test_runner_is_one_test() {
        assert_eq!(
            Counts::read("Checking xtask\n", true),
            Counts {
                passed: 1,
                failed: 0
            }
        );
        assert_eq!(
            Counts::read("error: no\n", false),
            Counts {
                passed: 0,
                failed: 1
            }
        );
    }

    #[test]
    fn a_filter_that_fits_no_test_is_noticed() {
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out\n";
        assert!(Counts::ran_nothing(none));
        assert!(!Counts::ran_nothing(&format!("{none}3 passed, 0 failed\n")));
        assert!(!Counts::ran_nothing("Checking xtask\n"));
    }

    #[test]
    fn failures_of_unittest_are_taken_from_those_that_ran() {
        let output = "Ran 8 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=5)\n";
        assert_eq!(
            Counts::read(output, false),
            Counts {
                passed: 5,
                failed: 3
            }
        );
    }

    #[test]
    fn a_failure_that_no_line_counts_is_counted() {
        assert_eq!(
            Counts::read("3 passed, 0 failed\n", false),
            Counts {
                passed: 3,
                failed: 1
            }
        );
    }
}
