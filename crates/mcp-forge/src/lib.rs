//! MCP-Forge: an agent's Python in a sealed sandbox, with the user's MCP servers as functions.
//!
//! Read `service/mod.rs` first: it is the application. One execution is `turn/`; where sandboxes
//! come from is `engine/`; the sandbox itself is built by the crate `jail`.
#![forbid(unsafe_code)]

pub mod audit;
pub mod bridge;
pub mod cli;
pub mod config;
pub mod engine;
pub mod environments;
pub mod http;
pub mod identity;
pub mod limits;
mod liveness;
mod lock;
pub mod mcp;
pub mod names;
pub mod packages;
pub mod policy;
mod rest;
pub mod runner;
pub mod servers;
pub mod service;
pub mod session;
pub mod store;
pub mod telemetry;
mod text;
pub mod turn;
mod web;
