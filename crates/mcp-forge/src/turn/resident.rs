//! An interpreter that stays: a session's, which runs one turn after the other.
//!
//! A turn that must stop is interrupted first; only one that does not stop then costs the
//! interpreter. What it sends while no turn runs is read all the same, bounded, and kept aside.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use super::{
    BetweenTurns, Interpreter, Ran, Report, Turn,
    aside::Aside,
    drive::{Drive, End, Stop},
    record::Record,
    streams::Streams,
    wire_caps,
};
use crate::{
    config::OutputCaps,
    engine::{BranchError, Ending, ExitCause, Guard, Sandbox, SandboxSpec, Usage},
    runner::{
        self, ProtocolError,
        wire::{Event, InspectBounds, Request},
    },
};

/// Time for a fresh interpreter to say that it is ready, and for its shell to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a shell's name.
const SHELL_BYTES: usize = 64;

/// Time for a turn to end once it was interrupted.
const GRACE: Duration = Duration::from_secs(5);

/// Interrupts in that time. The first is not felt if the interpreter has not begun with the code yet.
const INTERRUPTS: u32 = 2;

/// Time for a copy to be made.
const BRANCH_LIMIT: Duration = Duration::from_secs(30);

/// Time for an interrupt to arrive that no turn may have felt: it must not hit the next one.
const INTERRUPT_TRAVEL: Duration = Duration::from_millis(100);

/// A session's interpreter. Dropping it kills.
pub struct Resident {
    interpreter: Interpreter,
    aside: Aside,
    caps: OutputCaps,
}

impl std::fmt::Debug for Resident {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resident").finish_non_exhaustive()
    }
}

/// An interpreter did not do what it was asked between two turns.
#[derive(Debug, thiserror::Error)]
pub enum ResidentError {
    /// It is gone or disturbed: it must be ended.
    #[error(transparent)]
    Broken(#[from] ProtocolError),
    /// It said nothing in time. It may go on living: what it says later is passed over.
    #[error("it did not answer in {} s", .0.as_secs_f64())]
    Silent(Duration),
}

/// An interpreter was not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// It is gone or disturbed: it must be ended.
    #[error(transparent)]
    Broken(#[from] ProtocolError),
    /// The engine could not; it goes on.
    #[error(transparent)]
    Engine(#[from] BranchError),
    /// The runner would not: its words name what is in the way. It goes on.
    #[error("{0}")]
    Unfit(String),
}

impl Resident {
    /// Makes a fresh sandbox a session's. Also says what its shell is, in the runner's words.
    ///
    /// # Errors
    ///
    /// How the sandbox ended, and what was seen of it before. It is gone.
    pub async fn start(
        sandbox: Sandbox,
        caps: OutputCaps,
    ) -> Result<(Self, String), (ResidentError, Ending)> {
        let mut resident = Self::connect(sandbox, caps);
        match resident.greet().await {
            Ok(shell) => Ok((resident, shell)),
            Err(error) => Err((error, resident.end(Duration::from_millis(500)).await)),
        }
    }

    /// Takes over a copy that was made of another session's interpreter: it has its shell already.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn adopt(
        sandbox: Sandbox,
        caps: OutputCaps,
    ) -> Result<Self, (ResidentError, Ending)> {
        let mut resident = Self::connect(sandbox, caps);
        match resident.wait_until_ready().await {
            Ok(()) => Ok(resident),
            Err(error) => Err((error, resident.end(Duration::from_millis(500)).await)),
        }
    }

    fn connect(sandbox: Sandbox, caps: OutputCaps) -> Self {
        Self {
            interpreter: Interpreter::connect(sandbox),
            // While nobody waits, nobody needs as much as a turn may write.
            aside: Aside::new(caps.flood_bytes),
            caps,
        }
    }

    async fn greet(&mut self) -> Result<String, ResidentError> {
        self.wait_until_ready().await?;
        let answer = self.ask(&Request::StartSession {}, START_TIMEOUT).await?;
        if let Event::SessionStarted { mut shell } = answer {
            shell.truncate(shell.floor_char_boundary(SHELL_BYTES));
            Ok(shell)
        } else {
            Err(ProtocolError::Unexpected.into())
        }
    }

    async fn wait_until_ready(&mut self) -> Result<(), ResidentError> {
        match tokio::time::timeout(START_TIMEOUT, self.interpreter.events.next()).await {
            Ok(Ok(Event::Ready { .. })) => Ok(()),
            Ok(Ok(_)) => Err(ProtocolError::Unexpected.into()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(ResidentError::Silent(START_TIMEOUT)),
        }
    }

    /// Runs one turn. At its deadline, when it floods, or when `cancelled` ends, it is interrupted;
    /// whether that helped is [`Ran::is_done`]. With `inspect` the interpreter then says what it holds,
    /// without being asked once more: [`Self::answer`] waits for that.
    ///
    /// # Cancel safety
    ///
    /// None: an interpreter in the middle of a turn can only be dropped.
    pub async fn turn(
        &mut self,
        turn: Turn<'_>,
        inspect: Option<InspectBounds>,
        cancelled: impl Future<Output = ()>,
    ) -> Ran {
        let started = Instant::now();
        self.take_written();
        let mut record = Record::new(&turn.caps);
        let request = Request::Execute {
            code: turn.code.to_owned(),
            tools: turn.stubs,
            caps: wire_caps(&turn.caps),
            execution_id: turn.execution_id.map(str::to_owned),
            inspect,
        };
        let Interpreter {
            events,
            requests,
            pipes,
            guard,
            ..
        } = &mut self.interpreter;
        let mut streams = Streams::new(pipes, turn.observer);
        let drive = Drive {
            events: &mut *events,
            requests: &mut *requests,
            tools: turn.tools,
            flood_bytes: turn.caps.flood_bytes,
            max_calls: turn.max_calls,
            aside: Some(&mut self.aside),
        };
        let end = {
            let exchange = drive.exchange(Some(request), &mut streams, &mut record);
            tokio::pin!(exchange);
            let stop = tokio::select! {
                biased;
                end = &mut exchange => Err(end),
                () = tokio::time::sleep(turn.limits.timeout) => Ok(Stop::Deadline),
                () = cancelled => Ok(Stop::Cancel),
            };
            match stop {
                Err(end) => end,
                Ok(stop) => {
                    let (told, sent) = interrupt(&mut **guard, exchange).await;
                    settle(stop, told, sent).await
                }
            }
        };
        let end = if let End::Flooded = end {
            guard.interrupt().await;
            let drive = Drive {
                events,
                requests,
                tools: turn.tools,
                flood_bytes: u64::MAX,
                max_calls: 0,
                aside: Some(&mut self.aside),
            };
            let rest = drive.exchange(None, &mut streams, &mut record);
            let told = tokio::time::timeout(GRACE, rest).await;
            settle(Stop::Flood, told.ok(), 1).await
        } else {
            end
        };
        let wall = started.elapsed();
        if matches!(end, End::Done(_) | End::Interrupted(..)) {
            streams.take_written(&mut record);
        }
        Ran { end, record, wall }
    }

    /// The report of a turn that is done. `before` is what had been used when it began.
    pub fn report(&self, turn: Ran, before: Usage) -> Report {
        let ending = Ending {
            cause: ExitCause::Killed,
            usage: since(self.usage(), before),
        };
        turn.record.report(turn.end, ending, turn.wall)
    }

    /// Ends the interpreter in whose turn it was lost, and tells of both.
    pub async fn report_loss(
        self,
        turn: Ran,
        before: Usage,
        observer: &mut dyn super::Observer,
    ) -> (Report, ExitCause) {
        let Interpreter {
            mut pipes, guard, ..
        } = self.interpreter;
        let Ran {
            end,
            mut record,
            wall,
        } = turn;
        let mut ending = guard.end(end.patience()).await;
        Streams::new(&mut pipes, observer).finish(&mut record).await;
        ending.usage = since(ending.usage, before);
        let cause = ending.cause.clone();
        (record.report(end, ending, wall), cause)
    }

    /// What it has used so far.
    pub fn usage(&self) -> Usage {
        self.interpreter.guard.usage()
    }

    /// Reads on while no turn runs. Ends only when the interpreter has.
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses nothing.
    pub async fn idle(&mut self) -> ProtocolError {
        loop {
            match self.next_aside().await {
                Ok(None) => {}
                // An answer without a question.
                Ok(Some(_)) => return ProtocolError::Unexpected,
                Err(error) => return error,
            }
        }
    }

    /// Asks something between two turns, and waits for the answer: the next event that is one.
    ///
    /// # Errors
    ///
    /// [`ResidentError`].
    ///
    /// # Cancel safety
    ///
    /// None: an answer would be taken for another's.
    pub async fn ask(
        &mut self,
        request: &Request,
        limit: Duration,
    ) -> Result<Event, ResidentError> {
        let mut is_asked = false;
        let answered = async {
            let requests = &mut self.interpreter.requests;
            requests.ready().await?;
            requests.put(request)?;
            is_asked = true;
            requests.flush().await?;
            self.next_answer().await
        };
        if let Ok(answer) = tokio::time::timeout(limit, answered).await {
            return answer.map_err(ResidentError::Broken);
        }
        if is_asked {
            self.aside.give_up_answer();
        }
        Err(ResidentError::Silent(limit))
    }

    /// Waits for the answer to what was asked with a turn.
    ///
    /// # Errors
    ///
    /// [`ResidentError`].
    ///
    /// # Cancel safety
    ///
    /// As [`Self::ask`].
    pub async fn answer(&mut self, limit: Duration) -> Result<Event, ResidentError> {
        if let Ok(answer) = tokio::time::timeout(limit, self.next_answer()).await {
            return answer.map_err(ResidentError::Broken);
        }
        self.aside.give_up_answer();
        Err(ResidentError::Silent(limit))
    }

    /// What was written and shown since the last taking, but not by the turns between.
    pub fn take_between(&mut self) -> Option<BetweenTurns> {
        self.take_written();
        self.aside.taken()
    }

    /// Has it copied into a second sandbox, which is to be adopted.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; unless it says that the interpreter is broken, that goes on as before.
    pub async fn branch(&mut self, spec: &SandboxSpec) -> Result<Sandbox, CopyError> {
        self.interpreter.requests.ready().await?;
        self.interpreter.requests.flush().await?;
        let request = runner::frame(&Request::Branch {})?;
        let copy = self.interpreter.guard.branch(spec, &request).await?;
        match tokio::time::timeout(BRANCH_LIMIT, self.next_answer()).await {
            Ok(Ok(Event::Branched {
                error: None,
                pid: Some(pid),
            })) => Ok(copy.confirm(pid).await?),
            Ok(Ok(Event::Branched {
                error: Some(mut reason),
                ..
            })) => {
                reason.truncate(reason.floor_char_boundary(1000));
                Err(CopyError::Unfit(reason))
            }
            Ok(Ok(_)) => Err(ProtocolError::Unexpected.into()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => {
                self.aside.give_up_answer();
                Err(BranchError::Failed(format!(
                    "the interpreter did not answer in {} s",
                    BRANCH_LIMIT.as_secs()
                ))
                .into())
            }
        }
    }

    /// Gives it `patience` to end by itself, then kills it.
    pub async fn end(self, patience: Duration) -> Ending {
        self.interpreter.guard.end(patience).await
    }

    async fn next_answer(&mut self) -> Result<Event, ProtocolError> {
        loop {
            if let Some(answer) = self.next_aside().await? {
                return Ok(answer);
            }
        }
    }

    /// Waits for one thing that belongs to no turn. An answer comes back.
    async fn next_aside(&mut self) -> Result<Option<Event>, ProtocolError> {
        let Interpreter {
            events,
            requests,
            pipes,
            ..
        } = &mut self.interpreter;
        tokio::select! {
            biased;
            event = events.next() => return self.aside.take(event?),
            paid = pay(requests, self.aside.owed()) => {
                paid?;
                self.aside.paid();
            }
            (stream, length) = pipes.read() => {
                let piece = pipes.piece(stream, length);
                if !piece.is_empty() {
                    self.aside.output(stream, piece);
                }
            }
        }
        if self.aside.is_flooded() {
            return Err(ProtocolError::Flooded(self.caps.flood_bytes));
        }
        Ok(None)
    }

    /// What lies in the pipes now was written before whatever comes next.
    fn take_written(&mut self) {
        let pipes = &mut self.interpreter.pipes;
        while let Some((stream, length)) = pipes.read_now() {
            let piece = pipes.piece(stream, length);
            self.aside.output(stream, piece);
            if self.aside.is_flooded() {
                // The next look at it ends the session.
                break;
            }
        }
    }
}

/// Interrupts a turn, and gives it its time to end. Also says how many interrupts were sent.
async fn interrupt(
    guard: &mut dyn Guard,
    mut exchange: Pin<&mut impl Future<Output = End>>,
) -> (Option<End>, u32) {
    for sent in 1..=INTERRUPTS {
        guard.interrupt().await;
        let told = tokio::time::timeout(GRACE / INTERRUPTS, &mut exchange).await;
        if told.is_ok() {
            return (told.ok(), sent);
        }
    }
    (None, INTERRUPTS)
}

/// What an interrupted turn has come to.
async fn settle(stop: Stop, told: Option<End>, sent: u32) -> End {
    match told {
        Some(End::Done(done)) => {
            let felt = done
                .error
                .as_ref()
                .is_some_and(|error| error.kind == "KeyboardInterrupt");
            // At most one was felt.
            if !felt || sent > 1 {
                tokio::time::sleep(INTERRUPT_TRAVEL).await;
            }
            End::Interrupted(stop, done)
        }
        Some(End::Broken(error)) => End::Broken(error),
        _ => match stop {
            Stop::Deadline => End::TimedOut,
            Stop::Flood => End::Flooded,
            Stop::Cancel => End::Cancelled,
        },
    }
}

/// Sends what is owed. For ever, if nothing is.
async fn pay(requests: &mut runner::Requests, owed: Option<&Request>) -> Result<(), ProtocolError> {
    let Some(request) = owed else {
        return std::future::pending().await;
    };
    requests.ready().await?;
    // Not waited for: from here on it is sent, and must not be sent twice.
    requests.put(request)?;
    let _ = futures_util::FutureExt::now_or_never(requests.flush());
    Ok(())
}

/// What one turn used of what was used in all. The peak of memory is of the whole life.
fn since(now: Usage, before: Usage) -> Usage {
    Usage {
        cpu_ms: now
            .cpu_ms
            .zip(before.cpu_ms)
            .map(|(now, before)| now.saturating_sub(before)),
        ..now
    }
}
