//! What one sandbox may use: the numbers, and the bounds an operator puts on them.

use std::time::Duration;

use serde::Serialize;

/// What a turn may use. Every number is in force or the response says `best_effort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Wall-clock time from code sent to result received.
    pub timeout: Duration,
    /// Memory of all processes together, in bytes, files in `/tmp` and `/workspace` included.
    pub memory_bytes: u64,
    /// Microseconds of CPU time per 100 ms; 100000 is one whole core.
    pub cpu_quota_us: u64,
    /// Processes and threads alive at once.
    pub pids: u64,
    /// Bytes that `/workspace` and `/tmp` may hold; never more than a part of the memory.
    pub storage_bytes: u64,
}

/// The limits as a response shows them.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct LimitsView {
    /// Seconds.
    pub timeout: f64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Microseconds per 100 ms.
    pub cpu_quota: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Bytes.
    pub storage_bytes: u64,
}

impl From<&Limits> for LimitsView {
    fn from(limits: &Limits) -> Self {
        Self {
            timeout: limits.timeout.as_secs_f64(),
            memory_bytes: limits.memory_bytes,
            cpu_quota: limits.cpu_quota_us,
            pids: limits.pids,
            storage_bytes: limits.storage_bytes,
        }
    }
}
