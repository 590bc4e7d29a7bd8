//! Cgroups that are used again: to make and remove those of v1 costs more than a fork.

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use super::{Cgroup, CgroupError, Host, Version};
use crate::spec::JailLimits;

/// Cgroups kept for later use, at most.
const MOST_KEPT: usize = 64;

/// Bytes that may still be charged to a cgroup that is given to the next sandbox: kernel objects
/// that outlive their processes for a while.
const MOST_LEFT_OVER: u64 = 1 << 20;

/// For all of them to be removed at the end. Nobody waits for that.
const PATIENCE: Duration = Duration::from_secs(10);

/// The cgroups of one keeper's sandboxes.
pub(crate) struct Stock {
    host: Host,
    /// Begins the name of each.
    name: String,
    made: u64,
    /// Empty, and as new.
    kept: Vec<(JailLimits, Cgroup)>,
    /// Busy when their sandbox ended, or unfit for another.
    leftovers: Vec<Cgroup>,
}

impl Stock {
    /// Looks at the host once. Makes none yet.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            host: Host::read(),
            name: name.to_owned(),
            made: 0,
            kept: Vec::new(),
            leftovers: Vec::new(),
        }
    }

    /// An empty cgroup with these limits.
    ///
    /// # Errors
    ///
    /// Why the host gives none.
    pub(crate) fn take(&mut self, limits: &JailLimits) -> Result<Cgroup, CgroupError> {
        while let Some(place) = self.kept.iter().rposition(|(with, _)| with == limits) {
            let (_, cgroup) = self.kept.swap_remove(place);
            if cgroup.exists() {
                return Ok(cgroup);
            }
            // Whoever cleans up by hand sees an empty cgroup. Others hold the rest of it.
            self.leftovers.push(cgroup);
        }
        self.made += 1;
        let id = format!("{}-{}", self.name, self.made);
        let mut cgroup = Cgroup::create_at(&self.host, &id, limits)?;
        cgroup.hold();
        Ok(cgroup)
    }

    /// Has one with these limits ready.
    pub(crate) fn provide(&mut self, limits: &JailLimits) {
        if let Ok(cgroup) = self.take(limits) {
            self.kept.push((*limits, cgroup));
        }
    }

    /// Takes back the cgroup of a sandbox whose every process is gone.
    pub(crate) fn give_back(&mut self, limits: JailLimits, cgroup: Cgroup, is_fit: bool) {
        if is_fit && self.kept.len() < MOST_KEPT && cgroup.reset().is_ok() {
            self.kept.push((limits, cgroup));
            return;
        }
        self.leftovers.push(cgroup);
        self.leftovers = std::mem::take(&mut self.leftovers)
            .into_iter()
            .filter_map(Cgroup::try_remove)
            .collect();
    }

    /// Removes every one that is in no use.
    pub(crate) fn remove(self) {
        let deadline = Instant::now() + PATIENCE;
        let kept = self.kept.into_iter().map(|(_, cgroup)| cgroup);
        for cgroup in kept.chain(self.leftovers) {
            cgroup.remove(deadline);
        }
    }
}

impl Cgroup {
    /// Makes it as good as new. Only on v1: v2's counts cannot be set back, a `cgroup.kill` stays
    /// in force for what enters later, and making one is cheap there.
    fn reset(&self) -> io::Result<()> {
        for directory in &self.directories {
            if directory.version == Version::Two {
                return Err(io::Error::from(io::ErrorKind::Unsupported));
            }
            if directory.controllers.contains(&"memory") {
                empty(&directory.path)?;
                fs::write(directory.path.join("memory.max_usage_in_bytes"), "0")?;
            }
            if directory.controllers.contains(&"cpuacct") {
                fs::write(directory.path.join("cpuacct.usage"), "0")?;
            }
        }
        Ok(())
    }
}

/// Sees to it that next to nothing is charged to a memory cgroup without processes.
fn empty(directory: &Path) -> io::Result<()> {
    let is_empty = || {
        let usage = fs::read_to_string(directory.join("memory.usage_in_bytes"));
        let usage: io::Result<u64> = usage.map(|text| text.trim().parse().unwrap_or(u64::MAX));
        usage.map(|bytes| bytes <= MOST_LEFT_OVER)
    };
    if is_empty()? {
        return Ok(());
    }
    fs::write(directory.join("memory.force_empty"), "0")?;
    if is_empty()? {
        return Ok(());
    }
    Err(io::Error::from(io::ErrorKind::ResourceBusy))
}

#[cfg(test)]
mod tests {
    use super::{super::v2::Hierarchy, *};

    #[test]
    fn one_that_somebody_removed_is_not_given_out() {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().to_owned();
        let controllers = ["memory", "pids", "cpu"];
        fs::write(own.join("cgroup.subtree_control"), controllers.join(" ")).unwrap();
        let mut stock = Stock {
            host: Host {
                one: Vec::new(),
                two: Some(Hierarchy {
                    own,
                    controllers: controllers.map(str::to_owned).to_vec(),
                }),
            },
            ..Stock::new("test")
        };
        let limits = JailLimits {
            memory_bytes: 1,
            cpu_quota_us: 1,
            pids: 1,
            tmp_bytes: 0,
            workspace_bytes: 0,
            shm_bytes: 0,
            cpu_seconds: 0,
        };
        let first = place.path().join("mcp-forge-test-1");
        stock.provide(&limits);
        stock.provide(&limits);
        assert!(stock.kept.len() == 1 && first.exists());
        fs::remove_dir_all(first).unwrap();
        let taken = stock.take(&limits).unwrap();
        assert!(taken.exists() && stock.kept.is_empty());
        assert!(place.path().join("mcp-forge-test-2").exists());
    }
}
