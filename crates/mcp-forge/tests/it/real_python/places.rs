//! Runs one module of CPython's tests in three places, with the same interpreter.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use mcp_forge::{config::Config, turn::Outcome};

use crate::sandbox::{config, run_with};

/// The interpreter whose own tests Debian packages.
pub(super) const PYTHON: &str = "/usr/bin/python3.11";

/// Where that package puts them.
pub(super) const TESTS: &str = "/usr/lib/python3.11/test";

/// Seconds for one module. The slowest takes two minutes on an idle machine.
const MODULE_SECONDS: u64 = 540;

const PROGRAM: &str = include_str!("run_cases.py");
const DRIVER: &str = include_str!("drive.py");

/// How a case ended, and a little of why.
pub(super) type Ending = (String, String);

/// Every case of one module that was reached.
pub(super) type Cases = BTreeMap<String, Ending>;

/// Where the cases run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// On this machine, as an ordinary user.
    Outside,
    /// Under bubblewrap, as an ordinary user.
    Bubblewrap,
    /// In a sandbox of the native engine.
    Sandbox,
}

/// Runs one module in one place.
pub(super) async fn run(place: Place, module: &str) -> Cases {
    let code = code(module);
    let output = match place {
        Place::Outside => on_host(&[], code).await,
        Place::Bubblewrap => on_host(BUBBLEWRAP, code).await,
        Place::Sandbox => in_sandbox(&code).await,
    };
    let last = output.lines().last().unwrap_or_default();
    serde_json::from_str(last)
        .unwrap_or_else(|error| panic!("{module} {place:?}: {error}: {output}"))
}

/// A sandbox as a request for heavy work would get it.
pub(super) fn roomy() -> Config {
    let mut config = config();
    config.native.python = Some(PYTHON.into());
    config.default_limits.timeout = Duration::from_secs(MODULE_SECONDS + 60);
    config.default_limits.memory_bytes = 2 << 30;
    config.default_limits.pids = 200;
    config.default_limits.cpu_quota_us = 200_000;
    config.default_limits.storage_bytes = 2 << 30;
    config
}

fn code(module: &str) -> String {
    // A JSON string is also a Python string.
    let program = serde_json::to_string(PROGRAM).unwrap();
    format!("PROGRAM = {program}\nMODULE = {module:?}\nSECONDS = {MODULE_SECONDS}\n{DRIVER}")
}

async fn in_sandbox(code: &str) -> String {
    let report = run_with(&roomy(), code).await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    assert_eq!(report.stdout.dropped_bytes, 0);
    report.stdout.text
}

/// The same kind of root as ours: programs and libraries read-only, private directories, no network.
const BUBBLEWRAP: &[&str] = &[
    "bwrap",
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--uid",
    "1000",
    "--gid",
    "1000",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/sbin",
    "/sbin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--ro-bind",
    "/etc/passwd",
    "/etc/passwd",
    "--ro-bind",
    "/etc/group",
    "/etc/group",
    "--ro-bind",
    "/etc/ssl/certs",
    "/etc/ssl/certs",
    "--ro-bind",
    "/etc/alternatives",
    "/etc/alternatives",
    "--ro-bind",
    "/etc/ld.so.cache",
    "/etc/ld.so.cache",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "--tmpfs",
    "/workspace",
    "--chdir",
    "/workspace",
    "--setenv",
    "HOME",
    "/workspace",
    "--setenv",
    "TMPDIR",
    "/tmp",
];

/// As an ordinary user: the current one or, when that is root, nobody.
const NOBODY: &[&str] = &[
    "setpriv",
    "--reuid",
    "65534",
    "--regid",
    "65534",
    "--clear-groups",
];

async fn on_host(wrapper: &[&str], code: String) -> String {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let user = if rustix::process::geteuid().is_root() {
        NOBODY
    } else {
        &[]
    };
    let words: Vec<String> = [user, wrapper, &[PYTHON, "-c"]]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .chain([code])
        .collect();
    tokio::task::spawn_blocking(move || output_of(&words, home.path()))
        .await
        .unwrap()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the places to compare a sandbox with"
)]
fn output_of(words: &[String], home: &Path) -> String {
    let output = Command::new(&words[0])
        .args(&words[1..])
        .current_dir(home)
        .env_clear()
        .envs([
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("LANG", "C.UTF-8"),
            ("TERM", "dumb"),
            ("USER", "nobody"),
        ])
        .env("HOME", home)
        .env("TMPDIR", home)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", words[0]));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        text
    } else {
        panic!(
            "{:?}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
    }
}
