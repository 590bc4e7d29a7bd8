//! The only place that asks the service for anything about containers. Each request passes the
//! policy first, and containers that are not this server's are never touched.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bollard::{
    Docker,
    container::AttachContainerResults,
    errors::Error as ApiError,
    models::ContainerCreateBody,
    query_parameters::{
        AttachContainerOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
        RemoveContainerOptionsBuilder,
    },
};
use serde_json::Value;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    FIRST_PAUSE, LONGEST_PAUSE,
    owner::{Owner, Whose},
};
use crate::policy::{ContainerPolicy, Image, Operation, Violation};

/// Tries to remove a container: the service refuses while it starts or stops one.
const REMOVE_TRIES: u32 = 20;

/// Time between them.
const REMOVE_PAUSE: Duration = Duration::from_millis(100);

/// A request for a container takes less than this: beyond it, its answer was lost, whatever else is
/// being made.
const LONGEST_MAKING_SECONDS: i64 = 300;

/// A request to the service came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContainerError {
    /// The policy forbids it. Nothing is left.
    #[error(transparent)]
    Forbidden(#[from] Violation),
    /// The service does not answer. What was asked may or may not have been done; labels tell later.
    #[error("the container service does not answer: {0}")]
    Unreachable(String),
    /// The service refused. Nothing is left.
    #[error("the container service refused: {0}")]
    Refused(String),
}

/// The service, as this server may use it.
#[derive(Debug, Clone)]
pub(super) struct Containers {
    client: Docker,
    policy: Arc<ContainerPolicy>,
    owner: Arc<Owner>,
    own: Own,
}

/// What this server has made and not seen to be gone: one list for its whole life, since the service
/// may go and come back.
#[derive(Debug, Clone, Default)]
pub(super) struct Own {
    fates: Arc<Mutex<HashMap<String, Fate>>>,
    /// The requests for containers whose answers are not in `fates` yet.
    making: TaskTracker,
    /// What makes and removes containers, whether or not somebody waits for it.
    pub(super) tasks: TaskTracker,
    /// Cancelled when the server ends: a service that is away is not waited for after that.
    pub(super) ending: CancellationToken,
    /// Cancelled when the end has taken as long as it may.
    pub(super) ended: CancellationToken,
}

/// Whether a container is still wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Wanted,
    /// Its removal was begun; it is tried again until the service says that it is gone.
    Doomed,
}

impl Containers {
    pub(super) fn new(
        client: Docker,
        policy: Arc<ContainerPolicy>,
        (owner, own): (Arc<Owner>, Own),
    ) -> Self {
        Self {
            client,
            policy,
            owner,
            own,
        }
    }

    /// The service itself answers, for questions that are not about containers.
    pub(super) const fn client(&self) -> &Docker {
        &self.client
    }

    pub(super) const fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }

    /// The image of this name, if the operator allows it and the service has it.
    pub(super) async fn image(&self, name: &str) -> Result<Option<Image>, ContainerError> {
        self.policy.image(name)?;
        // A service completes short names; what it has under `localhost` was built on it.
        for candidate in [name.to_owned(), format!("localhost/{name}")] {
            match self.client.inspect_image(&candidate).await {
                Ok(found) => {
                    return Ok(found.id.map(|id| Image {
                        name: name.to_owned(),
                        id,
                    }));
                }
                Err(ApiError::DockerResponseServerError {
                    status_code: 404, ..
                }) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(None)
    }

    /// Creates a container that is what was asked for, or none.
    pub(super) async fn create(
        &self,
        image: &Image,
        body: ContainerCreateBody,
    ) -> Result<String, ContainerError> {
        let asked = serde_json::to_value(&body)
            .map_err(|error| ContainerError::Refused(error.to_string()))?;
        self.policy.operation(Operation::Create, false)?;
        self.policy.create(image, &asked)?;
        let making = self.own.making.token();
        let created = self.client.create_container(None, body).await;
        let id = created.map_err(|error| failed(&error))?.id;
        self.lock().insert(id.clone(), Fate::Wanted);
        drop(making);
        match self
            .look(&id)
            .await
            .and_then(|made| Ok(self.policy.created(&asked, &made)?))
        {
            Ok(()) => Ok(id),
            Err(error) => {
                self.remove(&id).await;
                Err(error)
            }
        }
    }

    /// Starts one of ours, and connects to its streams. Its relay says nothing before it is spoken to.
    pub(super) async fn start(&self, id: &str) -> Result<AttachContainerResults, ContainerError> {
        self.permit(Operation::Start, id)?;
        let started = self.client.start_container(id, None).await;
        started.map_err(|error| failed(&error))?;
        self.permit(Operation::Attach, id)?;
        let streams = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .build();
        let attached = self.client.attach_container(id, Some(streams)).await;
        attached.map_err(|error| failed(&error))
    }

    /// Its first process, as the service's host counts it.
    pub(super) async fn process(&self, id: &str) -> Option<i32> {
        let made = self.look(id).await.ok()?;
        i32::try_from(made.get("State")?.get("Pid")?.as_i64()?).ok()
    }

    /// Kills one of ours and removes it. True once it is gone.
    pub(super) async fn remove(&self, id: &str) -> bool {
        if let Err(violation) = self.permit(Operation::Remove, id) {
            tracing::error!(%violation, "a container is left alone");
            return false;
        }
        self.lock().insert(id.to_owned(), Fate::Doomed);
        let gone = self.remove_now(id).await;
        if gone {
            self.lock().remove(id);
        }
        gone
    }

    /// As [`Self::remove`], while nobody waits, and until it is gone: the service may be away. What is
    /// left when the server ends, or is dropped outside the runtime, goes at a later start.
    pub(super) fn remove_later(&self, id: String) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let containers = self.clone();
        let removal = async move {
            let mut pause = FIRST_PAUSE;
            let ending = &containers.own.ending;
            loop {
                let is_last = ending.is_cancelled();
                let is_gone = containers.remove(&id).await;
                if is_gone || is_last || !containers.lock().contains_key(&id) {
                    return;
                }
                // Tried once more when the server ends.
                tokio::time::timeout(pause, ending.cancelled()).await.ok();
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        };
        self.own.tasks.spawn_on(removal, &runtime);
    }

    /// Removes the containers of servers of this data directory that are gone, and those of this one
    /// that nobody wants any more. Says how many.
    pub(super) async fn remove_orphans(&self) -> Result<usize, ContainerError> {
        let filters = HashMap::from([("label".to_owned(), vec![self.owner.labels().filter()])]);
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&filters)
            .build();
        let listed = self.client.list_containers(Some(options)).await;
        let now = jiff::Timestamp::now().as_second();
        let mut removed = 0;
        for container in listed.map_err(|error| failed(&error))? {
            let (Some(id), Some(labels)) = (container.id, container.labels) else {
                continue;
            };
            let age = now - container.created.unwrap_or(now);
            let is_orphan = match self.owner.whose(&labels) {
                Whose::Dead => true,
                Whose::Ours => self.own.is_unwanted(&id, age),
                Whose::Other => false,
            };
            if is_orphan && self.remove_now(&id).await {
                self.lock().remove(&id);
                removed += 1;
            }
        }
        Ok(removed)
    }

    async fn look(&self, id: &str) -> Result<Value, ContainerError> {
        self.permit(Operation::Inspect, id)?;
        let made = self
            .client
            .inspect_container(id, None::<InspectContainerOptions>)
            .await;
        let made = made.map_err(|error| failed(&error))?;
        serde_json::to_value(made).map_err(|error| ContainerError::Refused(error.to_string()))
    }

    async fn remove_now(&self, id: &str) -> bool {
        let options = || {
            RemoveContainerOptionsBuilder::default()
                .force(true)
                .v(true)
                .build()
        };
        let Own { ending, ended, .. } = &self.own;
        let mut tries = 0;
        // When the server ends this is the last chance, for as long as that may take.
        while tries < REMOVE_TRIES || (ending.is_cancelled() && !ended.is_cancelled()) {
            tries += 1;
            match self.client.remove_container(id, Some(options())).await {
                Ok(())
                | Err(ApiError::DockerResponseServerError {
                    status_code: 404, ..
                }) => return true,
                Err(ApiError::DockerResponseServerError { message, .. }) => {
                    tracing::debug!(id, message, "a container is not removed yet");
                }
                Err(error) => {
                    tracing::warn!(id, %error, "a container could not be removed");
                    return false;
                }
            }
            tokio::time::sleep(REMOVE_PAUSE).await;
        }
        tracing::warn!(id, "a container could not be removed");
        false
    }

    fn permit(&self, operation: Operation, id: &str) -> Result<(), Violation> {
        let is_own = self.lock().contains_key(id);
        self.policy.operation(operation, is_own)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Fate>> {
        self.own.lock()
    }
}

impl Own {
    /// Whether one that carries this server's labels, and was there when the service was asked before,
    /// is to go. One that is not known is being made just now, or its making was never answered.
    fn is_unwanted(&self, id: &str, age_seconds: i64) -> bool {
        // In this order: what was being made, and is not any more, is known by now if it was answered.
        let none_is_made = self.making.is_empty();
        match self.lock().get(id) {
            Some(Fate::Wanted) => false,
            Some(Fate::Doomed) => true,
            None => none_is_made || age_seconds >= LONGEST_MAKING_SECONDS,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Fate>> {
        // Nothing panics while it holds the map; if it did, the map is whole all the same.
        self.fates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: &ApiError) -> ContainerError {
    match error {
        ApiError::DockerResponseServerError { message, .. } => {
            ContainerError::Refused(message.chars().take(1_000).collect())
        }
        other => ContainerError::Unreachable(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_whose_making_was_never_answered_is_unwanted_once_nothing_is_being_made() {
        let own = Own::default();
        let making = own.making.token();
        assert!(
            !own.is_unwanted("a", 0),
            "it may be the one that is being made"
        );
        assert!(own.is_unwanted("a", LONGEST_MAKING_SECONDS));
        own.lock().insert("a".to_owned(), Fate::Wanted);
        drop(making);
        assert!(!own.is_unwanted("a", LONGEST_MAKING_SECONDS));
        assert!(own.is_unwanted("b", 0), "its answer was lost");
        own.lock().insert("a".to_owned(), Fate::Doomed);
        assert!(own.is_unwanted("a", 0));
    }
}
