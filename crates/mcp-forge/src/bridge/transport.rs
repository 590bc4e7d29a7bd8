//! What stands between an upstream and the protocol library: size bounds, and what is not let through.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use rmcp::{
    model::{
        ClientJsonRpcMessage, ClientRequest, ClientResult, ErrorCode, ErrorData, JsonRpcMessage,
        JsonRpcRequest, RequestId, ServerJsonRpcMessage, ServerNotification, ServerRequest,
    },
    service::RoleClient,
    transport::Transport,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{Notify, Semaphore},
    time::Sleep,
};
use tokio_util::sync::CancellationToken;

/// Answers to an upstream's own requests that may be on their way; more requests go unanswered.
const MAX_ANSWERS: usize = 16;
/// How long an upstream may leave its input unread before it counts as stuck.
pub(super) const STALL: Duration = Duration::from_secs(30);

/// Why and whether a connection ends: the first reason stays.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// Set when the connection is to end.
    pub(super) token: CancellationToken,
    /// Set when nothing of it is left.
    pub(super) gone: CancellationToken,
    reason: OnceLock<String>,
}

impl Closing {
    pub(super) fn close(&self, reason: impl Into<String>) {
        // A second reason follows from the first.
        let _ = self.reason.set(reason.into());
        self.token.cancel();
    }

    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }
}

/// Passes on answers and little else. Requests from the upstream (sampling, elicitation, roots)
/// are refused here; progress, logs and unknown notifications are counted and dropped.
pub(super) struct Guarded<T> {
    inner: T,
    changed: Arc<Notify>,
    answers: Arc<Semaphore>,
    dropped: AtomicU64,
    discovery: Discovery,
}

/// The client's first question, and whether it still waits for the answer. A server that is slow
/// to start answers it after the client has turned to the older `initialize`, and the late answer
/// must not be taken for the answer to that.
#[derive(Debug, Default)]
struct Discovery {
    asked: Option<RequestId>,
    superseded: bool,
}

impl Discovery {
    fn note(&mut self, sent: &ClientJsonRpcMessage) {
        let JsonRpcMessage::Request(request) = sent else {
            return;
        };
        match &request.request {
            ClientRequest::DiscoverRequest(_) => self.asked = Some(request.id.clone()),
            ClientRequest::InitializeRequest(_) => self.superseded = true,
            _ => {}
        }
    }

    /// Whether this is the answer that nobody waits for any more.
    fn is_late(&self, received: &ServerJsonRpcMessage) -> bool {
        let id = match received {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
        };
        self.superseded && id.is_some() && id == self.asked.as_ref()
    }
}

impl<T> Guarded<T> {
    /// `changed` hears that the list of tools has changed.
    pub(super) fn new(inner: T, changed: Arc<Notify>) -> Self {
        Self {
            inner,
            changed,
            answers: Arc::new(Semaphore::new(MAX_ANSWERS)),
            dropped: AtomicU64::new(0),
            discovery: Discovery::default(),
        }
    }
}

impl<T: Transport<RoleClient> + 'static> Guarded<T> {
    fn refuse(&mut self, request: JsonRpcRequest<ServerRequest>) {
        let Ok(permit) = Arc::clone(&self.answers).try_acquire_owned() else {
            self.count_dropped();
            return;
        };
        let answer = if matches!(request.request, ServerRequest::PingRequest(_)) {
            ClientJsonRpcMessage::response(ClientResult::empty(()), request.id)
        } else {
            let refusal = "mcp-forge offers no sampling, elicitation or roots";
            let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, refusal, None);
            ClientJsonRpcMessage::error(error, Some(request.id))
        };
        let send = self.inner.send(answer);
        tokio::spawn(async move {
            // If it fails the connection is going down, and its reader says so.
            let _ = send.await;
            drop(permit);
        });
    }

    fn count_dropped(&self) {
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        if dropped.is_power_of_two() && dropped >= 1024 {
            tracing::warn!(
                dropped,
                "an upstream floods its connection with messages that nobody asked for"
            );
        }
    }
}

impl<T: Transport<RoleClient> + 'static> Transport<RoleClient> for Guarded<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.discovery.note(&item);
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            match self.inner.receive().await? {
                JsonRpcMessage::Request(request) => self.refuse(request),
                JsonRpcMessage::Notification(notification) => match &notification.notification {
                    ServerNotification::ToolListChangedNotification(_) => self.changed.notify_one(),
                    ServerNotification::SubscriptionsAcknowledgedNotification(_)
                    | ServerNotification::CancelledNotification(_) => {
                        return Some(JsonRpcMessage::Notification(notification));
                    }
                    _ => self.count_dropped(),
                },
                answer if self.discovery.is_late(&answer) => self.count_dropped(),
                answer => return Some(answer),
            }
        }
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.inner.close()
    }
}

/// A reader that fails at a line longer than it may be, before anyone collects it in memory.
pub(super) struct BoundedLines<R> {
    inner: R,
    max_line: usize,
    line: usize,
    closing: Arc<Closing>,
}

impl<R> BoundedLines<R> {
    pub(super) fn new(inner: R, max_line: usize, closing: Arc<Closing>) -> Self {
        Self {
            inner,
            max_line,
            line: 0,
            closing,
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for BoundedLines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        for part in buffer.filled()[before..].split_inclusive(|byte| *byte == b'\n') {
            self.line += part.len();
            if self.line > self.max_line {
                let reason = format!(
                    "it sent a message of more than {} bytes and was closed",
                    self.max_line
                );
                self.closing.close(&*reason);
                // A reader that fails must not have read.
                buffer.set_filled(before);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, reason)));
            }
            if part.ends_with(b"\n") {
                self.line = 0;
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// A writer that gives up on an upstream which no longer reads.
pub(super) struct ImpatientWriter<W> {
    inner: W,
    stall: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    closing: Arc<Closing>,
}

impl<W> ImpatientWriter<W> {
    pub(super) fn new(inner: W, stall: Duration, closing: Arc<Closing>) -> Self {
        Self {
            inner,
            stall,
            deadline: None,
            closing,
        }
    }

    fn waiting<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.deadline = None;
            return poll;
        }
        let stall = self.stall;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        std::task::ready!(deadline.as_mut().poll(context));
        let reason = format!(
            "it has not read its input for {} s and was closed",
            stall.as_secs_f64()
        );
        self.closing.close(&*reason);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, reason)))
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for ImpatientWriter<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.waiting(context, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(context);
        self.waiting(context, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_line_over_the_bound_ends_the_connection() {
        let closing = Arc::new(Closing::default());
        let mut reader = BoundedLines::new(&b"12345\n1234567\n"[..], 6, Arc::clone(&closing));
        assert!(reader.read_to_end(&mut Vec::new()).await.is_err());
        assert!(closing.token.is_cancelled());
        let closing = Arc::new(Closing::default());
        let mut reader = BoundedLines::new(&b"12345\n12345\n"[..], 6, Arc::clone(&closing));
        assert_eq!(reader.read_to_end(&mut Vec::new()).await.unwrap(), 12);
        assert!(!closing.token.is_cancelled());
    }

    #[tokio::test]
    async fn a_writer_nobody_reads_from_gives_up() {
        let closing = Arc::new(Closing::default());
        let (_reader, writer) = tokio::io::duplex(4);
        let mut writer =
            ImpatientWriter::new(writer, Duration::from_millis(20), Arc::clone(&closing));
        let failed = tokio::io::AsyncWriteExt::write_all(&mut writer, b"more than four").await;
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(closing.reason().unwrap().contains("for 0.02 s"));
    }
}
