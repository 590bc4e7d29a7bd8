//! What `uv` is asked to do, and what its words mean. Pure, but for looking where it is.

use std::{
    fmt::Write as _,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use jiff::Timestamp;

use super::{EnvironmentsError, progress::Phase};
use crate::{
    config::EnvironmentSettings,
    packages::{Lock, PythonVersion, Requirement},
    text::printable,
};

/// The oldest version without the known holes: CVE-2026-114109, CVE-2025-13327, CVE-2025-54368.
const OLDEST: (u32, u32, u32) = (0, 11, 15);

/// Where installers put it, for servers whose PATH is a desktop program's: below the home directory.
const USUAL_PLACES: [&str; 2] = [".local/bin/uv", ".cargo/bin/uv"];

/// Where a job finds what we wrote for it.
const REQUIREMENTS: &str = "/opt/request/requirements.in";
const PYLOCK: &str = "/opt/request/pylock.toml";

/// Where a job finds the operator's directory of wheels.
pub(super) const WHEELS: &str = "/opt/wheels";

/// Characters of `uv`'s complaint that a message repeats.
const MOST_SAID: usize = 2_000;

/// What one job is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) arguments: Vec<String>,
    pub(super) variables: Vec<(String, String)>,
    pub(super) files: Vec<(String, String)>,
}

/// Finds the program: the configured one, else the first on PATH, else where installers put it.
///
/// # Errors
///
/// A sentence that says what was tried and what to do.
pub(super) fn find(configured: Option<&Path>) -> Result<PathBuf, EnvironmentsError> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let usual = || {
        let mut places = home
            .iter()
            .flat_map(|home| USUAL_PLACES.iter().map(|place| home.join(place)));
        places.find(|path| is_program(path))
    };
    let found = match configured {
        Some(path) => is_program(path).then(|| path.to_owned()),
        None => on_path("uv").or_else(usual),
    };
    let found = found.and_then(|path| path.canonicalize().ok());
    found.ok_or_else(|| {
        EnvironmentsError::Uv(match configured {
            Some(path) => format!(
                "and `environment_builder.uv` is {}, which is no program; correct it",
                path.display()
            ),
            None => "which is not installed here: install it (`pip install uv`), or name it as `environment_builder.uv`".to_owned(),
        })
    })
}

/// The first program of this name on PATH.
pub(super) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.is_absolute()
        && std::fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Checks what `uv --version` says.
///
/// # Errors
///
/// It is too old, or says something else.
pub(super) fn check_version(said: &str) -> Result<String, EnvironmentsError> {
    let version = said
        .strip_prefix("uv ")
        .and_then(|rest| rest.split_whitespace().next());
    let version = version.ok_or_else(|| {
        EnvironmentsError::Uv(format!(
            "and the program that was found says {} instead of its version; name another as `environment_builder.uv`",
            crate::text::quoted(said)
        ))
    })?;
    let mut numbers = version
        .split(['.', '-', '+'])
        .map(|part| part.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    if (next(), next(), next()) < OLDEST {
        let (major, minor, patch) = OLDEST;
        return Err(EnvironmentsError::Uv(format!(
            "and {version} has known holes: use {major}.{minor}.{patch} or newer"
        )));
    }
    Ok(version.to_owned())
}

/// Asks for versions: `staging` is the build's directory as the job sees it.
pub(super) fn resolve(
    settings: &EnvironmentSettings,
    requirements: &[Requirement],
    python: (&str, PythonVersion),
    staging: &str,
) -> Asked {
    let output = format!("{staging}/pylock.toml");
    let wanted = ["--format", "pylock.toml", "--output-file", &output];
    compile(settings, requirements, python, &wanted)
}

/// Asks once more, for the index that each package comes from: only its own words tell.
pub(super) fn sources(
    settings: &EnvironmentSettings,
    requirements: &[Requirement],
    python: (&str, PythonVersion),
) -> Asked {
    let wanted = ["--emit-index-annotation"];
    compile(settings, requirements, python, &wanted)
}

fn compile(
    settings: &EnvironmentSettings,
    requirements: &[Requirement],
    (program, version): (&str, PythonVersion),
    wanted: &[&str],
) -> Asked {
    let version = version.to_string();
    let common = ["--no-header", "--no-annotate", "--python-version", &version];
    let all = [&["pip", "compile", REQUIREMENTS], wanted, &common].concat();
    let mut arguments: Vec<String> = all.into_iter().map(str::to_owned).collect();
    arguments.extend(index_arguments(settings));
    Asked {
        arguments: with_common(arguments, program),
        variables: index_variables(settings),
        files: vec![(REQUIREMENTS.to_owned(), lines(requirements))],
    }
}

/// Asks to install a lock, each file from its own address and by its hash: no index has a say. The
/// indexes are named for their passwords, which their files may need as well.
pub(super) fn install(
    settings: &EnvironmentSettings,
    lock: &Lock,
    python: &str,
    staging: &str,
) -> Asked {
    let arguments = [
        "pip",
        "sync",
        PYLOCK,
        "--preview-features",
        "pylock",
        "--target",
        &format!("{staging}/site"),
        // A link would be one file under two names, and the cache's name is in reach of every later job.
        "--link-mode",
        "copy",
        // Nothing can be compiled later: the packages are read-only.
        "--compile-bytecode",
    ]
    .map(str::to_owned);
    Asked {
        arguments: with_common(arguments.to_vec(), python),
        variables: index_variables(settings),
        files: vec![(PYLOCK.to_owned(), pylock(lock))],
    }
}

fn with_common(mut arguments: Vec<String>, python: &str) -> Vec<String> {
    arguments.extend(
        [
            "--python",
            python,
            // Building a source runs its code.
            "--no-build",
            // What lies in a directory above must not decide anything.
            "--no-config",
            "--cache-dir",
            "/build/cache",
            "--no-python-downloads",
            "--keyring-provider",
            "disabled",
            "--color",
            "never",
            "--no-progress",
        ]
        .map(str::to_owned),
    );
    arguments
}

fn index_arguments(settings: &EnvironmentSettings) -> Vec<String> {
    let mut arguments = match &settings.wheel_directory {
        Some(_) => ["--no-index", "--find-links", WHEELS]
            .map(str::to_owned)
            .to_vec(),
        // The first index that has a name at all is the only one that is asked for it.
        None => ["--index-strategy", "first-index"]
            .map(str::to_owned)
            .to_vec(),
    };
    if let Some(limit) = settings.exclude_newer {
        let date = limit.moment(Timestamp::now()).to_string();
        arguments.extend(["--exclude-newer".to_owned(), date]);
    }
    arguments
}

/// Addresses may hold a password: variables are seen by the job's own user only, arguments by all.
fn index_variables(settings: &EnvironmentSettings) -> Vec<(String, String)> {
    let mut variables = base_variables();
    if settings.wheel_directory.is_none() {
        variables.push((
            "UV_DEFAULT_INDEX".to_owned(),
            settings.index.expose().to_owned(),
        ));
        let extra: Vec<String> = settings
            .extra_indexes
            .iter()
            .map(|index| format!("{}={}", index.name, index.url.expose()))
            .collect();
        if !extra.is_empty() {
            variables.push(("UV_INDEX".to_owned(), extra.join(" ")));
        }
    }
    variables
}

fn base_variables() -> Vec<(String, String)> {
    [
        ("UV_HTTP_TIMEOUT", "60"),
        // Three, its own choice, are over within 7 s: too soon for an index that starts anew. These take
        // at most 31 s, which is how long a host that is away, or not listed, keeps its caller waiting.
        ("UV_HTTP_RETRIES", "5"),
        ("UV_NO_PROGRESS", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

fn lines(requirements: &[Requirement]) -> String {
    requirements
        .iter()
        .fold(String::new(), |mut text, requirement| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{requirement}");
            text
        })
}

/// The lock as `uv` reads it, from checked values only.
fn pylock(lock: &Lock) -> String {
    // Of JSON's and TOML's strings the one is the other, for what can stand in a lock.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut text = format!(
        "lock-version = \"1.0\"\ncreated-by = \"mcp-forge\"\nrequires-python = \">={}\"\n",
        lock.python()
    );
    for package in lock.packages() {
        let _ = write!(
            text,
            "\n[[packages]]\nname = {}\nversion = {}\nwheels = [\n",
            quoted(package.name.as_str()),
            quoted(&package.version.to_string())
        );
        for wheel in &package.wheels {
            let place = match &wheel.url {
                Some(url) => format!("url = {}", quoted(url)),
                None => format!(
                    "path = {}",
                    quoted(&format!("{WHEELS}/{}", wheel.file_name))
                ),
            };
            let _ = writeln!(
                text,
                "    {{ {place}, hashes = {{ sha256 = {} }} }},",
                quoted(&wheel.sha256)
            );
        }
        text.push_str("]\n");
    }
    text
}

/// What a line of `uv`'s says of the build, if it says something.
pub(super) fn phase_of(line: &str) -> Option<(Phase, String)> {
    let line = line.trim();
    let (word, rest) = line.split_once(' ')?;
    let phase = match word {
        "Resolved" => Phase::Resolving,
        "Downloading" | "Downloaded" => Phase::Downloading,
        "Prepared" => Phase::Installing,
        "Installed" | "Bytecode" => Phase::Installing,
        _ => return None,
    };
    let rest: String = rest.chars().take(80).collect();
    let detail = match word {
        "Downloading" => rest,
        _ => format!("{} {rest}", word.to_ascii_lowercase()),
    };
    Some((phase, printable(&detail)))
}

/// What `uv` complained of, fit to be shown.
pub(super) fn complaint(lines: &[String]) -> String {
    let is_noise = |line: &&String| {
        line.starts_with("Using ") || line.starts_with("warning: ") || line.trim().is_empty()
    };
    let said: Vec<&str> = lines
        .iter()
        .filter(|line| !is_noise(line))
        .map(|line| line.trim())
        .collect();
    let said = said.join(" ");
    let said = said.strip_prefix("error: ").unwrap_or(&said);
    let mut short: String = said.chars().take(MOST_SAID).collect();
    if short.len() < said.len() {
        short.push('…');
    }
    if short.is_empty() {
        "uv ended without a word".clone_into(&mut short);
    }
    printable(&short)
}

/// Which index each package came from: the lines `name==version` and `# from URL` in turn.
pub(super) fn index_of_each(lines: &[String]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut name = None;
    for line in lines {
        let line = line.trim().trim_end_matches('\\').trim();
        if let Some(index) = line.strip_prefix("# from ") {
            found.extend(name.take().map(|name: String| (name, index.to_owned())));
        } else if let Some((before, _)) = line.split_once("==") {
            name = Some(before.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_known_holes_are_refused() {
        for (said, fit) in [
            ("uv 0.13.9 (x86_64-unknown-linux-gnu)", true),
            ("uv 0.11.15", true),
            ("uv 1.0.0-rc.1", true),
            ("uv 0.11.14 (abc 2026-01-01)", false),
            ("uv 0.9.30", false),
            ("pip 26.0", false),
            ("", false),
        ] {
            assert_eq!(check_version(said).is_ok(), fit, "{said}");
        }
        let error = check_version("uv 0.11.14").unwrap_err().to_string();
        assert_eq!(
            error,
            "environments are built with uv, and 0.11.14 has known holes: use 0.11.15 or newer"
        );
    }

    #[test]
    fn its_lines_tell_where_the_build_is() {
        let told =
            |line| phase_of(line).map(|(phase, detail)| format!("{} {detail}", phase.name()));
        assert_eq!(
            told("Downloading numpy (16.1MiB)").as_deref(),
            Some("downloading numpy (16.1MiB)")
        );
        assert_eq!(
            told(" Downloaded numpy").as_deref(),
            Some("downloading downloaded numpy")
        );
        assert_eq!(
            told("Resolved 6 packages in 54ms").as_deref(),
            Some("resolving resolved 6 packages in 54ms")
        );
        assert_eq!(
            told("Bytecode compiled 569 files in 631ms").as_deref(),
            Some("installing bytecode compiled 569 files in 631ms")
        );
        assert_eq!(told(" + numpy==2.4.6"), None);
        assert_eq!(
            told("Downloading \u{1b}[31mx").as_deref(),
            Some("downloading \\u{1b}[31mx")
        );
    }

    #[test]
    fn its_complaint_is_one_bounded_text() {
        let said = [
            "Using CPython 3.11",
            "error: No solution found",
            "  cause: Because x",
            "",
        ];
        let said: Vec<String> = said.map(str::to_owned).to_vec();
        assert_eq!(complaint(&said), "No solution found cause: Because x");
        assert_eq!(complaint(&[]), "uv ended without a word");
        assert_eq!(
            complaint(&["x".repeat(9_000)]).chars().count(),
            MOST_SAID + 1
        );
    }

    #[test]
    fn each_package_has_the_index_that_follows_it() {
        let lines = [
            "acme-app==1.0 \\",
            "    # from http://127.0.0.1/simple",
            "six==1.0",
            "    # from https://x",
        ];
        let lines: Vec<String> = lines.map(str::to_owned).to_vec();
        let expected = [
            ("acme-app", "http://127.0.0.1/simple"),
            ("six", "https://x"),
        ];
        assert_eq!(
            index_of_each(&lines),
            expected.map(|(a, b)| (a.to_owned(), b.to_owned()))
        );
    }
}
