//! Room for sandboxes: a bounded number runs, a bounded number waits, the rest is told so at once.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::ServiceError;

/// Requests that may wait for each one that may run.
const WAITING_PER_SLOT: usize = 4;

/// How long a request waits for a slot before it is told to come back.
const WAIT_LIMIT: Duration = Duration::from_mins(1);

/// Room for one sandbox, until it is dropped.
pub(super) type Slot = OwnedSemaphorePermit;

/// The slots and the queue before them.
#[derive(Debug)]
pub(super) struct Slots {
    running: Arc<Semaphore>,
    waiting: Semaphore,
    count: usize,
    room: usize,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        let room = count
            .saturating_mul(WAITING_PER_SLOT)
            .min(Semaphore::MAX_PERMITS);
        Self {
            running: Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))),
            waiting: Semaphore::new(room),
            count,
            room,
        }
    }

    /// Waits for a slot, in the order of arrival. Dropping what it returns frees the slot;
    /// dropping the future leaves the queue.
    pub(super) async fn take(&self) -> Result<Slot, ServiceError> {
        if let Ok(slot) = Arc::clone(&self.running).try_acquire_owned() {
            return Ok(slot);
        }
        let Ok(_place) = self.waiting.try_acquire() else {
            return Err(self.busy(format!("{} more wait already", self.room)));
        };
        match timeout(WAIT_LIMIT, Arc::clone(&self.running).acquire_owned()).await {
            Ok(Ok(slot)) => Ok(slot),
            // The semaphore is never closed: both mean that no slot came.
            Ok(Err(_)) | Err(_) => {
                Err(self.busy(format!("none ended within {} s", WAIT_LIMIT.as_secs())))
            }
        }
    }

    fn busy(&self, why: String) -> ServiceError {
        ServiceError::Busy {
            running: self.count,
            why,
        }
    }
}
