//! Containers that are started and wait for code. Each is used once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};

use super::Made;

/// The containers of one kind that wait.
#[derive(Debug, Default)]
pub(super) struct Pool {
    waiting: Mutex<VecDeque<Made>>,
    /// Held by whoever makes more.
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

    /// The right to make more, unless somebody has it: one container at a time is started ahead.
    pub(super) fn filling(&self) -> Option<AsyncMutexGuard<'_, ()>> {
        self.filling.try_lock().ok()
    }

    /// Whether fewer than so many wait.
    pub(super) fn lacks(&self, ready: usize) -> bool {
        self.len() < ready
    }

    /// How many wait and still live.
    pub(super) fn len(&self) -> usize {
        let waiting = self.lock();
        waiting
            .iter()
            .filter(|made| made.container.is_fit())
            .count()
    }

    /// Adds one, in place of those that have died.
    pub(super) fn put(&self, made: Made) {
        let mut waiting = self.lock();
        waiting.retain(|made| made.container.is_fit());
        waiting.push_back(made);
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
