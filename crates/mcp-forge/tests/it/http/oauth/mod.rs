//! Access tokens of other issuers: real keys, a server that publishes them, and tokens of every kind.

mod forged;
mod issuer;
mod keys;
mod metadata;
mod owners;

use serde_json::Value;

use super::served::{Reply, Served, token};
use issuer::{Issuer, now};

/// What the tests' services are called; nobody looks it up.
const RESOURCE: &str = "https://forge.example/mcp";

/// A server that trusts some issuers, each under its name; `more` are further lines of `server.oauth`.
fn serve(issuers: &[(&str, &Issuer)], more: &str) -> Served {
    let entries: Vec<String> = issuers
        .iter()
        .map(|(name, issuer)| {
            let (own, keys) = (issuer.name(), issuer.jwks_url());
            format!("      {name}: {{issuer: \"{own}\", jwks_url: \"{keys}\"}}\n")
        })
        .collect();
    serve_with(&entries.concat(), more)
}

/// The same with the issuers as they are in the file.
fn serve_with(issuers: &str, more: &str) -> Served {
    serve_trusting(issuers, more, &[])
}

/// The same with variables that say whose certificates are good.
fn serve_trusting(issuers: &str, more: &str, variables: &[(&str, &str)]) -> Served {
    let config =
        format!("server:\n  oauth:\n    resource: {RESOURCE}\n{more}    issuers:\n{issuers}");
    Served::start_configured(
        &config,
        &[&[("MCP_FORGE_LOG", "debug")][..], variables].concat(),
    )
}

/// Asks for something that a token with the scope to run code opens.
fn ask(served: &Served, token: &str) -> Reply {
    get(served, "/api/v1/sessions", token)
}

fn get(served: &Served, path: &str, token: &str) -> Reply {
    let authorization = format!("Authorization: Bearer {token}");
    served.request(&format!("GET {path}"), &[&authorization], "")
}

/// Waits until something is so; the server reads keys whenever it does.
fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + super::served::PATIENCE;
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn readiness(served: &Served) -> Value {
    served.request("GET /readyz", &[], "").json()
}
