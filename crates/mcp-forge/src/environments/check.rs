//! Whether the installed packages can be used: their modules are imported in an ordinary sandbox.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::{Map, Value, json};

use super::{
    EnvironmentsError,
    progress::{Phase, Taken, Teller},
};
use crate::{
    config::OutputCaps,
    engine::{Engine, Environment, Purpose, SandboxSpec},
    limits::Limits,
    runner::wire::{ToolFailure, ToolFailureKind, ToolValue},
    text::clipped,
    turn::{self, Observer, Outcome, Stream, Tools, Turn},
};

/// Imports each module of `MODULES`.
const CHECK: &str = include_str!("check.py");

/// Time for all of them. The largest frameworks take ten seconds each.
const TIME: Duration = Duration::from_mins(3);

/// Modules whose names say that they are not for use, and which some wheels bring by mistake.
const STRAYS: [&str; 8] = [
    "test",
    "tests",
    "testing",
    "doc",
    "docs",
    "example",
    "examples",
    "benchmarks",
];

/// What may run the check.
pub(super) struct Checker<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) limits: &'a Limits,
    pub(super) caps: OutputCaps,
}

/// Modules that cannot be imported, and why.
pub(super) type Failures = BTreeMap<String, String>;

impl Checker<'_> {
    /// Imports the modules of an environment, which maps each to its distribution. A module of a
    /// distribution that was asked for must import; what else fails is given back.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError::Import`], or no sandbox could be had.
    pub(super) async fn imports(
        &self,
        (id, environment): (String, Arc<Environment>),
        modules: &BTreeMap<String, String>,
        asked_for: &BTreeSet<&str>,
        teller: &Teller,
    ) -> Result<Failures, EnvironmentsError> {
        let names: Vec<&String> = modules.keys().filter(|name| is_for_use(name)).collect();
        if names.is_empty() {
            return Ok(Failures::new());
        }
        let limits = Limits {
            timeout: TIME,
            ..self.limits.clone()
        };
        let spec = SandboxSpec {
            id,
            limits: limits.clone(),
            purpose: Purpose::default(),
            environment: Some(environment),
        };
        let sandbox = self.engine.launch(&spec).await?;
        let mut watch = LastLine {
            teller,
            of: names.len(),
            seen: 0,
            line: String::new(),
        };
        let turn = Turn {
            code: &format!("MODULES = {}\n{CHECK}", json!(names)),
            execution_id: None,
            stubs: Vec::new(),
            tools: &NoTools,
            observer: &mut watch,
            limits: &limits,
            caps: self.caps,
            max_calls: 0,
        };
        let mut taken = Taken::begin(teller, sandbox.guard.meter());
        let (report, guard) = Box::pin(turn::run(sandbox, turn)).await;
        taken.tell(report.usage.cpu_ms);
        if let Some(guard) = guard {
            guard.end(Duration::ZERO).await;
        }
        if report.outcome != Outcome::Completed {
            let last = clipped(watch.line.trim());
            return Err(EnvironmentsError::Import(format!(
                "importing `{last}` ended as {}",
                report.outcome.name()
            )));
        }
        verdict(&names, &report.result, |name| {
            let from = modules.get(name);
            from.is_some_and(|from| asked_for.contains(from.as_str()))
        })
    }
}

/// What a report from inside means: only names of ours go on, and texts that are cut.
fn verdict(
    names: &[&String],
    report: &Value,
    must_import: impl Fn(&str) -> bool,
) -> Result<Failures, EnvironmentsError> {
    let mut failures = Failures::new();
    for name in names {
        if let Some(reason) = report.get(name).and_then(Value::as_str) {
            failures.insert((*name).clone(), reason.chars().take(300).collect());
        }
    }
    match failures.iter().find(|(name, _)| must_import(name)) {
        Some((name, reason)) => Err(EnvironmentsError::Import(format!(
            "`import {name}` raised {}",
            clipped(reason)
        ))),
        None => Ok(failures),
    }
}

/// Whether a module is meant to be imported by whoever installs its distribution.
fn is_for_use(name: &str) -> bool {
    !name.starts_with('_') && !STRAYS.contains(&name)
}

/// Tells which module is being imported.
struct LastLine<'a> {
    teller: &'a Teller,
    of: usize,
    seen: usize,
    line: String,
}

impl Observer for LastLine<'_> {
    fn output(&mut self, stream: Stream, text: &str) {
        if stream != Stream::Stdout {
            return;
        }
        for line in text.lines().filter(|line| !line.is_empty()) {
            self.seen += 1;
            self.line = line.chars().take(100).collect();
        }
        let detail = format!(
            "import {} ({} of {})",
            clipped(&self.line),
            self.seen.min(self.of),
            self.of
        );
        self.teller.phase(Phase::Checking, detail);
    }
}

/// The check calls no tool.
struct NoTools;

#[async_trait::async_trait]
impl Tools for NoTools {
    async fn call(&self, _: &str, _: Map<String, Value>) -> Result<ToolValue, ToolFailure> {
        Err(ToolFailure {
            kind: ToolFailureKind::NotGranted,
            message: "there are no tools here".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_and_stray_modules_are_left_alone() {
        for name in ["_cffi_backend", "__pycache__", "tests", "docs"] {
            assert!(!is_for_use(name), "{name}");
        }
        for name in ["numpy", "pytest", "testcontainers"] {
            assert!(is_for_use(name), "{name}");
        }
    }
}
