//! Row J11: a disk that is full in the middle of a build.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use super::hostile::make_wheels;
use crate::{packages::uv, sandbox::binary};

/// From one that holds not even the store to one that all but holds the environment.
const SIZES: &str = "262144,2097152,6291456,12582912,16777216,20971520,25165824,29360128,33554432";

/// Whatever is written when the disk is full, nothing half can be used, and with room again it works.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_ends_a_build_with_a_sentence_and_nothing_half() {
    let told = told();
    let failed = |one: &&Value| one["build"]["status"] != 0;
    assert!(told.iter().filter(failed).count() >= 5, "{told:#?}");
    for one in &told {
        let size = &one["size"];
        if one["build"]["status"] == 0 {
            // The control: what comes of a build that had room enough.
            assert_eq!(one["use"]["stdout"], "60\n", "{size}: {one:#?}");
            continue;
        }
        let said = one["build"]["stderr"].as_str().unwrap();
        let last = said.trim().lines().last().unwrap();
        let names_it = ["No space left on device", "disk is full"];
        assert!(
            names_it.iter().any(|words| said.contains(words)) && last.len() < 3_000,
            "{size}: {said}"
        );
        assert_ne!(one["use"]["status"], 0, "{size}: {one:#?}");
        assert_eq!(one["after"]["usable"], serde_json::json!([]), "{size}");
        assert_eq!(one["after"]["staging"], serde_json::json!([]), "{size}");
        assert_eq!(one["after"]["trees"], serde_json::json!([]), "{size}");
        if one["list"]["status"] == 0 {
            let listed = one["list"]["stdout"].as_str().unwrap();
            let listed: Value = serde_json::from_str(listed).unwrap();
            assert_eq!(listed["custom"], serde_json::json!([]), "{size}");
        }
        assert_eq!(one["again"]["status"], 0, "{size}: {one:#?}");
        assert_eq!(one["use_again"]["stdout"], "60\n", "{size}: {one:#?}");
        let trees = one["after_again"]["trees"].as_array().unwrap();
        assert_eq!(trees.len(), 1, "{size}: {trees:?}");
    }
    // In more than one phase: a disk that is full before the first byte shows little.
    let phases = told.iter().filter(failed).map(|one| {
        let said = one["build"]["stderr"].as_str().unwrap();
        ["checking", "installing", "downloading", "resolving"]
            .into_iter()
            .find(|phase| said.lines().any(|line| line == *phase))
    });
    let phases: std::collections::BTreeSet<_> = phases.collect();
    assert!(phases.len() >= 2, "{phases:?}");
}

/// What came of it at each size, on disks that only this test sees.
#[expect(clippy::disallowed_methods, reason = "a test drives the program")]
fn told() -> Vec<Value> {
    let place = tempfile::tempdir().unwrap();
    let directory = |name: &str| {
        let path = place.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let (disk, wheels) = (directory("disk"), directory("wheels"));
    make_wheels(&wheels, &["large"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/environments/full_disk.py");
    let mut command = Command::new("unshare");
    // Who is not root may mount in a user namespace of its own only.
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command
        .args(["--mount", "--propagation", "private", "/usr/bin/python3.11"])
        .arg(script)
        .arg(&disk)
        .arg(SIZES)
        .arg(binary())
        .arg("--data-dir")
        .arg(disk.join("data"))
        .env("MCP_FORGE_ENVIRONMENT_BUILDER_UV", uv())
        .env(
            "MCP_FORGE_ENVIRONMENT_BUILDER_UV_CACHE_PATH",
            disk.join("uv"),
        )
        .env("MCP_FORGE_ENVIRONMENT_BUILDER_WHEEL_DIRECTORY", &wheels)
        .env("MCP_FORGE_PYTHON_PATH", "/usr/bin/python3.11");
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    let text = String::from_utf8(done.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
