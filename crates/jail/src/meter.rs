//! Where the use of a living sandbox is read: by the server, which owes an answer before the end.

use std::{fs, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::watch;

/// Names what counts for one sandbox. Made by its keeper, read by the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meter {
    /// Pid 1 of the sandbox, as the host sees it.
    pub(crate) init: i32,
    /// Its cgroup's count of CPU time, and what this is divided by to give milliseconds.
    pub(crate) cpu: Option<(PathBuf, u64)>,
    /// Its cgroup's count of memory.
    pub(crate) memory_peak: Option<PathBuf>,
}

impl Meter {
    /// CPU time of all its processes so far, in milliseconds. Without a cgroup, of those that live
    /// and their ended children, and no finer than 10 ms.
    pub fn cpu_ms(&self) -> Option<u64> {
        match &self.cpu {
            Some((path, divisor)) => Some(count(path)? / divisor),
            None => Some(watch::children_cpu_ms(self.init)),
        }
    }

    /// Whether a cgroup counts, and holds, its memory.
    pub const fn is_counted(&self) -> bool {
        self.memory_peak.is_some()
    }

    /// Highest use of memory so far, in bytes, where a cgroup counts it.
    pub fn memory_peak(&self) -> Option<u64> {
        count(self.memory_peak.as_ref()?)
    }
}

/// The number in a file that holds one, or the one on its `usage_usec` line.
fn count(path: &PathBuf) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))
        .unwrap_or(&text);
    number.trim().parse().ok()
}
