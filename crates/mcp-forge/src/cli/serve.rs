//! `mcp-forge serve`: an MCP server on standard input and output.

use std::path::PathBuf;

use crate::{config::Config, mcp};

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
    /// Socket of the container API, for the podman engine (kept, not used yet)
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
        config.later.podman_socket = Some(socket);
    }
    mcp::serve_stdio(service(config)?).await?;
    Ok(Exit::Success)
}
