//! The vulnerability scan, with programs of the test's own under the names of the real scanners.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mcp_forge::{names::Principal, packages::EnvironmentName};
use serde_json::{Value, json};

use super::{
    builds::program,
    hostile::{assert_clean, offline},
    place::Place,
};

const SCANNER: &str = include_str!("scanner.py");

/// A place with a scanner of this name on PATH, and what its database knows of `good`.
struct Clinic {
    place: Place,
    path: PathBuf,
    cache: PathBuf,
}

/// What came of a build.
#[derive(Debug)]
struct Came {
    status: Option<i32>,
    said: String,
    built: Value,
}

impl Clinic {
    fn new(scanner: &str, behaviour: &str, severities: &[&str]) -> Self {
        let place = offline(&["good"], |_| {});
        let directory = |name: String| {
            let path = place.directory.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let path = directory("bin".to_owned());
        let file = path.join(scanner);
        let text = SCANNER.replace("\"findings\"", &format!("{behaviour:?}"));
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let database = directory(format!("cache/{scanner}/db"));
        let known: Vec<Value> = severities
            .iter()
            .enumerate()
            .map(|(number, severity)| json!([format!("CVE-2099-{number}"), severity]))
            .collect();
        fs::write(
            database.join("known.json"),
            json!({"good": known, "absent": [["CVE-1", "critical"]]}).to_string(),
        )
        .unwrap();
        Self {
            cache: place.directory.path().join("cache"),
            place,
            path,
        }
    }

    fn build(&self, variables: &[(&str, &str)]) -> Came {
        let mut command = program(&self.place, &["env", "build", "e", "good", "--json"]);
        let wheels = self.place.config.environments.wheel_directory.as_ref();
        command
            .env("PATH", &self.path)
            .env("XDG_CACHE_HOME", &self.cache)
            .env(
                "MCP_FORGE_ENVIRONMENT_BUILDER_WHEEL_DIRECTORY",
                wheels.unwrap(),
            )
            .env("MCP_FORGE_SECRET", "x");
        for (name, value) in variables {
            let name = format!("MCP_FORGE_ENVIRONMENT_BUILDER_{name}");
            command.env(name, value);
        }
        let began = Instant::now();
        let done = command.output().unwrap();
        assert!(began.elapsed() < Duration::from_mins(2));
        let came = Came {
            status: done.status.code(),
            said: String::from_utf8(done.stderr).unwrap(),
            built: serde_json::from_slice(&done.stdout).unwrap_or_default(),
        };
        assert!(came.said.len() < 8_000, "{}", came.said.len());
        assert_clean(&self.place, "a scan");
        came
    }

    /// Nothing was published, and the reason was told.
    fn refused(&self, came: &Came, words: &str) {
        assert!(
            came.status != Some(0) && came.said.contains(words),
            "{came:?}"
        );
        assert_eq!(self.place.trees(), Vec::<String>::new(), "{came:?}");
    }
}

#[tokio::test]
async fn what_a_scanner_finds_is_told_and_the_worst_is_refused() {
    for scanner in ["trivy", "grype"] {
        let clinic = Clinic::new(scanner, "findings", &["low", "critical", "high", "medium"]);
        let came = clinic.build(&[]);
        let words = format!("the build was refused by the vulnerability scan: {scanner} found 1");
        clinic.refused(&came, &words);
        clinic.refused(&came, "critical CVE-2099-1 in good==1.0");
        clinic.refused(&came, "`environment_builder.refuse_severity`");
        let came = clinic.build(&[("REFUSE_SEVERITY", "high")]);
        clinic.refused(&came, "found 2 that are not allowed");
        // The operator may want to know it only.
        let came = clinic.build(&[("REFUSE_SEVERITY", "none")]);
        assert_eq!(came.status, Some(0), "{came:?}");
        let scan = &came.built["scan"];
        let counted = json!([
            scan["scanned"],
            scan["by"],
            scan["critical"],
            scan["high"],
            scan["other"]
        ]);
        assert_eq!(counted, json!([true, scanner, 1, 1, 2]));
        assert_eq!(
            scan["findings"][0],
            json!({"severity": "critical", "package": "good==1.0", "id": "CVE-2099-1"})
        );
        // Of a package that is not installed nothing was said.
        let clinic = Clinic::new(scanner, "findings", &[]);
        let came = clinic.build(&[]);
        assert_eq!(came.built["scan"]["findings"], json!([]), "{came:?}");
        assert_eq!(came.built["scan"]["scanned"], json!(true), "{came:?}");
    }
}

#[tokio::test]
async fn without_a_scanner_it_is_told_that_none_looked() {
    let clinic = Clinic::new("nothing", "findings", &["critical"]);
    let came = clinic.build(&[]);
    assert_eq!(came.built["scan"]["scanned"], json!(false), "{came:?}");
    let clinic = Clinic::new("grype", "findings", &["critical"]);
    let came = clinic.build(&[("SCANNER", "off")]);
    assert_eq!(came.built["scan"]["scanned"], json!(false), "{came:?}");
    // Who wants one by name has no environment without it.
    let clinic = Clinic::new("grype", "findings", &[]);
    let came = clinic.build(&[("SCANNER", "trivy")]);
    clinic.refused(&came, "vulnerability scan");
    // No database: it was never run.
    let clinic = Clinic::new("trivy", "findings", &[]);
    fs::remove_dir_all(clinic.cache.join("trivy")).unwrap();
    let came = clinic.build(&[]);
    let by = came.built["scan"]["by"].as_str().unwrap();
    assert!(by.contains("no database yet"), "{came:?}");
}

/// As trivy itself makes it: for its user only, whom the jobs of a server that is root do not have.
#[tokio::test]
async fn a_database_of_its_owners_only_is_read_or_told_with_the_fix() {
    let clinic = Clinic::new("trivy", "findings", &["critical"]);
    let database = clinic.cache.join("trivy/db");
    let closed = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    closed(&database.join("known.json"), 0o600);
    closed(&database, 0o700);
    let came = clinic.build(&[]);
    if rustix::process::geteuid().is_root() {
        let by = came.built["scan"]["by"].as_str().unwrap();
        assert!(by.contains("is for its owner only"), "{came:?}");
        assert!(
            by.contains(&format!("chmod -R o+rX {}", database.display())),
            "{by}"
        );
        closed(&database.join("known.json"), 0o604);
        closed(&database, 0o705);
        clinic
            .place
            .environments
            .delete(&Principal::local(), &EnvironmentName::parse("e").unwrap())
            .await
            .unwrap();
    }
    let came = clinic.build(&[]);
    clinic.refused(&came, "critical CVE-2099-0");
}

#[tokio::test]
async fn a_scanner_that_misbehaves_is_bounded_and_told() {
    let bad = [
        "garbage",
        "nested",
        "nothing",
        "link",
        "directory",
        "large",
        "many",
        "loud",
    ];
    for behaviour in bad {
        let clinic = Clinic::new("trivy", behaviour, &["critical"]);
        let came = clinic.build(&[]);
        let scan = &came.built["scan"];
        assert_eq!(scan["scanned"], json!(false), "{behaviour}: {came:?}");
        let by = scan["by"].as_str().unwrap();
        assert!(
            by.starts_with("trivy did not scan: ") && by.len() < 4_000 && !by.contains("root:"),
            "{behaviour}: {by}"
        );
        let clinic = Clinic::new("trivy", behaviour, &["critical"]);
        let came = clinic.build(&[("SCANNER", "trivy")]);
        clinic.refused(&came, "trivy did not scan: ");
    }
    let clinic = Clinic::new("trivy", "hangs", &["critical"]);
    let began = Instant::now();
    let came = clinic.build(&[("MAX_BUILD_TIME", "8s")]);
    clinic.refused(&came, "was not done after 8 s");
    assert!(began.elapsed() < Duration::from_secs(40));
}

/// A scanner reads hostile files: what takes it over has nothing to go to.
#[tokio::test]
async fn a_scanner_reaches_nothing_but_its_answer() {
    let clinic = Clinic::new("trivy", "reach", &[]);
    let came = clinic.build(&[]);
    assert_eq!(came.status, Some(0), "{came:?}");
    let scan = &came.built["scan"];
    assert_eq!(scan["findings"], json!([]), "{came:?}");
    assert_eq!(scan["scanned"], json!(true), "{came:?}");
}
