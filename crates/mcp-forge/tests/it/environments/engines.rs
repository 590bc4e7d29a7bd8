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
        Engine, Environment, EnvironmentError, LaunchError, Purpose, SandboxSpec, native::Native,
    },
    turn::{Outcome, Report},
};
use serde_json::json;

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
        let place = tempfile::tempdir().unwrap();
        let forge = Forge::new(is_warm, |config| {
            config.native.rootfs = rootfs;
            if rootfs == Rootfs::Minimal {
                place.path().clone_into(&mut config.data_dir);
            }
        });
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
            let place = numpy_place(&environment);
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

fn numpy_place(environment: &Environment) -> String {
    let (major, minor) = environment.python;
    format!("/opt/environment/lib/python{major}.{minor}/site-packages")
}
