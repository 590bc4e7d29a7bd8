//! What clients on the data directory's socket are offered beyond MCP: the command line is such a one.
//!
//! A person wants all output as it comes, to interrupt code and still hear how it ended, and to
//! know whose mistake a refusal is. A request asks for it in its `_meta`; all else is as on stdio.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rmcp::{
    RoleServer,
    model::{
        CallToolResult, CustomNotification, JsonObject, MetaObject, RequestId, RequestMetaObject,
        ServerNotification,
    },
    service::Peer,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::render::refuse;
use crate::{
    service::{ExecuteResponse, ServiceError},
    turn::{Observer, Stream},
};

/// The capability's name, and the member of a request's `_meta` that asks for it.
pub(super) const CONSOLE: &str = "mcp-forge/console";

/// Its version: a client speaks with servers of the same one only.
pub(super) const VERSION: u64 = 1;

/// From the server: a piece of a turn's output.
pub(super) const OUTPUT: &str = "notifications/mcp-forge/output";

/// From the client: a turn is to be interrupted. Its answer still comes.
pub(super) const INTERRUPT: &str = "notifications/mcp-forge/interrupt";

/// The member of a refusal's `_meta` that says more of it.
pub(super) const REFUSAL: &str = "mcp-forge/refusal";

/// What the server says of it in its experimental capabilities.
pub(super) fn capability() -> JsonObject {
    JsonObject::from_iter([("version".to_owned(), VERSION.into())])
}

/// Whether a request asks for it.
pub(super) fn is_asked_for(meta: &RequestMetaObject) -> bool {
    meta.get(CONSOLE) == Some(&Value::Bool(true))
}

/// The answer to a turn, whole: displays stay where they are.
pub(super) fn answer(response: ExecuteResponse) -> CallToolResult {
    let mut result = CallToolResult::success(Vec::new());
    result.is_error = Some(!response.success);
    result.structured_content = serde_json::to_value(response).ok();
    result
}

/// A refusal that a program can read, too.
pub(super) fn refusal(error: &ServiceError) -> CallToolResult {
    let mut result = refuse(error);
    let about = json!({
        "message": error.to_string(),
        "is_callers": error.is_callers(),
        "pid": error.elsewhere(),
    });
    let mut meta = MetaObject::default();
    meta.insert(REFUSAL.to_owned(), about);
    result.meta = Some(meta);
    result
}

/// Hears a turn's output and hands it on. All of it: it is bounded by the turn's caps.
pub(super) struct Pieces(mpsc::UnboundedSender<(Stream, String)>);

impl Pieces {
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<(Stream, String)>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }
}

impl Observer for Pieces {
    fn output(&mut self, stream: Stream, text: &str) {
        // Nobody hears it any more when the client is gone.
        let _ = self.0.send((stream, text.to_owned()));
    }
}

/// Runs work while sending its output, in order and before its answer. `work` owns the sender.
pub(super) async fn stream<T>(
    peer: &Peer<RoleServer>,
    id: &RequestId,
    mut pieces: mpsc::UnboundedReceiver<(Stream, String)>,
    work: impl Future<Output = T>,
) -> T {
    let sent = async {
        // Ends with the work, once what it said is sent.
        while let Some((stream, text)) = pieces.recv().await {
            let params = json!({"requestId": id, "stream": name(stream), "text": text});
            let notification = CustomNotification::new(OUTPUT, Some(params));
            let notification = ServerNotification::CustomNotification(notification);
            if peer.send_notification(notification).await.is_err() {
                // The client is gone: that is noticed where its requests are read.
                break;
            }
        }
    };
    // Each beside the other: a client that does not read must not stop the turn's clock.
    let (ended, ()) = tokio::join!(work, sent);
    ended
}

/// A stream's name on the wire.
const fn name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    }
}

/// The stream of that name.
pub(super) fn stream_named(name: &str) -> Option<Stream> {
    match name {
        "stdout" => Some(Stream::Stdout),
        "stderr" => Some(Stream::Stderr),
        _ => None,
    }
}

/// The turns of one client that can be interrupted.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<HashMap<RequestId, CancellationToken>>);

impl Running {
    /// One more, until the value is dropped.
    pub(super) fn begin(&self, id: &RequestId) -> Interruptible<'_> {
        let interrupt = CancellationToken::new();
        self.lock().insert(id.clone(), interrupt.clone());
        Interruptible {
            running: self,
            id: id.clone(),
            interrupt,
        }
    }

    /// Interrupts the turn that the client names. It may have ended meanwhile.
    pub(super) fn interrupt(&self, params: Option<&Value>) {
        let id = params.and_then(|params| params.get("requestId"));
        let id = id.and_then(|id| serde_json::from_value(id.clone()).ok());
        if let Some(interrupt) = id.and_then(|id: RequestId| self.lock().get(&id).cloned()) {
            interrupt.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn that can be interrupted.
#[derive(Debug)]
pub(super) struct Interruptible<'a> {
    running: &'a Running,
    id: RequestId,
    /// Cancelled when it is to be interrupted.
    pub(super) interrupt: CancellationToken,
}

impl Drop for Interruptible<'_> {
    fn drop(&mut self) {
        self.running.lock().remove(&self.id);
    }
}
