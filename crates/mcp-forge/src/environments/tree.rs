//! What `uv` wrote, looked at before anything uses it: sizes, kinds of files, top-level modules.
//!
//! The tree lies where no job can reach it any more. Its content is as hostile as its packages.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Files and directories, at most.
const MOST_ENTRIES: u64 = 500_000;

/// Directories in directories, at most.
const DEEPEST: usize = 64;

/// Bytes that are read of one RECORD file, and of one line of it.
const MOST_RECORD_BYTES: u64 = 32 << 20;
const MOST_LINE_BYTES: u64 = 4 << 10;

/// Top-level modules, at most.
const MOST_MODULES: usize = 2_000;

/// Set-user-id and set-group-id.
const SET_ID_BITS: u32 = 0o6000;

/// What a tree holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// Bytes of its files.
    pub(super) bytes: u64,
    /// Its top-level modules, and the distribution that brought each: a normalised name.
    pub(super) modules: BTreeMap<String, String>,
}

/// A tree that is not published.
#[derive(Debug, thiserror::Error)]
pub(super) enum TreeError {
    #[error("it holds `{}`, which is {what}", path.display())]
    Forbidden { path: PathBuf, what: &'static str },
    #[error("its files have more than {most} bytes")]
    TooLarge { most: u64 },
    #[error("it has more than {MOST_ENTRIES} files")]
    TooMany,
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Walks a directory of installed packages.
///
/// # Errors
///
/// [`TreeError`]: it holds what no wheel should bring, or more than `most_bytes`.
pub(super) fn look(site_packages: &Path, most_bytes: u64) -> Result<Summary, TreeError> {
    let mut walk = Walk {
        root: site_packages,
        most_bytes,
        entries: 0,
        bytes: 0,
    };
    walk.directory(site_packages, 0)?;
    Ok(Summary {
        bytes: walk.bytes,
        modules: modules(site_packages)?,
    })
}

struct Walk<'a> {
    root: &'a Path,
    most_bytes: u64,
    entries: u64,
    bytes: u64,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &Path, depth: usize) -> Result<(), TreeError> {
        if depth > DEEPEST {
            return Err(self.forbidden(directory, "too deep"));
        }
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            self.entries += 1;
            if self.entries > MOST_ENTRIES {
                return Err(TreeError::TooMany);
            }
            let found = fs::symlink_metadata(&path)?;
            if found.permissions().mode() & SET_ID_BITS != 0 {
                return Err(self.forbidden(&path, "a file that changes its user"));
            }
            if found.is_dir() {
                self.directory(&path, depth + 1)?;
            } else if found.is_file() && found.nlink() > 1 {
                return Err(self.forbidden(&path, "reachable under another name as well"));
            } else if found.is_file() {
                self.bytes = self.bytes.saturating_add(found.size());
                if self.bytes > self.most_bytes {
                    let most = self.most_bytes;
                    return Err(TreeError::TooLarge { most });
                }
            } else {
                // `uv` writes no link of its own, and what a link in a wheel would name is not its.
                return Err(self.forbidden(&path, "neither a file nor a directory"));
            }
        }
        Ok(())
    }

    fn forbidden(&self, path: &Path, what: &'static str) -> TreeError {
        let path = path.strip_prefix(self.root).unwrap_or(path).to_owned();
        TreeError::Forbidden { path, what }
    }
}

/// The top-level modules, from the lists of files that each distribution brought.
fn modules(site_packages: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut modules = BTreeMap::new();
    for entry in fs::read_dir(site_packages)? {
        let directory = entry?.path();
        let Some(distribution) = distribution_of(&directory) else {
            continue;
        };
        let Ok(record) = fs::File::open(directory.join("RECORD")) else {
            continue;
        };
        let mut lines = BufReader::new(record.take(MOST_RECORD_BYTES));
        let mut line = Vec::new();
        while modules.len() < MOST_MODULES {
            line.clear();
            if (&mut lines)
                .take(MOST_LINE_BYTES)
                .read_until(b'\n', &mut line)?
                == 0
            {
                break;
            }
            if let Some(module) = std::str::from_utf8(&line).ok().and_then(module_of) {
                modules
                    .entry(module.to_owned())
                    .or_insert_with(|| distribution.clone());
            }
        }
    }
    Ok(modules)
}

/// The normalised name in `Name-1.0.dist-info`.
fn distribution_of(directory: &Path) -> Option<String> {
    let name = directory.file_name()?.to_str()?;
    let (name, _) = name.strip_suffix(".dist-info")?.split_once('-')?;
    Some(name.to_ascii_lowercase().replace(['_', '.'], "-"))
}

/// The module that a line of RECORD, `path,hash,size`, belongs to.
fn module_of(line: &str) -> Option<&str> {
    let path = line.split(',').next()?;
    let module = if let Some((directory, rest)) = path.split_once('/') {
        // Data and metadata lie in directories whose names are none of a module.
        let is_code = Path::new(rest)
            .extension()
            .is_some_and(|extension| extension == "py" || extension == "so");
        is_code.then_some(directory)?
    } else {
        let (stem, end) = path.split_once('.')?;
        (end == "py" || end.ends_with("so")).then_some(stem)?
    };
    let is_name = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !text.starts_with(|letter: char| letter.is_ascii_digit())
            && !text.is_empty()
    };
    is_name(module).then_some(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_read_from_records() {
        for (line, module) in [
            ("numpy/__init__.py,sha256=x,1", Some("numpy")),
            ("six.py,sha256=x,1", Some("six")),
            ("_yaml.cpython-311-x86_64-linux-gnu.so,,", Some("_yaml")),
            ("google/protobuf/__init__.py,,", Some("google")),
            ("numpy-2.0.dist-info/METADATA,,", None),
            ("numpy.libs/libopenblas.so,,", None),
            ("../../bin/f2py,,", None),
            ("x.pth,,", None),
            ("1bad/a.py,,", None),
            ("a b/a.py,,", None),
            ("etc/jupyter/conf.json,,", None),
            ("", None),
        ] {
            assert_eq!(module_of(line), module, "{line}");
        }
    }

    #[test]
    fn sizes_and_modules_are_told_and_the_limit_holds() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        fs::create_dir_all(root.join("six-1.0.dist-info")).unwrap();
        fs::write(root.join("six.py"), vec![b' '; 100]).unwrap();
        fs::write(root.join("six-1.0.dist-info/RECORD"), "six.py,,\n").unwrap();
        let summary = look(root, 1000).unwrap();
        assert_eq!(summary.bytes, 109);
        assert_eq!(summary.modules["six"], "six");
        let error = look(root, 105).unwrap_err();
        assert!(
            matches!(error, TreeError::TooLarge { most: 105 }),
            "{error}"
        );
    }

    #[test]
    fn what_no_wheel_should_bring_is_refused_by_name() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
        let error = look(root, 1000).unwrap_err().to_string();
        assert_eq!(
            error,
            "it holds `link`, which is neither a file nor a directory"
        );
        fs::remove_file(root.join("link")).unwrap();
        fs::write(root.join("tool"), "x").unwrap();
        fs::set_permissions(root.join("tool"), fs::Permissions::from_mode(0o4755)).unwrap();
        let error = look(root, 1000).unwrap_err().to_string();
        assert!(error.contains("changes its user"), "{error}");
        fs::remove_file(root.join("tool")).unwrap();
        fs::write(root.join("one"), "x").unwrap();
        fs::hard_link(root.join("one"), root.join("two")).unwrap();
        let error = look(root, 1000).unwrap_err().to_string();
        assert!(error.contains("under another name"), "{error}");
        fs::remove_file(root.join("one")).unwrap();
        fs::create_dir_all(root.join("d/".repeat(70))).unwrap();
        assert!(
            look(root, 1000)
                .unwrap_err()
                .to_string()
                .contains("too deep")
        );
    }
}
