//! Why a request was not run.

use crate::{
    audit::AuditError, bridge::GrantError, engine::LaunchError, environments::EnvironmentsError,
    policy::Violation, session::SessionError,
};

/// A request that was not run, or could not be. What the code itself did is never an error here:
/// it is the response's `outcome`.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A field is wrong. Nothing ran.
    #[error("{message}")]
    Rejected {
        /// The field, as a path: `limits.memory`.
        field: String,
        /// One sentence: the field, the value, the fix.
        message: String,
    },
    /// A field asks for what nobody may have. Nothing ran, and the audit log says who asked.
    #[error("{message}")]
    Forbidden {
        /// The field.
        field: String,
        /// One sentence: the field, the value, the fix.
        message: String,
    },
    /// A session could not do what it was asked; see the error for what it means.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// An environment could not be built or used; see the error for what it means. No code ran.
    #[error(transparent)]
    Environments(Box<EnvironmentsError>),
    /// There is no such tool.
    #[error("there is no tool `{0}`; mcp://forge/tools/available lists those that there are")]
    UnknownTool(String),
    /// Nothing is kept for that name.
    #[error("there is no state for `{0}`")]
    NoContext(String),
    /// The kept state was written by somebody else meanwhile. It is as they left it.
    #[error(
        "the state of `{session_id}` has version {version} now (0: there is none); read it again, and write with that version"
    )]
    ContextVersion {
        /// What it is kept for.
        session_id: String,
        /// The version that there is.
        version: i64,
    },
    /// No further state is kept.
    #[error("{0} states are kept already, as many as may be; remove some")]
    TooManyContexts(i64),
    /// Too many files are on their way.
    #[error("{0} files are on their way already, as many as may be; wait for their answers")]
    TooManyUploads(usize),
    /// Too many executions at once. Nothing ran; the same request may succeed later.
    #[error(
        "the server is busy: all of its sandboxes ({running}) are in use and {why}. Try again in a moment"
    )]
    Busy {
        /// How many may run.
        running: usize,
        /// Why this one cannot wait.
        why: String,
    },
    /// The principal has used the CPU time that it may use in an hour. Nothing ran.
    #[error(
        "you have used the {per_hour} CPU seconds that you may use in an hour; there are some again in {wait_s} s"
    )]
    CpuQuota {
        /// CPU seconds an hour.
        per_hour: u32,
        /// Seconds.
        wait_s: u64,
    },
    /// A tool was asked for that cannot be granted. Nothing ran.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// No sandbox could be started. Nothing ran.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The audit log could not be written or read. What it should have recorded did not run.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The kernel gave no random bytes for an execution's name. Nothing ran.
    #[error("no random bytes from the kernel: {0}")]
    Random(#[from] rustix::io::Errno),
    /// A sandbox ran, but did not describe itself; asking again tries again.
    #[error("the sandbox did not describe its environment: {0}")]
    Environment(String),
}

impl ServiceError {
    /// The rule of the allow-list that was hit, by a call's sandbox or by its session's.
    pub(super) const fn violation(&self) -> Option<&Violation> {
        match self {
            Self::Launch(LaunchError::Forbidden(violation))
            | Self::Session(SessionError::Launch(LaunchError::Forbidden(violation))) => {
                Some(violation)
            }
            _ => None,
        }
    }

    /// Whether the caller can mend it: the same request would be refused again.
    pub fn is_callers(&self) -> bool {
        match self {
            Self::Rejected { .. }
            | Self::Forbidden { .. }
            | Self::UnknownTool(_)
            | Self::NoContext(_)
            | Self::ContextVersion { .. }
            | Self::TooManyContexts(_)
            | Self::Grant(GrantError::Unknown { .. }) => true,
            Self::Session(error) => error.is_callers(),
            Self::Environments(error) => error.is_callers(),
            _ => false,
        }
    }

    /// Whether its text may name places of this machine: for the log, not for a network.
    pub fn is_internal(&self) -> bool {
        match self {
            Self::Audit(_) | Self::Random(_) => true,
            Self::Session(error) => matches!(
                error,
                SessionError::Store(_) | SessionError::Audit(_) | SessionError::Files(_)
            ),
            Self::Environments(error) => matches!(
                **error,
                EnvironmentsError::Store(_)
                    | EnvironmentsError::Audit(_)
                    | EnvironmentsError::Files { .. }
                    | EnvironmentsError::Tree(_)
                    | EnvironmentsError::Uv(_)
            ),
            _ => false,
        }
    }

    /// What a network is told of an error that is [internal](Self::is_internal).
    pub fn in_short(&self) -> &'static str {
        match self {
            Self::Environments(error) if matches!(**error, EnvironmentsError::Uv(_)) => {
                "This server has no uv that it can use, so it builds nothing; its log says why."
            }
            _ => "The server could not do it; its log says why.",
        }
    }

    /// The process that runs the session, if that is why this one refused.
    pub fn elsewhere(&self) -> Option<i64> {
        match self {
            Self::Session(SessionError::Elsewhere { pid, .. }) => Some(*pid),
            _ => None,
        }
    }
}
