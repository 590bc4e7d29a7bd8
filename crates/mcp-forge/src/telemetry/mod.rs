//! What tells people of the server while it runs: its log, numbers for Prometheus, traces for a collector.
//!
//! Whatever happens here harms no request: a collector that is gone, or never answers, costs spans.

use std::{collections::BTreeMap, fmt, io, time::Duration};

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Handle;
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{FilterExt as _, FilterFn, LevelFilter, filter_fn},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

mod context;
mod export;
mod json;
pub mod prometheus;
pub mod spans;

pub use context::TraceContext;

use crate::config::{LogFormat, TelemetryConfig};

/// What the log shows where `MCP_FORGE_LOG` says nothing.
const DEFAULT_FILTER: &str = "warn,rmcp=error";

/// How long the last spans may take to reach the collector.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// The log or the traces cannot be had. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter makes no sense.
    #[error("MCP_FORGE_LOG: {0}: write warn, info, debug, or mcp_forge=debug")]
    Filter(String),
    /// The collector's address, or what is sent with it, makes no sense.
    #[error("{name}: {problem}")]
    Collector {
        /// The key or the variable that says it.
        name: &'static str,
        /// What is wrong, without its value: that may be secret.
        problem: String,
    },
    /// There is a log already.
    #[error("the log could not be started: {0}")]
    Twice(String),
}

/// The log, and what sends spans. To be ended last.
pub struct Telemetry(Option<SdkTracerProvider>);

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("exports", &self.0.is_some())
            .finish()
    }
}

impl Telemetry {
    /// Starts the process's log on standard error (standard output is the protocol), and traces if the
    /// operator wants them. `runtime` is where they are sent.
    ///
    /// # Errors
    ///
    /// [`TelemetryError`].
    pub fn start(
        config: &TelemetryConfig,
        environment: &BTreeMap<String, String>,
        runtime: &Handle,
        is_coloured: bool,
    ) -> Result<Self, TelemetryError> {
        let provider = export::provider(config, environment, runtime)?;
        let traces = provider.as_ref().map(|provider| {
            // Spans of ours alone, and no events: what the log says is not for others.
            tracing_opentelemetry::layer()
                .with_tracer(provider.tracer(env!("CARGO_PKG_NAME")))
                .with_location(false)
                .with_threads(false)
                .with_target(false)
                .with_tracked_inactivity(false)
                .with_context_activation(false)
                .with_filter(ours())
        });
        let filter = environment.get("MCP_FORGE_LOG").map(String::as_str);
        let filter = filter.filter(|filter| !filter.is_empty());
        let filter = EnvFilter::builder()
            .parse(filter.unwrap_or(DEFAULT_FILTER))
            .map_err(|error| TelemetryError::Filter(error.to_string()))?;
        let registry = tracing_subscriber::registry().with(traces);
        let started = match config.log_format {
            // Who reads JSON wants to know whose each line is.
            LogFormat::Json => {
                let filter = filter.or(ours());
                registry
                    .with(json::JsonLines.with_filter(filter))
                    .try_init()
            }
            LogFormat::Text => {
                let lines = tracing_subscriber::fmt::layer()
                    .with_writer(io::stderr)
                    .with_ansi(is_coloured)
                    .with_filter(filter.and(filter_fn(|metadata| !is_ours(metadata))));
                registry.with(lines).try_init()
            }
        };
        started.map_err(|error| TelemetryError::Twice(error.to_string()))?;
        Ok(Self(provider))
    }

    /// Sends the last spans, within five seconds.
    pub fn end(self) {
        if let Some(provider) = self.0 {
            // What is not sent by then is lost, and nobody waits for more.
            let _ = provider.shutdown_with_timeout(LAST_SPANS);
        }
    }
}

/// One line of the log of this moment, for what is said before or beside it.
pub fn json_line(level: &str, message: &str) -> String {
    json::line(level, "mcp_forge", message)
}

fn ours() -> FilterFn<fn(&tracing::Metadata<'_>) -> bool> {
    let is_ours: fn(&tracing::Metadata<'_>) -> bool = is_ours;
    filter_fn(is_ours).with_max_level_hint(LevelFilter::INFO)
}

fn is_ours(metadata: &tracing::Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target() == spans::TARGET
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Principal;

    /// Every span of a turn, made one in the other.
    fn spans() -> Vec<tracing::Span> {
        let principal = Principal::named("ada");
        let http = spans::http(("GET", "/"), &principal, None);
        let execution = spans::execution("e1", &principal, None);
        let tool = spans::tool(&execution, "name");
        vec![
            spans::mcp(("tools/call", "x"), Some(&http), (&principal, None)),
            spans::queue(),
            spans::sandbox("native"),
            spans::run(),
            spans::session("s"),
            spans::build("e", &principal),
            http,
            execution,
            tool,
        ]
    }

    /// A span that is disabled has formatted nothing and holds nothing.
    #[test]
    fn without_a_collector_spans_are_not_even_made() {
        let filter = EnvFilter::new("trace").and(filter_fn(|metadata| !is_ours(metadata)));
        let text = tracing_subscriber::fmt::layer()
            .with_writer(io::sink)
            .with_filter(filter);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(text), || {
            assert!(spans().iter().all(tracing::Span::is_disabled));
            assert_eq!(spans::outgoing(None), None);
        });
        let json = json::JsonLines.with_filter(EnvFilter::new("error").or(ours()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(json), || {
            assert!(!spans().iter().any(tracing::Span::is_disabled));
        });
    }
}
