//! Environments: packages that code may import, built once under policy and found again by name.
//!
//! A name means a lock's hash; under the hash lie the packages, once, whoever asked for them. What is
//! never used for long is archived: its lock is kept, and the packages come back when it is used.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use serde_json::json;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, broadcast};

mod build;
mod cache;
mod check;
mod error;
pub mod gateway;
mod jobs;
mod judge;
mod lifecycle;
mod naming;
mod places;
mod plan;
mod progress;
mod scan;
mod site;
mod tree;
mod uv;
mod view;

pub use error::{EnvironmentsError, Refusal};
pub use plan::BuildRequest;
pub use progress::{Phase, Progress, Teller};
pub use scan::{Finding, Scan};
pub use view::{Built, EnvironmentView, Listed, TemplateView};

use crate::{
    audit::{Audit, fields},
    config::{Config, EnvironmentSettings, OutputCaps},
    engine::{Engine, Environment, native::job::Jobs},
    limits::Limits,
    names::Principal,
    packages::{EnvironmentName, PackageName},
    store::{Approval, EnvironmentRecord, Store},
};
use places::Places;

/// For how long a name means what it meant, without another look at the store.
const FRESH: Duration = Duration::from_secs(1);

/// Between two notes that an environment is used.
const NOTE_USE: Duration = Duration::from_mins(1);

/// How many of the largest environments `uv`'s cache has room for while nobody builds.
const CACHED: u64 = 4;

/// The principal of templates: nobody is called so.
const EVERYBODY: &str = "";

/// What the label of a template begins with. No environment's name has a colon.
const TEMPLATE: &str = "template:";

/// Changes that a slow listener may be behind.
const CHANGES: usize = 256;

/// Which environment a caller means.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Selection {
    /// One of its own.
    Custom(EnvironmentName),
    /// A template, which is built when it is first used.
    Template(EnvironmentName),
}

impl Selection {
    /// The text under which it is found again.
    pub fn label(&self) -> String {
        match self {
            Self::Custom(name) => name.to_string(),
            Self::Template(name) => format!("{TEMPLATE}{name}"),
        }
    }

    /// What such a text means.
    pub fn from_label(label: &str) -> Option<Self> {
        match label.strip_prefix(TEMPLATE) {
            Some(name) => EnvironmentName::parse(name).ok().map(Self::Template),
            None => EnvironmentName::parse(label).ok().map(Self::Custom),
        }
    }

    /// The name alone.
    pub const fn name(&self) -> &EnvironmentName {
        match self {
            Self::Custom(name) | Self::Template(name) => name,
        }
    }
}

/// Whose environments are others now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner(String);

impl Owner {
    /// Whether a principal's list is another now: of its own environments, or of the templates.
    pub fn concerns(&self, principal: &Principal) -> bool {
        self.0 == EVERYBODY || self.0 == principal.as_str()
    }
}

/// All environments of a data directory.
#[derive(Debug, Clone)]
pub struct Environments {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: EnvironmentSettings,
    /// For the import check, which is given all that a turn may have.
    limits: Limits,
    caps: OutputCaps,
    places: Places,
    jobs: Jobs,
    engine: Arc<dyn Engine>,
    store: Arc<Store>,
    audit: Audit,
    builds: Semaphore,
    changes: broadcast::Sender<Owner>,
    opened: Mutex<HashMap<(String, Selection), Opened>>,
    /// The program that was found fit, and when it was last changed.
    checked_uv: AsyncMutex<Option<(PathBuf, Option<SystemTime>)>>,
}

/// What a name meant a moment ago.
#[derive(Debug)]
struct Opened {
    environment: Arc<Environment>,
    at: Instant,
    noted: Instant,
}

impl Environments {
    /// Starts nothing.
    pub fn new(config: &Config, engine: Arc<dyn Engine>, store: Arc<Store>, audit: Audit) -> Self {
        Self::with_jobs(config, Jobs::new(config), (engine, store, audit))
    }

    /// As [`Environments::new`], with other jobs: tests are not the program that they start.
    pub fn with_jobs(
        config: &Config,
        jobs: Jobs,
        (engine, store, audit): (Arc<dyn Engine>, Arc<Store>, Audit),
    ) -> Self {
        let settings = config.environments.clone();
        Self {
            inner: Arc::new(Inner {
                limits: config.max_limits.clone(),
                caps: config.caps,
                places: Places::new(
                    &config.data_dir,
                    &settings.uv_cache,
                    settings.max_bytes.saturating_mul(CACHED),
                ),
                builds: Semaphore::new(settings.max_concurrent_builds),
                changes: broadcast::Sender::new(CHANGES),
                settings,
                jobs,
                engine,
                store,
                audit,
                opened: Mutex::default(),
                checked_uv: AsyncMutex::default(),
            }),
        }
    }

    /// Builds an environment and gives it its name; what had the name before keeps it until then.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the build and removes what it wrote.
    pub async fn build(
        &self,
        principal: &Principal,
        request: BuildRequest,
        teller: &Teller,
    ) -> Result<Built, EnvironmentsError> {
        if self.inner.settings.templates.get(&request.name).is_some() {
            return Err(EnvironmentsError::Field {
                field: "name",
                message: format!(
                    "`name` is \"{}\", which is a template's; choose another.",
                    request.name
                ),
            });
        }
        self.build_as((principal.as_str(), principal), &request, (teller, false))
            .await
    }

    /// Resolves and builds an environment's own request again: newer versions, a changed base.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError`]; the name means what it meant.
    ///
    /// # Cancel safety
    ///
    /// As [`Environments::build`].
    pub async fn rebuild(
        &self,
        principal: &Principal,
        name: &EnvironmentName,
        teller: &Teller,
    ) -> Result<Built, EnvironmentsError> {
        let inner = &self.inner;
        let record = inner.record(principal.as_str(), name).await?;
        let request = Inner::request_of(&record)?;
        self.build_as((principal.as_str(), principal), &request, (teller, true))
            .await
    }

    /// Opens what a caller means: a template is built if it was not, and packages that were archived
    /// are installed again.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError`].
    ///
    /// # Cancel safety
    ///
    /// As [`Environments::build`].
    pub async fn open(
        &self,
        principal: &Principal,
        selection: &Selection,
        teller: &Teller,
    ) -> Result<Arc<Environment>, EnvironmentsError> {
        let inner = &self.inner;
        let owner = match selection {
            Selection::Custom(_) => principal.as_str(),
            Selection::Template(_) => EVERYBODY,
        };
        let key = (owner.to_owned(), selection.clone());
        if let Some((environment, is_to_be_noted)) = inner.remembered(&key) {
            if is_to_be_noted {
                inner
                    .store
                    .use_environment(owner, selection.name().as_str())
                    .await?;
            }
            return Ok(environment);
        }
        let record = match selection {
            Selection::Custom(name) => inner.record(owner, name).await?,
            Selection::Template(name) => self.template(principal, name, teller).await?,
        };
        if record.archived_ms.is_some() || !inner.places.has(&record.tree) {
            let lease = self.restore(principal, &record, teller).await?;
            if inner.store.revive_environment(&record).await? {
                inner.tell(owner);
                inner.remember(key, &lease);
            }
            // Else the name was given anew or taken away meanwhile: this call has what it named.
            return Ok(lease);
        }
        inner
            .store
            .use_environment(owner, selection.name().as_str())
            .await?;
        let environment = Arc::new(Environment::open(&inner.places.tree(&record.tree))?);
        inner.remember(key, &environment);
        Ok(environment)
    }

    /// Takes a name away. The packages go with the last name and the last sandbox that has them.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError`]; the name means what it meant.
    pub async fn delete(
        &self,
        principal: &Principal,
        name: &EnvironmentName,
    ) -> Result<(), EnvironmentsError> {
        let inner = &self.inner;
        let record = inner.record(principal.as_str(), name).await?;
        inner.audit.record(
            "environment.deleted",
            fields(json!({
                "principal": principal,
                "environment": name.as_str(),
                "tree": record.tree,
                "success": true,
            })),
        )?;
        let removed = inner
            .store
            .remove_environment(principal.as_str(), name.as_str())
            .await?;
        inner.forget(principal.as_str(), name);
        inner.tell(principal.as_str());
        // It may have been given anew since it was looked at.
        let tree = removed.map_or(record.tree, |removed| removed.tree);
        inner.collect(&tree).await;
        Ok(())
    }

    /// Hears from now on whose environments change in this process.
    pub fn changes(&self) -> broadcast::Receiver<Owner> {
        self.inner.changes.subscribe()
    }

    /// Waits until what builds wrote in vain is removed. For the end of a server, which ends them first.
    pub async fn settled(&self) {
        self.inner.places.settled().await;
    }

    /// Lets packages in that wait for an approval, or might.
    ///
    /// # Errors
    ///
    /// The store or the audit log failed; nothing more is approved.
    pub async fn approve(
        &self,
        packages: &[PackageName],
        by: &str,
    ) -> Result<(), EnvironmentsError> {
        for package in packages {
            self.inner.audit.record(
                "environment.approved",
                fields(json!({"package": package.as_str(), "by": by, "success": true})),
            )?;
            self.inner.store.approve(package.as_str(), by).await?;
        }
        Ok(())
    }

    /// Takes an approval back, or a request for one. Says whether there was any. What was built stays.
    ///
    /// # Errors
    ///
    /// The store or the audit log failed; it stands.
    pub async fn revoke(&self, package: &PackageName, by: &str) -> Result<bool, EnvironmentsError> {
        self.inner.audit.record(
            "environment.revoked",
            fields(json!({"package": package.as_str(), "by": by, "success": true})),
        )?;
        Ok(self.inner.store.revoke_approval(package.as_str()).await?)
    }

    /// The packages that were approved, or wait for it.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError::Store`].
    pub async fn approvals(&self) -> Result<Vec<Approval>, EnvironmentsError> {
        Ok(self.inner.store.approvals().await?)
    }
}

impl Inner {
    /// Tells who listens that an owner's environments are others now.
    fn tell(&self, owner: &str) {
        // Nobody may listen.
        let _ = self.changes.send(Owner(owner.to_owned()));
    }

    fn opened(&self) -> MutexGuard<'_, HashMap<(String, Selection), Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a name meant a moment ago, and whether its use is to be noted.
    fn remembered(&self, key: &(String, Selection)) -> Option<(Arc<Environment>, bool)> {
        let mut opened = self.opened();
        let found = opened.get_mut(key)?;
        if found.at.elapsed() > FRESH {
            return None;
        }
        let is_due = found.noted.elapsed() > NOTE_USE;
        if is_due {
            found.noted = Instant::now();
        }
        Some((Arc::clone(&found.environment), is_due))
    }

    fn remember(&self, key: (String, Selection), environment: &Arc<Environment>) {
        let mut opened = self.opened();
        // Each holds a share in its tree, which then cannot be removed.
        opened.retain(|_, found| found.at.elapsed() <= FRESH);
        let now = Instant::now();
        opened.insert(
            key,
            Opened {
                environment: Arc::clone(environment),
                at: now,
                noted: now,
            },
        );
    }

    fn forget(&self, owner: &str, name: &EnvironmentName) {
        let is_it = |key: &(String, Selection)| key.0 == owner && key.1.name() == name;
        self.opened().retain(|key, _| !is_it(key));
    }

    async fn record(
        &self,
        owner: &str,
        name: &EnvironmentName,
    ) -> Result<EnvironmentRecord, EnvironmentsError> {
        let record = self.store.environment(owner, name.as_str()).await?;
        record.ok_or_else(|| EnvironmentsError::Unknown(name.to_string()))
    }

    fn cannot(&self, source: std::io::Error) -> EnvironmentsError {
        let fix = if source.kind() == std::io::ErrorKind::CrossesDevices {
            let reason = "`environment_builder.uv_cache_path` must be on the file system of the data directory";
            std::io::Error::new(source.kind(), reason)
        } else {
            source
        };
        EnvironmentsError::Files {
            path: self.places.tree(""),
            source: fix,
        }
    }
}
