//! Containers that are started and wait for code. Each is used once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Mutex as AsyncMutex;

use super::Made;

/// The containers of one kind that wait.
#[derive(Debug, Default)]
pub(super) struct Pool {
    waiting: Mutex<VecDeque<Made>>,
    /// Held by whoever makes more: one container at a time is started ahead.
    filling: AsyncMutex<()>,
}

impl Pool {
    /// One that still lives, if one does.
    pub(super) fn take(&self) -> Option<Made> {
        let mut waiting = self.lock();
        while let Some(made) = waiting.pop_front() {
            if made.container.is_fit() {
                return Some(made);
            }
        }
        None
    }

    /// Makes containers until `ready` wait, unless somebody does so already.
    pub(super) async fn fill<E>(
        &self,
        ready: usize,
        make: impl AsyncFn() -> Result<Made, E>,
    ) -> Result<(), E> {
        let Ok(_filling) = self.filling.try_lock() else {
            return Ok(());
        };
        while self.lock().len() < ready {
            let made = make().await?;
            self.lock().push_back(made);
        }
        Ok(())
    }

    /// Adds one.
    pub(super) fn put(&self, made: Made) {
        self.lock().push_back(made);
    }

    /// All that wait.
    pub(super) fn drain(&self) -> Vec<Made> {
        self.lock().drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Made>> {
        // Nothing panics while it holds the list; if it did, the list is whole all the same.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pools of an engine.
#[derive(Debug, Default, Clone)]
pub(super) struct Pools {
    pub(super) turns: Arc<Pool>,
    pub(super) sessions: Arc<Pool>,
}
