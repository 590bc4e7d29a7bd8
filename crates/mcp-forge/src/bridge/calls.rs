//! What is counted of the calls to one upstream.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::{
    runner::wire::ToolFailure,
    telemetry::prometheus::{Histogram, SECONDS},
};

/// The calls of tools of one upstream, since the server began.
#[derive(Debug)]
pub(super) struct Calls(Mutex<Counted>);

/// How many calls ended how, and how long they took.
#[derive(Debug, Clone)]
pub struct Counted {
    /// By `ok`, `cancelled`, or the kind of the failure.
    pub by_status: BTreeMap<&'static str, u64>,
    /// From the call to its answer.
    pub seconds: Histogram,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Counted {
            by_status: BTreeMap::new(),
            seconds: Histogram::new(SECONDS),
        }))
    }

    /// A call begins.
    pub(super) fn begin(&self) -> Call<'_> {
        Call {
            calls: self,
            began: Instant::now(),
            status: "cancelled",
        }
    }

    pub(super) fn counted(&self) -> Counted {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that runs. Dropped without an answer it was cancelled.
pub(super) struct Call<'a> {
    calls: &'a Calls,
    began: Instant,
    status: &'static str,
}

impl Call<'_> {
    /// It was answered with this.
    pub(super) fn end<T>(mut self, answer: Result<T, ToolFailure>) -> Result<T, ToolFailure> {
        self.status = match &answer {
            Ok(_) => "ok",
            Err(failure) => failure.kind.name(),
        };
        answer
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut counted = self.calls.lock();
        *counted.by_status.entry(self.status).or_default() += 1;
        counted.seconds.observe(self.began.elapsed().as_secs_f64());
    }
}
