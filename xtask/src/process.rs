//! Starts programs: no terminal, no stdin, a time limit, output into a group's log.

use std::{
    env,
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, bail};

/// Seconds after which a program is taken to hang.
const TIME_LIMIT: &str = "3600";

/// What a group that did not fail did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// Its tests, all of which passed.
    Tests,
    /// Its tests; these of them failed beside others, and passed alone. Shown, and never counted as
    /// passed.
    Unsteady(Vec<String>),
    /// Nothing, for this reason. Shown, and never counted as passed.
    Nothing(&'static str),
}

/// A command that cannot hang for ever and cannot read from us.
#[expect(
    clippy::disallowed_methods,
    reason = "running programs is what xtask does"
)]
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    // --foreground: Ctrl-C on a terminal ends the tests too.
    command
        .args(["--foreground", "--kill-after=10", TIME_LIMIT])
        .arg(program);
    command.stdin(Stdio::null());
    command
}

/// A program without that time limit: for what is measured, and for services.
#[expect(
    clippy::disallowed_methods,
    reason = "running programs is what xtask does"
)]
pub(crate) fn program(name: impl AsRef<OsStr>) -> Command {
    Command::new(name)
}

/// Runs to the end with both outputs in `log`.
///
/// # Errors
///
/// It could not be started, or did not exit with 0.
pub(crate) fn run(command: &mut Command, log: &File) -> anyhow::Result<()> {
    let words: Vec<_> = command
        .get_args()
        .skip(3)
        .map(OsStr::to_string_lossy)
        .collect();
    let words = words.join(" ");
    let status = command
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?)
        .status()
        .context("cannot start `timeout` of coreutils")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(124 | 137) => bail!("`{words}` took more than {TIME_LIMIT} s and was ended"),
        Some(127) => bail!("`{words}`: program not found"),
        _ => bail!("`{words}` failed: {status}"),
    }
}

/// Whether it runs and exits with 0; its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The first program of this name on PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// Whether we are root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    Path::new("/proc/self")
        .metadata()
        .is_ok_and(|metadata| metadata.uid() == 0)
}
