//! Why a session could not do what it was asked.

use crate::{
    audit::AuditError,
    engine::{BranchError, LaunchError},
    names::SessionId,
    store::StoreError,
};

/// A session could not do what it was asked. Unless the variant says otherwise, no code ran and
/// nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is none of that name, or it is another principal's: the same answer for both.
    #[error("there is no session `{0}`; list_sessions shows those that there are")]
    Unknown(SessionId),
    /// No further session may live here.
    #[error(
        "there are {most} sessions alive, as many as there may be; end one with delete_session{advice}"
    )]
    Full {
        /// How many there may be.
        most: usize,
        /// Which ones are idle.
        advice: String,
    },
    /// Too many calls wait for this one.
    #[error(
        "session `{id}` is busy and {waiting} calls wait for it already; wait for their answers, or use another session"
    )]
    Busy {
        /// Its name.
        id: SessionId,
        /// How many wait.
        waiting: usize,
    },
    /// It lives in another server.
    #[error(
        "session `{id}` lives in another mcp-forge server (pid {pid}); use it there, end that server, or choose another name"
    )]
    Elsewhere {
        /// Its name.
        id: SessionId,
        /// That process.
        pid: i64,
    },
    /// The name for a new session is taken.
    #[error("there is a session `{0}` already; choose another name or delete it first")]
    Exists(SessionId),
    /// It has no live interpreter.
    #[error("session `{0}` has no live interpreter; run something in it first")]
    NotLive(SessionId),
    /// Limits other than those that it was started with.
    #[error(
        "session `{0}` is running with other limits; limits are fixed when a session starts. Leave `limits` out, or delete the session first"
    )]
    LimitsFixed(SessionId),
    /// Packages other than those that it was started with.
    #[error(
        "session `{id}` is running with {has}; what it runs with is fixed when it starts. Leave `custom_image` and `environment` out, or delete the session first"
    )]
    PackagesFixed {
        /// Its name.
        id: SessionId,
        /// What it runs with, in words.
        has: String,
    },
    /// It ended while the call waited for it.
    #[error("session `{id}` ended before the call was made: {reason}")]
    Ended {
        /// Its name.
        id: SessionId,
        /// Why.
        reason: String,
    },
    /// The caller interrupted the call while it waited for others.
    #[error("the call was interrupted before its code ran; session `{0}` goes on")]
    Interrupted(SessionId),
    /// No sandbox could be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A sandbox was started, but its interpreter was not usable. It is gone.
    #[error("the session's interpreter did not start: {0}")]
    Start(String),
    /// A volume could not be copied in. The code did not run; some of its files may be there.
    #[error("the volumes could not be copied into the session: {0}")]
    Volumes(String),
    /// More documentation than is kept.
    #[error("{0}")]
    Documentation(String),
    /// No copy could be made; the session goes on.
    #[error(transparent)]
    Branch(#[from] BranchError),
    /// The interpreter refused to be copied; the session goes on.
    #[error("session `{id}` cannot be forked now: {reason}")]
    NotForkable {
        /// Its name.
        id: SessionId,
        /// The runner's words, which name what is in the way.
        reason: String,
    },
    /// There is no such file.
    #[error("session `{id}` has no file `{path}` that is kept: {reason}")]
    NoFile {
        /// Its name.
        id: SessionId,
        /// As it was asked for.
        path: String,
        /// The system's answer.
        reason: String,
    },
    /// That is no path below `/workspace`.
    #[error(
        "`{0}` is no path of a file below /workspace: it is relative, without empty parts, `.`, `..` and null bytes, each part 255 bytes at most"
    )]
    BadPath(String),
    /// A file has more bytes than it may; nothing of it is there.
    #[error("the file has more than {0}, the most that one may have")]
    TooLarge(String),
    /// The session's files would be more than it may have.
    #[error(
        "session `{id}` would have more than {what}, the most that are kept; remove some files first"
    )]
    NoRoom {
        /// Its name.
        id: SessionId,
        /// How much it may have.
        what: String,
    },
    /// There is something of that name; it is as it was.
    #[error(
        "session `{id}` has something called `{path}` already; say overwrite=true to replace a file"
    )]
    FileExists {
        /// Its name.
        id: SessionId,
        /// As it was asked for.
        path: String,
    },
    /// The sandbox did not take a file; nothing of it is there.
    #[error("`{path}` cannot be written in session `{id}`: {reason}")]
    NotWritten {
        /// Its name.
        id: SessionId,
        /// As it was asked for.
        path: String,
        /// The runner's words.
        reason: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The audit log cannot be written.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The place for the session's files cannot be used.
    #[error("the place for the session's files cannot be used: {0}")]
    Files(std::io::Error),
    /// The kernel gave no random bytes for a name.
    #[error("no random bytes from the kernel: {0}")]
    Random(#[from] rustix::io::Errno),
}

impl SessionError {
    /// Whether the caller can mend it: the same call would be refused again.
    pub fn is_callers(&self) -> bool {
        matches!(
            self,
            Self::Unknown(_)
                | Self::Exists(_)
                | Self::NotLive(_)
                | Self::LimitsFixed(_)
                | Self::PackagesFixed { .. }
                | Self::Documentation(_)
                | Self::NotForkable { .. }
                | Self::NoFile { .. }
                | Self::BadPath(_)
                | Self::TooLarge(_)
                | Self::NoRoom { .. }
                | Self::FileExists { .. }
                | Self::NotWritten { .. }
        )
    }
}
