//! What can be wrong with a configuration, told so that it can be put right.

use std::path::PathBuf;

/// The configuration cannot be used. Nothing was started and nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there or may not be read.
    #[error("{}: the configuration file cannot be read: {source}", file.display())]
    Read {
        /// The file that was asked for.
        file: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file is far larger than any configuration.
    #[error("{}: the configuration file is larger than {limit} bytes", file.display())]
    TooLarge {
        /// The file that was asked for.
        file: PathBuf,
        /// The most that is read.
        limit: u64,
    },
    /// The text is not YAML (nor JSON), or goes beyond what a configuration needs.
    #[error("{place}: this is not valid YAML: {problem}")]
    Syntax {
        /// File, line and column.
        place: String,
        /// The parser's sentence, without any of the file's text.
        problem: String,
    },
    /// One key is unknown or its value is wrong.
    #[error("{place}: {key}: {problem}")]
    Key {
        /// File and line, or the environment variable, or `defaults`.
        place: String,
        /// The key's path, such as `execution.default_timeout`.
        key: String,
        /// What is wrong, with the value unless it may be secret, and what to write instead.
        problem: String,
    },
    /// No place for state could be derived from the environment.
    #[error(
        "there is no place for data: neither HOME nor XDG_DATA_HOME is an absolute path. \
         Give one with --data-dir or MCP_FORGE_DATA_DIR"
    )]
    NoDataDirectory,
    /// The data directory could not be made, or others could write to it.
    #[error("{}: the data directory cannot be used: {problem}", directory.display())]
    DataDirectory {
        /// Its path.
        directory: PathBuf,
        /// Why, and what to do.
        problem: String,
    },
}
