//! Where the use of a living sandbox is read: by the server, which owes an answer before the end.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use serde::{Deserialize, Serialize};

use crate::watch;

/// Names what counts for one sandbox. Made by its keeper, read by the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meter {
    /// Pid 1 of the sandbox, as the host sees it.
    pub(crate) init: i32,
    /// The interpreter that is meant, where it is one of several in its sandbox.
    pub(crate) program: Option<i32>,
    /// Its cgroup's count of CPU time, and what this is divided by to give milliseconds.
    pub(crate) cpu: Option<(PathBuf, u64)>,
    /// Its cgroup's count of memory.
    pub(crate) memory_peak: Option<PathBuf>,
}

impl Meter {
    /// Of a container that another program made on this machine: `init` is its first process, and
    /// `name` a part of its cgroup's path that no other has. None where that process is not here, as
    /// with a service in a virtual machine.
    pub fn of_container(init: i32, name: &str) -> Option<Self> {
        let listed = std::fs::read_to_string(format!("/proc/{init}/cgroup")).ok()?;
        Self::in_cgroups(init, name, &listed)
    }

    fn in_cgroups(init: i32, name: &str, listed: &str) -> Option<Self> {
        // A line is a number, the controllers, and the path; version 2 has no controllers.
        let directory = |controller: &str| {
            let line = listed.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                let has = controllers.split(',').any(|name| name == controller);
                (has && path.contains(name)).then_some((controllers, path))
            });
            let (controllers, path) = line?;
            let mount = Path::new("/sys/fs/cgroup").join(controllers);
            Some(mount.join(path.trim_start_matches('/')))
        };
        if let (Some(memory), cpu) = (directory("memory"), directory("cpuacct")) {
            return Some(Self {
                init,
                program: None,
                cpu: cpu.map(|cpu| (cpu.join("cpuacct.usage"), 1_000_000)),
                memory_peak: Some(memory.join("memory.max_usage_in_bytes")),
            });
        }
        directory("").map(|unified| Self {
            init,
            program: None,
            cpu: Some((unified.join("cpu.stat"), 1_000)),
            memory_peak: Some(unified.join("memory.peak")),
        })
    }

    /// CPU time of all its processes so far, in milliseconds. Without a cgroup, of those that live
    /// and their ended children, and no finer than 10 ms.
    pub fn cpu_ms(&self) -> Option<u64> {
        self.open().cpu_ms()
    }

    /// Highest use of memory so far, in bytes, where a cgroup counts it.
    pub fn memory_peak(&self) -> Option<u64> {
        self.open().memory_peak()
    }

    /// Whether a cgroup counts, and holds, its memory.
    pub const fn is_counted(&self) -> bool {
        self.memory_peak.is_some()
    }

    /// Looks the files up, once for all readings: that takes longer than to read them.
    pub fn open(&self) -> OpenMeter {
        let open = |path: &PathBuf| File::open(path).ok();
        OpenMeter {
            init: self.init,
            program: self.program.map_or_else(OnceLock::new, OnceLock::from),
            cpu: self
                .cpu
                .as_ref()
                .map(|(path, divisor)| (open(path), *divisor)),
            memory_peak: self.memory_peak.as_ref().and_then(open),
            memory_now: self.memory_peak.as_deref().and_then(beside_peak),
        }
    }
}

/// A meter whose files are open.
#[derive(Debug)]
pub struct OpenMeter {
    init: i32,
    program: OnceLock<i32>,
    cpu: Option<(Option<File>, u64)>,
    memory_peak: Option<File>,
    /// Opened when it is asked for: that is seldom.
    memory_now: Option<PathBuf>,
}

impl OpenMeter {
    /// As [`Meter::cpu_ms`].
    pub fn cpu_ms(&self) -> Option<u64> {
        match &self.cpu {
            Some((file, divisor)) => Some(count(file.as_ref()?)? / divisor),
            None => Some(watch::children_cpu_ms(
                self.init,
                self.program.get().copied(),
            )),
        }
    }

    /// As [`Meter::memory_peak`].
    pub fn memory_peak(&self) -> Option<u64> {
        count(self.memory_peak.as_ref()?)
    }

    /// Use of memory at this moment, in bytes, where a cgroup counts it.
    pub fn memory_now(&self) -> Option<u64> {
        count(&File::open(self.memory_now.as_ref()?).ok()?)
    }

    /// Counts the sandbox's first interpreter alone from now on: there are copies of it, with
    /// meters of their own.
    pub fn narrow(&self) {
        if self.cpu.is_none()
            && self.program.get().is_none()
            && let Some((pid, _)) = watch::child(self.init, watch::PROGRAM)
        {
            // Somebody else would have found the same one.
            let _ = self.program.set(pid);
        }
    }

    /// As [`Meter::is_counted`].
    pub const fn is_counted(&self) -> bool {
        self.memory_peak.is_some()
    }
}

/// The file with the present use, beside the one with the highest.
fn beside_peak(peak: &Path) -> Option<PathBuf> {
    let now = match peak.file_name()?.to_str()? {
        "memory.max_usage_in_bytes" => "memory.usage_in_bytes",
        _ => "memory.current",
    };
    Some(peak.with_file_name(now))
}

/// The number in a file that holds one, or the one on its `usage_usec` line, which is the first.
fn count(file: &File) -> Option<u64> {
    let mut space = [0; 64];
    let length = file.read_at(&mut space, 0).ok()?;
    let text = std::str::from_utf8(&space[..length]).ok()?;
    let line = text.lines().next()?;
    let number = line.strip_prefix("usage_usec ").unwrap_or(line);
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containers_cgroups_are_found_in_both_versions() {
        let old = "5:memory:/parent/libpod-abc\n4:cpu,cpuacct:/parent/libpod-abc\n0::/other\n";
        let meter = Meter::in_cgroups(7, "abc", old).unwrap();
        let memory = "/sys/fs/cgroup/memory/parent/libpod-abc/memory.max_usage_in_bytes";
        assert_eq!(meter.memory_peak.as_deref(), Some(Path::new(memory)));
        let cpu = "/sys/fs/cgroup/cpu,cpuacct/parent/libpod-abc/cpuacct.usage";
        assert_eq!(meter.cpu, Some((cpu.into(), 1_000_000)));
        let new = "0::/user.slice/libpod-abc.scope\n";
        let meter = Meter::in_cgroups(7, "abc", new).unwrap();
        let memory = "/sys/fs/cgroup/user.slice/libpod-abc.scope/memory.peak";
        assert_eq!(meter.memory_peak.as_deref(), Some(Path::new(memory)));
    }

    #[test]
    fn the_present_use_of_memory_is_beside_the_highest_in_both_versions() {
        let now = |peak: &str| beside_peak(Path::new(peak)).unwrap();
        assert_eq!(
            now("/m/memory.max_usage_in_bytes"),
            Path::new("/m/memory.usage_in_bytes")
        );
        assert_eq!(now("/u/memory.peak"), Path::new("/u/memory.current"));
    }

    #[test]
    fn a_process_in_the_cgroup_of_another_is_not_taken_for_the_container() {
        assert_eq!(Meter::in_cgroups(7, "abc", "0::/user.slice/mine\n"), None);
        assert_eq!(Meter::in_cgroups(7, "abc", "5:memory:/\n0::/\n"), None);
    }
}
