//! Control groups: the kernel's limits for a whole sandbox, on v2, v1 and hybrid hosts.

use std::{
    fs, io,
    os::fd::{BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    process::{Pid, Signal},
};

use crate::{meter::Meter, spec::JailLimits};

mod stock;
mod v1;
mod v2;

pub(crate) use stock::Stock;

/// Prefix of every directory made here: what a crashed keeper left can be told from others'.
const PREFIX: &str = "mcp-forge-";

/// No cgroup could be made; nothing is left of the attempt.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No hierarchy with a memory and a pids controller is mounted.
    #[error("no cgroup hierarchy with memory and pids controllers is mounted")]
    NotMounted,
    /// v2 without delegation: our own cgroup may not have children with controllers.
    #[error("the cgroup {path} is not delegated to this user")]
    NotDelegated {
        /// Our own cgroup.
        path: PathBuf,
    },
    /// v1 directories belong to root.
    #[error("cgroup v1 is writable by root only ({path})")]
    NotRoot {
        /// The directory that could not be made.
        path: PathBuf,
    },
    /// A limit could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// One sandbox's cgroup: a directory in one hierarchy (v2) or several (v1).
#[derive(Debug)]
pub struct Cgroup {
    directories: Vec<Directory>,
    /// Wakes the keeper when memory runs out.
    events: Option<OwnedFd>,
    /// Opened when a process is first to be moved in by another thread.
    entrances: Option<Arc<[fs::File]>>,
}

/// A directory in one hierarchy.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    controllers: Vec<&'static str>,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Cgroup {
    /// Makes a cgroup with these limits, empty.
    ///
    /// # Errors
    ///
    /// Why the host gives none.
    pub fn create(id: &str, limits: &JailLimits) -> Result<Self, CgroupError> {
        Self::create_at(&Host::read(), id, limits)
    }

    fn create_at(host: &Host, id: &str, limits: &JailLimits) -> Result<Self, CgroupError> {
        let name = format!("{PREFIX}{id}");
        let two = host.two.as_ref().filter(|two| two.has_controllers());
        let mut cgroup = Self {
            directories: Vec::new(),
            events: None,
            entrances: None,
        };
        let made = match two {
            Some(two) => v2::create(two, &name, limits, &mut cgroup),
            None => v1::create(&host.one, &name, limits, &mut cgroup),
        };
        match made {
            Ok(()) => Ok(cgroup),
            Err(error) => {
                // It was never used: nothing keeps it busy.
                cgroup.remove(Instant::now());
                Err(error)
            }
        }
    }

    /// Moves a process in. Called once, before it has done anything: a migration later is slow
    /// and misses memory that is already charged.
    ///
    /// # Errors
    ///
    /// The kernel's answer; the process must be killed.
    pub fn add(&self, pid: i32) -> Result<(), CgroupError> {
        for directory in &self.directories {
            write(&directory.path.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// The file of each hierarchy that takes in a process whose number is written to it.
    ///
    /// # Errors
    ///
    /// The kernel's answer.
    pub(crate) fn entrances(&mut self) -> io::Result<Arc<[fs::File]>> {
        if let Some(entrances) = &self.entrances {
            return Ok(Arc::clone(entrances));
        }
        let open = |directory: &Directory| {
            let path = directory.path.join("cgroup.procs");
            fs::OpenOptions::new().write(true).open(path)
        };
        let entrances: Arc<[fs::File]> = self
            .directories
            .iter()
            .map(open)
            .collect::<io::Result<_>>()?;
        self.entrances = Some(Arc::clone(&entrances));
        Ok(entrances)
    }

    /// Keeps it from [`remove_stale`] while it is empty, for as long as this process has it.
    fn hold(&mut self) {
        // What cannot be opened is told when a process is to enter it.
        if let Ok(entrances) = self.entrances() {
            for entrance in &*entrances {
                flock(entrance, FlockOperation::NonBlockingLockShared).ok();
            }
        }
    }

    /// Whether all of it is still there.
    fn exists(&self) -> bool {
        let mut directories = self.directories.iter();
        directories.all(|directory| directory.path.exists())
    }

    /// Whether a controller (`memory`, `cpu`, `pids`) holds here.
    pub fn has(&self, controller: &str) -> bool {
        self.directories
            .iter()
            .any(|directory| directory.controllers.contains(&controller))
    }

    /// One line for the report.
    pub fn describe(&self) -> String {
        let version = if self
            .directories
            .iter()
            .any(|directory| directory.version == Version::Two)
        {
            "v2"
        } else {
            "v1"
        };
        let controllers: Vec<&str> = CONTROLLERS
            .into_iter()
            .filter(|controller| self.has(controller))
            .collect();
        format!("{version}: {}", controllers.join(", "))
    }

    /// Becomes readable when memory may have run out.
    pub fn memory_events(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(std::os::fd::AsFd::as_fd)
    }

    /// Whether the kernel killed something here for its memory.
    pub fn ran_out_of_memory(&self) -> bool {
        self.memory().is_some_and(|directory| {
            let file = if directory.version == Version::Two {
                "memory.events"
            } else {
                "memory.oom_control"
            };
            read_field(&directory.path.join(file), "oom_kill").is_some_and(|kills| kills > 0)
        })
    }

    /// Where its use is counted: CPU time of every process that was ever in it, and the highest
    /// use of memory.
    pub fn meter(&self, init: i32) -> Meter {
        let two = |directory: &&Directory| directory.version == Version::Two;
        let counts = |directory: &&Directory| directory.controllers.contains(&"cpuacct");
        let cpu = match self.directories.iter().find(two) {
            Some(directory) => Some((directory.path.join("cpu.stat"), 1000)),
            None => self
                .directories
                .iter()
                .find(counts)
                .map(|directory| (directory.path.join("cpuacct.usage"), 1_000_000)),
        };
        let peak = |directory: &Directory| match directory.version {
            Version::Two => directory.path.join("memory.peak"),
            Version::One => directory.path.join("memory.max_usage_in_bytes"),
        };
        Meter {
            init,
            program: None,
            cpu,
            memory_peak: self.memory().map(peak),
        }
    }

    /// Kills every process in it, and lets them have the processor to die.
    pub fn kill(&self) {
        for directory in &self.directories {
            // v1's quota holds for the dying too.
            fs::write(directory.path.join("cpu.cfs_quota_us"), "-1").ok();
            // None is born while the others are killed one by one.
            fs::write(directory.path.join("pids.max"), "0").ok();
            if fs::write(directory.path.join("cgroup.kill"), "1").is_ok() {
                return;
            }
        }
        for pid in self
            .members()
            .lines()
            .filter_map(|line| Pid::from_raw(line.parse().ok()?))
        {
            rustix::process::kill_process(pid, Signal::KILL).ok();
        }
    }

    /// Whether no process is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.members().is_empty()
    }

    /// Bytes that are charged to it: by its processes, or left by those that are gone and held by
    /// others. More than `enough` is looked at again after what can be given up was given up.
    pub(crate) fn memory_use(&self, enough: u64) -> u64 {
        let Some(directory) = self.memory() else {
            return 0;
        };
        let (file, relief, amount) = match directory.version {
            Version::Two => ("memory.current", "memory.reclaim", "1G"),
            Version::One => ("memory.usage_in_bytes", "memory.force_empty", "0"),
        };
        let used = || {
            let text = fs::read_to_string(directory.path.join(file));
            text.ok().and_then(|text| text.trim().parse().ok())
        };
        let first = used().unwrap_or(0);
        if first <= enough {
            return first;
        }
        fs::write(directory.path.join(relief), amount).ok();
        used().unwrap_or(first)
    }

    fn members(&self) -> String {
        let members = self
            .memory()
            .map(|directory| directory.path.join("cgroup.procs"));
        members
            .and_then(|path| fs::read_to_string(path).ok())
            .unwrap_or_default()
    }

    /// Removes the directories, once every process is gone. What stays busy until then is left for
    /// [`remove_stale`].
    pub(crate) fn remove(self, deadline: Instant) {
        for directory in &self.directories {
            // v1 keeps a removed cgroup for as long as a page of the file cache is charged to it.
            fs::write(directory.path.join("memory.force_empty"), "0").ok();
        }
        let mut left = self.try_remove();
        while let Some(busy) = left
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(10));
            left = busy.try_remove();
        }
    }

    /// Removes what can be removed now. Gives itself back if something is still busy.
    pub fn try_remove(mut self) -> Option<Self> {
        self.directories.retain(|directory| {
            fs::remove_dir(&directory.path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
        });
        (!self.directories.is_empty()).then_some(self)
    }

    fn memory(&self) -> Option<&Directory> {
        self.directories
            .iter()
            .find(|directory| directory.controllers.contains(&"memory"))
    }
}

/// A sandbox enters its cgroup within milliseconds of the directory's making.
const SETTLED: Duration = Duration::from_mins(1);

/// Removes cgroups that keepers left when they were killed themselves. A directory with a
/// process in it cannot be removed, a young one may be about to get its own, and one that a
/// keeper has for later is locked, so what is in use is never touched. Returns how many went.
pub fn remove_stale() -> usize {
    let host = Host::read();
    let parents = host
        .one
        .iter()
        .map(|(_, path)| path.clone())
        .chain(host.two.map(|two| two.parent()));
    parents
        .filter_map(|parent| fs::read_dir(parent).ok())
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .filter(|entry| age(entry).is_some_and(|age| age > SETTLED))
        .filter(|entry| !is_held(&entry.path()))
        .filter(|entry| fs::remove_dir(entry.path()).is_ok())
        .count()
}

/// Whether a living keeper has it, see [`Cgroup::hold`].
fn is_held(directory: &Path) -> bool {
    fs::File::open(directory.join("cgroup.procs")).is_ok_and(|file| {
        flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
    })
}

fn age(entry: &fs::DirEntry) -> Option<Duration> {
    entry.metadata().ok()?.modified().ok()?.elapsed().ok()
}

/// What the host has, in one line for people.
pub(crate) fn summary() -> String {
    let host = Host::read();
    let one: Vec<&str> = host.one.iter().map(|(controller, _)| *controller).collect();
    let two = host.two.map(|two| {
        format!(
            "v2 at {} with [{}]",
            two.own.display(),
            two.controllers.join(" ")
        )
    });
    match (one.is_empty(), two) {
        (false, Some(two)) => format!("hybrid: v1 [{}], {two}", one.join(" ")),
        (false, None) => format!("v1 [{}]", one.join(" ")),
        (true, Some(two)) => two,
        (true, None) => "none mounted".to_owned(),
    }
}

/// The hierarchies, with our own place in each.
#[derive(Debug, Default)]
struct Host {
    /// v1: controller and our directory in its hierarchy.
    one: Vec<(&'static str, PathBuf)>,
    /// v2, if mounted.
    two: Option<v2::Hierarchy>,
}

/// The controllers that limits need.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// What is looked for on v1, where counting CPU time is a controller of its own.
const V1_CONTROLLERS: [&str; 4] = ["memory", "pids", "cpu", "cpuacct"];

impl Host {
    fn read() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
    }

    fn parse(mountinfo: &str, membership: &str) -> Self {
        let mut host = Self::default();
        for line in mountinfo.lines() {
            let Some(mount) = Mount::parse(line) else {
                continue;
            };
            if mount.kind == "cgroup2" {
                let own = membership.lines().find_map(|line| line.strip_prefix("0::"));
                host.two = own
                    .and_then(|own| mount.place_of(own))
                    .map(v2::Hierarchy::at);
                continue;
            }
            for controller in V1_CONTROLLERS {
                if host.one.iter().any(|(known, _)| *known == controller)
                    || !mount.options.split(',').any(|option| option == controller)
                {
                    continue;
                }
                let own = membership.lines().find_map(|line| {
                    let mut parts = line.splitn(3, ':').skip(1);
                    let controllers = parts.next()?;
                    controllers
                        .split(',')
                        .any(|name| name == controller)
                        .then(|| parts.next())
                        .flatten()
                });
                if let Some(place) = own.and_then(|own| mount.place_of(own)) {
                    host.one.push((controller, place));
                }
            }
        }
        host
    }
}

/// One cgroup mount.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let mut right = right.split(' ');
        let mount = Self {
            root: left.next()?,
            point: left.next()?,
            kind: right.next()?,
            options: right.nth(1)?,
        };
        mount.kind.starts_with("cgroup").then_some(mount)
    }

    /// The directory of the cgroup `own` under this mount, which may show only a part.
    fn place_of(&self, own: &str) -> Option<PathBuf> {
        let root = self.root.trim_end_matches('/');
        let below = own.strip_prefix(root)?.trim_start_matches('/');
        Some(Path::new(self.point).join(below))
    }
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::write(path, value).map_err(|source| CgroupError::Write {
        path: path.to_owned(),
        source,
    })
}

fn read_field(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
36 35 0:31 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
37 35 0:32 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
38 35 0:33 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
39 35 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
40 35 0:35 / /proc rw - proc proc rw
";

    #[test]
    fn a_hybrid_host_is_read_with_our_place_in_each_hierarchy() {
        let membership = "5:memory:/service/a\n4:cpu,cpuacct:/\n3:pids:/\n0::/service/a\n";
        let host = Host::parse(HYBRID, membership);
        let one: Vec<(&str, &str)> = host
            .one
            .iter()
            .map(|(name, path)| (*name, path.to_str().unwrap()))
            .collect();
        assert_eq!(
            one,
            [
                ("memory", "/sys/fs/cgroup/memory/service/a"),
                ("cpu", "/sys/fs/cgroup/cpu,cpuacct/"),
                ("cpuacct", "/sys/fs/cgroup/cpu,cpuacct/"),
                ("pids", "/sys/fs/cgroup/pids/")
            ]
        );
        assert_eq!(
            host.two.unwrap().own,
            Path::new("/sys/fs/cgroup/unified/service/a")
        );
    }

    #[test]
    fn an_empty_cgroup_is_held_for_as_long_as_its_keeper_lives() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        fs::write(path.join("cgroup.procs"), "").unwrap();
        assert!(!is_held(&path));
        let mut cgroup = Cgroup {
            directories: vec![Directory {
                path: path.clone(),
                controllers: Vec::new(),
                version: Version::One,
            }],
            events: None,
            entrances: None,
        };
        cgroup.hold();
        assert!(is_held(&path));
        drop(cgroup);
        // A child that another test is just starting may have a copy until its `exec`.
        let deadline = Instant::now() + Duration::from_mins(1);
        while is_held(&path) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_container_that_sees_only_its_own_part_is_placed_below_the_mount_point() {
        let mountinfo = "39 35 0:34 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let host = Host::parse(mountinfo, "0::/docker/abc/inner\n");
        assert_eq!(host.two.unwrap().own, Path::new("/sys/fs/cgroup/inner"));
        // A path outside what is mounted is no place at all.
        assert!(Host::parse(mountinfo, "0::/elsewhere\n").two.is_none());
    }
}
