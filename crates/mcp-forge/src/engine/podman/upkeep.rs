//! What is done now and then for as long as the engine lives, whoever asks for containers or not.

use std::{sync::Weak, time::Duration};

use super::{Inner, images::Pull};

/// Asks the registries for newer images now and then, for as long as the engine lives.
pub(super) async fn pull_newer(inner: Weak<Inner>) {
    loop {
        let Some(interval) = inner
            .upgrade()
            .map(|inner| inner.settings.images.pull_interval)
        else {
            return;
        };
        tokio::time::sleep(interval).await;
        if let Some(inner) = inner.upgrade()
            && let Ok(service) = inner.service().await
        {
            inner.pull(&service, Pull::Newer).await;
        }
    }
}

/// Looks now and then for containers that nobody will remove, for as long as the engine lives.
pub(super) async fn tidy(inner: Weak<Inner>, max_age: Duration) {
    const EVERY: Duration = Duration::from_mins(10);
    loop {
        tokio::time::sleep(EVERY.min(max_age)).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        let looked = match inner.service().await {
            Ok(service) => service.containers.remove_orphans().await.map(drop),
            Err(error) => {
                tracing::debug!(%error, "no look for old containers");
                continue;
            }
        };
        if let Err(error) = looked {
            tracing::debug!(%error, "no look for old containers");
        }
    }
}
