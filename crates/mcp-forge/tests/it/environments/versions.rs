//! Environments for a Python that is not the server's own.

use std::{
    fs,
    path::{Path, PathBuf},
};

use mcp_forge::{
    engine::native::{PythonSearch, find_python},
    environments::{Built, EnvironmentsError, Teller},
    names::Principal,
    packages::PythonVersion,
};
use serde_json::json;

use super::{
    builds::program,
    hostile::offline,
    place::{Place, request},
};

/// A version that this machine has beside 3.11, which the tests use else, and where: on PATH, or among
/// pyenv's, which lets only some of its own run by their names.
async fn another() -> (PythonVersion, Vec<PathBuf>) {
    let versions = std::env::var_os("PYENV_ROOT").map(|root| Path::new(&root).join("versions"));
    let installed = versions.and_then(|versions| fs::read_dir(versions).ok());
    let paths: Vec<PathBuf> = installed
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .collect();
    for minor in [12, 13, 10, 14] {
        let name = format!("bin/python3.{minor}");
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.join(&name)).collect();
        let paths: Vec<PathBuf> = paths.into_iter().filter(|path| path.is_file()).collect();
        let search = PythonSearch {
            paths: &paths,
            ..PythonSearch::default()
        };
        if find_python((3, minor), search).await.is_ok() {
            let version = PythonVersion::parse(&format!("3.{minor}")).unwrap();
            return (version, paths);
        }
    }
    panic!(
        "there is no Python beside 3.11 on PATH: install one of 3.10, 3.12, 3.13 and 3.14, or leave this test out \
         by name (--skip another_python)"
    )
}

async fn build(
    place: &Place,
    packages: &[&str],
    python: PythonVersion,
) -> Result<Built, EnvironmentsError> {
    let mut request = request("e", packages);
    request.python = Some(python);
    let (teller, _told) = Teller::new();
    place
        .environments
        .build(&Principal::local(), request, &teller)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_python_has_its_own_builds_of_packages() {
    let (python, paths) = another().await;
    for is_warm in [true, false] {
        let place = Place::new(|config| {
            config.native.warm = is_warm;
            config.environments.python_paths = paths.clone();
        });
        let built = build(&place, &["numpy"], python).await.unwrap();
        assert_eq!(built.python_version, python.to_string());
        let code = "
import sys, subprocess, numpy
child = subprocess.run([sys.executable, '-c', 'import sys, numpy; print(sys.version_info[1])'], capture_output=True, text=True)
[sys.version_info[1], int(numpy.arange(4).sum()), child.stdout.strip()]";
        let minor = python.minor();
        for _ in 0..2 {
            let value = place.run("e", code).await;
            assert_eq!(value, json!([minor, 6, minor.to_string()]));
        }
        // The same packages for the server's own are another environment.
        let own = place.build("own", &["numpy"]).await.unwrap();
        assert_ne!(own.lock_hash, built.lock_hash);
        let value = place.run("own", code).await;
        assert_eq!(value, json!([11, 6, "11"]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wheel_that_is_not_for_another_python_is_told() {
    let (python, paths) = another().await;
    let place = offline(&["only311"], |config| {
        config.environments.python_paths = paths;
    });
    let error = build(&place, &["only311"], python).await.unwrap_err();
    let said = error.to_string();
    assert!(
        said.starts_with("the packages cannot be resolved: ")
            && said.contains("only311")
            && said.contains("cp311"),
        "{said}"
    );
    assert_eq!(place.trees(), Vec::<String>::new());
    // The control: for 3.11 there is one.
    let own = PythonVersion::parse("3.11").unwrap();
    build(&place, &["only311"], own).await.unwrap();
    assert_eq!(place.run("e", "import only311; only311.value").await, 1);
}

#[tokio::test]
async fn a_python_that_is_not_here_is_told_with_the_fix() {
    let place = offline(&["good"], |_| {});
    let nowhere = tempfile::tempdir().unwrap();
    let arguments = ["env", "build", "e", "good", "--python", "3.13"];
    let mut command = program(&place, &arguments);
    // Nothing on PATH, and a home where uv has none either.
    command
        .env("PATH", nowhere.path())
        .env("HOME", nowhere.path());
    let done = command.output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(
        !done.status.success()
            && said.contains("there is no Python 3.13 here: tried PATH, which has no python3.13")
            && said.contains("`environment_builder.python_paths`"),
        "{said}"
    );
}
