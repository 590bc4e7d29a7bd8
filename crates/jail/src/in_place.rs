//! Sealing in place: the end of the list for a program of its own, and for a zygote.

use crate::{
    Layers,
    error::JailError,
    omitted, plan, rlimits,
    seal::{self, Plan, Step},
    seccomp::{self, Table},
    spec::{JailSpec, Layer, State},
};

/// Seals init and the one program it will start, as a fork of a zygote seals itself.
///
/// # Errors
///
/// The first required layer that could not be installed; the caller must exit at once.
pub(crate) fn seal(spec: &JailSpec, layers: &mut Layers<'_>) -> Result<(), JailError> {
    layers.step(Layer::NoNewPrivs, no_new_privs)?;
    let table = if spec.job.is_some() {
        Table::Job
    } else {
        Table::Code
    };
    layers.step(Layer::Seccomp, || seccomp::install(table))?;
    let mut plan = plan::make(&spec.limits, true)?;
    if let Some(job) = &spec.job {
        plan::add_job(&mut plan, job);
    }
    // These surroundings were built with the root.
    for step in [Step::CgroupView, Step::Proc, Step::Directories] {
        plan.skip |= 1 << step as u32;
    }
    require_landlock(&spec.required, &plan)?;
    seal::seal(&plan).map_err(|(step, errno)| JailError::Step {
        layer: plan::layer_of(step as i32),
        step: format!("seal, step {step:?}"),
        source: std::io::Error::from_raw_os_error(errno),
    })?;
    layers.sealed(
        Layer::Rlimits,
        State::Enforced,
        rlimits::describe(&spec.limits),
    );
    layers.sealed(
        Layer::Capabilities,
        State::Enforced,
        "all sets empty, secure bits locked".to_owned(),
    );
    let (state, detail) = plan::describe_landlock(&plan);
    layers.sealed(Layer::Landlock, state, detail);
    Ok(())
}

/// What a zygote does to itself: its forks must still be able to build their own surroundings.
/// No Landlock, which would forbid their mounts; they restrict themselves.
///
/// # Errors
///
/// As [`seal()`].
pub(crate) fn prepare_zygote(spec: &JailSpec, layers: &mut Layers<'_>) -> Result<(), JailError> {
    layers.step(Layer::NoNewPrivs, no_new_privs)?;
    layers.step(Layer::Seccomp, || seccomp::install(Table::Code))?;
    // Only what its forks do not need: a fork has all capabilities in a namespace of its own.
    let mut plan = plan::make(&spec.limits, true)?;
    require_landlock(&spec.required, &plan)?;
    plan.skip |= !(1 << Step::Capabilities as u32);
    seal::seal(&plan).map_err(|(step, errno)| JailError::Step {
        layer: plan::layer_of(step as i32),
        step: format!("seal, step {step:?}"),
        source: std::io::Error::from_raw_os_error(errno),
    })?;
    layers.sealed(
        Layer::Capabilities,
        State::Enforced,
        "all sets empty, secure bits locked".to_owned(),
    );
    Ok(())
}

/// Refuses where Landlock is required and the kernel has none: a fork's seal leaves out what is not
/// there, so that its zygote must not come to be.
fn require_landlock(required: &[Layer], plan: &Plan) -> Result<(), JailError> {
    let missing = plan::describe_landlock(plan).0 == State::Missing;
    if missing && required.contains(&Layer::Landlock) && !omitted(Layer::Landlock) {
        let unsupported = std::io::Error::from(std::io::ErrorKind::Unsupported);
        return Err(JailError::at(Layer::Landlock, "the kernel has no Landlock")(unsupported));
    }
    Ok(())
}

fn no_new_privs() -> Result<String, JailError> {
    rustix::thread::set_no_new_privs(true).map_err(JailError::at(Layer::NoNewPrivs, "prctl"))?;
    Ok("set-user-id and file capabilities are inert".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hole, once: zygotes did not ask, and their forks ran without a layer that was required.
    #[test]
    fn what_requires_landlock_gets_nothing_without_it() {
        let with = Plan::EMPTY;
        let mut without = Plan::EMPTY;
        without.skip = 1 << Step::Landlock as u32;
        assert!(require_landlock(&Layer::ALL, &with).is_ok());
        assert!(require_landlock(&[], &without).is_ok());
        let refused = require_landlock(&Layer::ALL, &without);
        assert!(
            matches!(
                refused,
                Err(JailError::Step {
                    layer: Layer::Landlock,
                    ..
                })
            ),
            "{refused:?}"
        );
    }
}
