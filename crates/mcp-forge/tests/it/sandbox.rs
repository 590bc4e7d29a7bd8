//! Runs code in a real sandbox of the native engine, for tests.

use std::time::Duration;

use mcp_forge::{
    config::{Config, Sources},
    engine::{Engine, SandboxSpec, native::Native},
    runner::wire::{ToolFailure, ToolFailureKind, ToolValue},
    turn::{self, Observer, Report, Stream, Tools, Turn},
};
use serde_json::{Map, Value};

/// The defaults, with a whole core: tests share two.
pub(crate) fn config() -> Config {
    let mut config = Config::load(&Sources::default()).unwrap().config;
    config.default_limits.timeout = Duration::from_mins(1);
    config.default_limits.cpu_quota_us = 100_000;
    config
}

/// Refuses every call.
struct NoTools;

#[async_trait::async_trait]
impl Tools for NoTools {
    async fn call(&self, name: &str, _: Map<String, Value>) -> Result<ToolValue, ToolFailure> {
        Err(ToolFailure {
            kind: ToolFailureKind::NotGranted,
            message: format!("{name} is not granted"),
        })
    }
}

/// Hears nothing.
struct Deaf;

impl Observer for Deaf {
    fn output(&mut self, _: Stream, _: &str) {}
}

/// Runs one turn in a fresh sandbox.
pub(crate) async fn run(code: &str) -> Report {
    run_with(&config(), code).await
}

/// As [`run`], with other settings.
pub(crate) async fn run_with(config: &Config, code: &str) -> Report {
    let engine = Native::with_jail(config, env!("CARGO_BIN_EXE_mcp-forge").into());
    let id = format!(
        "test-{}-{:x}",
        std::process::id(),
        std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap()
            .as_nanos()
    );
    let spec = SandboxSpec {
        id,
        limits: config.default_limits.clone(),
    };
    let sandbox = engine.launch(&spec).await.unwrap();
    let turn = Turn {
        code,
        stubs: Vec::new(),
        tools: &NoTools,
        observer: &mut Deaf,
        limits: &config.default_limits,
        caps: config.caps,
    };
    turn::run(sandbox, turn).await
}
