//! The one way of a build job to the network: a proxy of this server that reaches listed hosts only.
//!
//! The job connects to a listener in its own, otherwise empty network; this server accepts, and
//! decides. `CONNECT` opens a tunnel to exactly a listed host and port; `GET` and `HEAD` of an
//! absolute address are passed on to listed plain HTTP hosts. What a tunnel carries is between its
//! two ends: TLS and the hashes of the lock are what protects it. A redirect is a new request like any
//! other, so one that leads to an address that is not listed leads nowhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use request::{Request, Way};

mod pump;
mod request;

/// What is remembered of each kind, at most.
const MOST_REMEMBERED: usize = 32;

/// A host that a build may reach: exactly this name, exactly this port, in one of two ways.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    host: String,
    port: u16,
    way: Way,
}

impl Destination {
    /// For `CONNECT`: what an `https://` address needs. `host` is a name or an address (IPv6 without
    /// brackets), in any case, a trailing dot allowed.
    ///
    /// # Errors
    ///
    /// It is neither; the sentence says what is wrong.
    pub fn tls(host: &str, port: u16) -> Result<Self, String> {
        Self::new(host, port, Way::Tunnel)
    }

    /// For `GET` and `HEAD` of `http://` addresses, and nothing else.
    ///
    /// # Errors
    ///
    /// As [`Destination::tls`].
    pub fn plain(host: &str, port: u16) -> Result<Self, String> {
        Self::new(host, port, Way::Plain)
    }

    fn new(host: &str, port: u16, way: Way) -> Result<Self, String> {
        let normalised = request::host(host).ok_or_else(|| {
            format!(
                "`{}` is neither a host name nor an address",
                host.escape_default()
            )
        })?;
        if port == 0 {
            return Err(format!("port 0 of {normalised} cannot be connected to"));
        }
        Ok(Self {
            host: normalised,
            port,
            way,
        })
    }
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

/// What has gone through, and what has not. Readable while the gateway serves, and after.
#[derive(Debug)]
pub struct Traffic {
    bytes: AtomicU64,
    most: u64,
    exhausted: AtomicBool,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    refused: BTreeSet<String>,
    unreachable: BTreeMap<String, String>,
}

impl Traffic {
    fn new(most: u64) -> Self {
        Self {
            bytes: AtomicU64::new(0),
            most,
            exhausted: AtomicBool::new(false),
            notes: Mutex::default(),
        }
    }

    /// Bytes so far, both ways together, the job's requests to the gateway itself not among them.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What was refused, once each and at most 32: `host:port`, lower-case.
    pub fn refused(&self) -> Vec<String> {
        self.notes().refused.iter().cloned().collect()
    }

    /// Listed hosts that could not be reached, `host:port` with the last reason, at most 32.
    pub fn unreachable(&self) -> BTreeMap<String, String> {
        self.notes().unreachable.clone()
    }

    /// Whether something was not passed on because of [`GatewayLimits::bytes`].
    pub fn is_exhausted(&self) -> bool {
        self.exhausted.load(Ordering::Relaxed)
    }

    /// Counts bytes that are about to be passed on.
    fn count(&self, bytes: usize) -> io::Result<()> {
        let bytes = bytes as u64;
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.most {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.exhausted.store(true, Ordering::Relaxed);
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(())
    }

    fn refuse(&self, target: String) {
        let mut notes = self.notes();
        if notes.refused.len() < MOST_REMEMBERED {
            notes.refused.insert(target);
        }
    }

    fn not_reached(&self, target: String, reason: String) {
        let mut notes = self.notes();
        // Only listed hosts come here, which are few: a new reason is worth more than an old one.
        if notes.unreachable.len() < MOST_REMEMBERED || notes.unreachable.contains_key(&target) {
            notes.unreachable.insert(target, reason);
        }
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A gateway before it serves.
#[derive(Debug)]
pub struct Gateway {
    rules: Arc<Rules>,
}

#[derive(Debug)]
struct Rules {
    destinations: BTreeSet<Destination>,
    key: String,
    limits: GatewayLimits,
    traffic: Arc<Traffic>,
}

impl Gateway {
    /// A gateway to these destinations. `key` is the configuration key that an operator would change
    /// to allow another one: it is named to whoever is refused.
    pub fn new(
        destinations: impl IntoIterator<Item = Destination>,
        key: &str,
        limits: GatewayLimits,
    ) -> Self {
        let traffic = Arc::new(Traffic::new(limits.bytes));
        Self {
            rules: Arc::new(Rules {
                destinations: destinations.into_iter().collect(),
                key: key.to_owned(),
                limits,
                traffic,
            }),
        }
    }

    /// The figures, which stay readable after the gateway is gone.
    pub fn traffic(&self) -> Arc<Traffic> {
        self.rules.traffic.clone()
    }

    /// Serves until dropped, which ends all connections. Returns only if the listener fails.
    pub async fn serve(self, listener: TcpListener) -> io::Error {
        let places = Arc::new(Semaphore::new(self.rules.limits.connections.max(1)));
        let mut connections = JoinSet::new();
        loop {
            // The place first: who does not get one waits in the kernel's short queue.
            let Ok(place) = places.clone().acquire_owned().await else {
                return io::ErrorKind::Other.into();
            };
            let client = match listener.accept().await {
                Ok((client, _)) => client,
                // A peer that has left already, or descriptors that others will free.
                Err(error) if is_passing(&error) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
                Err(error) => return error,
            };
            let rules = self.rules.clone();
            connections.spawn(async move {
                // What went wrong is between the two ends, or is noted.
                rules.serve(client).await.ok();
                drop(place);
            });
            while connections.try_join_next().is_some() {}
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [
        Errno::CONNABORTED,
        Errno::CONNRESET,
        Errno::MFILE,
        Errno::NFILE,
        Errno::INTR,
    ];
    error
        .raw_os_error()
        .is_some_and(|code| passing.iter().any(|errno| errno.raw_os_error() == code))
}

/// What a client is told that does not get what it wants.
struct Refusal {
    status: &'static str,
    text: String,
}

impl Rules {
    async fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let head = timeout(self.limits.head, request::read_head(&mut client)).await;
        let read = match head {
            // Nobody is waiting for an answer.
            Ok(Err(request::HeadError::Gone)) => return Ok(()),
            Ok(Err(request::HeadError::Malformed(reason))) => {
                return answer(client, &bad(reason)).await;
            }
            Ok(Ok(read)) => read,
            Err(_) => {
                let refusal = Refusal {
                    status: "408 Request Timeout",
                    text: "the request's head did not come in time".to_owned(),
                };
                return answer(client, &refusal).await;
            }
        };
        let (request, rest) = match request::parse(&read) {
            Ok(parsed) => parsed,
            Err(reason) => return answer(client, &bad(reason)).await,
        };
        let upstream = match self.reach(&request).await {
            Ok(upstream) => upstream,
            Err(refusal) => return answer(client, &refusal).await,
        };
        upstream.set_nodelay(true).ok();
        client.set_nodelay(true).ok();
        match request.way {
            Way::Tunnel => self.tunnel(client, upstream, rest).await,
            Way::Plain => self.pass_on(client, upstream, &request.forwarded).await,
        }
    }

    /// Connects to what is asked for, if it is listed.
    async fn reach(&self, request: &Request) -> Result<TcpStream, Refusal> {
        let wanted = Destination {
            host: request.host.clone(),
            port: request.port,
            way: request.way,
        };
        let target = request.target();
        if !self.destinations.contains(&wanted) {
            let text = format!(
                "{target} is not among the hosts that a build may reach; the operator can list it in `{}`",
                self.key
            );
            self.traffic.refuse(target);
            return Err(Refusal {
                status: "403 Forbidden",
                text,
            });
        }
        if self.traffic.is_exhausted() {
            return Err(Refusal {
                status: "403 Forbidden",
                text: format!(
                    "this build has moved the {} bytes that it may",
                    self.limits.bytes
                ),
            });
        }
        let connected = timeout(
            self.limits.connect,
            TcpStream::connect((wanted.host.as_str(), wanted.port)),
        );
        let (status, reason) = match connected.await {
            Ok(Ok(upstream)) => return Ok(upstream),
            Ok(Err(error)) => ("502 Bad Gateway", error.to_string()),
            Err(_) => (
                "504 Gateway Timeout",
                format!("no answer in {} s", self.limits.connect.as_secs()),
            ),
        };
        self.traffic.not_reached(target.clone(), reason.clone());
        Err(Refusal {
            status,
            text: format!("{target} cannot be reached: {reason}"),
        })
    }

    async fn tunnel(
        &self,
        mut client: TcpStream,
        mut upstream: TcpStream,
        early: &[u8],
    ) -> io::Result<()> {
        client
            .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
            .await?;
        // What came with the head is for the other end.
        self.traffic.count(early.len())?;
        upstream.write_all(early).await?;
        pump::both(client, upstream, self.limits.idle, &self.traffic).await
    }

    /// One request a connection: nothing that the client says after it goes anywhere.
    async fn pass_on(
        &self,
        client: TcpStream,
        mut upstream: TcpStream,
        request: &[u8],
    ) -> io::Result<()> {
        self.traffic.count(request.len())?;
        upstream.write_all(request).await?;
        pump::back(client, upstream, self.limits.idle, &self.traffic).await
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, text } = self;
        let length = text.len() + 1;
        write!(
            f,
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}\n"
        )
    }
}

fn bad(reason: &str) -> Refusal {
    Refusal {
        status: "400 Bad Request",
        text: reason.to_owned(),
    }
}

/// Answers, and reads on for a moment: a socket that is closed over unread bytes takes the answer back.
async fn answer(mut client: TcpStream, refusal: &Refusal) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let said = async {
        client.write_all(refusal.to_string().as_bytes()).await?;
        client.shutdown().await?;
        let mut drained = [0; 4096];
        for _ in 0..16 {
            if client.read(&mut drained).await? == 0 {
                break;
            }
        }
        Ok(())
    };
    timeout(PATIENCE, said).await.unwrap_or(Ok(()))
}
