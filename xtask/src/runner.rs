//! The groups that test the Python side, which runs in sandboxes, without one.

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{bail, ensure};

use crate::{
    process::{Ran, command, find_program, run, succeeds},
    workspace::Workspace,
};

pub(crate) fn runner(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    let pythons: Vec<_> = (10..=14)
        .filter_map(|minor| usable_python(&format!("python3.{minor}")))
        .collect();
    ensure!(
        !pythons.is_empty(),
        "no Python from 3.10 to 3.14 was found on PATH; install python3.11"
    );
    // These tests wait more than they compute, so the interpreters take their turns together.
    let outcomes: Vec<_> = thread::scope(|scope| {
        let tests: Vec<_> = pythons
            .iter()
            .map(|python| scope.spawn(|| runner_with(python, workspace)))
            .collect();
        tests
            .into_iter()
            .map(|tests| tests.join().unwrap_or_else(|_| bail!("xtask panicked")))
            .collect()
    });
    for python in &pythons {
        let mut output = File::open(workspace.log_path(&log_name(python)))?;
        io::copy(&mut output, &mut &*log)?;
    }
    let failures: Vec<_> = outcomes
        .into_iter()
        .filter_map(|outcome| outcome.err().map(|error| format!("{error:#}")))
        .collect();
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(Ran::Tests)
}

/// None of these tests may be left out for want of a package.
pub(crate) fn runner_packages(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    let mut tests = runner_tests(&workspace.python());
    tests.env("REQUIRE_PACKAGES", "1");
    run(tests.current_dir(&workspace.root), log)?;
    Ok(Ran::Tests)
}

fn runner_with(python: &Path, workspace: &Workspace) -> anyhow::Result<()> {
    let log = workspace.create_log(&log_name(python))?;
    run(runner_tests(python).current_dir(&workspace.root), &log)
}

fn runner_tests(python: &Path) -> Command {
    // -s: without the packages of whoever runs the tests.
    let mut tests = command(python);
    tests.args([
        "-s",
        "-B",
        "-m",
        "unittest",
        "discover",
        "-s",
        "runner/tests",
    ]);
    tests
}

fn log_name(python: &Path) -> String {
    let name = python.file_name().unwrap_or_default().to_string_lossy();
    format!("runner-{name}")
}

/// On PATH, or among pyenv's: it puts a shim on PATH for every version, but lets only some run.
fn usable_python(name: &str) -> Option<PathBuf> {
    let versions = env::var_os("PYENV_ROOT").map(|root| Path::new(&root).join("versions"));
    let of_pyenv = versions
        .and_then(|versions| fs::read_dir(versions).ok())
        .into_iter()
        .flatten()
        .filter_map(|version| Some(version.ok()?.path().join("bin").join(name)))
        .filter(|python| python.is_file());
    find_program(name)
        .into_iter()
        .chain(of_pyenv)
        .find(|python| succeeds(command(python).args(["-c", "import sys"])))
}
