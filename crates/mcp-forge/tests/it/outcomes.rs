//! How code can end: one test for each way, on a real sandbox.

use std::time::Duration;

use mcp_forge::{engine::ExitCause, turn::Outcome};
use serde_json::json;

use crate::sandbox::{config, run, run_with};

#[tokio::test]
async fn completed() {
    let report =
        run("import os\nprint('hi')\nos.system('echo from a child')\n{'a': [1, 2.5, None]}").await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    assert_eq!(report.result, json!({"a": [1, 2.5, null]}));
    assert_eq!(report.stdout.text, "hi\nfrom a child\n");
}

#[tokio::test]
async fn raised() {
    let report = run("def f():\n    return 1 / 0\nf()").await;
    assert_eq!(report.outcome, Outcome::Raised);
    let error = report.error.unwrap();
    assert_eq!(error.kind, "ZeroDivisionError");
    assert!(
        error.traceback.contains("line 2, in f"),
        "{}",
        error.traceback
    );
    assert!(
        !error.traceback.contains("mcp_forge_runner"),
        "{}",
        error.traceback
    );
}

#[tokio::test]
async fn timed_out() {
    let mut config = config();
    config.default_limits.timeout = Duration::from_secs(1);
    let report = run_with(&config, "print('before')\nwhile True: pass").await;
    assert_eq!(report.outcome, Outcome::TimedOut);
    assert_eq!(report.stdout.text, "before\n");
}

#[tokio::test]
async fn out_of_memory() {
    let report = run("chunks = []\nwhile True: chunks.append(bytearray(8 << 20))").await;
    assert_eq!(report.outcome, Outcome::OutOfMemory, "{report:?}");
}

#[tokio::test]
async fn exited_by_itself() {
    let report = run("import os\nprint('last words', flush=True)\nos._exit(7)").await;
    assert_eq!(report.outcome, Outcome::Crashed(ExitCause::Exited(7)));
    assert_eq!(report.stdout.text, "last words\n");
}

#[tokio::test]
async fn segmentation_fault() {
    let report = run("import ctypes\nctypes.string_at(0)").await;
    assert_eq!(
        report.outcome,
        Outcome::Crashed(ExitCause::Signaled(11)),
        "{report:?}"
    );
}
