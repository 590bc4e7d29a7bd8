//! What others may see of a live session while its task is busy.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{known::Known, view::LiveFacts};
use crate::config::SessionsConfig;

/// A session ends soon when less than this part of its time is left.
const SOON_PART: u32 = 6;

/// Shared between a session's task and whoever looks.
#[derive(Debug)]
pub(super) struct Facts(Mutex<Inside>);

#[derive(Debug)]
struct Inside {
    started: Instant,
    used: Instant,
    is_open: bool,
    is_running: bool,
    known: Arc<Known>,
    not_kept: BTreeMap<String, String>,
    is_erased: bool,
}

impl Facts {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Inside {
            started: Instant::now(),
            used: Instant::now(),
            is_open: false,
            is_running: false,
            known: Arc::default(),
            not_kept: BTreeMap::new(),
            is_erased: false,
        }))
    }

    /// Its interpreter is there: from now on it can be idle.
    pub(super) fn open(&self) {
        let mut inside = self.lock();
        inside.is_open = true;
        inside.used = Instant::now();
    }

    pub(super) fn begin(&self) {
        self.lock().is_running = true;
    }

    pub(super) fn end(&self) {
        let mut inside = self.lock();
        inside.is_running = false;
        inside.used = Instant::now();
    }

    pub(super) fn learn(&self, known: Known) {
        self.lock().known = Arc::new(known);
    }

    pub(super) fn know(&self) -> Arc<Known> {
        Arc::clone(&self.lock().known)
    }

    pub(super) fn set_not_kept(&self, not_kept: BTreeMap<String, String>) {
        self.lock().not_kept = not_kept;
    }

    /// Its end was a deletion, and that is done.
    pub(super) fn erase(&self) {
        self.lock().is_erased = true;
    }

    pub(super) fn is_erased(&self) -> bool {
        self.lock().is_erased
    }

    pub(super) fn is_running(&self) -> bool {
        self.lock().is_running
    }

    /// Time until an idle session ends, and whether that is soon. None while it is started or a turn
    /// runs.
    pub(super) fn expiry(&self, config: &SessionsConfig) -> Option<(Duration, bool)> {
        let inside = self.lock();
        if inside.is_running || !inside.is_open {
            return None;
        }
        let idle = config.idle_timeout.saturating_sub(inside.used.elapsed());
        let left = idle.min(config.max_lifetime.saturating_sub(inside.started.elapsed()));
        Some((left, left < config.idle_timeout / SOON_PART))
    }

    /// Whether it has lived for as long as it may.
    pub(super) fn is_too_old(&self, config: &SessionsConfig) -> bool {
        self.lock().started.elapsed() >= config.max_lifetime
    }

    pub(super) fn live(&self, config: &SessionsConfig) -> LiveFacts {
        let expiry = self.expiry(config);
        let inside = self.lock();
        LiveFacts {
            is_running: inside.is_running,
            expires_in: expiry.map(|(left, _)| left),
            expires_soon: expiry.is_some_and(|(_, soon)| soon),
            known: Known::clone(&inside.known),
            not_kept: inside.not_kept.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
