//! Which resources a client wants to hear of, and telling it.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::resources::{SESSIONS, session_uri};
use crate::{
    names::Principal,
    session::{Change, Changed},
};

/// Resources that one client may subscribe to.
const MOST: usize = 1000;

/// The addresses that a client of the first era has subscribed to.
#[derive(Debug, Default)]
pub(super) struct Subscribed(Mutex<BTreeSet<String>>);

impl Subscribed {
    /// Adds one. False if there are too many.
    pub(super) fn add(&self, uri: String) -> bool {
        let mut uris = self.lock();
        let has_room = uris.len() < MOST || uris.contains(&uri);
        if has_room {
            uris.insert(uri);
        }
        has_room
    }

    pub(super) fn remove(&self, uri: &str) {
        self.lock().remove(uri);
    }

    pub(super) fn has(&self, uri: &str) -> bool {
        self.lock().contains(uri)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the next change to what is the principal's, and says which resources are others now. `None` when there will be none.
/// A listener that was too slow is told of the list: it looks at everything again.
pub(super) async fn next(
    changes: &mut Receiver<Changed>,
    principal: &Principal,
) -> Option<Vec<String>> {
    loop {
        match changes.recv().await {
            Ok(changed) if changed.name.principal != *principal => {}
            Ok(changed) => match changed.change {
                Change::Running => {}
                Change::List => return Some(vec![SESSIONS.to_owned()]),
                Change::State => {
                    let id = changed.name.id.as_str();
                    return Some(vec![session_uri(id, "state"), session_uri(id, "variables")]);
                }
            },
            Err(RecvError::Lagged(_)) => return Some(vec![SESSIONS.to_owned()]),
            Err(RecvError::Closed) => return None,
        }
    }
}
