//! One integration binary: real sandboxes, real upstreams, the real program.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod approval;
mod fake;
mod rows;
mod sandbox;

mod background;
mod bridge;
mod cli;
mod contract;
mod environments;
mod escape;
mod http;
mod jobs;
mod layers;
mod mcp;
mod outcomes;
mod packages;
mod podman;
mod prompt;
mod real_python;
mod service;
mod sessions;
mod tasks;
mod warm;
