//! Capabilities: none to use, none to gain.

use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use crate::{error::JailError, spec::Layer, sys};

/// Empties every capability set and locks the door: not even uid 0 or a file capability brings
/// one back.
pub(crate) fn drop_all() -> Result<String, JailError> {
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    rustix::thread::set_capabilities_secure_bits(bits).map_err(failed("lock the secure bits"))?;
    // By number, until the kernel knows no more: a newer kernel may have some we cannot name.
    let mut capability = 0;
    while sys::drop_from_bounding_set(capability).map_err(failed("empty the bounding set"))? {
        capability += 1;
    }
    rustix::thread::clear_ambient_capability_set().map_err(failed("empty the ambient set"))?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )
    .map_err(failed("empty the sets"))?;
    Ok("all sets empty, secure bits locked".to_owned())
}

fn failed<E: Into<std::io::Error>>(step: &str) -> impl FnOnce(E) -> JailError {
    JailError::at(Layer::Capabilities, step)
}
