//! What is to be built, and by which interpreter: a request, put together and within its limits.

use std::{collections::BTreeMap, path::PathBuf};

use sha2::{Digest, Sha256};

use super::{EnvironmentsError, Inner, uv};
use crate::{
    engine::native::{PythonSearch, find_python},
    packages::{EnvironmentName, Lock, PythonVersion, Requirement, Template},
    store::EnvironmentRecord,
};

/// What is to be built: every text in it was parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRequest {
    /// What it is to be called.
    pub name: EnvironmentName,
    /// The template to begin with.
    pub template: Option<EnvironmentName>,
    /// Packages beside the template's.
    pub packages: Vec<Requirement>,
    /// The version of Python; `None` for that of the default interpreter.
    pub python: Option<PythonVersion>,
    /// What the caller says of it.
    pub description: String,
}

/// All that a build needs to know beside what is asked of it.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Sorted, each once.
    pub(super) requirements: Vec<Requirement>,
    pub(super) python: PythonVersion,
    pub(super) interpreter: PathBuf,
}

impl Plan {
    /// Names all that decides what the same request would resolve to.
    pub(super) fn fingerprint(&self, inner: &Inner) -> String {
        let settings = &inner.settings;
        let mut hasher = Sha256::new();
        let mut add = |part: &str| {
            hasher.update(part.len().to_le_bytes());
            hasher.update(part);
        };
        add(&self.python.to_string());
        for requirement in &self.requirements {
            add(&requirement.to_string());
        }
        add(settings.index.expose());
        for index in &settings.extra_indexes {
            add(&index.name);
            add(index.url.expose());
            for package in &index.packages {
                add(package.as_str());
            }
        }
        add(&format!(
            "{:?} {:?}",
            settings.wheel_directory, settings.exclude_newer
        ));
        format!("{:x}", hasher.finalize())
    }
}

/// Sorts, and drops what is there twice.
pub(super) fn merged(requirements: impl IntoIterator<Item = Requirement>) -> Vec<Requirement> {
    let unique: BTreeMap<String, Requirement> = requirements
        .into_iter()
        .map(|requirement| (requirement.to_string(), requirement))
        .collect();
    unique.into_values().collect()
}

impl Inner {
    /// What led to a record.
    pub(super) fn request_of(
        record: &EnvironmentRecord,
    ) -> Result<BuildRequest, EnvironmentsError> {
        let damaged =
            |what: String| EnvironmentsError::Lock(format!("its record is damaged: {what}"));
        let packages = record
            .requested
            .iter()
            .map(|text| Requirement::parse(text).map_err(|error| damaged(error.to_string())));
        let name =
            |text: &str| EnvironmentName::parse(text).map_err(|error| damaged(error.to_string()));
        let python =
            PythonVersion::parse(&record.python).map_err(|error| damaged(error.to_string()))?;
        Ok(BuildRequest {
            name: name(&record.name)?,
            template: record.template.as_deref().map(name).transpose()?,
            packages: packages.collect::<Result<_, _>>()?,
            python: Some(python),
            description: record.description.clone(),
        })
    }

    pub(super) fn request_of_template(
        &self,
        name: &EnvironmentName,
    ) -> Result<BuildRequest, EnvironmentsError> {
        let template = self.template_named(name)?;
        Ok(BuildRequest {
            name: name.clone(),
            template: Some(name.clone()),
            packages: Vec::new(),
            python: None,
            description: template.description.clone(),
        })
    }

    fn template_named(&self, name: &EnvironmentName) -> Result<&Template, EnvironmentsError> {
        let templates = &self.settings.templates;
        templates.get(name).ok_or_else(|| {
            let known: Vec<String> = templates
                .iter()
                .map(|(name, _)| format!("`{name}`"))
                .collect();
            EnvironmentsError::UnknownTemplate {
                name: name.to_string(),
                known: known.join(", "),
            }
        })
    }

    /// Puts together what a request asks for, and finds the interpreter for it.
    pub(super) async fn plan(&self, request: &BuildRequest) -> Result<Plan, EnvironmentsError> {
        let template = request.template.as_ref();
        let template = template.map(|name| self.template_named(name)).transpose()?;
        let from_template = template.iter().flat_map(|template| &template.packages);
        let requirements = merged(from_template.chain(&request.packages).cloned());
        let most = self.settings.max_packages;
        let field = |message: String| EnvironmentsError::Field {
            field: "packages",
            message,
        };
        if requirements.is_empty() {
            return Err(field(
                "`packages` is empty; name at least one package, for example \"numpy>=2\", or a template.".to_owned(),
            ));
        }
        if requirements.len() > most {
            return Err(field(format!(
                "`packages` has {} packages, more than the {most} that `environment_builder.max_packages` allows; leave out what others need anyway.",
                requirements.len()
            )));
        }
        let (python, interpreter) = self.interpreter(request.python).await?;
        Ok(Plan {
            requirements,
            python,
            interpreter,
        })
    }

    /// As [`Self::plan`], to install a lock once more: of what was asked for no more is needed than
    /// which packages must import. A template may have changed since, or be gone.
    pub(super) async fn plan_again(
        &self,
        record: &EnvironmentRecord,
        lock: &Lock,
    ) -> Result<Plan, EnvironmentsError> {
        let request = Self::request_of(record)?;
        let (python, interpreter) = self.interpreter(Some(lock.python())).await?;
        Ok(Plan {
            requirements: merged(request.packages),
            python,
            interpreter,
        })
    }

    async fn interpreter(
        &self,
        wanted: Option<PythonVersion>,
    ) -> Result<(PythonVersion, PathBuf), EnvironmentsError> {
        let version = |(_, minor, _): (u32, u32, u32)| PythonVersion::parse(&format!("3.{minor}"));
        let own = self.jobs.python(None).await?;
        let has =
            version(own.version).map_err(|error| EnvironmentsError::Python(error.to_string()))?;
        let Some(wanted) = wanted.filter(|wanted| *wanted != has) else {
            return Ok((has, own.executable));
        };
        let uv = uv::find(self.settings.uv.as_deref()).ok();
        let search = PythonSearch {
            // It was asked above, and is another version.
            configured: None,
            paths: &self.settings.python_paths,
            uv: uv.as_deref(),
            may_download: self.settings.python_downloads,
        };
        let found = find_python((3, wanted.minor()), search).await;
        found
            .map(|python| (wanted, python.executable))
            .map_err(|error| EnvironmentsError::Python(error.to_string()))
    }
}
