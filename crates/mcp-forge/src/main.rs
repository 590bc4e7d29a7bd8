//! The `mcp-forge` program.
use std::process::ExitCode;
fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|command| command == "jail")
    {
        return jail::main();
    }
    ExitCode::SUCCESS
}
