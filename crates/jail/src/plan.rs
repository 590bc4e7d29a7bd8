//! The plan of a fork's seal: numbers, options and the narrow filter, made once by the keeper.

use crate::{
    error::JailError,
    raw,
    seal::{MOST_INSTRUCTIONS, MOST_LIMITS, Plan, Start, Step},
    seccomp,
    spec::{GATEWAY_PORT, JailLimits, JobAccess, Layer, State},
};

/// What the kernel's Landlock knows: 0 where there is none.
fn landlock_version() -> usize {
    const VERSION: usize = 1;
    raw::integers(
        raw::number::LANDLOCK_CREATE_RULESET,
        [0, 0, VERSION, 0, 0, 0],
    )
    .unwrap_or(0)
}

/// Makes the plan for sandboxes with these limits. `stand_in` says which limits no cgroup holds.
///
/// # Errors
///
/// The filter could not be compiled or does not fit.
pub(crate) fn make(limits: &JailLimits, counted: bool) -> Result<Plan, JailError> {
    let mut plan = Plan::EMPTY;
    let directories = [limits.tmp_bytes, limits.workspace_bytes, limits.shm_bytes];
    for (index, (place, bytes)) in plan.directories.iter_mut().zip(directories).enumerate() {
        let mode = if index == 1 { "755" } else { "1777" };
        let options = crate::rootfs::tmpfs_options(bytes, mode);
        place[..options.len()].copy_from_slice(options.as_bytes());
    }
    for (place, (resource, soft, hard)) in plan
        .limits
        .iter_mut()
        .zip(crate::rlimits::table(limits, counted))
    {
        *place = [resource, soft, hard];
        plan.limit_count += 1;
    }
    set_landlock(&mut plan, landlock_version());
    let filter = seccomp::narrow().map_err(|error| JailError::Step {
        layer: Layer::Seccomp,
        step: "compile the narrow filter".to_owned(),
        source: std::io::Error::other(error),
    })?;
    if filter.len() > MOST_INSTRUCTIONS {
        return Err(JailError::Launch(format!(
            "the narrow filter has {} instructions",
            filter.len()
        )));
    }
    for (place, instruction) in plan.filter.iter_mut().zip(&filter) {
        *place = seccomp::words(instruction);
    }
    plan.instruction_count = filter.len() as u64;
    for (layer, bit) in OMITTED {
        if crate::omitted(layer) {
            plan.skip |= 1 << bit;
        }
    }
    Ok(plan)
}

/// Adds what a build job may, and its bound on files.
pub(crate) fn add_job(plan: &mut Plan, job: &JobAccess) {
    plan.job_port = GATEWAY_PORT.into();
    let count = usize::try_from(plan.limit_count).unwrap_or(MOST_LIMITS);
    if let Some(place) = plan.limits.get_mut(count) {
        *place = [libc::RLIMIT_FSIZE.into(), job.file_bytes, job.file_bytes];
        plan.limit_count += 1;
    }
}

/// What a test build can leave out of a fork. The rest of the layers a fork has from its zygote.
const OMITTED: [(Layer, u8); 12] = [
    (Layer::PidNamespace, Start::PidNamespace as u8),
    // Nobody may mount a proc for pids that are not their own: the zygote's stays in sight.
    (Layer::PidNamespace, Step::Proc as u8),
    (Layer::NetworkNamespace, Start::Network as u8),
    (Layer::ProcSubset, Start::ProcSubset as u8),
    (Layer::Descriptors, Start::Descriptors as u8),
    // Then the directories are the zygote's: one set for all its forks.
    (Layer::MountNamespace, Step::Directories as u8),
    (Layer::CgroupNamespace, Step::CgroupView as u8),
    (Layer::Rlimits, Step::Limits as u8),
    (Layer::Capabilities, Step::Capabilities as u8),
    (Layer::NoNewPrivs, Step::NoNewPrivs as u8),
    (Layer::Landlock, Step::Landlock as u8),
    (Layer::Seccomp, Step::Seccomp as u8),
];

/// All rights that this kernel knows are taken; reading and executing is given back.
///
/// Forks of a zygote share its empty network, which costs as much as all else together to make
/// anew. Names of abstract sockets belong to the network, so that is only for kernels whose
/// Landlock keeps one fork from connecting to another's (6.12 and later).
fn set_landlock(plan: &mut Plan, version: usize) {
    const READING: u64 = 1 | 1 << 2 | 1 << 3;
    const SCOPES: usize = 6;
    let files = match version {
        0 | 1 => (1 << 13) - 1,
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    };
    let (network, scopes) = (
        if version >= 4 { 3 } else { 0 },
        if version >= SCOPES { 3 } else { 0 },
    );
    plan.landlock = [files, network, scopes, READING];
    plan.landlock_bytes = match version {
        0..=3 => 8,
        4 | 5 => 16,
        _ => 24,
    };
    if version >= SCOPES {
        plan.skip |= 1 << Start::Network as u8;
    }
    if version == 0 {
        plan.skip |= 1 << Step::Landlock as u32;
    }
}

/// Whether the seal restricts files by Landlock, and how much.
pub(crate) fn describe_landlock(plan: &Plan) -> (State, String) {
    if plan.skip & (1 << Step::Landlock as u32) != 0 {
        return (
            State::Missing,
            "this kernel does not offer Landlock".to_owned(),
        );
    }
    (
        State::Enforced,
        "all rights that this kernel knows".to_owned(),
    )
}

/// The layer that a step of the seal belongs to.
pub(crate) fn layer_of(step: i32) -> Layer {
    match step {
        0 => Layer::ProcSubset,
        1 => Layer::MountNamespace,
        2 => Layer::Rlimits,
        3 => Layer::Capabilities,
        4 => Layer::NoNewPrivs,
        5 => Layer::Landlock,
        7 => Layer::CgroupNamespace,
        _ => Layer::Seccomp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hole, once: forks shared a network on every kernel, and on most of those in use nothing
    /// kept one sandbox from connecting to the abstract sockets of another.
    #[test]
    fn forks_share_a_network_only_where_landlock_keeps_abstract_sockets_apart() {
        let shares = |version| {
            let mut plan = Plan::EMPTY;
            set_landlock(&mut plan, version);
            !plan.has(Start::Network as u8)
        };
        let sharing: Vec<usize> = (0..9).filter(|version| shares(*version)).collect();
        assert_eq!(sharing, [6, 7, 8]);
    }
}
