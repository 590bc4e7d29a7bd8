//! Where things are.

use std::{
    env,
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// The places a chore uses, all absolute.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The checkout.
    pub(crate) root: PathBuf,
    /// Cargo's target directory.
    pub(crate) target: PathBuf,
    /// npm packages and the Python environment for tests: [`crate::install`] fills it.
    pub(crate) tools: PathBuf,
    /// The binary of test builds with feature `negative-controls`.
    pub(crate) control_binary: PathBuf,
    logs: PathBuf,
}

impl Workspace {
    /// # Errors
    ///
    /// The target directory cannot be written.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask lies in the workspace's root")?
            .to_owned();
        let target = env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root.join("target"), |dir| root.join(dir));
        let logs = target.join("xtask");
        fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
        Ok(Self {
            tools: target.join("test-tools"),
            control_binary: target.join("negative-controls/mcp-forge"),
            root,
            target,
            logs,
        })
    }

    /// The binary under test.
    pub(crate) fn binary(&self) -> PathBuf {
        self.target.join("debug/mcp-forge")
    }

    /// The interpreter that has the MCP SDK, numpy, pandas and matplotlib.
    pub(crate) fn python(&self) -> PathBuf {
        self.tools.join("venv/bin/python")
    }

    /// The interpreter that has FastMCP and schemathesis.
    pub(crate) fn python_of_peers(&self) -> PathBuf {
        self.tools.join("peers/bin/python")
    }

    /// Where a group's output is kept.
    pub(crate) fn log_path(&self, group: &str) -> PathBuf {
        self.logs.join(format!("{group}.log"))
    }

    /// Starts a group's output anew.
    ///
    /// # Errors
    ///
    /// The file cannot be created.
    pub(crate) fn create_log(&self, group: &str) -> anyhow::Result<File> {
        let path = self.log_path(group);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        options
            .open(&path)
            .with_context(|| format!("cannot create {}", path.display()))
    }
}

/// Whether every directory above `path` can be passed by any user: `/root` usually cannot.
pub(crate) fn reachable_by_all(path: &Path) -> bool {
    path.ancestors().skip(1).all(|directory| {
        fs::metadata(directory).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0)
    })
}

/// Replaces `to`, which another process may be running.
pub(crate) fn copy_executable(from: &Path, to: &Path) -> anyhow::Result<()> {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory)?;
    }
    let beside = to.with_extension("new");
    fs::copy(from, &beside).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::rename(&beside, to).with_context(|| format!("cannot create {}", to.display()))
}
