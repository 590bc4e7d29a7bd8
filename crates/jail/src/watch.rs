//! The memory watch: where no cgroup counts, looks at every process of a sandbox and adds up.
//!
//! Best effort, and reported as such: what grows and dies between two looks is not seen.

use std::{collections::HashMap, fs};

use rustix::process::{Pid, PidfdFlags, Signal};

/// Bytes in a kilobyte of `/proc` files.
const KIB: u64 = 1024;

/// Watches all descendants of one process.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    init: i32,
    limit_bytes: u64,
}

impl MemoryWatch {
    pub(crate) fn new(init: i32, limit_bytes: u64) -> Self {
        Self { init, limit_bytes }
    }

    /// Whether the processes together hold more than the limit right now.
    pub(crate) fn exceeded(&self) -> bool {
        self.exceeded_in(&parents())
    }

    /// As [`Self::exceeded`], in a list of processes that serves several watches.
    pub(crate) fn exceeded_in(&self, parents: &[(i32, i32)]) -> bool {
        let family = family_of(self.init, parents);
        // Cheap first: counts pages that forks share once for each process.
        let rough: u64 = family
            .iter()
            .filter_map(|pid| field(*pid, "status", &["RssAnon:", "RssShmem:"]))
            .sum();
        if rough <= self.limit_bytes {
            return false;
        }
        let fair: u64 = family
            .iter()
            .filter_map(|pid| field(*pid, "smaps_rollup", &["Pss:"]))
            .sum();
        fair > self.limit_bytes
    }
}

/// CPU time of a living family, in milliseconds: for the report of a sandbox without a cgroup,
/// whose killed processes leave no count behind.
pub(crate) fn cpu_ms(init: i32) -> u64 {
    let ticks: u64 = family_of(init, &parents())
        .into_iter()
        .filter_map(ticks_of)
        .sum();
    // USER_HZ, which the kernel fixes at 100 for programs.
    ticks * 10
}

/// CPU time of a sandbox's program, orphans and what they waited for, in milliseconds.
pub(crate) fn children_cpu_ms(init: i32) -> u64 {
    let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children"));
    let ticks: u64 = children
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|pid| ticks_of(pid.parse().ok()?))
        .sum();
    ticks * 10
}

/// Own time and that of children that were waited for.
fn ticks_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some(
        fields
            .skip(11)
            .take(4)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum(),
    )
}

/// Kills a whole family, for a sandbox without a cgroup whose init is kept from dying.
pub(crate) fn kill(init: i32) {
    for pid in family_of(init, &parents())
        .into_iter()
        .filter_map(Pid::from_raw)
    {
        rustix::process::kill_process(pid, Signal::KILL).ok();
    }
}

/// Sends SIGINT to the program of a sandbox: pid 2 of its namespace, the first that init starts.
pub(crate) fn interrupt(init: i32) {
    let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children"));
    let program = children
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .find(|pid| is_program(*pid));
    let Some(pid) = program.and_then(Pid::from_raw) else {
        return;
    };
    // The number may be another process's by now: what the descriptor holds is looked at again.
    if let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        && is_program(pid.as_raw_nonzero().get())
    {
        rustix::process::pidfd_send_signal(&handle, Signal::INT).ok();
    }
}

fn is_program(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let inner = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:")?.split_whitespace().last());
    inner == Some("2")
}

/// Every process of the host with its parent. A pid namespace's orphans go to its init, so the
/// family of an init is complete.
pub(crate) fn parents() -> Vec<(i32, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name in parentheses may contain anything, parentheses included.
            let parent = stat
                .rsplit_once(')')?
                .1
                .split_whitespace()
                .nth(1)?
                .parse()
                .ok()?;
            Some((pid, parent))
        })
        .collect()
}

fn family_of(init: i32, parents: &[(i32, i32)]) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for (pid, parent) in parents {
        children.entry(*parent).or_default().push(*pid);
    }
    let mut family = vec![init];
    let mut next = 0;
    while let Some(pid) = family.get(next).copied() {
        family.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    family
}

fn field(pid: i32, file: &str, names: &[&str]) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let value = |line: &str| -> Option<u64> { line.split_whitespace().nth(1)?.parse().ok() };
    let sum = text
        .lines()
        .filter(|line| names.iter().any(|name| line.starts_with(name)))
        .filter_map(value)
        .sum::<u64>();
    Some(sum * KIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_found_through_all_generations() {
        let mut family = family_of(
            10,
            &[(10, 1), (11, 10), (12, 11), (13, 1), (14, 12), (15, 10)],
        );
        family.sort_unstable();
        assert_eq!(family, [10, 11, 12, 14, 15]);
    }

    #[test]
    fn our_own_memory_is_more_than_a_page_and_less_than_the_machine() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(MemoryWatch::new(own, 4096).exceeded());
        assert!(!MemoryWatch::new(own, 1 << 50).exceeded());
    }
}
