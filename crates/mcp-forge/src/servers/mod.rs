//! The servers that listen on one data directory, each on a Unix socket of its own.
//!
//! Every desktop client starts a server, and they share the data directory: so there is no one
//! well-known socket, but a directory of them, named for the process. Who may connect is decided
//! twice: by the directory's mode, and by what the kernel says of the process at the other end.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};
use tokio::net::{UnixListener, UnixStream};

use crate::lock::FileLock;

mod name;

pub use name::{ServerKind, ServerName};

/// The directory of sockets in the data directory.
const DIRECTORY: &str = "servers";

/// Held while a background server is being started.
const START_LOCK: &str = "start.lock";

/// Sockets that are looked at. There is one for each desktop client.
const MOST: usize = 1000;

/// The sockets of a data directory could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ServersError {
    /// The directory is not one that only this user can change. Nothing was opened in it.
    #[error("{}: {problem}", directory.display())]
    Directory {
        /// The directory of the sockets.
        directory: PathBuf,
        /// What is wrong, and the fix.
        problem: String,
    },
    /// No socket could be made there. Nothing of it is left.
    #[error("{}: no server can listen here: {source}", directory.display())]
    Listen {
        /// The directory of the sockets.
        directory: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The process at the other end is another user's. Nothing was said to it.
    #[error("{}: the server there runs as another user (uid {uid})", socket.display())]
    Foreign {
        /// The socket.
        socket: PathBuf,
        /// That user.
        uid: u32,
    },
    /// A socket is there and cannot be connected to.
    #[error("{}: the server there cannot be reached: {source}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The checked directory in which servers of one data directory listen.
#[derive(Debug)]
pub struct Servers {
    /// Sockets are reached through it, so that nobody can exchange the directory meanwhile, and
    /// so that the length of its path does not matter: a socket's address has 107 bytes.
    directory: File,
    path: PathBuf,
}

impl Servers {
    /// Opens the directory, making it for its owner only if it is not there.
    ///
    /// # Errors
    ///
    /// [`ServersError::Directory`]: it is a link, another user's, or open to other users.
    pub fn open(data_dir: &Path) -> Result<Arc<Self>, ServersError> {
        let path = data_dir.join(DIRECTORY);
        let refused = |problem: String| ServersError::Directory {
            directory: path.clone(),
            problem,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|error| refused(error.to_string()))?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let opened =
            rustix::fs::open(&path, flags, Mode::empty()).map_err(|error| match error {
                Errno::LOOP | Errno::NOTDIR => refused(
                    "it is a symbolic link or no directory: remove it, servers make their own"
                        .to_owned(),
                ),
                error => refused(io::Error::from(error).to_string()),
            })?;
        let directory = File::from(opened);
        let metadata = directory
            .metadata()
            .map_err(|error| refused(error.to_string()))?;
        if metadata.uid() != me() {
            return Err(refused(format!(
                "it belongs to another user (uid {}): use a data directory of your own",
                metadata.uid()
            )));
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(refused(format!(
                "other users can enter it: chmod 700 '{}'",
                path.display()
            )));
        }
        Ok(Arc::new(Self { directory, path }))
    }

    /// Listens for clients of this user. The socket's file goes when the value is dropped.
    ///
    /// # Errors
    ///
    /// [`ServersError::Listen`].
    pub fn listen(self: &Arc<Self>, kind: ServerKind) -> Result<Listening, ServersError> {
        let failed = |source: io::Error| ServersError::Listen {
            directory: self.path.clone(),
            source,
        };
        let mut random = [0_u8; 8];
        getrandom(&mut random, GetRandomFlags::empty()).map_err(|error| failed(error.into()))?;
        let name = ServerName {
            kind,
            pid: std::process::id(),
            random: u64::from_be_bytes(random),
        };
        // Under the lock nobody takes a socket for dead that is not yet listened on.
        let _lock = self.lock().map_err(failed)?;
        let address = self.address(&name);
        let listener = UnixListener::bind(&address).map_err(failed)?;
        let listening = Listening {
            listener,
            name,
            servers: Arc::clone(self),
        };
        // The directory keeps others out already; this is for those who look.
        fs::set_permissions(&address, Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(listening)
    }

    /// The servers that may be there: those in the background first, newest first.
    ///
    /// # Errors
    ///
    /// [`ServersError::Directory`].
    pub fn list(&self) -> Result<Vec<ServerName>, ServersError> {
        let failed = |error: io::Error| ServersError::Directory {
            directory: self.path.clone(),
            problem: error.to_string(),
        };
        let entries = fs::read_dir(self.address_of(".")).map_err(failed)?;
        let mut found: Vec<(ServerKind, std::cmp::Reverse<i64>, ServerName)> = entries
            .filter_map(Result::ok)
            .filter_map(|entry| {
                let name = ServerName::parse(entry.file_name().to_str()?)?;
                // Not followed: only a socket of ours is connected to.
                let metadata = entry.metadata().ok()?;
                let is_ours = metadata.file_type().is_socket() && metadata.uid() == me();
                is_ours.then(|| (name.kind, std::cmp::Reverse(metadata.mtime()), name))
            })
            .take(MOST)
            .collect();
        found.sort();
        Ok(found.into_iter().map(|(_, _, name)| name).collect())
    }

    /// Connects to a server. `None` if it is dead or gone; what it left is removed then.
    ///
    /// # Errors
    ///
    /// [`ServersError`].
    pub async fn connect(&self, name: &ServerName) -> Result<Option<UnixStream>, ServersError> {
        let address = self.address(name);
        let socket = self.path.join(name.to_string());
        let stream = match UnixStream::connect(&address).await {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.remove_if_dead(name).await;
                return Ok(None);
            }
            Err(source) => return Err(ServersError::Connect { socket, source }),
        };
        let peer = stream.peer_cred().map_err(|source| {
            let socket = socket.clone();
            ServersError::Connect { socket, source }
        })?;
        if peer.uid() == me() {
            Ok(Some(stream))
        } else {
            let uid = peer.uid();
            Err(ServersError::Foreign { socket, uid })
        }
    }

    /// Waits until nobody else starts a background server. Let go when it is dropped.
    ///
    /// # Errors
    ///
    /// [`ServersError::Directory`].
    pub(crate) fn lock_start(&self) -> Result<FileLock, ServersError> {
        let failed = |error: io::Error| ServersError::Directory {
            directory: self.path.clone(),
            problem: format!("{START_LOCK}: {error}"),
        };
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = rustix::fs::openat(&self.directory, START_LOCK, flags, mode);
        FileLock::alone(file.map_err(|error| failed(error.into()))?).map_err(failed)
    }

    /// Nobody listens: it is dead, since no name is used twice and none is seen before it listens.
    async fn remove_if_dead(&self, name: &ServerName) {
        let Ok(_lock) = self.lock() else { return };
        let again = UnixStream::connect(self.address(name)).await;
        if again.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // Somebody else may have removed it.
            let _ = fs::remove_file(self.address(name));
        }
    }

    /// Keeps others from making or removing sockets. Held for moments only.
    fn lock(&self) -> io::Result<FileLock> {
        // Opened anew: a lock belongs to the open file, and this process may have several threads.
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, ".", flags, Mode::empty())?;
        FileLock::alone(file)
    }

    fn address(&self, name: &ServerName) -> PathBuf {
        self.address_of(&name.to_string())
    }

    fn address_of(&self, file: &str) -> PathBuf {
        let directory = self.directory.as_raw_fd();
        PathBuf::from(format!("/proc/self/fd/{directory}/{file}"))
    }
}

/// A socket that is listened on.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    name: ServerName,
    servers: Arc<Servers>,
}

impl Listening {
    /// The next client of this user. Others are hung up on.
    ///
    /// # Errors
    ///
    /// The system's; the next attempt may succeed.
    ///
    /// # Cancel safety
    ///
    /// No client is lost.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let peer = stream.peer_cred()?;
            if peer.uid() == me() {
                return Ok(stream);
            }
            tracing::warn!(uid = peer.uid(), "a process of another user was hung up on");
        }
    }

    /// Where the socket is.
    pub fn path(&self) -> PathBuf {
        self.servers.path.join(self.name.to_string())
    }

    /// Listens anew, under another name: a name that was taken away is never used again.
    ///
    /// # Errors
    ///
    /// As [`Servers::listen`].
    pub fn again(&self) -> Result<Self, ServersError> {
        self.servers.listen(self.name.kind)
    }

    /// Takes the socket's name away: no new client comes, those that came are still accepted.
    pub fn withdraw(&self) {
        // It may have been removed by hand.
        let _ = fs::remove_file(self.servers.address(&self.name));
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.withdraw();
    }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};

    use super::*;

    fn entries(data_dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(data_dir.join(DIRECTORY)).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[tokio::test]
    async fn a_socket_is_for_its_owner_only_and_goes_with_its_server() {
        let root = tempfile::tempdir().unwrap();
        // Far beyond what fits into a socket's address.
        let data_dir = root.path().join("d".repeat(200));
        let servers = Servers::open(&data_dir).unwrap();
        let listening = servers.listen(ServerKind::Client).unwrap();
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&data_dir.join(DIRECTORY)), 0o700);
        assert_eq!(mode(&listening.path()), 0o600);

        let name = servers.list().unwrap().remove(0);
        assert_eq!(name.pid, std::process::id());
        let (accepted, connected) = tokio::join!(listening.accept(), servers.connect(&name));
        assert!(accepted.is_ok() && connected.unwrap().is_some());
        drop(listening);
        assert_eq!(entries(&data_dir), [] as [&str; 0]);
        assert!(servers.connect(&name).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_a_dead_server_left_is_removed_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let servers = Servers::open(root.path()).unwrap();
        let dead = ServerName {
            kind: ServerKind::Background,
            pid: 1,
            random: 7,
        };
        // Never listened on: a listener that is closed lives on while a child that is just being started has it.
        let refusing = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(
            &refusing,
            &SocketAddrUnix::new(servers.address(&dead)).unwrap(),
        )
        .unwrap();
        let living = servers.listen(ServerKind::Client).unwrap();
        fs::write(servers.address_of("server-1-0000000000000001.sock"), "").unwrap();
        symlink(
            living.path(),
            servers.address_of("server-1-0000000000000002.sock"),
        )
        .unwrap();
        fs::write(servers.address_of("other"), "").unwrap();

        let listed = servers.list().unwrap();
        assert_eq!(listed, [dead.clone(), living.name.clone()]);
        assert!(servers.connect(&dead).await.unwrap().is_none());
        assert_eq!(servers.list().unwrap(), vec![living.name.clone()]);
        assert_eq!(entries(root.path()).len(), 4);
    }

    #[test]
    fn a_directory_that_others_could_use_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let refused = |data_dir: &Path| Servers::open(data_dir).unwrap_err().to_string();

        let linked = root.path().join("linked");
        fs::create_dir(&linked).unwrap();
        symlink(root.path(), linked.join(DIRECTORY)).unwrap();
        assert!(refused(&linked).contains("symbolic link"));

        let open = root.path().join("open");
        fs::create_dir_all(open.join(DIRECTORY)).unwrap();
        fs::set_permissions(open.join(DIRECTORY), Permissions::from_mode(0o755)).unwrap();
        assert!(refused(&open).contains("chmod 700"));

        let file = root.path().join("file");
        fs::create_dir(&file).unwrap();
        fs::write(file.join(DIRECTORY), "").unwrap();
        assert!(refused(&file).starts_with(file.join(DIRECTORY).to_str().unwrap()));
    }
}
