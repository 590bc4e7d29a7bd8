//! The one address of a build job: a listener on its own loopback, which the server answers.
//!
//! A socket belongs to the network that it was made in. The server gets the descriptor and accepts;
//! the job connects, and has no route to anything else.

use std::{
    net::{Ipv4Addr, TcpListener},
    os::fd::OwnedFd,
};

use crate::{
    error::JailError,
    omitted,
    spec::{GATEWAY_PORT, Layer},
    sys,
};

/// Brings this network's loopback up and listens on it.
///
/// # Errors
///
/// The kernel's answer; a job without its listener must not run.
pub(crate) fn open() -> Result<OwnedFd, JailError> {
    let failed = |step: &str| JailError::at(Layer::NetworkNamespace, step.to_owned());
    // A test build that stays in the host's network finds its loopback up.
    if !omitted(Layer::NetworkNamespace) {
        sys::bring_loopback_up().map_err(failed("bring the loopback up"))?;
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, GATEWAY_PORT))
        .map(OwnedFd::from)
        .map_err(failed("listen for the job"))
}

/// For the report.
pub(crate) fn describe() -> String {
    format!("then up, with one listener that the server answers: 127.0.0.1:{GATEWAY_PORT}")
}
