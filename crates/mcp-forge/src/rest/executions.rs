//! Executions that nobody waits for: each is a task, and what it says is kept until it is asked for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::StatusCode;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Background, refusal,
    views::{ExecutionState, ExecutionView},
};
use crate::{
    names::Principal,
    service::{ExecuteRequest, ExecuteResponse, Service, ServiceError},
    turn::{Observer, Stream},
    web::Problem,
};

/// Of one principal: executions that run, and that are remembered after their end.
const MAX_RUNNING: usize = 64;
const MAX_ENDED: usize = 64;

/// How long one is remembered after its end.
const REMEMBERED: Duration = Duration::from_hours(1);

/// What a piece takes beside its text.
const PIECE_BYTES: usize = size_of::<Piece>();

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Executions(Mutex<HashMap<String, Arc<Execution>>>);

/// One of them.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) id: String,
    principal: Principal,
    started_at: String,
    cancel: CancellationToken,
    progress: watch::Sender<Progress>,
}

/// What has become of it.
#[derive(Debug, Default)]
struct Progress {
    pieces: Vec<Piece>,
    /// Bytes that may still be kept of standard output and standard error together.
    room: usize,
    ended: Option<Ended>,
}

/// A piece of what it wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) stream: Stream,
    pub(super) text: String,
}

#[derive(Debug)]
struct Ended {
    how: How,
    at: Instant,
    told: String,
}

#[derive(Debug)]
enum How {
    Ran(Box<ExecuteResponse>),
    Refused(Problem),
    Cancelled,
}

/// What comes after the pieces that were read.
pub(super) enum Next {
    /// These; and then what comes after so many.
    Pieces(Vec<Piece>, usize),
    /// Nothing more.
    End,
}

impl Executions {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// The principal has too many, or the kernel gave no name; nothing runs.
    pub(super) fn start(
        &self,
        (service, background): (&Arc<Service>, &Background),
        principal: &Principal,
        request: ExecuteRequest,
    ) -> Result<Arc<Execution>, Problem> {
        let id = Service::new_execution_id().map_err(|error| refusal::problem(&error))?;
        let room = service.config().caps.output_bytes.saturating_mul(2);
        let execution = Arc::new(Execution {
            id: id.clone(),
            principal: principal.clone(),
            started_at: jiff::Timestamp::now().to_string(),
            cancel: CancellationToken::new(),
            progress: watch::Sender::new(Progress {
                room,
                ..Progress::default()
            }),
        });
        {
            let mut all = self.lock();
            forget(&mut all, principal);
            let mine = all.values().filter(|other| other.principal == *principal);
            if mine.filter(|other| !other.has_ended()).count() >= MAX_RUNNING {
                let detail = format!(
                    "{MAX_RUNNING} executions run or wait already; wait for their ends, or cancel some."
                );
                return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).again_in(1));
            }
            all.insert(id, Arc::clone(&execution));
        }
        background.spawn(Arc::clone(&execution).run(Arc::clone(service), request));
        Ok(execution)
    }

    /// The principal's execution of that name.
    pub(super) fn get(&self, principal: &Principal, id: &str) -> Option<Arc<Execution>> {
        let mut all = self.lock();
        forget(&mut all, principal);
        let found = all.get(id)?;
        (found.principal == *principal).then(|| Arc::clone(found))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Execution>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops those of a principal that ended long ago, and the oldest where there are too many.
fn forget(all: &mut HashMap<String, Arc<Execution>>, principal: &Principal) {
    let mut ended: Vec<(Instant, String)> = all
        .values()
        .filter(|execution| execution.principal == *principal)
        .filter_map(|execution| Some((execution.ended_at()?, execution.id.clone())))
        .collect();
    ended.sort_unstable();
    let too_many = ended.len().saturating_sub(MAX_ENDED);
    for (index, (at, id)) in ended.iter().enumerate() {
        if index < too_many || at.elapsed() > REMEMBERED {
            all.remove(id);
        }
    }
}

impl Execution {
    /// What is known of it now.
    pub(super) fn with_view<T>(&self, show: impl FnOnce(&ExecutionView<'_>) -> T) -> T {
        let progress = self.progress.borrow();
        let mut view = ExecutionView {
            execution_id: &self.id,
            state: ExecutionState::Running,
            started_at: &self.started_at,
            ended_at: None,
            response: None,
            problem: None,
        };
        if let Some(ended) = &progress.ended {
            view.ended_at = Some(ended.told.clone());
            match &ended.how {
                How::Ran(response) => {
                    view.state = ExecutionState::Ended;
                    view.response = Some(response);
                }
                How::Refused(problem) => {
                    view.state = ExecutionState::Refused;
                    view.problem = Some(problem.view());
                }
                How::Cancelled => view.state = ExecutionState::Cancelled,
            }
        }
        show(&view)
    }

    /// Ends it, and waits until it has ended. One that has ended already stays as it is.
    pub(super) async fn cancel(&self) {
        self.cancel.cancel();
        let mut progress = self.progress.subscribe();
        // Its task always says how it ended.
        let _ = progress.wait_for(|progress| progress.ended.is_some()).await;
    }

    /// Waits for what it wrote after so many pieces, or for its end.
    pub(super) async fn after(&self, seen: usize) -> Next {
        let mut progress = self.progress.subscribe();
        let known = progress
            .wait_for(|progress| progress.pieces.len() > seen || progress.ended.is_some())
            .await;
        match known {
            Ok(progress) if progress.pieces.len() > seen => {
                let pieces = progress.pieces[seen..].to_vec();
                Next::Pieces(pieces, progress.pieces.len())
            }
            _ => Next::End,
        }
    }

    async fn run(self: Arc<Self>, service: Arc<Service>, request: ExecuteRequest) {
        let has_session =
            request.session_id.is_some() || request.backend.as_deref() == Some("jupyter");
        let mut kept = Kept(Arc::clone(&self));
        let mut cut_off = CutOff(Some(Arc::clone(&self)));
        let interrupt = self.cancel.clone();
        let work = service.execute_named(
            (&self.principal, self.id.clone()),
            request,
            (&mut kept, interrupt),
        );
        let how = tokio::select! {
            ended = work => of(ended),
            // A session's turn is interrupted instead, and tells how it ended.
            () = self.cancel.cancelled(), if !has_session => How::Cancelled,
        };
        cut_off.0 = None;
        self.end(how);
    }

    fn end(&self, how: How) {
        self.progress.send_modify(|progress| {
            progress.ended = Some(Ended {
                how,
                at: Instant::now(),
                told: jiff::Timestamp::now().to_string(),
            });
        });
    }

    fn has_ended(&self) -> bool {
        self.progress.borrow().ended.is_some()
    }

    fn ended_at(&self) -> Option<Instant> {
        self.progress.borrow().ended.as_ref().map(|ended| ended.at)
    }
}

fn of(ended: Result<ExecuteResponse, ServiceError>) -> How {
    match ended {
        Ok(response) => How::Ran(Box::new(response)),
        Err(error) => How::Refused(refusal::problem(&error)),
    }
}

/// Tells those who wait for an execution that was dropped.
struct CutOff(Option<Arc<Execution>>);

impl Drop for CutOff {
    fn drop(&mut self) {
        if let Some(execution) = self.0.take() {
            execution.end(How::Cancelled);
        }
    }
}

/// Keeps what is written, as far as there is room: the answer has the head and the tail of it.
struct Kept(Arc<Execution>);

impl Observer for Kept {
    fn output(&mut self, stream: Stream, text: &str) {
        self.0.progress.send_if_modified(|progress| {
            if progress.room == 0 || text.is_empty() {
                return false;
            }
            let mut end = text.len().min(progress.room);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            // What a piece costs beside its text counts as well: it may be one letter.
            progress.room = if end < text.len() {
                0
            } else {
                progress.room.saturating_sub(end + PIECE_BYTES)
            };
            progress.pieces.push(Piece {
                stream,
                text: text[..end].to_owned(),
            });
            true
        });
    }
}
