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
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

mod build;
mod check;
mod error;
pub mod gateway;
mod jobs;
mod judge;
mod lifecycle;
mod places;
mod progress;
mod scan;
mod tree;
mod uv;
mod view;

pub use build::BuildRequest;
pub use error::{EnvironmentsError, Refusal};
pub use progress::{Phase, Progress, Teller};
pub use scan::{Finding, Scan};
pub use view::{Built, EnvironmentView, Listed, TemplateView};

use crate::{
    audit::{Audit, fields},
    config::{Config, EnvironmentSettings, OutputCaps},
    engine::{
        Engine, Environment,
        native::{PythonSearch, find_python, job::Jobs},
    },
    limits::Limits,
    names::Principal,
    packages::{EnvironmentName, Lock, PythonVersion},
    store::{BuildLimit, EnvironmentRecord, Store, now_ms},
};
use build::{Made, Plan, milliseconds};
use places::Places;

/// For how long a name means what it meant, without another look at the store.
const FRESH: Duration = Duration::from_secs(1);

/// Between two notes that an environment is used.
const NOTE_USE: Duration = Duration::from_mins(1);

/// The principal of templates: nobody is called so.
const EVERYBODY: &str = "";

/// What the label of a template begins with. No environment's name has a colon.
const TEMPLATE: &str = "template:";

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
                places: Places::new(&config.data_dir, &settings.uv_cache),
                builds: Semaphore::new(settings.max_concurrent_builds),
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
        let request = inner.request_of(&record)?;
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
        let tree = inner.places.tree(&record.tree);
        if record.archived_ms.is_some() || !inner.places.has(&record.tree) {
            self.restore((owner, principal), record, teller).await?;
        } else {
            inner
                .store
                .use_environment(owner, selection.name().as_str())
                .await?;
        }
        let environment = Arc::new(Environment::open(&tree)?);
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
        inner
            .store
            .remove_environment(principal.as_str(), name.as_str())
            .await?;
        inner.forget(principal.as_str(), name);
        inner.collect(&record.tree).await;
        Ok(())
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
        packages: &[crate::packages::PackageName],
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
    pub async fn revoke(
        &self,
        package: &crate::packages::PackageName,
        by: &str,
    ) -> Result<bool, EnvironmentsError> {
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
    pub async fn approvals(&self) -> Result<Vec<crate::store::Approval>, EnvironmentsError> {
        Ok(self.inner.store.approvals().await?)
    }

    /// Builds what a template says today, unless that is there.
    async fn template(
        &self,
        principal: &Principal,
        name: &EnvironmentName,
        teller: &Teller,
    ) -> Result<EnvironmentRecord, EnvironmentsError> {
        let inner = &self.inner;
        let request = inner.request_of_template(name)?;
        if let Some(record) = inner.store.environment(EVERYBODY, name.as_str()).await? {
            let plan = inner.plan(&request).await?;
            if plan.fingerprint(inner) == record.request {
                return Ok(record);
            }
        }
        self.build_as((EVERYBODY, principal), &request, (teller, false))
            .await?;
        inner.record(EVERYBODY, name).await
    }

    async fn build_as(
        &self,
        (owner, principal): (&str, &Principal),
        request: &BuildRequest,
        (teller, is_anew): (&Teller, bool),
    ) -> Result<Built, EnvironmentsError> {
        let inner = &self.inner;
        if !inner.settings.enabled {
            return Err(EnvironmentsError::Disabled);
        }
        let began = Instant::now();
        let plan = inner.plan(request).await?;
        let who = (principal.as_str(), request.name.as_str());
        let judged = inner.judge_request(&plan.requirements, who).await;
        judged.inspect_err(|error| inner.record_refusal(who, error))?;
        let fingerprint = plan.fingerprint(inner);
        let known = match is_anew {
            true => None,
            false => inner.store.environment_of_request(&fingerprint).await?,
        };
        let known = known.and_then(|record| Lock::from_json(&record.lock).ok());
        let is_there = known
            .as_ref()
            .is_some_and(|lock| inner.places.has(&lock.id()));
        if !is_there {
            inner.count(who).await?;
        }
        let pending = inner.audit.begin(
            "environment.build",
            fields(json!({
                "principal": principal,
                "environment": request.name.as_str(),
                "template": request.template.as_ref().map(EnvironmentName::as_str),
                "requested": build::shown(&plan.requirements),
                "python": plan.python.to_string(),
            })),
        )?;
        let made = match known {
            Some(lock) if is_there => inner.found(lock, who).await,
            known => inner.make((&plan, known), who, teller).await,
        };
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                pending.finish(fields(
                    json!({"success": false, "error": error.to_string()}),
                ))?;
                inner.record_refusal(who, &error);
                return Err(error);
            }
        };
        let ended = fields(json!({
            "success": true,
            "tree": made.tree,
            "cache_hit": made.cache_hit,
            "packages": made.lock.packages().len(),
            "bytes": made.size_bytes,
        }));
        let record = self
            .name(
                (owner, request),
                (&plan, fingerprint),
                &made,
                milliseconds(began),
            )
            .await;
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                // Without its name nobody finds what was made.
                inner.collect(&made.tree).await;
                return Err(error);
            }
        };
        pending.finish(ended)?;
        Ok(view::built(&record, made, began.elapsed()))
    }

    /// Gives the name to what was made.
    async fn name(
        &self,
        (owner, request): (&str, &BuildRequest),
        (plan, fingerprint): (&Plan, String),
        made: &Made,
        build_ms: u64,
    ) -> Result<EnvironmentRecord, EnvironmentsError> {
        let inner = &self.inner;
        let before = inner
            .store
            .environment(owner, request.name.as_str())
            .await?;
        let now = now_ms();
        let record = EnvironmentRecord {
            principal: owner.to_owned(),
            name: request.name.to_string(),
            tree: made.tree.clone(),
            description: request.description.clone(),
            template: request.template.as_ref().map(ToString::to_string),
            requested: request.packages.iter().map(ToString::to_string).collect(),
            request: fingerprint,
            python: plan.python.to_string(),
            lock: made.lock.to_json(),
            size_bytes: made.size_bytes,
            build_ms,
            created_ms: before.as_ref().map_or(now, |before| before.created_ms),
            built_ms: now,
            used_ms: now,
            archived_ms: None,
        };
        inner.store.put_environment(&record).await?;
        inner.forget(owner, &request.name);
        if let Some(before) = before.filter(|before| before.tree != record.tree) {
            inner.collect(&before.tree).await;
        }
        Ok(record)
    }

    /// Installs again what was archived, from its lock.
    async fn restore(
        &self,
        (owner, principal): (&str, &Principal),
        record: EnvironmentRecord,
        teller: &Teller,
    ) -> Result<(), EnvironmentsError> {
        let inner = &self.inner;
        let lock = Lock::from_json(&record.lock)
            .map_err(|error| EnvironmentsError::Lock(error.to_string()))?;
        let request = inner.request_of(&record)?;
        let plan = inner.plan(&request).await?;
        let who = (principal.as_str(), record.name.as_str());
        let made = if inner.places.has(&record.tree) {
            inner.found(lock, who).await?
        } else {
            inner.count(who).await?;
            inner.make((&plan, Some(lock)), who, teller).await?
        };
        let fingerprint = record.request.clone();
        self.name(
            (owner, &request),
            (&plan, fingerprint),
            &made,
            record.build_ms,
        )
        .await?;
        Ok(())
    }
}

impl Inner {
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

    /// What led to a record.
    fn request_of(&self, record: &EnvironmentRecord) -> Result<BuildRequest, EnvironmentsError> {
        let damaged =
            |what: String| EnvironmentsError::Lock(format!("its record is damaged: {what}"));
        let packages = record.requested.iter().map(|text| {
            crate::packages::Requirement::parse(text).map_err(|error| damaged(error.to_string()))
        });
        let name =
            |text: &str| EnvironmentName::parse(text).map_err(|error| damaged(error.to_string()));
        Ok(BuildRequest {
            name: name(&record.name)?,
            template: record.template.as_deref().map(name).transpose()?,
            packages: packages.collect::<Result<_, _>>()?,
            python: PythonVersion::parse(&record.python).ok(),
            description: record.description.clone(),
        })
    }

    fn request_of_template(
        &self,
        name: &EnvironmentName,
    ) -> Result<BuildRequest, EnvironmentsError> {
        let template = self.template_named(name)?;
        Ok(BuildRequest {
            name: name.clone(),
            template: Some(name.clone()),
            packages: Vec::new(),
            python: None,
            description: template.description.clone(),
        })
    }

    fn template_named(
        &self,
        name: &EnvironmentName,
    ) -> Result<&crate::packages::Template, EnvironmentsError> {
        let templates = &self.settings.templates;
        templates.get(name).ok_or_else(|| {
            let known: Vec<String> = templates
                .iter()
                .map(|(name, _)| format!("`{name}`"))
                .collect();
            EnvironmentsError::UnknownTemplate {
                name: name.to_string(),
                known: known.join(", "),
            }
        })
    }

    /// Puts together what a request asks for, and finds the interpreter for it.
    async fn plan(&self, request: &BuildRequest) -> Result<Plan, EnvironmentsError> {
        let template = request.template.as_ref();
        let template = template.map(|name| self.template_named(name)).transpose()?;
        let from_template = template.iter().flat_map(|template| &template.packages);
        let requirements = build::merged(from_template.chain(&request.packages).cloned());
        let most = self.settings.max_packages;
        let field = |message: String| EnvironmentsError::Field {
            field: "packages",
            message,
        };
        if requirements.is_empty() {
            return Err(field(
                "`packages` is empty; name at least one package, for example \"numpy>=2\", or a template.".to_owned(),
            ));
        }
        if requirements.len() > most {
            return Err(field(format!(
                "`packages` has {} packages, more than the {most} that `environment_builder.max_packages` allows; leave out what others need anyway.",
                requirements.len()
            )));
        }
        let (python, interpreter) = self.interpreter(request.python).await?;
        Ok(Plan {
            requirements,
            python,
            interpreter,
        })
    }

    async fn interpreter(
        &self,
        wanted: Option<PythonVersion>,
    ) -> Result<(PythonVersion, PathBuf), EnvironmentsError> {
        let version = |(_, minor, _): (u32, u32, u32)| PythonVersion::parse(&format!("3.{minor}"));
        let own = self.jobs.python(None).await?;
        let has =
            version(own.version).map_err(|error| EnvironmentsError::Python(error.to_string()))?;
        let Some(wanted) = wanted.filter(|wanted| *wanted != has) else {
            return Ok((has, own.executable));
        };
        let uv = uv::find(self.settings.uv.as_deref()).ok();
        let search = PythonSearch {
            // It was asked above, and is another version.
            configured: None,
            paths: &self.settings.python_paths,
            uv: uv.as_deref(),
            may_download: self.settings.python_downloads,
        };
        let found = find_python((3, wanted.minor()), search).await;
        found
            .map(|python| (wanted, python.executable))
            .map_err(|error| EnvironmentsError::Python(error.to_string()))
    }

    /// A tree that is there, for a lock that is still allowed.
    async fn found(&self, lock: Lock, who: (&str, &str)) -> Result<Made, EnvironmentsError> {
        self.judge_lock(&lock, who).await?;
        let tree = lock.id();
        self.made(lock, tree, (true, Default::default(), Scan::default()))
    }

    async fn count(&self, who: (&str, &str)) -> Result<(), EnvironmentsError> {
        let rate = self.settings.rate;
        let limit = BuildLimit {
            builds: rate.requests,
            period_ms: i64::try_from(rate.period.as_millis()).unwrap_or(i64::MAX),
        };
        match self.store.count_build(who, limit).await? {
            Ok(()) => Ok(()),
            Err(wait_ms) => Err(EnvironmentsError::TooManyBuilds {
                builds: rate.requests,
                period_s: rate.period.as_secs(),
                wait_s: wait_ms.unsigned_abs().div_ceil(1000),
            }),
        }
    }

    /// What the rules refuse is in the audit log with the rule's name.
    fn record_refusal(&self, (principal, name): (&str, &str), error: &EnvironmentsError) {
        let refusals = match error {
            EnvironmentsError::Refused(refusals) | EnvironmentsError::NeedsApproval(refusals) => {
                refusals
            }
            _ => return,
        };
        for refusal in refusals {
            let told = fields(json!({
                "principal": principal,
                "environment": name,
                "package": refusal.package,
                "rule": refusal.rule,
                "success": false,
            }));
            if let Err(error) = self.audit.record("security.violation", told) {
                tracing::error!(%error, "a refusal is missing from the audit log");
            }
        }
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
