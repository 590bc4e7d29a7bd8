//! One integration binary: real sandboxes, real upstreams, the real program.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod sandbox;

mod fake;
mod mcp;
mod outcomes;
mod service;
