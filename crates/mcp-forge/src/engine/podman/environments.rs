//! Which image serves an environment: its own, made of its tree and the configured image for its Python.

use super::{Inner, Service, images::ImageError, layered};
use crate::{
    engine::{Environment, LaunchError},
    policy::Image,
    text::printable,
};

impl Inner {
    /// The image of an environment: built from its tree if it is not there yet, by one at a time.
    pub(super) async fn image_of(
        &self,
        service: &Service,
        environment: &Environment,
    ) -> Result<Image, LaunchError> {
        let base = self.base_of(service, environment).await?;
        let refused = |error: ImageError| LaunchError::Start(error.to_string());
        let containers = &service.containers;
        let allowed = self.policy.image(&layered::name(&environment.id));
        allowed.map_err(LaunchError::Forbidden)?;
        let (client, place) = (containers.client(), containers.owner().labels().of_place());
        let _alone = self.building.lock().await;
        let found = layered::find(client, environment, &base, &place).await;
        if let Some(image) = found.map_err(refused)? {
            return Ok(image);
        }
        let built = layered::build(client, environment, &base, &place).await;
        built.map_err(refused)
    }

    /// The configured image for the Python of an environment.
    async fn base_of(
        &self,
        service: &Service,
        environment: &Environment,
    ) -> Result<Image, LaunchError> {
        let images = &self.settings.images;
        let names: &[&String] = match environment.python {
            (3, 11) => &[&images.python_3_11, &images.jupyter],
            (3, 12) => &[&images.python_3_12],
            (major, minor) => {
                return Err(LaunchError::Python(format!(
                    "this environment is for Python {major}.{minor}, and the engine {} has images for 3.11 and 3.12. \
                     Build the environment for one of these, or use the engine `native`",
                    self.kind.name()
                )));
            }
        };
        for name in names {
            let found = service.containers.image(name).await;
            if let Some(image) = found.map_err(|error| self.refused(error))? {
                return Ok(image);
            }
        }
        let (major, minor) = environment.python;
        Err(LaunchError::Python(format!(
            "this environment is for Python {major}.{minor}, and the {} service has no image {}: build it with \
             `mcp-forge image build python:{major}.{minor}`",
            self.kind.name(),
            names[0]
        )))
    }

    /// Removes the image of an environment, unless a container has it. Says whether there is none now.
    pub(super) async fn release(&self, id: &str) -> bool {
        let service = match self.service().await {
            Ok(service) => service,
            Err(error) => {
                tracing::info!(%error, "the image of an environment stays");
                return false;
            }
        };
        let _alone = self.building.lock().await;
        let containers = &service.containers;
        let place = containers.owner().labels().of_place();
        let removed = layered::remove(containers.client(), id, &place).await;
        if let Err(error) = &removed {
            tracing::info!(%error, "the image of an environment stays");
        }
        removed.is_ok()
    }
}

/// Whether the Python that was found in a container is that of its environment.
pub(super) fn fits(environment: &Environment, found: &str) -> Result<(), LaunchError> {
    let (major, minor) = environment.python;
    let wanted = format!("{major}.{minor}.");
    if found.starts_with(&wanted) {
        return Ok(());
    }
    let found: String = printable(found).chars().take(20).collect();
    Err(LaunchError::Python(format!(
        "this environment is for Python {major}.{minor}, and the image that the configuration names for that has \
         {found}. Name another under `images`, or build it with `mcp-forge image build python:{major}.{minor}`"
    )))
}
