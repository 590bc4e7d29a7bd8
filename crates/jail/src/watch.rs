//! What `/proc` tells of a sandbox: who belongs to it, what they hold, what they used.
//!
//! Where no cgroup counts, this stands in for one. Best effort, and reported as such: what grows
//! and dies between two looks is not seen.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::fd::OwnedFd,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, Signal},
};

/// Bytes in a kilobyte of `/proc` files.
const KIB: u64 = 1024;

/// Whose processes are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Members {
    /// Of a whole sandbox, whose init this is.
    Sandbox(i32),
    /// Of one interpreter among several in a sandbox: its descendants, and the members of its
    /// POSIX session whose parents are gone.
    Program { init: i32, leader: i32 },
}

impl Members {
    /// Their pids, of all that are in this list. A pid namespace's orphans go to its init, so that
    /// the family of an init is complete.
    fn among(self, processes: &[Process]) -> Vec<i32> {
        match self {
            Self::Sandbox(init) => descendants(vec![init], processes),
            Self::Program { init, leader } => {
                // A number that is used again outside means nobody here.
                let sandbox: HashSet<i32> =
                    descendants(vec![init], processes).into_iter().collect();
                let of_session = processes
                    .iter()
                    .filter(|process| process.session == leader || process.pid == leader)
                    .map(|process| process.pid)
                    .filter(|pid| sandbox.contains(pid));
                descendants(of_session.collect(), processes)
            }
        }
    }

    /// Whether together they hold more memory than this right now.
    pub(crate) fn hold_more_than(self, limit_bytes: u64) -> bool {
        let family = self.among(&processes());
        // Cheap first: counts pages that forks share once for each process.
        let rough: u64 = family.iter().map(|pid| memory_of(*pid)).sum();
        if rough <= limit_bytes {
            return false;
        }
        let fair: u64 = family
            .iter()
            .filter_map(|pid| field(*pid, "smaps_rollup", &["Pss:"]))
            .sum();
        fair > limit_bytes
    }

    /// CPU time of all that live, in milliseconds: for the report of a sandbox without a cgroup,
    /// whose killed processes leave no count behind.
    pub(crate) fn cpu_ms(self) -> u64 {
        in_ms(self.among(&processes()).into_iter().filter_map(ticks_of))
    }

    /// Kills them all.
    pub(crate) fn kill(self) {
        for pid in self
            .among(&processes())
            .into_iter()
            .filter_map(Pid::from_raw)
        {
            rustix::process::kill_process(pid, Signal::KILL).ok();
        }
    }

    /// Whether none is alive.
    pub(crate) fn are_gone(self) -> bool {
        let processes = processes();
        let family = self.among(&processes);
        !processes
            .iter()
            .any(|process| process.is_alive && family.contains(&process.pid))
    }
}

/// These and all their descendants, once each.
fn descendants(mut family: Vec<i32>, processes: &[Process]) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in processes {
        children
            .entry(process.parent)
            .or_default()
            .push(process.pid);
    }
    let mut next = 0;
    while let Some(pid) = family.get(next).copied() {
        family.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    family.sort_unstable();
    family.dedup();
    family
}

/// CPU time of a sandbox's program, orphans and what they waited for, in milliseconds. With
/// `program`, of that one among several: of it and the orphans of its session.
pub(crate) fn children_cpu_ms(init: i32, program: Option<i32>) -> u64 {
    let is_counted = |pid: &i32| {
        program.is_none_or(|program| {
            Process::read(*pid).is_some_and(|process| process.session == program)
        })
    };
    let children = children_of(init).into_iter().filter(is_counted);
    in_ms(children.filter_map(ticks_of))
}

fn in_ms(ticks: impl Iterator<Item = u64>) -> u64 {
    // USER_HZ, which the kernel fixes at 100 for programs.
    ticks.sum::<u64>() * 10
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

/// Anonymous and shared memory of one process, in bytes; what it shares with others included.
fn memory_of(pid: i32) -> u64 {
    field(pid, "status", &["RssAnon:", "RssShmem:"]).unwrap_or(0)
}

/// Sends SIGINT to the program of a sandbox.
pub(crate) fn interrupt(init: i32) {
    if let Some((_, handle)) = child(init, PROGRAM) {
        rustix::process::pidfd_send_signal(&handle, Signal::INT).ok();
    }
}

/// Pid of a sandbox's program in its namespace: it is the first that init starts.
pub(crate) const PROGRAM: i32 = 2;

/// The child of a sandbox's init that has this number in the sandbox: its pid here, and a handle.
pub(crate) fn child(init: i32, inner: i32) -> Option<(i32, OwnedFd)> {
    let is_it = |pid: &i32| inner_pid(*pid) == Some(inner);
    let pid = children_of(init).into_iter().find(is_it)?;
    let handle = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    // The number may be another process's by now: what the handle holds is looked at again.
    let is_child = Process::read(pid).is_some_and(|process| process.parent == init);
    (is_child && is_it(&pid)).then_some((pid, handle))
}

/// Whether the process of a pidfd has not ended.
pub(crate) fn is_alive(handle: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(handle, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&Timespec::default())) == Ok(0)
}

fn children_of(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let pids = children.split_whitespace();
    pids.filter_map(|pid| pid.parse().ok()).collect()
}

/// A process's number in the innermost namespace that it is in.
fn inner_pid(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// One process, as its `stat` has it.
#[derive(Debug, Clone, Copy)]
struct Process {
    pid: i32,
    parent: i32,
    session: i32,
    /// Not waiting to be reaped.
    is_alive: bool,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain anything, parentheses included.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        Some(Self {
            pid,
            is_alive: !matches!(fields.next()?, "Z" | "X"),
            parent: fields.next()?.parse().ok()?,
            session: fields.nth(1)?.parse().ok()?,
        })
    }
}

/// Every process of the host.
fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Process::read).collect()
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

    /// Pid, parent and session.
    fn list<const N: usize>(processes: [(i32, i32, i32); N]) -> [Process; N] {
        processes.map(|(pid, parent, session)| Process {
            pid,
            parent,
            session,
            is_alive: true,
        })
    }

    #[test]
    fn a_sandbox_is_found_through_all_generations() {
        let processes = list([
            (10, 1, 10),
            (11, 10, 11),
            (12, 11, 12),
            (13, 1, 13),
            (14, 12, 14),
            (15, 10, 15),
        ]);
        let family = Members::Sandbox(10).among(&processes);
        assert_eq!(family, [10, 11, 12, 14, 15]);
    }

    #[test]
    fn one_program_of_a_sandbox_has_its_descendants_and_the_orphans_of_its_session() {
        let processes = list([
            (10, 1, 10),
            (11, 10, 11),
            (12, 11, 11),
            // An orphan, and a daemon that it started.
            (13, 10, 11),
            (14, 13, 14),
            // A copy of the program, and a child of that.
            (20, 10, 20),
            (21, 20, 20),
            (30, 1, 30),
            (31, 30, 30),
        ]);
        let members = |leader| Members::Program { init: 10, leader }.among(&processes);
        assert_eq!(members(11), [11, 12, 13, 14]);
        assert_eq!(members(20), [20, 21]);
        // The number of one that is gone may be a stranger's by now.
        assert!(members(30).is_empty());
    }

    #[test]
    fn our_own_memory_is_more_than_a_page_and_less_than_the_machine() {
        let own = Members::Sandbox(i32::try_from(std::process::id()).unwrap());
        assert!(own.hold_more_than(4096));
        assert!(!own.hold_more_than(1 << 50));
        assert!(!own.are_gone());
    }
}
