//! Runs code in a real sandbox of the native engine, for tests.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use mcp_forge::{
    config::{BridgeLimits, Config, NativeConfig, OutputCaps, Profile, Rootfs},
    engine::{Engine, SandboxSpec, native::Native},
    limits::Limits,
    runner::wire::{ToolFailure, ToolFailureKind, ToolValue},
    turn::{self, Observer, Report, Stream, Tools, Turn},
};
use serde_json::{Map, Value};

pub(crate) fn config() -> Config {
    let limits = Limits {
        timeout: Duration::from_mins(1),
        memory_bytes: 512 << 20,
        cpu_quota_us: 100_000,
        pids: 100,
        storage_bytes: 1 << 30,
    };
    Config {
        data_dir: std::env::temp_dir(),
        default_limits: limits.clone(),
        max_limits: limits,
        max_concurrent: 10,
        caps: OutputCaps {
            output_bytes: 1 << 20,
            flood_bytes: 256 << 20,
            result_bytes: 1 << 20,
            display_bytes: 8 << 20,
        },
        bridge: BridgeLimits {
            max_calls: 1000,
            max_in_flight: 32,
            max_bytes: 256 << 20,
            max_answer_bytes: 64 << 20,
        },
        profile: Profile::Desktop,
        allow_degraded: Vec::new(),
        native: NativeConfig {
            python: None,
            rootfs: Rootfs::Host,
        },
        audit_dir: PathBuf::from("/nonexistent"),
        upstreams: BTreeMap::new(),
    }
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
