//! Settings of the HTTP service.

use std::{path::PathBuf, time::Duration};

use super::OAuthConfig;

/// `server`: where `serve --http` listens, whom it lets in, what a client may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// A name or an address, where the command line gives none. Default `localhost`.
    pub host: String,
    /// Default 3000.
    pub port: u16,
    /// The file of tokens; `None` is `tokens.yaml` in the data directory, which is made.
    pub tokens: Option<PathBuf>,
    /// Tokens that others issue; `None` if nobody does.
    pub oauth: Option<OAuthConfig>,
    /// The certificate and its key.
    pub tls: Option<TlsFiles>,
    /// Whether other machines may be served without TLS.
    pub plaintext: bool,
    /// Names that clients may call the server by, beside the one that it listens at.
    pub allowed_hosts: Vec<String>,
    /// Web pages whose scripts may call the server, as `https://host:port`.
    pub allowed_origins: Vec<String>,
    /// Bytes of one request's body. Default 4 MiB.
    pub max_body: usize,
    /// Connections at the same time. Default 1000.
    pub max_connections: usize,
    /// Requests a minute of one principal. Default 6000.
    pub requests_per_minute: u32,
    /// Requests of one principal at the same time. Default 64.
    pub requests_in_flight: usize,
    /// CPU seconds that one principal may use in an hour; none is as many as it likes.
    pub cpu_seconds_per_hour: Option<u32>,
    /// Time that running requests have when the server is to end. Default 30 s.
    pub drain: Duration,
}

/// What one principal may take, where that is another number than the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnQuotas {
    /// Requests a minute.
    pub requests_per_minute: Option<u32>,
    /// Requests at the same time.
    pub requests_in_flight: Option<usize>,
    /// CPU seconds in an hour.
    pub cpu_seconds_per_hour: Option<u32>,
}

/// PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those between it and the root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}
