//! `mcp-forge serve`: an MCP server on standard input and output.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{
    config::{Config, EngineKind},
    mcp,
    servers::{Listening, ServerKind, Servers, ServersError},
};

use super::{CliError, Exit, service};

/// Serve an agent over MCP, on standard input and output
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
An MCP client starts this command itself and talks to it over its standard input and output. Logs \
go to standard error; MCP_FORGE_LOG=info shows more of them.

Examples:
  Claude Desktop and Cursor:
      {\"mcpServers\": {\"forge\": {\"command\": \"mcp-forge\", \"args\": [\"serve\"]}}}
  VS Code:
      {\"servers\": {\"forge\": {\"type\": \"stdio\", \"command\": \"mcp-forge\", \"args\": [\"serve\"]}}}
  With the servers of another client's file as tools:
      mcp-forge serve --config ~/.config/Claude/claude_desktop_config.json")]
pub(super) struct ServeArguments {
    /// Serve over HTTP at this address instead (not available yet)
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Serve commands such as `mcp-forge run --session` only, and leave when nobody needs it
    ///
    /// Such a server is started by those commands when none is there. It listens on a socket in the
    /// data directory, as every server does, and leaves after server.background_idle without a
    /// session and a client.
    #[arg(long)]
    background: bool,
    /// Run sandboxes with this engine: native, podman or docker (default: execution.engine)
    #[arg(long, value_name = "ENGINE")]
    engine: Option<EngineKind>,
    /// Socket of the container API; sandboxes are then Podman's containers unless --engine says otherwise
    #[arg(long, value_name = "PATH")]
    podman_socket: Option<PathBuf>,
}

pub(super) async fn run(arguments: ServeArguments, mut config: Config) -> Result<Exit, CliError> {
    if arguments.http.is_some() {
        let problem =
            "--http is not available yet: leave it out to serve on standard input and output";
        return Err(CliError::Usage(problem.to_owned()));
    }
    if let Some(socket) = arguments.podman_socket {
        config.containers.socket = Some(socket);
        config.engine = EngineKind::Podman;
    }
    if let Some(engine) = arguments.engine {
        config.engine = engine;
    }
    if arguments.background {
        return serve_background(config).await;
    }
    let service = service(config)?;
    let listening = listen(service.config(), ServerKind::Client)
        .inspect_err(|error| tracing::warn!("the command line cannot reach this server: {error}"))
        .ok();
    mcp::serve_stdio(service, listening).await?;
    Ok(Exit::Success)
}

async fn serve_background(config: Config) -> Result<Exit, CliError> {
    // Away from the terminal: its signals and its end are not for this process. Where it leads a
    // group already, whoever started it has seen to that.
    let _ = rustix::process::setsid();
    let service = service(config)?;
    let listening = listen(service.config(), ServerKind::Background)?;
    say_ready(&listening.path())?;
    mcp::serve_background(service, listening).await?;
    Ok(Exit::Success)
}

fn listen(config: &Config, kind: ServerKind) -> Result<Listening, ServersError> {
    Servers::open(&config.data_dir)?.listen(kind)
}

/// Tells whoever started this server where it listens, and hangs up on them: they may wait for the
/// end of its output, as a shell does.
fn say_ready(socket: &Path) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "Listening at {}", socket.display())?;
    out.flush()?;
    let null = File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(null)?)
}
