//! Which interpreter of this host serves a version of Python that an environment asks for.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use super::interpreter::{self, Interpreter};

/// Where a version is looked for, in this order.
#[derive(Debug, Clone, Copy, Default)]
pub struct PythonSearch<'a> {
    /// `python.path`, if it is set.
    pub configured: Option<&'a Path>,
    /// More interpreters, or directories that have them, as the operator names them.
    pub paths: &'a [PathBuf],
    /// The program `uv`: it knows the versions that it has installed.
    pub uv: Option<&'a Path>,
    /// Whether uv may download one that it has not.
    pub may_download: bool,
}

/// An interpreter that environments can be built for: in no virtual environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Python {
    /// The real binary, behind shims and links.
    pub executable: PathBuf,
    /// For example `(3, 11, 7)`.
    pub version: (u32, u32, u32),
}

/// No interpreter of this version was found. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[error(
    "there is no Python {major}.{minor} here: tried {}. Install it, run `uv python install {major}.{minor}`, or name \
     one in `environment_builder.python_paths`",
    tried.join("; ")
)]
pub struct NoPython {
    /// The version that was asked for.
    pub major: u8,
    /// The version that was asked for.
    pub minor: u8,
    /// Each place, and what was found there.
    pub tried: Vec<String>,
}

/// Finds an interpreter of this minor version: the configured one, those of the operator's list, one on
/// `PATH`, one that uv manages. One that was found through a virtual environment counts by its base.
///
/// # Errors
///
/// [`NoPython`], which says what was tried.
pub async fn find_python(
    (major, minor): (u8, u8),
    search: PythonSearch<'_>,
) -> Result<Python, NoPython> {
    let name = format!("python{major}.{minor}");
    let mut tried = Vec::new();
    let listed = search.paths.iter().map(|path| in_list(path, &name));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = search
        .configured
        .map(|path| ("`python.path`", path.to_owned()))
        .into_iter()
        .chain(listed.map(|path| ("`environment_builder.python_paths`", path)))
        .chain(on_path(&path, &name).map(|path| ("PATH", path)));
    for (place, candidate) in candidates {
        match ask(&candidate, (major, minor)).await {
            Ok(python) => return Ok(python),
            Err(reason) => tried.push(format!("{} of {place}, but {reason}", candidate.display())),
        }
    }
    if tried.iter().all(|place| !place.contains(" of PATH, ")) {
        tried.push(format!("PATH, which has no {name}"));
    }
    match managed_by_uv((major, minor), search).await {
        Ok(python) => return Ok(python),
        Err(reason) => tried.push(reason),
    }
    Err(NoPython {
        major,
        minor,
        tried,
    })
}

/// A directory stands for the interpreter in it, or in its `bin`.
fn in_list(path: &Path, name: &str) -> PathBuf {
    let within = [path.join(name), path.join("bin").join(name)];
    let found = within.into_iter().find(|path| path.is_file());
    found.unwrap_or_else(|| path.to_owned())
}

fn on_path<'a>(path: &'a OsStr, name: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    std::env::split_paths(path)
        .map(move |directory| directory.join(name))
        .filter(|path| path.is_file())
}

async fn managed_by_uv(
    (major, minor): (u8, u8),
    search: PythonSearch<'_>,
) -> Result<Python, String> {
    let Some(uv) = search.uv else {
        return Err("uv, which is not installed".to_owned());
    };
    let version = format!("{major}.{minor}");
    if search.may_download {
        // What it has installed already, it leaves as it is.
        let install = ["python", "install", "--no-config", "--no-bin", &version];
        if let Err(reason) = interpreter::run_long(uv, &install).await {
            return Err(format!("to have uv install it, but {reason}"));
        }
    }
    let find = [
        "python",
        "find",
        "--no-project",
        "--no-config",
        "--managed-python",
        "--no-python-downloads",
        &version,
    ];
    let found = interpreter::run(uv, &find).await;
    let found = found.map_err(|_| format!("uv, which manages no Python {version}"))?;
    let path = Path::new(found.trim());
    ask(path, (major, minor))
        .await
        .map_err(|reason| format!("{} of uv, but {reason}", path.display()))
}

async fn ask(path: &Path, (major, minor): (u8, u8)) -> Result<Python, String> {
    let Interpreter {
        executable,
        version,
        ..
    } = interpreter::ask(path).await?;
    if (version.0, version.1) == (major.into(), minor.into()) {
        return Ok(Python {
            executable,
            version,
        });
    }
    Err(format!("it is {}.{}", version.0, version.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The version that this machine has.
    async fn own() -> Interpreter {
        interpreter::find(None).await.unwrap()
    }

    fn short(interpreter: &Interpreter) -> (u8, u8) {
        let (major, minor, _) = interpreter.version;
        (major.try_into().unwrap(), minor.try_into().unwrap())
    }

    #[tokio::test]
    async fn the_configured_one_comes_first_if_it_is_of_that_version() {
        let own = own().await;
        let search = PythonSearch {
            configured: Some(&own.executable),
            ..PythonSearch::default()
        };
        let found = find_python(short(&own), search).await.unwrap();
        assert_eq!(found.executable, own.executable);
        assert_eq!(found.version, own.version);
    }

    #[tokio::test]
    async fn a_directory_of_the_list_stands_for_the_interpreter_in_it() {
        let own = own().await;
        let place = tempfile::tempdir().unwrap();
        let bin = place.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let (major, minor) = short(&own);
        let name = format!("python{major}.{minor}");
        std::os::unix::fs::symlink(&own.executable, bin.join(&name)).unwrap();
        for path in [place.path().to_owned(), bin.clone(), bin.join(&name)] {
            let paths = [PathBuf::from("/bin/true"), path];
            let search = PythonSearch {
                paths: &paths,
                ..PythonSearch::default()
            };
            let found = find_python((major, minor), search).await.unwrap();
            assert_eq!(found.version, own.version);
            assert_eq!(found.executable.file_name(), own.executable.file_name());
        }
    }

    #[tokio::test]
    async fn what_was_tried_is_said_with_the_fix() {
        let own = own().await;
        let paths = [own.executable.clone(), PathBuf::from("/nowhere")];
        let search = PythonSearch {
            configured: Some(Path::new("/bin/true")),
            paths: &paths,
            uv: Some(Path::new("/bin/false")),
            may_download: false,
        };
        let said = find_python((3, 99), search).await.unwrap_err().to_string();
        let (_, minor) = short(&own);
        for expected in [
            "there is no Python 3.99 here: tried /bin/true of `python.path`, but it does not answer like Python",
            &format!("of `environment_builder.python_paths`, but it is 3.{minor}"),
            "/nowhere of `environment_builder.python_paths`, but it cannot be run",
            "PATH, which has no python3.99",
            "uv, which manages no Python 3.99. Install it, run `uv python install 3.99`",
        ] {
            assert!(said.contains(expected), "{expected}: {said}");
        }
    }
}
