//! What the tests of build jobs share: a place, a job run to its end, what it said.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use mcp_forge::{
    engine::{
        LaunchError,
        native::job::{Job, JobEnding, JobLimits, JobProgram, JobSpec, Jobs},
    },
    environments::gateway::{Destination, Gateway, GatewayLimits},
};

use crate::sandbox;

/// The key that refusals name.
pub(super) const KEY: &str = "environment_builder.file_hosts";

/// A directory like a server's data directory, and what starts jobs for it.
pub(super) struct Bench {
    pub(super) directory: tempfile::TempDir,
    pub(super) jobs: Jobs,
}

/// How a job ended and what it said.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) ending: JobEnding,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Bench {
    /// As in a release.
    pub(super) fn new() -> Self {
        Self::with(&sandbox::binary(), &[])
    }

    /// The test build, without these layers.
    pub(super) fn without(layers: &[&str]) -> Self {
        Self::with(crate::escape::elsewhere::negative_controls(), layers)
    }

    /// Between server and jail stands a script, which plants what a careless server would pass on.
    #[expect(clippy::disallowed_methods, reason = "a test writes a script")]
    fn with(program: &Path, layers: &[&str]) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("jobs-private-user-")
            .tempdir()
            .unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let script = directory.path().join("start.sh");
        let text = format!(
            "#!/bin/sh\nexec 9</\nexport MCP_FORGE_OMIT_LAYERS='{}' PLANTED_SECRET_TOKEN=planted-secret-value\nexec '{}' \"$@\"\n",
            layers.join(","),
            program.display()
        );
        // Written by another process: one that this has open for writing cannot be executed.
        let wrote = Command::new("/bin/sh")
            .args([
                "-c",
                "printf '%s' \"$1\" > \"$2\" && chmod 755 \"$2\"",
                "sh",
            ])
            .arg(text)
            .arg(&script)
            .status()
            .unwrap();
        assert!(wrote.success());
        let mut config = sandbox::config();
        directory.path().clone_into(&mut config.data_dir);
        Self {
            jobs: Jobs::with_jail(&config, script),
            directory,
        }
    }

    /// A new directory for a job to write.
    pub(super) fn build(&self, name: &str) -> PathBuf {
        let build = self.directory.path().join(name);
        fs::create_dir_all(&build).unwrap();
        build
    }

    /// The interpreter with this code, in a build directory of its own.
    pub(super) fn python(&self, code: &str) -> JobSpec {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        JobSpec {
            id: format!("job-test-{}-{number}", std::process::id()),
            program: JobProgram::Python,
            arguments: ["-I", "-c", code].map(str::to_owned).to_vec(),
            variables: Vec::new(),
            files: Vec::new(),
            trees: Vec::new(),
            build: self.build(&format!("build-{number}")),
            python: None,
            limits: limits(),
        }
    }

    /// The real uv.
    pub(super) fn uv(&self, build: &Path, arguments: &[&str]) -> JobSpec {
        JobSpec {
            program: JobProgram::Tool(uv()),
            arguments: arguments
                .iter()
                .map(|argument| (*argument).to_owned())
                .collect(),
            variables: [
                ("UV_CACHE_DIR", "/build/cache"),
                ("UV_NO_CONFIG", "1"),
                ("UV_NO_PROGRESS", "1"),
                ("UV_PYTHON_DOWNLOADS", "never"),
                // The public index is far away.
                ("UV_HTTP_RETRIES", "5"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
            build: build.to_owned(),
            ..self.python("")
        }
    }

    /// Runs a job to its end; `gateway` answers it, or nobody does.
    pub(super) async fn run(&self, spec: JobSpec, gateway: Option<Gateway>) -> Done {
        let job = self.jobs.start(spec).await.unwrap();
        finish(job, gateway).await
    }

    /// Runs a job that must not start.
    pub(super) async fn refused(&self, spec: JobSpec) -> LaunchError {
        self.jobs.start(spec).await.map(|_| ()).unwrap_err()
    }
}

pub(super) async fn finish(job: Job, gateway: Option<Gateway>) -> Done {
    let Job {
        stdout,
        stderr,
        gateway: listener,
        control,
        ..
    } = job;
    let served = async {
        if let Some(gateway) = gateway {
            gateway.serve(listener).await
        } else {
            let _open = listener;
            std::future::pending().await
        }
    };
    let most = 1 << 20;
    let done = async { tokio::join!(control.finish(), stdout.rest(most), stderr.rest(most)) };
    tokio::select! {
        (ending, stdout, stderr) = done => Done { ending, stdout, stderr },
        error = served => panic!("the gateway ended: {error}"),
    }
}

/// Little enough to be reached quickly, enough for uv.
pub(super) fn limits() -> JobLimits {
    JobLimits {
        memory_bytes: 512 << 20,
        cpu_quota_us: 200_000,
        pids: 64,
        wall: Duration::from_mins(2),
        file_bytes: 64 << 20,
        build_bytes: 16 << 30,
    }
}

/// A gateway to these, tunnels on port 443 and plain ones on any.
pub(super) fn gateway(tls: &[(&str, u16)], plain: &[(&str, u16)]) -> Gateway {
    let tls = tls
        .iter()
        .map(|(host, port)| Destination::tls(host, *port).unwrap());
    let plain = plain
        .iter()
        .map(|(host, port)| Destination::plain(host, *port).unwrap());
    Gateway::new(tls.chain(plain), KEY, GatewayLimits::default())
}

/// The uv that `cargo xtask test` installs.
pub(super) fn uv() -> PathBuf {
    let tools = std::env::var_os("FORGE_TEST_TOOLS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-tools"),
        PathBuf::from,
    );
    let uv = tools.join("venv/bin/uv");
    assert!(
        uv.exists(),
        "{} is missing: run cargo xtask test",
        uv.display()
    );
    uv
}

/// What a probe printed last: its attempts, and which of them worked.
pub(super) fn attempts(done: &Done) -> BTreeMap<String, bool> {
    let last = done.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}
