//! Runs the table on an engine, once, and says what is not as it must be.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    io::Write as _,
    path::Path,
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};

use super::{
    case::Case,
    engines::{ENGINES, EngineUnderTest},
    run::{self, Ran},
    table,
};

/// What an engine gave; or why it is not to be had here.
type Given = Result<Gift, String>;

struct Gift {
    /// Case to lines.
    lines: BTreeMap<&'static str, Vec<String>>,
    /// Limits that the engine does not enforce on this machine.
    weak: BTreeSet<String>,
    /// What was left on the machine when the service was gone.
    left: Vec<String>,
}

/// Runs the table on this engine and fails with all that is wrong.
pub(crate) fn check(name: &str) {
    let engine = EngineUnderTest::named(name);
    let given = match given(engine) {
        Ok(given) => given,
        Err(why) => return not_run(engine, why),
    };
    let mut problems = String::new();
    for case in chosen() {
        let expected = case.expected_of(name, &given.weak);
        let lines = &given.lines[case.name];
        if !matches(&expected, lines) {
            let shown = difference(&expected, lines);
            write!(problems, "\n{}\n{shown}", case.name).unwrap();
        }
    }
    assert!(
        problems.is_empty(),
        "{name} breaks the contract:\n{problems}"
    );
    assert!(given.left.is_empty(), "{name} left {:#?}", given.left);
}

/// Compares what the engines gave with each other, where the table lets nothing differ.
pub(crate) fn compare() {
    let all: Vec<_> = ENGINES
        .iter()
        .filter_map(|engine| Some((engine.name, given(engine).as_ref().ok()?)))
        .collect();
    if all.len() < 2 {
        return tell("NOT RUN: engines compared with each other, of which there are not two here");
    }
    let mut problems = String::new();
    for case in chosen() {
        let alike = all
            .iter()
            .filter(|(name, given)| case.difference(name, &given.weak).is_none());
        let mut shown = alike.map(|(name, given)| {
            let expected = case.expected_of(name, &given.weak);
            (*name, masked(&expected, &given.lines[case.name]))
        });
        let Some((first, reference)) = shown.next() else {
            continue;
        };
        for (name, lines) in shown.filter(|(_, lines)| *lines != reference) {
            let reference: Vec<&str> = reference.iter().map(String::as_str).collect();
            let lines = difference(&reference, &lines);
            write!(problems, "\n{}: {first} and {name}\n{lines}", case.name).unwrap();
        }
    }
    assert!(problems.is_empty(), "engines differ:\n{problems}");
}

/// What an engine gives, found out once in this process.
fn given(engine: &'static EngineUnderTest) -> &'static Given {
    type Cells = Mutex<BTreeMap<&'static str, &'static OnceLock<Given>>>;
    static CELLS: LazyLock<Cells> = LazyLock::new(Cells::default);
    let cell: &'static OnceLock<Given> = CELLS
        .lock()
        .unwrap()
        .entry(engine.name)
        .or_insert_with(|| Box::leak(Box::default()));
    cell.get_or_init(|| {
        // One after the other: timeouts would mean less if all of them shared the machine.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(run_all(engine))
    })
}

async fn run_all(engine: &'static EngineUnderTest) -> Given {
    let directory = tempfile::tempdir().unwrap();
    let (service, weak) = engine.service(directory.path()).await?;
    let running = chosen().into_iter().enumerate().map(|(number, case)| {
        let service = Arc::clone(&service);
        async move {
            let ran = tokio::spawn(run::run(service, number, case)).await;
            let ran = ran.unwrap_or_else(|error| Ran {
                lines: vec![format!("the test panicked: {error}")],
                executions: Vec::new(),
            });
            (case.name, ran)
        }
    });
    let ran = stream::iter(running).buffer_unordered(engine.at_once);
    let ran: Vec<(&str, Ran)> = ran.collect().await;
    service.shutdown().await;
    drop(service);
    let (mut lines, mut executions) = (BTreeMap::new(), Vec::new());
    for (name, ran) in ran {
        lines.insert(name, ran.lines);
        executions.extend(ran.executions);
    }
    let left = left(engine, directory.path(), &executions).await;
    Ok(Gift { lines, weak, left })
}

/// What is still there a minute after the service was gone.
async fn left(engine: &EngineUnderTest, directory: &Path, executions: &[String]) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let left = (engine.left)(directory, executions);
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn chosen() -> Vec<&'static Case> {
    let text = env::var("CONTRACT_CASE").unwrap_or_default();
    let chosen: Vec<_> = table().filter(|case| case.name.contains(&text)).collect();
    assert!(!chosen.is_empty(), "no case has {text:?} in its name");
    chosen
}

fn not_run(engine: &EngineUnderTest, why: &str) {
    let name = engine.name;
    assert!(
        !engine.is_required(),
        "{name} is required and not to be had here: {why}"
    );
    tell(&format!(
        "NOT RUN: the contract on {name}, which is not to be had here: {why}"
    ));
}

/// Past the test harness, which keeps quiet what tests print that pass.
fn tell(sentence: &str) {
    let line = format!("\n{sentence}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

fn matches(expected: &[&str], lines: &[String]) -> bool {
    expected.len() == lines.len()
        && expected
            .iter()
            .zip(lines)
            .all(|(pattern, line)| fits(pattern, line))
}

/// Whether a line is as expected, `…` being any text.
fn fits(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some((_, after)) = rest.split_once(part) else {
            return false;
        };
        rest = after;
    }
    true
}

/// The lines as they may be compared between engines: those that the table leaves open as it has them.
fn masked(expected: &[&str], lines: &[String]) -> Vec<String> {
    let masked = lines.iter().enumerate().map(|(index, line)| {
        let pattern = expected.get(index).filter(|one| one.contains('…'));
        pattern
            .filter(|one| fits(one, line))
            .map_or_else(|| line.clone(), |one| (*one).to_owned())
    });
    masked.collect()
}

/// Both, with the lines that are not in the other marked.
fn difference(expected: &[&str], lines: &[String]) -> String {
    let mut shown = String::new();
    for pattern in expected {
        let is_there = lines.iter().any(|line| fits(pattern, line));
        let mark = if is_there { "     " } else { "    -" };
        writeln!(shown, "{mark} {pattern}").unwrap();
    }
    let mut is_more = false;
    for line in lines {
        if !expected.iter().any(|pattern| fits(pattern, line)) {
            writeln!(shown, "    + {line}").unwrap();
            is_more = true;
        }
    }
    if !is_more {
        // The same lines in another order or number.
        writeln!(
            shown,
            "    but the whole was\n      {}",
            lines.join("\n      ")
        )
        .unwrap();
    }
    shown
}

#[test]
fn only_holes_are_open() {
    assert!(fits("a", "a"));
    assert!(!fits("a", "ab"));
    assert!(fits("a…b…c", "a1b2c"));
    assert!(fits("a…", "a"));
    assert!(!fits("a…c", "ab"));
    assert!(!fits("a…b…c", "ac"));
}

#[test]
fn lines_that_are_not_expected_are_told() {
    let lines = ["completed", "result 2"].map(str::to_owned);
    assert!(!matches(&["completed"], &lines));
    assert!(!matches(&["completed", "result 2", "stdout \"\""], &lines));
    assert!(matches(&["completed", "result …"], &lines));
    let told = difference(&["completed", "result 1"], &lines);
    assert_eq!(told, "      completed\n    - result 1\n    + result 2\n");
    assert_eq!(
        masked(&["completed", "result …"], &lines),
        ["completed", "result …"]
    );
}
