//! mcp-forge with containers: a service of the bench's own, and a pause after each sample.

use std::{
    fs::File,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde_json::Value;

use super::{
    programs::{Driver, Sample, Sampler},
    watchdog::end_group,
    workloads::Workload,
};

/// Time for the service to listen.
const START_LIMIT: Duration = Duration::from_secs(20);

/// After a sample containers are started ahead again: the next contender shall not pay for that.
const PAUSE: Duration = Duration::from_millis(1500);

/// A service of containers, ended with its contender.
pub(crate) struct Service {
    child: Child,
    /// Short, since a socket's address has room for 107 bytes.
    directory: PathBuf,
}

impl Service {
    /// Starts `podman system service` with the storage that `podman` names.
    ///
    /// # Errors
    ///
    /// It does not start, or does not listen.
    pub(crate) fn start(mut podman: Command, log: &std::path::Path) -> anyhow::Result<Self> {
        let directory = std::env::temp_dir().join(format!("bench-podman-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let socket = directory.join("s");
        let log = File::options().create(true).append(true).open(log)?;
        podman
            .args(["system", "service", "--time=0"])
            .arg(format!("unix://{}", socket.display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        let child = podman.spawn().context("podman does not start")?;
        let service = Self { child, directory };
        let started = Instant::now();
        while !service.socket().exists() {
            if started.elapsed() > START_LIMIT {
                bail!("podman's service does not listen");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(service)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        end_group(self.child.id());
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The driver, and the service that it uses. Fields are dropped in their order.
pub(crate) struct OfContainers {
    pub(crate) driver: Driver,
    pub(crate) service: Service,
}

impl Sampler for OfContainers {
    fn sample(&mut self, workload: &Workload) -> anyhow::Result<Sample> {
        let sample = self.driver.sample(workload);
        thread::sleep(PAUSE);
        sample
    }

    fn ask(&mut self, request: &Value, limit: Duration) -> anyhow::Result<Value> {
        let _ = &self.service;
        self.driver.ask(request, limit)
    }
}
