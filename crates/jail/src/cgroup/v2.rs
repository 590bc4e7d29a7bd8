//! cgroup v2: one directory with all controllers, below a subtree that is delegated to us.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{CONTROLLERS, Cgroup, CgroupError, Directory, Version, write};
use crate::spec::JailLimits;

/// The name of the cgroup into which a server moves itself, so that its siblings may have
/// controllers: v2 allows no processes beside children.
const SERVER: &str = "mcp-forge-server";

/// The unified hierarchy and our place in it.
#[derive(Debug)]
pub(super) struct Hierarchy {
    /// Our own cgroup.
    pub(super) own: PathBuf,
    /// What it may hand down.
    pub(super) controllers: Vec<String>,
}

impl Hierarchy {
    pub(super) fn at(own: PathBuf) -> Self {
        let controllers = fs::read_to_string(own.join("cgroup.controllers")).unwrap_or_default();
        Self {
            own,
            controllers: controllers.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// Whether limits can come from here. On hybrid hosts v2 is mounted without controllers.
    pub(super) fn has_controllers(&self) -> bool {
        CONTROLLERS.iter().all(|wanted| {
            self.controllers
                .iter()
                .any(|controller| controller == wanted)
        })
    }

    /// Where sandboxes go: beside the server when it has made room, else below.
    pub(super) fn parent(&self) -> PathBuf {
        if self.own.ends_with(SERVER) {
            self.own.parent().unwrap_or(&self.own).to_owned()
        } else {
            self.own.clone()
        }
    }
}

/// Makes the directory and writes the limits.
pub(super) fn create(
    hierarchy: &Hierarchy,
    name: &str,
    limits: &JailLimits,
    cgroup: &mut Cgroup,
) -> Result<(), CgroupError> {
    let parent = hierarchy.parent();
    make_room(&parent).map_err(|_| CgroupError::NotDelegated {
        path: parent.clone(),
    })?;
    let path = parent.join(name);
    fs::create_dir(&path).map_err(|_| CgroupError::NotDelegated {
        path: parent.clone(),
    })?;
    cgroup.directories.push(Directory {
        path: path.clone(),
        controllers: CONTROLLERS.to_vec(),
        version: Version::Two,
    });
    for (file, value) in files(limits) {
        let path = path.join(file);
        // No swap controller: nothing to limit.
        if file != "memory.swap.max" || path.exists() {
            write(&path, &value)?;
        }
    }
    // No event to watch: with `memory.oom.group` the kernel kills init too, which the keeper sees.
    Ok(())
}

/// Lets `parent` hand down its controllers: every process in it moves into a leaf first.
fn make_room(parent: &Path) -> io::Result<()> {
    let control = parent.join("cgroup.subtree_control");
    let handed_down = fs::read_to_string(&control)?;
    if CONTROLLERS.iter().all(|wanted| {
        handed_down
            .split_whitespace()
            .any(|controller| controller == *wanted)
    }) {
        return Ok(());
    }
    let leaf = parent.join(SERVER);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for pid in fs::read_to_string(parent.join("cgroup.procs"))?.lines() {
        // Gone meanwhile is as good as moved.
        fs::write(leaf.join("cgroup.procs"), pid).ok();
    }
    fs::write(control, "+memory +pids +cpu")
}

fn files(limits: &JailLimits) -> [(&'static str, String); 7] {
    [
        ("memory.max", limits.memory_bytes.to_string()),
        ("memory.swap.max", "0".to_owned()),
        // All of a sandbox's processes die together: never half a program.
        ("memory.oom.group", "1".to_owned()),
        ("pids.max", limits.pids.to_string()),
        ("cpu.max", format!("{} 100000", limits.cpu_quota_us)),
        ("cgroup.max.descendants", "0".to_owned()),
        ("cgroup.max.depth", "0".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_become_files() {
        let limits = JailLimits {
            memory_bytes: 512 << 20,
            cpu_quota_us: 50_000,
            pids: 100,
            tmp_bytes: 0,
            workspace_bytes: 0,
            shm_bytes: 0,
            cpu_seconds: 0,
        };
        insta::assert_debug_snapshot!(files(&limits));
    }

    #[test]
    fn sandboxes_of_a_server_that_made_room_are_its_siblings() {
        let hierarchy = Hierarchy {
            own: PathBuf::from("/sys/fs/cgroup/app/mcp-forge-server"),
            controllers: Vec::new(),
        };
        assert_eq!(hierarchy.parent(), Path::new("/sys/fs/cgroup/app"));
        assert!(!hierarchy.has_controllers());
    }
}
