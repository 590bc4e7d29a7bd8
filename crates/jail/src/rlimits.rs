//! Limits per process: a backstop under the cgroup, the only memory limit where there is none.

use rustix::process::{Resource, Rlimit};

use crate::{
    error::JailError,
    spec::{JailLimits, Layer},
};

/// Bounds every file, for where no cgroup counts memory: a memfd counts against no tmpfs, and the
/// watch sees it only while it is mapped. Set by the keeper on itself, and inherited. Where a
/// cgroup counts, a file may be as sparse as it likes: what it really holds is charged.
pub(crate) fn bound_files(bytes: u64) -> Result<(), JailError> {
    lower(Resource::Fsize, bytes)
}

/// Bounds the CPU time of each process, for where no cgroup counts it. Set as [`bound_files`] is.
pub(crate) fn bound_cpu_time(seconds: u64) -> Result<(), JailError> {
    lower(Resource::Cpu, seconds)
}

fn lower(resource: Resource, most: u64) -> Result<(), JailError> {
    let host = rustix::process::getrlimit(resource).maximum;
    let most = Some(host.map_or(most, |host| host.min(most)));
    let limit = Rlimit {
        current: most,
        maximum: most,
    };
    rustix::process::setrlimit(resource, limit)
        .map_err(JailError::at(Layer::Rlimits, format!("set {resource:?}")))
}

/// Sets the limits, each at most what the host already allows.
pub(crate) fn set(limits: &JailLimits) -> Result<String, JailError> {
    let table = [
        // No core file on the host, whatever core_pattern says.
        (Resource::Core, 0),
        (Resource::Nofile, 4096),
        // Threads of the sandbox's user namespace: the kernel counts them there.
        (Resource::Nproc, limits.pids),
        // Private writable memory of one process, and room for its threads' stacks, which are
        // reserved in full. Above it Python raises MemoryError, before a limit has to kill.
        (
            Resource::Data,
            limits.memory_bytes + limits.pids * (8 << 20),
        ),
        (Resource::Stack, 64 << 20),
        (Resource::Memlock, 64 << 10),
        (Resource::Msgqueue, 0),
        (Resource::Sigpending, 1024),
        (Resource::Rtprio, 0),
        (Resource::Nice, 0),
    ];
    for (resource, most) in table {
        let host = rustix::process::getrlimit(resource).maximum;
        let most = host.map_or(most, |host| host.min(most));
        // The main thread's stack grows up to the soft limit: keep the usual 8 MiB.
        let current = if resource == Resource::Stack {
            most.min(8 << 20)
        } else {
            most
        };
        rustix::process::setrlimit(
            resource,
            Rlimit {
                current: Some(current),
                maximum: Some(most),
            },
        )
        .map_err(JailError::at(Layer::Rlimits, format!("set {resource:?}")))?;
    }
    Ok(format!(
        "{} processes, {} MiB of data each, 4096 files, no core",
        limits.pids,
        limits.memory_bytes >> 20
    ))
}
