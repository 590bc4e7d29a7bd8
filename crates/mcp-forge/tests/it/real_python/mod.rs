//! It is real Python: CPython's own tests end in a sandbox as they end outside, packages work, and
//! so does everyday code.
//!
//! A short selection runs always; `MCP_FORGE_FULL_REGRTEST=1` runs all modules, which takes half an
//! hour. What is different and why stands in `docs/real-python.md`, and a difference that the page
//! does not explain, or explains although it is gone, fails.

mod differences;
pub(crate) mod packages;
mod places;
mod snippets;

use std::{fmt::Write as _, path::Path};

use differences::{Explained, explained, passes, worse};
use places::{Cases, Place};

/// Modules that run always: files, memory, C, limits, the operating system.
const SHORT: [&str; 9] = [
    "test_json",
    "test_mmap",
    "test_tempfile",
    "test_fcntl",
    "test_ctypes",
    "test_resource",
    "test_posix",
    "test_os",
    "test_zoneinfo",
];

/// The others.
const LONG: [&str; 59] = [
    "test_asyncio.test_locks",
    "test_asyncio.test_queues",
    "test_asyncio.test_runners",
    "test_asyncio.test_subprocess",
    "test_asyncio.test_taskgroups",
    "test_asyncio.test_tasks",
    "test_asyncio.test_unix_events",
    "test_bz2",
    "test_concurrent_futures",
    "test_contextlib",
    "test_csv",
    "test_dataclasses",
    "test_datetime",
    "test_dbm",
    "test_decimal",
    "test_enum",
    "test_faulthandler",
    "test_fileinput",
    "test_fileio",
    "test_gc",
    "test_glob",
    "test_grp",
    "test_hashlib",
    "test_import",
    "test_importlib",
    "test_io",
    "test_locale",
    "test_logging",
    "test_lzma",
    "test_math",
    "test_multiprocessing_fork",
    "test_multiprocessing_forkserver",
    "test_multiprocessing_main_handling",
    "test_multiprocessing_spawn",
    "test_pathlib",
    "test_pickle",
    "test_pwd",
    "test_queue",
    "test_random",
    "test_re",
    "test_select",
    "test_selectors",
    "test_shelve",
    "test_shutil",
    "test_signal",
    "test_stat",
    "test_struct",
    "test_subprocess",
    "test_sys",
    "test_tarfile",
    "test_threading",
    "test_time",
    "test_traceback",
    "test_unicodedata",
    "test_uuid",
    "test_weakref",
    "test_xml_etree",
    "test_zipfile",
    "test_zlib",
];

/// Runs of a module at most: a case that passes in one of them passes. Timing on a busy machine
/// makes some of CPython's tests fail anywhere.
const RUNS: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn cpythons_own_tests_end_as_they_do_outside() {
    assert!(
        Path::new(places::TESTS).join("test_json").is_dir(),
        "install the Debian packages libpython3.11-testsuite and bubblewrap"
    );
    let full = std::env::var_os("MCP_FORGE_FULL_REGRTEST").is_some();
    let long: &[&str] = if full { &LONG } else { &[] };
    let page = explained(places::is_counted().await);
    let mut tally = Tally::default();
    for module in SHORT.iter().chain(long) {
        tally.add(&Comparison::run(module, &page).await, &page);
        println!("{}", tally.lines.last().unwrap());
    }
    println!("{}", tally.report());
    assert_eq!(
        tally.problems, "",
        "docs/real-python.md and the sandbox disagree"
    );
    assert!(tally.outside > 500, "only {} cases ran", tally.outside);
    assert!(
        tally.sandbox_fair >= tally.bubblewrap_fair,
        "{}",
        tally.report()
    );
}

/// One module in all places; what passed in any of its runs passed.
struct Comparison {
    module: String,
    outside: Cases,
    bubblewrap: Cases,
    sandbox: Cases,
}

impl Comparison {
    /// Repeats as long as the page and the sandbox disagree.
    async fn run(module: &str, page: &[Explained]) -> Self {
        let mut all = Self {
            module: module.to_owned(),
            outside: Cases::new(),
            bubblewrap: Cases::new(),
            sandbox: Cases::new(),
        };
        for _ in 0..RUNS {
            // Together: most of the time they wait for something.
            let (outside, bubblewrap, sandbox) = tokio::join!(
                places::run(Place::Outside, module),
                places::run(Place::Bubblewrap, module),
                places::run(Place::Sandbox, module),
            );
            merge(&mut all.outside, outside);
            merge(&mut all.bubblewrap, bubblewrap);
            merge(&mut all.sandbox, sandbox);
            if all.problems(page).is_empty() {
                break;
            }
        }
        all
    }

    /// One line for each difference that is not on the page, and for each that is only there.
    fn problems(&self, page: &[Explained]) -> String {
        let differences = worse(&self.outside, &self.sandbox);
        let mut problems = String::new();
        for (case, ending) in &differences {
            if !page.iter().any(|line| line.covers(&self.module, case)) {
                writeln!(
                    problems,
                    "not explained: `{}`: `{case}`: {ending:?}",
                    self.module
                )
                .unwrap();
            }
        }
        for line in page.iter().filter(|line| line.module == self.module) {
            if !differences
                .iter()
                .any(|(case, _)| line.covers(&self.module, case))
            {
                writeln!(
                    problems,
                    "no longer different: `{}`: `{}`",
                    self.module, line.case
                )
                .unwrap();
            }
        }
        problems
    }
}

/// Adds a later run; only a pass replaces what an earlier one said.
fn merge(all: &mut Cases, run: Cases) {
    for (case, ending) in run {
        if !passes(all, &case) {
            all.insert(case, ending);
        }
    }
}

/// The numbers of all modules.
#[derive(Default)]
struct Tally {
    lines: Vec<String>,
    problems: String,
    outside: usize,
    bubblewrap: usize,
    sandbox: usize,
    /// The same without the cases that need what is withheld on purpose.
    bubblewrap_fair: usize,
    sandbox_fair: usize,
}

impl Tally {
    fn add(&mut self, one: &Comparison, page: &[Explained]) {
        let is_withheld = |case: &str| {
            page.iter()
                .any(|line| line.is_withheld() && line.covers(&one.module, case))
        };
        let count = |cases: &Cases, fair: bool| {
            cases
                .keys()
                .filter(|case| passes(cases, case) && !(fair && is_withheld(case)))
                .count()
        };
        let passed = [&one.outside, &one.bubblewrap, &one.sandbox].map(|cases| count(cases, false));
        let problems = one.problems(page);
        self.lines.push(format!(
            "{:<36} {:>5} {:>5} {:>5}\n{problems}",
            one.module, passed[0], passed[1], passed[2]
        ));
        self.problems += &problems;
        self.outside += passed[0];
        self.bubblewrap += passed[1];
        self.sandbox += passed[2];
        self.bubblewrap_fair += count(&one.bubblewrap, true);
        self.sandbox_fair += count(&one.sandbox, true);
    }

    fn report(&self) -> String {
        format!(
            "cases passed: module, outside, bubblewrap, sandbox\n{}all {} {} {}, without what is withheld {} {}\n",
            self.lines.concat(),
            self.outside,
            self.bubblewrap,
            self.sandbox,
            self.bubblewrap_fair,
            self.sandbox_fair
        )
    }
}
