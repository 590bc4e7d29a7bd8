//! `cargo xtask bench --environments`: what an environment costs, against plain `uv`, in one run.
//!
//! Rounds take turns: a build into an empty virtual environment by `uv` alone, the same with bytecode,
//! the same packages as an environment, the same request again, and turns with and without it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    path::PathBuf,
    process::Command,
    time::Instant,
};

use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    machine,
    programs::{McpRows, McpServer},
    results::Machine,
    statistics::Series,
    tools::Tools,
    watchdog::Watchdog,
};
use crate::{
    install::install_pypi,
    process::{program, run},
    workspace::Workspace,
};

/// What is built: pure Python and C, some 100 MB of wheels.
const PACKAGES: [&str; 5] = ["numpy", "pandas", "scikit-learn", "matplotlib", "requests"];

/// The installer, for both sides.
const UV: &[&str] = &["uv==0.13.9"];

/// Turns of each kind in a round.
const TURNS: u32 = 20;

/// Two rows, and at most how many times the first may take the second.
const TARGETS: [(&str, &str, &str, f64); 5] = [
    (
        "build",
        "uv",
        "cold build against plain `uv`, cache warm",
        1.3,
    ),
    (
        "build",
        "uv-bytecode",
        "the same against `uv --compile-bytecode`",
        1.3,
    ),
    (
        "first-turn",
        "cold-turn",
        "first turn in a new environment against a cold start",
        1.2,
    ),
    (
        "later-turn",
        "bare-turn",
        "later turns against the bare tier",
        1.1,
    ),
    (
        "again",
        "limit-50-ms",
        "the same build again, in 50 ms",
        1.0,
    ),
];

/// What is kept of a run.
#[derive(Debug, Serialize)]
struct Results {
    date: String,
    version: String,
    machine: Machine,
    packages: Vec<String>,
    size_mb: f64,
    rounds: u32,
    /// Median milliseconds of each row.
    medians_ms: BTreeMap<&'static str, f64>,
    /// Row against row: the median over rounds, the target.
    ratios: Vec<(String, f64, f64)>,
}

/// One side of the comparison.
struct Bench<'a> {
    tools: &'a Tools,
    place: PathBuf,
    log: &'a File,
    rows: BTreeMap<&'static str, Series>,
}

/// Measures, and writes `environments.md` and `environments.json` into the directory.
///
/// # Errors
///
/// Something could not be installed, built or written.
pub(super) fn measure(
    (tools, workspace): (&Tools, &Workspace),
    rounds: u32,
    output: &std::path::Path,
    log: &File,
) -> anyhow::Result<()> {
    install_pypi(&tools.directory.join("uv"), UV, log)?;
    let place = tools.directory.join("environments");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place)?;
    let mut bench = Bench {
        tools,
        place,
        log,
        rows: BTreeMap::new(),
    };
    let watchdog = Watchdog::start();
    let mut forge = bench.server("warm", true, workspace, &watchdog)?;
    let mut cold = bench.server("cold", false, workspace, &watchdog)?;
    println!(
        "build   {} once, which fills the caches",
        PACKAGES.join(" ")
    );
    let built = build(&mut forge, "first", &PACKAGES.map(str::to_owned))?.1;
    let packages: Vec<String> = serde_json::from_value(built["installed_packages"].clone())?;
    fs::write(bench.place.join("pinned.txt"), packages.join("\n"))?;
    delete(&mut forge, "first")?;
    bench.plain(&[])?;
    for round in 0..rounds {
        println!("round   {} of {rounds}", round + 1);
        bench.round(round, &packages, (&mut forge, &mut cold))?;
    }
    let results = bench.results(workspace, packages, rounds, built["size_mb"].as_f64())?;
    let page = markdown(&results);
    fs::write(output.join("environments.md"), &page)?;
    let json = serde_json::to_string_pretty(&results)? + "\n";
    fs::write(output.join("environments.json"), json)?;
    println!("\n{page}");
    Ok(())
}

impl Bench<'_> {
    fn server(
        &self,
        name: &str,
        is_warm: bool,
        workspace: &Workspace,
        watchdog: &Watchdog,
    ) -> anyhow::Result<McpServer> {
        let rows = McpRows {
            call: "turn",
            ping: None,
            tool: "execute_python",
            parameter: "code",
        };
        let mut server = program(&self.tools.binary);
        server
            .arg("--data-dir")
            .arg(self.place.join(name))
            .arg("serve")
            .env("MCP_FORGE_ENVIRONMENT_BUILDER_UV", self.uv())
            .env(
                "MCP_FORGE_ENVIRONMENT_BUILDER_BUILD_RATE_LIMIT_REQUESTS",
                "100000",
            )
            .env("MCP_FORGE_WARM_ENABLED", is_warm.to_string())
            .env("MCP_FORGE_EXECUTION_DEFAULT_CPU_QUOTA", "100000")
            .env("MCP_FORGE_PYTHON_PATH", "/usr/bin/python3.11");
        let log = workspace.log_path(&format!("bench-environments-{name}"));
        McpServer::start(rows, server, &log, watchdog)
    }

    fn uv(&self) -> PathBuf {
        self.tools.directory.join("uv/bin/uv")
    }

    fn round(
        &mut self,
        round: u32,
        packages: &[String],
        (forge, cold): (&mut McpServer, &mut McpServer),
    ) -> anyhow::Result<()> {
        let add = |rows: &mut BTreeMap<&'static str, Series>, row, value| {
            rows.entry(row).or_default().add(round, value);
        };
        let value = self.plain(&[])?;
        add(&mut self.rows, "uv", value);
        let value = self.plain(&["--compile-bytecode"])?;
        add(&mut self.rows, "uv-bytecode", value);
        let name = format!("round-{round}");
        let (taken, built) = build(forge, &name, packages)?;
        ensure!(built["cache_hit"] == false, "it was there: {built}");
        add(&mut self.rows, "build", taken);
        let mut backwards = packages.to_vec();
        backwards.reverse();
        let (taken, built) = build(forge, "again", &backwards)?;
        ensure!(built["cache_hit"] == true, "it was built again: {built}");
        add(&mut self.rows, "again", taken);
        add(&mut self.rows, "limit-50-ms", 50.0);
        let (taken, _) = turn(cold, None)?;
        add(&mut self.rows, "cold-turn", taken);
        let (taken, _) = turn(forge, Some(&name))?;
        add(&mut self.rows, "first-turn", taken);
        // What is made ahead is made after the first turn.
        std::thread::sleep(std::time::Duration::from_secs(2));
        let (mut later, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            bare.push(turn(forge, None)?.0);
            std::thread::sleep(std::time::Duration::from_millis(60));
            later.push(turn(forge, Some(&name))?.0);
            std::thread::sleep(std::time::Duration::from_millis(60));
        }
        for (row, values) in [("later-turn", later), ("bare-turn", bare)] {
            let median = super::statistics::percentile(values, 0.5).context("no turns")?;
            add(&mut self.rows, row, median);
        }
        delete(forge, &name)?;
        delete(forge, "again")
    }

    /// Milliseconds that `uv` alone takes for the same packages, into an empty environment.
    fn plain(&self, more: &[&str]) -> anyhow::Result<f64> {
        let venv = self.place.join("venv");
        if venv.exists() {
            fs::remove_dir_all(&venv)?;
        }
        let uv = |arguments: &[&str]| -> Command {
            let mut uv = program(self.uv());
            uv.args(arguments)
                .env("UV_CACHE_DIR", self.place.join("plain-cache"));
            uv
        };
        let started = Instant::now();
        let mut made = uv(&[
            "venv",
            "--python",
            "/usr/bin/python3.11",
            "--no-config",
            "--quiet",
        ]);
        run(made.arg(&venv), self.log)?;
        let mut install = uv(&[
            "pip",
            "install",
            "--no-config",
            "--only-binary",
            ":all:",
            "--quiet",
        ]);
        install
            .args(more)
            .arg("--python")
            .arg(venv.join("bin/python"))
            .arg("-r")
            .arg(self.place.join("pinned.txt"));
        run(&mut install, self.log)?;
        Ok(started.elapsed().as_secs_f64() * 1000.0)
    }

    fn results(
        &self,
        workspace: &Workspace,
        packages: Vec<String>,
        rounds: u32,
        size_mb: Option<f64>,
    ) -> anyhow::Result<Results> {
        let row = |name: &str| self.rows.get(name).context("a row is missing");
        let medians = self.rows.iter().map(|(name, series)| {
            let median = series.median().context("a row is empty")?;
            Ok((*name, (median * 100.0).round() / 100.0))
        });
        let mut ratios = Vec::new();
        for (ours, theirs, about, target) in TARGETS {
            let ratio = row(ours)?.paired(row(theirs)?, |ours, theirs| ours / theirs);
            let ratio = ratio.context("no round has both")?;
            ratios.push((about.to_owned(), (ratio * 1000.0).round() / 1000.0, target));
        }
        Ok(Results {
            date: machine::now()?,
            version: machine::version(&workspace.root),
            machine: machine::read()?,
            packages,
            size_mb: size_mb.unwrap_or_default(),
            rounds,
            medians_ms: medians.collect::<anyhow::Result<_>>()?,
            ratios,
        })
    }
}

fn build(server: &mut McpServer, name: &str, packages: &[String]) -> anyhow::Result<(f64, Value)> {
    let arguments = json!({"name": name, "packages": packages});
    call(server, "build_custom_environment", &arguments)
}

fn delete(server: &mut McpServer, name: &str) -> anyhow::Result<()> {
    call(server, "delete_custom_environment", &json!({"name": name})).map(drop)
}

fn turn(server: &mut McpServer, name: Option<&str>) -> anyhow::Result<(f64, Value)> {
    let mut arguments = json!({"code": "1 + 1"});
    if let Some(name) = name {
        arguments["custom_image"] = name.into();
    }
    let (taken, answer) = call(server, "execute_python", &arguments)?;
    ensure!(answer["result"] == 2, "wrong answer: {answer}");
    Ok((taken, answer))
}

/// Milliseconds, and the structured answer.
fn call(server: &mut McpServer, tool: &str, arguments: &Value) -> anyhow::Result<(f64, Value)> {
    let (taken, mut result) =
        server.request("tools/call", &json!({"name": tool, "arguments": arguments}))?;
    ensure!(result["isError"] != true, "{tool}: {}", result["content"]);
    Ok((taken / 1000.0, result["structuredContent"].take()))
}

fn markdown(results: &Results) -> String {
    let mut page = format!(
        "# Environments against plain uv\n\nMade by `cargo xtask bench --environments` on {} with {}: {} rounds of {} packages ({} MB installed), \
         caches warm. Rows of a round take turns; ratios are medians over the rounds. A build is a call over MCP: it resolves, judges, installs and compiles \
         in a job, imports every module in a sandbox, and publishes.\n\n| what | ratio | target | |\n| --- | --- | --- | --- |\n",
        results.date,
        results.version,
        results.rounds,
        results.packages.len(),
        results.size_mb
    );
    for (about, ratio, target) in &results.ratios {
        let verdict = if ratio <= target { "met" } else { "missed" };
        // Writing to a String cannot fail.
        let _ = writeln!(page, "| {about} | {ratio} | {target} | {verdict} |");
    }
    page.push_str("\n| row | median, ms |\n| --- | --- |\n");
    for (row, median) in &results.medians_ms {
        let _ = writeln!(page, "| {row} | {median} |");
    }
    page
}
