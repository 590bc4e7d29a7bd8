//! Named lists of packages to build environments from: those that are built in, and the operator's.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{environment_name::EnvironmentName, requirement::Requirement};

/// A named list of packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Template {
    /// What it is for.
    pub description: String,
    /// Its packages.
    pub packages: Vec<Requirement>,
}

/// All templates by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Templates(BTreeMap<EnvironmentName, Template>);

impl Templates {
    /// The four that are always there, unless the operator replaces them.
    pub fn built_in() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a template; one of the same name is replaced and given back.
    pub fn insert(&mut self, name: EnvironmentName, template: Template) -> Option<Template> {
        self.0.insert(name, template)
    }

    /// The template of this name.
    pub fn get(&self, name: &EnvironmentName) -> Option<&Template> {
        self.0.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&EnvironmentName, &Template)> {
        self.0.iter()
    }
}
