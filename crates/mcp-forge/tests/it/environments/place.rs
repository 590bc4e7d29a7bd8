//! A data directory with everything that builds need, for tests.

use std::{path::Path, sync::Arc};

use mcp_forge::{
    audit::Audit,
    bridge::Bridge,
    config::Config,
    engine::{
        Engine,
        native::{Native, job::Jobs},
    },
    environments::{BuildRequest, Built, Environments, EnvironmentsError, Selection, Teller},
    names::Principal,
    packages::{EnvironmentName, Requirement},
    service::Service,
    store::Store,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    packages::uv,
    sandbox::{binary, config, turn_in},
};

pub(crate) struct Place {
    pub(crate) directory: TempDir,
    pub(crate) config: Config,
    pub(crate) engine: Arc<Native>,
    pub(crate) audit: Audit,
    pub(crate) environments: Environments,
}

impl Place {
    pub(crate) fn new(change: impl FnOnce(&mut Config)) -> Self {
        Self::in_directory(tempfile::tempdir().unwrap(), change)
    }

    /// A second server on the same directory is made of what this one gives.
    pub(crate) fn in_directory(directory: TempDir, change: impl FnOnce(&mut Config)) -> Self {
        let config = configured(directory.path(), change);
        let engine = Arc::new(Native::with_jail(&config, binary()));
        let store = Arc::new(Store::new(&config.data_dir));
        let audit = Audit::open(&config.audit_dir).unwrap();
        let environments = environments(&config, &engine, &store, &audit);
        Self {
            directory,
            config,
            engine,
            audit,
            environments,
        }
    }

    /// Ends this server, and keeps what it leaves.
    pub(crate) fn into_directory(self) -> TempDir {
        self.directory
    }

    /// Another server's view of the same data directory.
    pub(crate) fn neighbour(&self) -> Environments {
        let store = Arc::new(Store::new(&self.config.data_dir));
        let engine = Arc::new(Native::with_jail(&self.config, binary()));
        environments(&self.config, &engine, &store, &self.audit)
    }

    pub(crate) fn service(&self) -> Arc<Service> {
        let bridge = Bridge::new(self.config.upstreams.clone(), self.config.bridge);
        let engine: Arc<dyn Engine> = Arc::<Native>::clone(&self.engine);
        let config = self.config.clone();
        Service::with_jobs(config, engine, bridge, (self.audit.clone(), self.jobs()))
    }

    pub(crate) fn jobs(&self) -> Jobs {
        Jobs::with_jail(&self.config, binary())
    }

    pub(crate) async fn build(
        &self,
        name: &str,
        packages: &[&str],
    ) -> Result<Built, EnvironmentsError> {
        let (teller, _told) = Teller::new();
        self.environments
            .build(&Principal::local(), request(name, packages), &teller)
            .await
    }

    /// Runs code in a fresh sandbox with an environment: the value of its last expression.
    pub(crate) async fn run(&self, name: &str, code: &str) -> Value {
        let selection = Selection::Custom(EnvironmentName::parse(name).unwrap());
        let (teller, _told) = Teller::new();
        let opened = self
            .environments
            .open(&Principal::local(), &selection, &teller)
            .await
            .unwrap();
        let spec = mcp_forge::engine::SandboxSpec {
            id: format!("run-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)),
            limits: self.config.max_limits.clone(),
            purpose: mcp_forge::engine::Purpose::default(),
            environment: Some(opened),
        };
        let sandbox = self.engine.launch(&spec).await.unwrap();
        let report = turn_in(sandbox, code, &spec.limits).await;
        assert!(
            report.error.is_none(),
            "{}",
            report
                .error
                .map(|error| error.traceback)
                .unwrap_or_default()
        );
        report.result
    }

    /// Tidies until no tree is left: what ends just now is removed by the next look.
    pub(crate) async fn tidied(&self) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
        loop {
            self.environments.tidy().await.unwrap();
            let left = self.trees();
            if left.is_empty() {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "left: {left:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Names in the directory of trees, without what is always there.
    pub(crate) fn trees(&self) -> Vec<String> {
        let directory = self.config.data_dir.join("environments");
        let mut names = crate::environments::names(&directory);
        names.retain(|name| name != "building");
        names
    }

    /// Events of the audit log with this name, oldest first.
    pub(crate) fn events(&self, name: &str) -> Vec<Value> {
        let mut records = self.audit.newest(200).unwrap();
        records.reverse();
        records.retain(|record| record["event"] == name);
        records
    }
}

/// Numbers of sandboxes, which no two of this process have in common.
pub(super) static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
use std::sync::atomic::Ordering::Relaxed;

fn environments(
    config: &Config,
    engine: &Arc<Native>,
    store: &Arc<Store>,
    audit: &Audit,
) -> Environments {
    let engine: Arc<dyn Engine> = Arc::<Native>::clone(engine);
    let shared = (engine, Arc::clone(store), audit.clone());
    Environments::with_jobs(config, Jobs::with_jail(config, binary()), shared)
}

pub(crate) fn configured(directory: &Path, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config();
    directory.clone_into(&mut config.data_dir);
    config.audit_dir = directory.join("audit");
    config.max_limits.memory_bytes = 2 << 30;
    config.max_limits.timeout = std::time::Duration::from_mins(5);
    config.native.python = Some("/usr/bin/python3.11".into());
    config.environments.uv = Some(uv());
    config.environments.uv_cache = directory.join("uv");
    config.environments.rate.requests = 1_000;
    change(&mut config);
    config
}

pub(crate) fn request(name: &str, packages: &[&str]) -> BuildRequest {
    let packages = packages
        .iter()
        .map(|text| Requirement::parse(text).unwrap());
    BuildRequest {
        name: EnvironmentName::parse(name).unwrap(),
        template: None,
        packages: packages.collect(),
        python: None,
        description: String::new(),
    }
}
