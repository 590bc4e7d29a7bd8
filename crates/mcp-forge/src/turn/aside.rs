//! What a session's sandbox sends outside of its turns: late output, and calls that nobody may make.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Captured, Display, Stream, json_size, output::Keep};
use crate::runner::{
    ProtocolError,
    wire::{Event, Request, ToolAnswer, ToolFailure, ToolFailureKind},
};

/// Kept of each stream between two turns, in bytes.
const OUTPUT_BYTES: usize = 64 << 10;

/// Kept of displays between two turns, in bytes.
const DISPLAY_BYTES: u64 = 1 << 20;

/// Displays kept between two turns.
const DISPLAYS: usize = 20;

/// Calls between two turns that are refused one by one. Who makes more is not served any more.
const REFUSALS: usize = 1000;

/// What threads and child processes of earlier turns wrote while no turn of theirs ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BetweenTurns {
    /// To standard output.
    pub stdout: String,
    /// To standard error.
    pub stderr: String,
    /// MIME bundles.
    pub displays: Vec<Display>,
    /// Bytes that were left out of all three.
    pub dropped_bytes: u64,
}

/// The bucket for all that.
pub(super) struct Aside {
    stdout: Keep,
    stderr: Keep,
    displays: Vec<Display>,
    display_bytes: u64,
    dropped: u64,
    /// All that came since the last taking, kept or not.
    bytes: u64,
    flood_bytes: u64,
    /// Answers to calls, not yet sent.
    owed: VecDeque<Request>,
    /// Answers of the runner that nobody waits for any more.
    stale: usize,
}

impl Aside {
    pub(super) fn new(flood_bytes: u64) -> Self {
        Self {
            stdout: Keep::new(OUTPUT_BYTES),
            stderr: Keep::new(OUTPUT_BYTES),
            displays: Vec::new(),
            display_bytes: 0,
            dropped: 0,
            bytes: 0,
            flood_bytes,
            owed: VecDeque::new(),
            stale: 0,
        }
    }

    /// Keeps an event that belongs to no turn. Gives back one that is an answer.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`]: the sandbox must be ended.
    pub(super) fn take(&mut self, event: Event) -> Result<Option<Event>, ProtocolError> {
        match event {
            Event::LateOutput { stream, text, .. } => {
                let stream = if stream == "stderr" {
                    Stream::Stderr
                } else {
                    Stream::Stdout
                };
                self.output(stream, text.as_bytes());
            }
            Event::LateDisplay { data, metadata, .. } | Event::Display { data, metadata } => {
                self.display(Display { data, metadata });
            }
            Event::ToolCall { call_id, .. } => {
                if self.owed.len() >= REFUSALS {
                    return Err(ProtocolError::TooManyCalls(REFUSALS as u64));
                }
                self.refuse(call_id);
            }
            Event::Inspected(_)
            | Event::FileWritten { .. }
            | Event::FileRead { .. }
            | Event::Branched { .. }
            | Event::SessionStarted { .. } => {
                if self.stale == 0 {
                    return Ok(Some(event));
                }
                self.stale -= 1;
            }
            Event::Done(_) | Event::Ready { .. } => return Err(ProtocolError::Unexpected),
        }
        if self.bytes > self.flood_bytes {
            return Err(ProtocolError::Flooded(self.flood_bytes));
        }
        Ok(None)
    }

    /// Keeps a piece of output.
    pub(super) fn output(&mut self, stream: Stream, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        match stream {
            Stream::Stdout => self.stdout.push(piece),
            Stream::Stderr => self.stderr.push(piece),
        };
    }

    pub(super) fn is_flooded(&self) -> bool {
        self.bytes > self.flood_bytes
    }

    /// Has the caller of a tool told that its turn is over.
    pub(super) fn refuse(&mut self, call_id: u64) {
        self.owe(Request::ToolResult {
            call_id,
            answer: ToolAnswer::Error(ToolFailure {
                kind: ToolFailureKind::NotGranted,
                message: "no turn is running that may call tools: the one that started this thread is over"
                    .to_owned(),
            }),
        });
    }

    /// Has a request sent when there is time.
    pub(super) fn owe(&mut self, request: Request) {
        self.owed.push_back(request);
    }

    /// The next of them; it stays until it is [`Self::paid`].
    pub(super) fn owed(&self) -> Option<&Request> {
        self.owed.front()
    }

    /// The next of them was sent.
    pub(super) fn paid(&mut self) {
        self.owed.pop_front();
    }

    /// One answer that is still to come will be of no use.
    pub(super) fn give_up_answer(&mut self) {
        self.stale += 1;
    }

    /// What was kept, if anything, and a fresh start.
    pub(super) fn taken(&mut self) -> Option<BetweenTurns> {
        if self.bytes == 0 {
            return None;
        }
        let fresh = Self {
            owed: std::mem::take(&mut self.owed),
            stale: self.stale,
            ..Self::new(self.flood_bytes)
        };
        let Self {
            stdout,
            stderr,
            displays,
            dropped,
            ..
        } = std::mem::replace(self, fresh);
        let (stdout, stderr): (Captured, Captured) = (stdout.captured(), stderr.captured());
        Some(BetweenTurns {
            dropped_bytes: dropped + stdout.dropped_bytes + stderr.dropped_bytes,
            stdout: stdout.text,
            stderr: stderr.text,
            displays,
        })
    }

    fn display(&mut self, display: Display) {
        let size = json_size(&display);
        self.bytes = self.bytes.saturating_add(size);
        if self.displays.len() < DISPLAYS && self.display_bytes + size <= DISPLAY_BYTES {
            self.display_bytes += size;
            self.displays.push(display);
        } else {
            self.dropped = self.dropped.saturating_add(size);
        }
    }
}
