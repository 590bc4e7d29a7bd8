//! Runs the sandbox tests a second time as a user without any privilege.

use std::{
    ffi::OsString,
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, id},
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::Context;

use crate::{
    process::{Ran, command, is_root, run},
    second_try,
    workspace::{Workspace, copy_executable, reachable_by_all},
};

/// `nobody`: every system knows it, and it owns nothing.
pub(crate) const USER: u32 = 65534;

/// What an ordinary login has on PATH; root's own may lead into `/root`.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Places that were made.
static PLACES: AtomicUsize = AtomicUsize::new(0);

/// Why such a group does nothing for a developer.
pub(crate) const ALREADY: &str = "not root: the tests already ran as an ordinary user";

/// Runs a test binary as `nobody`, with a home of its own. Does nothing for a developer who is
/// an ordinary user anyway: the same tests ran as such before.
///
/// # Errors
///
/// The tests failed, or the place for them could not be made.
pub(crate) fn run_tests(
    tests: &Path,
    arguments: &[&str],
    variables: &[(&str, OsString)],
    workspace: &Workspace,
    log: &File,
) -> anyhow::Result<Ran> {
    if !is_root() {
        return Ok(Ran::Nothing(ALREADY));
    }
    let place = Place::make(tests, workspace, log)?;
    let mut tests = place.command(workspace);
    tests.envs(variables.iter().cloned());
    second_try::run_tests(tests.arg(&place.tests).args(arguments), log)
}

/// A directory that `nobody` can read, with the binaries and an own home in it. Gone on drop.
struct Place {
    directory: PathBuf,
    home: PathBuf,
    tests: PathBuf,
    tools: PathBuf,
}

impl Place {
    fn make(tests: &Path, workspace: &Workspace, log: &File) -> anyhow::Result<Self> {
        // Two groups may run at once. Short: sockets lie below it, whose paths have 107 bytes.
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        let name = format!("forge-tests-{}-{number}", id());
        // A checkout below /root is closed to others: then everything goes to /tmp.
        let reachable = reachable_by_all(&workspace.target.join("any"));
        let parent = if reachable {
            workspace.target.clone()
        } else {
            PathBuf::from("/tmp")
        };
        let directory = parent.join(name);
        fs::create_dir(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let place = Self {
            home: directory.join("home"),
            tests: directory.join("it"),
            tools: if reachable {
                workspace.tools.clone()
            } else {
                directory.join("test-tools")
            },
            directory,
        };
        place.fill(tests, workspace, reachable, log)?;
        Ok(place)
    }

    fn fill(
        &self,
        tests: &Path,
        workspace: &Workspace,
        reachable: bool,
        log: &File,
    ) -> anyhow::Result<()> {
        fs::set_permissions(&self.directory, Permissions::from_mode(0o755))?;
        copy_executable(tests, &self.tests)?;
        copy_executable(&workspace.binary(), &self.directory.join("mcp-forge"))?;
        copy_executable(
            &workspace.control_binary,
            &self.directory.join("mcp-forge-control"),
        )?;
        for directory in [&self.home, &self.home.join("tmp")] {
            fs::create_dir(directory)?;
            fs::set_permissions(directory, Permissions::from_mode(0o700))?;
            chown(directory, Some(USER), Some(USER))?;
        }
        if reachable {
            return Ok(());
        }
        run(
            command("cp")
                .arg("-a")
                .arg(&workspace.tools)
                .arg(&self.tools),
            log,
        )
    }

    fn command(&self, workspace: &Workspace) -> Command {
        let mut setpriv = command("setpriv");
        setpriv.args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "--inh-caps=-all",
        ]);
        setpriv.env_clear().env("PATH", PATH).env("LANG", "C.UTF-8");
        setpriv
            .env("HOME", &self.home)
            .env("TMPDIR", self.home.join("tmp"))
            .current_dir(&self.home);
        setpriv.env("FORGE_TEST_BINARY", self.directory.join("mcp-forge"));
        setpriv.env(
            "FORGE_TEST_CONTROL_BINARY",
            self.directory.join("mcp-forge-control"),
        );
        setpriv.env("FORGE_TEST_TOOLS", &self.tools);
        setpriv
            .env("INSTA_UPDATE", "no")
            .env("INSTA_WORKSPACE_ROOT", &workspace.root);
        setpriv
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            println!(
                "note    {} could not be removed: {error}",
                self.directory.display()
            );
        }
    }
}
