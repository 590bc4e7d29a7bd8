//! Wheels and requests that mean harm: refused by name, or without effect.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use mcp_forge::{config::Config, environments::EnvironmentsError, packages::Rules};
use serde_json::json;

use super::{names, place::Place};

/// A place whose only source of packages is a directory with these kinds of wheels.
pub(super) fn offline(kinds: &[&str], change: impl FnOnce(&mut Config)) -> Place {
    let directory = tempfile::tempdir().unwrap();
    let wheels = directory.path().join("wheels");
    fs::create_dir(&wheels).unwrap();
    make_wheels(&wheels, kinds);
    Place::in_directory(directory, |config| {
        config.environments.wheel_directory = Some(wheels);
        change(config);
    })
}

#[expect(clippy::disallowed_methods, reason = "tests make their wheels")]
pub(super) fn make_wheels(directory: &Path, kinds: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/environments/wheels.py");
    let made = Command::new("/usr/bin/python3.11")
        .arg(script)
        .arg(directory)
        .args(kinds)
        .status()
        .unwrap();
    assert!(made.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn wheels_of_the_operators_own_directory_are_built_without_an_index() {
    let place = offline(&["good"], |_| {});
    let built = place.build("e", &["good"]).await.unwrap();
    assert_eq!(built.installed_packages, ["good==1.0", "helper==1.0"]);
    let value = place
        .run("e", "import good, helper; good.value + helper.value")
        .await;
    assert_eq!(value, json!(2));
}

/// What `uv` or a check of ours refuses: nothing is published, nothing is written elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_wheels_are_refused_and_write_nothing_elsewhere() {
    let refused = ["misnamed", "breaking", "dying", "source_only"];
    let place = offline(&refused, |_| {});
    for kind in refused {
        let error = place.build("e", &[kind]).await.unwrap_err().to_string();
        assert!(!error.is_empty());
        assert_no_trees(&place, &format!("{kind}: {error}"));
        assert_clean(&place, kind);
    }
}

/// What is installed all the same has no effect beyond its own tree.
#[tokio::test(flavor = "multi_thread")]
async fn odd_wheels_are_refused_or_harmless() {
    let odd = [
        "absolute",
        "climbing",
        "doubled",
        "entry",
        "linked_through",
        "linking",
        "many",
        "no_record",
        "odd_record",
        "scripts",
    ];
    let place = offline(&odd, |_| {});
    for kind in odd {
        match place.build("e", &[kind]).await {
            Ok(built) => {
                let tree = place
                    .config
                    .data_dir
                    .join("environments")
                    .join(&built.lock_hash);
                assert_eq!(links_below(&tree), Vec::<String>::new(), "{kind}");
                let code = format!("import {kind}; {kind}.__file__");
                let file = place.run("e", &code).await;
                assert!(
                    file.as_str().unwrap().starts_with("/opt/environment/"),
                    "{file}"
                );
            }
            Err(error) => assert_no_trees(&place, &format!("{kind}: {error}")),
        }
        assert_clean(&place, kind);
        let me = mcp_forge::names::Principal::local();
        let name = mcp_forge::packages::EnvironmentName::parse("e").unwrap();
        let _ = place.environments.delete(&me, &name).await;
    }
}

/// Row J9: what a package runs when an interpreter starts runs inside sandboxes only.
#[tokio::test(flavor = "multi_thread")]
async fn startup_files_run_in_sandboxes_only() {
    let place = offline(&["starting"], |_| {});
    place.build("e", &["starting"]).await.unwrap();
    let started = place.run("e", "import os; os.environ.get('STARTED')").await;
    assert_eq!(started, json!("1"), "the control: it does run there");
    for home in [
        std::env::var("HOME").unwrap_or_default(),
        "/tmp".to_owned(),
        "/".to_owned(),
    ] {
        assert!(
            !Path::new(&home).join("fg-wheel-ran").exists(),
            "it ran on the host"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_or_takes_too_long_is_ended() {
    let place = offline(&["huge", "good"], |config| {
        config.environments.max_bytes = 20 << 20;
    });
    let error = place.build("e", &["huge"]).await.unwrap_err();
    assert!(
        matches!(error, EnvironmentsError::TooLarge { .. }),
        "{error}"
    );
    assert_no_trees(&place, "huge");
    let place = offline(&["sleeping"], |config| {
        config.environments.max_build_time = Duration::from_secs(4);
    });
    let began = Instant::now();
    let error = place.build("e", &["sleeping"]).await.unwrap_err();
    assert!(matches!(error, EnvironmentsError::TimedOut(4)), "{error}");
    assert!(began.elapsed() < Duration::from_mins(1));
}

/// What was published and not checked when the time was over is gone as soon as the server is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_ends_in_its_check_leaves_no_tree() {
    let place = offline(&["sleeping"], |config| {
        config.environments.max_build_time = Duration::from_secs(4);
    });
    place.build("e", &["sleeping"]).await.unwrap_err();
    place.environments.settled().await;
    assert_eq!(place.trees(), Vec::<String>::new());
    assert_eq!(names(&place.config.environments.uv_cache), ["cache"]);
}

/// Files of which none is too large, and all together are: what was written of them is bounded.
#[tokio::test(flavor = "multi_thread")]
async fn many_files_that_are_too_large_together_fill_no_disk() {
    let place = offline(&["swollen"], |config| {
        config.environments.max_bytes = 20 << 20;
    });
    let error = place.build("e", &["swollen"]).await.unwrap_err();
    assert!(
        matches!(error, EnvironmentsError::TooLarge { .. }),
        "{error}"
    );
    place.environments.settled().await;
    let taken = bytes_below(&place.config.data_dir);
    assert!(taken < 32 << 20, "{taken} bytes are left");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_forks_without_end_ends_with_its_sandbox() {
    let place = offline(&["fork_bomb", "good"], |config| {
        config.environments.max_build_time = Duration::from_secs(20);
    });
    place.build("e", &["fork_bomb"]).await.unwrap_err();
    place.build("f", &["good"]).await.unwrap();
}

/// Row J5: what only a dependency brings is judged as what was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_dependency_is_judged_and_the_refusal_is_in_the_audit_log() {
    let place = offline(&["blocked_below"], |config| {
        let blocked = ["OS_sys".to_owned()];
        config.environments.rules = Rules::new(&[], false, &blocked, &[]).unwrap();
    });
    let error = place.build("e", &["blocked_below"]).await.unwrap_err();
    let EnvironmentsError::Refused(refusals) = &error else {
        panic!("{error}")
    };
    assert_eq!(refusals[0].package, "os-sys");
    let violations = place.events("security.violation");
    assert_eq!(violations[0]["package"], "os-sys");
    assert_eq!(violations[0]["environment"], "e");
}

/// Nothing of a build is left, and nothing was written where nothing should be.
pub(super) fn assert_clean(place: &Place, kind: &str) {
    let uv = place.config.environments.uv_cache.clone();
    let deadline = Instant::now() + Duration::from_mins(1);
    // A build's directories go in the background.
    while names(&uv) != ["cache"] {
        assert!(Instant::now() < deadline, "{kind}: left {:?}", names(&uv));
        std::thread::sleep(Duration::from_millis(20));
    }
    for path in ["/climbed.py", "/evil", "/tmp/climbed.py"] {
        assert!(!Path::new(path).exists(), "{kind} wrote {path}");
    }
    assert!(!uv.join("cache/absolute.py").exists(), "{kind}");
    for above in [place.directory.path(), &place.config.data_dir] {
        let there = names(above);
        assert!(
            !there
                .iter()
                .any(|name| name.contains("evil") || name.contains("climbed")),
            "{kind}: {there:?}"
        );
    }
}

/// Nothing is published, nor about to be.
pub(super) fn assert_no_trees(place: &Place, kind: &str) {
    let deadline = Instant::now() + Duration::from_mins(1);
    // What grew goes in the background.
    while !place.trees().is_empty() {
        assert!(Instant::now() < deadline, "{kind}: {:?}", place.trees());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().flatten();
    let bytes = entries.map(|entry| match entry.metadata().unwrap() {
        found if found.is_dir() => bytes_below(&entry.path()),
        found => found.len(),
    });
    bytes.sum()
}

fn links_below(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_symlink() {
            found.push(entry.path().display().to_string());
        } else if kind.is_dir() {
            found.extend(links_below(&entry.path()));
        }
    }
    found
}
