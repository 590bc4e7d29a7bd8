//! What a session's task says to those who asked, and why its interpreter is gone.

use std::collections::BTreeSet;

use tokio::sync::{mpsc, oneshot};

use super::{
    Answer, Ran, SessionError,
    registry::Inner,
    task::Message,
    view::{FileView, SessionView},
};
use crate::{
    engine::{ExitCause, Isolation},
    limits::Limits,
    runner::wire::FileState,
    turn::{BetweenTurns, Observer, Outcome, Report, ResidentError, Stream},
};

/// An answer that is not sent yet.
pub(super) struct Unsent {
    pub(super) execution_id: String,
    /// What the turn's end told of its files, if it did.
    pub(super) told_files: Option<Vec<FileState>>,
    pub(super) report: Report,
    pub(super) between: Option<BetweenTurns>,
    pub(super) limits: Limits,
    pub(super) packages: Option<String>,
    pub(super) reply: oneshot::Sender<Result<Answer, SessionError>>,
}

impl Unsent {
    pub(super) fn send(self, isolation: Isolation, files: Vec<FileView>, session: SessionView) {
        // Who asked may be gone.
        let _ = self.reply.send(Ok(Answer::Ran(Box::new(Ran {
            report: self.report,
            isolation,
            session,
            between: self.between,
            files,
            limits: self.limits,
            packages: self.packages,
        }))));
    }
}

/// Passes output on to whoever waits for the answer. Bounded by what a turn keeps.
pub(super) struct Forward(pub(super) mpsc::UnboundedSender<(Stream, String)>);

impl Observer for Forward {
    fn output(&mut self, stream: Stream, text: &str) {
        let _ = self.0.send((stream, text.to_owned()));
    }
}

pub(super) fn lost_answer(inner: &Inner, generation: u64, reason: &str) -> Answer {
    Answer::Lost(SessionView {
        generation,
        lost_reason: Some(reason.to_owned()),
        is_fresh: false,
        shell: String::new(),
        idle_timeout: inner.settings.sessions.idle_timeout.as_secs_f64(),
        warnings: Vec::new(),
    })
}

pub(super) fn answer_all(
    waiting: Vec<Message>,
    mut answer: impl FnMut() -> Result<Answer, SessionError>,
) {
    for message in waiting {
        match message {
            Message::Turn(job) => {
                let _ = job.reply.send(answer());
            }
            // A dropped reply tells that there is no interpreter any more.
            Message::Fork { .. }
            | Message::Flush(_)
            | Message::Look(_)
            | Message::Put(_)
            | Message::Remove { .. } => {}
        }
    }
}

/// Whether a live sandbox is what these limits ask for. The timeout is each turn's own.
pub(super) fn same_sandbox(asked: &Limits, live: &Limits) -> bool {
    Limits {
        timeout: live.timeout,
        ..asked.clone()
    } == *live
}

pub(super) fn changed(before: &[FileState], now: &[FileState]) -> Vec<FileState> {
    let before: BTreeSet<(&str, u64, u64)> = before.iter().map(identity).collect();
    now.iter()
        .filter(|file| !before.contains(&identity(file)))
        .cloned()
        .collect()
}

fn identity(file: &FileState) -> (&str, u64, u64) {
    (&file.path, file.size, file.modified_ns)
}

pub(super) fn broken(error: &ResidentError) -> String {
    format!("the interpreter ended or was disturbed while no turn was running: {error}")
}

/// Why an interpreter did not outlive its turn.
pub(super) fn loss_of(outcome: &Outcome, cause: &ExitCause) -> String {
    match (outcome, cause) {
        (Outcome::OutOfMemory, _) | (_, ExitCause::OutOfMemory) => {
            "the interpreter went over its memory limit and was killed".to_owned()
        }
        (Outcome::TimedOut, _) => {
            "a turn ran over its timeout, did not stop when it was interrupted, and was killed"
                .to_owned()
        }
        (Outcome::OutputLimit, _) => {
            "a turn wrote far more output than may be kept, did not stop when it was interrupted, and was killed"
                .to_owned()
        }
        (Outcome::Cancelled, _) => {
            "a turn was cancelled, did not stop when it was interrupted, and was killed".to_owned()
        }
        (_, ExitCause::Exited(status)) => format!("the interpreter exited with status {status}"),
        (_, ExitCause::Signaled(signal)) => {
            format!("the interpreter was ended by signal {signal}")
        }
        (_, ExitCause::Killed) => {
            "the interpreter disturbed its connection to the server and was killed".to_owned()
        }
        (_, ExitCause::Lost(reason)) => format!("the interpreter was lost: {reason}"),
    }
}
