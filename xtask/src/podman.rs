//! Podman for tests: storage and a service of our own, and the images built by the product.

use std::{
    env,
    ffi::OsString,
    fs::{self, DirBuilder, File, Permissions},
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};

use crate::{
    install::{bootstrap, once},
    ordinary_user::{PATH, USER},
    process::{Ran, command, is_root, program, run},
    workspace::Workspace,
};

/// Python, and what the images for turns and for sessions have.
const BASE_PACKAGES: &str = "python3-minimal,python3-numpy,python3-pandas,python3-requests,\
                             python3-ipython,python3-matplotlib-inline,dash,bash,coreutils,\
                             ca-certificates";
/// What scripts of these packages would do, if they ran.
const BASE_LINKS: &str = r#"cd "$1"/usr/lib/*-linux-gnu && \
                            ln -s blas/libblas.so.3 lapack/liblapack.so.3 . && \
                            cd "$1" && \
                            cat usr/share/ca-certificates/mozilla/*.crt > etc/ssl/certs/ca-certificates.crt && \
                            ln -sf ../../../etc/ssl/certs/ca-certificates.crt usr/lib/ssl/cert.pem"#;
const BASE: &str = "localhost/mcp-forge-test-base:1";

/// For containers of an ordinary user; no account has them by default.
const SUBORDINATE_IDS: &str = "700000:65536";

/// How long a service may take to listen, and to end.
const PATIENCE: Duration = Duration::from_mins(1);

/// The group `images`: a base of Debian's packages, and our images on it.
///
/// # Errors
///
/// No base, no service, or the build failed.
pub(crate) fn images(workspace: &Workspace, log: &File) -> anyhow::Result<Ran> {
    make_base(workspace, log)?;
    let place = Place::of_this_user(workspace)?;
    place.clear(log)?;
    Service::start(place, log)?.build_images(workspace, log)?;
    Ok(Ran::Tests)
}

/// There may be no registry to pull a base image from.
fn make_base(workspace: &Workspace, log: &File) -> anyhow::Result<()> {
    once(
        &workspace.tools.join("podman"),
        &format!("{BASE_PACKAGES}\n{BASE_LINKS}"),
        || bootstrap(BASE_PACKAGES, Some(BASE_LINKS), &base(workspace), log),
    )
}

fn base(workspace: &Workspace) -> PathBuf {
    workspace.tools.join("podman/base.tar")
}

/// Where one user's podman keeps everything.
#[derive(Debug)]
pub(crate) struct Place {
    /// In `/tmp`: sockets lie in it, and their addresses have an end.
    directory: PathBuf,
    storage: PathBuf,
    /// Whether it is for the ordinary user while we are root.
    is_of_ordinary_user: bool,
}

impl Place {
    /// Ours. Its images stay until the next run.
    pub(crate) fn of_this_user(workspace: &Workspace) -> anyhow::Result<Self> {
        let place = Self {
            directory: short_directory(workspace, ""),
            storage: workspace.target.join("podman"),
            is_of_ordinary_user: false,
        };
        place.make()?;
        Ok(place)
    }

    /// The ordinary user's, empty.
    pub(crate) fn of_ordinary_user(workspace: &Workspace, log: &File) -> anyhow::Result<Self> {
        let directory = short_directory(workspace, "-user");
        let place = Self {
            storage: directory.join("storage"),
            directory,
            is_of_ordinary_user: true,
        };
        give_subordinate_ids()?;
        place.make()?;
        place.clear(log)?;
        Ok(place)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("api.sock")
    }

    /// The same each time: podman remembers where it was.
    fn make(&self) -> anyhow::Result<()> {
        let owner = if self.is_of_ordinary_user {
            USER
        } else {
            fs::metadata("/proc/self")?.uid()
        };
        for directory in [&self.directory, &self.home(), &self.storage] {
            if !directory.exists() {
                DirBuilder::new().mode(0o700).create(directory)?;
                chown(directory, Some(owner), Some(owner))?;
            }
            // Anybody can make a directory of this name in /tmp.
            ensure!(
                fs::symlink_metadata(directory)?.uid() == owner && directory.is_dir(),
                "{} belongs to somebody else: remove it",
                directory.display()
            );
            fs::set_permissions(directory, Permissions::from_mode(0o700))?;
        }
        Ok(())
    }

    fn home(&self) -> PathBuf {
        self.directory.join("home")
    }

    /// What an earlier run left.
    fn clear(&self, log: &File) -> anyhow::Result<()> {
        run(
            self.podman()
                .args(["rm", "--all", "--force", "--time", "0"]),
            log,
        )?;
        run(self.podman().args(["rmi", "--all", "--force"]), log)
    }

    fn podman(&self) -> Command {
        let mut podman = command("setpriv");
        self.complete(&mut podman);
        podman
    }

    /// The flags that work where systemd does not run and cgroups are not of version 2 alone, in
    /// containers and in small virtual machines: they change nothing elsewhere.
    fn complete(&self, setpriv: &mut Command) {
        // Ends with us, even if we are killed.
        setpriv.args(["--pdeathsig", "TERM"]);
        if self.is_of_ordinary_user {
            let user = USER.to_string();
            setpriv
                .args([
                    "--reuid",
                    &user,
                    "--regid",
                    &user,
                    "--clear-groups",
                    "--inh-caps=-all",
                ])
                .env_clear()
                .env("PATH", PATH);
        }
        setpriv
            .env("HOME", self.home())
            .env("XDG_RUNTIME_DIR", self.home())
            .current_dir(self.home());
        setpriv.args(self.words());
    }

    /// The command line.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![
            "podman".into(),
            "--root".into(),
            self.storage.clone().into(),
        ];
        for (flag, name) in [("--runroot", "run"), ("--tmpdir", "tmp")] {
            words.extend([flag.into(), self.directory.join(name).into()]);
        }
        let fixed = "--storage-driver overlay --cgroup-manager cgroupfs --events-backend none --runtime runc";
        words.extend(fixed.split(' ').map(OsString::from));
        words
    }

    /// The same for tests, which run as the user that it is for: split at spaces, none in a word.
    fn for_tests(&self) -> anyhow::Result<OsString> {
        let home = self.home();
        let mut line = OsString::from("env");
        for name in ["HOME", "XDG_RUNTIME_DIR"] {
            line.push(format!(" {name}={}", home.display()));
        }
        for word in self.words() {
            ensure!(
                !word.to_string_lossy().contains(' '),
                "tests of podman need a checkout whose path has no space"
            );
            line.push(" ");
            line.push(word);
        }
        Ok(line)
    }
}

fn short_directory(workspace: &Workspace, suffix: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    workspace.target.hash(&mut hasher);
    let name = format!("mcp-forge-{:08x}{suffix}", hasher.finish() & 0xFFFF_FFFF);
    Path::new("/tmp").join(name)
}

/// Without them a user has one id in containers, and our images need two.
fn give_subordinate_ids() -> anyhow::Result<()> {
    for file in ["/etc/subuid", "/etc/subgid"] {
        let lines = fs::read_to_string(file).unwrap_or_default();
        if lines
            .lines()
            .any(|line| line.starts_with("nobody:") || line.starts_with("65534:"))
        {
            continue;
        }
        fs::write(file, format!("{lines}nobody:{SUBORDINATE_IDS}\n"))
            .with_context(|| format!("cannot write {file}"))?;
    }
    Ok(())
}

/// A running API service. Dropped, it is ended, and so are its containers.
#[derive(Debug)]
pub(crate) struct Service {
    place: Place,
    process: Child,
    log: File,
}

impl Service {
    /// Starts it, and waits until it listens.
    ///
    /// # Errors
    ///
    /// It ended, or does not listen in time; it is gone.
    pub(crate) fn start(place: Place, log: &File) -> anyhow::Result<Self> {
        let socket = place.socket();
        if socket.exists() {
            fs::remove_file(&socket)?;
        }
        let mut setpriv = program("setpriv");
        place.complete(&mut setpriv);
        setpriv
            .args(["system", "service", "--time=0"])
            .arg(format!("unix://{}", socket.display()))
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?);
        let mut service = Self {
            process: setpriv.spawn().context("cannot start podman's service")?,
            place,
            log: log.try_clone()?,
        };
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(&socket).is_err() {
            if let Some(status) = service.process.try_wait()? {
                bail!("podman's service ended at once: {status}");
            }
            ensure!(
                Instant::now() < deadline,
                "podman's service does not listen"
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(service)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.place.socket()
    }

    /// For tests: where it listens, how to ask podman itself, and that it must not be left out.
    ///
    /// # Errors
    ///
    /// The checkout's path does not fit into a command line.
    pub(crate) fn test_variables(&self) -> anyhow::Result<Vec<(&'static str, OsString)>> {
        let mut variables = vec![
            ("MCP_FORGE_PODMAN_SOCKET", self.socket().into_os_string()),
            ("FORGE_TEST_PODMAN", self.place.for_tests()?),
            ("REQUIRE_ENGINES", "podman".into()),
        ];
        if self.place.is_of_ordinary_user || !is_root() {
            // Without cgroup v2 its limits are ignored, which must be allowed by name.
            variables.push(("MCP_FORGE_SECURITY_ALLOW_DEGRADED", "cgroup".into()));
        }
        Ok(variables)
    }

    /// Imports the base, and has the product build its images on it.
    ///
    /// # Errors
    ///
    /// One of them failed.
    pub(crate) fn build_images(&self, workspace: &Workspace, log: &File) -> anyhow::Result<()> {
        // Over the socket: the base may lie where the ordinary user cannot read.
        let mut import = command("podman");
        import
            .args(["--remote", "--url"])
            .arg(format!("unix://{}", self.socket().display()));
        run(import.arg("import").arg(base(workspace)).arg(BASE), log)?;
        // Not python:3.12: the base has Debian's Python, which is another.
        for arguments in [
            &[
                "image",
                "build",
                "python:3.11",
                "jupyter",
                "--base",
                BASE,
                "--no-packages",
            ][..],
            &["image", "list", "--json"],
        ] {
            run(self.forge(workspace).args(arguments), log)?;
        }
        Ok(())
    }

    /// The product, with this service and nobody's configuration.
    fn forge(&self, workspace: &Workspace) -> Command {
        let mut forge = command(workspace.binary());
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("MCP_FORGE_") {
                forge.env_remove(name);
            }
        }
        forge
            .env("MCP_FORGE_PODMAN_SOCKET", self.socket())
            .env("MCP_FORGE_DATA_DIR", self.place.directory.join("data"))
            .env("XDG_CONFIG_HOME", self.place.directory.join("config"));
        forge
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let end = |signal: &str, id: u32| {
            let mut kill = command("kill");
            run(kill.args(["-s", signal, &id.to_string()]), &self.log)
        };
        let _ = end("TERM", self.process.id());
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.process.kill();
            }
            thread::sleep(Duration::from_millis(20));
        }
        // What tests left, with their supervisors.
        let mut remove = self.place.podman();
        if let Err(error) = run(
            remove.args(["rm", "--all", "--force", "--time", "0"]),
            &self.log,
        ) {
            println!("note    containers of tests may be left: {error}");
        }
        let gone = if self.place.is_of_ordinary_user {
            &self.place.directory
        } else {
            return;
        };
        if is_root()
            && let Err(error) = fs::remove_dir_all(gone)
        {
            println!("note    {} could not be removed: {error}", gone.display());
        }
    }
}
