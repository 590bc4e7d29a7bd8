//! The only place that asks the service for anything about containers. Each request passes the
//! policy first, and containers that are not this server's are never touched.

use std::{
    collections::{HashMap, HashSet},
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

use super::owner::{Owner, Whose};
use crate::policy::{ContainerPolicy, Image, Operation, Violation};

/// Tries to remove a container: the service refuses while it starts or stops one.
const REMOVE_TRIES: u32 = 20;

/// Time between them.
const REMOVE_PAUSE: Duration = Duration::from_millis(100);

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
    own: Arc<Mutex<HashSet<String>>>,
}

impl Containers {
    pub(super) fn new(client: Docker, policy: Arc<ContainerPolicy>, owner: Arc<Owner>) -> Self {
        Self {
            client,
            policy,
            owner,
            own: Arc::default(),
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
        let created = self.client.create_container(None, body).await;
        let id = created.map_err(|error| failed(&error))?.id;
        self.lock().insert(id.clone());
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
        let gone = self.remove_now(id).await;
        if gone {
            self.lock().remove(id);
        }
        gone
    }

    /// Removes the containers of servers of this data directory that are gone: all of them, or those
    /// that are older than this. Says how many.
    pub(super) async fn remove_orphans(
        &self,
        older_than: Option<Duration>,
    ) -> Result<usize, ContainerError> {
        let filters = HashMap::from([("label".to_owned(), vec![self.owner.labels().filter()])]);
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&filters)
            .build();
        let listed = self.client.list_containers(Some(options)).await;
        let now = jiff::Timestamp::now().as_second();
        let least_age =
            older_than.map_or(0, |age| i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
        let mut removed = 0;
        for container in listed.map_err(|error| failed(&error))? {
            let (Some(id), Some(labels)) = (container.id, container.labels) else {
                continue;
            };
            let is_old = now - container.created.unwrap_or(now) >= least_age;
            let is_orphan = match self.owner.whose(&labels) {
                Whose::Dead => true,
                // One that this server has lost sight of. At start there is none.
                Whose::Ours => older_than.is_some() && !self.lock().contains(&id),
                Whose::Other => false,
            };
            if is_orphan && is_old && self.remove_now(&id).await {
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
        for _ in 0..REMOVE_TRIES {
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
        let is_own = self.lock().contains(id);
        self.policy.operation(operation, is_own)
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        // Nothing panics while it holds the set; if it did, the set is whole all the same.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
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
