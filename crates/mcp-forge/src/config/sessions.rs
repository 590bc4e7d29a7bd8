//! What sessions may use and how long they live.

use std::{path::PathBuf, time::Duration};

/// How a request runs that names neither backend nor session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// In a fresh sandbox.
    Simple,
    /// In a new session.
    Jupyter,
}

/// `sessions`: how many there may be, how long they live, what is kept of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionsConfig {
    /// Idle for so long, a session ends. Default 1 h.
    pub idle_timeout: Duration,
    /// Alive for so long, a session ends whatever it does. Default 1 day.
    pub max_lifetime: Duration,
    /// Sessions alive at once in this process. Default 10.
    pub max_concurrent: usize,
    /// Of these, sessions of one principal. Default 10.
    pub max_per_principal: usize,
    /// Time between looks for sessions to end. Default 5 min.
    pub cleanup_interval: Duration,
    /// Calls that may wait for one session. Default 16.
    pub queue_length: usize,
    /// Files of a session that are kept on the host. Default 1000.
    pub max_files: usize,
    /// Whether the history holds code, not only its hash. Default false.
    pub keep_code: bool,
    /// Executions of a session that are remembered. Default 1000.
    pub keep_history: u32,
    /// Unused for so long, a session is forgotten. Default 30 days.
    pub keep_ended: Duration,
}

/// `volumes`: what may be copied into a session, and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumesConfig {
    /// Holds `sessions`, `shared/readonly` and `uploads`.
    pub base_path: PathBuf,
    /// Bytes of a session's files on the host. Default 1 GiB.
    pub session_quota: u64,
    /// Bytes that a session may ask for at most.
    pub max_session_quota: u64,
}
