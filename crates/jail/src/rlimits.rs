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

/// One line for the report.
pub(crate) fn describe(limits: &JailLimits) -> String {
    format!(
        "{} processes, {} MiB of data each, 4096 files, no core",
        limits.pids,
        limits.memory_bytes >> 20
    )
}

/// The limits of every sandbox, and behind them those that stand in for a cgroup.
const RESOURCES: [Resource; 12] = [
    Resource::Core,
    Resource::Nofile,
    Resource::Nproc,
    Resource::Data,
    Resource::Stack,
    Resource::Memlock,
    Resource::Msgqueue,
    Resource::Sigpending,
    Resource::Rtprio,
    Resource::Nice,
    Resource::Fsize,
    Resource::Cpu,
];

/// The kernel's number of each resource, its soft and its hard limit, each at most what the host
/// already allows. Without a cgroup that counts (`counted`), files and CPU time are bounded too.
pub(crate) fn table(limits: &JailLimits, counted: bool) -> Vec<(u64, u64, u64)> {
    let values = [
        // No core file on the host, whatever core_pattern says.
        (4, 0),
        (7, 4096),
        // Threads of the sandbox's user namespace: the kernel counts them there.
        (6, limits.pids),
        // Private writable memory of one process, and room for its threads' stacks, which are
        // reserved in full. Above it Python raises MemoryError, before a limit has to kill.
        (2, limits.memory_bytes + limits.pids * (8 << 20)),
        (3, 64 << 20),
        (8, 64 << 10),
        (12, 0),
        (11, 1024),
        (14, 0),
        (13, 0),
        (1, limits.memory_bytes),
        (0, limits.cpu_seconds),
    ];
    let stand_ins = if counted { 2 } else { 0 };
    RESOURCES
        .into_iter()
        .zip(values)
        .take(RESOURCES.len() - stand_ins)
        .map(|(resource, (number, most))| {
            let host = rustix::process::getrlimit(resource).maximum;
            let most = host.map_or(most, |host| host.min(most));
            // The main thread's stack grows up to the soft limit: keep the usual 8 MiB.
            let soft = if resource == Resource::Stack {
                most.min(8 << 20)
            } else {
                most
            };
            (number, soft, most)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_kernels() {
        let limits = JailLimits {
            memory_bytes: 64 << 20,
            cpu_quota_us: 0,
            pids: 7,
            tmp_bytes: 0,
            workspace_bytes: 0,
            shm_bytes: 0,
            cpu_seconds: 9,
        };
        let numbers: Vec<u64> = table(&limits, false)
            .into_iter()
            .map(|(number, ..)| number)
            .collect();
        let kernel = [
            libc::RLIMIT_CORE,
            libc::RLIMIT_NOFILE,
            libc::RLIMIT_NPROC,
            libc::RLIMIT_DATA,
            libc::RLIMIT_STACK,
            libc::RLIMIT_MEMLOCK,
            libc::RLIMIT_MSGQUEUE,
            libc::RLIMIT_SIGPENDING,
            libc::RLIMIT_RTPRIO,
            libc::RLIMIT_NICE,
            libc::RLIMIT_FSIZE,
            libc::RLIMIT_CPU,
        ];
        assert_eq!(numbers, kernel.map(u64::from));
    }
}
