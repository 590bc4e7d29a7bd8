//! Build jobs: one program of the operator's in a sealed sandbox, with one writable directory and one
//! listener that this server answers on.
//!
//! The sandbox is that of user code, layer for layer, with what a build needs on top: a host
//! directory at `/build`, and a loopback that is up, on which one address listens. That socket was
//! made in the job's own network before the seal and belongs to it; who accepts is this server. The
//! job itself has no route anywhere.

use std::{
    collections::BTreeMap,
    fmt, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use jail::{meter::OpenMeter, spec::GATEWAY_PORT};
use rustix::fs::{Mode, OFlags};
use tokio::{net::TcpListener, sync::Mutex, time::Instant};

use super::{interpreter, launch, minimal, output_pipe::OutputPipe, render};
use crate::{
    config::{Config, Profile},
    engine::{ExitCause, Guard, Isolation, LaunchError, Usage},
};

use lines::Lines;
use occupied::Written;

pub use jail::spec::BUILD;
pub(crate) use occupied::takes_more_than;

mod asked;
mod lines;
mod occupied;

/// Bytes of a program that a job is given, at most.
const MOST_PROGRAM_BYTES: u64 = 256 << 20;

/// How often the file system is asked what it has lost while a job runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long files are not looked at while it has lost little.
const LOOK_AT_FILES_EVERY: Duration = Duration::from_secs(5);

/// Starts build jobs, whatever engine runs user code.
#[derive(Debug)]
pub struct Jobs {
    profile: Profile,
    allow_degraded: Vec<String>,
    /// The configured interpreter.
    python: Option<PathBuf>,
    /// This program's own binary.
    jail: PathBuf,
    /// What was found of each interpreter, by the path that was asked for.
    hosts: Mutex<BTreeMap<Option<PathBuf>, Arc<Known>>>,
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
    /// link to one. A server that is root gives it (not what is in it) to the builder's own user id
    /// first, which is the same for all jobs and no sandbox's; else it must be the server's user's own.
    /// What the server itself puts into it the job can read if others may, and not change.
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
    /// Bytes of disk that may be written in [`BUILD`] while it runs, by it and whoever else. Looked at
    /// ten times a second while [`JobControl::finish`] waits, so a fast writer can be ahead of it for so
    /// long; or for five seconds, where others free as much meanwhile.
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

impl Jobs {
    /// Starts nothing.
    pub fn new(config: &Config) -> Self {
        // Not the path: it may name another file by the time of a launch.
        Self::with_jail(config, PathBuf::from("/proc/self/exe"))
    }

    /// As [`Jobs::new`], with the program that answers to `jail`: tests are not that program.
    pub fn with_jail(config: &Config, jail: PathBuf) -> Self {
        jail::cgroup::remove_stale();
        Self {
            profile: config.profile,
            allow_degraded: config.allow_degraded.clone(),
            python: config.native.python.clone(),
            jail,
            hosts: Mutex::default(),
        }
    }

    /// Where a job sees this interpreter; `None` is the configured one. Each is asked once.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Python`]: there is none there that can serve.
    pub async fn python(&self, python: Option<&Path>) -> Result<JobPython, LaunchError> {
        Ok(self.known(python).await?.python.clone())
    }

    /// Starts one job. It runs from now on, and stands still when its pipes are full.
    ///
    /// # Errors
    ///
    /// [`LaunchError`]; nothing is left running.
    pub async fn start(&self, spec: JobSpec) -> Result<Job, LaunchError> {
        let known = self.known(spec.python.as_deref()).await?;
        let build = hand_over(&spec.build).map_err(|error| {
            let path = spec.build.display();
            LaunchError::Start(format!(
                "the build directory {path} cannot be used: {error}"
            ))
        })?;
        check_program(&spec.program)?;
        let required = super::required(self.profile, &self.allow_degraded);
        let jail_spec = asked::jail_spec(&spec, &build, &known, required);
        let deadline = Instant::now() + spec.limits.wall;
        // Whoever finishes it may come late, and what was written by then counts as well.
        let before = Before::now(&build).await;
        let launched = launch::launch_job(&self.jail, &jail_spec, self.profile).await?;
        let failed = |error: io::Error| LaunchError::Start(error.to_string());
        Ok(Job {
            stdout: JobOutput(Lines::new(launched.stdout)),
            stderr: JobOutput(Lines::new(launched.stderr)),
            gateway: listener_of(launched.listener).map_err(failed)?,
            isolation: launched.isolation,
            control: JobControl {
                keeper: launched.keeper,
                deadline,
                build,
                build_bytes: spec.limits.build_bytes,
                before,
            },
        })
    }

    /// The host as jobs see it. Always its own `/usr`: a private root has not what tools need.
    async fn known(&self, python: Option<&Path>) -> Result<Arc<Known>, LaunchError> {
        let mut hosts = self.hosts.lock().await;
        let key = python.map(Path::to_owned);
        if let Some(known) = hosts.get(&key) {
            return Ok(known.clone());
        }
        let found = match python {
            None => interpreter::find(self.python.as_deref()).await,
            Some(path) => interpreter::ask(path)
                .await
                .map_err(|reason| format!("{} was to be built for, but {reason}", path.display())),
        };
        let mut found = found.map_err(LaunchError::Python)?;
        // A build starts from the bare interpreter.
        found.environment = None;
        let (executable, version) = (found.executable.clone(), found.version);
        let host = render::Host::read(render::Base::new(found), None);
        let known = Arc::new(Known {
            python: JobPython {
                program: host.python().display().to_string(),
                executable,
                version,
            },
            host,
            certificates: certificates(),
        });
        hosts.insert(key, known.clone());
        Ok(known)
    }
}

/// What is known of the host, for one interpreter.
#[derive(Debug)]
struct Known {
    host: render::Host,
    python: JobPython,
    /// The operator's bundle.
    certificates: Option<PathBuf>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("isolation", &self.isolation)
            .finish_non_exhaustive()
    }
}

/// One stream of a job's output, read by lines that are bounded, and bounded in all.
#[derive(Debug)]
pub struct JobOutput(Lines<OutputPipe>);

impl JobOutput {
    /// The next line that is not empty, without its end, made text and cut after 4 KiB. `None` at the
    /// end of the stream. After 4 MiB in all, the rest is read and dropped: a writer must not be
    /// stopped by it. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    ///
    /// The pipe's.
    pub async fn line(&mut self) -> io::Result<Option<String>> {
        self.0.next().await
    }

    /// All lines still to come, joined; of them the last `most` bytes, from a line's beginning on.
    pub async fn rest(mut self, most: usize) -> String {
        let mut kept = std::collections::VecDeque::new();
        let mut bytes = 0;
        while let Ok(Some(line)) = self.line().await {
            bytes += line.len() + 1;
            kept.push_back(line);
            while bytes > most
                && let Some(first) = kept.pop_front()
            {
                bytes -= first.len() + 1;
            }
        }
        Vec::from(kept).join("\n")
    }
}

/// Watches over a job and ends it. Dropping it kills.
#[derive(Debug)]
pub struct JobControl {
    keeper: launch::LifeLine,
    deadline: Instant,
    build: PathBuf,
    build_bytes: u64,
    before: Before,
}

impl JobControl {
    /// What it has used so far.
    pub fn usage(&self) -> Usage {
        self.keeper.usage()
    }

    /// What reads its use from elsewhere while it runs.
    pub fn meter(&self) -> Option<Arc<OpenMeter>> {
        self.keeper.meter()
    }

    /// Waits for the job's end, which comes with its limits at the latest; nothing of it is left then.
    /// Meanwhile the streams must be read and the gateway served. Dropping the future kills.
    pub async fn finish(self) -> JobEnding {
        let Self {
            keeper,
            deadline,
            build,
            build_bytes,
            before,
        } = self;
        let stopper = keeper.stopper();
        let mut ending = Box::new(keeper).end(deadline.saturating_duration_since(Instant::now()));
        let too_large = watch(build, build_bytes, before);
        let mut is_too_large = false;
        let ending = tokio::select! {
            ending = &mut ending => ending,
            () = too_large => {
                is_too_large = true;
                // What the keeper takes for our end: it kills, and reports. Without the handle, so
                // does dropping the socket at the deadline.
                if let Ok(socket) = &stopper {
                    rustix::net::shutdown(socket, rustix::net::Shutdown::Write).ok();
                }
                ending.await
            }
        };
        let cause = match ending.cause {
            ExitCause::Killed if is_too_large => JobEnd::TooLarge,
            ExitCause::Killed if Instant::now() >= deadline => JobEnd::TimedOut,
            ExitCause::Killed => JobEnd::Killed,
            ExitCause::Exited(status) => JobEnd::Exited(status),
            ExitCause::Signaled(signal) => JobEnd::Signaled(signal),
            ExitCause::OutOfMemory => JobEnd::OutOfMemory,
            ExitCause::Lost(reason) => JobEnd::Lost(reason),
        };
        JobEnding {
            cause,
            usage: ending.usage,
        }
    }

    /// Kills everything in it and waits until it is gone.
    pub async fn kill(self) -> JobEnding {
        let ending = Box::new(self.keeper).end(Duration::ZERO).await;
        let cause = match ending.cause {
            ExitCause::Lost(reason) => JobEnd::Lost(reason),
            _ => JobEnd::Killed,
        };
        JobEnding {
            cause,
            usage: ending.usage,
        }
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
    /// What was written in [`BUILD`] takes more than [`JobLimits::build_bytes`].
    TooLarge,
    /// The engine lost sight of it; what is known of why.
    Lost(String),
}

/// How it was before a job began.
#[derive(Debug)]
struct Before {
    /// Bytes that were free.
    free: u64,
    /// The second, since 1970.
    since: i64,
}

impl Before {
    async fn now(build: &Path) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            free: free_bytes(build.to_owned()).await.unwrap_or(0),
            since: since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0)),
        }
    }
}

/// Waits until more than this was written. What the file system has lost is asked often, and only
/// when that is too much, or was not looked at for long, files are: a cache of years has many of them.
async fn watch(build: PathBuf, most: u64, Before { mut free, since }: Before) {
    let mut lost: u64 = 0;
    let mut looked = Instant::now();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = free_bytes(build.clone()).await.unwrap_or(free);
        // What others free meanwhile is no room for this.
        lost = lost.saturating_add(free.saturating_sub(now));
        free = now;
        let is_suspect = lost > most;
        // What others free at the same moment hides what was written: then only the files tell.
        if !is_suspect && looked.elapsed() < LOOK_AT_FILES_EVERY {
            continue;
        }
        let build = build.clone();
        let look =
            tokio::task::spawn_blocking(move || occupied::written_since(&build, most, since));
        match look.await {
            Ok(Ok(Written::TooMuch)) => return,
            // Another's job may have left such a thing, so it is no crime where little was written.
            Ok(Ok(Written::Hidden)) if is_suspect => return,
            // What others wrote and freed is no longer held against it.
            Ok(Ok(Written::Bytes(bytes))) => lost = bytes,
            // A directory that is gone takes nothing.
            _ => {}
        }
        looked = Instant::now();
    }
}

/// Bytes that are free where this directory is.
async fn free_bytes(directory: PathBuf) -> Option<u64> {
    let asked = tokio::task::spawn_blocking(move || rustix::fs::statvfs(&directory)).await;
    let found = asked.ok()?.ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Makes a directory the jobs' user's, and gives its plain path.
///
/// # Errors
///
/// The system's, or it is somebody else's and the server may not give it away.
pub fn hand_over(build: &Path) -> io::Result<PathBuf> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(build, flags, Mode::empty())?;
    if let Some((uid, gid)) = jail::job_ids() {
        let (uid, gid) = (
            rustix::fs::Uid::from_raw(uid),
            rustix::fs::Gid::from_raw(gid),
        );
        rustix::fs::fchown(&directory, Some(uid), Some(gid))?;
    } else if rustix::fs::fstat(&directory)?.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    build.canonicalize()
}

fn check_program(program: &JobProgram) -> Result<(), LaunchError> {
    let JobProgram::Tool(path) = program else {
        return Ok(());
    };
    let refused = |reason: String| {
        LaunchError::Start(format!(
            "the program {} cannot be used: {reason}",
            path.display()
        ))
    };
    let meta = path
        .metadata()
        .map_err(|error| refused(error.to_string()))?;
    if !meta.is_file() {
        return Err(refused("it is no file".to_owned()));
    }
    if meta.len() > MOST_PROGRAM_BYTES {
        let mebibytes = MOST_PROGRAM_BYTES >> 20;
        return Err(refused(format!("it is larger than {mebibytes} MiB")));
    }
    Ok(())
}

/// The socket that came from the job's network, as one that this server waits on.
fn listener_of(listener: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    // Ours, and not whatever else might be passed by mistake.
    let expected = (std::net::Ipv4Addr::LOCALHOST, GATEWAY_PORT).into();
    if listener.local_addr()? != expected || !rustix::net::sockopt::socket_acceptconn(&listener)? {
        return Err(io::Error::other(
            "it brought another descriptor than its listener",
        ));
    }
    TcpListener::from_std(listener)
}

/// The host's certificates, which may have the operator's own among them.
fn certificates() -> Option<PathBuf> {
    minimal::CERTIFICATES
        .iter()
        .find_map(|path| Path::new(path).canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before anybody looked, or hidden by what others freed: the files tell.
    #[tokio::test]
    async fn what_the_file_system_does_not_tell_of_is_seen_all_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let before = Before::now(directory.path()).await;
        std::fs::write(directory.path().join("file"), vec![1; 4 << 20]).unwrap();
        let hidden = Before {
            free: 0,
            since: before.since,
        };
        for before in [before, hidden] {
            let seen = watch(directory.path().to_owned(), 1 << 20, before);
            tokio::time::timeout(Duration::from_mins(1), seen)
                .await
                .unwrap();
        }
    }

    #[test]
    fn a_build_directory_that_is_a_link_or_no_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().join("real");
        std::fs::create_dir(&real).unwrap();
        assert_eq!(hand_over(&real).unwrap(), real.canonicalize().unwrap());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(hand_over(&link).is_err());
        std::fs::write(directory.path().join("file"), "").unwrap();
        assert!(hand_over(&directory.path().join("file")).is_err());
        assert!(hand_over(&directory.path().join("none")).is_err());
    }
}
