//! What nobody uses goes: first its packages, later its name. What is in use never does.

use std::time::Duration;

use serde_json::json;

use super::{Environments, EnvironmentsError, Inner};
use crate::{
    audit::fields,
    engine::Environment,
    store::{EnvironmentRecord, now_ms},
};

impl Environments {
    /// Archives what was unused for long, forgets what was for longer, and removes what no name
    /// needs. For a server's start, and from time to time.
    ///
    /// # Errors
    ///
    /// [`EnvironmentsError`]; the rest is done the next time.
    pub async fn tidy(&self) -> Result<(), EnvironmentsError> {
        let inner = &self.inner;
        let places = inner.places.clone();
        let left = tokio::task::spawn_blocking(move || places.remove_left()).await;
        let left = left.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        // What cannot be removed keeps nothing from growing old.
        let aged = inner.age_all().await;
        if let (Err(error), Err(_)) = (&left, &aged) {
            tracing::warn!(%error, "what builds left could not be removed");
        }
        aged.and(left.map_err(|error| inner.cannot(error)))
    }
}

impl Inner {
    async fn age_all(&self) -> Result<(), EnvironmentsError> {
        if !self.places.are_begun() {
            // Without environments the store is not even made.
            return Ok(());
        }
        for record in self.store.environments(None).await? {
            self.age(&record).await?;
        }
        let needed = self.store.needed_trees().await?;
        let published = self
            .places
            .published()
            .map_err(|error| self.cannot(error))?;
        for tree in published.iter().filter(|tree| !needed.contains(tree)) {
            self.collect(tree).await;
        }
        Ok(())
    }

    async fn age(&self, record: &EnvironmentRecord) -> Result<(), EnvironmentsError> {
        let unused = now_ms().saturating_sub(record.used_ms);
        // A use in the future was noted by a clock that was wrong: it is no old one.
        let unused = Duration::from_millis(u64::try_from(unused).unwrap_or(0));
        let event = if unused >= self.settings.delete_after {
            if !self.store.forget_environment(record).await? {
                return Ok(());
            }
            "environment.forgotten"
        } else if unused >= self.settings.archive_after
            && record.archived_ms.is_none()
            && self.store.archive_environment(record).await?
        {
            "environment.archived"
        } else {
            return Ok(());
        };
        self.tell(&record.principal);
        self.audit.record(
            event,
            fields(json!({
                "principal": record.principal,
                "environment": record.name,
                "tree": record.tree,
                "success": true,
            })),
        )?;
        Ok(())
    }

    /// Removes a tree that no name needs, unless somebody makes it or uses it just now: then the
    /// next look does.
    pub(super) async fn collect(&self, tree: &str) {
        match self.collect_now(tree).await {
            Ok(true) => tracing::debug!(tree, "an environment that no name needs is removed"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, tree, "an environment that no name needs could not be removed");
            }
        }
    }

    async fn collect_now(&self, tree: &str) -> Result<bool, EnvironmentsError> {
        let sole = self
            .places
            .try_sole(tree)
            .map_err(|error| self.cannot(error))?;
        let Some(_sole) = sole else {
            return Ok(false);
        };
        if self
            .store
            .needed_trees()
            .await?
            .iter()
            .any(|needed| needed == tree)
        {
            return Ok(false);
        }
        self.opened()
            .retain(|_, found| found.environment.id != tree);
        if !self.engine.release(tree).await {
            // The tree is what the next look finds it by.
            return Ok(false);
        }
        let Some(claim) = Environment::try_claim(&self.places.tree(tree))? else {
            return Ok(false);
        };
        let removed = tokio::task::spawn_blocking(move || claim.remove()).await;
        removed
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| self.cannot(error))?;
        Ok(true)
    }
}
