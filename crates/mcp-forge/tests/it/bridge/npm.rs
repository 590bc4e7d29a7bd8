//! The public MCP servers from npm, installed once into the target directory.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

const PACKAGES: [(&str, &str); 2] = [
    ("server-everything", "2026.8.31"),
    ("server-filesystem", "2026.8.31"),
];

/// Path of a server's `index.js`, to be run with `node`. Fails loudly where npm is missing.
pub(crate) fn server(name: &str) -> String {
    static TOOLS: OnceLock<PathBuf> = OnceLock::new();
    let tools = TOOLS.get_or_init(install);
    let script = tools.join(format!(
        "node_modules/@modelcontextprotocol/{name}/dist/index.js"
    ));
    assert!(script.is_file(), "{} is not installed", script.display());
    script.to_str().unwrap().to_owned()
}

fn install() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let versions = PACKAGES
        .map(|(name, version)| format!("{name}-{version}"))
        .join("-");
    let tools = target.join(format!("npm-{versions}"));
    if tools.is_dir() {
        return tools;
    }
    // Aside, then renamed: a run that is killed half-way leaves nothing that looks complete.
    let aside = tempfile::tempdir_in(target).unwrap();
    #[expect(
        clippy::disallowed_methods,
        reason = "the test installs what it tests against"
    )]
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--prefix"])
        .arg(aside.path());
    npm.args(PACKAGES.map(|(name, version)| format!("@modelcontextprotocol/{name}@{version}")));
    let output = npm
        .output()
        .expect("npm must be installed: the bridge is tested against real servers");
    assert!(
        output.status.success(),
        "npm install failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    if std::fs::rename(aside.path(), &tools).is_err() {
        assert!(
            tools.is_dir(),
            "{} could not be put in place",
            tools.display()
        );
    }
    tools
}
