//! Bytes from one socket to another: counted, and ended when nothing moves.

use std::{
    io,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep_until},
};

use super::Traffic;

/// Bytes moved at once.
const CHUNK_BYTES: usize = 32 << 10;

/// Passes on both ways, until both ends have said all, or nothing has moved for so long.
pub(super) async fn both(
    client: TcpStream,
    upstream: TcpStream,
    idle: Duration,
    traffic: &Traffic,
) -> io::Result<()> {
    let (from_client, to_client) = client.into_split();
    let (from_upstream, to_upstream) = upstream.into_split();
    let last = Last::now();
    let pumps = async {
        tokio::try_join!(
            pump(from_client, to_upstream, &last, traffic),
            pump(from_upstream, to_client, &last, traffic),
        )
    };
    tokio::select! {
        pumped = pumps => pumped.map(|_| ()),
        () = last.is_past(idle) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Passes on what the upstream says, and ends when the client is gone.
pub(super) async fn back(
    client: TcpStream,
    upstream: TcpStream,
    idle: Duration,
    traffic: &Traffic,
) -> io::Result<()> {
    let (_open, to_client) = client.into_split();
    let (from_upstream, _kept) = upstream.into_split();
    let last = Last::now();
    tokio::select! {
        pumped = pump(from_upstream, to_client, &last, traffic) => pumped,
        () = last.is_past(idle) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// One way. The end of what comes is passed on as an end; the other way may go on.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    last: &Last,
    traffic: &Traffic,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        last.set();
        traffic.count(read)?;
        to.write_all(&buffer[..read]).await?;
        last.set();
    }
}

/// When something moved last.
struct Last(Mutex<Instant>);

impl Last {
    fn now() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    async fn is_past(&self, idle: Duration) {
        loop {
            let end = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + idle;
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }
}
