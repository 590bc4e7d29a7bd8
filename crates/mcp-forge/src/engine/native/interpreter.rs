//! Which Python runs: the configured one, else the newest on PATH, else one that uv manages.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use tokio::io::AsyncWriteExt;

/// Oldest version that the runner supports.
const OLDEST: (u32, u32) = (3, 10);

/// Newest version that is looked for by name.
const NEWEST: u32 = 14;

/// Time for an interpreter to say what it is. A shim of a version manager is a slow shell script.
const ASK_TIMEOUT: Duration = Duration::from_secs(20);

/// Time for uv to download an interpreter and to unpack it.
const INSTALL_TIMEOUT: Duration = Duration::from_mins(5);

/// What an interpreter says of itself.
const QUESTION: &str = "\
import sys, sysconfig, json
print(json.dumps({
    'executable': getattr(sys, '_base_executable', None) or sys.executable,
    'prefix': sys.prefix,
    'base_prefix': sys.base_prefix,
    'version': list(sys.version_info[:3]),
    'implementation': sys.implementation.name,
    'library': sysconfig.get_config_var('LDLIBRARY') or '',
}))";

/// Which modules an interpreter has, without importing them.
const MODULES_QUESTION: &str = "\
import sys
from importlib.util import find_spec
print(*[name for name in sys.argv[1:] if name.isidentifier() and find_spec(name)])";

/// Compiles the sources on standard input. The header is that of a file that is not checked against
/// its source.
const COMPILE: &str = "\
import json, marshal, sys
from importlib.util import MAGIC_NUMBER
directory = sys.argv[1]
compiled = {
    name: (MAGIC_NUMBER + bytes(12) + marshal.dumps(compile(source, directory + '/' + name, 'exec', dont_inherit=True))).hex()
    for name, source in json.load(sys.stdin).items()
}
json.dump(compiled, sys.stdout)";

/// A Python installation, asked and resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interpreter {
    /// The real binary, behind shims and links.
    pub(super) executable: PathBuf,
    /// Where its standard library lives.
    pub(super) base_prefix: PathBuf,
    /// The virtual environment it was found through, if any.
    pub(super) environment: Option<PathBuf>,
    /// For example `(3, 11, 7)`.
    pub(super) version: (u32, u32, u32),
    /// It needs `libpython` from its own prefix at run time.
    pub(super) shared_library: bool,
}

impl Interpreter {
    /// Of these top-level modules those that it has. None when it cannot be asked.
    pub(super) async fn installed(&self, modules: &[&str]) -> Vec<String> {
        let program = match &self.environment {
            Some(environment) => environment.join("bin/python3"),
            None => self.executable.clone(),
        };
        let arguments = [&["-I", "-c", MODULES_QUESTION], modules].concat();
        let text = run(&program, &arguments).await.unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Of these modules those of the standard library.
    pub(super) async fn standard(&self, modules: &[&str]) -> Vec<String> {
        let arguments = [&["-I", "-S", "-c", MODULES_QUESTION], modules].concat();
        let text = run(&self.executable, &arguments).await.unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles files, each given by its path below `directory` and its content: the same paths, and
    /// in hexadecimal what Python takes in place of the file with a `c` behind its name.
    pub(super) async fn compile(
        &self,
        directory: &str,
        files: &[(&str, &str)],
    ) -> Result<BTreeMap<String, String>, String> {
        let sources: BTreeMap<&str, &str> = files.iter().copied().collect();
        let input = serde_json::to_vec(&sources).map_err(|error| error.to_string())?;
        let text = run_with(
            &self.executable,
            &["-I", "-c", COMPILE, directory],
            input,
            ASK_TIMEOUT,
        )
        .await?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    /// One line for people.
    pub(super) fn describe(&self) -> String {
        let (major, minor, micro) = self.version;
        let environment = self
            .environment
            .as_ref()
            .map(|path| format!(", packages of {}", path.display()));
        format!(
            "Python {major}.{minor}.{micro} at {}{}",
            self.executable.display(),
            environment.unwrap_or_default()
        )
    }
}

#[derive(Deserialize)]
struct Answer {
    executable: PathBuf,
    prefix: PathBuf,
    base_prefix: PathBuf,
    version: (u32, u32, u32),
    implementation: String,
    library: String,
}

/// Finds the interpreter. The error is a sentence that says what was tried and what to do.
pub(super) async fn find(configured: Option<&Path>) -> Result<Interpreter, String> {
    if let Some(path) = configured {
        return ask(path)
            .await
            .map_err(|reason| format!("`python.path` is {}, but {reason}", path.display()));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = candidates(&std::env::split_paths(&path).collect::<Vec<_>>());
    let asked =
        futures_util::future::join_all(candidates.iter().map(|candidate| ask(candidate))).await;
    // The first of equals: PATH order is the user's preference.
    let newest = asked.into_iter().flatten().reduce(|best, next| {
        if next.version > best.version {
            next
        } else {
            best
        }
    });
    match newest {
        Some(interpreter) => Ok(interpreter),
        None => managed_by_uv().await.ok_or_else(|| {
            format!(
                "none of the {} candidates on PATH is CPython {}.{} or newer, and uv manages none. Install Python, run `uv python install`, or set `python.path`.",
                candidates.len(),
                OLDEST.0,
                OLDEST.1
            )
        }),
    }
}

/// Programs that may be an interpreter, without two names for the same file.
fn candidates(directories: &[PathBuf]) -> Vec<PathBuf> {
    let names = (OLDEST.1..=NEWEST)
        .rev()
        .map(|minor| format!("python3.{minor}"))
        .chain(["python3".to_owned()]);
    let names: Vec<String> = names.collect();
    let mut seen = BTreeSet::new();
    directories
        .iter()
        .flat_map(|directory| names.iter().map(move |name| directory.join(name)))
        .filter(|path| path.is_file())
        // Shims of one version manager are one script under many names, and choose by name.
        .filter(|path| {
            seen.insert((
                path.canonicalize().ok(),
                path.file_name().map(ToOwned::to_owned),
            ))
        })
        .collect()
}

async fn managed_by_uv() -> Option<Interpreter> {
    let range = format!(">={}.{}", OLDEST.0, OLDEST.1);
    let found = run(
        "uv".as_ref(),
        &["python", "find", "--no-project", "--offline", &range],
    )
    .await
    .ok()?;
    ask(Path::new(found.trim())).await.ok()
}

/// Asks one candidate. It is the operator's program, but it answers in text: parsed, not trusted.
pub(super) async fn ask(path: &Path) -> Result<Interpreter, String> {
    // With `site`: before Python 3.14 it is what finds out that a virtual environment is one.
    let text = run(path, &["-I", "-c", QUESTION]).await?;
    let answer: Answer = serde_json::from_str(text.trim())
        .map_err(|_| "it does not answer like Python".to_owned())?;
    let (major, minor, _) = answer.version;
    if answer.implementation != "cpython" {
        return Err(format!("it is {}, not CPython", answer.implementation));
    }
    if (major, minor) < OLDEST {
        return Err(format!(
            "it is version {major}.{minor}; {}.{} or newer is needed",
            OLDEST.0, OLDEST.1
        ));
    }
    let executable = answer
        .executable
        .canonicalize()
        .map_err(|error| format!("its binary cannot be found: {error}"))?;
    let base_prefix = answer
        .base_prefix
        .canonicalize()
        .map_err(|error| format!("its prefix cannot be found: {error}"))?;
    let environment = (answer.prefix != answer.base_prefix).then_some(answer.prefix);
    Ok(Interpreter {
        executable,
        base_prefix,
        environment,
        version: answer.version,
        shared_library: answer.library.contains(".so"),
    })
}

/// What a program says that answers at once.
pub(super) async fn run(program: &Path, arguments: &[&str]) -> Result<String, String> {
    run_with(program, arguments, Vec::new(), ASK_TIMEOUT).await
}

/// What a program says that may have much to do first.
pub(super) async fn run_long(program: &Path, arguments: &[&str]) -> Result<String, String> {
    run_with(program, arguments, Vec::new(), INSTALL_TIMEOUT).await
}

#[expect(
    clippy::disallowed_methods,
    reason = "the engine asks interpreters what they are"
)]
async fn run_with(
    program: &Path,
    arguments: &[&str],
    input: Vec<u8>,
    patience: Duration,
) -> Result<String, String> {
    let cannot_run = |error: std::io::Error| format!("it cannot be run: {error}");
    let mut child = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(cannot_run)?;
    let stdin = child.stdin.take();
    let answered = async {
        if let Some(mut stdin) = stdin {
            // One that does not read has its own reasons, and is judged by what it says.
            stdin.write_all(&input).await.ok();
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(patience, answered)
        .await
        .map_err(|_| format!("it did not answer in {} s", patience.as_secs()))?
        .map_err(cannot_run)?;
    if !output.status.success() {
        return Err(format!("it ended with {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| "it does not answer in text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn this_machine_has_an_interpreter_that_can_serve() {
        let found = find(None).await.unwrap();
        assert!(found.version >= (3, 10, 0), "{found:?}");
        assert!(
            found.executable.is_absolute()
                && found
                    .executable
                    .starts_with(found.base_prefix.parent().unwrap())
        );
    }

    #[tokio::test]
    async fn a_configured_path_that_is_no_python_is_refused_by_name() {
        let error = find(Some(Path::new("/bin/true"))).await.unwrap_err();
        assert_eq!(
            error,
            "`python.path` is /bin/true, but it does not answer like Python"
        );
        let error = find(Some(Path::new("/nowhere/python"))).await.unwrap_err();
        assert!(
            error.starts_with("`python.path` is /nowhere/python, but it cannot be run: "),
            "{error}"
        );
    }

    #[test]
    fn names_of_one_file_are_asked_once_unless_the_name_matters() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("python3.12"), "").unwrap();
        std::os::unix::fs::symlink("python3.12", directory.path().join("python3")).unwrap();
        let twice = [directory.path().to_owned(), directory.path().to_owned()];
        assert_eq!(
            candidates(&twice),
            [
                directory.path().join("python3.12"),
                directory.path().join("python3")
            ]
        );
    }
}
