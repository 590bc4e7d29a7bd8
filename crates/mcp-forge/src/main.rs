//! The binary: becomes a jail when asked to, else runs the command line. Exit codes are made here.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind, IsTerminal, Write},
    process::ExitCode,
};

use anyhow::Context;
use clap::Parser;
use mcp_forge::cli::{Arguments, CliError, Exit};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // Before any thread, runtime or parser: what becomes a sandbox must have nothing to give away.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == "jail")
    {
        return jail::main();
    }
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(exit) => code(exit),
        Err(error) => {
            let exit = error
                .downcast_ref::<CliError>()
                .map_or(Exit::Internal, CliError::exit);
            if is_closed_pipe(&error) {
                // `mcp-forge ... | head`: who reads has seen enough.
                return code(Exit::Success);
            }
            // Standard error may be closed; the code still tells.
            let _ = writeln!(io::stderr(), "mcp-forge: {error:#}");
            code(exit)
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    start_log(&environment)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the asynchronous runtime could not be started")?;
    let exit = runtime.block_on(arguments.run(environment));
    // A thread that waits for standard input never ends: it is not waited for.
    runtime.shutdown_background();
    Ok(exit?)
}

/// Logs go to standard error: standard output is the protocol.
fn start_log(environment: &BTreeMap<String, String>) -> anyhow::Result<()> {
    let filter = environment
        .get("MCP_FORGE_LOG")
        .map(String::as_str)
        .filter(|filter| !filter.is_empty());
    let filter = EnvFilter::builder()
        .parse(filter.unwrap_or("warn,rmcp=error"))
        .map_err(|error| {
            CliError::Usage(format!(
                "MCP_FORGE_LOG: {error}: write warn, info, debug, or mcp_forge=debug"
            ))
        })?;
    let no_colour = environment
        .get("NO_COLOR")
        .is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(!no_colour && io::stderr().is_terminal())
        .try_init()
        .map_err(|error| anyhow::anyhow!("the log could not be started: {error}"))
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CliError::Output(error)) if error.kind() == ErrorKind::BrokenPipe)
}

fn code(exit: Exit) -> ExitCode {
    ExitCode::from(match exit {
        Exit::Success => 0,
        Exit::Failure => 1,
        Exit::Usage => 2,
        Exit::Internal => 3,
        Exit::TimedOut => 124,
        Exit::Interrupted => 130,
        Exit::OutOfMemory => 137,
        Exit::Terminated => 143,
    })
}
