//! Finding a container API's socket, and speaking to it.

use std::{
    env,
    io::ErrorKind,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use bollard::{API_DEFAULT_VERSION, Docker, models::SystemVersion};

use crate::config::EngineKind;

/// Seconds for one answer of the service. Builds and pulls stream theirs.
const ANSWER_SECONDS: u64 = 120;

/// The container API cannot be used. Nothing was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// No socket is configured, and there is none where such sockets usually are.
    #[error(
        "no socket of a container API was found: looked at {}. Start one (`systemctl --user start podman.socket`, \
         or `podman system service --time=0 unix:///run/podman/podman.sock`), or name it in server.podman_socket",
        .0.join(", ")
    )]
    NotFound(Vec<String>),
    /// The socket does not take connections.
    #[error("the container API's socket {path} does not answer: {problem}. {fix}")]
    Refused {
        /// Where it is.
        path: String,
        /// The system's words.
        problem: String,
        /// What to do.
        fix: &'static str,
    },
    /// It answered with an error.
    #[error("the container API at {path} answered: {problem}")]
    Answer {
        /// Where it is.
        path: String,
        /// Its words.
        problem: String,
    },
    /// It is another service than the one that was asked for.
    #[error(
        "execution.engine is `{wanted}`, but {found} answers at {path}: set execution.engine to `{found}`, or name the other socket in server.podman_socket"
    )]
    Other {
        /// Where it is.
        path: String,
        /// What was asked for.
        wanted: &'static str,
        /// What is there.
        found: &'static str,
    },
}

/// A container API that has answered.
#[derive(Debug, Clone)]
pub struct Socket {
    /// The client. Everything that is created through it is checked by `policy` before.
    pub client: Docker,
    /// Where it listens.
    pub path: PathBuf,
    /// Which service it is.
    pub kind: EngineKind,
    /// What it says of itself and of what it uses.
    pub version: SystemVersion,
}

impl Socket {
    /// Connects to the configured socket, else to the first usual one, and asks who is there.
    ///
    /// # Errors
    ///
    /// [`SocketError`].
    pub async fn connect(kind: EngineKind, configured: Option<&Path>) -> Result<Self, SocketError> {
        let path = match configured {
            Some(path) => path.to_owned(),
            None => find(kind)?,
        };
        let shown = path.display().to_string();
        // The library tells of a missing socket and a forbidden one in the same words.
        UnixStream::connect(&path).map_err(|error| SocketError::Refused {
            path: shown.clone(),
            problem: error.to_string(),
            fix: fix(error.kind()),
        })?;
        let answer = |error: bollard::errors::Error| SocketError::Answer {
            path: shown.clone(),
            problem: error.to_string(),
        };
        let client = Docker::connect_with_unix(&shown, ANSWER_SECONDS, API_DEFAULT_VERSION)
            .map_err(answer)?
            .negotiate_version()
            .await
            .map_err(answer)?;
        let version = client.version().await.map_err(answer)?;
        let found = service(&version);
        if found != kind {
            return Err(SocketError::Other {
                path: shown,
                wanted: kind.name(),
                found: found.name(),
            });
        }
        Ok(Self {
            client,
            path,
            kind,
            version,
        })
    }
}

/// Which service says this of itself: Podman lists an engine of its name.
fn service(version: &SystemVersion) -> EngineKind {
    let is_podman = version
        .components
        .iter()
        .flatten()
        .any(|component| component.name.contains("Podman"));
    if is_podman {
        EngineKind::Podman
    } else {
        EngineKind::Docker
    }
}

fn find(kind: EngineKind) -> Result<PathBuf, SocketError> {
    let candidates = candidates(kind, env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from));
    candidates
        .iter()
        .find(|path| path.exists())
        .cloned()
        .ok_or_else(|| {
            SocketError::NotFound(
                candidates
                    .iter()
                    .map(|path| path.display().to_string())
                    .collect(),
            )
        })
}

/// Where the sockets usually are, the user's own first: a service without root's rights will do.
fn candidates(kind: EngineKind, runtime_dir: Option<PathBuf>) -> Vec<PathBuf> {
    let (own, system): (_, &[&str]) = match kind {
        EngineKind::Docker => ("docker.sock", &["/run/docker.sock", "/var/run/docker.sock"]),
        EngineKind::Native | EngineKind::Podman => {
            ("podman/podman.sock", &["/run/podman/podman.sock"])
        }
    };
    runtime_dir
        .map(|directory| directory.join(own))
        .into_iter()
        .chain(system.iter().map(PathBuf::from))
        .collect()
}

const fn fix(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied => {
            "This user may not use it: run a service of your own (`systemctl --user start podman.socket`)"
        }
        ErrorKind::NotFound => "There is no such file: server.podman_socket must name the socket",
        _ => "Nobody listens there: start the service",
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};

    use super::*;

    #[test]
    fn the_users_own_service_comes_before_the_systems() {
        let found = candidates(EngineKind::Podman, Some("/run/user/7".into()));
        assert_eq!(
            found,
            [
                Path::new("/run/user/7/podman/podman.sock"),
                Path::new("/run/podman/podman.sock")
            ]
        );
        assert_eq!(candidates(EngineKind::Docker, None).len(), 2);
    }

    #[tokio::test]
    async fn a_socket_that_is_not_there_is_named_with_its_fix() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("podman.sock");
        let connect = Socket::connect(EngineKind::Podman, Some(&missing)).await;
        let error = connect.unwrap_err().to_string();
        assert!(
            error.contains("podman.sock") && error.contains("no such file"),
            "{error}"
        );
        // Never listened on: a listener that is closed lives on while a child that is just being started has it.
        let refusing = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&refusing, &SocketAddrUnix::new(&missing).unwrap()).unwrap();
        let error = Socket::connect(EngineKind::Podman, Some(&missing))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("start the service"), "{error}");
    }
}
