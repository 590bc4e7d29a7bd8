//! The groups in which programs of others are the client: SDKs, and suites that judge a server.

use std::{fs::File, path::Path, process::Command};

use crate::{
    groups::test_binary,
    install,
    process::{Ran, command, run},
    workspace::Workspace,
};

pub(crate) fn sdk(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    python(&workspace.python(), "tests/clients/sdk.py", workspace, log)?;
    let fastmcp = "tests/clients/fastmcp_http.py";
    python(&workspace.python_of_peers(), fastmcp, workspace, log)
}

pub(crate) fn node(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    let mut node = command(install::node(workspace));
    drive(node.arg("tests/clients/node.mjs"), workspace, log)
}

/// The suite's scenarios against the program, which has few of the tools they ask for, and against the
/// fixture, which has them all.
pub(crate) fn conformance(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    let mut node = command(install::node(workspace));
    node.args(["tests/clients/conformance.mjs", "program"]);
    drive(&mut node, workspace, log)?;
    let mut fixture = command(test_binary("unittests src/lib.rs", "mcp_forge", workspace)?);
    fixture.args(["conformance::", "--nocapture"]);
    drive(&mut fixture, workspace, log)
}

pub(crate) fn openapi(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    let openapi = "tests/clients/openapi.py";
    python(&workspace.python_of_peers(), openapi, workspace, log)
}

fn python(
    interpreter: &Path,
    driver: &str,
    workspace: &Workspace,
    log: &File,
) -> anyhow::Result<Ran> {
    let mut python = command(interpreter);
    drive(python.args(["-B", driver]), workspace, log)
}

/// Runs a client's driver against the built binary.
fn drive(driver: &mut Command, workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    driver
        .current_dir(&workspace.root)
        .env("FORGE_TEST_BINARY", workspace.binary())
        .env("FORGE_TEST_TOOLS", &workspace.tools);
    run(driver, log)?;
    Ok(Ran::Tests)
}
