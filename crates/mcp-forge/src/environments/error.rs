//! Why an environment could not be built or used.

use std::{fmt, io, path::PathBuf};

use serde::Serialize;

use crate::{
    audit::AuditError,
    engine::{EnvironmentError as TreeError, LaunchError},
    store::StoreError,
};

/// Packages that one message names.
const MOST_NAMED: usize = 10;

/// An environment could not be built or used. What had the name before has it still, and what a
/// failed build wrote is removed.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentsError {
    /// The operator allows no builds.
    #[error(
        "environments cannot be built here: `environment_builder.enabled` is false in the server's configuration"
    )]
    Disabled,
    /// There is none of that name, or it is another principal's: the same answer for both.
    #[error("there is no environment `{0}`; list_custom_environments shows those that there are")]
    Unknown(String),
    /// There is no such template.
    #[error("there is no template `{name}`; there are {known}")]
    UnknownTemplate {
        /// As asked for.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A field is wrong.
    #[error("{message}")]
    Field {
        /// Which.
        field: &'static str,
        /// One sentence: the field, the value, the fix.
        message: String,
    },
    /// The rules forbid packages.
    #[error("the build was refused: {}", list(.0))]
    Refused(Vec<Refusal>),
    /// Packages wait for the operator's approval.
    #[error(
        "the build waits for an approval: {}. The operator approves with `mcp-forge env approve NAME`; then build again",
        list(.0)
    )]
    NeedsApproval(Vec<Refusal>),
    /// The principal has made as many builds as it may.
    #[error(
        "as many builds as may be, {builds} in {period_s} s, were made for you; build again in {wait_s} s"
    )]
    TooManyBuilds {
        /// How many it may make.
        builds: u64,
        /// In how many seconds.
        period_s: u64,
        /// Until when, in seconds from now.
        wait_s: u64,
    },
    /// There is no `uv` that can be used.
    #[error("environments are built with uv, {0}")]
    Uv(String),
    /// There is no interpreter of that version.
    #[error("{0}")]
    Python(String),
    /// `uv` found no set of versions, or could not reach the index.
    #[error("the packages cannot be resolved: {0}")]
    Resolve(String),
    /// What `uv` resolved to is not what may be installed.
    #[error("what the packages resolve to cannot be installed: {0}")]
    Lock(String),
    /// `uv` could not install the lock.
    #[error("the packages cannot be installed: {0}")]
    Install(String),
    /// It would take, or takes, more than it may.
    #[error(
        "the environment {takes} more than the {most} that `environment_builder.max_image_size` allows; leave packages out"
    )]
    TooLarge {
        /// `takes`, or how much there would be to download.
        takes: String,
        /// How much it may.
        most: String,
    },
    /// The build was not done in time.
    #[error(
        "the build was not done after {0} s, the most that `environment_builder.max_build_time` allows; what was downloaded is kept, so trying again may do"
    )]
    TimedOut(u64),
    /// Packages were installed whose modules cannot be imported.
    #[error("the packages were installed and cannot be used: {0}")]
    Import(String),
    /// A scanner found what the operator does not want.
    #[error("the build was refused by the vulnerability scan: {0}")]
    Vulnerable(String),
    /// The published tree cannot be used.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// No sandbox could be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The audit log cannot be written: nothing was built.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// A directory cannot be used.
    #[error("{} cannot be used: {source}", path.display())]
    Files {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// A package that the rules do not let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Refusal {
    /// The package, or the requirement as it was written.
    pub package: String,
    /// The rule, as the configuration has it: `packages.blocklist: os-sys`.
    pub rule: String,
    /// One sentence.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {} ({})", self.package, self.reason, self.rule)
    }
}

fn list(refusals: &[Refusal]) -> String {
    let named: Vec<String> = refusals
        .iter()
        .take(MOST_NAMED)
        .map(ToString::to_string)
        .collect();
    let more = match refusals.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!("{}{more}", named.join(", "))
}

impl EnvironmentsError {
    /// Whether the caller can mend it: the same request would be refused again.
    pub const fn is_callers(&self) -> bool {
        matches!(
            self,
            Self::Unknown(_)
                | Self::UnknownTemplate { .. }
                | Self::Field { .. }
                | Self::Refused(_)
                | Self::NeedsApproval(_)
                | Self::Resolve(_)
                | Self::Lock(_)
                | Self::TooLarge { .. }
                | Self::Import(_)
                | Self::Vulnerable(_)
        )
    }
}
