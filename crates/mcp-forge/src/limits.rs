//! What one sandbox may use: the numbers, and how a response shows them.

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
    /// Bytes that `/workspace`, and again `/tmp`, may hold, if the memory allows.
    pub storage_bytes: u64,
}

impl Limits {
    /// Bytes of `/workspace`, and again of `/tmp`: files there are memory, and stay charged when
    /// their writer is gone, so both together leave the interpreter more than half.
    pub fn directory_bytes(&self) -> u64 {
        self.storage_bytes.min(self.memory_bytes / 5)
    }

    /// Whether a sandbox for these will do for the others: the server keeps the time itself.
    pub fn are_alike(&self, other: &Self) -> bool {
        let timeout = self.timeout;
        *self
            == Self {
                timeout,
                ..other.clone()
            }
    }

    /// Bytes of `/dev/shm`.
    pub fn shared_memory_bytes(&self) -> u64 {
        self.memory_bytes / 8
    }
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
    /// Bytes of `/workspace`, and again of `/tmp`; part of the memory.
    pub storage_bytes: u64,
}

impl From<&Limits> for LimitsView {
    fn from(limits: &Limits) -> Self {
        Self {
            timeout: limits.timeout.as_secs_f64(),
            memory_bytes: limits.memory_bytes,
            cpu_quota: limits.cpu_quota_us,
            pids: limits.pids,
            storage_bytes: limits.directory_bytes(),
        }
    }
}
