//! The bridge: granted tools of upstream MCP servers, as functions of a turn.
//!
//! Upstreams are hostile like everything else from outside: each has its own tasks and deadlines,
//! what it sends is bounded before it is parsed, its words are data. `service` asks for a
//! [`Grant`] and passes it into the turn; whatever the sandbox says, only what the grant holds
//! can be called.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
use serde_json::Value;

use crate::{
    config::{self, BridgeLimits},
    runner::wire::Stub,
};

mod answer;
mod arguments;
mod calls;
mod connection;
mod grant;
mod http;
mod name;
mod process;
mod schema;
mod stub;
mod text;
mod tools;
mod traced;
mod transport;
mod upstream;

pub use calls::Counted;
pub use grant::Grant;
use grant::Granted;
use tools::{Entry, Owner};
use upstream::Upstream;

/// Names that an error lists at most.
const SHOWN_NAMES: usize = 40;
/// Nearest names that an error suggests.
const NEAREST: usize = 3;
/// An error about an unknown name waits this long for upstreams that are starting.
const NAMES_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer's envelope, beside the answer itself.
const ENVELOPE_BYTES: usize = 64 << 10;

/// All configured upstreams.
pub struct Bridge {
    upstreams: BTreeMap<String, Arc<Upstream>>,
    limits: BridgeLimits,
}

/// The tools there are, and how their upstreams fare.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Catalogue {
    /// Sorted by name.
    pub tools: Vec<ToolInfo>,
    /// Sorted by name, those that failed included.
    pub upstreams: Vec<UpstreamStatus>,
}

/// One tool. Its words and schemas are the upstream's, without invisible characters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolInfo {
    /// In the sandbox: `server_tool`.
    pub name: String,
    /// The configured server.
    pub upstream: String,
    /// The tool's name there.
    pub tool: String,
    /// A name for people, if it has one.
    pub title: Option<String>,
    /// What it does, as the upstream says.
    pub description: String,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
    /// JSON Schema of its structured answers.
    pub output_schema: Option<Value>,
    /// What the sandbox gets.
    pub stub: Stub,
    /// For example `filesystem_read_file(path: str, head: int | None = None) -> Any`.
    pub signature: String,
}

/// How one upstream fares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamStatus {
    /// As configured.
    pub name: String,
    /// Now.
    pub state: UpstreamState,
    /// Why it failed.
    pub error: Option<String>,
    /// How many tools it has.
    pub tools: usize,
    /// Its own name and version.
    pub server: Option<String>,
}

/// The states of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpstreamState {
    /// Not started yet, or on its way.
    Starting,
    /// Connected.
    Ready,
    /// Could not be started, or went away; the next need tries again.
    Failed,
}

/// Tools could not be granted. Nothing was granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// There is no such tool.
    #[error(
        "mcp_tools: there is no tool `{name}`{}",
        suggestion(nearest, available)
    )]
    Unknown {
        /// As it was asked for, bounded.
        name: String,
        /// Up to three that look like it.
        nearest: Vec<String>,
        /// The names there are, at most forty.
        available: Vec<String>,
    },
    /// The upstream that may have the tool is down; the next grant tries it again.
    #[error(
        "mcp_tools: `{tool}` is not available because its server `{upstream}` is down: {reason}"
    )]
    Unavailable {
        /// As it was asked for.
        tool: String,
        /// The configured server.
        upstream: String,
        /// One sentence.
        reason: String,
    },
}

impl Bridge {
    /// A bridge to the configured upstreams. Starts nothing.
    pub fn new(upstreams: BTreeMap<String, config::Upstream>, limits: BridgeLimits) -> Arc<Self> {
        let prefixes = name::prefixes(upstreams.keys().map(String::as_str));
        let all_prefixes: Arc<[String]> = prefixes.values().cloned().collect();
        let max_message = limits.max_answer_bytes.saturating_add(ENVELOPE_BYTES);
        let upstreams = upstreams.into_iter().map(|(server, config)| {
            let prefix = prefixes.get(&server).cloned().unwrap_or_default();
            let owner = Owner {
                server: server.clone(),
                prefix,
                all_prefixes: Arc::clone(&all_prefixes),
            };
            (server, Upstream::new(owner, config, max_message))
        });
        Arc::new(Self {
            upstreams: upstreams.collect(),
            limits,
        })
    }

    /// Begins to connect to every upstream, in parallel and in the background.
    pub fn start(&self) {
        for upstream in self.upstreams.values() {
            upstream.start();
        }
    }

    /// All tools. Waits until each upstream is up or has failed, each at most its own start timeout.
    pub async fn catalogue(&self) -> Catalogue {
        // All at once: they start in parallel, and waiting in turn costs only the slowest.
        self.start();
        for upstream in self.upstreams.values() {
            // Why one failed is in its status.
            let _ = upstream.connection().await;
        }
        self.known()
    }

    /// The tools of the upstreams that are up at this moment: one that hangs hides no other's.
    pub fn known(&self) -> Catalogue {
        let mut tools = BTreeMap::<String, ToolInfo>::new();
        let connections = self
            .upstreams
            .values()
            .filter_map(|upstream| upstream.current());
        for connection in connections {
            for entry in connection.tools().iter() {
                // Where two names are the same all the same, the first server keeps it: as in `find`.
                tools
                    .entry(entry.info.name.clone())
                    .or_insert_with(|| entry.info.clone());
            }
        }
        let upstreams = self
            .upstreams
            .values()
            .map(|upstream| upstream.status())
            .collect();
        Catalogue {
            tools: tools.into_values().collect(),
            upstreams,
        }
    }

    /// What is counted of the calls to each upstream, by its name.
    pub fn calls(&self) -> Vec<(&str, Counted)> {
        let counted = self
            .upstreams
            .iter()
            .map(|(name, upstream)| (name.as_str(), upstream.calls.counted()));
        counted.collect()
    }

    /// Grants tools to one turn. Waits only for the upstreams that the names need.
    ///
    /// # Errors
    ///
    /// [`GrantError`]: the first name that cannot be granted; nothing is granted.
    pub async fn grant(self: &Arc<Self>, names: &[String]) -> Result<Grant, GrantError> {
        let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        for upstream in names.iter().flat_map(|name| self.candidates(name)) {
            upstream.start();
        }
        let mut tools = BTreeMap::new();
        for name in names {
            tools.insert(name.to_owned(), self.find(name).await?);
        }
        Ok(Grant::new(tools, self.limits))
    }

    /// Ends every upstream and waits, bounded, until their processes are gone. The bridge stays closed.
    pub async fn shutdown(&self) {
        let closing = self
            .upstreams
            .values()
            .cloned()
            .map(|upstream| async move { upstream.close().await });
        let mut tasks: tokio::task::JoinSet<()> = closing.collect();
        while tasks.join_next().await.is_some() {}
    }

    async fn find(&self, name: &str) -> Result<Granted, GrantError> {
        let mut down = None;
        for upstream in self.candidates(name) {
            match upstream.connection().await {
                Ok(connection) => {
                    if let Some(entry) = connection.tools().named(name) {
                        return Ok(Granted {
                            upstream: Arc::clone(upstream),
                            entry: Arc::<Entry>::clone(entry),
                        });
                    }
                }
                Err(reason) => down = down.or(Some((upstream.owner.server.clone(), reason))),
            }
        }
        match down {
            Some((upstream, reason)) => Err(GrantError::Unavailable {
                tool: name.to_owned(),
                upstream,
                reason,
            }),
            None => Err(self.unknown(name).await),
        }
    }

    /// The upstreams whose tools' names begin like this one.
    fn candidates(&self, name: &str) -> impl Iterator<Item = &Arc<Upstream>> {
        self.upstreams.values().filter(move |upstream| {
            name.strip_prefix(upstream.owner.prefix.as_str())
                .is_some_and(|rest| rest.starts_with('_'))
        })
    }

    async fn unknown(&self, name: &str) -> GrantError {
        // A hint, so worth some waiting but not much.
        let _ = tokio::time::timeout(NAMES_TIMEOUT, self.catalogue()).await;
        let tools = self.known().tools;
        let mut available: Vec<String> = tools.into_iter().map(|tool| tool.name).collect();
        let name = text::one_line(name, 100);
        let mut nearest: Vec<(f64, &String)> = available
            .iter()
            .map(|other| (strsim::jaro_winkler(&name, other), other))
            .filter(|(likeness, _)| *likeness > 0.8)
            .collect();
        nearest.sort_by(|a, b| b.0.total_cmp(&a.0));
        let nearest = nearest
            .into_iter()
            .take(NEAREST)
            .map(|(_, name)| name.clone())
            .collect();
        available.truncate(SHOWN_NAMES);
        GrantError::Unknown {
            name,
            nearest,
            available,
        }
    }
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names only: a configured upstream holds secrets.
        f.debug_struct("Bridge")
            .field("upstreams", &self.upstreams.keys())
            .field("limits", &self.limits)
            .finish()
    }
}

fn suggestion(nearest: &[String], available: &[String]) -> String {
    let quoted = |names: &[String]| {
        names
            .iter()
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    match (nearest, available) {
        (_, []) => "; no server under `mcp_tools` in the configuration offers one".to_owned(),
        ([], available) => format!("; there are {}", quoted(available)),
        (nearest, _) => format!("; did you mean {}?", quoted(nearest)),
    }
}
