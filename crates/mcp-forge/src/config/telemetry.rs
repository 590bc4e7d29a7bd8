//! Settings of the log and of traces.

use std::{collections::BTreeMap, fmt};

/// `log` and `telemetry`.
#[derive(Clone, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// What a line of the log looks like.
    pub log_format: LogFormat,
    /// The collector's address, without `/v1/traces`. It may hold a password.
    pub otlp_endpoint: Option<String>,
    /// Headers of every request to it. They may be secret.
    pub otlp_headers: BTreeMap<String, String>,
    /// What spans say they are of.
    pub service_name: Option<String>,
    /// Of a hundred traces that begin here, so many are sent.
    pub sample_percent: u8,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl fmt::Debug for TelemetryConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TelemetryConfig")
            .field("log_format", &self.log_format)
            .field("has_collector", &self.otlp_endpoint.is_some())
            .field("otlp_headers", &self.otlp_headers.keys())
            .field("service_name", &self.service_name)
            .field("sample_percent", &self.sample_percent)
            .finish()
    }
}
