//! The binary: becomes a jail when asked to, else runs the command line. Exit codes are made here.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind, IsTerminal, Write},
    process::ExitCode,
};

use anyhow::Context;
use clap::Parser;
use mcp_forge::{
    cli::{Arguments, CliError, Exit},
    telemetry::Telemetry,
};

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
    let is_coloured =
        environment.get("NO_COLOR").is_none_or(String::is_empty) && io::stderr().is_terminal();
    let prepared = arguments.prepare(environment.clone())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the asynchronous runtime could not be started")?;
    let telemetry = Telemetry::start(
        prepared.telemetry(),
        &environment,
        runtime.handle(),
        is_coloured,
    )
    .map_err(CliError::from)?;
    let exit = runtime.block_on(prepared.run());
    telemetry.end();
    // A thread that waits for standard input never ends: it is not waited for.
    runtime.shutdown_background();
    Ok(exit?)
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
