//! cgroup v1: one directory a controller, for root only. No group kill: the keeper watches.

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::event::EventfdFlags;

use super::{Cgroup, CgroupError, Directory, Version, write};
use crate::spec::JailLimits;

/// Makes one directory in each controller's hierarchy and writes the limits.
pub(super) fn create(
    hierarchies: &[(&'static str, PathBuf)],
    name: &str,
    limits: &JailLimits,
    cgroup: &mut Cgroup,
) -> Result<(), CgroupError> {
    let has = |wanted| {
        hierarchies
            .iter()
            .any(|(controller, _)| *controller == wanted)
    };
    if !has("memory") || !has("pids") {
        return Err(CgroupError::NotMounted);
    }
    for (controller, parent) in hierarchies {
        let path = parent.join(name);
        // Controllers that are mounted together share their directory.
        if let Some(shared) = cgroup
            .directories
            .iter_mut()
            .find(|directory| directory.path == path)
        {
            shared.controllers.push(controller);
            write_limits(controller, &path, limits)?;
            continue;
        }
        fs::create_dir(&path).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                CgroupError::NotRoot { path: path.clone() }
            }
            _ => CgroupError::Write {
                path: path.clone(),
                source,
            },
        })?;
        cgroup.directories.push(Directory {
            path: path.clone(),
            controllers: vec![controller],
            version: Version::One,
        });
        write_limits(controller, &path, limits)?;
        if *controller == "memory" {
            cgroup.events = Some(watch_memory(&path)?);
        }
    }
    Ok(())
}

fn write_limits(
    controller: &str,
    directory: &Path,
    limits: &JailLimits,
) -> Result<(), CgroupError> {
    for (file, value, optional) in files(controller, limits) {
        let path = directory.join(file);
        if !optional || path.exists() {
            write(&path, &value)?;
        }
    }
    Ok(())
}

/// File, value, and whether a kernel may lack it. The order matters: `memsw` may not be below.
fn files(controller: &str, limits: &JailLimits) -> Vec<(&'static str, String, bool)> {
    match controller {
        "memory" => vec![
            (
                "memory.limit_in_bytes",
                limits.memory_bytes.to_string(),
                false,
            ),
            (
                "memory.memsw.limit_in_bytes",
                limits.memory_bytes.to_string(),
                true,
            ),
            ("memory.swappiness", "0".to_owned(), true),
        ],
        // Only counts.
        "cpuacct" => Vec::new(),
        "pids" => vec![("pids.max", limits.pids.to_string(), false)],
        _ => vec![
            ("cpu.cfs_period_us", "100000".to_owned(), false),
            ("cpu.cfs_quota_us", limits.cpu_quota_us.to_string(), false),
        ],
    }
}

/// v1 kills one task and lets the rest go on; this tells the keeper, which ends them all.
fn watch_memory(directory: &Path) -> Result<OwnedFd, CgroupError> {
    let control = directory.join("cgroup.event_control");
    let fail = |source: io::Error| CgroupError::Write {
        path: control.clone(),
        source,
    };
    let events =
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| fail(errno.into()))?;
    let target = fs::File::open(directory.join("memory.oom_control")).map_err(fail)?;
    write(
        &control,
        &format!("{} {}", events.as_raw_fd(), target.as_raw_fd()),
    )?;
    Ok(events)
}
