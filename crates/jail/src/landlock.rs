//! Landlock: a second opinion on every file access, independent of mounts, and a wall between
//! abstract sockets and signals of different sandboxes.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::{error::JailError, spec::Layer};

/// The newest kernel interface whose rights are named here. Older kernels enforce what they know.
const NEWEST: ABI = ABI::V7;

/// Restricts this process and all it will ever start.
pub(crate) fn restrict() -> Result<String, JailError> {
    let status = ruleset()
        .and_then(landlock::RulesetCreated::restrict_self)
        .map_err(|error| JailError::Step {
            layer: Layer::Landlock,
            step: "restrict_self".to_owned(),
            source: std::io::Error::other(error.to_string()),
        })?;
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok("all rights of ABI 7".to_owned()),
        RulesetStatus::PartiallyEnforced => Ok("the rights this kernel knows".to_owned()),
        RulesetStatus::NotEnforced => Err(JailError::Step {
            layer: Layer::Landlock,
            step: "the kernel has no Landlock".to_owned(),
            source: std::io::ErrorKind::Unsupported.into(),
        }),
    }
}

fn ruleset() -> Result<landlock::RulesetCreated, landlock::RulesetError> {
    let everything = AccessFs::from_all(NEWEST);
    let read = AccessFs::from_read(NEWEST);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(everything)?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    // Paths that are missing here (a test build without a layer) grant nothing.
    for (path, access) in [
        ("/", read),
        ("/tmp", everything),
        ("/workspace", everything),
        ("/dev/shm", everything),
        ("/dev", read | AccessFs::WriteFile),
        ("/proc", read | AccessFs::WriteFile),
    ] {
        if let Ok(path) = PathFd::new(path) {
            rules = rules.add_rule(PathBeneath::new(path, access))?;
        }
    }
    Ok(rules)
}
