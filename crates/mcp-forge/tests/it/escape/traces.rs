//! How a sandbox is found while it lives, and what is left of it afterwards.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mcp_forge::limits::Limits;

use super::{
    case::Way,
    look::{Descent, cgroups, command_line, kill, living, stat},
};

/// Time for a sandbox to be found, and for everything of an ended one to be gone, on a machine that is busy.
const GONE: Duration = Duration::from_mins(1);

/// What a sandbox can be recognised by after its end.
pub(super) struct Traces {
    id: String,
    /// Its mount namespace: no process of it can leave that one, and while it lives so do its mounts.
    mounts: PathBuf,
    /// Held open: the kernel gives a name again as soon as nobody has it.
    _held: fs::File,
    /// The process outside, which on the warm path keeps others too.
    keeper: u32,
}

/// Which sandbox of a server is meant.
pub(super) struct Wanted<'a> {
    pub(super) server: u32,
    /// What its keeper's command line begins with; any if empty.
    pub(super) jail: &'a Path,
    /// Its name; any if empty.
    pub(super) id: &'a str,
    /// Of all forks of a zygote the only one with these limits.
    pub(super) limits: &'a Limits,
    pub(super) way: Way,
}

impl Wanted<'_> {
    /// Finds it, just launched and before its code runs.
    pub(super) async fn traces(&self) -> Result<Traces, String> {
        let deadline = Instant::now() + GONE;
        loop {
            if let Some(traces) = self.look() {
                return Ok(traces);
            }
            if Instant::now() > deadline {
                let (jail, id, way) = (self.jail.display(), self.id, self.way);
                return Err(format!(
                    "the processes of {jail} {id} ({way:?}) cannot be found"
                ));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn look(&self) -> Option<Traces> {
        let descent = Descent::read();
        let below = |pid| descent.children(pid);
        let mut keepers = below(self.server).filter(|keeper| self.is_kept_by(*keeper));
        keepers.find_map(|keeper| {
            // Keeper, then init, then the program; or then a zygote, and the same again.
            let mut programs = below(keeper).flat_map(below);
            let (mounts, held) = match self.way {
                Way::Cold => programs.find_map(mount_namespace)?,
                Way::Warm => programs
                    .flat_map(below)
                    .flat_map(below)
                    .filter(|program| self.limits_are_of(*program))
                    .find_map(mount_namespace)?,
            };
            let named = command_line(keeper);
            let named = named.trim_end_matches('\0').rsplit('\0').next()?;
            let id = if self.id.is_empty() { named } else { self.id };
            Some(Traces {
                id: id.to_owned(),
                mounts,
                _held: held,
                keeper,
            })
        })
    }

    fn is_kept_by(&self, keeper: u32) -> bool {
        let command = command_line(keeper);
        let named = command.trim_end_matches('\0').rsplit('\0').next();
        let fits = match self.way {
            Way::Cold => self.id.is_empty() || named == Some(self.id),
            Way::Warm => named.is_some_and(|name| name.starts_with("zygote-")),
        };
        fits && command.starts_with(&self.jail.display().to_string())
    }

    /// By the number of processes, or by the size of a directory: a control leaves out one of them.
    fn limits_are_of(&self, program: u32) -> bool {
        let read = |file| fs::read_to_string(format!("/proc/{program}/{file}")).unwrap_or_default();
        let processes = read("limits").lines().any(|line| {
            let mut words = line.split_whitespace();
            line.starts_with("Max processes")
                && words.nth(2).and_then(|word| word.parse().ok()) == Some(self.limits.pids)
        });
        let size = format!(
            ",size={}k,",
            self.limits.directory_bytes().div_ceil(4096) * 4
        );
        let directory = |line: &&str| line.split(' ').nth(4) == Some("/workspace");
        // The last one mounted there is the one in sight.
        let mounts = read("mountinfo");
        let sized = mounts.lines().rfind(directory);
        processes || sized.is_some_and(|line| line.contains(&size))
    }
}

fn mount_namespace(pid: u32) -> Option<(PathBuf, fs::File)> {
    let ours = fs::read_link("/proc/self/ns/mnt").unwrap();
    let file = fs::File::open(format!("/proc/{pid}/ns/mnt")).ok()?;
    let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    (name != ours).then_some((name, file))
}

impl Traces {
    /// What of a sandbox is still there after a fair time.
    pub(super) async fn left_behind(&self) -> Vec<String> {
        let look = || {
            let processes = living()
                .into_iter()
                .filter(|pid| self.are_of(*pid))
                .map(|pid| format!("process {pid} is left"));
            let cgroups = cgroups()
                .into_iter()
                .filter(|path| path.contains(&self.id))
                .map(|path| format!("{path} is left"));
            processes.chain(cgroups).collect()
        };
        awaited(look).await
    }

    /// The process outside that keeps it.
    pub(super) fn keeper(&self) -> u32 {
        self.keeper
    }

    /// Kills the process that keeps it.
    pub(super) fn kill_keeper(&self) {
        kill(self.keeper);
    }

    /// Kills what outlived its turn in a control; gives how many that were.
    pub(super) fn end_survivors(&self) -> usize {
        let survivors: Vec<u32> = living()
            .into_iter()
            .filter(|pid| self.are_of(*pid))
            .collect();
        for pid in &survivors {
            kill(*pid);
        }
        survivors.len()
    }

    /// Everything that its keeper keeps, itself included: on the warm path a zygote and all its forks.
    pub(super) fn family(&self) -> Family {
        let mut family = Family {
            members: BTreeMap::new(),
            cgroups: BTreeSet::from([format!("mcp-forge-{}", self.id)]),
            pool: None,
        };
        if let Some((_, zygote)) = command_line(self.keeper).rsplit_once("zygote-") {
            let pool = zygote.rsplit_once('-').map_or(zygote, |(pool, _)| pool);
            family.pool = Some(format!("mcp-forge-warm-{pool}-"));
        }
        let (descent, mut next) = (Descent::read(), vec![self.keeper]);
        while let Some(pid) = next.pop() {
            let Some(stat) = stat(pid) else { continue };
            family.members.insert(pid, stat.started);
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            let names = groups.lines().filter_map(|line| line.rsplit('/').next());
            let ours = names.filter(|name| name.starts_with("mcp-forge-"));
            family.cgroups.extend(ours.map(str::to_owned));
            next.extend(descent.children(pid));
        }
        family
    }

    fn are_of(&self, pid: u32) -> bool {
        fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|mounts| mounts == self.mounts)
            || (pid == self.keeper && command_line(pid).contains(&self.id))
    }
}

/// What a keeper keeps.
pub(super) struct Family {
    /// Processes, with the time each was started at: numbers are given again.
    members: BTreeMap<u32, u64>,
    cgroups: BTreeSet<String>,
    /// What the names of waiting sandboxes' cgroups begin with.
    pool: Option<String>,
}

impl Family {
    /// What is still there a fair time after the engine is gone.
    pub(super) async fn left_behind(&self) -> Vec<String> {
        let look = || {
            let mut left = self.living();
            left.extend(self.cgroups());
            left
        };
        awaited(look).await
    }

    /// The same, of processes alone.
    pub(super) async fn survivors(&self) -> Vec<String> {
        awaited(|| self.living()).await
    }

    /// Removes what a killed keeper could not. Gives what is still there a fair time later: a process
    /// that is just leaving keeps a cgroup busy, and another server may be the first to remove it.
    pub(super) async fn remove_cgroups(&self) -> Vec<String> {
        let remove = || {
            let removed = self.cgroups().into_iter().map(fs::remove_dir);
            let errors = removed.filter_map(Result::err);
            errors
                .filter(|error| error.kind() != io::ErrorKind::NotFound)
                .map(|error| error.to_string())
                .collect()
        };
        awaited(remove).await
    }

    fn living(&self) -> Vec<String> {
        let lives = |pid: u32, started: u64| {
            stat(pid).is_some_and(|stat| stat.started == started && stat.state != 'Z')
        };
        self.members
            .iter()
            .filter(|(pid, started)| lives(**pid, **started))
            .map(|(pid, _)| format!("process {pid}: {}", command_line(*pid)))
            .collect()
    }

    fn cgroups(&self) -> Vec<String> {
        let is_ours = |path: &String| {
            let name = path.rsplit('/').next().unwrap_or_default();
            let waited = self
                .pool
                .as_ref()
                .is_some_and(|pool| name.starts_with(pool));
            waited || self.cgroups.contains(name)
        };
        cgroups().into_iter().filter(is_ours).collect()
    }
}

/// Looks until nothing is found or the time is over.
pub(super) async fn awaited(look: impl Fn() -> Vec<String>) -> Vec<String> {
    let deadline = Instant::now() + GONE;
    loop {
        let found = look();
        if found.is_empty() || Instant::now() > deadline {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
