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

/// Name, what it is for, and packages.
const BUILT_IN: [(&str, &str, &[&str]); 4] = [
    (
        "ml-basic",
        "Basic ML stack (numpy, pandas, scikit-learn)",
        &["numpy>=1.24.0", "pandas>=2.0.0", "scikit-learn>=1.3.0"],
    ),
    (
        "ml-advanced",
        "Advanced ML with deep learning (tensorflow, torch)",
        &[
            "numpy>=1.24.0",
            "pandas>=2.0.0",
            "scikit-learn>=1.3.0",
            "tensorflow>=2.13.0",
            "torch>=2.0.0",
        ],
    ),
    (
        "data-science",
        "Full data science stack (pandas, matplotlib, seaborn, jupyter)",
        &[
            "numpy>=1.24.0",
            "pandas>=2.0.0",
            "matplotlib>=3.7.0",
            "seaborn>=0.12.0",
            "jupyter>=1.0.0",
        ],
    ),
    (
        "web-scraping",
        "Web scraping tools (requests, beautifulsoup4, lxml, selenium)",
        &[
            "requests>=2.31.0",
            "beautifulsoup4>=4.12.0",
            "lxml>=4.9.0",
            "selenium>=4.11.0",
        ],
    ),
];

impl Templates {
    /// The four that are always there, unless the operator replaces them.
    pub fn built_in() -> Self {
        let templates = BUILT_IN.iter().filter_map(|(name, description, packages)| {
            // A test reads all of them: none is left out.
            let name = EnvironmentName::parse(name).ok()?;
            let packages: Result<_, _> = packages
                .iter()
                .map(|package| Requirement::parse(package))
                .collect();
            let description = (*description).to_owned();
            let packages = packages.ok()?;
            Some((
                name,
                Template {
                    description,
                    packages,
                },
            ))
        });
        Self(templates.collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_of_the_specification_are_there() {
        let templates = Templates::built_in();
        let names: Vec<&str> = templates.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["data-science", "ml-advanced", "ml-basic", "web-scraping"]
        );
        for (name, _, packages) in BUILT_IN {
            let name = EnvironmentName::parse(name).unwrap();
            let template = templates.get(&name).unwrap();
            assert!(!template.description.is_empty());
            let written: Vec<String> = template.packages.iter().map(ToString::to_string).collect();
            assert_eq!(written, packages);
        }
    }

    #[test]
    fn the_operators_template_replaces_one_of_the_same_name() {
        let mut templates = Templates::built_in();
        let name = EnvironmentName::parse("ml-basic").unwrap();
        let own = Template {
            description: "ours".to_owned(),
            packages: vec![Requirement::parse("numpy").unwrap()],
        };
        assert!(templates.insert(name.clone(), own.clone()).is_some());
        assert_eq!(templates.get(&name), Some(&own));
        assert_eq!(templates.iter().count(), 4);
    }
}
