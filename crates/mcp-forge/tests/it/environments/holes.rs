//! Holes that were found by reading, each shut: named after what went through.

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Duration};

use mcp_forge::{
    environments::{EnvironmentsError, Selection, Teller},
    names::Principal,
    packages::{EnvironmentName, Requirement, Template},
    store::Store,
};
use serde_json::json;

use super::{
    hostile::offline,
    index::Index,
    place::{Place, request},
};

fn custom(name: &str) -> Selection {
    Selection::Custom(EnvironmentName::parse(name).unwrap())
}

async fn open(place: &Place, name: &str) -> Result<String, EnvironmentsError> {
    let (teller, _told) = Teller::new();
    let me = Principal::local();
    let opened = place.environments.open(&me, &custom(name), &teller).await?;
    Ok(opened.id.clone())
}

/// The cache is in reach of every later job: what it shares a file with, a job can change.
#[tokio::test(flavor = "multi_thread")]
async fn no_file_of_a_tree_is_in_the_cache_as_well() {
    fn look(directory: &Path, files: &mut usize) {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let found = entry.metadata().unwrap();
            if found.is_dir() {
                look(&entry.path(), files);
            } else {
                *files += 1;
                assert_eq!(found.nlink(), 1, "{}", entry.path().display());
            }
        }
    }
    let place = offline(&["good"], |_| {});
    let built = place.build("e", &["good"]).await.unwrap();
    let mut files = 0;
    let trees = place.config.data_dir.join("environments");
    look(&trees.join(built.lock_hash), &mut files);
    assert!(files > 4, "{files}");
}

/// A wheel with many directories in directories is refused, and stays in the cache: every later job
/// was taken for one that writes too much.
#[tokio::test(flavor = "multi_thread")]
async fn a_deep_wheel_in_the_cache_ends_no_other_build() {
    // Many files take long enough to be looked at.
    let place = offline(&["many"], |_| {});
    let deep = place.config.environments.uv_cache.join("cache/deep");
    fs::create_dir_all(deep.join("d/".repeat(80))).unwrap();
    place.build("e", &["many"]).await.unwrap();
}

/// A build that is dropped while it checks leaves a tree that never counted: it goes, and what the
/// engine keeps of it is not what the next build is checked with.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_is_dropped_in_its_checks_is_undone() {
    let place = offline(&["slow_import"], |_| {});
    // Pools are what would remember it.
    mcp_forge::engine::Engine::prepare(&*place.engine)
        .await
        .unwrap();
    let (teller, mut told) = Teller::new();
    let me = Principal::local();
    let wanted = request("e", &["slow_import"]);
    let building = place.environments.build(&me, wanted, &teller);
    tokio::select! {
        built = building => panic!("it was done: {built:?}"),
        _ = told.wait_for(|now| now.detail.starts_with("import slow")) => {}
    }
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    while place.trees().iter().any(|name| name.len() == 64) {
        assert!(std::time::Instant::now() < deadline, "{:?}", place.trees());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    place.build("e", &["slow_import"]).await.unwrap();
}

fn archiving(kinds: &[&str], change: impl FnOnce(&mut mcp_forge::config::Config)) -> Place {
    offline(kinds, |config| {
        config.environments.archive_after = Duration::ZERO;
        config.environments.delete_after = Duration::from_hours(24);
        change(config);
    })
}

fn again(place: Place, change: impl FnOnce(&mut mcp_forge::config::Config)) -> Place {
    let wheels = place.config.environments.wheel_directory.clone();
    Place::in_directory(place.into_directory(), |config| {
        config.environments.wheel_directory = wheels;
        change(config);
    })
}

/// What is archived is built again when it is used: not where nothing may be built, and never without
/// a record.
#[tokio::test(flavor = "multi_thread")]
async fn restoring_is_building() {
    let place = archiving(&["good"], |_| {});
    place.build("e", &["good"]).await.unwrap();
    place.environments.tidy().await.unwrap();
    let place = again(place, |config| config.environments.enabled = false);
    let error = open(&place, "e").await.unwrap_err();
    assert!(matches!(error, EnvironmentsError::Disabled), "{error}");
    let place = again(place, |config| {
        let blocked = ["helper".to_owned()];
        config.environments.rules =
            mcp_forge::packages::Rules::new(&[], false, &blocked, &[]).unwrap();
    });
    let error = open(&place, "e").await.unwrap_err();
    assert!(matches!(error, EnvironmentsError::Refused(_)), "{error}");
    assert_eq!(place.events("security.violation").len(), 1);
    let place = again(place, |_| {});
    open(&place, "e").await.unwrap();
    let events = place.events("environment.restore");
    assert_eq!(events.len(), 4, "begun and ended, twice: {events:?}");
    assert_eq!(events[1]["success"], json!(false));
    assert_eq!(events[3]["success"], json!(true));
}

/// The lock is all that is needed; the template may be another by now, or gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_is_gone_hinders_no_restoring() {
    let name = EnvironmentName::parse("tiny").unwrap();
    let place = archiving(&["good"], |config| {
        let template = Template {
            description: String::new(),
            packages: vec![Requirement::parse("good").unwrap()],
        };
        config.environments.templates.insert(name.clone(), template);
    });
    let mut wanted = request("e", &[]);
    wanted.template = Some(name);
    let (teller, _told) = Teller::new();
    let me = Principal::local();
    let built = place
        .environments
        .build(&me, wanted, &teller)
        .await
        .unwrap();
    place.tidied().await;
    let place = again(place, |_| {});
    assert_eq!(open(&place, "e").await.unwrap(), built.lock_hash);
}

/// A clock that was ahead and is right again makes nothing old.
#[tokio::test(flavor = "multi_thread")]
async fn a_use_in_the_future_is_no_old_one() {
    let place = offline(&["good"], |_| {});
    place.build("e", &["good"]).await.unwrap();
    let store = Store::new(&place.config.data_dir);
    let me = Principal::local();
    let mut record = store.environment(me.as_str(), "e").await.unwrap().unwrap();
    record.used_ms += 1000 * 86_400_000;
    store.put_environment(&record).await.unwrap();
    place.environments.tidy().await.unwrap();
    assert_eq!(place.run("e", "import good; good.value").await, json!(1));
}

/// The last environment that has files is not the last that has a name.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_archived_is_forgotten_too() {
    let place = archiving(&["good"], |_| {});
    place.build("e", &["good"]).await.unwrap();
    place.tidied().await;
    let place = again(place, |config| {
        config.environments.delete_after = Duration::ZERO;
    });
    place.environments.tidy().await.unwrap();
    let listed = place.environments.list(&Principal::local()).await.unwrap();
    assert!(listed.custom.is_empty());
}

/// A tree that was built when nobody demanded a scan is not handed out unscanned.
#[tokio::test(flavor = "multi_thread")]
async fn a_cached_tree_is_no_way_around_the_scanner() {
    let place = offline(&["good"], |config| {
        config.environments.scanner = mcp_forge::config::Scanner::Off;
    });
    place.build("e", &["good"]).await.unwrap();
    let place = again(place, |config| {
        config.environments.scanner = mcp_forge::config::Scanner::Trivy;
    });
    let error = place.build("f", &["good"]).await.unwrap_err();
    assert!(matches!(error, EnvironmentsError::Vulnerable(_)), "{error}");
}

/// Files of an index with a password need it as its pages do; and it is told to nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_of_an_index_opens_its_files_and_is_written_nowhere() {
    let pages = tempfile::tempdir().unwrap();
    let index = Index::start_for(pages.path(), &["good"], "ada:canary").await;
    let place = Place::new(|config| config.environments.index = index.url("ada:canary@"));
    let built = place.build("e", &["good"]).await.unwrap();
    assert_eq!(built.installed_packages, ["good==1.0", "helper==1.0"]);
    // As an extra index its packages are told to be its.
    let place = again(place, |config| {
        config.environments.index = index.url("ada:canary@");
        let named = index.named("own", &["good", "helper"]);
        config.environments.extra_indexes = vec![mcp_forge::config::ExtraIndex {
            url: index.url("ada:canary@"),
            ..named
        }];
    });
    place.build("f", &["good"]).await.unwrap();
    let place = again(place, |config| {
        config.environments.index = index.url("ada:canary2@");
    });
    let error = place.build("g", &["good>=1"]).await.unwrap_err();
    assert!(error.to_string().contains("401"), "{error}");
    assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
    let searched = files_with(place.directory.path(), b"canary");
    assert_eq!(searched, Vec::<String>::new());
    // The control: what is written there is found.
    fs::write(place.directory.path().join("note"), "a canary").unwrap();
    assert_eq!(files_with(place.directory.path(), b"canary").len(), 1);
}

/// The files below a directory that hold a text. What ended builds left may go meanwhile.
fn files_with(directory: &Path, text: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() {
            found.extend(files_with(&entry.path(), text));
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).unwrap_or_default();
            if bytes.windows(text.len()).any(|window| window == text) {
                found.push(entry.path().display().to_string());
            }
        }
    }
    found
}

/// A tree that is there costs nothing to name: names have their own bound.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_one_principal_are_bounded() {
    let place = offline(&["good"], |_| {});
    place.build("e", &["good"]).await.unwrap();
    let store = Store::new(&place.config.data_dir);
    let me = Principal::local();
    let mut record = store.environment(me.as_str(), "e").await.unwrap().unwrap();
    for number in 0..199 {
        record.name = format!("n{number}");
        store.put_environment(&record).await.unwrap();
    }
    let error = place.build("f", &["good"]).await.unwrap_err().to_string();
    assert!(error.contains("200 environments"), "{error}");
    place.build("e", &["good"]).await.unwrap();
}
