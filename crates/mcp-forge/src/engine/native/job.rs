//! Build jobs: one program of the operator's in a sealed sandbox, with one writable directory and one
//! listener that this server answers on.
//!
//! The sandbox is that of user code, layer for layer, with what a build needs on top: a host
//! directory at `/build`, and a loopback that is up, on which one address listens. That socket was
//! made in the job's own network before the seal and belongs to it; who accepts is this server. The
//! job itself has no route anywhere.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::TcpListener;

use crate::{
    config::{Config, Profile},
    engine::{Isolation, LaunchError, Usage},
};

/// Where the job finds its writable directory.
pub const BUILD: &str = "/build";

/// Where the job finds the proxy, for programs that do not read the usual variables.
pub const PROXY: &str = "http://127.0.0.1:3128";

/// Starts build jobs, whatever engine runs user code.
#[derive(Debug)]
pub struct Jobs {
    profile: Profile,
    allow_degraded: Vec<String>,
    /// The configured interpreter.
    python: Option<PathBuf>,
    /// This program's own binary.
    jail: PathBuf,
}

/// One job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    /// Names the job in cgroups and logs: `[a-z0-9-]`, at most 64 characters.
    pub id: String,
    /// What runs.
    pub program: JobProgram,
    /// Its arguments, the program's own name not among them.
    pub arguments: Vec<String>,
    /// Variables beside those that every job has: a small base, and the proxy. Nothing of the
    /// server's own is inherited.
    pub variables: Vec<(String, String)>,
    /// Small files, read-only: absolute path inside, and content.
    pub files: Vec<(String, String)>,
    /// More host directories, read-only: path on the host, absolute path inside.
    pub trees: Vec<(PathBuf, String)>,
    /// The host directory that appears, writable, at [`BUILD`]. It must be a directory itself, not a
    /// link to one. A server that is root gives it to the builder's own user id first.
    pub build: PathBuf,
    /// The interpreter that is shown; `None` is the configured one. [`Jobs::python`] says where.
    pub python: Option<PathBuf>,
    /// What all its processes together may use.
    pub limits: JobLimits,
}

/// The program of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobProgram {
    /// A program of the host, by its path: a copy of it is shown at `/opt/job/NAME`.
    Tool(PathBuf),
    /// The interpreter.
    Python,
}

/// What a job may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobLimits {
    /// Bytes of memory of all processes together, the program's own copy and `/tmp` included.
    pub memory_bytes: u64,
    /// Microseconds of CPU time per 100 ms; 100000 is one whole core.
    pub cpu_quota_us: u64,
    /// Processes and threads alive at once.
    pub pids: u64,
    /// From its start to the moment when it is killed.
    pub wall: Duration,
    /// Bytes of any one file that it writes.
    pub file_bytes: u64,
    /// Bytes of disk that everything in [`BUILD`] may take, what was there before included. Looked at
    /// twice a second while [`Job::finish`] waits, so a fast writer can be ahead of it for so long.
    pub build_bytes: u64,
}

/// An interpreter as a job sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPython {
    /// Absolute path inside: for `uv --python`.
    pub program: String,
    /// The real binary on the host.
    pub executable: PathBuf,
    /// For example `(3, 11, 7)`.
    pub version: (u32, u32, u32),
}

/// A running job. Dropping it kills everything in it.
pub struct Job {
    /// What it prints. UNTRUSTED.
    pub stdout: JobOutput,
    /// What it complains of. UNTRUSTED.
    pub stderr: JobOutput,
    /// The one address that the job can connect to. Whoever accepts must bound what comes: UNTRUSTED.
    pub gateway: TcpListener,
    /// The layers in force.
    pub isolation: Isolation,
    /// Ends the job.
    pub control: JobControl,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("isolation", &self.isolation)
            .finish_non_exhaustive()
    }
}

/// One stream of a job's output, read by lines that are bounded, and bounded in all.
pub struct JobOutput {
    _private: (),
}

impl JobOutput {
    /// The next line without its end, made text; cut after 4 KiB. `None` at the end of the stream.
    /// After 4 MiB in all, the rest is read and dropped: a writer must not be stopped by it.
    ///
    /// # Errors
    ///
    /// The pipe's.
    pub async fn line(&mut self) -> io::Result<Option<String>> {
        Ok(None)
    }

    /// All that is still to come, in lines, of which the last `most` are kept.
    pub async fn rest(mut self, _most: usize) -> Vec<String> {
        while let Ok(Some(_)) = self.line().await {}
        Vec::new()
    }
}

/// Watches over a job and ends it. Dropping it kills.
pub struct JobControl {
    _private: (),
}

impl JobControl {
    /// What it has used so far.
    pub fn usage(&self) -> Usage {
        Usage::default()
    }

    /// Waits for the job's end, which comes with its limits at the latest; nothing of it is left then.
    /// The streams must be read and the gateway served meanwhile. Dropping the future kills.
    pub async fn finish(self) -> JobEnding {
        JobEnding {
            cause: JobEnd::Killed,
            usage: Usage::default(),
        }
    }

    /// Kills everything in it and waits until it is gone.
    pub async fn kill(self) -> JobEnding {
        self.finish().await
    }
}

/// How a job ended: facts from the kernel, not claims from inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnding {
    /// Why.
    pub cause: JobEnd,
    /// What it had used by then.
    pub usage: Usage,
}

/// Why a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// The program exited with this status.
    Exited(i32),
    /// The program was ended by this signal, from inside.
    Signaled(i32),
    /// This server wanted it.
    Killed,
    /// It was not done within [`JobLimits::wall`].
    TimedOut,
    /// It went over its memory limit.
    OutOfMemory,
    /// What it wrote takes more than [`JobLimits::build_bytes`].
    TooLarge,
    /// The engine lost sight of it; what is known of why.
    Lost(String),
}

impl Jobs {
    /// Starts nothing.
    pub fn new(config: &Config) -> Self {
        Self::with_jail(config, PathBuf::from("/proc/self/exe"))
    }

    /// As [`Jobs::new`], with the program that answers to `jail`: tests are not that program.
    pub fn with_jail(config: &Config, jail: PathBuf) -> Self {
        Self {
            profile: config.profile,
            allow_degraded: config.allow_degraded.clone(),
            python: config.native.python.clone(),
            jail,
        }
    }

    /// Where a job sees this interpreter; `None` is the configured one. Asked once each.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Python`]: there is none there that can serve.
    pub async fn python(&self, _python: Option<&Path>) -> Result<JobPython, LaunchError> {
        Err(LaunchError::Python("jobs cannot be started yet".to_owned()))
    }

    /// Starts one job. It runs from now on, and stops when its pipes are full.
    ///
    /// # Errors
    ///
    /// [`LaunchError`]; nothing is left running.
    pub async fn start(&self, _spec: JobSpec) -> Result<Job, LaunchError> {
        Err(LaunchError::Start("jobs cannot be started yet".to_owned()))
    }
}
