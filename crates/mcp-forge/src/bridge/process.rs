//! A stdio upstream's process: a clean environment, its own process group, bounded standard error.

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::OwnedFd,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, test_kill_process_group,
};
use tokio::{
    io::{AsyncReadExt, unix::AsyncFd},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::text::Secrets;

/// Bytes of standard error kept to explain a failure.
const STDERR_TAIL_BYTES: usize = 4 << 10;
/// Lines of standard error that reach the log in each [`LOG_PERIOD`].
const LOG_LINES: usize = 20;
/// What the kernel gets to end a killed group.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// What the last words of a group that is gone may take to be read. Only a process that left the
/// group and kept its standard error takes so long.
const WORDS_PATIENCE: Duration = Duration::from_secs(2);
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// What an upstream inherits, beside the variables configured for it. `PATH`, `HOME` and their
/// like make programs run at all; the proxies, certificates and tool settings let `npx` and `uvx`
/// download behind a company's proxy. Tokens that happen to be in our environment do not pass.
const INHERITED: [&str; 32] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TEMP",
    "TMP",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "NVM_DIR",
    "PYENV_ROOT",
    "VIRTUAL_ENV",
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "SSH_AUTH_SOCK",
    "NODE_PATH",
];

/// As [`INHERITED`], by how a name starts. npm's and uv's hold registries and cache directories;
/// names that look like credentials are left out.
const INHERITED_PREFIXES: [&str; 5] = ["LC_", "XDG_", "npm_config_", "NPM_CONFIG_", "UV_"];

/// A running upstream. Dropping it kills the whole process group.
pub(super) struct Process {
    child: Child,
    group: Option<Pid>,
    pidfd: Option<AsyncFd<OwnedFd>>,
}

/// The program to run.
#[derive(Clone, Copy)]
pub(super) struct Program<'a> {
    pub(super) command: &'a str,
    pub(super) args: &'a [String],
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) cwd: Option<&'a Path>,
}

impl Process {
    /// Starts the program; its standard error goes to `stderr`.
    ///
    /// # Errors
    ///
    /// One sentence; nothing is left running.
    pub(super) fn start(
        program: Program<'_>,
        stderr: &Arc<Stderr>,
    ) -> Result<(Self, ChildStdout, ChildStdin), String> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the bridge starts the operator's upstreams"
        )]
        let mut command = Command::new(program.command);
        command
            .args(program.args)
            .env_clear()
            .envs(inherited(std::env::vars()))
            .envs(program.env);
        if let Some(directory) = program.cwd {
            command.current_dir(directory);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // An own group: `npx` starts node, and both must go.
        let mut child = command
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| explain(program, &error))?;
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        let pidfd = group.and_then(exit_signal);
        let (stdin, stdout, errors) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let process = Self {
            child,
            group,
            pidfd,
        };
        let (Some(stdin), Some(stdout), Some(errors)) = (stdin, stdout, errors) else {
            return Err(format!("`{}` started without its pipes", program.command));
        };
        stderr.follow(errors);
        Ok((process, stdout, stdin))
    }

    /// Waits until the program itself has exited. It stays unreaped, so that its group's number
    /// cannot be reused before [`Process::stop`].
    pub(super) async fn exited(&self) {
        match &self.pidfd {
            Some(pidfd) => drop(pidfd.readable().await),
            // An old kernel: the end of its output says so too.
            None => std::future::pending().await,
        }
    }

    /// Gives the program `patience` to exit by itself, kills what is left of the group, and says how it ended.
    pub(super) async fn stop(mut self, patience: Duration) -> Option<ExitStatus> {
        let _ = tokio::time::timeout(patience, self.exited()).await;
        let group = self.group;
        self.kill_group();
        let status = tokio::time::timeout(KILL_PATIENCE, self.child.wait()).await;
        if let Some(group) = group {
            let _ = tokio::time::timeout(KILL_PATIENCE, empty(group)).await;
        }
        status.ok()?.ok()
    }

    fn kill_group(&mut self) {
        if let Some(group) = self.group.take() {
            // Fails only if nothing is left of it.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_group();
    }
}

/// Reads an upstream's standard error for as long as it lives: the last part is kept, some lines are logged.
pub(super) struct Stderr {
    upstream: String,
    secrets: Secrets,
    tail: Mutex<VecDeque<u8>>,
    reader: Mutex<Option<Reader>>,
}

/// What reads it, and that all was read.
struct Reader {
    finished: CancellationToken,
    _task: AbortOnDropHandle<()>,
}

impl Stderr {
    pub(super) fn new(upstream: &str, secrets: &Secrets) -> Arc<Self> {
        Arc::new(Self {
            upstream: upstream.to_owned(),
            secrets: secrets.clone(),
            tail: Mutex::default(),
            reader: Mutex::default(),
        })
    }

    /// What to add to the reason of an end, of a program that was stopped: the last lines as one, with
    /// control characters escaped and secrets removed; empty if there were none.
    pub(super) async fn last_words(&self) -> String {
        let finished = self
            .reader
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|reader| reader.finished.clone());
        if let Some(finished) = finished {
            let _ = tokio::time::timeout(WORDS_PATIENCE, finished.cancelled()).await;
        }
        let bytes: Vec<u8> = self
            .tail
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .copied()
            .collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        if lines.is_empty() {
            return String::new();
        }
        let shown = self
            .secrets
            .redact(&lines[lines.len().saturating_sub(8)..].join(" | "));
        let shown = shown
            .escape_debug()
            .to_string()
            .replace("\\\"", "\"")
            .replace("\\'", "'");
        format!("; its standard error ends with: {shown}")
    }

    fn follow(self: &Arc<Self>, errors: ChildStderr) {
        let this = Arc::downgrade(self);
        let finished = CancellationToken::new();
        let at_its_end = finished.clone().drop_guard();
        let task = tokio::spawn(async move {
            let _at_its_end = at_its_end;
            let mut errors = errors;
            let mut buffer = vec![0; 4096];
            let mut log = Log {
                line: Vec::new(),
                left: LOG_LINES,
                since: Instant::now(),
            };
            while let Ok(read @ 1..) = errors.read(&mut buffer).await {
                let Some(this) = this.upgrade() else { return };
                this.take(&buffer[..read], &mut log);
            }
        });
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(Reader {
            finished,
            _task: AbortOnDropHandle::new(task),
        });
    }

    fn take(&self, bytes: &[u8], log: &mut Log) {
        {
            let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
            tail.extend(bytes);
            let excess = tail.len().saturating_sub(STDERR_TAIL_BYTES);
            tail.drain(..excess);
        }
        for &byte in bytes {
            if byte != b'\n' {
                if log.line.len() < 500 {
                    log.line.push(byte);
                }
                continue;
            }
            if log.since.elapsed() > LOG_PERIOD {
                (log.left, log.since) = (LOG_LINES, Instant::now());
            }
            if let Some(left) = log.left.checked_sub(1) {
                log.left = left;
                let line = self.secrets.redact(&String::from_utf8_lossy(&log.line));
                tracing::info!(upstream = %self.upstream, "stderr: {}", line.escape_debug());
            }
            log.line.clear();
        }
    }
}

struct Log {
    line: Vec<u8>,
    left: usize,
    since: Instant,
}

/// Waits until the processes of a killed group, which others reap, are gone.
async fn empty(group: Pid) {
    while test_kill_process_group(group).is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Becomes readable when the process exits, and does not reap it.
fn exit_signal(process: Pid) -> Option<AsyncFd<OwnedFd>> {
    let descriptor = pidfd_open(process, PidfdFlags::NONBLOCK).ok()?;
    #[expect(
        deprecated,
        reason = "an owned descriptor is all that the unsafe form asks for, and this crate has no unsafe"
    )]
    AsyncFd::new(descriptor).ok()
}

fn inherited(
    variables: impl Iterator<Item = (String, String)>,
) -> impl Iterator<Item = (String, String)> {
    variables.filter(|(name, _)| {
        let upper = name.to_ascii_uppercase();
        let credential = [
            "TOKEN",
            "PASS",
            "SECRET",
            "AUTH",
            "KEY",
            "CREDENTIAL",
            "USERNAME",
        ];
        INHERITED.contains(&name.as_str())
            || INHERITED_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
                && !credential.iter().any(|word| upper.contains(word))
    })
}

fn explain(program: Program<'_>, error: &std::io::Error) -> String {
    let command = program.command;
    match (error.kind(), program.cwd) {
        (_, Some(directory)) if !directory.is_dir() => {
            format!("its directory `{}` does not exist", directory.display())
        }
        (std::io::ErrorKind::NotFound, _) => {
            format!("there is no program `{command}` on PATH; install it or give its full path")
        }
        (std::io::ErrorKind::PermissionDenied, _) => format!("`{command}` may not be executed"),
        _ => format!("`{command}` could not be started: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_base_environment_is_inherited() {
        let names = [
            "PATH",
            "LC_ALL",
            "npm_config_cache",
            "npm_config__authToken",
            "UV_INDEX_ACME_PASSWORD",
            "UV_CACHE_DIR",
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "HTTPS_PROXY",
            "LD_PRELOAD",
            "NODE_OPTIONS",
            "MCP_FORGE_TOKEN",
        ];
        let kept = inherited(
            names
                .into_iter()
                .map(|name| (name.to_owned(), String::new())),
        );
        let kept: Vec<String> = kept.map(|(name, _)| name).collect();
        assert_eq!(
            kept,
            [
                "PATH",
                "LC_ALL",
                "npm_config_cache",
                "UV_CACHE_DIR",
                "HTTPS_PROXY"
            ]
        );
    }
}
