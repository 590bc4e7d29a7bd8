//! Looking at what a session holds: its files and names after each turn, the rest when there is time.
//!
//! The first look comes with the turn: its `done` tells of files, and right after it the interpreter
//! tells of names. An answer waits for the files, which costs little whatever the session holds. To describe a thousand variables takes longer than most turns; that is done
//! when somebody asks, or when no call came for a moment.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Change,
    answer::{Unsent, broken, changed},
    known::{self, Known},
    notes::{Note, Notes},
    open::Live,
    task::Task,
    view::file_view,
};
use crate::{
    runner::wire::{Event, InspectBounds, Inspected, Request},
    store::now_ms,
    turn::{Resident, ResidentError},
};

/// How long an answer waits to tell which files its turn changed. Only threads that hold the
/// interpreter, or a machine that is very busy, take so long.
const ANSWER_PATIENCE: Duration = Duration::from_millis(500);

/// Time for an inspection, on a machine that is busy with threads of the session.
const INSPECT_LIMIT: Duration = Duration::from_secs(5);

/// Shortest time between two writings of what is known, while call follows call.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Where the looking stands.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// A turn has run since the variables were described.
    pub(super) is_due: bool,
    /// What is known is not what is in the store.
    pub(super) is_unwritten: bool,
    /// When it was last written.
    pub(super) written: Option<Instant>,
}

impl Task {
    /// How much is told of a turn by itself.
    pub(super) fn bounds_after_turn(&self) -> InspectBounds {
        InspectBounds {
            variables: 0,
            ..known::bounds(self.inner.settings.sessions.max_files)
        }
    }

    /// Answers a turn, with its files if the interpreter is quick to tell them; then has `due` written,
    /// and hears what the turn left. Says why the interpreter was lost, if it was.
    pub(super) async fn look(
        &self,
        live: &mut Live,
        notes: &Notes,
        mut answer: Unsent,
        due: impl IntoIterator<Item = Note>,
    ) -> Option<String> {
        let bounds = self.bounds_after_turn();
        let (view, isolation) = (self.view(live, self.stopping()), live.isolation.clone());
        live.tell_once();
        let known = self.facts.know();
        let execution_id = answer.execution_id.clone();
        let told = {
            let hear = async {
                let answer = live.resident.as_mut()?.answer(INSPECT_LIMIT).await;
                Some(answer.and_then(|answer| inspected(answer, &bounds)))
            };
            tokio::pin!(hear);
            let files = answer.told_files.take();
            let mut files = files.map(|files| known::files(files, bounds.files));
            let mut heard = None;
            if files.is_none() {
                heard = tokio::time::timeout(ANSWER_PATIENCE, &mut hear).await.ok();
                if let Some(Some(Ok(told))) = &heard {
                    files = Some(told.files.clone());
                }
            }
            let files = changed(&known.inspected.files, files.as_deref().unwrap_or_default());
            let id = self.name.id.as_str();
            let files = files.iter().map(|file| file_view(id, file)).collect();
            answer.send(isolation, files, view);
            // Who waits for it goes on here and now, and on no other processor.
            tokio::task::yield_now().await;
            for note in due {
                notes.put(note).await;
            }
            match heard {
                Some(heard) => heard,
                None => hear.await,
            }
        }?;
        live.look.is_due = true;
        let lost = match told {
            Ok(told) => {
                live.keep.plan(&told.files, told.omitted_files == 0).await;
                self.facts.set_not_kept(live.keep.refused().clone());
                live.look.is_unwritten = true;
                let known = known.after(told, &execution_id, now_ms());
                self.facts.learn(known);
                None
            }
            // A thread holds the interpreter: what is known stays what was known.
            Err(ResidentError::Silent(_)) => None,
            Err(error) => Some(broken(&error)),
        };
        notes.put(Note::Tell(Change::State)).await;
        lost
    }

    /// Looks at all that the session holds, if it may have changed since. Says why the interpreter
    /// was lost, if it was.
    pub(super) async fn look_closely(&self, live: &mut Live, notes: &Notes) -> Option<String> {
        if !live.look.is_due {
            return None;
        }
        let bounds = known::bounds(self.inner.settings.sessions.max_files);
        live.look.is_due = false;
        match inspect(live.resident.as_mut()?, &bounds).await {
            Ok(told) => {
                let known = self.facts.know();
                self.facts.learn(known.in_full(told, now_ms()));
                live.look.is_unwritten = true;
                live.look.written = None;
                self.write_known(live, notes).await;
                None
            }
            Err(ResidentError::Silent(_)) => None,
            Err(error) => Some(broken(&error)),
        }
    }

    /// Has what is known written to the store, unless that was just done.
    pub(super) async fn write_known(&self, live: &mut Live, notes: &Notes) {
        let is_recent = live
            .look
            .written
            .is_some_and(|written| written.elapsed() < WRITE_EVERY);
        if !live.look.is_unwritten || is_recent {
            return;
        }
        if let Ok(value) = serde_json::to_value(Known::clone(&self.facts.know())) {
            notes.put(Note::Know(value)).await;
        }
        live.look.is_unwritten = false;
        live.look.written = Some(Instant::now());
    }
}

async fn inspect(
    resident: &mut Resident,
    bounds: &InspectBounds,
) -> Result<Inspected, ResidentError> {
    let request = Request::Inspect { bounds: *bounds };
    let answer = resident.ask(&request, INSPECT_LIMIT).await?;
    inspected(answer, bounds)
}

fn inspected(answer: Event, bounds: &InspectBounds) -> Result<Inspected, ResidentError> {
    match answer {
        Event::Inspected(told) => Ok(known::bounded(told, bounds)),
        _ => Err(crate::runner::ProtocolError::Unexpected.into()),
    }
}
