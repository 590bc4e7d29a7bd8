//! The MCP project's conformance suite, for what this program's own tools cannot show it.
//!
//! Its scenarios ask for tools, prompts and resources by name, so they are there: behind the same
//! addresses, gate, quotas, endpoint and sessions that serve everybody else. They are part of no
//! program. `tests/clients/conformance.mjs` starts the suite, here and against the program itself.

use std::{env, net::SocketAddr, path::Path, process::Stdio, sync::Arc};

use tokio_util::sync::CancellationToken;

use super::{Sources, serve, service};
use crate::{
    config::Config,
    http::{self, Bound},
    identity::Credentials,
    mcp::Endpoint,
};

mod fixture;
mod questions;
mod tasks;
mod tools;

use fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn conformance() {
    let directory = tempfile::tempdir().unwrap();
    let (served, address, token) = start(directory.path()).await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tools =
        env::var_os("FORGE_TEST_TOOLS").map_or_else(|| root.join("target/test-tools"), Into::into);
    let status = node(&tools)
        .arg(root.join("tests/clients/conformance.mjs"))
        .args(["fixture", &format!("http://{address}/mcp"), &token])
        .env("FORGE_TEST_TOOLS", tools)
        .stdin(Stdio::null())
        .status()
        .await
        .expect("`cargo xtask test --only conformance` installs what it needs");
    served.abort();
    assert!(status.success(), "the suite found something: {status}");
}

/// Serves the fixture at a free port, and says where, and what opens it.
async fn start(directory: &Path) -> (tokio::task::JoinHandle<()>, SocketAddr, String) {
    let environment = [("MCP_FORGE_WARM_ENABLED", "false")];
    let sources = Sources {
        data_dir: Some(directory.to_owned()),
        environment: environment
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..Sources::default()
    };
    let config = Config::load(&sources).unwrap().config;
    let bound = Bound::listen(&config.server, Some("127.0.0.1:0"))
        .await
        .unwrap();
    let address = bound.url().trim_start_matches("http://").parse().unwrap();
    config.create_data_dir().unwrap();
    let (tokens, made) = serve::open_tokens(&config).unwrap();
    let token = made.unwrap().reveal().to_owned();
    let credentials = Credentials {
        tokens,
        oauth: None,
    };
    let endpoint = Endpoint::of(&config, CancellationToken::new(), |_| Fixture::default());
    let service = service(config).unwrap();
    let signals = http::Signals::watch().unwrap();
    let served = tokio::spawn(async move {
        http::serve_mcp(
            Arc::clone(&service),
            endpoint,
            bound,
            credentials,
            None,
            signals,
        )
        .await;
    });
    (served, address, token)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the suite is a program for Node.js"
)]
fn node(tools: &Path) -> tokio::process::Command {
    let architecture = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "x64"
    };
    let package = format!("npm/node_modules/node-linux-{architecture}/bin/node");
    tokio::process::Command::new(tools.join(package))
}
