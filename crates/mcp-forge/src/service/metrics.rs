//! What the application counts of itself, and as Prometheus reads it.
//!
//! Written by hand: the format is a page long, and the libraries for it either can fail where nothing
//! can, or write only the newer form that not every reader takes. Labels are words of ours, so there
//! are few.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{ExecuteResponse, Service, ServiceError};
use crate::{
    bridge::UpstreamState,
    environments::{Built, EnvironmentsError},
    session::SessionError,
};

/// Upper ends of the buckets of durations, in seconds.
const BUCKETS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

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
    cpu_ms: u64,
    /// By whether they succeeded.
    tool_calls: [u64; 2],
    /// Builds that were asked for, by the outcome.
    builds: BTreeMap<&'static str, u64>,
    /// Of those that led to an environment.
    build_seconds: BTreeMap<&'static str, Histogram>,
    /// What was refused because somebody must not have it, by the kind.
    violations: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Clone, Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
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
        counts.seconds.entry(self.kind).or_default().observe(took);
        let overhead = (took - response.execution_time).max(0.0);
        counts
            .overhead
            .entry(self.kind)
            .or_default()
            .observe(overhead);
        counts.cpu_ms += response.usage.cpu_ms.unwrap_or(0);
        for call in &response.tool_calls {
            counts.tool_calls[usize::from(call.status == "ok")] += 1;
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
            Ok(_) => counts
                .build_seconds
                .entry(outcome)
                .or_default()
                .observe(took),
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
        let mut counts = self.lock();
        let queued = counts.queued.entry("fresh").or_default();
        queued.observe(waited.as_secs_f64());
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

impl Histogram {
    fn observe(&mut self, value: f64) {
        for (bucket, end) in self.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(value <= end);
        }
        self.count += 1;
        self.sum += value;
    }
}

/// A refusal in one of few words.
fn reason(error: &ServiceError) -> &'static str {
    match error {
        ServiceError::Forbidden { .. } => "forbidden",
        ServiceError::Busy { .. } | ServiceError::Session(SessionError::Busy { .. }) => "busy",
        ServiceError::Session(SessionError::Full { .. }) => "too_many_sessions",
        ServiceError::Launch(_) | ServiceError::Session(SessionError::Launch(_)) => "launch",
        ServiceError::Grant(_) => "tools",
        ServiceError::Session(_) => "session",
        error if error.is_callers() => "invalid",
        _ => "failed",
    }
}

/// How a build ended that led to nothing, in one of few words.
fn build_outcome(error: &ServiceError) -> &'static str {
    let ServiceError::Environments(error) = error else {
        return if error.is_callers() {
            "invalid"
        } else {
            "failed"
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

impl Service {
    /// Everything that is counted, in Prometheus' text format.
    pub async fn metrics(&self) -> String {
        let mut page = Page::default();
        // A store that cannot be read shows elsewhere; the rest is worth reading.
        if let Ok([custom, templates]) = self.environments.count().await {
            let about = "Environments that there are, of all principals.";
            page.head("environments", "gauge", about);
            page.line("environments", &[("kind", "custom")], custom);
            page.line("environments", &[("kind", "template")], templates);
        }
        page.gauge(
            "executions_running",
            "Executions that wait or run.",
            self.metrics.running.load(Ordering::Relaxed),
        );
        let (in_use, waited_for) = self.slots.counts();
        let about = "Sandboxes: those in use by executions and sessions, those made ahead, those waited for.";
        page.head("sandboxes", "gauge", about);
        for (state, count) in [
            ("in_use", in_use + self.live_sessions()),
            ("ready", self.engine.ready()),
            ("waited_for", waited_for),
        ] {
            page.line("sandboxes", &[("state", state)], count);
        }
        page.gauge(
            "sessions_live",
            "Sessions with an interpreter in this process.",
            self.live_sessions() as u64,
        );
        let states = [
            ("starting", UpstreamState::Starting),
            ("ready", UpstreamState::Ready),
            ("failed", UpstreamState::Failed),
        ];
        let known = self.bridge.known().upstreams;
        page.head(
            "upstreams",
            "gauge",
            "MCP servers whose tools code can call.",
        );
        for (word, state) in states {
            let count = known
                .iter()
                .filter(|upstream| upstream.state == state)
                .count();
            page.line("upstreams", &[("state", word)], count);
        }
        let counts = self.metrics.lock();
        page.head(
            "executions_total",
            "counter",
            "Executions that came to an end.",
        );
        for ((kind, outcome), count) in &counts.ended {
            page.line(
                "executions_total",
                &[("sandbox", kind), ("outcome", outcome)],
                count,
            );
        }
        page.head(
            "executions_refused_total",
            "counter",
            "Requests whose code did not run.",
        );
        for (reason, count) in &counts.refused {
            page.line("executions_refused_total", &[("reason", reason)], count);
        }
        page.head("tool_calls_total", "counter", "Calls of tools by code.");
        for (word, count) in ["failed", "ok"].into_iter().zip(counts.tool_calls) {
            page.line("tool_calls_total", &[("status", word)], count);
        }
        page.head(
            "execution_cpu_seconds_total",
            "counter",
            "CPU time of executions, where the engine can tell.",
        );
        page.line(
            "execution_cpu_seconds_total",
            &[],
            Duration::from_millis(counts.cpu_ms).as_secs_f64(),
        );
        let about = "From a request to its answer.";
        let name = "execution_duration_seconds";
        page.histogram((name, about), "sandbox", &counts.seconds);
        let about = "Of that, what was not the code's own time: waiting, starting, answering.";
        let name = "execution_overhead_seconds";
        page.histogram((name, about), "sandbox", &counts.overhead);
        let about = "Time that an execution waited for room for its sandbox.";
        page.histogram(("queue_seconds", about), "sandbox", &counts.queued);
        page.environments(&counts);
        page.0
    }
}

/// A page of metrics. Writing to a String cannot fail.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, about: &str) {
        let _ = write!(
            self.0,
            "# HELP mcp_forge_{name} {about}\n# TYPE mcp_forge_{name} {kind}\n"
        );
    }

    /// The values of labels are words of ours: letters, digits, dots and underscores.
    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let _ = write!(self.0, "mcp_forge_{name}");
        for (index, (label, word)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{word}\"");
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{after} {value}");
    }

    fn gauge(&mut self, name: &str, about: &str, value: u64) {
        self.head(name, "gauge", about);
        self.line(name, &[], value);
    }

    /// What concerns environments.
    fn environments(&mut self, counts: &Counts) {
        let about = "Builds of environments that were asked for.";
        self.head("builds_total", "counter", about);
        for (outcome, count) in &counts.builds {
            self.line("builds_total", &[("outcome", outcome)], count);
        }
        let about = "From the request for a build to its environment.";
        self.histogram(("build_seconds", about), "outcome", &counts.build_seconds);
        let about = "Refusals of what somebody must not have.";
        self.head("violations_total", "counter", about);
        for (kind, count) in &counts.violations {
            self.line("violations_total", &[("kind", kind)], count);
        }
    }

    fn histogram(
        &mut self,
        (name, about): (&str, &str),
        label: &str,
        kinds: &BTreeMap<&'static str, Histogram>,
    ) {
        self.head(name, "histogram", about);
        for (kind, histogram) in kinds {
            let kind = (label, *kind);
            for (end, count) in BUCKETS.iter().zip(histogram.buckets) {
                let labels = [kind, ("le", &end.to_string())];
                self.line(&format!("{name}_bucket"), &labels, count);
            }
            let labels = [kind, ("le", "+Inf")];
            self.line(&format!("{name}_bucket"), &labels, histogram.count);
            self.line(&format!("{name}_sum"), &[kind], histogram.sum);
            self.line(&format!("{name}_count"), &[kind], histogram.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_that_is_not_larger() {
        let mut histogram = Histogram::default();
        for value in [0.001, 0.005, 0.2, 1000.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.buckets[0], 2);
        assert_eq!(histogram.buckets[5], 3);
        assert_eq!(histogram.buckets[BUCKETS.len() - 1], 3);
        assert_eq!(histogram.count, 4);
        let mut page = Page::default();
        page.histogram(
            ("x_seconds", "About."),
            "sandbox",
            &BTreeMap::from([("fresh", histogram)]),
        );
        let mut lines = page.0.lines();
        assert_eq!(lines.next(), Some("# HELP mcp_forge_x_seconds About."));
        assert_eq!(lines.next(), Some("# TYPE mcp_forge_x_seconds histogram"));
        assert_eq!(
            lines.next(),
            Some("mcp_forge_x_seconds_bucket{sandbox=\"fresh\",le=\"0.005\"} 2")
        );
        assert_eq!(
            lines.last(),
            Some("mcp_forge_x_seconds_count{sandbox=\"fresh\"} 4")
        );
    }
}
