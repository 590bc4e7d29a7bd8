//! Clients on the data directory's socket: each has a connection of its own to the one service.

use std::{sync::Arc, time::Duration};

use tokio::{net::UnixStream, sync::watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Door, ServeError, serve_client};
use crate::{servers::Listening, service::Service};

/// Clients at the same time; one more is hung up on.
const MAX_CLIENTS: usize = 64;

/// Pause after the system would not hand out a client: it has too few descriptors, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How long somebody who has connected may take to be seen.
const LAST_CLIENTS: Duration = Duration::from_millis(20);

/// Serves clients of the socket until `stop` is cancelled, or until there was neither a session nor
/// a client for as long as `idle` says. The socket and all connections are closed by then; the
/// service goes on.
pub(crate) async fn serve_socket(
    service: Arc<Service>,
    mut listening: Listening,
    stop: CancellationToken,
    idle: Option<Duration>,
) {
    let clients = Clients {
        service,
        stop: stop.clone(),
        tasks: TaskTracker::new(),
        count: watch::Sender::new(0),
    };
    loop {
        tokio::select! {
            accepted = listening.accept() => match accepted {
                Ok(stream) => clients.welcome(stream),
                Err(error) => {
                    tracing::warn!(%error, "a client of the socket could not be let in");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            () = clients.unused(idle) => {
                let late = last_clients(&listening).await;
                if late.is_empty() {
                    break;
                }
                // Their sessions must be found by others: the server has a name again.
                match listening.again() {
                    Ok(again) => listening = again,
                    Err(error) => tracing::warn!(%error, "the server cannot be found any more"),
                }
                for stream in late {
                    clients.welcome(stream);
                }
            }
            () = stop.cancelled() => break,
        }
    }
    drop(listening);
    clients.stop.cancel();
    clients.tasks.close();
    clients.tasks.wait().await;
}

/// Takes the socket's name away, and returns who had connected by then.
async fn last_clients(listening: &Listening) -> Vec<UnixStream> {
    listening.withdraw();
    let mut late = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(LAST_CLIENTS, listening.accept()).await {
        late.push(stream);
    }
    late
}

/// The clients of one socket.
struct Clients {
    service: Arc<Service>,
    stop: CancellationToken,
    tasks: TaskTracker,
    count: watch::Sender<usize>,
}

impl Clients {
    fn welcome(&self, stream: UnixStream) {
        if self.tasks.len() >= MAX_CLIENTS {
            tracing::warn!("a client was hung up on: there are {MAX_CLIENTS} already");
            return;
        }
        let (service, gone) = (Arc::clone(&self.service), self.stop.child_token());
        let present = Present::new(self.count.clone());
        self.tasks.spawn(async move {
            let _present = present;
            let (reader, writer) = stream.into_split();
            match serve_client(service, reader, writer, gone, Door::Socket).await {
                Ok(()) => {}
                Err(error) => told(&error),
            }
        });
    }

    /// Waits until nobody needs the server for so long.
    async fn unused(&self, idle: Option<Duration>) {
        let Some(idle) = idle else {
            return std::future::pending().await;
        };
        let mut count = self.count.subscribe();
        let mut changes = self.service.session_changes();
        let mut running = self.service.executions().running();
        loop {
            let is_unused = *count.borrow_and_update() == 0
                && *running.borrow_and_update() == 0
                && self.service.live_sessions() == 0;
            tokio::select! {
                () = tokio::time::sleep(idle), if is_unused => return,
                _ = count.changed() => {}
                _ = running.changed() => {}
                // Too many changes at once are a change as well.
                _ = changes.recv() => {}
            }
        }
    }
}

/// Somebody who makes no sense to us is no reason to end.
fn told(error: &ServeError) {
    tracing::warn!(%error, "a client of the socket was hung up on");
}

/// One of those that are counted.
struct Present(watch::Sender<usize>);

impl Present {
    fn new(count: watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
