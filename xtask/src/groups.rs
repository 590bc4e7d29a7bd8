//! The groups of tests: what each is for, what it needs, and how it runs.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::Command,
};

use anyhow::Context;

use crate::{
    clients, install, ordinary_user, podman,
    process::{Ran, command, find_program, is_root, run},
    runner, second_try,
    workspace::{Workspace, copy_executable},
};

/// What runs a group; output goes to the file.
pub(crate) type Run = fn(&Workspace, &File) -> anyhow::Result<Ran>;

/// One group of tests.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) lane: Lane,
    /// Groups that must have passed before.
    pub(crate) after: &'static [&'static str],
    pub(crate) run: Run,
}

/// Which groups never run at the same time: those of one lane, and more as said there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Holds the lock on the target directory.
    Cargo,
    /// Looks on the host for what any sandbox left, mounts and cgroups: nothing else starts one
    /// meanwhile.
    Alone,
    /// Starts sandboxes, and looks at its own only.
    Sandbox,
    /// Starts containers, and looks at its own only; or is the ordinary user's, whose processes the
    /// kernel counts together with those of that user's containers.
    Container,
    /// Disturbs nobody.
    Any,
}

impl Lane {
    /// Whether groups of these lanes can run at the same time.
    pub(crate) fn stands(self, other: Self) -> bool {
        let starts_some = |lane| matches!(lane, Self::Alone | Self::Sandbox | Self::Container);
        let one_is_alone = self == Self::Alone || other == Self::Alone;
        let disturbed = one_is_alone && starts_some(self) && starts_some(other);
        self == Self::Any || (self != other && !disturbed)
    }
}

/// The groups of `cargo xtask test`. In each lane they run in this order.
pub(crate) fn test() -> Vec<Group> {
    const TOOLS: &[&str] = &["install", "build"];
    let group = |name, about, lane, after, run: Run| Group {
        name,
        about,
        lane,
        after,
        run,
    };
    vec![
        group(
            "install",
            "npm, PyPI and Debian packages that the tests use",
            Lane::Any,
            &[],
            install::install,
        ),
        group("fmt", "rustfmt has nothing to change", Lane::Any, &[], fmt),
        group(
            "build",
            "the binaries under test, with and without negative controls",
            Lane::Cargo,
            &[],
            build,
        ),
        group(
            "unit",
            "unit and snapshot tests",
            Lane::Cargo,
            &["build"],
            unit,
        ),
        group(
            "clippy",
            "no warnings in any target",
            Lane::Cargo,
            &[],
            clippy,
        ),
        group(
            "doc",
            "documentation builds without warnings",
            Lane::Cargo,
            &[],
            doc,
        ),
        group(
            "runner",
            "the Python side, with every Python found",
            Lane::Any,
            &[],
            runner::runner,
        ),
        group(
            "runner-packages",
            "the same with NumPy, pandas, matplotlib and IPython, and a kernel as the reference",
            Lane::Any,
            &["install"],
            runner::runner_packages,
        ),
        group(
            "images",
            "images of containers, built by the binary on Debian's packages",
            Lane::Container,
            TOOLS,
            podman::images,
        ),
        group(
            "integration",
            "real sandboxes, servers and files",
            Lane::Alone,
            TOOLS,
            integration,
        ),
        group(
            "integration-user",
            "the same as an ordinary user (when root)",
            Lane::Alone,
            TOOLS,
            integration_user,
        ),
        group(
            "environments",
            "environments from the public index, and hostile packages",
            Lane::Sandbox,
            TOOLS,
            environments,
        ),
        group(
            "environments-user",
            "the same as an ordinary user (when root)",
            Lane::Container,
            TOOLS,
            environments_user,
        ),
        group(
            "escape",
            "attacks, each with its negative control",
            Lane::Alone,
            TOOLS,
            escape,
        ),
        group(
            "escape-user",
            "the same as an ordinary user (when root)",
            Lane::Alone,
            TOOLS,
            escape_user,
        ),
        group(
            "podman",
            "the podman engine over a service of our own",
            Lane::Container,
            &["images"],
            podman_engine,
        ),
        group(
            "podman-user",
            "the same with an ordinary user's service (when root)",
            Lane::Container,
            &["images"],
            podman_engine_user,
        ),
        group(
            "sdk",
            "the official Python SDK and FastMCP against the binary",
            Lane::Sandbox,
            TOOLS,
            clients::sdk,
        ),
        group(
            "node",
            "the MCP Inspector and the TypeScript SDKs against the binary",
            Lane::Sandbox,
            TOOLS,
            clients::node,
        ),
        group(
            "conformance",
            "MCP's conformance suite against the binary, and against its front door with the suite's own tools",
            Lane::Sandbox,
            TOOLS,
            clients::conformance,
        ),
        group(
            "openapi",
            "schemathesis against the REST front door, by the document that it serves",
            Lane::Sandbox,
            TOOLS,
            clients::openapi,
        ),
    ]
}

/// The groups of `cargo xtask ci`.
pub(crate) fn ci() -> Vec<Group> {
    let mut groups = test();
    groups.push(Group {
        name: "deny",
        about: "advisories, licences and sources of all dependencies (cargo-deny)",
        lane: Lane::Any,
        after: &[],
        run: deny,
    });
    groups
}

/// Arguments as one would type them; none has a blank in it.
fn cargo(workspace: &Workspace, arguments: &str) -> Command {
    let mut cargo = command("cargo");
    cargo
        .args(arguments.split(' '))
        .current_dir(&workspace.root)
        .env("INSTA_UPDATE", "no")
        .env("CARGO_TERM_COLOR", "never");
    cargo
}

fn fmt(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    run(&mut cargo(workspace, "fmt --all --check"), log)?;
    Ok(Ran::Tests)
}

/// The build with negative controls comes first and is copied away; that of the tests makes the binary
/// under test as well. Both share every dependency, as long as they want the same features of them.
fn build(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    run(
        &mut cargo(
            workspace,
            "build --package mcp-forge --features negative-controls,test-clock",
        ),
        log,
    )?;
    copy_executable(&workspace.binary(), &workspace.control_binary)?;
    run(&mut cargo(workspace, "test --workspace --no-run"), log)?;
    Ok(Ran::Tests)
}

/// Without the one test that needs programs of others, which the group `conformance` has.
fn unit(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    let tests = "test --workspace --lib --bins -- --skip conformance::";
    run(&mut cargo(workspace, tests), log)?;
    Ok(Ran::Tests)
}

fn clippy(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    run(
        &mut cargo(workspace, "clippy --workspace --all-targets -- -D warnings"),
        log,
    )?;
    Ok(Ran::Tests)
}

fn doc(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    let mut doc = cargo(
        workspace,
        "doc --workspace --no-deps --document-private-items --features mcp-forge/test-clock",
    );
    run(doc.env("RUSTDOCFLAGS", "-D warnings"), log)?;
    Ok(Ran::Tests)
}

fn deny(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    if find_program("cargo-deny").is_none() {
        return Ok(Ran::Nothing(
            "cargo-deny is not installed (cargo install cargo-deny)",
        ));
    }
    run(&mut cargo(workspace, "deny check"), log)?;
    Ok(Ran::Tests)
}

/// The integration tests without those that have a group of their own.
const INTEGRATION: &[&str] = &[
    "--skip",
    "escape",
    "--skip",
    "contract::podman",
    "--skip",
    "podman::",
    "--skip",
    "environments::",
];
const ENVIRONMENTS: &[&str] = &["environments::", "--skip", "podman::"];
/// Gigabytes, which do not depend on who the user is; what only root can set up; and what needs a second
/// Python, which may lie where root alone can read.
const ENVIRONMENTS_ONCE: &[&str] = &[
    "--skip",
    "real_packages_are_built",
    "--skip",
    "only_root",
    "--skip",
    "another_python",
];
/// Tests become a stranger, or mount disks, which only root can.
const ONLY_ROOT: &[&str] = &["--skip", "a_process_of_another_user", "--skip", "only_root"];
const ESCAPE: &[&str] = &["escape", "--skip", "podman::"];

fn integration(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    if is_root() {
        run_integration(INTEGRATION, workspace, log)
    } else {
        run_integration(&[INTEGRATION, ONLY_ROOT].concat(), workspace, log)
    }
}

fn environments(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    if is_root() {
        run_integration(ENVIRONMENTS, workspace, log)
    } else {
        run_integration(&[ENVIRONMENTS, ONLY_ROOT].concat(), workspace, log)
    }
}

fn environments_user(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    ordinary_user::run_tests(
        &integration_test_binary(workspace)?,
        &[ENVIRONMENTS, ENVIRONMENTS_ONCE].concat(),
        &[],
        workspace,
        log,
    )
}

fn escape(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    run_integration(ESCAPE, workspace, log)
}

fn integration_user(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    ordinary_user::run_tests(
        &integration_test_binary(workspace)?,
        &[INTEGRATION, ONLY_ROOT].concat(),
        &[],
        workspace,
        log,
    )
}

fn escape_user(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    ordinary_user::run_tests(
        &integration_test_binary(workspace)?,
        ESCAPE,
        &[],
        workspace,
        log,
    )
}

/// Tests that need podman: named so, in the contract of all engines and by themselves.
const PODMAN: &[&str] = &["contract::podman", "podman::", "--skip"];

/// Of these, those that look at limits that an ordinary user's service does not have, and those that
/// look at their absence.
const LIMITS: &str = "podman::limits";
const NO_LIMITS: &str = "podman::rootless";

fn podman_engine(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    let service = podman::Service::start(podman::Place::of_this_user(workspace)?, log)?;
    let left_out = if is_root() { NO_LIMITS } else { LIMITS };
    let mut tests = integration_tests(&[PODMAN, &[left_out]].concat(), workspace)?;
    second_try::run_tests(tests.envs(service.test_variables()?), log)
}

fn podman_engine_user(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    if !is_root() {
        return Ok(Ran::Nothing(ordinary_user::ALREADY));
    }
    let service = podman::Service::start(podman::Place::of_ordinary_user(workspace, log)?, log)?;
    service.build_images(workspace, log)?;
    ordinary_user::run_tests(
        &integration_test_binary(workspace)?,
        &[PODMAN, &[LIMITS]].concat(),
        &service.test_variables()?,
        workspace,
        log,
    )
}

fn run_integration(arguments: &[&str], workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    second_try::run_tests(&mut integration_tests(arguments, workspace)?, log)
}

fn integration_tests(arguments: &[&str], workspace: &Workspace) -> anyhow::Result<Command> {
    let mut tests = command(integration_test_binary(workspace)?);
    tests
        .args(arguments)
        // The directory that `cargo test` would use.
        .current_dir(workspace.root.join("crates/mcp-forge"))
        .env("FORGE_TEST_BINARY", workspace.binary())
        .env("FORGE_TEST_CONTROL_BINARY", &workspace.control_binary)
        .env("FORGE_TEST_TOOLS", &workspace.tools)
        .env("INSTA_UPDATE", "no")
        .env("INSTA_WORKSPACE_ROOT", &workspace.root);
    Ok(tests)
}

/// The integration tests.
fn integration_test_binary(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    test_binary("tests/it/main.rs", "it", workspace)
}

/// Run directly, so that it does not wait for the lock that clippy holds meanwhile. Cargo's build
/// printed its name: `Executable tests/it/main.rs (target/debug/deps/it-0123456789abcdef)`.
pub(crate) fn test_binary(
    source: &str,
    name: &str,
    workspace: &Workspace,
) -> anyhow::Result<PathBuf> {
    let log = fs::read_to_string(workspace.log_path("build"))
        .context("the group `build` leaves its log")?;
    let prefix = format!("Executable {source} (");
    let path = log
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix(&prefix)?.strip_suffix(')'))
        .find(|path| path.contains(&format!("/{name}-")))
        .with_context(|| format!("cargo did not print where the tests of {source} are"))?;
    Ok(workspace.root.join(path))
}
