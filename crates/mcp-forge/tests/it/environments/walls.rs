//! Row J16: what builds keep on the host is no sandbox's to see or to write, and environments are apart.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use mcp_forge::{
    engine::{Engine, Purpose, SandboxSpec},
    environments::{Phase, Teller},
    names::Principal,
};
use serde_json::{Value, json};

use super::{
    hostile::offline,
    names,
    place::{NEXT, Place, request},
};
use crate::sandbox::turn_in;

/// Looks for paths by name, and for a file's name wherever it can look; writes wherever it can.
const LOOK: &str = "
import os
seen, written, found = [], [], []
for path in PATHS:
    for way in (path, '/proc/self/root' + path, '/proc/self/cwd/..' + path, '/opt/environment/..' + path):
        if os.path.lexists(way):
            seen.append(way)
    try:
        with open(os.path.join(path, MARK + '-written'), 'x'):
            written.append(path)
    except OSError:
        pass
for root in ROOTS:
    for directory, below, files in os.walk(root):
        below[:] = [name for name in below if os.path.join(directory, name) not in ('/proc', '/sys', '/usr')]
        if any(MARK in name for name in below + files):
            found.append(directory)
with open('/proc/self/mountinfo') as mounts:
    named = [line for line in mounts if any(path in line for path in HIDDEN)]
[seen, written, found, named]";

const MARK: &str = "fg-only-the-builders";

impl Place {
    /// Runs code in a fresh sandbox without an environment.
    async fn run_bare(&self, code: &str) -> Value {
        let spec = SandboxSpec {
            id: format!("bare-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)),
            limits: self.config.max_limits.clone(),
            purpose: Purpose::default(),
            environment: None,
        };
        let sandbox = self.engine.launch(&spec).await.unwrap();
        let report = turn_in(sandbox, code, &spec.limits).await;
        assert!(report.error.is_none(), "{report:?}");
        report.result
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_builds_keep_is_out_of_reach_of_code() {
    for is_warm in [true, false] {
        let place = offline(&["good", "tiny", "sleeping"], |config| {
            config.native.warm = is_warm;
        });
        place.engine.prepare().await.unwrap();
        let one = place.build("one", &["good"]).await.unwrap();
        let two = place.build("two", &["tiny"]).await.unwrap();
        // A build that goes on meanwhile: its staging is there.
        let (teller, mut told) = Teller::new();
        let environments = place.environments.clone();
        let sleeping = tokio::spawn(async move {
            let me = Principal::local();
            let request = request("three", &["sleeping"]);
            environments.build(&me, request, &teller).await.map(drop)
        });
        told.wait_for(|progress| progress.phase == Phase::Checking)
            .await
            .unwrap();
        let uv = place.config.environments.uv_cache.clone();
        // Those of the first two go in the background.
        let deadline = Instant::now() + Duration::from_mins(1);
        let staging = loop {
            let mut there = names(&uv);
            there.retain(|name| name.starts_with("staging-"));
            if let [staging] = &there[..] {
                break staging.clone();
            }
            assert!(Instant::now() < deadline, "{there:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let trees = place.config.data_dir.join("environments");
        let kept = [
            uv.clone(),
            uv.join("cache"),
            uv.join(staging),
            trees.clone(),
            trees.join(&two.lock_hash),
            trees.join(&one.lock_hash),
            place.config.data_dir.clone(),
        ];
        for path in &kept {
            fs::write(path.join(MARK), "").unwrap();
        }
        let code = |roots: &[PathBuf]| {
            format!(
                "PATHS, ROOTS, MARK, HIDDEN = {}, {}, '{MARK}', {}\n{LOOK}",
                json!(kept),
                json!(roots),
                // A tree that a sandbox has is named by the kernel's table of its mounts.
                json!([uv, two.lock_hash])
            )
        };
        // The control: who stands outside sees and writes it all.
        let outside = outside(&code(std::slice::from_ref(&place.config.data_dir)));
        assert_eq!(
            outside[0].as_array().unwrap().len(),
            kept.len() * 2,
            "{outside}"
        );
        assert_eq!(
            outside[1].as_array().unwrap().len(),
            kept.len(),
            "{outside}"
        );
        assert_eq!(
            outside[2].as_array().unwrap().len(),
            kept.len(),
            "{outside}"
        );
        let inside = code(&["/".into()]);
        let nothing = json!([[], [], [], []]);
        assert_eq!(place.run_bare(&inside).await, nothing, "warm: {is_warm}");
        // What lies in a tree beside the packages is not shown with it.
        assert_eq!(place.run("one", &inside).await, nothing, "warm: {is_warm}");
        sleeping.abort();
        place.engine.shutdown().await;
    }
}

/// The same by the host's own Python, run by this test.
#[expect(clippy::disallowed_methods, reason = "a test runs Python")]
fn outside(code: &str) -> Value {
    let (statements, result) = code.rsplit_once('\n').unwrap();
    let code = format!("{statements}\nimport json; print(json.dumps({result}))");
    let done = Command::new("/usr/bin/python3.11")
        .args(["-c", &code])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    serde_json::from_slice(&done.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_of_one_environment_is_in_no_other() {
    for is_warm in [true, false] {
        let place = offline(&["good", "tiny"], |config| config.native.warm = is_warm);
        place.engine.prepare().await.unwrap();
        place.build("one", &["good"]).await.unwrap();
        place.build("two", &["tiny"]).await.unwrap();
        let code = "import importlib.util\n[name for name in ('good', 'helper', 'tiny') if importlib.util.find_spec(name)]";
        for _ in 0..2 {
            assert_eq!(place.run("one", code).await, json!(["good", "helper"]));
            assert_eq!(place.run("two", code).await, json!(["tiny"]));
            assert_eq!(place.run_bare(code).await, json!([]));
        }
        place.engine.shutdown().await;
    }
}

/// What code has its own children preload is nothing to the next sandbox of the environment.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_preloaded_stays_in_its_sandbox() {
    let preload = "
import os, shutil, subprocess, sys
library = next(line.split()[-1] for line in open('/proc/self/maps') if 'libm.so' in line or 'libc.so' in line)
loaded = []
for directory in DIRECTORIES:
    copy = directory + '/fg-preloaded.so'
    try:
        shutil.copyfile(library, copy)
    except OSError:
        continue
    maps = subprocess.run([sys.executable, '-S', '-c', 'print(open(\"/proc/self/maps\").read())'], env={**os.environ, 'LD_PRELOAD': copy}, capture_output=True, text=True).stdout
    if copy in maps:
        loaded.append(directory)
os.environ['LD_PRELOAD'] = '/tmp/fg-preloaded.so'
loaded";
    let look = "
import os
maps = open('/proc/self/maps').read() + open('/proc/self/environ').read()
['fg-preloaded' in maps, 'LD_PRELOAD' in os.environ, os.path.exists('/tmp/fg-preloaded.so'), os.path.exists('/workspace/fg-preloaded.so')]";
    for is_warm in [true, false] {
        let place = offline(&["good"], |config| config.native.warm = is_warm);
        place.engine.prepare().await.unwrap();
        place.build("one", &["good"]).await.unwrap();
        let site = "next(path for path in sys.path if path.endswith('site-packages'))";
        let directories =
            format!("import sys\nDIRECTORIES = ['/tmp', '/workspace', {site}, '/usr/lib']\n");
        let loaded = place.run("one", &(directories + preload)).await;
        let loaded: Vec<&str> = loaded
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        // Where code may write it may load from: it is its own. No further.
        assert!(
            loaded
                .iter()
                .all(|directory| ["/tmp", "/workspace"].contains(directory)),
            "{loaded:?}"
        );
        for _ in 0..3 {
            let seen = place.run("one", look).await;
            assert_eq!(seen, json!([false, false, false, false]), "warm: {is_warm}");
        }
        // The control: the same steps outside load it.
        let directory = tempfile::tempdir().unwrap();
        let control = format!(
            "DIRECTORIES = [{:?}]\n{preload}",
            directory.path().display().to_string()
        );
        assert_eq!(outside(&control).as_array().unwrap().len(), 1);
        place.engine.shutdown().await;
    }
}
