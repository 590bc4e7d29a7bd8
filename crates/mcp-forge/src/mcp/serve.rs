//! Serving: one client on standard input and output, others on the data directory's socket.

use std::sync::Arc;

use rmcp::{ServiceExt, service::ServerInitializeError};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use super::{Client, listen, transport};
use crate::{names::Principal, servers::Listening, service::Service};

/// Serving ended otherwise than by the client's goodbye. Everything that ran has been ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The client's first message was none that MCP begins with.
    #[error("the client did not begin as an MCP client does: {0}")]
    Handshake(Box<ServerInitializeError>),
    /// The signals that end the server could not be watched.
    #[error("signals cannot be watched: {0}")]
    Signals(#[from] std::io::Error),
    /// The task that serves the connection failed.
    #[error("serving the connection failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Serves one client on standard input and output until it hangs up or a signal ends the server,
/// and until then others on the data directory's socket, if it could be made. By then every turn is
/// killed and every upstream stopped.
///
/// # Errors
///
/// [`ServeError`].
pub async fn serve_stdio(
    service: Arc<Service>,
    listening: Option<Listening>,
) -> Result<(), ServeError> {
    let (reader, writer) = rmcp::transport::io::stdio_pipes();
    let stop = stop_at_signals()?;
    let others = listening.map(|listening| {
        let (service, stop) = (Arc::clone(&service), stop.clone());
        tokio::spawn(listen::serve_socket(service, listening, stop, None))
    });
    service.start();
    let served = serve_client(Arc::clone(&service), reader, writer, stop, Door::Stdio).await;
    if let Some(others) = others {
        others.await?;
    }
    service.shutdown().await;
    served
}

/// Serves clients on the data directory's socket until a signal ends the server, or until there was
/// neither a session nor a client for as long as the configuration says. By then every turn is
/// killed and every upstream stopped.
///
/// # Errors
///
/// [`ServeError`].
pub async fn serve_background(
    service: Arc<Service>,
    listening: Listening,
) -> Result<(), ServeError> {
    let stop = stop_at_signals()?;
    service.start();
    let idle = service.config().background_idle;
    listen::serve_socket(Arc::clone(&service), listening, stop, Some(idle)).await;
    service.shutdown().await;
    Ok(())
}

/// Cancelled by the signals that end a server.
fn stop_at_signals() -> Result<CancellationToken, ServeError> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let watched = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        watched.cancel();
    });
    Ok(stop)
}

/// Serves one client on any pair of byte streams until it hangs up or `stop` is cancelled.
///
/// # Errors
///
/// [`ServeError`].
pub async fn serve(
    service: Arc<Service>,
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    service.start();
    let served = serve_client(Arc::clone(&service), reader, writer, stop, Door::Stdio).await;
    service.shutdown().await;
    served
}

/// How a client came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// It started the server.
    Stdio,
    /// By the data directory's socket: it may ask for what the command line needs.
    Socket,
    /// Over HTTP: it has shown a token.
    Http,
}

/// Serves one of several clients until it hangs up or `stop` is cancelled, which happens at its
/// end in any case. The service goes on.
pub(crate) async fn serve_client(
    service: Arc<Service>,
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    stop: CancellationToken,
    door: Door,
) -> Result<(), ServeError> {
    let client = Client::new(service, (door, Principal::local()), stop.clone());
    // The client's end cancels `stop`, and that cancels every request that still runs: nobody
    // waits for their answers.
    let lines = transport::Lines::new(reader, writer, stop.clone());
    let served = match Box::pin(client.serve_with_ct(lines, stop.clone())).await {
        Ok(running) => running
            .waiting()
            .await
            .map(|_| ())
            .map_err(ServeError::from),
        // A client that leaves before it began, or a signal: nothing was served, nothing is wrong.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
            Ok(())
        }
        Err(error) => Err(ServeError::Handshake(Box::new(error))),
    };
    stop.cancel();
    served
}
