//! What is kept of a turn while it runs, and the report made of it.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{
    Display, MAX_DISPLAYS, MAX_REPR_CHARS, Observer, Outcome, Report, Stream, ToolCallRecord,
    drive::{End, Stop},
    json_size, output,
};
use crate::{
    config::OutputCaps,
    engine::{Ending, ExitCause},
    runner::wire::Done,
};

/// Bytes by which a result may exceed its cap, for markers and envelopes.
const SLACK: u64 = 64 << 10;

/// What is kept of a turn while it runs.
pub(super) struct Record {
    stdout: output::Keep,
    stderr: output::Keep,
    pub(super) output_bytes: u64,
    displays: Vec<Display>,
    display_bytes: usize,
    display_cap: usize,
    result_cap: usize,
    displays_dropped: u64,
    pub(super) tool_calls: Vec<ToolCallRecord>,
}

impl Record {
    pub(super) fn new(caps: &OutputCaps) -> Self {
        Self {
            stdout: output::Keep::new(caps.output_bytes),
            stderr: output::Keep::new(caps.output_bytes),
            output_bytes: 0,
            displays: Vec::new(),
            display_bytes: 0,
            display_cap: caps.display_bytes,
            result_cap: caps.result_bytes,
            displays_dropped: 0,
            tool_calls: Vec::new(),
        }
    }

    pub(super) fn output(&mut self, stream: Stream, piece: &[u8], observer: &mut dyn Observer) {
        self.output_bytes += piece.len() as u64;
        let keep = if stream == Stream::Stdout {
            &mut self.stdout
        } else {
            &mut self.stderr
        };
        if let Some(text) = keep.push(piece) {
            observer.output(stream, &text);
        }
    }

    pub(super) fn finish_output(&mut self, observer: &mut dyn Observer) {
        for (stream, keep) in [
            (Stream::Stdout, &mut self.stdout),
            (Stream::Stderr, &mut self.stderr),
        ] {
            if let Some(text) = keep.rest() {
                observer.output(stream, &text);
            }
        }
    }

    /// The runner caps displays itself; a runner that does not is user code, and loses the rest.
    pub(super) fn display(&mut self, display: Display) {
        let size = usize::try_from(json_size(&display)).unwrap_or(usize::MAX);
        let fits = self.display_bytes.saturating_add(size) <= self.display_cap + (1 << 20);
        if fits && self.displays.len() <= MAX_DISPLAYS {
            self.display_bytes += size;
            self.displays.push(display);
        } else {
            self.displays_dropped += size as u64;
            // A flood like any other.
            self.output_bytes += size as u64;
        }
    }

    /// What the runner cuts by itself. One that does not is user code, and keeps nothing.
    fn enforce_caps(&self, done: &mut Done, truncated: &mut Map<String, Value>) {
        let size = json_size(&done.result);
        if size > self.result_cap as u64 + SLACK {
            done.result = Value::Null;
            truncated.insert("result".to_owned(), size.into());
        }
        if let Some(text) = &mut done.result_repr {
            shorten(text);
        }
        if let Some(error) = &mut done.error {
            for text in [&mut error.kind, &mut error.message, &mut error.traceback] {
                shorten(text);
            }
        }
        // Five names at most; more is no report of ours.
        if truncated.len() > 16 {
            truncated.clear();
        }
    }

    pub(super) fn report(mut self, end: End, ending: Ending, wall: Duration) -> Report {
        let mut done = Done::default();
        let outcome = match end {
            End::Done(told) => {
                done = *told;
                told_outcome(&done)
            }
            End::Interrupted(stop, told) => {
                // Where it was interrupted is worth knowing; a value that came after all is not.
                done.error = told.error;
                stopped_outcome(stop)
            }
            End::TimedOut => Outcome::TimedOut,
            End::Flooded => Outcome::OutputLimit,
            End::Cancelled => Outcome::Cancelled,
            End::NotReady(reason) => {
                died(ending.cause, &format!("the runner did not start: {reason}"))
            }
            End::Broken(error) => died(ending.cause, &error.to_string()),
        };
        if let Some(data) = done.result_display.take() {
            self.display(Display {
                data,
                metadata: Map::new(),
            });
        }
        let mut truncated = std::mem::take(&mut done.truncated);
        self.enforce_caps(&mut done, &mut truncated);
        if self.displays_dropped > 0 {
            truncated.insert("displays".to_owned(), self.displays_dropped.into());
        }
        Report {
            outcome,
            result: done.result,
            result_repr: done.result_repr,
            stdout: self.stdout.captured(),
            stderr: self.stderr.captured(),
            displays: self.displays,
            error: done.error,
            truncated,
            tool_calls: self.tool_calls,
            wall,
            usage: ending.usage,
        }
    }
}

/// Shortens a text that the runner should have shortened.
fn shorten(text: &mut String) {
    if text.len() > 4 * MAX_REPR_CHARS {
        let end = text.floor_char_boundary(4 * MAX_REPR_CHARS);
        text.truncate(end);
    }
}

const fn stopped_outcome(stop: Stop) -> Outcome {
    match stop {
        Stop::Deadline => Outcome::TimedOut,
        Stop::Flood => Outcome::OutputLimit,
        Stop::Cancel => Outcome::Cancelled,
    }
}

/// The outcome of a turn that ended in order.
fn told_outcome(done: &Done) -> Outcome {
    match &done.error {
        None => Outcome::Completed,
        // Python noticed before the kernel had to: for the caller it is the same limit.
        Some(error) if error.kind == "MemoryError" => Outcome::OutOfMemory,
        Some(_) => Outcome::Raised,
    }
}

/// The outcome of a turn whose runner went away. What the kernel saw counts, not what was said.
fn died(cause: ExitCause, reason: &str) -> Outcome {
    match cause {
        ExitCause::OutOfMemory => Outcome::OutOfMemory,
        // Alive until we killed it: it had only closed or spoilt its connection.
        ExitCause::Killed => Outcome::Crashed(ExitCause::Lost(reason.to_owned())),
        ExitCause::Lost(reason) => Outcome::SandboxError(reason),
        cause => Outcome::Crashed(cause),
    }
}
