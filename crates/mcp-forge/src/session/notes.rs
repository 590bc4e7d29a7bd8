//! A session's writes to the store, in order and beside its turns: no turn waits for a disk, and no
//! answer shares the processors with one.

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Sleep,
};

use super::{Change, registry::Inner};
use crate::{
    names::SessionName,
    store::{ExecutionStart, StoreError},
};
use std::{pin::Pin, sync::Arc};

/// Writes that may wait. A store that is slower than a session's turns makes them wait in the end.
const WAITING: usize = 256;

/// One write.
#[derive(Debug)]
pub(super) enum Note {
    Begin {
        execution_id: String,
        code: String,
        generation: u64,
        started_ms: i64,
    },
    Finish {
        execution_id: String,
        outcome: &'static str,
        ended_ms: i64,
    },
    Know(Value),
    /// Tells listeners, once all before it is written.
    Tell(Change),
    /// Answered once all before it is written.
    Written(oneshot::Sender<()>),
}

/// The queue of writes.
#[derive(Debug)]
pub(super) struct Notes {
    queue: mpsc::Sender<Note>,
    writer: JoinHandle<()>,
}

impl Notes {
    pub(super) fn start(inner: Arc<Inner>, name: SessionName) -> Self {
        let (queue, mut notes) = mpsc::channel(WAITING);
        let writer = tokio::spawn(async move {
            while let Some(note) = notes.recv().await {
                if let Err(error) = write(&inner, &name, note).await {
                    tracing::error!(%error, session = %name.id, "a session's history could not be written");
                }
            }
        });
        Self { queue, writer }
    }

    pub(super) async fn put(&self, note: Note) {
        // The writer ends only after the queue.
        let _ = self.queue.send(note).await;
    }

    /// Has a note written at the timer's end, and keeps it until then.
    pub(super) async fn put_later(&self, timer: Pin<&mut Sleep>, note: &mut Option<Note>) {
        timer.await;
        // The note leaves only when there is room: whoever stops waiting before has it still.
        if let Ok(room) = self.queue.reserve().await
            && let Some(note) = note.take()
        {
            room.send(note);
        }
    }

    /// Waits until all that was put is written.
    pub(super) async fn written(&self) {
        let (reply, written) = oneshot::channel();
        self.put(Note::Written(reply)).await;
        let _ = written.await;
    }

    /// Waits until all is written, and ends.
    pub(super) async fn finish(self) {
        drop(self.queue);
        let _ = self.writer.await;
    }
}

async fn write(inner: &Inner, name: &SessionName, note: Note) -> Result<(), StoreError> {
    let store = &inner.store;
    match note {
        Note::Begin {
            execution_id,
            code,
            generation,
            started_ms,
        } => {
            let code_sha256 = format!("{:x}", Sha256::digest(&code));
            let start = ExecutionStart {
                execution_id: &execution_id,
                generation,
                code_sha256: &code_sha256,
                code: inner.settings.sessions.keep_code.then_some(code.as_str()),
                keep: inner.settings.sessions.keep_history,
                started_ms,
            };
            store.begin(name, start).await
        }
        Note::Finish {
            execution_id,
            outcome,
            ended_ms,
        } => store.finish(name, &execution_id, outcome, ended_ms).await,
        Note::Know(known) => store.know(name, &known).await,
        Note::Tell(change) => {
            inner.tell(name, change);
            Ok(())
        }
        Note::Written(reply) => {
            let _ = reply.send(());
            Ok(())
        }
    }
}
