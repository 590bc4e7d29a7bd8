//! Writes a run as Markdown.

use std::fmt::Write as _;

use super::{
    results::{Cell, Load, Results},
    targets::number,
};

/// The whole page.
pub(crate) fn markdown(results: &Results) -> String {
    let mut page = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(&mut page, results);
    page
}

fn write_page(page: &mut String, results: &Results) -> std::fmt::Result {
    let machine = &results.machine;
    writeln!(page, "# Benchmarks\n")?;
    writeln!(
        page,
        "Written by `cargo xtask bench{}` on {} at version {}. Do not edit: run it; what is known of the reasons stands in `analysis.md`, and is repeated at the end.\n",
        results.mode, results.date, results.version
    )?;
    writeln!(
        page,
        "Machine: {}, {} cores, {} GiB, Linux {}. Load average before the run: {}.\n",
        machine.processor, machine.cores, machine.memory_gib, machine.kernel, machine.load_before
    )?;
    for note in &results.notes {
        writeln!(page, "- {note}")?;
    }
    writeln!(page, "\n![Latency](latency.svg)\n")?;
    write_targets(page, results)?;
    for workload in &results.workloads {
        writeln!(page, "## {}\n", workload.about)?;
        write_cells(page, results, workload.name)?;
        let pairs = results.pairs.iter();
        let pairs: Vec<_> = pairs
            .filter(|pair| pair.workload == workload.name)
            .collect();
        for pair in &pairs {
            writeln!(
                page,
                "- {} takes {} x as long as {}, by rounds",
                about(results, pair.other),
                number(pair.other_takes),
                about(results, pair.contender),
            )?;
        }
        for (contender, reason) in &workload.missing {
            writeln!(page, "- {}: {reason}", about(results, contender))?;
        }
        if !workload.missing.is_empty() || !pairs.is_empty() {
            writeln!(page)?;
        }
    }
    write_loads(page, results)?;
    write_alive(page, results)?;
    write_sessions(page, results)?;
    write_stages(page, results)?;
    write_missing(page, results)
}

fn write_targets(page: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(page, "## Targets\n")?;
    writeln!(
        page,
        "| what | target | measured | |\n| --- | --- | --- | --- |"
    )?;
    for target in &results.targets {
        let met = match target.met {
            Some(true) => "met",
            Some(false) => "**not met**",
            None => "open",
        };
        writeln!(
            page,
            "| {} | {} | {} | {met} |",
            target.what, target.wanted, target.measured
        )?;
    }
    writeln!(page)
}

fn write_cells(page: &mut String, results: &Results, workload: &str) -> std::fmt::Result {
    if !results.cells.iter().any(|cell| cell.workload == workload) {
        return Ok(());
    }
    writeln!(
        page,
        "| | p50 | p99 | runs | times `true` | bubblewrap takes |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    )?;
    for cell in results
        .cells
        .iter()
        .filter(|cell| cell.workload == workload)
    {
        let Cell {
            samples,
            p50_us,
            p99_us,
            ..
        } = cell;
        writeln!(
            page,
            "| {} | {} | {} | {samples} | {} | {} |",
            about(results, cell.contender),
            duration(*p50_us),
            duration(*p99_us),
            times(cell.to_floor),
            times(cell.bubblewrap_to_this),
        )?;
    }
    writeln!(page)
}

fn write_loads(page: &mut String, results: &Results) -> std::fmt::Result {
    if results.loads.is_empty() {
        return Ok(());
    }
    writeln!(page, "## Sustained load: `1+1` in fresh sandboxes\n")?;
    writeln!(
        page,
        "| | clients | seconds | per second | p50 | p99 | failed |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    )?;
    for load in &results.loads {
        write_load(page, results, load, &load.clients.to_string())?;
    }
    if let Some(load) = &results.half_rate {
        write_load(page, results, load, "half the rate of 8")?;
    }
    writeln!(page)
}

fn write_load(
    page: &mut String,
    results: &Results,
    load: &Load,
    clients: &str,
) -> std::fmt::Result {
    writeln!(
        page,
        "| {} | {clients} | {:.1} | {} | {} | {} | {} |",
        about(results, load.contender),
        load.seconds,
        number(load.per_second),
        duration(load.p50_us),
        duration(load.p99_us),
        load.failed
    )
}

fn write_alive(page: &mut String, results: &Results) -> std::fmt::Result {
    let Some(alive) = &results.alive else {
        return Ok(());
    };
    writeln!(page, "## Many sandboxes at once\n")?;
    write!(
        page,
        "{} sandboxes of mcp-forge were alive at once ({} were asked for",
        alive.living, alive.asked
    )?;
    if let Some(reason) = &alive.stopped {
        write!(page, "; stopped because {reason}")?;
    }
    writeln!(
        page,
        "), started in {} s. `1+1` in one more: p50 {} beside one, {} beside all. Each took {} MiB of the \
         machine's memory; the PSS of its processes was {} MiB.\n",
        number(alive.start_seconds),
        duration(alive.beside_one_p50_us),
        duration(alive.beside_all_p50_us),
        number(alive.memory_kib_each as f64 / 1024.0),
        number(alive.pss_kib_each as f64 / 1024.0),
    )
}

fn write_sessions(page: &mut String, results: &Results) -> std::fmt::Result {
    let Some(alive) = &results.sessions else {
        return Ok(());
    };
    writeln!(page, "## Many sessions at once\n")?;
    writeln!(
        page,
        "| sessions of mcp-forge, pandas imported | memory of an idle one (PSS) | of the machine's memory | `1+1` in one beside itself alone | beside all | started in |\n| ---: | ---: | ---: | ---: | ---: | ---: |"
    )?;
    writeln!(
        page,
        "| {} of {} | {} MiB | {} MiB | {} | {} | {} s |\n",
        alive.living,
        alive.asked,
        number(alive.pss_kib_each as f64 / 1024.0),
        number(alive.memory_kib_each as f64 / 1024.0),
        duration(alive.beside_one_p50_us),
        duration(alive.beside_all_p50_us),
        number(alive.start_seconds),
    )?;
    if let Some(reason) = &alive.stopped {
        writeln!(page, "No more were started: {reason}.\n")?;
    }
    Ok(())
}

fn write_stages(page: &mut String, results: &Results) -> std::fmt::Result {
    let Some(found) = &results.stages else {
        return Ok(());
    };
    writeln!(page, "## Where the time of a turn goes\n")?;
    writeln!(
        page,
        "`1+1` in a fresh sandbox of mcp-forge, one turn after the other with a pause between, medians. Its interpreter had \
         {} page faults from its fork until the code ran, most of them while it waited in the pool.\n",
        number(found.faults)
    )?;
    writeln!(page, "| stage | p50 |\n| --- | ---: |")?;
    for (stage, microseconds) in &found.stages {
        writeln!(page, "| {stage} | {} |", duration(*microseconds))?;
    }
    writeln!(page)
}

fn write_missing(page: &mut String, results: &Results) -> std::fmt::Result {
    let mut missing = results
        .contenders
        .iter()
        .filter_map(|row| Some((row, row.unavailable.as_deref()?)))
        .peekable();
    if missing.peek().is_none() {
        return Ok(());
    }
    writeln!(page, "## Not available here\n")?;
    for (contender, reason) in missing {
        writeln!(page, "- {}: {reason}", contender.about)?;
    }
    Ok(())
}

fn about<'a>(results: &'a Results, name: &'a str) -> &'a str {
    results
        .contenders
        .iter()
        .find(|contender| contender.name == name)
        .map_or(name, |contender| contender.about)
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{} x", number(ratio)))
}

/// Microseconds in the unit that people would say.
pub(crate) fn duration(microseconds: f64) -> String {
    match microseconds {
        us if us < 1e3 => format!("{} µs", number(us)),
        us if us < 1e6 => format!("{} ms", number(us / 1e3)),
        us => format!("{} s", number(us / 1e6)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bench::{
        results::{Alive, ContenderRow, Handshakes, Machine, Pair, Soak, Stages, WorkloadRow},
        targets,
    };

    /// A small run with one of everything.
    pub(crate) fn example() -> Results {
        let contender = |name, about, unavailable: Option<&str>| ContenderRow {
            name,
            about,
            unavailable: unavailable.map(str::to_owned),
        };
        let cell = |contender, p50_us, p99_us, to_floor, bubblewrap_to_this| Cell {
            workload: "one",
            contender,
            samples: 100,
            p50_us,
            p99_us,
            to_floor,
            bubblewrap_to_this,
        };
        let load = Load {
            contender: "forge",
            clients: 8,
            seconds: 30.0,
            per_second: 1234.5,
            p50_us: 800.0,
            p99_us: 4000.0,
            failed: 0,
        };
        let mut results = Results {
            date: "2026-01-02T03:04:05Z".to_owned(),
            version: "abc1234".to_owned(),
            mode: " --quick",
            machine: Machine {
                processor: "Example CPU".to_owned(),
                cores: 2,
                memory_gib: 24,
                kernel: "6.18.0".to_owned(),
                load_before: "0.10".to_owned(),
            },
            notes: vec!["Everything ran as root.".to_owned()],
            contenders: vec![
                contender("true", "floor: `true`", None),
                contender("forge", "**mcp-forge**", None),
                contender("bubblewrap", "bubblewrap and Python", None),
                contender("monty", "pydantic-monty", None),
                contender("podman", "podman", Some("it does not start: no runc")),
            ],
            workloads: vec![
                WorkloadRow {
                    name: "one",
                    about: "`1+1`",
                    missing: vec![("monty", "wrong answer: 3".to_owned())],
                },
                WorkloadRow {
                    name: "session-fork",
                    about: "Sessions: a branch",
                    missing: vec![("forge-session", "this engine makes none".to_owned())],
                },
            ],
            pairs: vec![Pair {
                workload: "one",
                contender: "forge",
                other: "forge-empty",
                other_takes: 3.25,
            }],
            cells: vec![
                cell("true", 400.0, 900.0, None, Some(30.0)),
                cell("forge", 150.0, 2500.0, Some(0.375), Some(80.0)),
                cell("bubblewrap", 12_000.0, 31_000.0, Some(30.0), None),
            ],
            half_rate: Some(Load {
                clients: 0,
                ..load.clone()
            }),
            loads: vec![load],
            alive: Some(Alive {
                asked: 1000,
                living: 412,
                stopped: Some("memory is nearly full".to_owned()),
                start_seconds: 2.5,
                beside_one_p50_us: 150.0,
                beside_all_p50_us: 180.0,
                memory_kib_each: 900,
                pss_kib_each: 700,
            }),
            sessions: Some(Alive {
                asked: 200,
                living: 200,
                stopped: None,
                start_seconds: 150.0,
                beside_one_p50_us: 200.0,
                beside_all_p50_us: 240.0,
                memory_kib_each: 50_000,
                pss_kib_each: 40_000,
            }),
            soak: Some(Soak {
                turns: 100_000,
                failed: 0,
                first_kib: 20_000,
                last_kib: 21_000,
            }),
            handshakes: Some(Handshakes {
                count: 101_234,
                first: 9_000,
                first_kib: 30_000,
                last_kib: 30_600,
            }),
            stages: Some(Stages {
                stages: vec![("a sandbox from the pool".to_owned(), 12.5)],
                faults: 330.0,
            }),
            direct_tool_call_us: Some(60.0),
            mcp_above_ping_us: Some(420.0),
            http_above_call_us: Some(250.0),
            targets: Vec::new(),
        };
        results.targets = targets::judge(&results);
        results
    }

    #[test]
    fn a_run_as_markdown() {
        insta::assert_snapshot!(markdown(&example()));
    }

    #[test]
    fn times_in_the_unit_that_people_would_say() {
        let shown = [0.12, 85.4, 999.0, 12_345.6, 2_000_000.0].map(duration);
        assert_eq!(
            shown,
            ["0.120 µs", "85.4 µs", "999 µs", "12.3 ms", "2.00 s"]
        );
    }
}
