//! From what was made to what a name means, with its records: who asked, what came of it, how often.

use std::{sync::Arc, time::Instant};

use serde_json::json;

use super::{
    BuildRequest, Built, EVERYBODY, Environments, EnvironmentsError, Inner, Teller,
    build::{self, Made, milliseconds},
    plan::Plan,
    view,
};
use crate::{
    audit::{Pending, fields},
    engine::Environment,
    names::Principal,
    packages::{EnvironmentName, Lock},
    store::{BuildLimit, EnvironmentRecord, now_ms},
};

/// Environments of one principal, at most.
const MOST_NAMES: i64 = 200;

impl Environments {
    /// Builds what a template says today, unless that is there.
    pub(super) async fn template(
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

    pub(super) async fn build_as(
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
        inner.has_room(owner, &request.name).await?;
        let plan = inner.plan(request).await?;
        let who = (principal.as_str(), request.name.as_str());
        let judged = inner.judge_request(&plan.requirements, who).await;
        judged.inspect_err(|error| inner.record_refusal(who, error))?;
        let fingerprint = plan.fingerprint(inner);
        let known = if is_anew {
            None
        } else {
            inner.store.environment_of_request(&fingerprint).await?
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
            Some(lock) if is_there => inner.found(lock, who, teller).await,
            known => inner.make((&plan, known), who, teller).await,
        };
        let named = async {
            let made = made?;
            let what = (&plan, fingerprint);
            let named = self
                .name((owner, request), what, &made, milliseconds(began))
                .await;
            match named {
                Ok(record) => Ok((record, made)),
                Err(error) => {
                    // Without its name nobody finds what was made.
                    let tree = made.lock.id();
                    drop(made);
                    inner.collect(&tree).await;
                    Err(error)
                }
            }
        };
        let named = named.await;
        let made = named.as_ref().map(|(_, made)| made);
        inner.record_end(pending, who, made)?;
        let (record, made) = named?;
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
            tree: made.lease.id.clone(),
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
        inner.tell(owner);
        if let Some(before) = before.filter(|before| before.tree != record.tree) {
            inner.collect(&before.tree).await;
        }
        Ok(record)
    }

    /// Installs again what was archived, from its lock. Its name is not touched.
    pub(super) async fn restore(
        &self,
        principal: &Principal,
        record: &EnvironmentRecord,
        teller: &Teller,
    ) -> Result<Arc<Environment>, EnvironmentsError> {
        let inner = &self.inner;
        let who = (principal.as_str(), record.name.as_str());
        let lock = Lock::from_json(&record.lock)
            .map_err(|error| EnvironmentsError::Lock(error.to_string()))?;
        let is_there = inner.places.has(&record.tree);
        if !is_there {
            if !inner.settings.enabled {
                return Err(EnvironmentsError::Disabled);
            }
            inner.count(who).await?;
        }
        let pending = inner.audit.begin(
            "environment.restore",
            fields(json!({
                "principal": principal,
                "environment": record.name,
                "tree": record.tree,
            })),
        )?;
        let made = async {
            if is_there {
                return inner.found(lock, who, teller).await;
            }
            let plan = inner.plan_again(record, &lock).await?;
            inner.make((&plan, Some(lock)), who, teller).await
        };
        let made = made.await;
        inner.record_end(pending, who, made.as_ref())?;
        Ok(made?.lease)
    }
}

impl Inner {
    /// A tree that is there, for a lock that is still allowed.
    async fn found(
        &self,
        lock: Lock,
        who: (&str, &str),
        teller: &Teller,
    ) -> Result<Made, EnvironmentsError> {
        self.judge_lock(&lock, who).await?;
        self.hit(lock, teller).await
    }

    /// The end of a build's record in the audit log, and what the rules refused.
    fn record_end(
        &self,
        pending: Pending,
        who: (&str, &str),
        made: Result<&Made, &EnvironmentsError>,
    ) -> Result<(), EnvironmentsError> {
        let ended = match made {
            Ok(made) => json!({
                "success": true,
                "tree": made.lease.id,
                "cache_hit": made.cache_hit,
                "packages": made.lock.packages().len(),
                "bytes": made.size_bytes,
            }),
            Err(error) => {
                self.record_refusal(who, error);
                json!({"success": false, "error": error.to_string()})
            }
        };
        Ok(pending.finish(fields(ended))?)
    }

    /// Whether the owner may have one more name. What is there already is not counted as a build, so
    /// names have a bound of their own: each keeps a lock.
    async fn has_room(&self, owner: &str, name: &EnvironmentName) -> Result<(), EnvironmentsError> {
        let [own, _] = self.store.count_environments(owner).await?;
        let is_full = owner != EVERYBODY && own >= MOST_NAMES;
        if !is_full
            || self
                .store
                .environment(owner, name.as_str())
                .await?
                .is_some()
        {
            return Ok(());
        }
        Err(EnvironmentsError::Field {
            field: "name",
            message: format!(
                "`name` would be one more than the {MOST_NAMES} environments that you may have; delete one first."
            ),
        })
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
        let (EnvironmentsError::Refused(refusals) | EnvironmentsError::NeedsApproval(refusals)) =
            error
        else {
            return;
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
}
