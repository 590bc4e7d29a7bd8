//! Finding a server of the data directory for a command: one that is there, or one in the background.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use tokio::{
    task::JoinHandle,
    time::{Duration, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    mcp::{
        Door, ServeError,
        client::{Client, ClientError},
        serve_client,
    },
    servers::{ServerName, Servers, ServersError},
    service::Service,
    text::printable,
};

use super::{CliError, end};

/// Where a background server's messages go, in the data directory.
const LOG: &str = "background.log";

/// A log larger than this, in bytes, is begun anew.
const LOG_BYTES: u64 = 1 << 20;

/// Of a log's end, read to tell why a server did not start.
const LOG_END: u64 = 4096;

/// Tries to reach a server: each may leave between being found and being spoken to.
const ATTEMPTS: usize = 5;

/// How long a server may take to say hello. One that is stopped never does.
const HELLO: Duration = Duration::from_secs(10);

/// Bytes between this process and the server in it.
const PIPE_BYTES: usize = 1 << 16;

/// No server could be reached. No code ran.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The sockets cannot be used.
    #[error(transparent)]
    Servers(#[from] ServersError),
    /// A server was reached, but could not be spoken with.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No server could be started in the background.
    #[error("a server could not be started in the background: {problem} ({} has more)", log.display())]
    Start {
        /// Its last words, or the system's answer.
        problem: String,
        /// Its log.
        log: PathBuf,
    },
    /// A server took the connection and then said nothing.
    #[error("the server does not answer")]
    Silent,
    /// They all left as soon as they were found.
    #[error("servers were found, but all of them left before they answered; try again")]
    Restless,
}

/// How servers are found, and how one is started.
#[derive(Debug)]
pub(super) struct Reach {
    servers: Arc<Servers>,
    data_dir: PathBuf,
    /// The configuration file of this command, for a server that it starts.
    config_file: Option<PathBuf>,
}

impl Reach {
    pub(super) fn new(config: &Config, config_file: Option<PathBuf>) -> Result<Self, CliError> {
        config.create_data_dir()?;
        Ok(Self {
            servers: Servers::open(&config.data_dir).map_err(ReachError::from)?,
            data_dir: config.data_dir.clone(),
            config_file,
        })
    }

    /// A server that is there, if there is one.
    pub(super) async fn find(&self) -> Result<Option<Client>, ReachError> {
        let names = self.servers.list()?;
        Ok(self.first_of(names.iter()).await)
    }

    /// A server: one that is there, else one that is started in the background.
    pub(super) async fn find_or_start(&self) -> Result<Client, ReachError> {
        for _ in 0..ATTEMPTS {
            if let Some(client) = self.find().await? {
                return Ok(client);
            }
            let servers = Arc::clone(&self.servers);
            // Others may be starting one: then theirs is there when the lock is ours.
            let locked = tokio::task::spawn_blocking(move || servers.lock_start());
            let _lock = locked.await.map_err(|error| self.not_started(&error))??;
            if let Some(client) = self.find().await? {
                return Ok(client);
            }
            self.start().await?;
        }
        Err(ReachError::Restless)
    }

    /// The servers of one process id. There may be several: containers share data directories, and
    /// each counts its own processes.
    pub(super) async fn of_process(&self, pid: i64) -> Result<Vec<Client>, ReachError> {
        let mut clients = Vec::new();
        for name in self.servers.list()? {
            if i64::from(name.pid) == pid {
                clients.extend(self.first_of([&name].into_iter()).await);
            }
        }
        Ok(clients)
    }

    async fn first_of(&self, names: impl Iterator<Item = &ServerName>) -> Option<Client> {
        for name in names {
            let opened = match self.servers.connect(name).await {
                Ok(None) => continue,
                Ok(Some(stream)) => match timeout(HELLO, Client::open(stream)).await {
                    Ok(opened) => opened.map_err(ReachError::from),
                    Err(_) => Err(ReachError::Silent),
                },
                Err(error) => Err(error.into()),
            };
            match opened {
                Ok(client) => return Some(client),
                // It left in this moment.
                Err(ReachError::Client(ClientError::Gone(_))) => {}
                // Another may do.
                Err(error) => tracing::warn!(server = %name, "a server was passed over: {error}"),
            }
        }
        None
    }

    /// Starts a server in the background, and waits until it listens.
    async fn start(&self) -> Result<(), ReachError> {
        let failed = |error: io::Error| self.not_started(&error);
        let log = self.open_log().map_err(failed)?;
        let began = log.metadata().map_err(failed)?.len();
        // What this process was given by whoever started it is not for a process that stays.
        jail::pass_no_descriptors().map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = self.command(&program, &log).map_err(failed)?;
        let mut child = command.spawn().map_err(failed)?;
        let said = child.stdout.take();
        let heard = tokio::task::spawn_blocking(move || {
            let mut text = String::new();
            // It hangs up once it listens, or when it ends.
            said.map_or(Ok(0), |said| said.take(LOG_END).read_to_string(&mut text))?;
            // One that has ended is not left behind as a zombie; one that lives is not waited for.
            child.try_wait()?;
            Ok::<_, io::Error>(text)
        });
        let heard = heard.await.map_err(|error| self.not_started(&error))?;
        if heard.map_err(failed)?.is_empty() {
            return Err(self.not_started(&last_line(log, began)));
        }
        Ok(())
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "starts this program's own server, detached"
    )]
    fn command(&self, program: &Path, log: &File) -> io::Result<Command> {
        let mut command = Command::new(program);
        command
            .args(["serve", "--background", "--data-dir"])
            .arg(&self.data_dir)
            // No directory of the user's is held.
            .current_dir(&self.data_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.try_clone()?);
        if let Some(file) = &self.config_file {
            command.arg("--config").arg(std::path::absolute(file)?);
        }
        Ok(command)
    }

    fn open_log(&self) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(self.log())?;
        if file.metadata()?.len() > LOG_BYTES {
            file.set_len(0)?;
        }
        Ok(file)
    }

    fn log(&self) -> PathBuf {
        self.data_dir.join(LOG)
    }

    fn not_started(&self, problem: &dyn std::fmt::Display) -> ReachError {
        ReachError::Start {
            problem: problem.to_string(),
            log: self.log(),
        }
    }
}

/// What a server that ended said last.
fn last_line(mut log: File, began: u64) -> String {
    let mut text = Vec::new();
    let read = log
        .metadata()
        .and_then(|metadata| {
            let start = began.max(metadata.len().saturating_sub(LOG_END));
            log.seek(SeekFrom::Start(start))
        })
        .and_then(|_| log.take(LOG_END).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    match (read, text.trim_end().lines().last()) {
        (Ok(_), Some(line)) => printable(line.strip_prefix("mcp-forge: ").unwrap_or(line)),
        _ => "it ended without a word".to_owned(),
    }
}

/// A server in this process, for one command: it ends with it.
#[derive(Debug)]
pub(super) struct Inside {
    service: Arc<Service>,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Inside {
    pub(super) async fn start(service: Arc<Service>) -> Result<(Self, Client), ReachError> {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let (reader, writer) = tokio::io::split(theirs);
        let stop = CancellationToken::new();
        let served = serve_client(
            Arc::clone(&service),
            reader,
            writer,
            stop.clone(),
            Door::Socket,
        );
        let inside = Self {
            service,
            stop,
            serving: tokio::spawn(served),
        };
        Ok((inside, Client::open(ours).await?))
    }

    /// Ends the server and all that runs in it.
    pub(super) async fn end(self) {
        self.stop.cancel();
        // How it ended is of no interest: its only client has.
        let _ = self.serving.await;
        end(&self.service).await;
    }
}
