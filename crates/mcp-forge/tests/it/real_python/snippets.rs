//! Everyday code that people expect to work.

use std::{fs, path::Path};

use futures_util::{StreamExt, stream};
use mcp_forge::turn::{Outcome, Report};
use serde_json::json;

use super::places::roomy;
use crate::sandbox::run_with;

/// Each file of `snippets/` ends with an expression that is true when all went well.
#[tokio::test(flavor = "multi_thread")]
async fn everyday_code_works() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/real_python/snippets");
    let files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(files.len() >= 25, "{files:?}");
    let runs = files
        .iter()
        .map(|file| async move { (file, run(&fs::read_to_string(file).unwrap()).await) });
    let failed: Vec<_> = stream::iter(runs)
        .buffer_unordered(2)
        .filter(|(_, report)| {
            let worked = report.outcome == Outcome::Completed && report.result == json!(true);
            async move { !worked }
        })
        .map(|(file, report)| format!("{}: {report:?}", file.display()))
        .collect()
        .await;
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[tokio::test]
async fn output_of_c_code_is_captured() {
    let report = run("import ctypes\nctypes.CDLL(None).printf(b'%d from C\\n', 42)\nNone").await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    assert_eq!(report.stdout.text, "42 from C\n");
}

async fn run(code: &str) -> Report {
    run_with(&roomy(), code).await
}
