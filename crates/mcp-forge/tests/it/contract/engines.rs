//! The engines that must keep the contract, and how to have a service with one of them.

use std::{collections::BTreeMap, env, path::Path, sync::Arc, time::Duration};

use mcp_forge::{
    audit::Audit,
    bridge::Bridge,
    config::{Config, Transport, Upstream},
    engine::{Engine, native::Native},
    service::Service,
};

use crate::sandbox::{binary, config};

/// One engine in one of its modes.
pub(crate) struct EngineUnderTest {
    /// In the table's differences, in `REQUIRE_ENGINES`, and in `docs/engines.md`.
    pub(crate) name: &'static str,
    /// Cases at once: enough to keep it busy, few enough for timeouts to mean something.
    pub(crate) at_once: usize,
    make: fn(&mut Config) -> Arc<dyn Engine>,
}

/// All of them. A new one goes here, and gets its test in `mod.rs`.
pub(crate) const ENGINES: &[EngineUnderTest] = &[
    EngineUnderTest {
        name: "native-warm",
        at_once: 4,
        make: |config| {
            config.native.warm = true;
            Arc::new(Native::with_jail(config, binary()))
        },
    },
    EngineUnderTest {
        name: "native-cold",
        at_once: 4,
        make: |config| {
            config.native.warm = false;
            Arc::new(Native::with_jail(config, binary()))
        },
    },
];

impl EngineUnderTest {
    pub(crate) fn named(name: &str) -> &'static Self {
        let found = ENGINES.iter().find(|engine| engine.name == name);
        found.unwrap_or_else(|| panic!("there is no engine `{name}`"))
    }

    /// A service with this engine, its data below a directory that the caller holds; or why there
    /// can be none on this machine.
    pub(crate) async fn service(&self, directory: &Path) -> Result<Arc<Service>, String> {
        let mut config = contract_config(directory, self.at_once);
        let engine = (self.make)(&mut config);
        let probe = engine.probe().await;
        if !probe.usable {
            return Err(format!("{:?} {:?}", probe.notes, probe.layers));
        }
        // An engine that is there and cannot make ready has failed, whatever its reason.
        engine
            .prepare()
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
        bridge.start();
        let audit = Audit::open(&directory.join("audit")).unwrap();
        Ok(Service::new(config, engine, bridge, audit))
    }

    /// Whether its absence is a failure: then what was missing is told.
    pub(crate) fn is_required(&self) -> bool {
        let required = env::var("REQUIRE_ENGINES").unwrap_or_default();
        let names: Vec<&str> = required
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .collect();
        for name in &names {
            let is_known = *name == "all" || ENGINES.iter().any(|engine| engine.name == *name);
            assert!(is_known, "REQUIRE_ENGINES names `{name}`, which is none");
        }
        names.contains(&"all") || names.contains(&self.name)
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
