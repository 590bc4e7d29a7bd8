//! One build, from a checked request to a published tree.
//!
//! Nothing is trusted that a step before did not check: the request is parsed and judged, the
//! resolver's answer is parsed and judged again, what is installed is installed by the lock's hashes,
//! looked at where no job reaches it, and imported in an ordinary sandbox before a name means it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};

use super::{
    EnvironmentsError, Inner,
    check::{Checker, Failures},
    error::Refusal,
    jobs::Runner,
    judge,
    places::{Places, Site, Sole},
    progress::{Phase, Teller},
    scan::{self, Scan},
    tree::{self, TreeError},
    uv,
};
use crate::{
    config::size::show_size,
    engine::{Engine, Environment, Meta},
    packages::{EnvironmentName, Lock, LockSources, PythonVersion, Requirement},
};

/// What is to be built: every text in it was parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRequest {
    /// What it is to be called.
    pub name: EnvironmentName,
    /// The template to begin with.
    pub template: Option<EnvironmentName>,
    /// Packages beside the template's.
    pub packages: Vec<Requirement>,
    /// The version of Python; `None` for that of the default interpreter.
    pub python: Option<PythonVersion>,
    /// What the caller says of it.
    pub description: String,
}

/// A tree that may be used, and how it came to be.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) lock: Lock,
    pub(super) tree: String,
    pub(super) size_bytes: u64,
    /// Whether it was there already.
    pub(super) cache_hit: bool,
    /// Modules of dependencies that cannot be imported.
    pub(super) failures: Failures,
    pub(super) scan: Scan,
}

/// All that a build needs to know beside what is asked of it.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Sorted, each once.
    pub(super) requirements: Vec<Requirement>,
    pub(super) python: PythonVersion,
    pub(super) interpreter: PathBuf,
}

impl Plan {
    /// Names all that decides what the same request would resolve to.
    pub(super) fn fingerprint(&self, inner: &Inner) -> String {
        let settings = &inner.settings;
        let mut hasher = Sha256::new();
        let mut add = |part: &str| {
            hasher.update(part.len().to_le_bytes());
            hasher.update(part);
        };
        add(&self.python.to_string());
        for requirement in &self.requirements {
            add(&requirement.to_string());
        }
        add(settings.index.expose());
        for index in &settings.extra_indexes {
            add(&index.name);
            add(index.url.expose());
            for package in &index.packages {
                add(package.as_str());
            }
        }
        add(&format!(
            "{:?} {:?}",
            settings.wheel_directory, settings.exclude_newer
        ));
        format!("{:x}", hasher.finalize())
    }
}

/// Sorts, and drops what is there twice.
pub(super) fn merged(requirements: impl IntoIterator<Item = Requirement>) -> Vec<Requirement> {
    let unique: BTreeMap<String, Requirement> = requirements
        .into_iter()
        .map(|requirement| (requirement.to_string(), requirement))
        .collect();
    unique.into_values().collect()
}

impl Inner {
    /// Judges what was asked for.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError::Refused`] or [`EnvironmentsError::NeedsApproval`].
    pub(super) async fn judge_request(
        &self,
        requirements: &[Requirement],
        who: (&str, &str),
    ) -> Result<(), EnvironmentsError> {
        self.judge_names(judge::asked(requirements), who).await
    }

    /// As [`Self::judge_request`], of what it resolved to.
    pub(super) async fn judge_lock(
        &self,
        lock: &Lock,
        who: (&str, &str),
    ) -> Result<(), EnvironmentsError> {
        self.judge_names(judge::locked(lock), who).await
    }

    async fn judge_names<'a>(
        &self,
        names: impl IntoIterator<Item = &'a crate::packages::PackageName>,
        who: (&str, &str),
    ) -> Result<(), EnvironmentsError> {
        let approvals = self.store.approvals().await?;
        let approved: BTreeSet<String> = approvals
            .into_iter()
            .filter(|approval| approval.approved_ms.is_some())
            .map(|approval| approval.package)
            .collect();
        let judged = judge::judge(&self.settings.rules, names, &approved);
        if !judged.refused.is_empty() {
            return Err(EnvironmentsError::Refused(judged.refused));
        }
        if judged.waiting.is_empty() {
            return Ok(());
        }
        for Refusal { package, rule, .. } in &judged.waiting {
            let pattern = rule.rsplit(": ").next().unwrap_or(rule);
            self.store.ask_approval((package, pattern), who).await?;
        }
        Err(EnvironmentsError::NeedsApproval(judged.waiting))
    }

    /// Makes the tree of a lock that is known, or of one that is resolved first.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError`]; nothing is left.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future kills the job and removes what was written.
    pub(super) async fn make(
        &self,
        (plan, known): (&Plan, Option<Lock>),
        who: (&str, &str),
        teller: &Teller,
    ) -> Result<Made, EnvironmentsError> {
        let _permit = self.builds.acquire().await;
        let limit = self.settings.max_build_time;
        let work = Box::pin(self.make_now((plan, known), who, teller));
        match tokio::time::timeout(limit, work).await {
            Ok(made) => made,
            Err(_) => Err(EnvironmentsError::TimedOut(limit.as_secs())),
        }
    }

    async fn make_now(
        &self,
        (plan, known): (&Plan, Option<Lock>),
        who: (&str, &str),
        teller: &Teller,
    ) -> Result<Made, EnvironmentsError> {
        let program = uv::find(self.settings.uv.as_deref())?;
        let places = self.places.clone();
        let site = blocking(move || places.begin())
            .await
            .map_err(|error| self.cannot(error))?;
        let runner = Runner {
            jobs: &self.jobs,
            settings: &self.settings,
            places: &self.places,
            program: &program,
            interpreter: &plan.interpreter,
            teller,
        };
        self.check_uv(&runner, &site).await?;
        let python = self.jobs.python(Some(&plan.interpreter)).await?.program;
        let lock = match known {
            Some(lock) => lock,
            None => self.resolve((plan, &python), &runner, &site).await?,
        };
        self.judge_lock(&lock, who).await?;
        self.fits(lock.download_bytes())?;
        teller.total(lock.download_bytes());
        let tree = lock.id();
        let sole = self
            .places
            .sole(&tree)
            .await
            .map_err(|error| self.cannot(error))?;
        if self.places.has(&tree) {
            return self.made(lock, tree, (true, Failures::new(), Scan::default()));
        }
        runner.phase(Phase::Downloading);
        let asked = uv::install(&lock, &python, &site.staging_inside());
        runner
            .run(site.job_id("install"), asked, EnvironmentsError::Install)
            .await?;
        let looked = self.publish(plan, &lock, &site).await?;
        let unchecked = Unchecked {
            engine: Arc::clone(&self.engine),
            places: self.places.clone(),
            tree: tree.clone(),
            sole: Some(sole),
        };
        let checked = self.check(plan, (&tree, &looked), &site, teller).await;
        let (failures, scan) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                unchecked.remove().await;
                return Err(error);
            }
        };
        runner.phase(Phase::Publishing);
        if let Err(error) = self.places.pass(&tree) {
            unchecked.remove().await;
            return Err(self.cannot(error));
        }
        unchecked.keep();
        self.made(lock, tree, (false, failures, scan))
    }

    pub(super) fn made(
        &self,
        lock: Lock,
        tree: String,
        (cache_hit, failures, scan): (bool, Failures, Scan),
    ) -> Result<Made, EnvironmentsError> {
        let size_bytes = Meta::read(&self.places.tree(&tree))?.size_bytes;
        Ok(Made {
            lock,
            tree,
            size_bytes,
            cache_hit,
            failures,
            scan,
        })
    }

    /// Asks the program for its version, once for each file that it is.
    async fn check_uv(&self, runner: &Runner<'_>, site: &Site) -> Result<(), EnvironmentsError> {
        let path = runner.program.to_owned();
        let changed = std::fs::metadata(&path)
            .and_then(|found| found.modified())
            .ok();
        let seen = (path, changed);
        if self.checked_uv.lock().await.as_ref() == Some(&seen) {
            return Ok(());
        }
        let asked = uv::Asked {
            arguments: vec!["--version".to_owned()],
            variables: Vec::new(),
            files: Vec::new(),
        };
        let failed = |said| EnvironmentsError::Uv(format!("which does not start: {said}"));
        let said = runner.run(site.job_id("uv"), asked, failed).await?;
        uv::check_version(said.stdout.first().map_or("", String::as_str))?;
        *self.checked_uv.lock().await = Some(seen);
        Ok(())
    }

    async fn resolve(
        &self,
        (plan, python): (&Plan, &str),
        runner: &Runner<'_>,
        site: &Site,
    ) -> Result<Lock, EnvironmentsError> {
        runner.phase(Phase::Resolving);
        let python = (python, plan.python);
        let asked = uv::resolve(
            &self.settings,
            &plan.requirements,
            python,
            &site.staging_inside(),
        );
        runner
            .run(site.job_id("resolve"), asked, EnvironmentsError::Resolve)
            .await?;
        let text = runner.lock_text(site).await?;
        let origins = self.settings.file_origins();
        let sources = LockSources {
            origins: &origins,
            wheel_directory: self
                .settings
                .wheel_directory
                .as_ref()
                .map(|_| Path::new(uv::WHEELS)),
        };
        let lock = Lock::parse(&text, plan.python, &sources)
            .map_err(|error| EnvironmentsError::Lock(error.to_string()))?;
        if self.settings.wheel_directory.is_none() && !self.settings.extra_indexes.is_empty() {
            let asked = uv::sources(&self.settings, &plan.requirements, python);
            let said = runner
                .run(site.job_id("sources"), asked, EnvironmentsError::Resolve)
                .await?;
            judge::sources(&self.settings, &lock, &uv::index_of_each(&said.stdout))?;
        }
        Ok(lock)
    }

    /// Takes what was installed out of the job's reach, looks at it, and gives it its name. Nothing
    /// uses it yet.
    async fn publish(
        &self,
        plan: &Plan,
        lock: &Lock,
        site: &Site,
    ) -> Result<BTreeMap<String, String>, EnvironmentsError> {
        let packages = site
            .take("site", &format!("lib/python{}/site-packages", plan.python))
            .map_err(|error| self.cannot(error))?;
        site.had_room().map_err(|error| self.cannot(error))?;
        let most = self.settings.max_bytes;
        let looked = blocking(move || {
            // Scripts name an interpreter that is not there.
            let _ = std::fs::remove_dir_all(packages.join("bin"));
            tree::look(&packages, most)
        });
        let summary = looked.await.map_err(|error| match error {
            TreeError::TooLarge { most } => EnvironmentsError::TooLarge {
                size: "more".to_owned(),
                most: show_size(most),
            },
            error => EnvironmentsError::Install(error.to_string()),
        })?;
        let meta = Meta {
            id: lock.id(),
            python: plan.python.to_string(),
            interpreter: plan.interpreter.clone(),
            modules: summary.modules.keys().cloned().collect(),
            built_at: jiff::Timestamp::now().to_string(),
            size_bytes: summary.bytes,
            packages: listed(lock),
        };
        let written = meta
            .write(&site.new_tree())
            .and_then(|()| site.publish(&lock.id()));
        written.map_err(|error| self.cannot(error))?;
        Ok(summary.modules)
    }

    async fn check(
        &self,
        plan: &Plan,
        (tree, modules): (&str, &BTreeMap<String, String>),
        site: &Site,
        teller: &Teller,
    ) -> Result<(Failures, Scan), EnvironmentsError> {
        teller.phase(Phase::Checking, "");
        let environment = Arc::new(Environment::open(&self.places.tree(tree))?);
        let asked: BTreeSet<&str> = judge::asked(&plan.requirements)
            .map(crate::packages::PackageName::as_str)
            .collect();
        let checker = Checker {
            engine: &*self.engine,
            limits: &self.limits,
            caps: self.caps,
        };
        let packages = environment.site_packages();
        let failures = checker
            .imports((site.job_id("check"), environment), modules, &asked, teller)
            .await?;
        let scan = scan::scan(&self.jobs, &self.settings, (site, &packages), teller).await?;
        Ok((failures, scan))
    }

    fn fits(&self, bytes: u64) -> Result<(), EnvironmentsError> {
        let most = self.settings.max_bytes;
        if bytes <= most {
            return Ok(());
        }
        Err(EnvironmentsError::TooLarge {
            size: format!("{} of downloads", show_size(bytes)),
            most: show_size(most),
        })
    }
}

/// A tree that has its name and did not pass its checks yet. Dropped, it is removed: it never counted.
struct Unchecked {
    engine: Arc<dyn Engine>,
    places: Places,
    tree: String,
    /// Nobody else makes it until it is gone.
    sole: Option<Sole>,
}

impl Unchecked {
    /// It has passed.
    fn keep(mut self) {
        self.sole = None;
    }

    /// As dropping it, but waits.
    async fn remove(mut self) {
        if let Some(sole) = self.sole.take() {
            self.removal(sole).await;
        }
    }

    fn removal(&self, sole: Sole) -> impl Future<Output = ()> + Send + 'static {
        let (engine, tree) = (Arc::clone(&self.engine), self.tree.clone());
        let directory = self.places.tree(&tree);
        async move {
            engine.release(&tree).await;
            let removed = blocking(move || std::fs::remove_dir_all(directory)).await;
            if let Err(error) = removed {
                tracing::warn!(%error, tree, "what did not pass its checks is removed later");
            }
            drop(sole);
        }
    }
}

impl Drop for Unchecked {
    fn drop(&mut self) {
        if let Some(sole) = self.sole.take() {
            self.places.remove_later(self.removal(sole));
        }
    }
}

/// Requirements as texts.
pub(super) fn shown(requirements: &[Requirement]) -> Vec<String> {
    requirements.iter().map(ToString::to_string).collect()
}

/// The packages of a lock, each as `name==version`.
pub(super) fn listed(lock: &Lock) -> Vec<String> {
    lock.packages()
        .iter()
        .map(|package| format!("{}=={}", package.name, package.version))
        .collect()
}

/// Runs what reads or writes many files, on a thread for such.
async fn blocking<T: Send + 'static, E: From<std::io::Error> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(std::io::Error::other(error).into()),
    }
}

/// How long something took, in whole milliseconds.
pub(super) fn milliseconds(since: Instant) -> u64 {
    let elapsed: Duration = since.elapsed();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}
