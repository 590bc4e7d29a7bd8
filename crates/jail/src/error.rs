//! Why a jail could not be entered.

use std::io;

use crate::spec::Layer;

/// Entering the jail failed. Whatever the variant, no byte of the program was executed, and the
/// process that was to run it exits.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// A step of a layer failed. If the layer is required, the sandbox is refused.
    #[error("{layer}: {step}: {source}", layer = layer.name())]
    Step {
        /// The layer.
        layer: Layer,
        /// What was tried.
        step: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The server's message was not a launch. The jail exits without having made anything.
    #[error("the launch message could not be read: {0}")]
    Launch(String),
    /// The program could not be started. The sandbox is torn down.
    #[error("cannot execute {program}: {source}")]
    Execute {
        /// Path inside the sandbox.
        program: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl JailError {
    /// Makes the closure that turns a kernel answer into a [`JailError::Step`].
    pub(crate) fn at<E: Into<io::Error>>(
        layer: Layer,
        step: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let step = step.into();
        move |source| Self::Step {
            layer,
            step,
            source: source.into(),
        }
    }
}
