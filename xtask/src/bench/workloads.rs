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
    /// Seconds that its rounds may take in a full run.
    pub(crate) seconds: u64,
}

impl Workload {
    /// For contenders that give back the value of the last expression.
    pub(crate) fn snippet(&self) -> String {
        format!("{}{}", self.body, self.last)
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

/// All workloads, in the order in which they run.
pub(crate) fn all() -> Vec<Workload> {
    let workload = |name, about, body: &str, last, expected, seconds| Workload {
        name,
        about,
        body: body.to_owned(),
        last,
        expected,
        tools: false,
        seconds,
    };
    vec![
        workload("one", "`1+1`", "", "1+1", "2", 240),
        workload(
            "lines",
            "200 lines of pure Python",
            &two_hundred_lines(),
            "total",
            "111025",
            90,
        ),
        workload(
            "pandas",
            "`import pandas` and a group-by of 10,000 rows",
            PANDAS,
            "int(grouped.max())",
            "7146429",
            120,
        ),
        Workload {
            tools: true,
            ..workload(
                "tools",
                "100 tool calls in one turn",
                TOOLS,
                "calls",
                "100",
                60,
            )
        },
        Workload {
            tools: true,
            ..workload(
                "result",
                "a tool result of 10 MB",
                "",
                "len(bench_large())",
                "10000000",
                60,
            )
        },
    ]
}

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
