//! Connections: how many, how slow, and how they end.
//!
//! HTTP/1.1 only: what its clients need is little, and whole families of attacks need HTTP/2.

use std::{io, os::fd::AsFd, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Bound;

/// How long a request's head may take, and how long a connection may be silent between requests.
const HEAD_TIME: Duration = Duration::from_secs(30);

/// How long a TLS handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// A client that takes nothing for so long, or is not there any more, is hung up on.
const UNREAD_TIME: Duration = Duration::from_mins(2);

/// Largest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Pause after the system would not hand out a client: it has too few descriptors, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What one client too many is told.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// All connections of a server.
pub(super) struct Connections {
    router: Router,
    room: Arc<Semaphore>,
    tasks: TaskTracker,
    /// Each ends after the request that it is at.
    draining: CancellationToken,
    /// Each ends at once.
    cut: CancellationToken,
}

impl Connections {
    pub(super) fn new(router: Router, most: usize, draining: CancellationToken) -> Self {
        Self {
            router,
            room: Arc::new(Semaphore::new(most)),
            tasks: TaskTracker::new(),
            draining,
            cut: CancellationToken::new(),
        }
    }

    /// Lets clients in, for ever. Dropping it lets nobody in any more.
    pub(super) async fn accept(&self, bound: Bound) {
        loop {
            match bound.listener.accept().await {
                Ok((stream, _)) => self.welcome(stream, bound.tls.clone()),
                Err(error) => {
                    tracing::warn!(%error, "a client could not be let in");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Waits for the connections to end, but not for long.
    pub(super) async fn end(&self, patience: Duration) {
        self.tasks.close();
        if timeout(patience, self.tasks.wait()).await.is_err() {
            self.cut.cancel();
            self.tasks.wait().await;
        }
    }

    fn welcome(&self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            if tls.is_none() {
                // Best effort: there is no room for one who waits for this to arrive.
                let _ = stream.try_write(FULL);
            }
            return;
        };
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%error, "a client was gone before it was let in");
            return;
        }
        let router = self.router.clone();
        let (draining, cut) = (self.draining.clone(), self.cut.clone());
        self.tasks.spawn(async move {
            let served = async {
                match tls {
                    None => serve(stream, router, draining).await,
                    Some(tls) => match timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
                        Ok(Ok(stream)) => serve(stream, router, draining).await,
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    },
                }
            };
            tokio::select! {
                () = served => {}
                () = cut.cancelled() => {}
            }
            leave(place);
        });
    }
}

fn leave(place: OwnedSemaphorePermit) {
    drop(place);
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = stream.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    let most = u32::try_from(UNREAD_TIME.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, most)?)
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    draining: CancellationToken,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return told(ended),
        () = draining.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    told(connection.await);
}

/// A client that goes away, or that is none, is nothing to worry about.
fn told(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
