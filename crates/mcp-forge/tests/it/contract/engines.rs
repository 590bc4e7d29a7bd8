//! The engines that must keep the contract, and how to have a service with one of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use mcp_forge::{
    audit::Audit,
    bridge::Bridge,
    config::{Config, EngineKind, Transport, Upstream},
    engine::{self, Engine, LayerState, native::Native},
    service::{ExecuteRequest, Service},
    turn::{Observer, Stream},
};

use crate::{
    sandbox::{binary, config},
    warm::keepers,
};

/// One engine in one of its modes.
pub(crate) struct EngineUnderTest {
    /// In the table's differences, in `REQUIRE_ENGINES`, and in `docs/engines.md`.
    pub(crate) name: &'static str,
    /// Cases at once: enough to keep it busy, few enough for timeouts to mean something.
    pub(crate) at_once: usize,
    /// Makes it, with its own names in this directory.
    make: fn(&mut Config, &Path) -> Arc<dyn Engine>,
    /// What of the sandboxes of these executions, and of those of the engine in this directory, is
    /// still on the machine.
    pub(crate) left: fn(&Path, &[String]) -> Vec<String>,
}

/// All of them. A new one goes here, and gets its test in `mod.rs`.
pub(crate) const ENGINES: &[EngineUnderTest] = &[
    EngineUnderTest {
        name: "native-warm",
        at_once: 6,
        make: |config, directory| native(config, directory, true),
        left: left_of_native,
    },
    EngineUnderTest {
        name: "native-cold",
        at_once: 6,
        make: |config, directory| native(config, directory, false),
        left: left_of_native,
    },
    EngineUnderTest {
        name: "podman",
        at_once: 3,
        make: podman,
        left: left_of_podman,
    },
];

impl EngineUnderTest {
    pub(crate) fn named(name: &str) -> &'static Self {
        let found = ENGINES.iter().find(|engine| engine.name == name);
        found.unwrap_or_else(|| panic!("there is no engine `{name}`"))
    }

    /// A service with this engine, its data below a directory that the caller holds, and the limits
    /// that it does not enforce here; or why there can be none on this machine.
    pub(crate) async fn service(
        &self,
        directory: &Path,
    ) -> Result<(Arc<Service>, BTreeSet<String>), String> {
        let mut config = contract_config(directory, self.at_once);
        let engine = (self.make)(&mut config, directory);
        let probe = engine.probe().await;
        if !probe.usable {
            return Err(probe.notes.join("; "));
        }
        let limits = probe.limits.into_iter();
        let weak = limits.filter(|limit| limit.state != LayerState::Enforced);
        let weak = weak.map(|limit| limit.name).collect();
        // An engine that is there and cannot make ready has failed, whatever its reason.
        engine
            .prepare()
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
        bridge.start();
        let audit = Audit::open(&config.audit_dir).unwrap();
        Ok((Service::new(config, engine, bridge, audit), weak))
    }

    /// Whether its absence is a failure. Unless told, it is for the native engine, without which most
    /// other tests cannot run either.
    pub(crate) fn is_required(&self) -> bool {
        let list = env::var("REQUIRE_ENGINES");
        is_in(
            self.name,
            list.as_deref().unwrap_or("native-warm,native-cold"),
        )
    }
}

/// Whether a list as in `REQUIRE_ENGINES` has this engine.
fn is_in(name: &str, list: &str) -> bool {
    let names = list.split(',').map(str::trim);
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    for name in &names {
        let is_known = *name == "all" || ENGINES.iter().any(|engine| engine.name == *name);
        assert!(is_known, "REQUIRE_ENGINES names `{name}`, which is none");
    }
    names.contains(&"all") || names.contains(&name)
}

/// The native engine, started by a name by which its processes are told from those of other tests.
fn native(config: &mut Config, directory: &Path, is_warm: bool) -> Arc<dyn Engine> {
    config.native.warm = is_warm;
    let program = directory.join("mcp-forge");
    std::os::unix::fs::symlink(binary(), &program).unwrap();
    Arc::new(Native::with_jail(config, program))
}

fn left_of_native(directory: &Path, executions: &[String]) -> Vec<String> {
    let keepers = keepers(directory).into_iter();
    let mut left: Vec<String> = keepers.map(|pid| format!("process {pid}")).collect();
    let mut directories = Vec::new();
    for place in [Path::new("/sys/fs/cgroup"), &env::temp_dir()] {
        named(place, executions, &mut directories);
    }
    left.extend(directories.iter().map(|path| path.display().to_string()));
    left
}

/// With the service that the environment names, as it does for the program itself.
fn podman(config: &mut Config, _: &Path) -> Arc<dyn Engine> {
    config.engine = EngineKind::Podman;
    // Without one there is no engine, whatever else runs on this machine.
    let socket = env::var_os("MCP_FORGE_PODMAN_SOCKET").unwrap_or_else(|| "not set".into());
    config.containers.socket = Some(socket.into());
    let degraded = env::var("MCP_FORGE_SECURITY_ALLOW_DEGRADED").unwrap_or_default();
    let degraded = degraded.split(',').filter(|name| !name.is_empty());
    config.allow_degraded = degraded.map(str::to_owned).collect();
    engine::of(config)
}

fn left_of_podman(directory: &Path, _: &[String]) -> Vec<String> {
    let place = fs::read_to_string(directory.join("containers/place")).unwrap();
    let prefix = env::var("FORGE_TEST_PODMAN").expect("FORGE_TEST_PODMAN is podman's command line");
    let mut words = prefix.split_whitespace();
    #[expect(clippy::disallowed_methods, reason = "asks podman itself")]
    let output = std::process::Command::new(words.next().unwrap())
        .args(words)
        .args([
            "ps",
            "--all",
            "--no-trunc",
            "--format",
            "{{.ID}}",
            "--filter",
        ])
        .arg(format!("label=io.mcp-forge.place={place}"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let listed = String::from_utf8(output.stdout).unwrap();
    listed.lines().map(|id| format!("container {id}")).collect()
}

/// Directories at any depth that are named after one of these executions.
fn named(directory: &Path, executions: &[String], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if executions.iter().any(|id| name.contains(id)) {
            found.push(entry.path());
        }
        named(&entry.path(), executions, found);
    }
}

/// The same for all engines: what the expectations of the table are written for.
fn contract_config(directory: &Path, at_once: usize) -> Config {
    let mut config = config();
    directory.clone_into(&mut config.data_dir);
    config.audit_dir = directory.join("audit");
    config.max_concurrent = at_once;
    config.default_limits.timeout = Duration::from_mins(1);
    config.caps.flood_bytes = 32 << 20;
    config.bridge.max_calls = 40;
    config.bridge.max_in_flight = 16;
    config.bridge.max_answer_bytes = 16 << 20;
    config.sessions.max_concurrent = 64;
    config.sessions.max_per_principal = 64;
    config.upstreams = BTreeMap::from([
        ("kit".to_owned(), upstream(Duration::from_mins(1))),
        ("late".to_owned(), upstream(Duration::from_millis(500))),
        ("frail".to_owned(), upstream(Duration::from_mins(1))),
        ("vast".to_owned(), upstream(Duration::from_mins(1))),
    ]);
    config
}

fn upstream(call_timeout: Duration) -> Upstream {
    Upstream {
        transport: Transport::Stdio {
            command: "python3".to_owned(),
            // As text: a test user may not be able to read the checkout.
            args: vec!["-c".to_owned(), include_str!("upstream.py").to_owned()],
            env: BTreeMap::new(),
            cwd: None,
        },
        start_timeout: Duration::from_mins(1),
        call_timeout,
    }
}

/// A look that sees nothing would find that nothing is left.
#[tokio::test]
async fn what_is_left_of_a_native_sandbox_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let engine = EngineUnderTest::named("native-cold");
    let (service, _) = engine.service(directory.path()).await.unwrap();
    let request = ExecuteRequest {
        code: "1".to_owned(),
        session_id: Some("a".to_owned()),
        ..ExecuteRequest::default()
    };
    service.execute(request, &mut Quiet).await.unwrap();
    assert_ne!((engine.left)(directory.path(), &[]), Vec::<String>::new());
    let named = directory.path().join("mcp-forge-0123456789abcdef");
    fs::create_dir(&named).unwrap();
    let left = (engine.left)(directory.path(), &["0123456789abcdef".to_owned()]);
    assert!(left.contains(&named.display().to_string()), "{left:?}");
    service.shutdown().await;
}

struct Quiet;

impl Observer for Quiet {
    fn output(&mut self, _: Stream, _: &str) {}
}

#[test]
fn engines_are_required_by_name_or_all_together() {
    assert!(is_in("native-warm", "all"));
    assert!(is_in("native-warm", "native-cold, native-warm"));
    assert!(!is_in("native-warm", "native-cold"));
    assert!(!is_in("native-warm", ""));
    let unknown = std::panic::catch_unwind(|| is_in("native-warm", "nativ-warm"));
    assert!(unknown.is_err());
}
