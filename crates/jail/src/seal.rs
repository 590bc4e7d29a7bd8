//! The seal: what a process does to itself last, after its surroundings are built and before it
//! reads a byte of the program. Everything here only ever takes away.

use crate::{
    Layers, capabilities,
    error::JailError,
    landlock, rlimits, seccomp,
    spec::{JailSpec, Layer},
};

/// Seals this process and all it will start, in order.
///
/// # Errors
///
/// The first required layer that could not be installed; the caller must exit at once.
pub(crate) fn seal(spec: &JailSpec, layers: &mut Layers<'_>) -> Result<(), JailError> {
    layers.step(Layer::Rlimits, || rlimits::set(&spec.limits))?;
    layers.step(Layer::Capabilities, capabilities::drop_all)?;
    layers.step(Layer::NoNewPrivs, no_new_privs)?;
    layers.step(Layer::Landlock, landlock::restrict)?;
    // Last: the calls that installed the rest are gone after it.
    layers.step(Layer::Seccomp, seccomp::install)
}

fn no_new_privs() -> Result<String, JailError> {
    rustix::thread::set_no_new_privs(true).map_err(JailError::at(Layer::NoNewPrivs, "prctl"))?;
    Ok("set-user-id and file capabilities are inert".to_owned())
}
