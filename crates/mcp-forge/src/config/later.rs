//! Settings whose features come later: their types and ranges are checked today, so that a file
//! written now stays valid.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// What the operator wrote for environments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Later {
    /// `security.allow_network`. Sandboxes have no network whatever it says.
    pub allow_network: bool,
    /// `environment_builder`.
    pub builder: Builder,
    /// `packages`.
    pub packages: Packages,
}

/// What building environments may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Builder {
    /// Whether anything may be built.
    pub enabled: bool,
    /// The cache of `uv`.
    pub uv_cache_path: PathBuf,
    /// Packages of one environment.
    pub max_packages: usize,
    /// Time for one build.
    pub max_build_time: Duration,
    /// Bytes of a built environment.
    pub max_image_size: u64,
    /// Builds at once.
    pub max_concurrent_builds: usize,
    /// Builds in one period.
    pub rate_requests: u64,
    /// That period.
    pub rate_period: Duration,
    /// Directory with further templates.
    pub templates_path: Option<PathBuf>,
    /// Templates of this file, by name.
    pub templates: BTreeMap<String, Template>,
}

/// A named list of packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// What it is for.
    pub description: String,
    /// PEP 508 requirements.
    pub packages: Vec<String>,
}

/// Which packages may be installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packages {
    /// These need no approval.
    pub allowlist: Vec<String>,
    /// These never.
    pub blocklist: Vec<String>,
    /// These patterns need the operator's approval.
    pub manual_approval: Vec<String>,
}
