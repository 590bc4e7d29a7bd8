//! Trees of packages, made by hand.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use mcp_forge::engine::{Environment, Meta, native::Python};
use tempfile::TempDir;

use crate::real_python::packages;

/// A published tree that is as tests need it.
pub(crate) struct Tree {
    /// Where environments are, as in a data directory.
    place: TempDir,
    meta: Meta,
}

impl Tree {
    /// With nothing in it, for the Python of the test tools. The digit tells it from another.
    pub(crate) fn new(digit: char) -> Self {
        let place = tempfile::tempdir().unwrap();
        let (interpreter, python) = base_of(&packages::python());
        let meta = Meta {
            id: digit.to_string().repeat(64),
            python,
            interpreter,
            modules: Vec::new(),
            built_at: "2026-01-01T00:00:00Z".to_owned(),
            size_bytes: 0,
            packages: Vec::new(),
        };
        let tree = Self { place, meta };
        fs::create_dir_all(tree.site_packages()).unwrap();
        tree.describe();
        tree
    }

    /// With nothing in it, for another Python.
    pub(crate) fn for_python(digit: char, python: &Python) -> Self {
        let mut tree = Self::new(digit);
        fs::remove_dir_all(tree.directory().join("lib")).unwrap();
        let (major, minor, _) = python.version;
        tree.meta.python = format!("{major}.{minor}");
        python.executable.clone_into(&mut tree.meta.interpreter);
        fs::create_dir_all(tree.site_packages()).unwrap();
        tree.describe();
        tree
    }

    /// With a module that is this text.
    pub(crate) fn with_module(mut self, name: &str, text: &str) -> Self {
        fs::write(self.site_packages().join(format!("{name}.py")), text).unwrap();
        self.meta.modules.push(name.to_owned());
        self.describe();
        self
    }

    /// With any other file.
    pub(crate) fn with_file(self, name: &str, text: &str) -> Self {
        fs::write(self.site_packages().join(name), text).unwrap();
        self
    }

    /// With these of the packages that the test tools have.
    pub(crate) fn with_packages(mut self, names: &[&str]) -> Self {
        let from = packages::python().with_file_name("../lib");
        let from = from.join(format!("python{}/site-packages", self.meta.python));
        for entry in fs::read_dir(&from).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let package = name.split(['.', '-']).next().unwrap();
            if names.contains(&package) {
                copy(&entry.path(), &self.site_packages().join(&name));
            }
        }
        self.meta
            .modules
            .extend(names.iter().map(|&name| name.to_owned()));
        self.describe();
        self
    }

    /// As written in its description, by whatever changes it.
    pub(crate) fn described(mut self, change: impl FnOnce(&mut Meta)) -> Self {
        let before = self.directory();
        change(&mut self.meta);
        fs::rename(before, self.directory()).unwrap();
        self.describe();
        self
    }

    /// For a Python that is not the one at the path that it names.
    pub(crate) fn of_another_version() -> Self {
        let mut tree = Self::new('9');
        fs::remove_dir_all(tree.directory().join("lib")).unwrap();
        "3.9".clone_into(&mut tree.meta.python);
        fs::create_dir_all(tree.site_packages()).unwrap();
        tree.describe();
        tree
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.place.path().join(&self.meta.id)
    }

    pub(crate) fn site_packages(&self) -> PathBuf {
        let python = format!("lib/python{}", self.meta.python);
        self.directory().join(python).join("site-packages")
    }

    pub(crate) fn open(&self) -> Arc<Environment> {
        Arc::new(Environment::open(&self.directory()).unwrap())
    }

    fn describe(&self) {
        self.meta.write(&self.directory()).unwrap();
    }
}

/// The interpreter behind a virtual environment, and its version.
#[expect(clippy::disallowed_methods, reason = "a test asks Python")]
fn base_of(python: &Path) -> (PathBuf, String) {
    let question =
        "import os, sys\nprint(os.path.realpath(sys._base_executable), *sys.version_info[:2])";
    let output = Command::new(python)
        .args(["-c", question])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let [executable, major, minor] = text.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    (executable.into(), format!("{major}.{minor}"))
}

/// By links where that is possible: nothing writes to either.
fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        if from.file_name() == Some(OsStr::new("tests")) {
            return;
        }
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else if fs::hard_link(from, to).is_err() {
        fs::copy(from, to).unwrap();
    }
}
