//! The host's side of an escape test: canaries, witnesses, and a look at what is left.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::{PermissionsExt, symlink},
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Value, json};

use super::{
    look::{host_names, own_address, stat},
    traces::awaited,
};

/// Tells runs apart.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// The directory of all runs, with what they share in it.
static SHARED: LazyLock<Shared> = LazyLock::new(Shared::prepare);

struct Shared {
    directory: tempfile::TempDir,
    python: PathBuf,
}

impl Shared {
    #[expect(clippy::disallowed_methods, reason = "a test asks an interpreter")]
    fn prepare() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("escape-private-user-")
            .tempdir()
            .unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // Written by another process: a file that this one has open for writing, if only in a child
        // that another thread is about to start, cannot be executed.
        let script = directory.path().join("start.sh");
        let wrote = Command::new("/bin/sh")
            .args([
                "-c",
                "printf '%s' \"$1\" > \"$2\" && chmod 755 \"$2\"",
                "sh",
                include_str!("start.sh"),
            ])
            .arg(&script)
            .status()
            .unwrap();
        assert!(wrote.success());
        // A virtual environment, whose packages are a tree that the sandbox's user may write.
        let asked = Command::new("/usr/bin/env")
            .args([
                "python3",
                "-c",
                "import sys; print(sys._base_executable, '%d.%d' % sys.version_info[:2])",
            ])
            .output()
            .unwrap();
        let answer = String::from_utf8(asked.stdout).unwrap();
        let (executable, version) = answer
            .trim()
            .rsplit_once(' ')
            .expect("python3 on PATH answers");
        let environment = directory.path().join("environment");
        let library = environment.join("lib");
        fs::create_dir_all(library.join(format!("python{version}/site-packages"))).unwrap();
        fs::set_permissions(&library, fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(environment.join("bin")).unwrap();
        symlink(executable, environment.join("bin/python3")).unwrap();
        let home = Path::new(executable).parent().unwrap().display();
        fs::write(
            environment.join("pyvenv.cfg"),
            format!("home = {home}\nversion = {version}\n"),
        )
        .unwrap();
        Self {
            python: environment.join("bin/python3"),
            directory,
        }
    }

    fn library(&self) -> PathBuf {
        self.directory.path().join("environment/lib")
    }
}

/// One run's canaries.
pub(super) struct Host {
    directory: tempfile::TempDir,
    /// On the command line and in the environment of [`Self::victim`].
    secret: String,
    victim: Child,
    tcp: TcpListener,
    udp: UdpSocket,
    unix: UnixListener,
    abstract_name: String,
    abstract_unix: UnixListener,
    /// Addresses of this host at which it listens.
    address: Option<IpAddr>,
}

/// Where one jail is started from.
pub(super) struct Place {
    pub(super) id: String,
    directory: PathBuf,
}

impl Place {
    /// What the engine starts.
    pub(super) fn program(&self) -> PathBuf {
        self.directory.join("start")
    }

    /// What that becomes: the first word of its command line.
    pub(super) fn jail(&self) -> PathBuf {
        self.directory.join("mcp-forge")
    }
}

impl Host {
    #[expect(
        clippy::disallowed_methods,
        reason = "a process that an attack may find"
    )]
    pub(super) fn prepare() -> Self {
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let directory = tempfile::Builder::new()
            .prefix("run-")
            .tempdir_in(SHARED.directory.path())
            .unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let secret = format!("planted-{}-{run}", std::process::id());
        fs::write(directory.path().join("canary"), &secret).unwrap();
        fs::create_dir(directory.path().join("data")).unwrap();
        let victim = Command::new("/bin/cat")
            .args(["-", &format!("/nonexistent/{secret}")])
            .env("SECRET", &secret)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let tcp = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        tcp.set_nonblocking(true).unwrap();
        let udp = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
        udp.set_nonblocking(true).unwrap();
        let path = directory.path().join("socket");
        let unix = UnixListener::bind(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        unix.set_nonblocking(true).unwrap();
        let abstract_name = format!("escape-{}-{run}", std::process::id());
        let abstract_unix =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap())
                .unwrap();
        abstract_unix.set_nonblocking(true).unwrap();
        Self {
            directory,
            secret,
            victim,
            tcp,
            udp,
            unix,
            abstract_name,
            abstract_unix,
            address: own_address(),
        }
    }

    pub(super) fn data_directory(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(super) fn python() -> PathBuf {
        SHARED.python.clone()
    }

    /// A place to start a jail from: the real one, or a test build's without these layers.
    pub(super) fn place(&self, without: &[&str]) -> Place {
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let id = format!("escape-{}-{number}", std::process::id());
        let directory = self.directory.path().join(&id);
        fs::create_dir(&directory).unwrap();
        symlink(
            SHARED.directory.path().join("start.sh"),
            directory.join("start"),
        )
        .unwrap();
        let binary = if without.is_empty() {
            crate::sandbox::binary()
        } else {
            negative_controls().to_owned()
        };
        symlink(binary, directory.join("mcp-forge")).unwrap();
        fs::write(directory.join("layers"), format!("{}\n", without.join(","))).unwrap();
        fs::write(directory.join("secret"), format!("{}\n", self.secret)).unwrap();
        Place { id, directory }
    }

    /// What a probe is told of the host; of the world's addresses only where it cannot reach them.
    pub(super) fn facts(&self, world: bool) -> Value {
        let mut targets = vec![
            "127.0.0.1".to_owned(),
            "127.169.254.169".to_owned(),
            "::1".to_owned(),
        ];
        targets.extend(self.address.map(|address| address.to_string()));
        if world {
            let addresses = [
                "8.8.8.8",
                "10.0.0.1",
                "192.168.0.1",
                "172.17.0.1",
                "169.254.169.254",
                "168.63.129.16",
                "fd00:ec2::254",
                "2001:4860:4860::8888",
            ];
            targets.extend(addresses.map(str::to_owned));
        }
        json!({
            "world": u8::from(world),
            "secret": self.secret,
            "canary": self.directory.path().join("canary"),
            "victim": self.victim.id(),
            "tcp_port": self.tcp.local_addr().unwrap().port(),
            "udp_port": self.udp.local_addr().unwrap().port(),
            "targets": targets,
            "socket": self.directory.path().join("socket"),
            "abstract": self.abstract_name,
            "private_words": [SHARED.directory.path().file_name().unwrap().to_str().unwrap(), "escape-private-user", "/root", "/home"],
            "host_names": host_names(),
        })
    }

    /// Canaries that something touched.
    pub(super) fn touched(&self) -> Vec<String> {
        let mut touched = Vec::new();
        let mut note = |what: &str, seen: bool| touched.extend(seen.then(|| what.to_owned()));
        note("a TCP connection", self.tcp.accept().is_ok());
        note("a UDP packet", self.udp.recv_from(&mut [0; 64]).is_ok());
        note("a connection to a socket file", self.unix.accept().is_ok());
        note(
            "a connection to an abstract socket",
            self.abstract_unix.accept().is_ok(),
        );
        let victim = stat(self.victim.id()).map(|stat| stat.state);
        note(
            "its process killed or stopped",
            !matches!(victim, Some('S' | 'R')),
        );
        let canary = fs::read_to_string(self.directory.path().join("canary")).unwrap_or_default();
        note("its file changed", canary != self.secret);
        let planted: Vec<_> = fs::read_dir(SHARED.library())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        note("files in its Python environment", planted.len() != 1);
        for name in planted
            .iter()
            .filter(|name| !name.to_string_lossy().starts_with("python"))
        {
            let path = SHARED.library().join(name);
            fs::remove_file(&path)
                .or_else(|_| fs::remove_dir(&path))
                .unwrap();
        }
        touched
    }

    /// What the run left elsewhere: mounts, files of the engine.
    pub(super) async fn rubbish(&self, before: &BTreeSet<String>) -> Vec<String> {
        let look = || {
            let mounts = Self::mounts()
                .difference(before)
                .map(|mount| format!("mounted: {mount}"))
                .collect::<Vec<_>>();
            let files = fs::read_dir(self.data_directory())
                .unwrap()
                .flatten()
                .map(|entry| format!("left: {}", entry.path().display()));
            mounts.into_iter().chain(files).collect()
        };
        awaited(look).await
    }

    pub(super) fn mounts() -> BTreeSet<String> {
        fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.victim.kill().ok();
        self.victim.wait().ok();
    }
}

/// The build of the program that can leave layers out: named by the environment, else built here.
pub(crate) fn negative_controls() -> &'static Path {
    static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
        std::env::var_os("FORGE_TEST_CONTROL_BINARY")
            .map_or_else(build_negative_controls, PathBuf::from)
    });
    &BINARY
}

#[expect(clippy::disallowed_methods, reason = "a test builds what it tests")]
fn build_negative_controls() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = root.join("target/negative-controls");
    let built = Command::new(env!("CARGO"))
        .args([
            "build",
            "-p",
            "mcp-forge",
            "--features",
            "negative-controls",
            "--target-dir",
        ])
        .arg(&target)
        .current_dir(&root)
        .status();
    assert!(
        built.unwrap().success(),
        "the build with `negative-controls` failed"
    );
    target.join("debug/mcp-forge")
}
