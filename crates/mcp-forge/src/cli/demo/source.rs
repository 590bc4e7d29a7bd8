//! The public MCP servers that can serve the demo's data, and the Python that reads through each.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::{
    cli::doctor::find_program,
    config::{Transport, Upstream},
};

/// The versions that were tried.
const FILESYSTEM_SERVER: &str = "@modelcontextprotocol/server-filesystem@2026.8.31";
const GIT_SERVER: &str = "mcp-server-git@2026.10.19";

/// What stands for the folder in the code.
const PLACE: &str = "\"/path/to/orders\"";

const READ_FILES: &str = include_str!("../../../../../examples/orders/read_files.py");
const READ_HISTORY: &str = include_str!("../../../../../examples/orders/read_history.py");
const CHECK: &str = include_str!("../../../../../examples/orders/check.py");

/// Where the agent's code reads the orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Files, through the filesystem server that `npx` fetches.
    Files,
    /// A Git repository, through the Git server that `uvx` fetches.
    History,
}

impl Source {
    /// What this machine has the programs for.
    pub(super) fn find(search_path: &str) -> Option<Self> {
        let is_there = |program| find_program(program, search_path).is_some();
        if is_there("npx") {
            Some(Self::Files)
        } else if is_there("uvx") && is_there("git") {
            Some(Self::History)
        } else {
            None
        }
    }

    /// The name of the server, with which its tools begin.
    pub(super) fn server(self) -> &'static str {
        match self {
            Self::Files => "filesystem",
            Self::History => "history",
        }
    }

    /// The name of the folder with the data.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Files => "orders",
            Self::History => "orders-history",
        }
    }

    /// The tools that the code calls.
    pub(super) fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Files => &["filesystem_list_directory", "filesystem_read_text_file"],
            Self::History => &["history_git_show"],
        }
    }

    /// What the agent sends.
    pub(super) fn code(self, folder: &Path) -> String {
        let read = match self {
            Self::Files => READ_FILES,
            Self::History => READ_HISTORY,
        };
        // JSON's string literals are Python's too.
        let folder = Value::from(folder.to_string_lossy()).to_string();
        format!("{}{CHECK}", read.replace(PLACE, &folder))
    }

    /// Gives the written files to the server's care. Doing it again changes nothing that matters.
    pub(super) fn publish(self, folder: &Path) -> io::Result<()> {
        match self {
            Self::Files => Ok(()),
            Self::History => commit(folder),
        }
    }

    /// The server, as it stands in a configuration.
    pub(super) fn upstream(self, folder: &Path) -> Upstream {
        let (command, args) = self.command(folder);
        Upstream {
            transport: Transport::Stdio {
                command,
                args,
                env: BTreeMap::new(),
                cwd: None,
            },
            // The first start downloads the server.
            start_timeout: Duration::from_mins(3),
            call_timeout: Duration::from_mins(2),
        }
    }

    /// The same for people.
    pub(super) fn command_line(self, folder: &Path) -> String {
        let (command, args) = self.command(folder);
        format!("{command} {}", args.join(" "))
    }

    fn command(self, folder: &Path) -> (String, Vec<String>) {
        let folder = folder.to_string_lossy();
        let (command, args) = match self {
            Self::Files => (
                "npx",
                ["-y", FILESYSTEM_SERVER, &folder]
                    .map(str::to_owned)
                    .to_vec(),
            ),
            Self::History => (
                "uvx",
                [GIT_SERVER, "--repository", &folder]
                    .map(str::to_owned)
                    .to_vec(),
            ),
        };
        (command.to_owned(), args)
    }
}

/// Makes a repository of the folder. It is on the host and before any sandbox: the data is ours.
fn commit(folder: &Path) -> io::Result<()> {
    let author = [
        "-c",
        "user.name=MCP-Forge demo",
        "-c",
        "user.email=demo@localhost",
        "-c",
        "commit.gpgsign=false",
    ];
    git(folder, &["init", "--quiet"])?;
    git(folder, &["add", "--all"])?;
    git(
        folder,
        &[
            &author[..],
            &[
                "commit",
                "--quiet",
                "--allow-empty",
                "--message",
                "A year of orders",
            ],
        ]
        .concat(),
    )
}

#[expect(
    clippy::disallowed_methods,
    reason = "the demo's own data, on the host, before anything else starts"
)]
fn git(folder: &Path, arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("git")
        .current_dir(folder)
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "git {} failed: {}",
        arguments.join(" "),
        said.trim()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_gets_into_the_code_whatever_its_name_is() {
        for source in [Source::Files, Source::History] {
            let code = source.code(Path::new("/home/o\"brien/\\x"));
            assert!(code.contains(r#"FOLDER = "/home/o\"brien/\\x""#), "{code}");
            assert!(!code.contains(PLACE));
        }
    }

    #[test]
    fn the_code_calls_exactly_the_tools_that_are_granted() {
        for source in [Source::Files, Source::History] {
            let code = source.code(Path::new("/orders"));
            let mut called: Vec<_> = code
                .split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
                .filter(|word| word.starts_with(&format!("{}_", source.server())))
                .collect();
            called.sort_unstable();
            called.dedup();
            assert_eq!(called, source.tools());
        }
    }
}
