//! Environments as images: laid over the image for turns, once, and gone when they are let go of.

use std::{
    fs,
    os::unix::fs::symlink,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use mcp_forge::{
    config::Config,
    engine::{Engine, Environment, LaunchError, LayerState, Purpose, SandboxSpec, podman::Podman},
    turn::{Outcome, Report},
};
use serde_json::{Value, json};

use super::{Field, PLACE, podman};
use crate::{environments::tree::Tree, sandbox::turn_in};

const ENVIRONMENT: &str = "io.mcp-forge.environment";

/// One engine, and trees that only it has: images have names of their beginnings.
struct Forge {
    field: Field,
    engine: Podman,
    config: Config,
}

impl Forge {
    async fn new(change: impl FnOnce(&mut Config)) -> Self {
        let field = Field::new();
        let mut config = field.config();
        change(&mut config);
        let engine = Podman::new(&config);
        engine.prepare().await.unwrap();
        Self {
            field,
            engine,
            config,
        }
    }

    fn spec(&self, environment: &Arc<Environment>, purpose: Purpose) -> SandboxSpec {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        SandboxSpec {
            id: format!("environment-{}-{number}", std::process::id()),
            limits: self.config.default_limits.clone(),
            purpose,
            environment: Some(Arc::clone(environment)),
        }
    }

    async fn run(&self, environment: &Arc<Environment>, code: &str) -> Report {
        let spec = self.spec(environment, Purpose::default());
        let sandbox = self.engine.launch(&spec).await.unwrap();
        for layer in &sandbox.isolation.layers {
            let may_be_missing = self.config.allow_degraded.contains(&layer.name);
            assert!(
                layer.state == LayerState::Enforced || may_be_missing,
                "{layer:?}"
            );
        }
        turn_in(sandbox, code, &self.config.default_limits).await
    }

    async fn refused(&self, environment: &Arc<Environment>) -> LaunchError {
        let spec = self.spec(environment, Purpose::default());
        self.engine.launch(&spec).await.unwrap_err()
    }

    async fn end(self, ids: &[String]) {
        for id in ids {
            self.engine.release(id).await;
            assert_eq!(images_of(id), Vec::<String>::new());
        }
        self.engine.shutdown().await;
        self.field.wait_empty().await;
    }
}

/// Images that hold this environment, by their ids.
fn images_of(id: &str) -> Vec<String> {
    let label = format!("label={ENVIRONMENT}={id}");
    let listed = podman(&["images", "--no-trunc", "--quiet", "--filter", &label]);
    listed.lines().map(str::to_owned).collect()
}

/// A tree that no other test has.
fn tree() -> Tree {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let start = u64::from(std::process::id()) * 1000 + number;
    Tree::new('a').described(|meta| meta.id = format!("{start:012x}{}", "0".repeat(52)))
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_are_the_environments_and_nothing_can_be_installed() {
    let forge = Forge::new(|_| {}).await;
    let tree = tree()
        .with_packages(&["numpy"])
        .with_module("tiny", "VERSION = '1.2.3'\n")
        .with_file("first.pth", "import sys; sys.started = True\n");
    let environment = tree.open();
    let code = "
import importlib.util, os, subprocess, sys, numpy, tiny
site = os.path.dirname(tiny.__file__)
def attempt(act, *arguments):
    try:
        return bool(act(*arguments)) and 'done'
    except OSError as error:
        return type(error).__name__
def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.returncode, done.stderr)
    return done.stdout
[
    tiny.VERSION, numpy.linalg.svd(numpy.eye(3))[1].tolist(), site, sys.prefix, sys.started,
    [name for name in ('pandas', 'IPython', 'pip') if importlib.util.find_spec(name)],
    run(sys.executable, '-c', 'import tiny; print(tiny.VERSION)'),
    [
        attempt(open, site + '/new.py', 'w'),
        attempt(open, site + '/new.pth', 'w'),
        attempt(open, site + '/sitecustomize.py', 'w'),
        attempt(os.unlink, site + '/tiny.py'),
        attempt(run, sys.executable, '-m', 'ensurepip'),
        attempt(run, sys.executable, '-m', 'pip', 'install', 'six'),
        attempt(run, 'pip', 'install', 'six'),
        attempt(run, 'uv', 'pip', 'install', 'six'),
        attempt(open, '/tmp/new.py', 'w'),
    ],
]";
    let report = forge.run(&environment, code).await;
    assert_eq!(report.outcome, Outcome::Completed, "{report:?}");
    let (major, minor) = environment.python;
    let site = format!("/opt/environment/lib/python{major}.{minor}/site-packages");
    let known = json!([
        "1.2.3",
        [1.0, 1.0, 1.0],
        site,
        "/opt/environment",
        true,
        [],
        "1.2.3\n"
    ]);
    let result = report.result.as_array().unwrap();
    assert_eq!(Value::from(&result[..7]), known, "{report:?}");
    let attempts = result[7].as_array().unwrap();
    let (control, attempts) = attempts.split_last().unwrap();
    assert_eq!(control, "done");
    assert!(
        attempts.iter().all(|attempt| attempt != "done"),
        "{attempts:?}"
    );
    let id = environment.id.clone();
    forge.end(&[id]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_built_once_and_is_this_data_directorys() {
    let forge = Forge::new(|_| {}).await;
    let (one, two) = (
        tree().with_module("tiny", "VERSION = 1"),
        tree().with_module("tiny", "VERSION = 2"),
    );
    let environments = [one.open(), two.open()];
    let code = "import tiny\ntiny.VERSION";
    let runs = (0..6).map(|number| forge.run(&environments[number % 2], code));
    for (number, report) in futures_util::future::join_all(runs)
        .await
        .iter()
        .enumerate()
    {
        assert_eq!(report.result, json!(number % 2 + 1), "{report:?}");
    }
    for environment in &environments {
        let images = images_of(&environment.id);
        assert_eq!(images.len(), 1);
        let inspected: Value =
            serde_json::from_str(&podman(&["image", "inspect", &images[0]])).unwrap();
        let image = &inspected[0];
        assert_eq!(image["Labels"][PLACE], json!(forge.field.place().unwrap()));
        let name = format!("mcp-forge/custom:{}", &environment.id[..12]);
        let names = image["RepoTags"].as_array().unwrap();
        assert!(
            names
                .iter()
                .any(|tag| tag.as_str().unwrap().ends_with(&name)),
            "{names:?}"
        );
        // Used again, not built again.
        assert_eq!(forge.run(environment, "1").await.result, json!(1));
        assert_eq!(images_of(&environment.id), images);
    }
    // Another data directory's engine leaves it alone.
    let other = Forge::new(|_| {}).await;
    other.engine.release(&environments[0].id).await;
    assert_eq!(images_of(&environments[0].id).len(), 1);
    other.end(&[]).await;
    // An image that a container has stays until that is gone, and so does the tree.
    let spec = forge.spec(&environments[0], Purpose::Session);
    let sandbox = forge.engine.launch(&spec).await.unwrap();
    let ids = environments
        .each_ref()
        .map(|environment| environment.id.clone());
    drop((environments, spec));
    forge.engine.release(&ids[0]).await;
    assert_eq!(images_of(&ids[0]).len(), 1);
    assert!(Environment::try_claim(&one.directory()).unwrap().is_none());
    let report = turn_in(sandbox, code, &forge.config.default_limits).await;
    assert_eq!(report.result, json!(1), "{report:?}");
    forge.field.wait_empty().await;
    assert!(Environment::try_claim(&one.directory()).unwrap().is_some());
    forge.end(&ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_refused_with_the_fix() {
    let forge = Forge::new(|config| {
        // Debian's 3.11 under the name of another.
        config.containers.images.python_3_12 = config.containers.images.python_3_11.clone();
    })
    .await;
    let of = |version: &'static str| {
        let tree = tree();
        let lib = tree
            .directory()
            .join(format!("lib/python{version}/site-packages"));
        fs::create_dir_all(lib).unwrap();
        tree.described(|meta| meta.python = version.to_owned())
    };
    let newer = of("3.12");
    let environment = newer.open();
    let said = forge.refused(&environment).await.to_string();
    assert!(
        said.contains("is for Python 3.12, and the image that")
            && said.contains("mcp-forge image build python:3.12"),
        "{said}"
    );
    let oldest = of("3.10");
    let said = forge.refused(&oldest.open()).await.to_string();
    assert!(said.contains("has images for 3.11 and 3.12"), "{said}");
    let hostile = tree();
    symlink("/etc/passwd", hostile.site_packages().join("passwd.py")).unwrap();
    let hostile = hostile.open();
    let said = forge.refused(&hostile).await.to_string();
    assert!(
        said.contains("a link that leads out of them: passwd.py"),
        "{said}"
    );
    assert_eq!(images_of(&hostile.id), Vec::<String>::new());
    let id = environment.id.clone();
    forge.end(&[id]).await;
    // The operator may forbid such images.
    let strict = Forge::new(|config| {
        config
            .containers
            .images
            .allowed
            .retain(|name| !name.contains("custom"));
    })
    .await;
    let tree = tree();
    let refused = strict.refused(&tree.open()).await;
    assert!(matches!(refused, LaunchError::Forbidden(_)), "{refused}");
    strict.end(&[]).await;
}
