//! Everyday code that people expect to work.

use futures_util::{StreamExt, stream};
use mcp_forge::turn::{Outcome, Report};
use serde_json::json;

use super::places::{is_counted, roomy};
use crate::sandbox::run_with;

/// Each ends with an expression that is true when all went well.
const SNIPPETS: [(&str, &str); 30] = [
    ("alarm", include_str!("snippets/alarm.py")),
    ("archive", include_str!("snippets/archive.py")),
    (
        "asyncio_subprocess",
        include_str!("snippets/asyncio_subprocess.py"),
    ),
    (
        "asyncio_unix_socket",
        include_str!("snippets/asyncio_unix_socket.py"),
    ),
    ("certificates", include_str!("snippets/certificates.py")),
    ("faulthandler", include_str!("snippets/faulthandler.py")),
    ("file_names", include_str!("snippets/file_names.py")),
    ("locale", include_str!("snippets/locale.py")),
    ("locks", include_str!("snippets/locks.py")),
    ("manager", include_str!("snippets/manager.py")),
    ("many_processes", include_str!("snippets/many_processes.py")),
    ("memfd", include_str!("snippets/memfd.py")),
    ("metadata", include_str!("snippets/metadata.py")),
    ("mmap", include_str!("snippets/mmap.py")),
    ("no_terminal", include_str!("snippets/no_terminal.py")),
    ("numbers", include_str!("snippets/numbers.py")),
    ("own_module", include_str!("snippets/own_module.py")),
    ("pickle", include_str!("snippets/pickle.py")),
    ("pool", include_str!("snippets/pool.py")),
    (
        "process_pool_executor",
        include_str!("snippets/process_pool_executor.py"),
    ),
    ("recursion", include_str!("snippets/recursion.py")),
    ("shared_memory", include_str!("snippets/shared_memory.py")),
    ("shell", include_str!("snippets/shell.py")),
    ("sqlite", include_str!("snippets/sqlite.py")),
    (
        "temporary_files",
        include_str!("snippets/temporary_files.py"),
    ),
    ("threads", include_str!("snippets/threads.py")),
    ("time_zone", include_str!("snippets/time_zone.py")),
    ("tzset", include_str!("snippets/tzset.py")),
    ("watching", include_str!("snippets/watching.py")),
    ("who_am_i", include_str!("snippets/who_am_i.py")),
];

#[tokio::test(flavor = "multi_thread")]
async fn everyday_code_works() {
    let runs = SNIPPETS
        .into_iter()
        .map(|(name, code)| async move { (name, run(code).await) });
    let failed: Vec<_> = stream::iter(runs)
        .buffer_unordered(2)
        .filter(|(_, report)| {
            let worked = report.outcome == Outcome::Completed && report.result == json!(true);
            async move { !worked }
        })
        .map(|(name, report)| format!("{name}: {report:?}"))
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

/// Where no cgroup counts memory, a file may be no larger than the memory limit: `roomy` has 2 GiB.
#[tokio::test]
async fn a_sparse_file_may_be_larger_than_all_memory() {
    let report = run(include_str!("snippets/sparse_file.py")).await;
    if is_counted().await {
        assert_eq!(report.result, json!(true), "{report:?}");
    } else {
        let error = report.error.expect("the stand-in forbids it");
        assert_eq!(error.message, "[Errno 27] File too large");
    }
}

async fn run(code: &str) -> Report {
    run_with(&roomy(), code).await
}
