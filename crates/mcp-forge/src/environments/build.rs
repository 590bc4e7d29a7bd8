//! One build, from a checked request to a published tree.
//!
//! Nothing is trusted that a step before did not check: the request is parsed and judged, the
//! resolver's answer is parsed and judged again, what is installed is installed by the lock's hashes,
//! looked at where no job reaches it, and imported in an ordinary sandbox before a name means it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    EnvironmentsError, Inner,
    check::{Checker, Failures},
    error::Refusal,
    jobs::Runner,
    judge,
    places::Sole,
    plan::Plan,
    progress::{Phase, Teller},
    scan::{self, Scan},
    site::{Site, Unchecked},
    tree::{self, TreeError},
    uv,
};
use crate::{
    config::size::show_size,
    engine::{Environment, Meta},
    packages::{Lock, LockSources, Requirement},
};

/// A tree that may be used, and how it came to be.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) lock: Lock,
    /// Nobody removes it before it has its name.
    pub(super) lease: Arc<Environment>,
    pub(super) size_bytes: u64,
    /// Whether it was there already.
    pub(super) cache_hit: bool,
    /// Modules of dependencies that cannot be imported.
    pub(super) failures: Failures,
    pub(super) scan: Scan,
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
        let site = self.begin().await?;
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
            drop(sole);
            return self.hit(lock, teller).await;
        }
        runner.phase(Phase::Downloading);
        let asked = uv::install(&self.settings, &lock, &python, &site.staging_inside());
        runner
            .run(site.job_id("install"), asked, EnvironmentsError::Install)
            .await?;
        // What the engine keeps of a tree of this name that did not pass is of files that are gone.
        self.engine.release(&tree).await;
        let (unchecked, modules) = self.publish((plan, &lock), sole, &site).await?;
        let lease = Arc::new(Environment::open(&self.places.tree(&tree))?);
        let checked = self.check(plan, (&lease, &modules), &site, teller).await;
        let (failures, scan) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                drop(lease);
                if !self.engine.release(&tree).await {
                    tracing::warn!(%tree, "an image of an environment that did not pass is left");
                }
                unchecked.withdraw().await;
                return Err(error);
            }
        };
        runner.phase(Phase::Publishing);
        unchecked
            .pass(&scan.to_json())
            .map_err(|error| self.cannot(error))?;
        Self::made(lock, lease, (false, failures, scan))
    }

    /// A tree that is there already: what was found in it is judged by the rules of today.
    pub(super) async fn hit(&self, lock: Lock, teller: &Teller) -> Result<Made, EnvironmentsError> {
        let tree = lock.id();
        let lease = Arc::new(Environment::open(&self.places.tree(&tree))?);
        let found = Scan::from_json(&self.places.found_in(&tree));
        let scan = if found.scanned || !scan::is_demanded(&self.settings) {
            scan::judge(found, self.settings.refuse_severity)?
        } else {
            // It was built when nobody demanded it.
            let site = self.begin().await?;
            let packages = lease.site_packages();
            let scan = scan::scan(&self.jobs, &self.settings, (&site, &packages), teller).await?;
            self.places
                .note(&tree, &scan.to_json())
                .map_err(|error| self.cannot(error))?;
            scan
        };
        Self::made(lock, lease, (true, Failures::new(), scan))
    }

    fn made(
        lock: Lock,
        lease: Arc<Environment>,
        (cache_hit, failures, scan): (bool, Failures, Scan),
    ) -> Result<Made, EnvironmentsError> {
        let size_bytes = Meta::read(&lease.directory)?.size_bytes;
        Ok(Made {
            lock,
            lease,
            size_bytes,
            cache_hit,
            failures,
            scan,
        })
    }

    async fn begin(&self) -> Result<Arc<Site>, EnvironmentsError> {
        let places = self.places.clone();
        let site = self.places.to_the_end(move || places.begin()).await;
        Ok(Arc::new(site.map_err(|error| self.cannot(error))?))
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
        (plan, lock): (&Plan, &Lock),
        sole: Sole,
        site: &Arc<Site>,
    ) -> Result<(Unchecked, BTreeMap<String, String>), EnvironmentsError> {
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
                takes: "takes".to_owned(),
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
        let site = Arc::clone(site);
        // Once begun it comes to its end, with the right to: if nobody waits for it, it is undone.
        let published = self.places.to_the_end(move || {
            meta.write(&site.new_tree())?;
            site.publish(&meta.id, sole)
        });
        let unchecked = published.await.map_err(|error| self.cannot(error))?;
        Ok((unchecked, summary.modules))
    }

    async fn check(
        &self,
        plan: &Plan,
        (environment, modules): (&Arc<Environment>, &BTreeMap<String, String>),
        site: &Site,
        teller: &Teller,
    ) -> Result<(Failures, Scan), EnvironmentsError> {
        teller.phase(Phase::Checking, "");
        let asked: BTreeSet<&str> = judge::asked(&plan.requirements)
            .map(crate::packages::PackageName::as_str)
            .collect();
        let checker = Checker {
            engine: &*self.engine,
            limits: &self.limits,
            caps: self.caps,
        };
        let packages = environment.site_packages();
        let environment = (site.job_id("check"), Arc::clone(environment));
        let failures = checker
            .imports(environment, modules, &asked, teller)
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
            takes: format!("would download {},", show_size(bytes)),
            most: show_size(most),
        })
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
