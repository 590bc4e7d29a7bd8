//! `mcp-forge serve`: an MCP server on standard input and output, or over HTTP.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{
    config::{Config, EngineKind, LogFormat},
    http::{self, Bound, HttpError},
    identity::{Credentials, NewToken, OAuth, Tokens},
    mcp,
    servers::{Listening, ServerKind, Servers, ServersError},
    telemetry,
};

use super::{CliError, Exit, service};

/// Serve an agent over MCP, on standard input and output or over HTTP
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
      mcp-forge serve --config ~/.config/Claude/claude_desktop_config.json
  Over HTTP, for several agents and programs on this machine:
      mcp-forge serve --http 127.0.0.1:3000
      curl http://127.0.0.1:3000/health
  Over HTTP, for other machines:
      MCP_FORGE_SERVER_TLS_CERT=cert.pem MCP_FORGE_SERVER_TLS_KEY=key.pem mcp-forge serve --http 0.0.0.0:3000

Every HTTP client shows a token, `Authorization: Bearer TOKEN`. The first start makes one and prints it once; \
tokens.yaml in the data directory holds its hash, and may hold those of further clients: docs/http.md.")]
pub(super) struct ServeArguments {
    /// Serve over HTTP instead, at this address [default: server.host and server.port, localhost:3000]
    ///
    /// MCP is at /mcp, REST at /api/v1 with its description at /docs; /health, /livez and /readyz say how the server fares. Port 0 takes a free one;
    /// the address is printed. Addresses that other machines can reach need TLS.
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "", conflicts_with = "background")]
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
    if let Some(address) = arguments.http {
        return serve_http(
            config,
            Some(address.as_str()).filter(|given| !given.is_empty()),
        )
        .await;
    }
    let service = service(config)?;
    let listening = listen_for_commands(service.config());
    mcp::serve_stdio(service, listening).await?;
    Ok(Exit::Success)
}

async fn serve_http(config: Config, address: Option<&str>) -> Result<Exit, CliError> {
    let bound = Bound::listen(&config.server, address).await?;
    config.create_data_dir()?;
    let (tokens, made) = open_tokens(&config)?;
    let oauth = match &config.server.oauth {
        Some(oauth) => Some(OAuth::open(oauth).await.map_err(HttpError::from)?),
        None => None,
    };
    let service = service(config)?;
    let listening = listen_for_commands(service.config());
    let is_log_json = service.config().telemetry.log_format == LogFormat::Json;
    let signals = http::Signals::watch()?;
    greet(&bound, made.as_ref(), is_log_json)?;
    let credentials = Credentials { tokens, oauth };
    http::serve(service, bound, credentials, listening, signals).await;
    Ok(Exit::Success)
}

pub(super) fn open_tokens(config: &Config) -> Result<(Tokens, Option<NewToken>), CliError> {
    let opened = match &config.server.tokens {
        Some(file) => Tokens::open(file).map(|tokens| (tokens, None)),
        None => Tokens::open_or_make(&config.data_dir.join("tokens.yaml")),
    };
    Ok(opened.map_err(HttpError::from)?)
}

/// Says where the server is, and once what opens it. That is never in the log, which is kept: where
/// standard error has nothing but lines of JSON, the token is on standard output.
fn greet(bound: &Bound, made: Option<&NewToken>, is_log_json: bool) -> Result<(), CliError> {
    let mut out = io::stderr().lock();
    if let Some(token) = made {
        let shown = format!(
            "A token for HTTP clients was made. It is shown this once only:\n  {}\n",
            token.reveal()
        );
        if is_log_json {
            io::stdout().lock().write_all(shown.as_bytes())?;
        } else {
            out.write_all(shown.as_bytes())?;
        }
    }
    let listening = format!("Listening at {}", bound.url());
    if is_log_json {
        out.write_all(telemetry::json_line("INFO", &listening).as_bytes())?;
    } else {
        writeln!(out, "{listening}")?;
    }
    Ok(())
}

fn listen_for_commands(config: &Config) -> Option<Listening> {
    listen(config, ServerKind::Client)
        .inspect_err(|error| tracing::warn!("the command line cannot reach this server: {error}"))
        .ok()
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
