//! The task of one live session: it alone owns the interpreter, from its start to its end.
//!
//! A generation is a task: when the interpreter is lost, the task answers what waits in its queue,
//! writes the loss down, and ends. So no call ever runs in an interpreter that it was not made for.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Answer, Change, Packages, SessionError, SessionTurn,
    answer::{Forward, Unsent, answer_all, broken, loss_of, lost_answer, same_sandbox},
    facts::Facts,
    keep::CopyError as FilesError,
    known::Known,
    notes::{Note, Notes},
    open::{Live, Opened, Origin},
    registry::Inner,
    uploads::Put,
    view::SessionView,
};
use crate::{
    audit::fields,
    limits::Limits,
    names::SessionName,
    store::now_ms,
    turn::{CopyError, Stream, Turn},
};

/// Time without a call after which all that a session holds is looked at.
const LOOK_PAUSE: Duration = Duration::from_millis(30);

/// A turn that runs for longer is in the history while it runs; of a shorter one all is written after
/// its answer.
const BEGIN_AFTER: Duration = Duration::from_millis(20);

/// Time for a last look at what it holds.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Time to bring files out before the end.
const LAST_FILES: Duration = Duration::from_secs(3);

/// What a session's task is asked.
#[derive(Debug)]
pub(super) enum Message {
    Turn(Box<Job>),
    Fork {
        new: SessionName,
        reply: oneshot::Sender<Result<(), SessionError>>,
    },
    Put(Box<Put>),
    Remove {
        path: String,
        reply: oneshot::Sender<Result<(), SessionError>>,
    },
    /// Answered once all files are on the host.
    Flush(oneshot::Sender<()>),
    /// Answered once all that the session holds is known.
    Look(oneshot::Sender<()>),
}

/// One turn to run.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) turn: SessionTurn,
    pub(super) output: mpsc::UnboundedSender<(Stream, String)>,
    pub(super) reply: oneshot::Sender<Result<Answer, SessionError>>,
    /// Cancelled when nobody waits for the answer any more.
    pub(super) cancelled: CancellationToken,
}

/// Why a session is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Idle,
    Lifetime,
    Deleted,
    Shutdown,
}

/// One session's task.
pub(super) struct Task {
    pub(super) inner: Arc<Inner>,
    pub(super) name: SessionName,
    pub(super) queue: mpsc::Receiver<Message>,
    pub(super) stop: watch::Receiver<Option<Stop>>,
    pub(super) facts: Arc<Facts>,
    pub(super) finished: CancellationToken,
}

/// However a task ends, a panic included, nobody waits for it any longer.
impl Drop for Task {
    fn drop(&mut self) {
        self.leave();
        self.finished.cancel();
    }
}

/// How a task came to its end.
enum End {
    /// The interpreter is gone, for this reason.
    Lost(String),
    Stopped(Stop),
}

impl Task {
    /// Opens the session, serves it, and ends it.
    pub(super) async fn run(mut self, origin: Origin) {
        let first = match &origin {
            Origin::Store => self.queue.recv().await,
            Origin::Copy(_) => None,
        };
        let (limits, packages) = match &first {
            Some(Message::Turn(job)) => {
                let turn = &job.turn;
                let packages = (turn.packages.clone(), turn.has_own_packages);
                (turn.limits.clone(), packages)
            }
            _ => (self.inner.settings.default_limits.clone(), (None, false)),
        };
        let opened = Box::pin(self.open(origin, limits, packages)).await;
        match opened {
            Ok(Opened::Live(live)) => Box::pin(self.serve(*live, first)).await,
            Ok(Opened::Lost { generation, reason }) => {
                let waiting = self.drain(first);
                self.leave();
                answer_all(waiting, || {
                    Ok(lost_answer(&self.inner, generation, &reason))
                });
            }
            Err(error) => {
                let waiting = self.drain(first);
                self.leave();
                // Each caller is told the whole of it.
                let mut error = Some(error);
                answer_all(waiting, || {
                    Err(error.take().unwrap_or(SessionError::Ended {
                        id: self.name.id.clone(),
                        reason: "it could not be started".to_owned(),
                    }))
                });
            }
        }
    }

    async fn serve(&mut self, mut live: Live, first: Option<Message>) {
        self.facts.open();
        self.inner.tell(&self.name, Change::List);
        let notes = Notes::start(Arc::clone(&self.inner), self.name.clone());
        let end = self.work(&mut live, &notes, first).await;
        self.finish(live, notes, end).await;
    }

    async fn work(&mut self, live: &mut Live, notes: &Notes, first: Option<Message>) -> End {
        let mut next = first;
        loop {
            let message = match next.take() {
                Some(message) => message,
                None => match self.next(live, notes).await {
                    Ok(message) => message,
                    Err(end) => return end,
                },
            };
            let lost = match message {
                Message::Turn(job) => self.turn(live, notes, *job).await,
                Message::Fork { new, reply } => self.fork(live, new, reply).await,
                // Whoever asked is gone.
                Message::Put(put) if put.reply.is_closed() => None,
                Message::Remove { reply, .. } if reply.is_closed() => None,
                Message::Put(put) => self.put(live, notes, *put).await,
                Message::Remove { path, reply } => {
                    self.remove_file(live, notes, &path, reply).await
                }
                Message::Flush(reply) => self.flush(live, reply).await,
                Message::Look(reply) => {
                    let lost = self.look_closely(live, notes).await;
                    notes.written().await;
                    if reply.send(()).is_err() {
                        // Who asked has gone with what was known before, and is told that there is more.
                        notes.put(Note::Tell(Change::State)).await;
                    }
                    lost
                }
            };
            if let Some(reason) = lost {
                return End::Lost(reason);
            }
        }
    }

    /// Waits for something to do. Brings files out while there is nothing else.
    async fn next(&mut self, live: &mut Live, notes: &Notes) -> Result<Message, End> {
        loop {
            let stop = *self.stop.borrow_and_update();
            if let Some(stop) = stop {
                return Err(End::Stopped(stop));
            }
            let Some(resident) = live.resident.as_mut() else {
                return Err(End::Lost("its interpreter is gone".to_owned()));
            };
            // Before a message is taken: a call that comes after the loss is told of it.
            if let Some(error) = resident.idle().now_or_never() {
                return Err(End::Lost(broken(&error.into())));
            }
            if let Ok(message) = self.queue.try_recv() {
                return Ok(message);
            }
            if live.keep.is_behind() {
                match live.keep.step(resident).await {
                    Ok(()) => self.facts.set_not_kept(live.keep.refused().clone()),
                    Err(error) => return Err(End::Lost(broken(&error))),
                }
                continue;
            }
            tokio::select! {
                biased;
                _ = self.stop.changed() => {}
                error = resident.idle() => return Err(End::Lost(broken(&error.into()))),
                message = self.queue.recv() => {
                    return message.ok_or(End::Stopped(Stop::Shutdown));
                }
                () = tokio::time::sleep(LOOK_PAUSE), if live.look.is_due => {
                    if let Some(reason) = self.look_closely(live, notes).await {
                        return Err(End::Lost(reason));
                    }
                }
            }
        }
    }

    /// Runs one turn and answers it. Says why the interpreter was lost, if it was.
    async fn turn(&mut self, live: &mut Live, notes: &Notes, job: Job) -> Option<String> {
        let Job {
            turn,
            output,
            reply,
            cancelled,
        } = job;
        if cancelled.is_cancelled() {
            return None;
        }
        if turn.has_own_limits && !same_sandbox(&turn.limits, &live.limits) {
            let _ = reply.send(Err(SessionError::LimitsFixed(self.name.id.clone())));
            return None;
        }
        let label = |packages: &Option<Packages>| packages.as_ref().map(|it| it.label.clone());
        let has = label(&live.packages);
        if turn.has_own_packages && label(&turn.packages) != has {
            let has = has.as_deref().map_or_else(
                || "the interpreter's own packages".to_owned(),
                |name| format!("the environment `{name}`"),
            );
            let id = self.name.id.clone();
            let _ = reply.send(Err(SessionError::PackagesFixed { id, has }));
            return None;
        }
        if let Err(error) = self.copy_volumes(live, &turn).await {
            let lost = match &error {
                FilesError::Resident(error) => Some(broken(error)),
                _ => None,
            };
            let _ = reply.send(Err(SessionError::Volumes(error.to_string())));
            return lost;
        }
        self.write_known(live, notes).await;
        self.bring_out(live).await;
        let resident = live.resident.as_mut()?;
        self.facts.begin();
        self.inner.tell(&self.name, Change::Running);
        let between = resident.take_between();
        let mut begin = Some(Note::Begin {
            execution_id: turn.execution_id.clone(),
            code: turn.code.clone(),
            generation: live.generation,
            started_ms: now_ms(),
        });
        let before = resident.usage();
        let mut observer = Forward(output);
        // The same one for all turns: to put off a timer that still runs wakes no thread.
        live.begin_timer
            .as_mut()
            .reset(Instant::now() + BEGIN_AFTER);
        let begin_timer = live.begin_timer.as_mut();
        let mut stop = self.stop.clone();
        let limits = Limits {
            timeout: turn.limits.timeout,
            ..live.limits.clone()
        };
        let mut ran = resident
            .turn(
                Turn {
                    code: &turn.code,
                    execution_id: Some(&turn.execution_id),
                    stubs: turn.stubs,
                    tools: &*turn.tools,
                    observer: &mut observer,
                    limits: &limits,
                    caps: self.inner.settings.caps,
                    max_calls: self.inner.settings.max_calls,
                },
                Some(self.bounds_after_turn()),
                async {
                    let end = async {
                        tokio::select! {
                            () = cancelled.cancelled() => {}
                            _ = stop.wait_for(Option::is_some) => {}
                        }
                    };
                    tokio::join!(end, notes.put_later(begin_timer, &mut begin));
                },
            )
            .await;
        let told_files = ran.take_files();
        let (report, lost) = if ran.is_done() {
            (resident.report(ran, before), None)
        } else {
            let (report, cause) = live
                .resident
                .take()?
                .report_loss(ran, before, &mut observer)
                .await;
            let reason = loss_of(&report.outcome, &cause);
            (report, Some(reason))
        };
        drop(observer);
        self.facts.end();
        let finish = Note::Finish {
            execution_id: turn.execution_id.clone(),
            outcome: report.outcome.name(),
            ended_ms: now_ms(),
        };
        let due = begin.into_iter().chain([finish]);
        let answer = Unsent {
            execution_id: turn.execution_id,
            told_files,
            report,
            between,
            limits,
            packages: has,
            reply,
        };
        if let Some(reason) = lost {
            let view = self.view(live, Some(reason.clone()));
            answer.send(live.isolation.clone(), Vec::new(), view);
            for note in due {
                notes.put(note).await;
            }
            return Some(reason);
        }
        self.look(live, notes, answer, due).await
    }

    async fn fork(
        &self,
        live: &mut Live,
        new: SessionName,
        reply: oneshot::Sender<Result<(), SessionError>>,
    ) -> Option<String> {
        let resident = live.resident.as_mut()?;
        let spec = match super::open::spec(&live.limits, live.packages.as_ref()) {
            Ok(spec) => spec,
            Err(error) => {
                let _ = reply.send(Err(error));
                return None;
            }
        };
        let id = self.name.id.clone();
        let (result, lost) = match resident.branch(&spec).await {
            Ok(sandbox) => {
                let copy = live.copy(sandbox, Known::clone(&self.facts.know()), &self.name);
                (self.inner.adopt(new, copy).await, None)
            }
            Err(CopyError::Unfit(reason)) => (Err(SessionError::NotForkable { id, reason }), None),
            Err(CopyError::Engine(error)) => (Err(error.into()), None),
            Err(CopyError::Broken(error)) => {
                let reason = broken(&error.into());
                let ended = SessionError::Ended {
                    id,
                    reason: reason.clone(),
                };
                (Err(ended), Some(reason))
            }
        };
        let _ = reply.send(result);
        lost
    }

    /// Ends the interpreter, writes down why, and answers whoever waits.
    async fn finish(&mut self, mut live: Live, notes: Notes, end: End) {
        let is_deleted = matches!(end, End::Stopped(Stop::Deleted));
        if !is_deleted && matches!(end, End::Stopped(_)) {
            // What does not come in time is only known less well.
            let look = self.look_closely(&mut live, &notes);
            tokio::time::timeout(LAST_LOOK, look).await.ok();
        }
        if let Some(mut resident) = live.resident.take() {
            if !is_deleted && matches!(end, End::Stopped(_)) {
                let bring = async {
                    while live.keep.is_behind() && live.keep.step(&mut resident).await.is_ok() {}
                };
                tokio::time::timeout(LAST_FILES, bring).await.ok();
            }
            resident.end(Duration::ZERO).await;
        }
        live.look.written = None;
        self.write_known(&mut live, &notes).await;
        notes.finish().await;
        let (event, reason) = match &end {
            End::Lost(reason) => ("session.lost", reason.clone()),
            End::Stopped(stop) => ("session.ended", self.inner.stop_reason(*stop)),
        };
        let waiting = self.drain(None);
        let is_told = waiting
            .iter()
            .any(|message| matches!(message, Message::Turn(_)));
        let written = if is_deleted {
            let erased = self.inner.erase(&self.name).await;
            erased.map(|_| self.facts.erase())
        } else {
            let lost = self.inner.store.lose(&self.name, &reason, is_told).await;
            lost.map_err(SessionError::from)
        };
        if let Err(error) = written {
            tracing::error!(%error, session = %self.name.id, "a session's end could not be written");
        }
        let generation = live.generation;
        self.audit_end(live, event, &reason);
        self.leave();
        let (inner, id) = (&self.inner, &self.name.id);
        answer_all(waiting, || {
            if is_deleted {
                let (id, reason) = (id.clone(), reason.clone());
                return Err(SessionError::Ended { id, reason });
            }
            Ok(lost_answer(inner, generation + 1, &reason))
        });
        self.inner.tell(&self.name, Change::State);
        self.inner.tell(&self.name, Change::List);
    }

    fn audit_end(&self, live: Live, event: &'static str, reason: &str) {
        let ended = live.pending.finish(fields(json!({"success": true})));
        let told = self.inner.audit.record(
            event,
            fields(json!({
                "session_id": self.name.id,
                "principal": self.name.principal,
                "generation": live.generation,
                "reason": reason,
            })),
        );
        if let Err(error) = ended.and(told) {
            tracing::error!(%error, "a session's end is missing from the audit log");
        }
    }

    /// Closes the queue and empties it.
    fn drain(&mut self, first: Option<Message>) -> Vec<Message> {
        self.queue.close();
        let mut waiting: Vec<Message> = first.into_iter().collect();
        while let Ok(message) = self.queue.try_recv() {
            waiting.push(message);
        }
        waiting
    }

    /// From here on a call finds no live session of this name, and may start one.
    fn leave(&self) {
        self.inner.remove(&self.name, &self.finished);
    }

    /// Why the session will end after this turn, if it will.
    pub(super) fn stopping(&self) -> Option<String> {
        let stop = *self.stop.borrow();
        stop.map(|stop| self.inner.stop_reason(stop))
    }

    pub(super) fn view(&self, live: &Live, lost_reason: Option<String>) -> SessionView {
        SessionView {
            generation: live.generation,
            lost_reason,
            is_fresh: live.is_fresh,
            shell: live.shell.clone(),
            idle_timeout: self.inner.settings.sessions.idle_timeout.as_secs_f64(),
            warnings: live.warnings.clone(),
        }
    }
}
