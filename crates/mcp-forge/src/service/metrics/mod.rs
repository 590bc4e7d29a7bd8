//! What the application counts of itself. `page.rs` writes it for Prometheus. Labels are words of ours
//! or names of the operator's, so there are few.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{ExecuteResponse, ServiceError};
use crate::{
    environments::{Built, EnvironmentsError},
    session::SessionError,
    telemetry::prometheus::{BYTES, Histogram, SECONDS},
};

mod page;

/// What is counted while the server lives.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    running: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// By the kind of sandbox and the outcome.
    ended: BTreeMap<(&'static str, String), u64>,
    /// By the reason.
    refused: BTreeMap<&'static str, u64>,
    /// By the kind of sandbox: from the request to its answer, and how much of that the code ran.
    seconds: BTreeMap<&'static str, Histogram>,
    overhead: BTreeMap<&'static str, Histogram>,
    /// Time that fresh sandboxes' turns waited for room.
    queued: BTreeMap<&'static str, Histogram>,
    memory: BTreeMap<&'static str, Histogram>,
    cpu_ms: u64,
    /// Builds that were asked for, by the outcome.
    builds: BTreeMap<&'static str, u64>,
    /// Of those that led to an environment.
    build_seconds: BTreeMap<&'static str, Histogram>,
    build_cpu_ms: u64,
    /// What was refused because somebody must not have it, by the kind.
    violations: BTreeMap<&'static str, u64>,
}

/// One execution that runs. Dropped without an answer it was cancelled.
pub(super) struct Running<'a> {
    metrics: &'a Metrics,
    kind: &'static str,
    began: Instant,
    is_answered: bool,
}

impl Running<'_> {
    /// It was answered.
    pub(super) fn end(mut self, ended: &Result<ExecuteResponse, ServiceError>) {
        self.is_answered = true;
        let took = self.began.elapsed().as_secs_f64();
        let mut counts = self.metrics.lock();
        let response = match ended {
            Ok(response) => response,
            Err(error) => {
                counts.refuse(error);
                return;
            }
        };
        let outcome = (self.kind, response.outcome.clone());
        *counts.ended.entry(outcome).or_default() += 1;
        observe(&mut counts.seconds, self.kind, took);
        let overhead = (took - response.execution_time).max(0.0);
        observe(&mut counts.overhead, self.kind, overhead);
        counts.cpu_ms += response.usage.cpu_ms.unwrap_or(0);
        if let Some(bytes) = response.usage.memory_peak_bytes {
            let memory = counts.memory.entry(self.kind);
            #[expect(clippy::cast_precision_loss, reason = "buckets are coarser")]
            memory
                .or_insert_with(|| Histogram::new(BYTES))
                .observe(bytes as f64);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.metrics.running.fetch_sub(1, Ordering::Relaxed);
        if !self.is_answered {
            let outcome = (self.kind, "cancelled".to_owned());
            *self.metrics.lock().ended.entry(outcome).or_default() += 1;
        }
    }
}

/// One build that runs. Dropped without an answer it was cancelled.
pub(super) struct Building<'a> {
    metrics: &'a Metrics,
    began: Instant,
    is_answered: bool,
}

impl Building<'_> {
    /// It was answered with this.
    pub(super) fn end(mut self, built: Result<Built, ServiceError>) -> Result<Built, ServiceError> {
        self.is_answered = true;
        let took = self.began.elapsed().as_secs_f64();
        let outcome = match &built {
            Ok(built) if built.cache_hit => "cached",
            Ok(_) => "built",
            Err(error) => build_outcome(error),
        };
        let mut counts = self.metrics.lock();
        *counts.builds.entry(outcome).or_default() += 1;
        match &built {
            Ok(_) => observe(&mut counts.build_seconds, outcome, took),
            Err(error) => counts.violate(error),
        }
        drop(counts);
        built
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            *self.metrics.lock().builds.entry("cancelled").or_default() += 1;
        }
    }
}

impl Counts {
    fn refuse(&mut self, error: &ServiceError) {
        *self.refused.entry(reason(error)).or_default() += 1;
        self.violate(error);
    }

    fn violate(&mut self, error: &ServiceError) {
        if let Some(kind) = violation(error) {
            *self.violations.entry(kind).or_default() += 1;
        }
    }
}

impl Metrics {
    /// An execution begins.
    pub(super) fn begin(&self, is_session: bool) -> Running<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        Running {
            metrics: self,
            kind: if is_session { "session" } else { "fresh" },
            began: Instant::now(),
            is_answered: false,
        }
    }

    /// A request was refused before it began.
    pub(super) fn refuse(&self, error: &ServiceError) {
        self.lock().refuse(error);
    }

    /// A sandbox's room was waited for.
    pub(super) fn wait(&self, waited: Duration) {
        observe(&mut self.lock().queued, "fresh", waited.as_secs_f64());
    }

    /// A build, or part of one, has taken this CPU time.
    pub(super) fn build_took(&self, cpu_ms: u64) {
        self.lock().build_cpu_ms += cpu_ms;
    }

    /// A build is asked for.
    pub(super) fn begin_build(&self) -> Building<'_> {
        Building {
            metrics: self,
            began: Instant::now(),
            is_answered: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn observe(kinds: &mut BTreeMap<&'static str, Histogram>, kind: &'static str, seconds: f64) {
    let histogram = kinds.entry(kind);
    histogram
        .or_insert_with(|| Histogram::new(SECONDS))
        .observe(seconds);
}

/// A refusal in one of few words.
fn reason(error: &ServiceError) -> &'static str {
    match error {
        ServiceError::Forbidden { .. } => "forbidden",
        ServiceError::Busy { .. } | ServiceError::Session(SessionError::Busy { .. }) => "busy",
        ServiceError::Session(SessionError::Full { .. }) => "too_many_sessions",
        ServiceError::Launch(_) | ServiceError::Session(SessionError::Launch(_)) => "launch",
        ServiceError::CpuQuota { .. } => "cpu_quota",
        ServiceError::Grant(_) => "tools",
        ServiceError::Session(_) => "session",
        error if error.is_callers() => "invalid",
        _ => "failed",
    }
}

/// How a build ended that led to nothing, in one of few words.
fn build_outcome(error: &ServiceError) -> &'static str {
    let ServiceError::Environments(error) = error else {
        return match error {
            ServiceError::CpuQuota { .. } => "cpu_quota",
            error if error.is_callers() => "invalid",
            _ => "failed",
        };
    };
    match &**error {
        EnvironmentsError::Refused(_) | EnvironmentsError::Vulnerable(_) => "refused",
        EnvironmentsError::NeedsApproval(_) => "waiting",
        EnvironmentsError::TooManyBuilds { .. } => "too_many",
        error if error.is_callers() => "invalid",
        _ => "failed",
    }
}

/// What somebody asked for who must not have it, in one of few words.
fn violation(error: &ServiceError) -> Option<&'static str> {
    match error {
        ServiceError::Forbidden { .. } => Some("request"),
        ServiceError::Environments(error) => match &**error {
            EnvironmentsError::Refused(_) => Some("package"),
            EnvironmentsError::Vulnerable(_) => Some("vulnerability"),
            _ => None,
        },
        error => error.violation().map(|_| "sandbox"),
    }
}
