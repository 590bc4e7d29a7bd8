//! What is run: Python programs whose answer is known, so that a contender that is quick because it
//! did something else is found out.

use std::fmt::Write as _;

/// One program.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// What the command line calls it.
    pub(crate) name: &'static str,
    /// What the report calls it.
    pub(crate) about: &'static str,
    /// Statements.
    pub(crate) body: String,
    /// The expression whose value is the answer.
    pub(crate) last: &'static str,
    /// The answer, as `print` and as JSON show it.
    pub(crate) expected: &'static str,
    /// Whether it calls the tools `bench_echo` and `bench_large`.
    pub(crate) tools: bool,
    /// Bytes that it prints, which must all arrive.
    pub(crate) printed: usize,
    /// The only contenders that take part; if empty, all that run code in fresh sandboxes.
    pub(crate) among: &'static [&'static str],
    /// Seconds that its rounds may take in a full run.
    pub(crate) seconds: u64,
}

impl Workload {
    /// For contenders that give back the value of the last expression.
    pub(crate) fn snippet(&self) -> String {
        format!("{}{}", self.body, self.last)
    }

    /// Whether a contender takes part at all.
    pub(crate) fn is_for(&self, contender: &str) -> bool {
        if self.among.is_empty() {
            contender != SESSION_CONTENDER
        } else {
            self.among.contains(&contender)
        }
    }

    /// For contenders that give back what was printed.
    pub(crate) fn script(&self) -> String {
        format!("{}print({})\n", self.body, self.last)
    }
}

/// Tool calls of the workload `tools`.
pub(crate) const TOOL_CALLS: u32 = 100;

/// Bytes of the answer in the workload `result`.
pub(crate) const RESULT_BYTES: u32 = 10_000_000;

/// Bytes that the workloads `session-print` and `session-lines` print.
const PRINTED_BYTES: usize = 1_000_000;

/// The contender that runs everything in sessions.
pub(crate) const SESSION_CONTENDER: &str = "forge-session";

/// On the command line: all workloads whose name begins so.
pub(crate) const SESSION_GROUP: &str = "session";

/// All workloads, in the order in which they run.
pub(crate) fn all() -> Vec<Workload> {
    let mut all = fresh();
    all.extend(in_sessions());
    all
}

fn workload(
    name: &'static str,
    about: &'static str,
    body: &str,
    (last, expected): (&'static str, &'static str),
    seconds: u64,
) -> Workload {
    Workload {
        name,
        about,
        body: body.to_owned(),
        last,
        expected,
        tools: false,
        printed: 0,
        among: &[],
        seconds,
    }
}

/// Those that find nothing of an earlier run.
fn fresh() -> Vec<Workload> {
    vec![
        workload("one", "`1+1`", "", ("1+1", "2"), 240),
        workload(
            "lines",
            "200 lines of pure Python",
            &two_hundred_lines(),
            ("total", "111025"),
            90,
        ),
        workload(
            "pandas",
            "`import pandas` and a group-by of 10,000 rows",
            PANDAS,
            ("int(grouped.max())", "7146429"),
            120,
        ),
        Workload {
            tools: true,
            ..workload(
                "tools",
                "100 tool calls in one turn",
                TOOLS,
                ("calls", "100"),
                60,
            )
        },
        Workload {
            tools: true,
            ..workload(
                "result",
                "a tool result of 10 MB",
                "",
                ("len(bench_large())", "10000000"),
                60,
            )
        },
    ]
}

/// Those of interpreters that stay.
fn in_sessions() -> Vec<Workload> {
    let among = |workload, among| Workload { among, ..workload };
    let printing = |workload| Workload {
        printed: PRINTED_BYTES,
        among: LIVE,
        ..workload
    };
    vec![
        among(
            workload(
                "session-start",
                "Sessions: a new one, to the answer of `1+1`",
                "",
                ("1+1", "2"),
                120,
            ),
            &[SESSION_CONTENDER, "jupyter"],
        ),
        among(
            workload(
                "session-turn",
                "Sessions: `1+1` in a live one",
                "",
                ("1+1", "2"),
                30,
            ),
            LIVE,
        ),
        printing(workload(
            "session-print",
            "Sessions: 1 MB of output, in one print",
            "print('x' * 999_999)\n",
            ("7", "7"),
            30,
        )),
        printing(workload(
            "session-lines",
            "Sessions: 1 MB of output, in 10,000 lines",
            "for _ in range(10_000): print('x' * 99)\n",
            ("7", "7"),
            30,
        )),
        among(
            workload(
                "session-fork",
                "Sessions: a branch of one that holds a pandas frame of 100 MB",
                FRAME,
                ("float(frame.iat[1_249_999, 9])", "12499999.0"),
                30,
            ),
            &[SESSION_CONTENDER],
        ),
        among(
            workload(
                "session-look",
                "Sessions: what one with 1,000 variables holds, right after a turn",
                VARIABLES,
                ("len(v999)", "999"),
                30,
            ),
            &[SESSION_CONTENDER],
        ),
    ]
}

/// Interpreters that live on both sides.
const LIVE: &[&str] = &[SESSION_CONTENDER, "jupyter-warm"];

/// 12,500,000 floats are 100 MB.
const FRAME: &str = "\
import numpy, pandas
frame = pandas.DataFrame(numpy.arange(12_500_000.0).reshape(-1, 10))
";

/// A quarter each of integers, texts, lists and dictionaries.
const VARIABLES: &str = "\
globals().update({
    f'v{n}': [n, str(n) * 20, {'a': n, 'b': [n]}, list(range(n))][n % 4] for n in range(1000)
})
";

const PANDAS: &str = "\
import pandas
frame = pandas.DataFrame({'key': [n % 7 for n in range(10000)], 'value': range(10000)})
grouped = frame.groupby('key')['value'].sum()
";

const TOOLS: &str = "\
calls = 0
for number in range(100):
    calls += len(bench_echo(text='x'))
";

/// Ten functions of nineteen lines and a call of each: loops, lists, dictionaries, strings. No
/// imports and no classes, so that every contender can run it.
fn two_hundred_lines() -> String {
    let mut program = String::new();
    for number in 0..10 {
        let call = if number == 0 { "total =" } else { "total +=" };
        // Writing to a String cannot fail.
        let _ = write!(
            program,
            "def step_{number}(limit):
    primes = []
    for candidate in range(2, limit):
        for prime in primes:
            if candidate % prime == 0:
                break
        else:
            primes.append(candidate)
    sums = {{}}
    for prime in primes:
        key = str(prime)[-1]
        sums[key] = sums.get(key, 0) + prime
    text = '-'.join(sorted(sums))
    checksum = 0
    for letter in text:
        checksum = (checksum * 31 + ord(letter)) % 65521
    return checksum // 8 + sum(sums.values()) + {number}


{call} step_{number}({})
",
            200 + number
        );
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hundred_lines_are_two_hundred_lines() {
        assert_eq!(two_hundred_lines().lines().count(), 200);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = all().iter().map(|workload| workload.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }
}
