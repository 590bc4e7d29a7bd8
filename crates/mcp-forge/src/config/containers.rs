//! Settings of the engines that use a container API.

use std::{path::PathBuf, time::Duration};

/// Where sandboxes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineKind {
    /// This Linux machine.
    Native,
    /// Podman, over its API socket.
    Podman,
    /// Docker, over its API socket.
    Docker,
}

impl EngineKind {
    /// As `execution.engine` has it, and as responses name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }
}

/// What containers are made of, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainersConfig {
    /// `server.podman_socket`; `None` looks where such sockets usually are.
    pub socket: Option<PathBuf>,
    /// The images.
    pub images: Images,
    /// Started containers that wait for code, of each image. Default 2.
    pub ready: usize,
    /// Containers that servers of this data directory left behind are looked for at start and again after so long, ten minutes at most. Default a day.
    pub max_age: Duration,
}

/// The images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// For Python 3.11.
    pub python_3_11: String,
    /// For Python 3.12.
    pub python_3_12: String,
    /// For sessions.
    pub jupyter: String,
    /// What ours are built on; `{version}` in it stands for the version of Python.
    pub base: String,
    /// Images that may be used or pulled: names, or beginnings of names with `*` at their end.
    pub allowed: Vec<String>,
    /// Whether missing ones are pulled at start.
    pub auto_pull: bool,
    /// Time between looks for newer ones. Default a day.
    pub pull_interval: Duration,
}
