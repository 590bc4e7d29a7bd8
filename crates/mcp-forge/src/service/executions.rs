//! Executions that nobody waits for: each is a task of its own, and what it says is kept until it is
//! asked for. One table for every front door: what one begins, another can ask for.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use super::{
    ExecuteRequest, ExecuteResponse, Service, ServiceError,
    newest::NewestLine,
    written::{Piece, Written},
};
use crate::{
    environments::{Built, Refusal},
    names::Principal,
    session::SessionError,
    turn::{Observer, Stream, json_size},
};

/// Of one principal: executions that run; that are remembered after their end; and that were
/// promised and whose end nobody has seen.
pub(crate) const MAX_RUNNING: usize = 64;
const MAX_ENDED: usize = 64;
const MAX_UNSEEN: usize = 64;

/// Bytes of what one principal's wrote and answered: of those that are remembered, but always the newest;
/// and of those whose end nobody has seen, before a further one is refused.
const MAX_BYTES: u64 = 64 << 20;

/// How long one is remembered after its end.
pub(crate) const REMEMBERED: Duration = Duration::from_hours(1);

/// How long whoever ends one waits for its end.
const CANCEL_PATIENCE: Duration = Duration::from_secs(10);

/// For how long a person may think about a question.
const PATIENCE: Duration = Duration::from_mins(10);

/// All of them that can be asked for.
#[derive(Debug, Default)]
pub(crate) struct Executions {
    known: Mutex<HashMap<String, Arc<Execution>>>,
    /// How many run, known or not.
    running: watch::Sender<usize>,
    stop: CancellationToken,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Execution {
    /// Its name, here and in the audit log.
    pub(crate) id: String,
    /// When it began.
    pub(crate) started_at: Timestamp,
    principal: Principal,
    cancel: CancellationToken,
    newest: watch::Receiver<String>,
    progress: watch::Sender<Progress>,
    /// Somebody was told for how long it is kept.
    is_promised: AtomicBool,
    /// Somebody was told of its end.
    is_seen: AtomicBool,
}

/// What has become of it.
#[derive(Debug)]
struct Progress {
    written: Written,
    /// What it waits for.
    question: Option<Open>,
    /// Nobody can be asked.
    is_mute: bool,
    ended: Option<Ended>,
    changed_at: Timestamp,
}

/// Packages that a build needs an approval for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    /// Its name: no other question of the execution has it.
    pub(crate) key: String,
    /// What is built.
    pub(crate) environment: String,
    /// What waits.
    pub(crate) packages: Vec<Refusal>,
}

#[derive(Debug)]
struct Open {
    question: Question,
    answer: oneshot::Sender<bool>,
}

#[derive(Debug)]
struct Ended {
    how: How,
    at: Instant,
    /// What it takes, with what was written, about.
    bytes: u64,
}

/// How one ended.
#[derive(Debug)]
pub(crate) enum How {
    /// The code was run; the response says what came of it.
    Ran(Box<ExecuteResponse>),
    /// An environment was built.
    Built(Box<Built>),
    /// Nothing was run or built.
    Refused(ServiceError),
    /// It was cancelled, and its sandbox is gone; a build left nothing.
    Cancelled,
}

/// Where one stands.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Standing<'a> {
    /// It waits for its turn, or runs.
    Running,
    /// It waits for an answer.
    Asking(&'a Question),
    /// It came to an end.
    Ended(&'a How),
}

/// What comes after the pieces that were read.
pub(crate) enum Next {
    /// These; and then what comes after so many.
    Pieces(Vec<Piece>, usize),
    /// Nothing more.
    End,
}

impl Executions {
    /// Makes one findable for its principal. False if it has too many; then it is not.
    pub(crate) fn keep(&self, execution: &Arc<Execution>) -> bool {
        let mut known = self.lock();
        forget(&mut known, &execution.principal);
        let mine = known
            .values()
            .filter(|other| other.principal == execution.principal);
        let (mut running, mut unseen, mut bytes) = (0, 0, 0);
        for other in mine {
            match other.end_and_size() {
                None => running += 1,
                Some(_) if other.may_be_forgotten() => {}
                Some((_, size)) => {
                    unseen += 1;
                    bytes += size;
                }
            }
        }
        let has_room = running < MAX_RUNNING && unseen < MAX_UNSEEN && bytes < MAX_BYTES;
        if has_room {
            known.insert(execution.id.clone(), Arc::clone(execution));
        }
        has_room
    }

    /// The principal's execution of that name.
    pub(crate) fn get(&self, principal: &Principal, id: &str) -> Option<Arc<Execution>> {
        let mut known = self.lock();
        forget(&mut known, principal);
        let found = known.get(id)?;
        (found.principal == *principal).then(|| Arc::clone(found))
    }

    /// Does an execution's work on its own, until the server ends.
    pub(crate) fn spawn(
        &self,
        execution: &Arc<Execution>,
        work: impl Future<Output = How> + Send + 'static,
    ) {
        let running = Running::new(&self.running);
        let stop = self.stop.clone();
        let mut cut_off = CutOff(Some(Arc::clone(execution)));
        let done = async move {
            let _running = running;
            let how = tokio::select! {
                biased;
                () = stop.cancelled() => How::Cancelled,
                how = work => how,
            };
            if let How::Refused(error) = &how
                && error.is_internal()
            {
                tracing::error!("an execution failed: {error}");
            }
            if let Some(execution) = cut_off.0.take() {
                execution.end(how);
            }
        };
        // It belongs to the trace of what began it.
        tokio::spawn(done.instrument(Span::current()));
    }

    /// How many run.
    pub(crate) fn running(&self) -> watch::Receiver<usize> {
        self.running.subscribe()
    }

    /// Waits until none runs.
    pub(crate) async fn idle(&self) {
        // The sender is here: it cannot be gone.
        let _ = self.running().wait_for(|running| *running == 0).await;
    }

    /// Ends all of them, and those that are yet to come.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Execution>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops all that ended long ago, and the oldest of a principal that has too many.
fn forget(known: &mut HashMap<String, Arc<Execution>>, principal: &Principal) {
    // Of everybody: whoever never asks again would keep theirs for ever.
    let is_old = |at: Instant| at.elapsed() > REMEMBERED;
    let ended_at = |execution: &Execution| execution.end_and_size().map(|(at, _)| at);
    known.retain(|_, execution| !ended_at(execution).is_some_and(is_old));
    let mut ended: Vec<(Instant, u64, String)> = known
        .values()
        .filter(|execution| execution.principal == *principal && execution.may_be_forgotten())
        .filter_map(|execution| {
            let (at, size) = execution.end_and_size()?;
            Some((at, size, execution.id.clone()))
        })
        .collect();
    ended.sort_unstable();
    let mut bytes = 0;
    for (newer, (_, size, id)) in ended.iter().rev().enumerate() {
        bytes += size;
        if newer >= MAX_ENDED || (newer > 0 && bytes > MAX_BYTES) {
            known.remove(id);
        }
    }
}

impl Execution {
    /// One that has yet to be [kept](Executions::keep) and [begun](Executions::spawn), and what hears it.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Random`].
    pub(crate) fn new(
        service: &Service,
        principal: &Principal,
    ) -> Result<(Arc<Self>, Kept), ServiceError> {
        let (line, newest) = NewestLine::new();
        let started_at = Timestamp::now();
        let execution = Arc::new(Self {
            id: Service::new_execution_id()?,
            started_at,
            principal: principal.clone(),
            cancel: CancellationToken::new(),
            newest,
            progress: watch::Sender::new(Progress {
                written: Written::new(service.config().caps.output_bytes.saturating_mul(2)),
                question: None,
                is_mute: false,
                ended: None,
                changed_at: started_at,
            }),
            is_promised: AtomicBool::new(false),
            is_seen: AtomicBool::new(false),
        });
        let kept = Kept(Arc::clone(&execution), line);
        Ok((execution, kept))
    }

    /// Runs code, as this execution.
    pub(crate) async fn run(
        self: Arc<Self>,
        service: Arc<Service>,
        request: ExecuteRequest,
        mut kept: Kept,
    ) -> How {
        let has_session =
            request.session_id.is_some() || request.backend.as_deref() == Some("jupyter");
        let work = service.execute_named(
            (&self.principal, self.id.clone()),
            request,
            (&mut kept, self.cancel.clone()),
        );
        tokio::select! {
            ended = work => match ended {
                Ok(response) => How::Ran(Box::new(response)),
                // It had not begun.
                Err(ServiceError::Session(SessionError::Interrupted(_))) if self.is_cancelled() => {
                    How::Cancelled
                }
                Err(error) => How::Refused(error),
            },
            // A session's turn is interrupted instead, and tells how it ended.
            () = self.cancel.cancelled(), if !has_session => How::Cancelled,
        }
    }

    /// Where it stands, and since when: RFC 3339.
    pub(crate) fn look<T>(&self, show: impl FnOnce(Standing<'_>, Timestamp) -> T) -> T {
        let progress = self.progress.borrow();
        let standing = match (&progress.ended, &progress.question) {
            (Some(ended), _) => Standing::Ended(&ended.how),
            (None, Some(open)) => Standing::Asking(&open.question),
            (None, None) => Standing::Running,
        };
        show(standing, progress.changed_at)
    }

    /// Somebody is told that it is kept until it was remembered for its whole time.
    pub(crate) fn promise(&self) {
        self.is_promised.store(true, Ordering::Relaxed);
    }

    /// Whoever it was promised to has seen its end.
    pub(crate) fn seen(&self) {
        self.is_seen.store(true, Ordering::Relaxed);
    }

    /// The newest line of what it said.
    pub(crate) fn newest(&self) -> watch::Receiver<String> {
        self.newest.clone()
    }

    /// Ends it, and waits until it has ended, but not for long: one that waits behind another in its
    /// session ends when its place comes. One that has ended already stays as it is.
    pub(crate) async fn cancel(&self) {
        self.cancel.cancel();
        let _ = tokio::time::timeout(CANCEL_PATIENCE, self.ended()).await;
    }

    /// Begins to end it.
    pub(crate) fn begin_cancel(&self) {
        self.cancel.cancel();
    }

    /// Resolves once somebody wants it to end.
    pub(crate) async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Whether somebody wanted it to end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) {
        let mut progress = self.progress.subscribe();
        // Its task always says how it ended.
        let _ = progress.wait_for(|progress| progress.ended.is_some()).await;
    }

    /// Waits until it has ended or asks something.
    pub(crate) async fn needs_attention(&self) {
        let mut progress = self.progress.subscribe();
        let is_told = |progress: &Progress| progress.ended.is_some() || progress.question.is_some();
        let _ = progress.wait_for(is_told).await;
    }

    /// Takes how it ended, for the only one who knows of it. `None` while it runs.
    pub(crate) fn take(&self) -> Option<How> {
        let mut how = None;
        self.progress.send_if_modified(|progress| {
            how = progress.ended.take().map(|ended| ended.how);
            false
        });
        how
    }

    /// Waits for what it wrote after so many pieces, or for its end.
    pub(crate) async fn after(&self, seen: usize) -> Next {
        let mut progress = self.progress.subscribe();
        let known = progress
            .wait_for(|progress| progress.written.len() > seen || progress.ended.is_some())
            .await;
        match known {
            Ok(progress) if progress.written.len() > seen => {
                let pieces = progress.written.batch(seen);
                let now = seen + pieces.len();
                Next::Pieces(pieces, now)
            }
            _ => Next::End,
        }
    }

    /// Asks, and waits for the answer: no, if there is none in ten minutes.
    pub(crate) async fn ask(&self, question: Question) -> bool {
        let (answer, answered) = oneshot::channel();
        let open = Open { question, answer };
        self.change(|progress| {
            if !progress.is_mute {
                progress.question = Some(open);
            }
        });
        let said = tokio::time::timeout(PATIENCE, answered).await;
        self.change(|progress| progress.question = None);
        matches!(said, Ok(Ok(true)))
    }

    /// Answers the question of that name. One that is not open is passed over.
    pub(crate) fn answer(&self, key: &str, is_yes: bool) {
        self.change(|progress| {
            let is_it = |open: &mut Open| open.question.key == key;
            if let Some(open) = progress.question.take_if(is_it) {
                // Who asked may be gone.
                let _ = open.answer.send(is_yes);
            }
        });
    }

    /// Answers no to what is asked, and to all that will be: nobody can see it.
    pub(crate) fn stop_asking(&self) {
        self.change(|progress| {
            progress.is_mute = true;
            progress.question = None;
        });
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        self.progress.send_modify(|progress| {
            change(progress);
            progress.changed_at = Timestamp::now();
        });
    }

    fn end(&self, how: How) {
        let answer = match &how {
            How::Ran(response) => json_size(response),
            How::Built(_) | How::Refused(_) | How::Cancelled => 0,
        };
        self.change(|progress| {
            progress.question = None;
            progress.ended = Some(Ended {
                how,
                at: Instant::now(),
                bytes: answer + progress.written.bytes() as u64,
            });
        });
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.progress.borrow().ended.is_some()
    }

    fn may_be_forgotten(&self) -> bool {
        !self.is_promised.load(Ordering::Relaxed) || self.is_seen.load(Ordering::Relaxed)
    }

    /// When it ended, and what it takes.
    fn end_and_size(&self) -> Option<(Instant, u64)> {
        let progress = self.progress.borrow();
        let ended = progress.ended.as_ref()?;
        Some((ended.at, ended.bytes))
    }
}

/// One that runs.
struct Running(watch::Sender<usize>);

impl Running {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Tells those who wait for an execution whose task is gone.
struct CutOff(Option<Arc<Execution>>);

impl Drop for CutOff {
    fn drop(&mut self) {
        if let Some(execution) = self.0.take() {
            execution.end(How::Cancelled);
        }
    }
}

/// Hears an execution, for whoever asks for it.
pub(crate) struct Kept(Arc<Execution>, NewestLine);

impl Observer for Kept {
    fn output(&mut self, stream: Stream, text: &str) {
        self.1.output(stream, text);
        let progress = &self.0.progress;
        progress.send_if_modified(|progress| progress.written.keep(stream, text));
    }

    fn status(&mut self, text: &str) {
        self.1.status(text);
    }
}
