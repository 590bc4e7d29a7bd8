//! Everything that is counted, as one page.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use super::{Counts, Histogram};
use crate::{bridge::UpstreamState, service::Service, telemetry::prometheus::Page};

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
        self.write_sandboxes(&mut page);
        self.write_upstreams(&mut page);
        let counts = self.metrics.lock();
        write_executions(&mut page, &counts);
        write_builds(&mut page, &counts);
        drop(counts);
        page.into_text()
    }

    fn write_sandboxes(&self, page: &mut Page) {
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
        let live = self.live_sessions() as u64;
        let about = "Sessions with an interpreter in this process.";
        page.gauge("sessions_live", about, live);
        self.ledger.settle();
        let engine = [("engine", self.engine.name())];
        let name = "sandbox_cpu_seconds_total";
        let about = "CPU time of sandboxes, those that live included, where the engine can tell.";
        page.head(name, "counter", about);
        page.line(name, &engine, self.ledger.cpu().as_secs_f64());
        let about =
            "Memory of the sandboxes that are in use at this moment, where the engine can tell.";
        page.head("sandbox_memory_bytes", "gauge", about);
        page.line("sandbox_memory_bytes", &engine, self.ledger.memory());
    }

    fn write_upstreams(&self, page: &mut Page) {
        let states = [
            ("starting", UpstreamState::Starting),
            ("ready", UpstreamState::Ready),
            ("failed", UpstreamState::Failed),
        ];
        let known = self.bridge.known().upstreams;
        let about = "MCP servers whose tools code can call.";
        page.head("upstreams", "gauge", about);
        for (word, state) in states {
            let has = known.iter().filter(|upstream| upstream.state == state);
            page.line("upstreams", &[("state", word)], has.count());
        }
        let calls = self.bridge.calls();
        let about = "Calls of tools by code, by the configured server and how they ended.";
        page.head("tool_calls_total", "counter", about);
        for (upstream, counted) in &calls {
            for (status, count) in &counted.by_status {
                let labels = [("upstream", *upstream), ("status", status)];
                page.line("tool_calls_total", &labels, count);
            }
        }
        let about = "From a tool's call to its answer.";
        let seconds = calls
            .iter()
            .map(|(upstream, counted)| (*upstream, &counted.seconds));
        page.histogram(("tool_call_duration_seconds", about), "upstream", seconds);
    }
}

fn write_executions(page: &mut Page, counts: &Counts) {
    let name = "executions_total";
    page.head(name, "counter", "Executions that came to an end.");
    for ((kind, outcome), count) in &counts.ended {
        page.line(name, &[("sandbox", kind), ("outcome", outcome)], count);
    }
    let name = "executions_refused_total";
    page.head(name, "counter", "Requests whose code did not run.");
    for (reason, count) in &counts.refused {
        page.line(name, &[("reason", reason)], count);
    }
    let name = "execution_cpu_seconds_total";
    let about = "CPU time of executions, where the engine can tell.";
    page.head(name, "counter", about);
    page.line(name, &[], seconds(counts.cpu_ms));
    let about = "From a request to its answer.";
    let name = "execution_duration_seconds";
    page.histogram((name, about), "sandbox", by_word(&counts.seconds));
    let about = "Of that, what was not the code's own time: waiting, starting, answering.";
    let name = "execution_overhead_seconds";
    page.histogram((name, about), "sandbox", by_word(&counts.overhead));
    let about = "Most memory that an execution's sandbox has used, where the engine can tell.";
    let name = "execution_memory_peak_bytes";
    page.histogram((name, about), "sandbox", by_word(&counts.memory));
    let about = "Time that an execution waited for room for its sandbox.";
    page.histogram(("queue_seconds", about), "sandbox", by_word(&counts.queued));
}

/// What concerns environments, and what was refused.
fn write_builds(page: &mut Page, counts: &Counts) {
    let about = "Builds of environments that were asked for.";
    page.head("builds_total", "counter", about);
    for (outcome, count) in &counts.builds {
        page.line("builds_total", &[("outcome", outcome)], count);
    }
    let about = "From the request for a build to its environment.";
    let build_seconds = by_word(&counts.build_seconds);
    page.histogram(("build_seconds", about), "outcome", build_seconds);
    let about = "CPU time of builds, where the engine can tell.";
    page.head("build_cpu_seconds_total", "counter", about);
    page.line("build_cpu_seconds_total", &[], seconds(counts.build_cpu_ms));
    let about = "Refusals of what somebody must not have.";
    page.head("violations_total", "counter", about);
    for (kind, count) in &counts.violations {
        page.line("violations_total", &[("kind", kind)], count);
    }
}

fn seconds(milliseconds: u64) -> f64 {
    Duration::from_millis(milliseconds).as_secs_f64()
}

fn by_word<'a>(
    kinds: &'a BTreeMap<&'static str, Histogram>,
) -> impl Iterator<Item = (&'a str, &'a Histogram)> {
    kinds.iter().map(|(word, histogram)| (*word, histogram))
}
