//! The configuration: raw as written, then checked and typed. Nothing downstream sees a raw key.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use crate::limits::Limits;

pub use containers::{ContainersConfig, EngineKind, Images};
pub use environments::{
    BuildRate, EnvironmentSettings, ExcludeNewer, ExtraIndex, IndexUrl, RefuseSeverity, Scanner,
};
pub use error::ConfigError;
pub(crate) use keys::nearest;
pub use keys::reference;
pub use later::Later;
pub use load::{Loaded, Sources};
pub use oauth::{IssuerConfig, JwksPace, KeySource, OAuthConfig, OAuthScopes};
pub use server::{OwnQuotas, ServerConfig, TlsFiles};
pub use sessions::{Backend, SessionsConfig, VolumesConfig};
pub use telemetry::{LogFormat, TelemetryConfig};

mod check;
mod containers;
mod environment;
mod environments;
mod error;
mod keys;
mod later;
mod load;
mod oauth;
mod raw;
mod read;
mod server;
mod sessions;
pub mod size;
mod telemetry;
mod templates;
#[cfg(test)]
mod tests;
mod upstreams;
mod values;

/// Everything an operator decides, checked. [`Config::load`] with nothing given is what no file at all means.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where state lives: `--data-dir`, `MCP_FORGE_DATA_DIR`, else the XDG data directory.
    pub data_dir: PathBuf,
    /// Limits a request gets when it does not ask.
    pub default_limits: Limits,
    /// Limits a request may ask for at most.
    pub max_limits: Limits,
    /// Sandboxes alive at once; more wait.
    pub max_concurrent: usize,
    /// What may be kept of one turn's output and results.
    pub caps: OutputCaps,
    /// What one turn may do with tools.
    pub bridge: BridgeLimits,
    /// The security profile.
    pub profile: Profile,
    /// Layers that may be missing below the profile, by name. The operator's explicit choice.
    pub allow_degraded: Vec<String>,
    /// Where sandboxes come from.
    pub engine: EngineKind,
    /// The native engine's settings.
    pub native: NativeConfig,
    /// The settings of engines that use a container API.
    pub containers: ContainersConfig,
    /// Directory of the audit log's files.
    pub audit_dir: PathBuf,
    /// The MCP servers under `mcp_tools`, by name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// How a request runs that names neither backend nor session.
    pub default_backend: Backend,
    /// The HTTP service.
    pub server: ServerConfig,
    /// Without a session and a client for so long, a background server ends. Default 5 min.
    pub background_idle: Duration,
    /// Sessions.
    pub sessions: SessionsConfig,
    /// What sessions keep on the host, and what may be copied into them.
    pub volumes: VolumesConfig,
    /// How environments are built, from where, and what may be in them.
    pub environments: EnvironmentSettings,
    /// The log, and traces.
    pub telemetry: TelemetryConfig,
    /// What is checked and kept for features that come later.
    pub later: Later,
}

/// Caps on what a turn may send back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputCaps {
    /// Bytes kept of stdout and of stderr, each. Default 1 MiB.
    pub output_bytes: usize,
    /// Bytes read of both together before the turn is ended as `output_limit`. Default 256 MiB.
    pub flood_bytes: u64,
    /// Bytes of the result as JSON. Default 1 MiB.
    pub result_bytes: usize,
    /// Bytes of all displays. Default 8 MiB.
    pub display_bytes: usize,
}

/// Caps on tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeLimits {
    /// Calls a turn may make. Default 1000.
    pub max_calls: u64,
    /// Calls a turn may have in flight. Default 32.
    pub max_in_flight: usize,
    /// Bytes through tools a turn may move, both ways. Default 256 MiB.
    pub max_bytes: u64,
    /// Bytes of one answer. Default 64 MiB.
    pub max_answer_bytes: usize,
}

/// How much isolation is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Namespaces, read-only root, seccomp, no_new_privs, no capabilities; cgroup and Landlock where the host has them.
    Desktop,
    /// Every layer.
    Strict,
}

impl Profile {
    /// As `security.profile` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Desktop => "desktop",
            Self::Strict => "strict",
        }
    }
}

/// The native engine's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeConfig {
    /// `python.path`; `None` looks on PATH.
    pub python: Option<PathBuf>,
    /// What the sandbox sees as `/`.
    pub rootfs: Rootfs,
    /// Whether sandboxes are forked from a zygote. Otherwise each starts its own interpreter.
    pub warm: bool,
    /// What prepared interpreters import: `numpy+pandas`.
    pub tiers: Vec<String>,
    /// Sandboxes of each tier that wait for code, at most. With 0 each is forked when it is asked for.
    pub ready: usize,
}

/// What the sandbox sees as `/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rootfs {
    /// The host's `/usr` and the interpreter's prefix, read-only.
    Host,
    /// A private copy of the interpreter and its libraries.
    Minimal,
}

/// One MCP server to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// How to reach it.
    pub transport: Transport,
    /// Time for start and handshake. Default 60 s (`npx` may have to download).
    pub start_timeout: Duration,
    /// Time for one call. Default 120 s.
    pub call_timeout: Duration,
}

/// How an upstream is reached.
#[derive(Clone, PartialEq, Eq)]
pub enum Transport {
    /// A child process that speaks MCP on its stdio.
    Stdio {
        /// Program, found on PATH.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Added to a small base environment (PATH, HOME, LANG, ...).
        env: BTreeMap<String, String>,
        /// Working directory.
        cwd: Option<PathBuf>,
    },
    /// A Streamable HTTP endpoint.
    Http {
        /// `http://` or `https://`.
        url: String,
        /// Sent with every request. Secret: never logged.
        headers: BTreeMap<String, String>,
    },
}

/// Shows which variables and headers there are, never what they hold: this may end in a log.
impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio {
                command,
                args,
                env,
                cwd,
            } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("args", &format_args!("{} hidden", args.len()))
                .field("env", &env.keys())
                .field("cwd", cwd)
                .finish(),
            Self::Http { headers, .. } => f
                .debug_struct("Http")
                .field("headers", &headers.keys())
                .finish_non_exhaustive(),
        }
    }
}
