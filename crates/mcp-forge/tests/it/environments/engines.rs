//! Sandboxes of the native engine in an environment: forked and cold, on the host's root and on a
//! private one.

use std::{
    fs,
    os::unix::fs::symlink,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mcp_forge::{
    config::{Config, Rootfs},
    engine::{
        Claim, Engine, Environment, EnvironmentError, LaunchError, Purpose, SandboxSpec,
        native::{Native, PythonSearch, find_python},
    },
    runner::wire::{ToolFailure, ToolValue},
    turn::{Observer, Outcome, Report, Resident, Stream, Tools, Turn},
};
use serde_json::{Map, Value, json};

use super::tree::Tree;
use crate::{
    real_python::packages,
    sandbox::{binary, config, turn_in},
};

/// An engine in one of its modes.
struct Forge {
    engine: Native,
    config: Config,
}

impl Forge {
    async fn new(is_warm: bool, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        config.native.warm = is_warm;
        config.native.python = Some(packages::python());
        change(&mut config);
        let engine = Native::with_jail(&config, binary());
        engine.prepare().await.unwrap();
        Self { engine, config }
    }

    async fn run(&self, environment: &Arc<Environment>, code: &str) -> Report {
        self.run_for(environment, code, &[]).await
    }

    /// As the service does for code that imports these.
    async fn run_for(
        &self,
        environment: &Arc<Environment>,
        code: &str,
        imports: &[&str],
    ) -> Report {
        let imports = imports.iter().map(|&name| name.to_owned()).collect();
        let spec = self.spec(Some(environment), Purpose::Turn(imports));
        let sandbox = self.engine.launch(&spec).await.unwrap();
        turn_in(sandbox, code, &self.config.default_limits).await
    }

    fn spec(&self, environment: Option<&Arc<Environment>>, purpose: Purpose) -> SandboxSpec {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        SandboxSpec {
            id: format!("environment-{}-{number}", std::process::id()),
            limits: self.config.default_limits.clone(),
            purpose,
            environment: environment.cloned(),
        }
    }
}

/// What each mode must do alike.
const MODES: [(bool, Rootfs); 4] = [
    (true, Rootfs::Host),
    (false, Rootfs::Host),
    (true, Rootfs::Minimal),
    (false, Rootfs::Minimal),
];

async fn in_each_mode(test: impl AsyncFn(Forge, String)) {
    for (is_warm, rootfs) in MODES {
        let forge = Forge::new(is_warm, |config| config.native.rootfs = rootfs);
        test(forge.await, format!("warm: {is_warm}, {rootfs:?}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_are_the_environments_and_no_others() {
    let tree = Tree::new('a')
        .with_packages(&["numpy"])
        .with_module("tiny", "VERSION = '1.2.3'\n");
    in_each_mode(async |forge, mode| {
        let environment = tree.open();
        let code = "
import importlib.util, sys, numpy, tiny
singular = numpy.linalg.svd(numpy.eye(3))[1].tolist()
found = [name for name in ('pandas', 'matplotlib', 'pip') if importlib.util.find_spec(name)]
tiny.VERSION, singular, numpy.__file__.split('/numpy/')[0], found, sys.prefix";
        for _ in 0..2 {
            let report = forge.run_for(&environment, code, &["numpy"]).await;
            let place = site_packages(&environment);
            let expected = json!(["1.2.3", [1.0, 1.0, 1.0], place, [], "/opt/environment"]);
            assert_eq!(report.result, expected, "{mode}: {report:?}");
        }
        // What it starts has them too.
        let child = "
import subprocess, sys
subprocess.run([sys.executable, '-c', 'import tiny, numpy; print(tiny.VERSION)'], capture_output=True, text=True).stdout";
        let report = forge.run(&environment, child).await;
        assert_eq!(report.result, json!("1.2.3\n"), "{mode}: {report:?}");
    })
    .await;
}

fn site_packages(environment: &Environment) -> String {
    let (major, minor) = environment.python;
    format!("/opt/environment/lib/python{major}.{minor}/site-packages")
}

/// Everything that installs, and what it must come to. `SITE` stands for site-packages, and in the
/// control, where each succeeds, for that of an ordinary virtual environment.
const INSTALLATIONS: &[(&str, &str)] = &[
    ("ensurepip", "run(sys.executable, '-m', 'ensurepip')"),
    (
        "pip",
        "run(BASE, '-m', 'pip', '--python', sys.executable, 'install', '--no-index', '--no-deps', wheel())",
    ),
    ("write", "open(SITE + '/new.py', 'w').close()"),
    ("overwrite", "open(SITE + '/tiny.py', 'a').close()"),
    ("pth", "open(SITE + '/new.pth', 'w').write('import os')"),
    (
        "sitecustomize",
        "open(SITE + '/sitecustomize.py', 'w').close()",
    ),
    ("directory", "os.mkdir(SITE + '/new')"),
    ("rename", "os.rename(SITE + '/tiny.py', SITE + '/other.py')"),
    ("link", "os.symlink('/tmp', SITE + '/linked')"),
    ("remove", "os.unlink(SITE + '/linked')"),
    ("permissions", "os.chmod(SITE, 0o777)"),
];

/// Runs one of them, and says whether it did what it is for.
const INSTALL: &str = "
import os, subprocess, sys, sysconfig, zipfile
def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.returncode, done.stdout[-500:] + done.stderr[-500:])
def wheel():
    name = WORK + '/small-1-py3-none-any.whl'
    with zipfile.ZipFile(name, 'w') as archive:
        archive.writestr('small.py', '')
        archive.writestr('small-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: small\\nVersion: 1\\n')
        archive.writestr('small-1.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
        archive.writestr('small-1.dist-info/RECORD', 'small.py,,\\nsmall-1.dist-info/METADATA,,\\nsmall-1.dist-info/WHEEL,,\\nsmall-1.dist-info/RECORD,,\\n')
    return name
SITE = sysconfig.get_paths()['purelib']
BASE = getattr(sys, '_base_executable', sys.executable)
def attempt():
    try:
        STEP
        return 'done'
    except OSError as error:
        return type(error).__name__
";

fn installation(step: &str, work: &str) -> String {
    INSTALL
        .replace("STEP", step)
        .replace("WORK", &format!("{work:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_can_be_installed_in_a_running_sandbox() {
    for (name, step) in installed_outside() {
        assert_eq!(step, "done", "the control of {name}");
    }
    let tree = Tree::new('a').with_module("tiny", "");
    let before = listed(&tree);
    in_each_mode(async |forge, mode| {
        let environment = tree.open();
        for (name, step) in INSTALLATIONS {
            let code = installation(step, "/tmp") + "attempt(), SITE";
            let report = forge.run(&environment, &code).await;
            let place = site_packages(&environment);
            assert!(
                report.result[0] != "done" && report.result[1] == json!(place),
                "{mode}, {name}: {report:?}"
            );
        }
        // Whatever of these a sandbox has is the host's, and has no index to ask.
        let code = "
import shutil, subprocess, sys
commands = [[sys.executable, '-m', 'pip', 'install', 'six'], ['pip', 'install', 'six'], ['uv', 'pip', 'install', 'six']]
def works(command):
    try:
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except (FileNotFoundError, PermissionError):
        return False
[works(command) for command in commands]";
        let report = forge.run(&environment, code).await;
        assert_eq!(report.result, json!([false, false, false]), "{mode}: {report:?}");
    })
    .await;
    assert_eq!(listed(&tree), before);
}

/// The same steps by the same Python in a virtual environment that may be written to.
#[expect(clippy::disallowed_methods, reason = "a test runs Python")]
fn installed_outside() -> Vec<(&'static str, String)> {
    let place = tempfile::tempdir().unwrap();
    let venv = place.path().join("venv");
    let tools = packages::python();
    let made = Command::new(&tools)
        .args(["-m", "venv", "--without-pip"])
        .arg(&venv)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let python = venv.join("bin/python");
    let work = place.path().display().to_string();
    let prelude = format!(
        "BASE = {:?}\nopen(SITE + '/tiny.py', 'a').close()\n",
        tools.display().to_string()
    );
    let mut outcomes = Vec::new();
    for (name, step) in INSTALLATIONS {
        let code = installation(step, &work) + &prelude + "print(attempt())";
        let output = Command::new(&python).args(["-c", &code]).output().unwrap();
        outcomes.push((
            *name,
            String::from_utf8(output.stdout).unwrap().trim().to_owned(),
        ));
    }
    outcomes
}

fn listed(tree: &Tree) -> Vec<String> {
    let entries = fs::read_dir(tree.site_packages()).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// What a package has Python do when it starts is done in a sealed process, and only there. A zygote is
/// none: what runs in it could have its forks sealed badly.
#[tokio::test(flavor = "multi_thread")]
async fn no_code_of_an_environment_runs_before_the_seal() {
    let place = tempfile::tempdir().unwrap();
    let mark = place.path().join("mark");
    let hostile = format!(
        "import os, sys
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())
seen = (status['NoNewPrivs'], status['Seccomp'], status['CapPrm'], status['CapBnd'], status['Seccomp_filters'], os.readlink('/proc/self/ns/pid'))
sys.seen = getattr(sys, 'seen', []) + [seen]
try:
    open({:?}, 'w').close()
except OSError:
    pass
",
        mark.display().to_string()
    );
    // As the name of a tier, too: a module that the operator's configuration has imported ahead.
    let tree = Tree::new('a')
        .with_module("numpy", &format!("{hostile}sys.numpy_seen = seen\n"))
        .with_module("started", &hostile)
        .with_module("sitecustomize", &hostile)
        .with_module("IPython", &hostile)
        .with_file("first.pth", "import started\n");
    in_each_mode(async |forge, mode| {
        let environment = tree.open();
        let code = "
import os, sys
status = dict(line.split(':\t', 1) for line in open('/proc/self/status').read().splitlines())
own = (status['NoNewPrivs'], status['Seccomp'], status['CapPrm'], status['CapBnd'], status['Seccomp_filters'], os.readlink('/proc/self/ns/pid'))
getattr(sys, 'seen', None), getattr(sys, 'numpy_seen', None), own, 'numpy' in sys.modules, sys.flags.no_site";
        // The first is forked when it is asked for, the others are made ahead.
        for _ in 0..3 {
            let report = forge.run_for(&environment, code, &["numpy"]).await;
            assert_eq!(report.outcome, Outcome::Completed, "{mode}: {report:?}");
            // A zygote has fewer filters, and pids that are not the fork's.
            let sealed = report.result[2].clone();
            let bare = json!(["1", "2", "0000000000000000", "0000000000000000"]);
            assert_eq!(Value::from(&sealed.as_array().unwrap()[..4]), bare, "{mode}");
            let starts = report.result[0].as_array().unwrap();
            // `first.pth`, and `sitecustomize` unless the interpreter has one of its own.
            assert!(!starts.is_empty(), "{mode}: {report:?}");
            for start in starts {
                assert_eq!(*start, sealed, "{mode}: {report:?}");
            }
            if report.result[3] == json!(true) {
                assert_eq!(report.result[1], sealed, "{mode}: {report:?}");
            }
            assert_eq!(report.result[4], json!(0), "{mode}");
        }
        let mut session = forge.session(&environment).await;
        let code = "
import os, sys
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())
[seen[4:] == (status['Seccomp_filters'], os.readlink('/proc/self/ns/pid')) for seen in sys.seen]";
        let seen = session.run(code).await;
        let seen = seen.as_array().unwrap();
        assert!(!seen.is_empty() && seen.iter().all(|seen| *seen == json!(true)), "{mode}: {seen:?}");
        session.resident.end(Duration::ZERO).await;
    })
    .await;
    assert!(!mark.exists());
    // It would have been made by whoever started Python there outside.
    let add = format!(
        "import site\nsite.addsitedir({:?})",
        tree.site_packages().display().to_string()
    );
    run_python(&add);
    assert!(mark.exists());
}

#[expect(clippy::disallowed_methods, reason = "a test runs Python")]
fn run_python(code: &str) {
    Command::new(packages::python())
        .args(["-c", code])
        .output()
        .unwrap();
}

/// An interpreter that stays.
struct Session {
    resident: Resident,
    config: Config,
}

impl Session {
    async fn run(&mut self, code: &str) -> Value {
        let turn = Turn {
            execution_id: None,
            code,
            stubs: Vec::new(),
            tools: &NoTools,
            observer: &mut Deaf,
            limits: &self.config.default_limits,
            caps: self.config.caps,
            max_calls: 0,
        };
        let before = self.resident.usage();
        let ran = self.resident.turn(turn, None, std::future::pending()).await;
        let report = self.resident.report(ran, before);
        assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
        report.result
    }
}

impl Forge {
    async fn session(&self, environment: &Arc<Environment>) -> Session {
        let spec = self.spec(Some(environment), Purpose::Session);
        let sandbox = self.engine.launch(&spec).await.unwrap();
        let (resident, _) = Resident::start(sandbox, self.config.caps).await.unwrap();
        Session {
            resident,
            config: self.config.clone(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_environments_at_once_do_not_see_each_other() {
    let one = Tree::new('1')
        .with_module("tiny", "VERSION = 1")
        .with_module("first", "");
    let two = Tree::new('2')
        .with_module("tiny", "VERSION = 2")
        .with_module("second", "");
    in_each_mode(async |forge, mode| {
        let (one, two) = (one.open(), two.open());
        let code = "
import importlib.util, tiny
tiny.VERSION, [name for name in ('first', 'second') if importlib.util.find_spec(name)]";
        let runs = (0..12).map(|number| forge.run(if number % 2 == 0 { &one } else { &two }, code));
        let reports = futures_util::future::join_all(runs).await;
        for (number, report) in reports.into_iter().enumerate() {
            let expected = [json!([1, ["first"]]), json!([2, ["second"]])];
            assert_eq!(report.result, expected[number % 2], "{mode}: {report:?}");
        }
        // The interpreter's own packages are where they were.
        let spec = forge.spec(None, Purpose::default());
        let sandbox = forge.engine.launch(&spec).await.unwrap();
        let own = "import importlib.util\n[bool(importlib.util.find_spec(name)) for name in ('tiny', 'pandas')]";
        let report = turn_in(sandbox, own, &forge.config.default_limits).await;
        assert_eq!(report.result, json!([false, true]), "{mode}: {report:?}");
    })
    .await;
}

/// Whichever versions this machine has, beside the one that the server itself runs.
#[tokio::test(flavor = "multi_thread")]
async fn each_python_of_this_machine_serves_its_environments() {
    let mut pythons = Vec::new();
    for minor in 10..=14 {
        let found = find_python((3, minor), PythonSearch::default()).await;
        pythons.extend(found.ok());
    }
    assert!(!pythons.is_empty());
    for is_warm in [true, false] {
        let forge = Forge::new(is_warm, |_| {}).await;
        for (digit, python) in ('0'..).zip(&pythons) {
            let tree = Tree::for_python(digit, python)
                .with_module("tiny", "VERSION = '1.2.3'")
                .with_file("first.pth", "import sys; sys.started = True\n");
            let environment = tree.open();
            let code = "
import subprocess, sys, sysconfig, tiny
child = subprocess.run([sys.executable, '-c', 'import tiny; print(tiny.VERSION)'], capture_output=True, text=True)
[tiny.VERSION, child.stdout, list(sys.version_info[:3]), sysconfig.get_paths()['purelib'], sys.started, sys.prefix, exit.__class__.__name__]";
            for _ in 0..3 {
                let report = forge.run(&environment, code).await;
                let (major, minor, micro) = python.version;
                let site = site_packages(&environment);
                let expected = json!([
                    "1.2.3",
                    "1.2.3\n",
                    [major, minor, micro],
                    site,
                    true,
                    "/opt/environment",
                    "Quitter"
                ]);
                assert_eq!(
                    report.result, expected,
                    "{python:?}, warm: {is_warm}: {report:?}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_keeps_its_environment_and_so_does_its_copy() {
    let tree = Tree::new('a').with_module("tiny", "VERSION = '1.2.3'");
    let forge = Forge::new(true, |_| {}).await;
    let environment = tree.open();
    let mut session = forge.session(&environment).await;
    assert_eq!(
        session.run("import tiny\nx = 1\ntiny.VERSION").await,
        json!("1.2.3")
    );
    let spec = forge.spec(Some(&environment), Purpose::Session);
    let sandbox = session.resident.branch(&spec).await.unwrap();
    let resident = Resident::adopt(sandbox, forge.config.caps).await.unwrap();
    let mut copy = Session {
        resident,
        config: forge.config.clone(),
    };
    assert_eq!(
        copy.run("import importlib\nx, importlib.reload(tiny).VERSION")
            .await,
        json!([1, "1.2.3"])
    );
    // Either alone keeps the tree.
    forge.engine.release(&environment.id).await;
    drop((environment, spec));
    session.resident.end(Duration::ZERO).await;
    assert!(Environment::try_claim(&tree.directory()).unwrap().is_none());
    copy.resident.end(Duration::ZERO).await;
    claimed(&tree).await;
}

/// Waits until nobody has a share in the tree.
async fn claimed(tree: &Tree) -> Claim {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        if let Some(claim) = Environment::try_claim(&tree.directory()).unwrap() {
            return claim;
        }
        assert!(Instant::now() < deadline, "somebody keeps it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_is_removed_only_when_nothing_uses_it() {
    let is_free = |tree: &Tree| Environment::try_claim(&tree.directory()).unwrap().is_some();
    in_each_mode(async |forge, mode| {
        let tree = Tree::new('a').with_module("tiny", "");
        assert!(is_free(&tree), "{mode}");
        let environment = tree.open();
        let id = environment.id.clone();
        assert!(!is_free(&tree), "{mode}: opened");
        let spec = forge.spec(Some(&environment), Purpose::default());
        let sandbox = forge.engine.launch(&spec).await.unwrap();
        drop((environment, spec));
        assert!(!is_free(&tree), "{mode}: a sandbox and the engine have it");
        forge.engine.release(&id).await;
        assert!(!is_free(&tree), "{mode}: a sandbox has it");
        let report = turn_in(sandbox, "import tiny\n1", &forge.config.default_limits).await;
        assert_eq!(report.result, json!(1), "{mode}: {report:?}");
        let claim = claimed(&tree).await;
        // While it is claimed nobody gets it, and then it is gone.
        let refused = Environment::open(&tree.directory()).unwrap_err();
        assert!(matches!(refused, EnvironmentError::Missing(_)), "{refused}");
        claim.remove().unwrap();
        assert!(!tree.directory().exists(), "{mode}");
        let refused = Environment::open(&tree.directory()).unwrap_err();
        assert!(matches!(refused, EnvironmentError::Missing(_)), "{refused}");
        assert!(
            fs::read_dir(tree.directory().parent().unwrap())
                .unwrap()
                .next()
                .is_none()
        );
    })
    .await;
}

/// What was made ahead has a share of its own, until the engine is told or has forgotten it.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_code_keeps_the_tree_until_it_is_let_go() {
    let tree = Tree::new('a').with_module("tiny", "");
    let forge = Forge::new(true, |_| {}).await;
    let environment = tree.open();
    for _ in 0..3 {
        assert_eq!(
            forge.run(&environment, "import tiny\n1").await.result,
            json!(1)
        );
    }
    let id = environment.id.clone();
    drop(environment);
    assert!(Environment::try_claim(&tree.directory()).unwrap().is_none());
    forge.engine.release(&id).await;
    drop(claimed(&tree).await);
    // Sixteen others push it out.
    let environment = tree.open();
    forge.run(&environment, "1").await;
    drop(environment);
    for digit in "0123456789bcdef".chars() {
        let other = Tree::new(digit);
        forge.run(&other.open(), "1").await;
    }
    assert!(Environment::try_claim(&tree.directory()).unwrap().is_none());
    let last = Tree::new('a').described(|meta| meta.id = "ab".repeat(32));
    forge.run(&last.open(), "1").await;
    drop(claimed(&tree).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interpreter_that_is_another_one_now_is_refused_with_the_fix() {
    let forge = Forge::new(false, |_| {}).await;
    for (tree, expected) in [
        (
            Tree::new('1').described(|meta| meta.interpreter = "/nowhere/python3".into()),
            "this environment was built for /nowhere/python3, but it cannot be run: ",
        ),
        (
            Tree::new('2').described(|meta| meta.interpreter = "/bin/true".into()),
            "this environment was built for /bin/true, but it does not answer like Python. Build it again",
        ),
        (
            Tree::of_another_version(),
            "this environment was built for Python 3.9, and ",
        ),
    ] {
        let environment = tree.open();
        let spec = forge.spec(Some(&environment), Purpose::default());
        let refused = forge.engine.launch(&spec).await.unwrap_err();
        assert!(matches!(refused, LaunchError::Python(_)), "{refused}");
        let said = refused.to_string();
        assert!(
            said.contains(expected) && said.ends_with("Build it again"),
            "{said}"
        );
    }
}

/// What is said, and what it is said of.
type Damage = (&'static str, &'static dyn Fn(&Tree));

#[test]
fn what_is_not_as_it_was_published_is_not_opened() {
    let damage: [Damage; 6] = [
        ("meta.json is not what it was", &|tree| {
            fs::write(tree.directory().join("meta.json"), "{").unwrap();
        }),
        (
            "meta.json cannot be read: it is larger than 1 MiB",
            &|tree| {
                fs::write(
                    tree.directory().join("meta.json"),
                    " ".repeat((1 << 20) + 1),
                )
                .unwrap();
            },
        ),
        ("meta.json cannot be read", &|tree| {
            fs::remove_file(tree.directory().join("meta.json")).unwrap();
            symlink("/etc/passwd", tree.directory().join("meta.json")).unwrap();
        }),
        ("its id in meta.json is no hash", &|tree| {
            let text = fs::read_to_string(tree.directory().join("meta.json")).unwrap();
            fs::write(
                tree.directory().join("meta.json"),
                text.replace("aaaa", "../."),
            )
            .unwrap();
        }),
        ("its Python in meta.json is no version", &|tree| {
            let text = fs::read_to_string(tree.directory().join("meta.json")).unwrap();
            fs::write(
                tree.directory().join("meta.json"),
                text.replace("\"3.", "\"../3."),
            )
            .unwrap();
        }),
        ("site-packages is no directory", &|tree| {
            fs::remove_dir(tree.site_packages()).unwrap();
            symlink("/usr", tree.site_packages()).unwrap();
        }),
    ];
    for (expected, damage) in damage {
        let tree = Tree::new('a');
        damage(&tree);
        let said = Environment::open(&tree.directory())
            .unwrap_err()
            .to_string();
        assert!(said.contains(expected), "{expected}: {said}");
        // What cannot be opened holds nothing.
        assert!(
            Environment::try_claim(&tree.directory()).unwrap().is_some(),
            "{expected}"
        );
    }
}

/// Refuses every call.
struct NoTools;

#[async_trait::async_trait]
impl Tools for NoTools {
    async fn call(&self, _: &str, _: Map<String, Value>) -> Result<ToolValue, ToolFailure> {
        panic!("no tool was given")
    }
}

/// Hears nothing.
struct Deaf;

impl Observer for Deaf {
    fn output(&mut self, _: Stream, _: &str) {}
}
