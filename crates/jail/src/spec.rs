//! What a jail is made of: the one input of the jail, and the report that it gives back.
//!
//! Plain data, rendered by the native engine from its own types by a pure function. Most review
//! happens on the snapshots of that rendering.

use serde::{Deserialize, Serialize};

use crate::meter::Meter;

/// User and group id inside every sandbox, as `spec/` has it.
pub const INNER_ID: u32 = 1000;

/// Everything the jail is told. Nothing in it comes from the code that will run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JailSpec {
    /// Names the sandbox's cgroup: `[a-z0-9-]`, at most 64 characters.
    pub id: String,
    /// Host trees to show, read-only.
    pub trees: Vec<Tree>,
    /// Symbolic links to make in the root.
    pub links: Vec<Link>,
    /// Small files to make in the root.
    pub files: Vec<File>,
    /// What all processes together may use.
    pub limits: JailLimits,
    /// Absolute path of the program, inside.
    pub program: String,
    /// Its arguments, the program's own name not among them.
    pub arguments: Vec<String>,
    /// Its whole environment: nothing is inherited.
    pub environment: Vec<(String, String)>,
    /// Layers without which it must not run.
    pub required: Vec<Layer>,
    /// The program is a zygote: it runs nothing itself, and forks sandboxes on request.
    pub zygote: bool,
    /// The zygote's forks get an empty network each instead of sharing one: then not even the names
    /// of a sibling's sockets can be read. It costs as much as the rest of a fork.
    pub own_networks: bool,
    /// What a build job has beyond a sandbox for code. Never together with `zygote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobAccess>,
}

/// Where a job's proxy listens, on 127.0.0.1 of its own network.
pub const GATEWAY_PORT: u16 = 3128;

/// Where a job's writable directory appears.
pub const BUILD: &str = "/build";

/// What a build job has beyond a sandbox for code: one writable host directory, one listener that
/// the server answers on, and a table of system calls that lets it connect there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobAccess {
    /// Absolute path on the host of the directory that appears at [`BUILD`].
    pub writable: String,
    /// Bytes of any one file that it writes.
    pub file_bytes: u64,
}

/// A host directory or file shown read-only inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// Absolute path on the host.
    pub source: String,
    /// Absolute path inside.
    pub target: String,
    /// Hide the host's path from `/proc/self/mountinfo`, where a bind mount would tell it: the
    /// directories above it may name the user or the project.
    pub opaque: bool,
}

/// A symbolic link made in the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Absolute path inside.
    pub path: String,
    /// What it points at.
    pub target: String,
}

/// A request to a zygote's keeper. The first descriptor beside it is the guard, which is for that
/// sandbox what the launch socket is for one of its own: reports, and the life line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum KeeperRequest {
    /// A new sandbox, with three more descriptors: control, stdout, stderr.
    Fork(ForkSpec),
    /// A copy is about to be made, of the interpreter of this name: what takes time is done
    /// meanwhile. No descriptor, and no answer.
    Expect {
        /// As [`CopySpec::of`].
        of: String,
        /// As [`CopySpec::limits`].
        limits: JailLimits,
    },
    /// A copy that an interpreter has made of itself, inside its sandbox.
    Adopt(CopySpec),
}

/// A sandbox to be forked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkSpec {
    /// Names the sandbox's cgroup, as [`JailSpec::id`].
    pub id: String,
    /// What all its processes together may use.
    pub limits: JailLimits,
    /// Nobody waits for it yet: it may do ahead what a first turn would do.
    pub has_time: bool,
}

/// A copy of an interpreter, which is to be watched over from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopySpec {
    /// Names it, as [`ForkSpec::id`].
    pub id: String,
    /// The name of what was copied: a fork, or a copy in its turn.
    pub of: String,
    /// Its pid inside the sandbox. A claim from there.
    pub pid: i32,
    /// What all processes of the copy together may use.
    pub limits: JailLimits,
}

/// A small file made in the root, read-only with the rest of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Absolute path inside.
    pub path: String,
    /// Its content; in hexadecimal if `binary`.
    pub content: String,
    /// Whether the content is not text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub binary: bool,
}

/// What the jail enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JailLimits {
    /// Bytes of memory, tmpfs included.
    pub memory_bytes: u64,
    /// Microseconds of CPU time per 100 ms.
    pub cpu_quota_us: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Bytes of `/tmp`.
    pub tmp_bytes: u64,
    /// Bytes of `/workspace`.
    pub workspace_bytes: u64,
    /// Bytes of `/dev/shm`.
    pub shm_bytes: u64,
    /// CPU seconds a single process may burn: a backstop where no cgroup counts CPU time.
    pub cpu_seconds: u64,
}

/// The layers, in the order in which they are installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Limits on memory, CPU and processes by the kernel's control groups.
    Cgroup,
    /// No inherited file descriptor.
    Descriptors,
    /// Root inside is nobody outside.
    UserNamespace,
    /// The cgroup path is not visible.
    CgroupNamespace,
    /// No System V objects or message queues of others.
    IpcNamespace,
    /// No network interface but a dead loopback.
    NetworkNamespace,
    /// A made-up host name.
    UtsNamespace,
    /// A file system of its own.
    MountNamespace,
    /// Five harmless devices.
    PrivateDev,
    /// Sees and signals only its own processes; dies as one.
    PidNamespace,
    /// `/proc` without the host's facts.
    ProcSubset,
    /// Nothing outside `/tmp`, `/workspace` and `/dev/shm` can be written.
    ReadOnlyRoot,
    /// Limits per process.
    Rlimits,
    /// No privilege to use inside.
    Capabilities,
    /// No privilege to gain by exec.
    NoNewPrivs,
    /// A second opinion on every file access.
    Landlock,
    /// A short list of system calls.
    Seccomp,
}

impl Layer {
    /// Every layer.
    pub const ALL: [Self; 17] = [
        Self::Cgroup,
        Self::Descriptors,
        Self::UserNamespace,
        Self::CgroupNamespace,
        Self::IpcNamespace,
        Self::NetworkNamespace,
        Self::UtsNamespace,
        Self::MountNamespace,
        Self::PrivateDev,
        Self::PidNamespace,
        Self::ProcSubset,
        Self::ReadOnlyRoot,
        Self::Rlimits,
        Self::Capabilities,
        Self::NoNewPrivs,
        Self::Landlock,
        Self::Seccomp,
    ];

    /// The name in configuration and responses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Descriptors => "descriptors",
            Self::UserNamespace => "user_namespace",
            Self::CgroupNamespace => "cgroup_namespace",
            Self::IpcNamespace => "ipc_namespace",
            Self::NetworkNamespace => "network_namespace",
            Self::UtsNamespace => "uts_namespace",
            Self::MountNamespace => "mount_namespace",
            Self::PrivateDev => "private_dev",
            Self::PidNamespace => "pid_namespace",
            Self::ProcSubset => "proc_subset",
            Self::ReadOnlyRoot => "read_only_root",
            Self::Rlimits => "rlimits",
            Self::Capabilities => "capabilities",
            Self::NoNewPrivs => "no_new_privs",
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
        }
    }
}

/// One layer, as installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerReport {
    /// Which.
    pub layer: Layer,
    /// Whether it holds.
    pub state: State,
    /// What it consists of here, or why it is missing.
    pub detail: String,
}

/// One limit, as installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitReport {
    /// `memory`, `cpu`, `pids` or `storage`.
    pub name: String,
    /// Whether the kernel holds it for the whole sandbox.
    pub state: State,
    /// By what.
    pub detail: String,
}

/// Whether a layer or limit holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In force.
    Enforced,
    /// Replaced by something weaker.
    BestEffort,
    /// Not there.
    Missing,
}

/// What the jail tells the server, one message each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Report {
    /// The program is about to run behind these layers.
    Entered {
        /// Each layer.
        layers: Vec<LayerReport>,
        /// Each limit.
        limits: Vec<LimitReport>,
        /// Where its use can be read. A zygote has no use of its own.
        meter: Option<Meter>,
    },
    /// A required layer is missing; nothing ran.
    Refused {
        /// Which.
        layer: Layer,
        /// The kernel's answer, explained.
        reason: String,
        /// What the operator can do.
        fix: String,
    },
    /// Something else went wrong; nothing ran.
    Failed {
        /// One sentence.
        message: String,
    },
    /// Every process of the sandbox is gone.
    Exited {
        /// Why.
        cause: Cause,
        /// CPU time of all its processes.
        cpu_ms: u64,
        /// Highest memory use, where a cgroup counted it.
        memory_peak_bytes: Option<u64>,
    },
}

/// Why a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Cause {
    /// The server asked for it, or is gone.
    Killed,
    /// The program exited.
    Exited {
        /// With this status.
        status: i32,
    },
    /// The program was ended by a signal from inside.
    Signaled {
        /// This one.
        signal: i32,
    },
    /// The memory limit.
    OutOfMemory,
}
