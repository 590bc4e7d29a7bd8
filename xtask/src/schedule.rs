//! Runs groups, in parallel where they do not disturb each other, and says how it went.

use std::{
    fs,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;

use crate::{
    counts::Counts,
    groups::{Group, Lane},
    process::Ran,
    workspace::Workspace,
};

/// How one group went.
#[derive(Debug)]
pub(crate) struct Report {
    name: &'static str,
    counts: Counts,
    took: Duration,
    outcome: Result<Ran, String>,
    /// What failed, in short.
    complaints: Vec<String>,
}

impl Report {
    /// Whether the group succeeded.
    pub(crate) fn passed(&self) -> bool {
        self.outcome.is_ok()
    }
}

/// Runs every group as soon as the ones it comes after are done and its lane is free. A failure
/// stops only the groups that need the failed one.
pub(crate) fn run(groups: &[&Group], workspace: &Workspace) -> Vec<Report> {
    let mut waiting: Vec<&Group> = groups.to_vec();
    let mut running: Vec<&Group> = Vec::new();
    let mut reports: Vec<Report> = Vec::new();
    let (sender, finished) = mpsc::channel();
    thread::scope(|scope| {
        loop {
            fail_those_in_vain(&mut waiting, &mut reports);
            while let Some(group) = take_ready(&mut waiting, &running, &reports) {
                running.push(group);
                println!("start   {}", group.name);
                let sender = sender.clone();
                scope.spawn(move || sender.send(run_one(group, workspace)));
            }
            if running.is_empty() {
                break;
            }
            let Ok(report) = finished.recv() else { break };
            running.retain(|group| group.name != report.name);
            print_report(&report, workspace);
            reports.push(report);
        }
    });
    reports
}

/// A table of all groups, the reasons of those that failed, and the line that CI reads.
pub(crate) fn print_summary(reports: &[Report]) {
    println!(
        "\n{:<17} {:<8} {:>7} {:>7} {:>9}",
        "group", "result", "passed", "failed", "time"
    );
    for report in reports {
        let result = match report.outcome {
            Ok(Ran::Tests) => "ok",
            Ok(Ran::Unsteady(_)) => "unsteady",
            Ok(Ran::Nothing(_)) => "nothing",
            Err(_) => "FAILED",
        };
        let Counts { passed, failed } = report.counts;
        println!(
            "{:<17} {result:<8} {passed:>7} {failed:>7} {:>7.1} s",
            report.name,
            report.took.as_secs_f64()
        );
    }
    let mut unsteady = 0;
    for report in reports {
        match &report.outcome {
            Ok(Ran::Tests) => {}
            Ok(Ran::Nothing(reason)) => println!("\n{}: nothing was run: {reason}", report.name),
            Ok(Ran::Unsteady(tests)) => {
                unsteady += tests.len();
                let tests = tests.join(", ");
                print_complaints(
                    report,
                    &format!("failed beside others, passed alone: {tests}"),
                );
            }
            Err(failure) => print_complaints(report, failure),
        }
    }
    let total = reports
        .iter()
        .map(|report| report.counts)
        .fold(Counts::default(), Counts::plus);
    println!("\n{} passed, {} failed", total.passed, total.failed);
    if unsteady > 0 {
        println!("{unsteady} unsteady: each is a fault that is still to be found");
    }
}

fn print_complaints(report: &Report, problem: &str) {
    println!("\n{}: {problem}", report.name);
    for line in &report.complaints {
        println!("  {line}");
    }
}

fn take_ready<'a>(
    waiting: &mut Vec<&'a Group>,
    running: &[&Group],
    reports: &[Report],
) -> Option<&'a Group> {
    let done = |name: &str| {
        reports
            .iter()
            .any(|report| report.name == name && report.passed())
    };
    let lane_is_free = |lane: Lane| running.iter().all(|group| lane.stands(group.lane));
    let index = waiting
        .iter()
        .position(|group| lane_is_free(group.lane) && group.after.iter().all(|name| done(name)))?;
    Some(waiting.remove(index))
}

fn fail_those_in_vain(waiting: &mut Vec<&Group>, reports: &mut Vec<Report>) {
    let failed_need = |group: &Group, reports: &[Report]| {
        group.after.iter().copied().find(|name| {
            reports
                .iter()
                .any(|report| report.name == *name && !report.passed())
        })
    };
    while let Some((index, needed)) = waiting
        .iter()
        .enumerate()
        .find_map(|(index, group)| Some((index, failed_need(group, reports)?)))
    {
        let group = waiting.remove(index);
        println!("FAILED  {}: not run, it needs `{needed}`", group.name);
        reports.push(Report {
            name: group.name,
            counts: Counts {
                passed: 0,
                failed: 1,
            },
            took: Duration::ZERO,
            outcome: Err(format!(
                "not run, because it needs `{needed}`, which failed"
            )),
            complaints: Vec::new(),
        });
    }
}

fn run_one(group: &Group, workspace: &Workspace) -> Report {
    let started = Instant::now();
    let outcome = workspace
        .create_log(group.name)
        .and_then(|log| (group.run)(workspace, &log));
    let output = read_log(group.name, workspace);
    let outcome = outcome.and_then(|ran| {
        ensure!(!Counts::ran_nothing(&output), "no test was run");
        Ok(ran)
    });
    Report {
        name: group.name,
        counts: match &outcome {
            Ok(Ran::Nothing(_)) => Counts::default(),
            Ok(Ran::Unsteady(tests)) => {
                let twice = u64::try_from(tests.len()).unwrap_or(0);
                let all = Counts::read(&output, true);
                Counts {
                    passed: all.passed - twice,
                    failed: all.failed - twice,
                }
            }
            _ => Counts::read(&output, outcome.is_ok()),
        },
        took: started.elapsed(),
        complaints: complaints(&output),
        outcome: outcome.map_err(|error| format!("{error:#}")),
    }
}

fn print_report(report: &Report, workspace: &Workspace) {
    let seconds = report.took.as_secs_f64();
    let failure = match &report.outcome {
        Ok(Ran::Tests) => {
            return println!(
                "ok      {} ({seconds:.1} s, {} passed)",
                report.name, report.counts.passed
            );
        }
        Ok(Ran::Nothing(reason)) => return println!("nothing {}: {reason}", report.name),
        Ok(Ran::Unsteady(tests)) => {
            println!(
                "unsteady {} ({seconds:.1} s): {}",
                report.name,
                tests.join(", ")
            );
            return print_output(report, workspace);
        }
        Err(failure) => failure,
    };
    println!("FAILED  {} ({seconds:.1} s): {failure}", report.name);
    print_output(report, workspace);
}

fn print_output(report: &Report, workspace: &Workspace) {
    let log = read_log(report.name, workspace);
    for line in log.lines().filter(|line| !line.ends_with(" ... ok")) {
        println!("  {} | {line}", report.name);
    }
}

/// The lines in which test runners say what failed, for those who see only the end of the output.
fn complaints(output: &str) -> Vec<String> {
    const MOST: usize = 40;
    const BEGINNINGS: [&str; 4] = ["FAIL", "ERROR", "error", "not ok"];
    let mut found = Vec::new();
    let mut of_a_panic = 0;
    for line in output.lines() {
        let is_panic = line.starts_with("thread '") && line.contains(" panicked at ");
        if is_panic {
            of_a_panic = 4;
        }
        if line.starts_with("stack backtrace:") {
            of_a_panic = 0;
        }
        if of_a_panic > 0 || BEGINNINGS.iter().any(|start| line.starts_with(start)) {
            found.push(line.to_owned());
        }
        of_a_panic -= i32::from(of_a_panic > 0);
        if found.len() == MOST {
            break;
        }
    }
    found
}

fn read_log(group: &str, workspace: &Workspace) -> String {
    fs::read(workspace.log_path(group))
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use anyhow::bail;

    use super::*;

    #[test]
    fn who_looks_for_what_others_left_has_no_others() {
        use Lane::{Alone, Any, Cargo, Container, Sandbox};
        for (one, other, both) in [
            (Alone, Alone, false),
            (Alone, Sandbox, false),
            (Alone, Container, false),
            (Alone, Cargo, true),
            (Sandbox, Container, true),
            (Sandbox, Sandbox, false),
            (Cargo, Cargo, false),
            (Cargo, Sandbox, true),
            (Any, Any, true),
            (Any, Alone, true),
        ] {
            assert_eq!(one.stands(other), both, "{one:?} {other:?}");
            assert_eq!(other.stands(one), both, "{other:?} {one:?}");
        }
    }

    #[test]
    fn what_failed_is_told_in_short() {
        let output = "test a ... ok\n\n---- b stdout ----\n\n\
            thread 'b' (12) panicked at tests/b.rs:5:5:\nleft: 1\nright: 2\nstack backtrace:\n   0: begin\n\
            FAIL: test_c (c.C.test_c)\nTraceback\n";
        assert_eq!(
            complaints(output),
            [
                "thread 'b' (12) panicked at tests/b.rs:5:5:",
                "left: 1",
                "right: 2",
                "FAIL: test_c (c.C.test_c)"
            ]
        );
    }

    fn group(name: &'static str, after: &'static [&'static str], run: crate::groups::Run) -> Group {
        Group {
            name,
            about: "",
            lane: Lane::Any,
            after,
            run,
        }
    }

    fn fine(workspace: &Workspace, _: &File) -> anyhow::Result<Ran> {
        fs::metadata(&workspace.root)?;
        Ok(Ran::Tests)
    }

    fn broken(_: &Workspace, _: &File) -> anyhow::Result<Ran> {
        bail!("broken on purpose")
    }

    #[test]
    fn a_failure_stops_what_needs_it_and_nothing_else() {
        let groups = [
            group("schedule-test-a", &[], broken),
            group("schedule-test-b", &["schedule-test-a"], fine),
            group("schedule-test-c", &["schedule-test-b"], fine),
            group("schedule-test-d", &[], fine),
        ];
        let reports = run(
            &groups.iter().collect::<Vec<_>>(),
            &Workspace::find().unwrap(),
        );
        let passed: Vec<_> = reports
            .iter()
            .filter(|report| report.passed())
            .map(|report| report.name)
            .collect();
        assert_eq!(passed, ["schedule-test-d"]);
        assert_eq!(reports.len(), 4);
    }
}
