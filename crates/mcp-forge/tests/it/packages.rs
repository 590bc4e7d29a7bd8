//! What we accept as a package, real `uv` reads as the same package and nothing else; its locks are
//! read, and what we write from them is installed by it.
//!
//! `uv add --frozen` reads a requirements file without a network and writes down what it understood.
//! The control shows what it understands of files that are not ours: options, other files, paths,
//! addresses with our variables in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use mcp_forge::packages::{Lock, LockSources, PythonVersion, Requirement};
use proptest::{prelude::*, strategy::ValueTree as _, test_runner::TestRunner};
use serde_json::{Value, json};

use crate::real_python::packages::python;

/// Spellings that a random text seldom has.
const SPELLINGS: &[&str] = &[
    "numpy",
    "Scikit--LEARN >= 1.3.0 , < 2",
    "zope.interface==5.*",
    "requests[socks, Use_Chardet]>=2.31",
    "python-dateutil~=2.8.2",
    "certifi==2026.10.19.post1",
    "epoch==2!1.0",
    "prefix!=2!1.*",
    "alpha==1.0-alpha-1",
    "candidate>=1.0PREVIEW2",
    "post==1.0-1",
    "revision==1.0.rev3",
    "development>=1.0.dev0",
    "everything==1!1.0a1.post2.dev3",
    "vee==v1.0",
    "zeros==01.00",
    "0",
    "7zip-x",
    "whl",
    "git",
    "file-x",
    "http",
    "r",
    "e",
    "c",
    "pip",
    "uv",
    "python",
    "extra-index-url",
    "index-url==1.0",
    "hash-sha256==1.0",
    "no-index",
];

#[test]
fn what_we_accept_uv_reads_as_the_same_package_and_nothing_else() {
    let accepted = accepted();
    assert!(accepted.len() >= 400, "{}", accepted.len());
    let lines: Vec<String> = accepted
        .values()
        .map(|(_, package)| package.to_string())
        .collect();
    let project = Project::new(&lines.join("\n"));
    let written = project.dependencies();

    let wanted: BTreeSet<String> = accepted
        .values()
        .map(|(_, package)| comparable(package))
        .collect();
    let read: BTreeSet<String> = written
        .iter()
        .map(|text| comparable(&Requirement::parse(text).unwrap()))
        .collect();
    assert_eq!(read, wanted);
    assert_eq!(written.len(), accepted.len());
    project.has_nothing_else();
}

/// The control: what the test above looks at would show every way out of a requirements file.
#[test]
fn uv_would_do_much_more_with_what_we_refuse() {
    let lines = [
        "-r other.txt",
        "./local",
        "six @ https://index.invalid/${SECRET}/six-1.0-py3-none-any.whl",
        "NumPy === 1.0",
    ];
    for line in lines {
        assert!(Requirement::parse(line).is_err(), "{line}");
    }
    let project = Project::new(&lines.join("\n"));
    let written = project.dependencies();
    for more in ["hidden", "local", "six", "numpy===1.0"] {
        assert!(
            written.iter().any(|line| line == more),
            "{more}: {written:?}"
        );
    }
    let text = project.text();
    assert!(text.contains("https://index.invalid/canary/"), "{text}");
    assert!(text.contains("[tool.uv"), "{text}");
}

/// A second opinion: the library that Python's tools read packages with, of the text before and after us.
#[test]
fn our_canonical_text_means_what_the_text_meant() {
    let accepted = accepted();
    let pairs: Vec<Value> = accepted
        .iter()
        .map(|(name, (text, package))| json!([name, text, package.to_string()]))
        .collect();
    let script = r"
import json, sys
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
def comparison(one):
    plain = one.version[:-2] if one.version.endswith('.*') else one.version
    return one.operator, str(Version(plain)), plain != one.version
def read(text):
    read = Requirement(text)
    assert read.url is None and read.marker is None, text
    extras = sorted({canonicalize_name(extra) for extra in read.extras})
    return canonicalize_name(read.name), extras, sorted(set(map(comparison, read.specifier)))
pairs = json.load(sys.stdin)
for name, text, ours in pairs:
    before, after = read(text), read(ours)
    assert after[0] == name and before == after, (text, ours)
    for operator, version, prefix in after[2]:
        assert operator + version + ('.*' if prefix else '') in ours, (version, ours)
print(len(pairs))
";
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("pairs.json");
    fs::write(&input, serde_json::to_vec(&pairs).unwrap()).unwrap();
    let mut command = program(&python());
    command.args(["-I", "-c", script]);
    command.stdin(fs::File::open(&input).unwrap());
    let output = command.output().unwrap();
    assert_eq!(said(&output), format!("{}\n", pairs.len()), "{output:?}");
}

/// What uv resolves and we read, uv installs from what we wrote, and from nothing but those files.
#[test]
fn a_lock_of_uv_comes_back_to_it_as_hashes() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    fs::create_dir(place("wheels")).unwrap();
    let script = r"
import sys, zipfile
for name, version, needs in [('demo_pkg', '1.0', 'pre>=1.0rc1'), ('pre', '1.0rc1', ''), ('build', '2.0+cpu.1', ''), ('other', '1.0', '')]:
    info = f'{name}-{version}.dist-info'
    with zipfile.ZipFile(f'{sys.argv[1]}/{name}-{version}-py3-none-any.whl', 'w') as wheel:
        wheel.writestr(f'{name}.py', '')
        metadata = f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n'
        wheel.writestr(f'{info}/METADATA', metadata + (f'Requires-Dist: {needs}\n' if needs else ''))
        wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        files = [f'{name}.py', f'{info}/METADATA', f'{info}/WHEEL', f'{info}/RECORD']
        wheel.writestr(f'{info}/RECORD', ''.join(f'{file},,\n' for file in files))
";
    let mut command = program(&python());
    said(
        &command
            .args(["-I", "-c", script])
            .arg(place("wheels"))
            .output()
            .unwrap(),
    );
    let wheels = place("wheels");
    let offline = |command: &mut std::process::Command| {
        command.args([
            "--no-index",
            "--offline",
            "--no-cache",
            "--no-config",
            "--find-links",
        ]);
        command.arg(&wheels);
    };

    let asked = ["Demo.Pkg == 1.*", "build"].map(|text| Requirement::parse(text).unwrap());
    fs::write(
        place("asked.txt"),
        asked.map(|package| format!("{package}\n")).concat(),
    )
    .unwrap();
    let mut compile = program(&uv());
    compile.args([
        "pip",
        "compile",
        "--format",
        "pylock.toml",
        "--only-binary",
        ":all:",
        "--quiet",
    ]);
    compile
        .arg("--python")
        .arg(python())
        .arg("-o")
        .arg(place("pylock.toml"));
    offline(&mut compile);
    said(&compile.arg(place("asked.txt")).output().unwrap());

    let text = fs::read_to_string(place("pylock.toml")).unwrap();
    let version = PythonVersion::parse("3.11").unwrap();
    let sources = |directory| LockSources {
        origins: &[],
        wheel_directory: directory,
    };
    let lock = Lock::parse(&text, version, &sources(Some(wheels.as_path()))).unwrap();
    let locked: Vec<String> = lock
        .packages()
        .iter()
        .map(|package| format!("{}=={}", package.name, package.version))
        .collect();
    assert_eq!(locked, ["build==2.0+cpu.1", "demo-pkg==1.0", "pre==1.0rc1"]);
    Lock::parse(&text, version, &sources(None)).unwrap_err();

    said(
        &program(&python())
            .args(["-m", "venv", "--without-pip"])
            .arg(place("venv"))
            .output()
            .unwrap(),
    );
    let sync = |requirements: &str| {
        fs::write(place("sync.txt"), requirements).unwrap();
        let mut sync = program(&uv());
        sync.args([
            "pip",
            "sync",
            "--require-hashes",
            "--no-build",
            "--quiet",
            "--link-mode",
            "copy",
        ]);
        sync.arg("--python").arg(place("venv/bin/python"));
        offline(&mut sync);
        sync.arg(place("sync.txt")).output().unwrap()
    };
    // The control: of another file there is another hash.
    let good = lock.requirements();
    let hash = &lock.packages()[1].wheels[0].sha256;
    let refused = sync(&good.replace(hash.as_str(), &hash.chars().rev().collect::<String>()));
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && complaint.contains("ash mismatch"),
        "{complaint}"
    );

    said(&sync(&good));
    let mut import = program(&place("venv/bin/python"));
    import.args(["-c", "import demo_pkg, pre, build"]);
    said(&import.output().unwrap());
    let mut import = program(&place("venv/bin/python"));
    let import = import.args(["-c", "import other"]).output().unwrap();
    assert!(
        !import.status.success(),
        "what was not asked for is installed"
    );
}

/// Accepted texts of each name once, by the name.
fn accepted() -> BTreeMap<String, (String, Requirement)> {
    let mut runner = TestRunner::deterministic();
    let random = (0..1_500).map(|_| plausible().new_tree(&mut runner).unwrap().current());
    let mut all = BTreeMap::new();
    let listed = SPELLINGS.iter().map(|&text| text.to_owned());
    for text in listed.clone() {
        Requirement::parse(&text).unwrap();
    }
    for text in listed.chain(random) {
        if let Ok(package) = Requirement::parse(&text) {
            let name = package.name.to_string();
            all.entry(name).or_insert((text, package));
        }
    }
    all
}

fn plausible() -> impl Strategy<Value = String> {
    let version = "v?([0-9]!)?[0-9]{1,2}(\\.[0-9]{1,2}){0,2}([._-]?(a|beta|rc|pre|post|rev|dev)[._-]?[0-9]{1,2}){0,1}(\\.\\*)?";
    let name = "[a-zA-Z0-9]([a-zA-Z0-9._-]{0,10}[a-zA-Z0-9])?";
    let specifier = ("(==|!=|<=|>=|<|>|~=)", " ?", version).prop_map(|(a, b, c)| a + &b + &c);
    let specifiers = prop::collection::vec(specifier, 0..3).prop_map(|all| all.join(","));
    let extras = prop_oneof![
        Just(String::new()),
        prop::collection::vec(name, 1..4).prop_map(|all| format!("[{}]", all.join(","))),
    ];
    (name, extras, specifiers).prop_map(|(a, b, c)| a + &b + &c)
}

/// Name, extras and comparisons in an order that both sides agree on.
fn comparable(package: &Requirement) -> String {
    let comparisons: BTreeSet<String> =
        package.specifiers.iter().map(ToString::to_string).collect();
    format!("{} {:?} {comparisons:?}", package.name, package.extras)
}

/// A project to which uv added whatever it understood of a requirements file.
struct Project {
    directory: tempfile::TempDir,
}

impl Project {
    fn new(requirements: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = directory.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let project = |name: &str| format!("[project]\nname = \"{name}\"\nversion = \"0\"\n");
        write(
            "pyproject.toml",
            &format!(
                "{}requires-python = \">=3.10\"\ndependencies = []\n",
                project("probe-of-mcp-forge")
            ),
        );
        write("requirements.txt", requirements);
        write("other.txt", "hidden\n");
        write("local/pyproject.toml", &project("local"));
        let mut add = program(&uv());
        add.args([
            "add",
            "--frozen",
            "--offline",
            "--no-config",
            "--no-cache",
            "--no-python-downloads",
        ]);
        add.arg("--python")
            .arg(python())
            .args(["-r", "requirements.txt"]);
        add.env("SECRET", "canary").current_dir(directory.path());
        said(&add.output().unwrap());
        Self { directory }
    }

    fn text(&self) -> String {
        fs::read_to_string(self.directory.path().join("pyproject.toml")).unwrap()
    }

    fn table(&self) -> toml::Table {
        self.text().parse().unwrap()
    }

    fn dependencies(&self) -> Vec<String> {
        let table = self.table();
        let listed = table["project"]["dependencies"].as_array().unwrap();
        listed
            .iter()
            .map(|line| line.as_str().unwrap().to_owned())
            .collect()
    }

    /// No index, no source, no workspace, no group.
    fn has_nothing_else(&self) {
        let table = self.table();
        assert_eq!(table.keys().collect::<Vec<_>>(), ["project"]);
        let project = table["project"].as_table().unwrap();
        let keys: BTreeSet<&str> = project.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            BTreeSet::from(["dependencies", "name", "requires-python", "version"])
        );
    }
}

/// The `uv` that `cargo xtask test` installs.
pub(crate) fn uv() -> PathBuf {
    let uv = python().with_file_name("uv");
    assert!(
        uv.exists(),
        "{} is missing: run cargo xtask test",
        uv.display()
    );
    uv
}

#[expect(clippy::disallowed_methods, reason = "tests ask uv and Python")]
fn program(path: &Path) -> std::process::Command {
    let mut command = std::process::Command::new(path);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/nonexistent");
    command
}

/// What a program that must succeed wrote.
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}
