//! Which resources a client wants to hear of, and telling it.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use rmcp::{
    RoleServer,
    model::{ProtocolVersion, ResourceUpdatedNotificationParam},
    service::RequestContext,
};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::{
    Client,
    resources::{ENVIRONMENTS, SESSIONS, session_uri},
};
use crate::{
    environments::Owner,
    names::Principal,
    service::Service,
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

/// What changes from now on of what is a principal's.
#[derive(Debug)]
pub(super) struct Changes {
    principal: Principal,
    sessions: Receiver<Changed>,
    environments: Receiver<Owner>,
}

impl Changes {
    pub(super) fn of(service: &Service, principal: &Principal) -> Self {
        Self {
            principal: principal.clone(),
            sessions: service.session_changes(),
            environments: service.environment_changes(),
        }
    }

    /// Waits for the next change, and says which resources are others now. `None` when there will be none.
    /// A listener that was too slow is told of the lists: it looks at everything again.
    pub(super) async fn next(&mut self) -> Option<Vec<String>> {
        loop {
            let uris = tokio::select! {
                changed = self.sessions.recv() => match changed {
                    Ok(changed) if changed.name.principal != self.principal => continue,
                    Ok(changed) => of_session(&changed),
                    Err(RecvError::Lagged(_)) => vec![SESSIONS.to_owned()],
                    Err(RecvError::Closed) => return None,
                },
                owner = self.environments.recv() => match owner {
                    Ok(owner) if !owner.concerns(&self.principal) => continue,
                    Ok(_) | Err(RecvError::Lagged(_)) => vec![ENVIRONMENTS.to_owned()],
                    Err(RecvError::Closed) => return None,
                },
            };
            if !uris.is_empty() {
                return Some(uris);
            }
        }
    }
}

fn of_session(changed: &Changed) -> Vec<String> {
    match changed.change {
        Change::Running => Vec::new(),
        Change::List => vec![SESSIONS.to_owned()],
        Change::State => {
            let id = changed.name.id.as_str();
            vec![session_uri(id, "state"), session_uri(id, "variables")]
        }
    }
}

impl Client {
    /// Tells the client when the upstreams are up, so that it lists their tools again. From
    /// 2026-07-28 on a client asks for this itself, with `subscriptions/listen`.
    pub(super) fn announce_later(&self, context: &RequestContext<RoleServer>) {
        let subscribes = context
            .protocol_version()
            .is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        if subscribes || self.announcing.swap(true, Ordering::Relaxed) {
            return;
        }
        let (service, peer, gone) = (
            Arc::clone(&self.service),
            context.peer.clone(),
            self.gone.clone(),
        );
        tokio::spawn(async move {
            tokio::select! {
                _ = service.tools(Duration::MAX) => { let _ = peer.notify_tool_list_changed().await; }
                () = gone.cancelled() => {}
            }
        });
    }

    /// Tells the client of changes to what it subscribed to, until it is gone.
    pub(super) fn tell_updates(&self, context: &RequestContext<RoleServer>) {
        if self.telling.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut changes = Changes::of(&self.service, &self.principal);
        let (peer, gone) = (context.peer.clone(), self.gone.clone());
        let subscribed = Arc::clone(&self.subscribed);
        tokio::spawn(async move {
            let told = async {
                while let Some(uris) = changes.next().await {
                    for uri in uris.into_iter().filter(|uri| subscribed.has(uri)) {
                        let update = ResourceUpdatedNotificationParam::new(uri);
                        let _ = peer.notify_resource_updated(update).await;
                    }
                }
            };
            tokio::select! {
                () = told => {}
                () = gone.cancelled() => {}
            }
        });
    }
}
