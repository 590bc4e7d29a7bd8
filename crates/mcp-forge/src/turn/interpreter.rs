//! A sandbox whose runner is connected: used for one turn, or in a session for many.

use std::time::{Duration, Instant};

use super::{
    Report, Turn,
    drive::{Drive, End},
    record::Record,
    streams::{Pipes, Streams},
    wire_caps,
};
use crate::{
    engine::{Ending, ExitCause, Guard, Sandbox},
    runner::{
        self, Events, Requests,
        wire::{FileState, Request},
    },
};

/// A connected sandbox. Dropping it kills.
pub struct Interpreter {
    pub(super) events: Events,
    pub(super) requests: Requests,
    pub(super) pipes: Pipes,
    pub(super) guard: Box<dyn Guard>,
    is_ready: bool,
}

impl std::fmt::Debug for Interpreter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interpreter")
            .field("is_ready", &self.is_ready)
            .finish_non_exhaustive()
    }
}

/// A turn that has run, before what the engine knows is added.
pub struct Ran {
    pub(super) end: End,
    pub(super) record: Record,
    pub(super) wall: Duration,
}

impl Ran {
    /// Whether the runner said how the turn ended: only then may it serve another one.
    pub const fn is_done(&self) -> bool {
        matches!(self.end, End::Done(_) | End::Interrupted(..))
    }

    /// The files of `/workspace`, if the turn's end told of them. A claim, without bounds.
    pub fn take_files(&mut self) -> Option<Vec<FileState>> {
        match &mut self.end {
            End::Done(done) | End::Interrupted(_, done) => done.files.take(),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ran")
            .field("is_done", &self.is_done())
            .field("wall", &self.wall)
            .finish_non_exhaustive()
    }
}

impl Interpreter {
    /// Connects to the runner of a sandbox that nobody has talked to.
    pub fn connect(sandbox: Sandbox) -> Self {
        let (events, requests) = runner::connect(sandbox.connection);
        Self {
            events,
            requests,
            pipes: Pipes::new(sandbox.stdout, sandbox.stderr),
            guard: sandbox.guard,
            is_ready: false,
        }
    }

    /// Runs one turn, with all that it wrote before its end.
    pub async fn turn(&mut self, turn: Turn<'_>) -> Ran {
        let started = Instant::now();
        let mut record = Record::new(&turn.caps);
        let mut streams = Streams::new(&mut self.pipes, turn.observer);
        let request = Request::Execute {
            code: turn.code.to_owned(),
            tools: turn.stubs,
            caps: wire_caps(&turn.caps),
            execution_id: turn.execution_id.map(str::to_owned),
            inspect: None,
        };
        let mut drive = Drive {
            events: &mut self.events,
            requests: &mut self.requests,
            tools: turn.tools,
            flood_bytes: turn.caps.flood_bytes,
            max_calls: turn.max_calls,
            aside: None,
        };
        let greeted = if self.is_ready {
            Ok(())
        } else {
            drive.wait_until_ready().await
        };
        self.is_ready = greeted.is_ok();
        let end = match greeted {
            Ok(()) => {
                drive
                    .run(request, turn.limits.timeout, &mut streams, &mut record)
                    .await
            }
            Err(end) => end,
        };
        let wall = started.elapsed();
        if matches!(end, End::Done(_)) {
            streams.take_written(&mut record);
        }
        Ran { end, record, wall }
    }

    /// The report of a turn whose sandbox is to end with it. The answer of a turn that is done
    /// does not wait for that end: the guard that comes back is still to be told.
    pub(super) async fn finish(
        self,
        turn: Ran,
        observer: &mut dyn super::Observer,
    ) -> (Report, Option<Box<dyn Guard>>) {
        let Self {
            mut pipes, guard, ..
        } = self;
        let Ran {
            end,
            mut record,
            wall,
        } = turn;
        if matches!(end, End::Done(_)) {
            let ending = Ending {
                cause: ExitCause::Killed,
                usage: guard.usage(),
            };
            return (record.report(end, ending, wall), Some(guard));
        }
        let ending = guard.end(end.patience()).await;
        Streams::new(&mut pipes, observer).finish(&mut record).await;
        (record.report(end, ending, wall), None)
    }
}
