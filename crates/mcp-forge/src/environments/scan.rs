//! A look for known vulnerabilities, by a scanner of the operator's, if there is one.
//!
//! The scanner reads hostile files: it runs in a job, without a network, with its database and the
//! packages shown read-only.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    EnvironmentsError,
    progress::{Phase, Teller},
    site::Site,
    uv,
};
use crate::{
    config::{EnvironmentSettings, RefuseSeverity, Scanner},
    engine::native::job::{Job, JobEnd, JobLimits, JobProgram, JobSpec, Jobs},
    text::clipped,
};

/// Bytes of a scanner's answer, and findings of it that are told.
const MOST_BYTES: u64 = 16 << 20;
const MOST_TOLD: usize = 100;

/// Bytes of its complaints that are kept.
const MOST_SAID: usize = 16 << 10;

const TIME: Duration = Duration::from_mins(3);

/// Where the job sees program, database and packages.
const PROGRAM: &str = "/opt/scan/program";
const DATABASE: &str = "/opt/scan/database";
const PACKAGES: &str = "/opt/scan/packages";

/// Puts the database where the scanner looks for it, and becomes the scanner.
const START: &str = "\
import os, sys
os.makedirs('/tmp/cache', exist_ok=True)
os.symlink(sys.argv[1], '/tmp/cache/db')
os.execv(sys.argv[2], sys.argv[2:])";

/// What a scanner found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Scan {
    /// Whether one looked.
    pub scanned: bool,
    /// Which one, or why none did.
    pub by: String,
    /// Critical findings.
    pub critical: u64,
    /// High findings.
    pub high: u64,
    /// All others.
    pub other: u64,
    /// The first of them, worst first.
    pub findings: Vec<Finding>,
}

/// A known vulnerability of an installed package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// `critical`, `high`, `medium`, `low` or `unknown`.
    pub severity: String,
    /// The package, as `name==version`.
    pub package: String,
    /// For example `CVE-2026-1234`.
    pub id: String,
}

impl Scan {
    /// To be kept beside what was scanned.
    pub(super) fn to_json(&self) -> Vec<u8> {
        // Texts and numbers only: this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What was kept; what cannot be read says that nobody looked.
    pub(super) fn from_json(kept: &[u8]) -> Self {
        serde_json::from_slice(kept).unwrap_or_default()
    }
}

/// Which program, and how it is asked.
struct Kind {
    name: &'static str,
    /// Its database, below the user's cache directory.
    database: &'static str,
    /// What stands between the program and the file that it writes.
    arguments: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    read: fn(&Value) -> Vec<Finding>,
}

const TRIVY: Kind = Kind {
    name: "trivy",
    database: "trivy/db",
    arguments: &[
        "rootfs",
        "--scanners",
        "vuln",
        "--offline-scan",
        "--skip-db-update",
        "--skip-java-db-update",
        "--quiet",
        "--format",
        "json",
        "--cache-dir",
        "/tmp/cache",
        PACKAGES,
        "--output",
    ],
    variables: &[],
    read: read_trivy,
};

const GRYPE: Kind = Kind {
    name: "grype",
    database: "grype/db",
    arguments: &[
        "dir:/opt/scan/packages",
        "--quiet",
        "--output",
        "json",
        "--file",
    ],
    variables: &[
        ("GRYPE_DB_CACHE_DIR", "/tmp/cache/db"),
        ("GRYPE_DB_AUTO_UPDATE", "false"),
        ("GRYPE_DB_VALIDATE_AGE", "false"),
        ("GRYPE_CHECK_FOR_APP_UPDATE", "false"),
    ],
    read: read_grype,
};

/// Looks at installed packages, if the operator has a scanner and wants it used.
///
/// # Errors
///
/// [`EnvironmentsError::Vulnerable`]: it found what is not wanted, or was asked for by name and did
/// not come to an answer.
pub(super) async fn scan(
    jobs: &Jobs,
    settings: &EnvironmentSettings,
    (site, packages): (&Site, &Path),
    teller: &Teller,
) -> Result<Scan, EnvironmentsError> {
    let kinds: &[&Kind] = match settings.scanner {
        Scanner::Off => &[],
        Scanner::Auto => &[&TRIVY, &GRYPE],
        Scanner::Trivy => &[&TRIVY],
        Scanner::Grype => &[&GRYPE],
    };
    let found = kinds
        .iter()
        .find_map(|kind| Some((*kind, uv::on_path(kind.name)?)));
    let not_scanned = |reason: String| {
        if is_demanded(settings) {
            Err(EnvironmentsError::Vulnerable(reason))
        } else {
            Ok(Scan {
                by: reason,
                ..Scan::default()
            })
        }
    };
    let Some((kind, program)) = found else {
        return not_scanned("no scanner is installed, or none is wanted".to_owned());
    };
    teller.phase(Phase::Checking, format!("scanning with {}", kind.name));
    match ask(jobs, kind, program, (site, packages, settings)).await {
        Ok(answer) => judge(
            summary(kind.name, (kind.read)(&answer)),
            settings.refuse_severity,
        ),
        Err(reason) => not_scanned(format!("{} did not scan: {reason}", kind.name)),
    }
}

/// Whether the operator wants no environment that was not scanned.
pub(super) const fn is_demanded(settings: &EnvironmentSettings) -> bool {
    matches!(settings.scanner, Scanner::Trivy | Scanner::Grype)
}

async fn ask(
    jobs: &Jobs,
    kind: &Kind,
    program: PathBuf,
    (site, packages, settings): (&Site, &Path, &EnvironmentSettings),
) -> Result<Value, String> {
    let database = cache_directory()
        .map(|cache| cache.join(kind.database))
        .filter(|database| database.is_dir())
        .ok_or("it has no database yet; run it once by hand")?;
    check_readable(&database)?;
    let mut arguments: Vec<String> = ["-I", "-c", START, DATABASE, PROGRAM]
        .map(str::to_owned)
        .to_vec();
    arguments.extend(kind.arguments.iter().map(|&argument| argument.to_owned()));
    arguments.push("/build/scan.json".to_owned());
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let spec = JobSpec {
        id: site.job_id("scan"),
        program: JobProgram::Python,
        arguments,
        variables: kind.variables.iter().map(own).collect(),
        files: Vec::new(),
        trees: vec![
            (program, PROGRAM.to_owned()),
            (database, DATABASE.to_owned()),
            (packages.to_owned(), PACKAGES.to_owned()),
        ],
        // Not the directory of all builds: what reads hostile files is no place to reach the cache from.
        build: site.own_directory(),
        python: None,
        limits: JobLimits {
            memory_bytes: 4 << 30,
            cpu_quota_us: 200_000,
            pids: 256,
            wall: TIME.min(settings.max_build_time),
            file_bytes: MOST_BYTES + 1,
            build_bytes: 4 * MOST_BYTES,
        },
    };
    let Job {
        stdout,
        stderr,
        control,
        ..
    } = jobs.start(spec).await.map_err(|error| error.to_string())?;
    let (_, complained, ending) =
        tokio::join!(stdout.rest(0), stderr.rest(MOST_SAID), control.finish());
    if ending.cause != JobEnd::Exited(0) {
        return Err(format!(
            "{:?}: {}",
            ending.cause,
            uv::complaint(&[complained])
        ));
    }
    let answer = site.read("scan.json", MOST_BYTES).await;
    let answer = answer.map_err(|error| format!("it left no answer: {error}"))?;
    if answer.len() as u64 > MOST_BYTES {
        return Err("its answer is too long".to_owned());
    }
    serde_json::from_slice(&answer).map_err(|error| error.to_string())
}

fn cache_directory() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    named
        .filter(|path| path.is_absolute())
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
}

/// The jobs of a server that is root have a user of their own, who owns no database.
fn check_readable(database: &Path) -> Result<(), String> {
    if jail::job_ids().is_none() {
        return Ok(());
    }
    let entries = std::fs::read_dir(database).map_err(|error| error.to_string())?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    for path in std::iter::once(database.to_owned()).chain(paths) {
        let found = std::fs::metadata(&path).map_err(|error| error.to_string())?;
        let needed = if found.is_dir() { 0o005 } else { 0o004 };
        if found.permissions().mode() & needed != needed {
            return Err(format!(
                "{} is for its owner only, and the scan has another user: `chmod -R o+rX {}`",
                path.display(),
                database.display()
            ));
        }
    }
    Ok(())
}

fn read_trivy(answer: &Value) -> Vec<Finding> {
    let results = answer["Results"].as_array().into_iter().flatten();
    let each =
        results.flat_map(|result| result["Vulnerabilities"].as_array().into_iter().flatten());
    each.map(|found| {
        finding(
            &found["Severity"],
            (&found["PkgName"], &found["InstalledVersion"]),
            &found["VulnerabilityID"],
        )
    })
    .collect()
}

fn read_grype(answer: &Value) -> Vec<Finding> {
    let each = answer["matches"].as_array().into_iter().flatten();
    each.map(|found| {
        finding(
            &found["vulnerability"]["severity"],
            (&found["artifact"]["name"], &found["artifact"]["version"]),
            &found["vulnerability"]["id"],
        )
    })
    .collect()
}

fn finding(severity: &Value, (name, version): (&Value, &Value), id: &Value) -> Finding {
    let text = |value: &Value| clipped(value.as_str().unwrap_or_default());
    let severity = match severity
        .as_str()
        .unwrap_or_default()
        .to_ascii_lowercase()
        .as_str()
    {
        known @ ("critical" | "high" | "medium" | "low") => known.to_owned(),
        _ => "unknown".to_owned(),
    };
    Finding {
        severity,
        package: format!("{}=={}", text(name), text(version)),
        id: text(id),
    }
}

fn summary(by: &str, mut findings: Vec<Finding>) -> Scan {
    let worst = |finding: &Finding| match finding.severity.as_str() {
        "critical" => 0,
        "high" => 1,
        "medium" => 2,
        "low" => 3,
        _ => 4,
    };
    findings.sort_by(|left, right| (worst(left), left).cmp(&(worst(right), right)));
    findings.dedup();
    let count = |severity: &str| {
        let of_it = findings
            .iter()
            .filter(|finding| finding.severity == severity);
        of_it.count() as u64
    };
    let (critical, high) = (count("critical"), count("high"));
    let other = findings.len() as u64 - critical - high;
    findings.truncate(MOST_TOLD);
    Scan {
        scanned: true,
        by: by.to_owned(),
        critical,
        high,
        other,
        findings,
    }
}

/// Whether what was found is allowed.
///
/// # Errors
///
/// [`EnvironmentsError::Vulnerable`]: it is not.
pub(super) fn judge(scan: Scan, refuse: RefuseSeverity) -> Result<Scan, EnvironmentsError> {
    let unwanted = match refuse {
        RefuseSeverity::Nothing => 0,
        RefuseSeverity::Critical => scan.critical,
        RefuseSeverity::High => scan.critical + scan.high,
    };
    if unwanted == 0 {
        return Ok(scan);
    }
    let shown: Vec<String> = scan
        .findings
        .iter()
        .take(5)
        .map(|finding| format!("{} {} in {}", finding.severity, finding.id, finding.package))
        .collect();
    Err(EnvironmentsError::Vulnerable(format!(
        "{} found {unwanted} that are not allowed (`environment_builder.refuse_severity`): {}",
        scan.by,
        shown.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_scanners_answers_become_the_same_findings() {
        let trivy = json!({"Results": [{"Target": "Python", "Vulnerabilities": [
            {"VulnerabilityID": "CVE-1", "PkgName": "a", "InstalledVersion": "1", "Severity": "CRITICAL"},
            {"VulnerabilityID": "CVE-2", "PkgName": "b", "InstalledVersion": "2", "Severity": "LOW"}]},
            {"Target": "none"}]});
        let grype = json!({"matches": [
            {"vulnerability": {"id": "CVE-2", "severity": "Low"}, "artifact": {"name": "b", "version": "2"}},
            {"vulnerability": {"id": "CVE-1", "severity": "Critical"}, "artifact": {"name": "a", "version": "1"}}]});
        let scan = summary("x", read_trivy(&trivy));
        assert_eq!(scan, summary("x", read_grype(&grype)));
        assert_eq!((scan.critical, scan.high, scan.other), (1, 0, 1));
        assert_eq!(scan.findings[0].package, "a==1");
        let error = judge(scan.clone(), RefuseSeverity::Critical)
            .unwrap_err()
            .to_string();
        assert!(error.contains("critical CVE-1 in a==1"), "{error}");
        assert!(judge(scan, RefuseSeverity::Nothing).is_ok());
    }

    #[test]
    fn an_answer_of_another_shape_has_no_findings() {
        for answer in [
            json!(null),
            json!([]),
            json!({"Results": 1}),
            json!({"matches": [1, null]}),
        ] {
            assert!(read_trivy(&answer).is_empty(), "{answer}");
            assert!(
                read_grype(&answer)
                    .iter()
                    .all(|finding| finding.severity == "unknown")
            );
        }
    }
}
