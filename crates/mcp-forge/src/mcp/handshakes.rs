//! The sessions of MCP's older versions over HTTP, bounded: a client that says hello and is never
//! seen again must cost nothing for long.
//!
//! Where there are too many, the one ends that was used least recently and has no stream open. Its
//! client is told so at its next request, and says hello again.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{Stream, StreamExt};
use rmcp::{
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        common::server_side_http::ServerSseMessage,
        streamable_http_server::session::{
            SessionId, SessionManager,
            local::{LocalSessionManager, LocalSessionManagerError},
        },
    },
};

/// The sessions of one principal.
#[derive(Debug)]
pub(super) struct Handshakes {
    most: usize,
    inner: LocalSessionManager,
    uses: Mutex<Uses>,
}

#[derive(Debug, Default)]
struct Uses {
    clock: u64,
    sessions: HashMap<SessionId, Use>,
}

#[derive(Debug, Default)]
struct Use {
    last: u64,
    streams: Arc<AtomicUsize>,
}

/// An open stream.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Handshakes {
    /// No more than `most` at a time; each ends after so long without a message, either way.
    pub(super) fn new(most: usize, idle: Duration) -> Self {
        let mut inner = LocalSessionManager::default();
        inner.session_config.keep_alive = Some(idle);
        Self {
            most,
            inner,
            uses: Mutex::default(),
        }
    }

    /// Whether there is none, as far as can be seen without waiting.
    pub(super) fn is_empty(&self) -> bool {
        let sessions = self.inner.sessions.try_read();
        sessions.is_ok_and(|sessions| sessions.is_empty())
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a session is used, and by a stream until that is dropped.
    fn open(&self, id: &SessionId) -> Open {
        let mut uses = self.uses();
        uses.clock += 1;
        let clock = uses.clock;
        let used = uses.sessions.entry(Arc::clone(id)).or_default();
        used.last = clock;
        used.streams.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(&used.streams))
    }

    /// Ends sessions until there is room for one more.
    async fn make_room(&self) -> Result<(), LocalSessionManagerError> {
        loop {
            let alive = self.inner.sessions.read().await;
            let oldest = {
                let mut uses = self.uses();
                // Those that ended by themselves.
                uses.sessions.retain(|id, _| alive.contains_key(id));
                if alive.len() < self.most {
                    return Ok(());
                }
                let closed = |used: &Use| used.streams.load(Ordering::Relaxed) == 0;
                let candidates = uses.sessions.iter();
                let idle = candidates.clone().filter(|(_, used)| closed(used));
                // If all have a stream, the least recently used one of them.
                idle.min_by_key(|(_, used)| used.last)
                    .or_else(|| candidates.min_by_key(|(_, used)| used.last))
                    .map(|(id, _)| Arc::clone(id))
            };
            drop(alive);
            let Some(oldest) = oldest else {
                return Ok(());
            };
            tracing::debug!("an MCP session ended to make room for another");
            self.close_session(&oldest).await?;
        }
    }
}

impl SessionManager for Handshakes {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        self.make_room().await?;
        let (id, transport) = self.inner.create_session().await?;
        drop(self.open(&id));
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.inner.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.inner.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.uses().sessions.remove(id);
        self.inner.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let open = self.open(id);
        let stream = self.inner.create_stream(id, message).await?;
        Ok(held(stream, open))
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        drop(self.open(id));
        self.inner.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let open = self.open(id);
        let stream = self.inner.create_standalone_stream(id).await?;
        Ok(held(stream, open))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let open = self.open(id);
        let stream = self.inner.resume(id, last_event_id).await?;
        Ok(held(stream, open))
    }
}

/// The stream, which is open until it is dropped.
fn held<S: Stream>(stream: S, open: Open) -> impl Stream<Item = S::Item> {
    stream.map(move |message| {
        let _held = &open;
        message
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn new(handshakes: &Handshakes) -> SessionId {
        handshakes.create_session().await.unwrap().0
    }

    #[tokio::test]
    async fn there_are_never_more_than_may_be_and_the_least_used_ones_go() {
        let handshakes = Handshakes::new(3, Duration::from_mins(1));
        let (first, second, third) = (
            new(&handshakes).await,
            new(&handshakes).await,
            new(&handshakes).await,
        );
        drop(handshakes.open(&first));
        let streaming = handshakes.open(&second);
        let fourth = new(&handshakes).await;
        for (id, stays) in [
            (&first, true),
            (&second, true),
            (&third, false),
            (&fourth, true),
        ] {
            assert_eq!(handshakes.has_session(id).await.unwrap(), stays);
        }
        for _ in 0..100 {
            new(&handshakes).await;
        }
        assert!(
            handshakes.has_session(&second).await.unwrap(),
            "it has a stream"
        );
        drop(streaming);
        assert_eq!(handshakes.inner.sessions.read().await.len(), 3);
        assert!(handshakes.uses().sessions.len() <= 3);
    }
}
