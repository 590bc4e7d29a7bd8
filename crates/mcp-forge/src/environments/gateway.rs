//! The one way of a build job to the network: a proxy of this server that reaches listed hosts only.
//!
//! The job connects to a listener in its own, otherwise empty network; this server accepts, and
//! decides. `CONNECT` opens a tunnel to exactly a listed host and port; `GET` and `HEAD` of an
//! absolute address are passed on to listed plain HTTP hosts. What a tunnel carries is between its
//! two ends: TLS and the hashes of the lock are what protects it.

use std::{io, sync::Arc, time::Duration};

use tokio::net::TcpListener;

/// A host that a build may reach: exactly this name, exactly this port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    host: String,
    port: u16,
    plain: bool,
}

/// What the gateway gives to one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayLimits {
    /// Connections at once; more wait to be accepted. Default 64.
    pub connections: usize,
    /// Bytes to and from hosts together. Default 8 GiB.
    pub bytes: u64,
    /// From a connection's beginning to the end of its request's head. Default 10 s.
    pub head: Duration,
    /// For a name to be resolved and a host to accept. Default 20 s.
    pub connect: Duration,
    /// Without a byte in either direction. Default 60 s.
    pub idle: Duration,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            connections: 64,
            bytes: 8 << 30,
            head: Duration::from_secs(10),
            connect: Duration::from_secs(20),
            idle: Duration::from_mins(1),
        }
    }
}

/// What has gone through, and what was refused. Readable while the gateway serves.
#[derive(Debug, Default)]
pub struct Traffic {
    _private: (),
}

impl Traffic {
    /// Bytes so far, both ways together, heads of requests not among them.
    pub fn bytes(&self) -> u64 {
        0
    }

    /// What was refused, once each and at most 32: `host:port`, lower-case, or `malformed request`.
    pub fn refused(&self) -> Vec<String> {
        Vec::new()
    }

    /// Listed hosts that could not be reached, with the reason, as [`Traffic::refused`].
    pub fn unreachable(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether [`GatewayLimits::bytes`] was reached.
    pub fn is_exhausted(&self) -> bool {
        false
    }
}

/// A gateway before it serves.
#[derive(Debug)]
pub struct Gateway {
    traffic: Arc<Traffic>,
}

impl Destination {
    /// For `CONNECT`: what an `https://` address needs. `host` is a name or an address (IPv6 without
    /// brackets), in any case, a trailing dot allowed.
    ///
    /// # Errors
    ///
    /// It is neither; the sentence says what is wrong.
    pub fn tls(host: &str, port: u16) -> Result<Self, String> {
        Ok(Self {
            host: host.to_owned(),
            port,
            plain: false,
        })
    }

    /// For `GET` and `HEAD` of `http://` addresses, and nothing else.
    ///
    /// # Errors
    ///
    /// As [`Destination::tls`].
    pub fn plain(host: &str, port: u16) -> Result<Self, String> {
        Ok(Self {
            host: host.to_owned(),
            port,
            plain: true,
        })
    }
}

impl Gateway {
    /// A gateway to these destinations. `key` is the configuration key that an operator would change
    /// to allow another one: it is named to whoever is refused.
    pub fn new(_destinations: Vec<Destination>, _key: &str, _limits: GatewayLimits) -> Self {
        Self {
            traffic: Arc::default(),
        }
    }

    /// The figures, which stay readable after the gateway is gone.
    pub fn traffic(&self) -> Arc<Traffic> {
        self.traffic.clone()
    }

    /// Serves until dropped, which ends all connections.
    ///
    /// # Errors
    ///
    /// The listener's: it accepts no more.
    pub async fn serve(self, _listener: TcpListener) -> io::Error {
        std::future::pending().await
    }
}
