//! How environments show themselves: in a list, one by one, and after a build.

use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    EVERYBODY, Environments, EnvironmentsError, Inner, build, build::Made, check::Failures,
    scan::Scan,
};
use crate::{
    names::Principal,
    packages::{EnvironmentName, Lock},
    store::EnvironmentRecord,
};

/// Before an environment is archived or forgotten for want of use, its list says so for so long.
const SAID_BEFORE: Duration = Duration::from_hours(7 * 24);

/// The answer to a build.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Built {
    /// Always true.
    pub success: bool,
    /// Its name, for `custom_image`.
    pub name: String,
    /// The same, as images are named.
    pub image_name: String,
    /// `sha256:` and the lock's hash.
    pub image_id: String,
    /// Seconds.
    pub build_time: f64,
    /// Each as `name==version`, dependencies among them.
    pub installed_packages: Vec<String>,
    /// Whether the packages were there already.
    pub cache_hit: bool,
    /// Hash of the lock: the same packages in the same files have the same.
    pub lock_hash: String,
    /// Python's version.
    pub python_version: String,
    /// Megabytes of files.
    pub size_mb: f64,
    /// What the vulnerability scan found.
    pub scan: Scan,
    /// What works less well than it might: modules of dependencies that cannot be imported.
    pub warnings: Vec<String>,
}

/// All environments that a caller can use.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Listed {
    /// Its own, by name.
    pub custom: Vec<EnvironmentView>,
    /// Those that are built when they are first used, by name.
    pub templates: Vec<TemplateView>,
}

/// One environment.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EnvironmentView {
    /// Its name, for `custom_image`.
    pub name: String,
    /// The same, as images are named.
    pub image: String,
    /// What its maker says of it.
    pub description: String,
    /// The template that it began with.
    pub template: Option<String>,
    /// What was asked for beside the template's packages.
    pub requested: Vec<String>,
    /// What is installed, each as `name==version`.
    pub packages: Vec<String>,
    /// Python's version.
    pub python_version: String,
    /// Hash of the lock.
    pub lock_hash: String,
    /// Megabytes of files.
    pub size_mb: f64,
    /// `ready`, or `archived`: then only the lock is there, and the packages come back when it is used.
    pub state: &'static str,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    pub built_at: String,
    /// RFC 3339.
    pub last_used: String,
    /// When it is archived if nobody uses it; RFC 3339.
    pub archived_on: Option<String>,
    /// When it is forgotten if nobody uses it; RFC 3339.
    pub deleted_on: String,
    /// What happens soon.
    pub notice: Option<String>,
}

/// One template.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TemplateView {
    /// Its name, for `environment`, or as the `template` of a build.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Its packages.
    pub packages: Vec<String>,
    /// Whether it was built already; if not, its first use builds it.
    pub built: bool,
    /// Megabytes of files, once it is built.
    pub size_mb: Option<f64>,
    /// RFC 3339; once it is built.
    pub last_used: Option<String>,
}

impl Environments {
    /// What a caller can use.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError::Store`].
    pub async fn list(&self, principal: &Principal) -> Result<Listed, EnvironmentsError> {
        let inner = &self.inner;
        let custom = inner.store.environments(Some(principal.as_str())).await?;
        let built = inner.store.environments(Some(EVERYBODY)).await?;
        let templates = inner.settings.templates.iter().map(|(name, template)| {
            let record = built.iter().find(|record| record.name == name.as_str());
            TemplateView {
                name: name.to_string(),
                description: template.description.clone(),
                packages: build::shown(&template.packages),
                built: record.is_some_and(|record| inner.places.has(&record.tree)),
                size_mb: record.map(|record| megabytes(record.size_bytes)),
                last_used: record.map(|record| when(record.used_ms)),
            }
        });
        Ok(Listed {
            custom: custom.iter().map(|record| inner.view(record)).collect(),
            templates: templates.collect(),
        })
    }

    /// How many there are that principals made, and how many templates that were built.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError::Store`].
    pub async fn count(&self) -> Result<[i64; 2], EnvironmentsError> {
        let [templates, custom] = self.inner.store.count_environments(EVERYBODY).await?;
        Ok([custom, templates])
    }

    /// One of a caller's own.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError::Unknown`] or [`EnvironmentsError::Store`].
    pub async fn info(
        &self,
        principal: &Principal,
        name: &EnvironmentName,
    ) -> Result<EnvironmentView, EnvironmentsError> {
        let record = self.inner.record(principal.as_str(), name).await?;
        Ok(self.inner.view(&record))
    }
}

impl Inner {
    fn view(&self, record: &EnvironmentRecord) -> EnvironmentView {
        let milliseconds = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let settings = &self.settings;
        let archived_ms = record
            .used_ms
            .saturating_add(milliseconds(settings.archive_after));
        let deleted_ms = record
            .used_ms
            .saturating_add(milliseconds(settings.delete_after));
        let is_archived = record.archived_ms.is_some() || !self.places.has(&record.tree);
        let soon = crate::store::now_ms().saturating_add(milliseconds(SAID_BEFORE));
        let notice = if deleted_ms <= soon {
            Some(format!(
                "Nobody has used it for long: it is forgotten on {}. Any use keeps it.",
                when(deleted_ms)
            ))
        } else if !is_archived && archived_ms <= soon {
            Some(format!(
                "Nobody has used it for long: its packages are removed on {}, and installed again when it is used. Any use keeps them.",
                when(archived_ms)
            ))
        } else {
            None
        };
        EnvironmentView {
            name: record.name.clone(),
            image: format!("mcp-forge/custom:{}", record.name),
            description: record.description.clone(),
            template: record.template.clone(),
            requested: record.requested.clone(),
            packages: Lock::from_json(&record.lock)
                .map(|lock| build::listed(&lock))
                .unwrap_or_default(),
            python_version: record.python.clone(),
            lock_hash: record.tree.clone(),
            size_mb: megabytes(record.size_bytes),
            state: if is_archived { "archived" } else { "ready" },
            created_at: when(record.created_ms),
            built_at: when(record.built_ms),
            last_used: when(record.used_ms),
            archived_on: (!is_archived).then(|| when(archived_ms)),
            deleted_on: when(deleted_ms),
            notice,
        }
    }
}

/// The answer to a build.
pub(super) fn built(record: &EnvironmentRecord, made: Made, elapsed: Duration) -> Built {
    Built {
        success: true,
        name: record.name.clone(),
        image_name: format!("mcp-forge/custom:{}", record.name),
        image_id: format!("sha256:{}", made.lease.id),
        build_time: (elapsed.as_secs_f64() * 1000.0).round() / 1000.0,
        installed_packages: build::listed(&made.lock),
        cache_hit: made.cache_hit,
        lock_hash: made.lease.id.clone(),
        python_version: record.python.clone(),
        size_mb: megabytes(made.size_bytes),
        scan: made.scan,
        warnings: warnings(&made.failures),
    }
}

fn warnings(failures: &Failures) -> Vec<String> {
    failures
        .iter()
        .take(20)
        .map(|(module, reason)| {
            format!("`import {module}` raised {}", crate::text::clipped(reason))
        })
        .collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a size in megabytes is for people"
)]
fn megabytes(bytes: u64) -> f64 {
    (bytes as f64 / 100_000.0).round() / 10.0
}

fn when(milliseconds: i64) -> String {
    Timestamp::from_millisecond(milliseconds)
        .unwrap_or(Timestamp::MAX)
        .to_string()
}
