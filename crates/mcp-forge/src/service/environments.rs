//! What a caller may ask of environments: build one, list, describe, rebuild, delete; run code in one.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::broadcast;
use tracing::Instrument as _;

use super::{
    ExecuteRequest, Service, ServiceError,
    fields::{Fields, rejected},
    request::Checked,
};
use crate::{
    engine::Environment,
    environments::{
        BuildRequest, Built, EnvironmentView, EnvironmentsError, Listed, Owner, Selection, Teller,
    },
    names::{Principal, SessionName},
    packages::{EnvironmentName, PackageName, PythonVersion, Requirement},
    session::{DEFAULT_ENVIRONMENT, Packages},
    store::Approval,
    telemetry::spans,
    text::quoted,
    turn::Observer,
};

/// Bytes of a description.
const MAX_DESCRIPTION_BYTES: usize = 4 << 10;

/// Base images that say no more than a version of Python.
const BASE_IMAGES: [&str; 3] = ["python:", "docker.io/library/python:", "mcp-forge/python:"];

/// The parameters of the MCP tool `build_custom_environment`.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct BuildEnvironmentRequest {
    /// What to call it: lower-case letters, digits and hyphens. A name that is in use is given anew once the build is done.
    pub name: String,
    /// Packages as PEP 508 requirements, for example `["numpy>=2", "pandas"]`: names, extras and versions, from the index only.
    pub packages: Option<Vec<String>>,
    /// A template to begin with; the resource `mcp://forge/environments/list` has those that there are.
    pub template: Option<String>,
    /// Packages beside the template's.
    pub additional_packages: Option<Vec<String>>,
    /// Python's version, for example `3.12`. Default: that of the default environment.
    pub python_version: Option<String>,
    /// Another way to name the version: `python:3.11`.
    pub base_image: Option<String>,
    /// What it is for.
    pub description: Option<String>,
}

/// The answer to a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EnvironmentDeleted {
    /// Always true.
    pub success: bool,
    /// The environment that is gone.
    pub name: String,
}

impl BuildEnvironmentRequest {
    /// Reads a request from JSON.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Rejected`]; nothing has happened.
    pub fn from_json(parameters: Map<String, Value>) -> Result<Self, ServiceError> {
        let list = "a list of requirements, for example [\"numpy>=2\", \"pandas\"]";
        let mut fields = Fields::new("", parameters);
        let name: Option<String> = fields.take("name", "a name, for example \"my-ml-env\"")?;
        let request = Self {
            name: name.ok_or_else(|| {
                rejected(
                    "name",
                    "`name` is missing; pass a name, for example \"my-ml-env\".",
                )
            })?,
            packages: fields.take("packages", list)?,
            template: fields.take("template", "a template's name")?,
            additional_packages: fields.take("additional_packages", list)?,
            python_version: fields.take("python_version", "a version as a string, \"3.11\"")?,
            base_image: fields.take("base_image", "an image, for example \"python:3.11\"")?,
            description: fields.take("description", "a string")?,
        };
        fields.finish("parameter")?;
        Ok(request)
    }

    /// Reads every text in it.
    fn check(self) -> Result<BuildRequest, ServiceError> {
        let name = environment_name("name", &self.name)?;
        let template = self.template.as_deref();
        let template = template
            .map(|text| environment_name("template", text))
            .transpose()?;
        if template.is_none() && self.additional_packages.is_some() {
            return Err(rejected(
                "additional_packages",
                "`additional_packages` are added to a template's, and there is no `template`; pass them as `packages`.",
            ));
        }
        let lists = [
            ("packages", self.packages.unwrap_or_default()),
            (
                "additional_packages",
                self.additional_packages.unwrap_or_default(),
            ),
        ];
        let mut packages = Vec::new();
        for (field, texts) in &lists {
            for (place, text) in texts.iter().enumerate() {
                packages.push(Requirement::parse(text).map_err(|error| {
                    let field = format!("{field}[{place}]");
                    rejected(&field, format!("`{field}`: {error}."))
                })?);
            }
        }
        let description = self.description.unwrap_or_default();
        if description.len() > MAX_DESCRIPTION_BYTES {
            let message = format!(
                "`description` has {} bytes, more than the maximum of {MAX_DESCRIPTION_BYTES}; shorten it.",
                description.len()
            );
            return Err(rejected("description", message));
        }
        Ok(BuildRequest {
            name,
            template,
            packages,
            python: python(self.python_version.as_deref(), self.base_image.as_deref())?,
            description,
        })
    }
}

/// The version that either of two fields asks for.
fn python(
    version: Option<&str>,
    base_image: Option<&str>,
) -> Result<Option<PythonVersion>, ServiceError> {
    let version = version
        .map(|text| {
            PythonVersion::parse(text)
                .map_err(|error| rejected("python_version", format!("`python_version`: {error}.")))
        })
        .transpose()?;
    let Some(image) = base_image else {
        return Ok(version);
    };
    let tag = BASE_IMAGES
        .iter()
        .find_map(|start| image.strip_prefix(start));
    let tag = tag.map(|tag| tag.split('-').next().unwrap_or(tag));
    let of_image = tag.and_then(|tag| PythonVersion::parse(tag).ok()).ok_or_else(|| {
        let message = format!(
            "`base_image` is {}; pass \"python:3.11\" or another version, or leave it out: environments are built on the operator's own images.",
            quoted(image)
        );
        rejected("base_image", message)
    })?;
    if version.is_some_and(|version| version != of_image) {
        let message = format!(
            "`base_image` is {} and `python_version` another; leave one of them out.",
            quoted(image)
        );
        return Err(rejected("base_image", message));
    }
    Ok(Some(of_image))
}

/// Reads an environment's name.
///
/// # Errors
///
/// [`ServiceError::Rejected`].
pub(super) fn environment_name(field: &str, text: &str) -> Result<EnvironmentName, ServiceError> {
    EnvironmentName::from_image(text)
        .map_err(|error| rejected(field, format!("`{field}`: {error}.")))
}

impl Service {
    /// Builds an environment. `teller` says how far it is.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; what had the name before has it still.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the build and removes what it wrote.
    pub async fn build_environment(
        &self,
        principal: &Principal,
        request: BuildEnvironmentRequest,
        teller: &Teller,
    ) -> Result<Built, ServiceError> {
        let _awaited = self.awaited.token();
        let building = self.metrics.begin_build();
        let _spending = self.spending(principal, teller);
        let checked = request
            .check()
            .and_then(|request| self.may_use_cpu(principal).map(|()| request));
        let built = match checked {
            Ok(request) => {
                let span = spans::build(request.name.as_str(), principal);
                let building = self.environments.build(principal, request, teller);
                building.instrument(span).await
            }
            Err(error) => return building.end(Err(error)),
        };
        building.end(built.map_err(ServiceError::from))
    }

    /// Builds an environment's own request again.
    ///
    /// # Errors
    ///
    /// As [`Self::build_environment`].
    pub async fn rebuild_environment(
        &self,
        principal: &Principal,
        name: &str,
        teller: &Teller,
    ) -> Result<Built, ServiceError> {
        let name = environment_name("name", name)?;
        let _awaited = self.awaited.token();
        let building = self.metrics.begin_build();
        let _spending = self.spending(principal, teller);
        if let Err(error) = self.may_use_cpu(principal) {
            return building.end(Err(error));
        }
        let rebuilding = self.environments.rebuild(principal, &name, teller);
        let built = rebuilding
            .instrument(spans::build(name.as_str(), principal))
            .await;
        building.end(built.map_err(ServiceError::from))
    }

    /// A principal's environments, and the templates.
    ///
    /// # Errors
    ///
    /// [`ServiceError`].
    pub async fn list_environments(&self, principal: &Principal) -> Result<Listed, ServiceError> {
        Ok(self.environments.list(principal).await?)
    }

    /// One environment.
    ///
    /// # Errors
    ///
    /// [`ServiceError`].
    pub async fn environment_view(
        &self,
        principal: &Principal,
        name: &str,
    ) -> Result<EnvironmentView, ServiceError> {
        let name = environment_name("name", name)?;
        Ok(self.environments.info(principal, &name).await?)
    }

    /// Hears of changes to environments from now on, everybody's: the listener chooses.
    pub fn environment_changes(&self) -> broadcast::Receiver<Owner> {
        self.environments.changes()
    }

    /// Takes an environment's name away.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; it is there as before.
    pub async fn delete_environment(
        &self,
        principal: &Principal,
        name: &str,
    ) -> Result<EnvironmentDeleted, ServiceError> {
        let name = environment_name("name", name)?;
        self.environments.delete(principal, &name).await?;
        Ok(EnvironmentDeleted {
            success: true,
            name: name.to_string(),
        })
    }

    /// Lets packages in that wait for an approval. Who may is decided before.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; nothing more is approved.
    pub async fn approve_packages(
        &self,
        packages: &[String],
        by: &str,
    ) -> Result<(), ServiceError> {
        let packages = packages.iter().map(|text| package_name(text));
        let packages: Vec<PackageName> = packages.collect::<Result<_, _>>()?;
        Ok(self.environments.approve(&packages, by).await?)
    }

    /// Takes approvals, and requests for them, back.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; it stands.
    pub async fn revoke_approval(&self, package: &str, by: &str) -> Result<bool, ServiceError> {
        Ok(self
            .environments
            .revoke(&package_name(package)?, by)
            .await?)
    }

    /// The packages that were approved, or wait for it.
    ///
    /// # Errors
    ///
    /// [`ServiceError`].
    pub async fn approvals(&self) -> Result<Vec<Approval>, ServiceError> {
        Ok(self.environments.approvals().await?)
    }

    /// What a request's code is to find installed. A template that was not built is built now.
    pub(super) async fn environment_for(
        &self,
        principal: &Principal,
        checked: &Checked,
        observer: &mut dyn Observer,
    ) -> Result<Option<Arc<Environment>>, ServiceError> {
        match &checked.environment {
            // On the heap: a build's state is large, and most turns have none.
            Some(selection) => {
                let opening = Box::pin(self.open_environment(principal, selection, observer));
                Ok(Some(opening.await?))
            }
            None => Ok(None),
        }
    }

    /// The same for a session, which may have one already.
    pub(super) async fn packages_for(
        &self,
        name: &SessionName,
        checked: &Checked,
        observer: &mut dyn Observer,
    ) -> Result<Option<Packages>, ServiceError> {
        let selection = match &checked.environment {
            Some(selection) => Some(selection.clone()),
            None if checked.has_own_environment || self.sessions.is_live(name) => None,
            None => {
                let label = self.sessions.packages_of(name).await?;
                label.as_deref().and_then(Selection::from_label)
            }
        };
        let Some(selection) = selection else {
            return Ok(None);
        };
        let opening = Box::pin(self.open_environment(&name.principal, &selection, observer));
        let environment = opening.await?;
        Ok(Some(Packages {
            label: selection.label(),
            environment,
        }))
    }

    const fn spending<'a>(&'a self, principal: &'a Principal, teller: &'a Teller) -> Spending<'a> {
        Spending {
            service: self,
            principal,
            teller,
        }
    }

    async fn open_environment(
        &self,
        principal: &Principal,
        selection: &Selection,
        observer: &mut dyn Observer,
    ) -> Result<Arc<Environment>, ServiceError> {
        let (teller, mut told) = Teller::new();
        let _spending = self.spending(principal, &teller);
        let opening = self.environments.open(principal, selection, &teller);
        let mut opening = std::pin::pin!(opening);
        loop {
            tokio::select! {
                biased;
                opened = &mut opening => return Ok(opened?),
                Ok(()) = told.changed() => {
                    let progress = told.borrow_and_update().to_string();
                    observer.status(&format!("environment `{}`: {progress}", selection.name()));
                }
            }
        }
    }
}

/// A build, or an environment that may have to be built, for somebody. Dropped it is charged.
struct Spending<'a> {
    service: &'a Service,
    principal: &'a Principal,
    teller: &'a Teller,
}

impl Drop for Spending<'_> {
    fn drop(&mut self) {
        let took = self.teller.cpu_ms();
        self.service.metrics.build_took(took);
        self.service.ledger.charge(self.principal, took);
    }
}

/// Which environment a request means, and whether it says so at all.
pub(super) fn selected(
    request: &ExecuteRequest,
    is_template: impl Fn(&EnvironmentName) -> bool,
) -> Result<(Option<Selection>, bool), ServiceError> {
    let (field, text) = match (&request.custom_image, &request.environment) {
        (Some(_), Some(_)) => {
            return Err(rejected(
                "environment",
                "`custom_image` and `environment` are both there; pass one of them.",
            ));
        }
        (None, None) => return Ok((None, false)),
        (None, Some(text)) if text == DEFAULT_ENVIRONMENT => return Ok((None, true)),
        (Some(text), None) => ("custom_image", text),
        (None, Some(text)) => ("environment", text),
    };
    // No environment has a template's name: either field may say either.
    let name = environment_name(field, text)?;
    let selection = if is_template(&name) {
        Selection::Template(name)
    } else {
        Selection::Custom(name)
    };
    Ok((Some(selection), true))
}

fn package_name(text: &str) -> Result<PackageName, ServiceError> {
    PackageName::parse(text).map_err(|error| {
        let message = format!("`package` is {}: {error}.", quoted(text));
        rejected("package", message)
    })
}

impl From<EnvironmentsError> for ServiceError {
    fn from(error: EnvironmentsError) -> Self {
        match error {
            EnvironmentsError::Field { field, message } => rejected(field, message),
            EnvironmentsError::Launch(error) => Self::Launch(error),
            EnvironmentsError::Audit(error) => Self::Audit(error),
            error => Self::Environments(Box::new(error)),
        }
    }
}
