//! One run of `uv` in a job, its way to the index, and how far it is.

use std::{sync::Arc, time::Duration};

use tokio::time::interval;

use super::{
    EnvironmentsError,
    gateway::{Destination, Gateway, GatewayLimits, Traffic},
    places::Places,
    progress::{Phase, Taken, Teller},
    site::Site,
    uv::{self, Asked},
};
use crate::{
    config::{EnvironmentSettings, size::show_size},
    engine::native::job::{Job, JobEnd, JobLimits, JobOutput, JobProgram, JobSpec, Jobs},
    packages::MAX_LOCK_BYTES,
};

/// The configuration key that an operator changes to let builds reach another host.
const HOSTS_KEY: &str = "environment_builder.file_hosts";

/// Lines of `uv`'s that are kept.
const MOST_LINES: usize = 10_000;

/// Memory of a job: `uv` holds what it unpacks, and compiles with one process a core.
const MEMORY: u64 = 4 << 30;

/// Processes and threads of a job.
const PIDS: u64 = 512;

/// The kernel's word for a file that is larger than it may be.
const SIGXFSZ: i32 = 25;

/// Between two looks at how many bytes have come.
const LOOK: Duration = Duration::from_millis(250);

/// What runs jobs for one build.
#[derive(Debug, Clone, Copy)]
pub(super) struct Runner<'a> {
    pub(super) jobs: &'a Jobs,
    pub(super) settings: &'a EnvironmentSettings,
    pub(super) places: &'a Places,
    pub(super) program: &'a std::path::Path,
    pub(super) interpreter: &'a std::path::Path,
    pub(super) teller: &'a Teller,
}

/// What a job that ended well has said.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) stdout: Vec<String>,
}

impl Runner<'_> {
    /// Runs `uv`, and tells how far it is. What it says in vain is the error's text.
    ///
    /// # Errors
    ///
    /// Made by `failed` of what `uv` complained of; or no job could be had, or it hit a limit.
    pub(super) async fn run(
        &self,
        id: String,
        asked: Asked,
        failed: fn(String) -> EnvironmentsError,
    ) -> Result<Said, EnvironmentsError> {
        let Job {
            stdout,
            stderr,
            gateway: listener,
            control,
            ..
        } = self.jobs.start(self.spec(id, asked)).await?;
        let gateway = Gateway::new(self.destinations(), HOSTS_KEY, self.gateway_limits());
        let traffic = gateway.traffic();
        let mut taken = Taken::begin(self.teller, control.meter());
        let work = async { tokio::join!(keep(stdout), self.follow(stderr), control.finish()) };
        let (said, complained, ending) = tokio::select! {
            done = work => done,
            // Neither ends before the work does.
            error = gateway.serve(listener) => {
                return Err(failed(format!("the way to the index broke: {error}")));
            }
            () = self.watch(Arc::clone(&traffic)) => return Err(failed("it was not watched".to_owned())),
        };
        taken.tell(ending.usage.cpu_ms);
        match ending.cause {
            JobEnd::Exited(0) => Ok(Said { stdout: said }),
            JobEnd::Exited(_) if is_disk_full(&complained) => Err(EnvironmentsError::Files {
                path: self.places.writable().to_owned(),
                source: rustix::io::Errno::NOSPC.into(),
            }),
            JobEnd::Exited(_) => Err(failed(explain(&complained, &traffic))),
            JobEnd::TimedOut => {
                let limit = self.settings.max_build_time.as_secs();
                Err(EnvironmentsError::TimedOut(limit))
            }
            JobEnd::TooLarge | JobEnd::Signaled(SIGXFSZ) => Err(EnvironmentsError::TooLarge {
                takes: "takes".to_owned(),
                most: show_size(self.settings.max_bytes),
            }),
            JobEnd::OutOfMemory => Err(failed(format!(
                "uv needed more than {} of memory",
                show_size(MEMORY)
            ))),
            JobEnd::Signaled(signal) => Err(failed(format!(
                "uv was ended by signal {signal}: {}",
                uv::complaint(&complained)
            ))),
            JobEnd::Killed => Err(failed("uv was killed".to_owned())),
            JobEnd::Lost(reason) => Err(failed(format!("the job was lost: {reason}"))),
        }
    }

    fn spec(&self, id: String, asked: Asked) -> JobSpec {
        let wheels = self.settings.wheel_directory.iter();
        JobSpec {
            id,
            program: JobProgram::Tool(self.program.to_owned()),
            arguments: asked.arguments,
            variables: asked.variables,
            files: asked.files,
            trees: wheels
                .map(|directory| (directory.clone(), uv::WHEELS.to_owned()))
                .collect(),
            build: self.places.writable().to_owned(),
            python: Some(self.interpreter.to_owned()),
            limits: self.limits(),
        }
    }

    /// What the resolver wrote, if it is no larger than any lock may be.
    ///
    /// # Errors
    ///
    /// It wrote none, or one that is too large.
    pub(super) async fn lock_text(&self, site: &Site) -> Result<String, EnvironmentsError> {
        let problem = match site.read("pylock.toml", MAX_LOCK_BYTES as u64).await {
            Ok(bytes) => match String::from_utf8(bytes) {
                Ok(text) => return Ok(text),
                Err(_) => "it is no text".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        Err(EnvironmentsError::Resolve(format!(
            "uv wrote no lock: {problem}"
        )))
    }

    fn limits(&self) -> JobLimits {
        JobLimits {
            memory_bytes: MEMORY,
            // As many cores as there are: compiling uses them.
            cpu_quota_us: 100_000
                * std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            pids: PIDS,
            wall: self.settings.max_build_time,
            file_bytes: self.settings.max_bytes,
            build_bytes: disk(self.settings),
        }
    }

    fn gateway_limits(&self) -> GatewayLimits {
        GatewayLimits {
            // Wheels are smaller than what they unpack to; metadata comes on top.
            bytes: self.settings.max_bytes.saturating_mul(2),
            ..GatewayLimits::default()
        }
    }

    fn destinations(&self) -> Vec<Destination> {
        if self.settings.wheel_directory.is_some() {
            return Vec::new();
        }
        let indexes = std::iter::once(&self.settings.index)
            .chain(self.settings.extra_indexes.iter().map(|extra| &extra.url));
        let mut all: Vec<Destination> = indexes
            .filter_map(|url| {
                let make = if url.expose().starts_with("http://") {
                    Destination::plain
                } else {
                    Destination::tls
                };
                make(url.host(), url.port()).ok()
            })
            .collect();
        let hosts = self.settings.file_hosts.iter();
        all.extend(hosts.filter_map(|host| match host.rsplit_once(':') {
            Some((host, port)) => Destination::tls(host, port.parse().ok()?).ok(),
            None => Destination::tls(host, 443).ok(),
        }));
        all.sort();
        all.dedup();
        all
    }

    async fn follow(&self, mut stderr: JobOutput) -> Vec<String> {
        let mut lines = Vec::new();
        while let Ok(Some(line)) = stderr.line().await {
            if let Some((phase, detail)) = uv::phase_of(&line) {
                self.teller.phase(phase, detail);
            }
            if lines.len() < MOST_LINES {
                lines.push(line);
            }
        }
        lines
    }

    async fn watch(&self, traffic: Arc<Traffic>) {
        let mut ticks = interval(LOOK);
        loop {
            ticks.tick().await;
            self.teller.fetched(traffic.bytes());
        }
    }

    /// Says that a phase begins.
    pub(super) fn phase(&self, phase: Phase) {
        self.teller.phase(phase, "");
    }
}

/// Bytes of disk that jobs may take: each build's wheels as they come, unpacked and copied.
pub(super) fn disk(settings: &EnvironmentSettings) -> u64 {
    let builds = settings.max_concurrent_builds as u64;
    settings.max_bytes.saturating_mul(3).saturating_mul(builds)
}

async fn keep(mut output: JobOutput) -> Vec<String> {
    let mut lines = Vec::new();
    while let Ok(Some(line)) = output.line().await {
        if lines.len() < MOST_LINES {
            lines.push(line);
        }
    }
    lines
}

/// Whether `uv` could not write to the directory that it has from us: nothing that the caller can mend.
fn is_disk_full(complained: &[String]) -> bool {
    complained
        .iter()
        .any(|line| line.contains("No space left on device") && line.contains("/build/"))
}

/// `uv`'s complaint, and what the gateway knows of its cause.
fn explain(complained: &[String], traffic: &Traffic) -> String {
    let mut text = uv::complaint(complained);
    let refused = traffic.refused();
    if !refused.is_empty() {
        text = format!(
            "{text} (hosts that builds may not reach: {}; `{HOSTS_KEY}` lists those that they may)",
            refused.join(", ")
        );
    }
    let unreachable = traffic.unreachable();
    if !unreachable.is_empty() {
        text = format!(
            "{text} (not reached: {})",
            unreachable
                .into_iter()
                .map(|(host, reason)| format!("{host}: {reason}"))
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    if traffic.is_exhausted() {
        text.push_str(" (more was downloaded than one build may)");
    }
    text
}
