//! The command line: one file a command. Parses, calls the service, prints; decides nothing else.

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc, time::Duration};

use clap::{Parser, Subcommand, builder::styling};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    audit::{Audit, AuditError},
    bridge::Bridge,
    config::{Config, ConfigError, Loaded, Sources, TelemetryConfig},
    engine::{
        self,
        podman::{images::ImageError, socket::SocketError},
    },
    http::HttpError,
    mcp::{ServeError, client::ClientError},
    servers::ServersError,
    service::{Service, ServiceError},
    telemetry::TelemetryError,
};

mod audit;
#[cfg(test)]
mod conformance;
mod console;
mod containers;
mod demo;
mod doctor;
mod env;
mod image;
mod output;
mod prompt;
mod reach;
mod run;
mod serve;
mod session;
mod terminal;
#[cfg(test)]
mod tests;
mod tools;

pub use demo::DemoError;
pub use reach::ReachError;

/// How long the upstreams, and all else that may hang, may take to end.
const SHUTDOWN: Duration = Duration::from_secs(5);

const STYLES: styling::Styles = styling::Styles::styled()
    .header(styling::AnsiColor::Green.on_default().bold())
    .usage(styling::AnsiColor::Green.on_default().bold())
    .literal(styling::AnsiColor::Cyan.on_default().bold())
    .placeholder(styling::AnsiColor::Cyan.on_default());

/// Runs an agent's Python in a sealed sandbox, with your other MCP servers as functions
#[derive(Debug, Parser)]
#[command(
    name = "mcp-forge",
    version,
    styles = STYLES,
    max_term_width = 100,
    propagate_version = true,
    after_long_help = "\
Examples:
  Does this machine have what a sandbox needs?
      mcp-forge doctor
  Run a snippet; the value of its last expression is printed last:
      mcp-forge run -c 'sum(range(10))'
  Serve an agent, for example in Claude Desktop's file:
      {\"mcpServers\": {\"forge\": {\"command\": \"mcp-forge\", \"args\": [\"serve\"]}}}

MCP-Forge needs no configuration file. docs/configuration.md has all keys and variables."
)]
pub struct Arguments {
    #[command(flatten)]
    places: PlaceArguments,
    #[command(subcommand)]
    command: Command,
}

/// Where to find things; the same for every command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
struct PlaceArguments {
    /// Configuration file [default: ~/.config/mcp-forge/config.yaml, if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory for state [default: ~/.local/share/mcp-forge]
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// One variant a command; each is in the file of its name.
#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArguments),
    Run(run::RunArguments),
    Session(session::SessionArguments),
    Demo(demo::DemoArguments),
    Doctor(doctor::DoctorArguments),
    Tools(tools::ToolsArguments),
    Audit(audit::AuditArguments),
    Env(env::EnvArguments),
    Image(image::ImageArguments),
    /// The same as `image build`
    BuildImages(image::BuildArguments),
}

/// How a command ended. `main` turns it into the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// As asked.
    Success,
    /// The code failed, or a check found something wrong.
    Failure,
    /// The command line, the configuration or the request is wrong. Nothing ran.
    Usage,
    /// MCP-Forge or what it needs failed.
    Internal,
    /// The code hit its time limit.
    TimedOut,
    /// The code went over its memory limit.
    OutOfMemory,
    /// Ctrl-C; what ran is gone.
    Interrupted,
    /// SIGTERM; what ran is gone.
    Terminated,
}

/// A command could not do what it was asked. What it had started is gone.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The arguments do not make sense together, or ask for what does not exist.
    #[error("{0}")]
    Usage(String),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log or the traces cannot be had.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The audit log cannot be used, so nothing was started.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The service refused or failed.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// Serving ended before its time.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// HTTP cannot be served.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// No server could be reached.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// A server was reached, and refused or went away.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// The sockets of the data directory cannot be used.
    #[error(transparent)]
    Servers(#[from] ServersError),
    /// The demo lacks what it needs. Nothing was started.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// There is no container API, or it cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// An image could not be built or listed.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A file that the command was to write cannot be written.
    #[error("{}: cannot be written: {source}", file.display())]
    Save {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Standard input cannot be read.
    #[error("standard input cannot be read: {0}")]
    Input(io::Error),
    /// Standard output cannot be written. A reader that went away (`| head`) is this, too.
    #[error("standard output cannot be written: {0}")]
    Output(#[from] io::Error),
}

impl CliError {
    /// What the exit code says of it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Config(_) | Self::Telemetry(_) => Exit::Usage,
            Self::Http(
                HttpError::Address { .. } | HttpError::Exposed(_) | HttpError::Tls { .. },
            ) => Exit::Usage,
            Self::Service(error) if error.is_callers() => Exit::Usage,
            Self::Server(ClientError::Refused {
                is_callers: true, ..
            }) => Exit::Usage,
            Self::Image(error) => image::exit(error),
            Self::Service(_)
            | Self::Socket(_)
            | Self::Server(_)
            | Self::Servers(_)
            | Self::Reach(_)
            | Self::Audit(_)
            | Self::Serve(_)
            | Self::Http(_)
            | Self::Demo(_)
            | Self::Save { .. }
            | Self::Input(_)
            | Self::Output(_) => Exit::Internal,
        }
    }
}

impl Arguments {
    /// Reads the configuration. `environment` is the process's, as far as it is UTF-8.
    ///
    /// # Errors
    ///
    /// [`CliError::Config`].
    pub fn prepare(self, environment: BTreeMap<String, String>) -> Result<Prepared, CliError> {
        let screen = terminal::Screen::detect(&environment);
        let search_path = environment.get("PATH").cloned().unwrap_or_default();
        let sources = Sources {
            file: self.places.config,
            data_dir: self.places.data_dir,
            environment,
        };
        Ok(Prepared {
            command: self.command,
            loaded: Config::load(&sources)?,
            search_path,
            screen,
        })
    }
}

/// A command, and the configuration that it is to run with.
#[derive(Debug)]
pub struct Prepared {
    command: Command,
    loaded: Loaded,
    search_path: String,
    screen: terminal::Screen,
}

impl Prepared {
    /// What the log and the traces are to be like. They begin before the command does.
    pub fn telemetry(&self) -> &TelemetryConfig {
        &self.loaded.config.telemetry
    }

    /// Runs the command.
    ///
    /// # Errors
    ///
    /// [`CliError`]; nothing is left running.
    pub async fn run(self) -> Result<Exit, CliError> {
        let Self {
            command,
            loaded,
            search_path,
            screen,
        } = self;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        match command {
            Command::Serve(arguments) => serve::run(arguments, loaded.config).await,
            Command::Run(arguments) => run::run(arguments, loaded.config, loaded.file).await,
            Command::Session(arguments) => {
                session::run(arguments, loaded.config, loaded.file, screen).await
            }
            Command::Demo(arguments) => {
                demo::run(arguments, loaded.config, &search_path, screen).await
            }
            Command::Doctor(arguments) => {
                doctor::run(arguments, &loaded, &search_path, screen).await
            }
            Command::Tools(arguments) => tools::run(arguments, loaded.config, screen).await,
            Command::Audit(arguments) => audit::run(arguments, &loaded.config, screen).await,
            Command::Env(arguments) => env::run(arguments, loaded.config, screen).await,
            Command::Image(arguments) => image::run(arguments, &loaded.config, screen).await,
            Command::BuildImages(arguments) => image::build(arguments, &loaded.config).await,
        }
    }
}

/// Builds the application, for every command that runs code.
fn service(config: Config) -> Result<Arc<Service>, CliError> {
    config.create_data_dir()?;
    let audit = Audit::open(&config.audit_dir)?;
    let engine = engine::of(&config);
    let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
    Ok(Service::new(config, engine, bridge, audit))
}

/// Ends the application of a command. Only what builds wrote is waited for however long it takes,
/// unless a further signal comes: cut short, it stays until a server starts.
async fn end(service: &Service) {
    if tokio::time::timeout(SHUTDOWN, service.end_work())
        .await
        .is_err()
    {
        tracing::warn!("what ran did not end in time");
    }
    // Without signals to watch there is nothing to cut it short.
    let mut signals = Signals::watch().ok();
    let cut_short = async {
        match &mut signals {
            Some(signals) => signals.next().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = service.settled() => {}
        _ = cut_short => tracing::warn!("what builds wrote may be left; the next server removes it"),
    }
    end_upstreams(service.end_engine_and_upstreams()).await;
}

/// Waits, bounded, until the upstreams are gone.
async fn end_upstreams(shutdown: impl Future<Output = ()>) {
    if tokio::time::timeout(SHUTDOWN, shutdown).await.is_err() {
        tracing::warn!("an MCP server did not end in time");
    }
}

/// The signals that end a command, which then cleans up.
#[derive(Debug)]
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From now on the signals do not end the process.
    fn watch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.terminate.recv() => Exit::Terminated,
        }
    }
}
