//! What the project wants to reach, held against a run. Reported, never asserted: a slow machine is
//! no failure.

use super::{
    contenders::HTTP,
    results::{Handshakes, Results, Target},
    workloads::{RESULT_BYTES, SESSION_CONTENDER, TOOL_CALLS},
};

/// All targets, in the order of the issue that set them.
pub(crate) fn judge(results: &Results) -> Vec<Target> {
    let p50 = |workload, contender| Some(results.cell(workload, contender)?.p50_us);
    let of = |workload, contender| results.cell(workload, contender);
    vec![
        at_most(
            "`1+1` in a fresh sandbox, against `posix_spawn(\"/bin/true\")` and wait",
            "<= 0.5 x",
            of("one", "forge").and_then(|cell| cell.to_floor),
            0.5,
            "x",
        ),
        at_least(
            "`1+1` in a fresh sandbox, against bubblewrap and Python",
            ">= 20 x faster",
            of("one", "forge").and_then(|cell| cell.bubblewrap_to_this),
            20.0,
            "x",
        ),
        at_most(
            "`1+1` through MCP stdio, above an empty `ping` on the same connection",
            "<= 1.0 ms",
            results.mcp_above_ping_us.map(|us| us / 1e3),
            1.0,
            "ms",
        ),
        at_most(
            "pool empty (fork at request), against the pool",
            "<= 5 x",
            results.pair("one"),
            5.0,
            "x",
        ),
        at_least(
            "`import pandas` snippet in a fresh sandbox, against bubblewrap and Python",
            ">= 40 x faster",
            of("pandas", "forge").and_then(|cell| cell.bubblewrap_to_this),
            40.0,
            "x",
        ),
        at_least(
            "fresh sandboxes per second, 8 clients",
            ">= 1000 /s",
            results.load("forge", 8).map(|load| load.per_second),
            1000.0,
            "/s",
        ),
        at_most(
            "p99 at half of that rate, against p50",
            "<= 10 x",
            results
                .half_rate
                .as_ref()
                .map(|load| load.p99_us / load.p50_us),
            10.0,
            "x",
        ),
        at_most(
            "inner tool call, round trip without the tool's own time",
            "<= 0.3 ms",
            inner_tool_call_us(results).map(|us| us / 1e3),
            0.3,
            "ms",
        ),
        at_least(
            "10 MB tool result into Python",
            ">= 100 MB/s",
            p50("result", "forge")
                .zip(p50("one", "forge"))
                // Bytes a microsecond are megabytes a second.
                .map(|(with, without)| f64::from(RESULT_BYTES) / (with - without)),
            100.0,
            "MB/s",
        ),
        at_most(
            "memory of a living sandbox (its share of the PSS of all processes)",
            "<= 1 MB",
            results
                .alive
                .as_ref()
                .map(|alive| alive.pss_kib_each as f64 / 1024.0),
            1.0,
            "MB",
        ),
        memory_growth(results),
        living(results),
        at_least(
            "session start to the answer of `1+1`, against `ipykernel` through `jupyter_client`",
            ">= 50 x faster",
            results.pair("session-start"),
            50.0,
            "x",
        ),
        at_least(
            "`1+1` in a live session, against a live kernel",
            ">= 10 x faster",
            results.pair("session-turn"),
            10.0,
            "x",
        ),
        at_least(
            "1 MB of output in one print, against a live kernel",
            ">= 3 x faster",
            results.pair("session-print"),
            3.0,
            "x",
        ),
        at_least(
            "1 MB of output in 10,000 lines, against a live kernel",
            ">= 3 x faster",
            results.pair("session-lines"),
            3.0,
            "x",
        ),
        at_most(
            "`1+1` over HTTP, above the service call",
            "<= 0.3 ms",
            results.http_above_call_us.map(|us| us / 1e3),
            0.3,
            "ms",
        ),
        at_least(
            "turns per second over HTTP, 8 clients, of those without",
            ">= 80 %",
            results
                .load(HTTP, 8)
                .zip(results.load("forge", 8))
                .map(|(http, call)| 100.0 * http.per_second / call.per_second),
            80.0,
            "%",
        ),
        handshakes(results),
        of_session(
            results,
            "session-fork",
            "branch of a session that holds a frame of 100 MB",
        ),
        of_session(
            results,
            "session-look",
            "introspection of a session with 1,000 variables",
        ),
        living_sessions(results),
        at_least(
            "`1+1` in a waiting container, against `podman run`",
            ">= 50 x faster",
            p50("one", "podman")
                .zip(p50("one", "forge-podman"))
                .map(|(run, ours)| run / ours),
            50.0,
            "x",
        ),
        at_most(
            "`1+1` in a container that is started for it, against `podman run`",
            "<= 1.3 x",
            p50("one", "forge-podman-cold")
                .zip(p50("one", "podman"))
                .map(|(ours, run)| ours / run),
            1.3,
            "x",
        ),
    ]
}

/// 20 ms at most, at a workload that only sessions have.
fn of_session(results: &Results, workload: &str, what: &'static str) -> Target {
    let found = results.cell(workload, SESSION_CONTENDER);
    let found = found.map(|cell| cell.p50_us / 1e3);
    let target = at_most(what, "<= 20 ms", found, 20.0, "ms");
    match results.missing(workload, SESSION_CONTENDER) {
        Some(reason) if found.is_none() => Target {
            measured: format!("not available: {reason}"),
            ..target
        },
        _ => target,
    }
}

fn living_sessions(results: &Results) -> Target {
    const SESSIONS: u64 = 200;
    let found = results.sessions.as_ref();
    Target {
        what: "sessions alive at once in 24 GiB, with pandas imported",
        wanted: ">= 200",
        measured: found.map_or_else(
            || NOT_MEASURED.to_owned(),
            |alive| {
                format!(
                    "{}, {} MB each",
                    alive.living,
                    number(alive.pss_kib_each as f64 / 1024.0)
                )
            },
        ),
        met: found.and_then(|alive| (alive.asked >= SESSIONS).then_some(alive.living >= SESSIONS)),
    }
}

/// What a turn with tool calls takes more than one without, by call, less what the tool takes itself.
pub(crate) fn inner_tool_call_us(results: &Results) -> Option<f64> {
    let with = results.cell("tools", "forge")?.p50_us;
    let without = results.cell("one", "forge")?.p50_us;
    Some((with - without) / f64::from(TOOL_CALLS) - results.direct_tool_call_us?)
}

fn memory_growth(results: &Results) -> Target {
    const TURNS: u64 = 100_000;
    let found = results.soak.as_ref();
    let growth = found.map(|soak| soak.last_kib as f64 / soak.first_kib as f64 - 1.0);
    Target {
        what: "server memory after 100,000 turns, against after 1,000",
        wanted: "<= 10 % more",
        measured: found.zip(growth).map_or_else(
            || NOT_MEASURED.to_owned(),
            |(soak, growth)| format!("{:+.1} % after {} turns", growth * 100.0, soak.turns),
        ),
        met: found
            .filter(|soak| soak.turns >= TURNS && soak.failed == 0)
            .and(growth)
            .map(|growth| growth <= 0.1),
    }
}

fn handshakes(results: &Results) -> Target {
    const CLIENTS: u64 = 100_000;
    let found = results.handshakes.as_ref();
    let growth = found.map(|found| found.last_kib as f64 / found.first_kib as f64 - 1.0);
    Target {
        what: "server memory after 100,000 MCP clients that said hello and left, against after the first",
        wanted: "<= 10 % more",
        measured: found.zip(growth).map_or_else(
            || NOT_MEASURED.to_owned(),
            |(found, growth)| {
                let Handshakes { count, first, .. } = found;
                format!("{:+.1} % from {first} to {count}", growth * 100.0)
            },
        ),
        met: found
            .filter(|found| found.count >= CLIENTS)
            .and(growth)
            .map(|growth| growth <= 0.1),
    }
}

fn living(results: &Results) -> Target {
    const SANDBOXES: u64 = 1000;
    let found = results.alive.as_ref();
    let ratio = found.map(|alive| alive.beside_all_p50_us / alive.beside_one_p50_us);
    Target {
        what: "`1+1` beside 1,000 living sandboxes, against beside one",
        wanted: "<= 2 x",
        measured: found.zip(ratio).map_or_else(
            || NOT_MEASURED.to_owned(),
            |(alive, ratio)| format!("{} x beside {}", number(ratio), alive.living),
        ),
        met: found
            .zip(ratio)
            .and_then(|(alive, ratio)| (alive.living >= SANDBOXES).then_some(ratio <= 2.0)),
    }
}

const NOT_MEASURED: &str = "not measured";

fn at_most(
    what: &'static str,
    wanted: &'static str,
    found: Option<f64>,
    bound: f64,
    unit: &str,
) -> Target {
    shown(what, wanted, found, unit, |value| value <= bound)
}

fn at_least(
    what: &'static str,
    wanted: &'static str,
    found: Option<f64>,
    bound: f64,
    unit: &str,
) -> Target {
    shown(what, wanted, found, unit, |value| value >= bound)
}

fn shown(
    what: &'static str,
    wanted: &'static str,
    found: Option<f64>,
    unit: &str,
    met: impl Fn(f64) -> bool,
) -> Target {
    Target {
        what,
        wanted,
        measured: found.map_or_else(
            || NOT_MEASURED.to_owned(),
            |value| format!("{} {unit}", number(value)),
        ),
        met: found.map(met),
    }
}

/// Three digits that matter.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
