//! Builds from the public index: what is built can be used, and everybody who asks gets one answer.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use mcp_forge::{
    environments::{EnvironmentsError, Phase, Teller},
    names::Principal,
    packages::EnvironmentName,
    service::{ExecuteRequest, Service},
    turn::{Observer, Stream},
};
use serde_json::{Value, json};

use super::{
    names,
    place::{Place, request},
};
use crate::{packages::uv, sandbox::binary};

struct Quiet;
impl Observer for Quiet {
    fn output(&mut self, _: Stream, _: &str) {}
}

/// The specification's second example, to its end, on data that the code makes.
const CHURN: &str = "
import io
import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
import xgboost as xgb

random = np.random.default_rng(7)
made = pd.DataFrame(random.normal(size=(400, 5)), columns=list('abcde'))
made['churn'] = (made.a + made.b > 0).astype(int)
df = pd.read_csv(io.StringIO(made.to_csv(index=False)))
X = df.drop('churn', axis=1)
y = df['churn']
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=1)
rf_model = RandomForestClassifier(n_estimators=50, random_state=1).fit(X_train, y_train)
xgb_model = xgb.XGBClassifier(n_estimators=30).fit(X_train, y_train)
rf_score, xgb_score = rf_model.score(X_test, y_test), xgb_model.score(X_test, y_test)
{
  'random_forest_accuracy': rf_score,
  'xgboost_accuracy': xgb_score,
  'best_model': 'xgboost' if xgb_score > rf_score else 'random_forest',
}";

#[tokio::test(flavor = "multi_thread")]
async fn real_packages_are_built_from_the_index_and_do_their_work() {
    let place = Place::new(|config| {
        // Several hundred megabytes, from far away.
        config.environments.max_build_time = Duration::from_mins(30);
    });
    let packages = [
        "numpy>=1.24.0",
        "pandas>=2.0.0",
        "scikit-learn>=1.3.0",
        "xgboost>=2.0.0",
        "matplotlib>=3.7.0",
        "requests",
        "beautifulsoup4",
        "lxml",
    ];
    let (teller, mut told) = Teller::new();
    let phases = tokio::spawn(async move {
        let mut phases = vec![Phase::Waiting];
        while told.changed().await.is_ok() {
            let phase = told.borrow_and_update().phase;
            if phases.last() != Some(&phase) {
                phases.push(phase);
            }
        }
        phases
    });
    let me = Principal::local();
    let built = place
        .environments
        .build(&me, request("churn", &packages), &teller)
        .await
        .unwrap();
    drop(teller);
    let phases = phases.await.unwrap();
    assert!(
        phases.contains(&Phase::Downloading) && phases.contains(&Phase::Checking),
        "{phases:?}"
    );
    assert!(!built.cache_hit);
    assert!(built.size_mb > 300.0, "{}", built.size_mb);
    assert!(
        built
            .installed_packages
            .iter()
            .any(|package| package.starts_with("scipy=="))
    );
    let value = place.run("churn", CHURN).await;
    assert!(
        value["random_forest_accuracy"].as_f64().unwrap() > 0.7,
        "{value}"
    );
    assert!(value["xgboost_accuracy"].as_f64().unwrap() > 0.7, "{value}");
    let soup = "
from bs4 import BeautifulSoup
import lxml.etree, requests
[link['href'] for link in BeautifulSoup('<p><a href=\"/x\">x</a></p>', 'lxml').find_all('a')]";
    assert_eq!(place.run("churn", soup).await, json!(["/x"]));
    // The same again, under another name and in another order, is a lookup.
    let mut again = packages;
    again.reverse();
    let second = place.build("churn-2", &again).await.unwrap();
    assert!(second.cache_hit);
    assert_eq!(second.lock_hash, built.lock_hash);
    assert_eq!(place.trees(), [built.lock_hash.as_str()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn code_and_sessions_run_with_the_environment_that_they_name() {
    let place = Place::new(|_| {});
    place.build("small", &["six==1.17.0"]).await.unwrap();
    let service = place.service();
    let run = |request: ExecuteRequest| {
        let service = std::sync::Arc::clone(&service);
        async move { service.execute(request, &mut Quiet).await }
    };
    let code = |code: &str| ExecuteRequest {
        code: code.to_owned(),
        custom_image: Some("mcp-forge/custom:small".to_owned()),
        ..ExecuteRequest::default()
    };
    let version = "import six; six.__version__";
    let answer = run(code(version)).await.unwrap();
    assert_eq!(
        (answer.result, answer.environment.as_str()),
        (json!("1.17.0"), "small")
    );
    // In a session it is named once, and is there again after a loss.
    let in_session = |text: &str, image: Option<&str>| ExecuteRequest {
        session_id: Some("s".to_owned()),
        custom_image: image.map(str::to_owned),
        ..code(text)
    };
    run(in_session(version, Some("small"))).await.unwrap();
    let later = run(in_session(version, None)).await.unwrap();
    assert_eq!(
        (later.result, later.environment.as_str()),
        (json!("1.17.0"), "small")
    );
    let lost = run(in_session("import os; os._exit(1)", None))
        .await
        .unwrap();
    assert!(!lost.success);
    assert_eq!(
        run(in_session("1", None)).await.unwrap().outcome,
        "session_lost"
    );
    let anew = run(in_session(version, None)).await.unwrap();
    assert_eq!(anew.result, json!("1.17.0"), "{anew:?}");
    let listed = service.list_sessions(&Principal::local()).await.unwrap();
    assert_eq!(listed[0].environment, "small");
    let other = ExecuteRequest {
        environment: Some("default".to_owned()),
        custom_image: None,
        ..in_session("1", None)
    };
    let refused = run(other).await.unwrap_err().to_string();
    assert!(refused.contains("the environment `small`"), "{refused}");
    // It is in use: the name goes, and what runs goes on.
    let me = Principal::local();
    service.delete_environment(&me, "small").await.unwrap();
    assert_eq!(
        run(in_session(version, None)).await.unwrap().result,
        json!("1.17.0")
    );
    let gone = run(code(version)).await.unwrap_err().to_string();
    assert!(
        gone.starts_with("there is no environment `small`"),
        "{gone}"
    );
    service.delete_session(&me, "s").await.unwrap();
    service.shutdown().await;
    place.tidied().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_is_built_once_by_many_clients_of_two_servers() {
    let place = Place::new(|_| {});
    let neighbour = place.neighbour();
    let me = Principal::local();
    let builds = (0..6).map(|number| {
        let environments = if number % 2 == 0 {
            &place.environments
        } else {
            &neighbour
        };
        let me = &me;
        async move {
            let (teller, _told) = Teller::new();
            environments
                .build(me, request("e", &["six", "idna"]), &teller)
                .await
                .unwrap()
        }
    });
    let built = futures_util::future::join_all(builds).await;
    let made = built.iter().filter(|built| !built.cache_hit).count();
    assert_eq!(made, 1, "{built:?}");
    assert_eq!(place.trees(), [built[0].lock_hash.as_str()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_build_leaves_nothing() {
    let place = Place::new(|_| {});
    for until in [Phase::Resolving, Phase::Downloading, Phase::Checking] {
        let (teller, mut told) = Teller::new();
        let me = Principal::local();
        let build = place
            .environments
            .build(&me, request("e", &["numpy"]), &teller);
        let reached = async {
            told.wait_for(|progress| progress.phase == until)
                .await
                .map(drop)
        };
        tokio::select! {
            done = build => panic!("it was done before {until:?}: {done:?}"),
            reached = reached => reached.unwrap(),
        }
        let uv = &place.config.environments.uv_cache;
        let deadline = Instant::now() + Duration::from_mins(1);
        while names(uv) != ["cache"] || !place.trees().is_empty() {
            assert!(
                Instant::now() < deadline,
                "left: {:?} {:?}",
                names(uv),
                place.trees()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let name = EnvironmentName::parse("e").unwrap();
        let error = place.environments.info(&me, &name).await.unwrap_err();
        assert!(matches!(error, EnvironmentsError::Unknown(_)), "{error}");
        let builds = place.events("environment.build");
        assert_eq!(builds.last().unwrap()["outcome"], "cancelled", "{builds:?}");
    }
    place.environments.settled().await;
    place.tidied().await;
    place.build("e", &["numpy"]).await.unwrap();
}

/// Row J11: whenever the server is killed, no half environment can be used, and the next server
/// removes what is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_leaves_no_half_environment() {
    let place = Place::new(|_| {});
    for phase in ["resolving", "downloading", "installing", "checking"] {
        let mut server = program(&place, &["env", "build", "e", "numpy"])
            .spawn()
            .unwrap();
        let said = server.stderr.take().unwrap();
        let phase_name = phase.to_owned();
        let reached = tokio::task::spawn_blocking(move || {
            use std::io::BufRead;
            let lines = std::io::BufReader::new(said).lines();
            lines.map_while(Result::ok).any(|line| line == phase_name)
        });
        assert!(reached.await.unwrap(), "never {phase}");
        server.kill().unwrap();
        server.wait().unwrap();
        let listed = output(program(&place, &["env", "list", "--json"]));
        let listed: Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed["custom"], json!([]), "{phase}");
        // A killed server's job ends by itself, a moment later.
        let deadline = Instant::now() + Duration::from_mins(1);
        let uv = &place.config.environments.uv_cache;
        let mut tidied = Ok(());
        let is_clean = || names(uv) == ["cache"] && place.trees().is_empty();
        while !is_clean() {
            assert!(
                Instant::now() < deadline,
                "{phase}: {:?} {:?} {tidied:?}",
                names(uv),
                place.trees()
            );
            // What still writes may hold it up.
            tidied = place.neighbour().tidy().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    output(program(&place, &["env", "build", "e", "numpy"]));
    let code = "import numpy; int(numpy.arange(4).sum())";
    assert_eq!(
        output(program(&place, &["run", "--env", "e", "-c", code])).trim(),
        "6"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_hold_back_and_an_approval_lets_in() {
    let place = Place::new(|config| {
        let list = |names: &[&str]| {
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>()
        };
        let rules =
            mcp_forge::packages::Rules::new(&[], false, &list(&["urllib3"]), &list(&["si*"]));
        config.environments.rules = rules.unwrap();
    });
    let error = place
        .build("e", &["requests"])
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "the build was refused: `urllib3` is blocked (packages.blocklist: urllib3)"
    );
    let error = place.build("e", &["six"]).await.unwrap_err().to_string();
    assert!(
        error.contains("`six` needs an approval (packages.manual_approval: si*)"),
        "{error}"
    );
    let service = place.service();
    let waiting = service.approvals().await.unwrap();
    assert_eq!(
        (waiting[0].package.as_str(), waiting[0].environment.as_str()),
        ("six", "e")
    );
    service
        .approve_packages(&["SIX".to_owned()], "local")
        .await
        .unwrap();
    place.build("e", &["six"]).await.unwrap();
    assert_eq!(place.events("environment.approved").len(), 1);
    assert!(service.revoke_approval("six", "local").await.unwrap());
    // What was built may be used; it may not be built again.
    place.run("e", "import six").await;
    place.build("f", &["six"]).await.unwrap_err();
    service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_requests_are_told() {
    let place = Place::new(|config| {
        config.environments.max_packages = 2;
        config.environments.rate.requests = 1;
    });
    let error = place
        .build("e", &["six", "idna", "attrs"])
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`packages` has 3 packages, more than the 2"),
        "{error}"
    );
    let error = place.build("e", &[]).await.unwrap_err().to_string();
    assert!(error.starts_with("`packages` is empty"), "{error}");
    let error = place
        .build("ml-basic", &["six"])
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("which is a template's"), "{error}");
    place.build("e", &["six"]).await.unwrap();
    // A lookup costs nothing, a build does.
    place.build("e", &["six"]).await.unwrap();
    let error = place.build("e", &["idna"]).await.unwrap_err();
    assert!(
        matches!(error, EnvironmentsError::TooManyBuilds { .. }),
        "{error}"
    );
    let error = place
        .build("no", &["fg-no-such-package-1"])
        .await
        .unwrap_err();
    assert!(
        matches!(error, EnvironmentsError::TooManyBuilds { .. }),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_resolved_is_told_in_the_resolvers_words() {
    let place = Place::new(|_| {});
    let error = place
        .build("e", &["six==1.17.0", "six==1.16.0"])
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the packages cannot be resolved: "),
        "{error}"
    );
    assert!(error.contains("six==1.16.0"), "{error}");
    let error = place
        .build("e", &["fg-no-such-package-1"])
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("fg-no-such-package-1"), "{error}");
    assert!(!error.contains("/build"), "{error}");
}

/// Row J6: each package comes from the index that is named for it, or the build is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_package_comes_from_its_own_index_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let index = super::index::Index::start(&directory.path().join("index"), &["good"]).await;
    let place = Place::in_directory(directory, |config| {
        config.environments.extra_indexes = vec![index.named("own", &["good", "helper"])];
    });
    let built = place.build("e", &["good", "six"]).await.unwrap();
    assert_eq!(built.installed_packages.len(), 3, "{built:?}");
    // `helper` is on that index as well and not listed for it: it could be anybody's.
    let place = Place::in_directory(place.into_directory(), |config| {
        config.environments.extra_indexes = vec![index.named("own", &["good"])];
    });
    let error = place.build("f", &["good"]).await.unwrap_err().to_string();
    assert!(
        error.contains("`helper` would come from") && error.contains("belongs to the main index"),
        "{error}"
    );
}

pub(super) fn program(place: &Place, arguments: &[&str]) -> Command {
    let cache = &place.config.environments.uv_cache;
    #[expect(clippy::disallowed_methods, reason = "tests drive the program")]
    let mut command = Command::new(binary());
    command
        .args(["--data-dir".as_ref(), place.config.data_dir.as_os_str()])
        .args(arguments)
        .env("MCP_FORGE_ENVIRONMENT_BUILDER_UV", uv())
        .env("MCP_FORGE_ENVIRONMENT_BUILDER_UV_CACHE_PATH", cache)
        .env("MCP_FORGE_PYTHON_PATH", "/usr/bin/python3.11")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(super) fn output(mut command: Command) -> String {
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    String::from_utf8(done.stdout).unwrap()
}

/// The service refuses what makes no sense, and says which field.
#[tokio::test]
async fn requests_are_refused_by_the_field() {
    let place = Place::new(|_| {});
    let service = place.service();
    for (request, field, part) in [
        (json!({}), "name", "is missing"),
        (
            json!({"name": "A B"}),
            "name",
            "cannot be an environment's name",
        ),
        (
            json!({"name": "e", "packages": ["numpy", "-r /etc/passwd"]}),
            "packages[1]",
            "packages[1]",
        ),
        (
            json!({"name": "e", "additional_packages": ["six"]}),
            "additional_packages",
            "`template`",
        ),
        (
            json!({"name": "e", "packages": ["six"], "python_version": "2.7"}),
            "python_version",
            "2.7",
        ),
        (
            json!({"name": "e", "packages": ["six"], "base_image": "alpine\nRUN x"}),
            "base_image",
            "python:3.11",
        ),
        (
            json!({"name": "e", "packages": ["six"], "base_image": "docker://python:3.11"}),
            "base_image",
            "python:3.11",
        ),
        (
            json!({"name": "e", "packages": ["six"], "base_image": "oci:/etc"}),
            "base_image",
            "python:3.11",
        ),
        (
            json!({"name": "e", "packages": ["six"], "base_image": "dir:/etc"}),
            "base_image",
            "python:3.11",
        ),
        (
            json!({"name": "e", "packages": ["six"], "base_image": "python:3.11@sha256:00"}),
            "base_image",
            "python:3.11",
        ),
        (
            json!({"name": "e", "packages": ["six"], "base_image": "169.254.169.254/python:3.11"}),
            "base_image",
            "python:3.11",
        ),
        (
            json!({"name": "e", "packages": ["six"], "base_image": "python:3.12\nENV X=1"}),
            "base_image",
            "python:3.11",
        ),
        (
            json!({"name": "e", "packages": ["six"], "base_image": "python:latest"}),
            "base_image",
            "python:3.11",
        ),
        (
            json!({"name": "e", "packages": ["six"], "python_version": "3.12\nRUN x"}),
            "python_version",
            "3.12",
        ),
        (
            json!({"name": "e", "packages": ["six"], "base_image": "python:3.12", "python_version": "3.11"}),
            "base_image",
            "leave one",
        ),
        (
            json!({"name": "e", "package": ["six"]}),
            "package",
            "Did you mean `packages`?",
        ),
    ] {
        let refused = refusal(&service, request.clone()).await;
        let mcp_forge::service::ServiceError::Rejected {
            field: told,
            message,
        } = refused
        else {
            panic!("{request}: {refused}")
        };
        assert_eq!(told, field, "{request}");
        assert!(message.contains(part), "{message}");
    }
    service.shutdown().await;
}

async fn refusal(service: &Service, request: Value) -> mcp_forge::service::ServiceError {
    let Value::Object(parameters) = request else {
        panic!("no object")
    };
    let request = match mcp_forge::service::BuildEnvironmentRequest::from_json(parameters) {
        Ok(request) => request,
        Err(error) => return error,
    };
    let (teller, _told) = Teller::new();
    let me = Principal::local();
    service
        .build_environment(&me, request, &teller)
        .await
        .unwrap_err()
}
