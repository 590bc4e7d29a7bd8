//! From a sandbox as the server thinks of it to a jail as the kernel builds it. Pure.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use jail::spec::{File, JailLimits, JailSpec, Layer, Link, Tree};
use tokio::sync::OnceCell;

use super::Interpreter;
use crate::{
    config::Profile,
    engine::{Environment, Purpose, SandboxSpec, variables::VARIABLES},
    limits::Limits,
    runner::source,
};

/// Where an interpreter outside `/usr` appears.
const PYTHON: &str = "/opt/python";

/// Where a virtual environment's packages appear.
const ENVIRONMENT: &str = "/opt/environment";

/// Where the zygote of an environment finds a virtual environment without packages.
const EMPTY: &str = "/opt/mcp-forge/empty";

/// Where the runner's source appears.
const RUNNER: &str = "/opt/mcp-forge";

/// An interpreter of this host, and the runner as it compiles it, once somebody had the time to ask.
#[derive(Debug, Clone)]
pub(super) struct Base {
    pub(super) interpreter: Interpreter,
    runner: Arc<OnceLock<Vec<File>>>,
    /// Modules of its standard library, of those that somebody asked about.
    standard: Arc<OnceCell<Vec<String>>>,
}

/// What every program sees of a host.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) trees: Vec<Tree>,
    pub(super) links: Vec<Link>,
    pub(super) files: Vec<File>,
    pub(super) variables: Vec<(String, String)>,
}

impl Base {
    pub(super) fn new(interpreter: Interpreter) -> Self {
        Self {
            interpreter,
            runner: Arc::default(),
            standard: Arc::default(),
        }
    }

    /// Of these modules those of its standard library. Always asked about the same ones: the answer is
    /// kept.
    pub(super) async fn standard(&self, modules: &[&str]) -> &[String] {
        self.standard
            .get_or_init(|| self.interpreter.standard(modules))
            .await
    }

    /// The same without the packages of a virtual environment that it was found through.
    pub(super) fn plain(&self) -> Self {
        let mut plain = self.clone();
        plain.interpreter.environment = None;
        plain
    }

    /// Has the interpreter compile the runner, for all sandboxes from now on: each would take a third
    /// of its start for it, and a zygote keeps the compiler's leavings for all of its forks.
    pub(super) async fn compile_runner(&self) -> Result<(), String> {
        if self.runner.get().is_some() {
            return Ok(());
        }
        let compiled = self.interpreter.compile(RUNNER, source::FILES).await?;
        let files = compiled.into_iter().map(|(name, content)| File {
            path: format!("{RUNNER}/{name}c"),
            content,
            binary: true,
        });
        self.runner.set(files.collect()).ok();
        Ok(())
    }
}

/// What the engine found on this host, once.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) base: Base,
    /// The private copy that stands for the host's `/usr`, if so configured.
    private_root: Option<PathBuf>,
    /// What is shown as a virtual environment's.
    packages: Option<Packages>,
    /// Trees and links that depend on how this host lays out its root.
    trees: Vec<Tree>,
    links: Vec<Link>,
}

/// The packages of a virtual environment.
#[derive(Debug)]
struct Packages {
    /// The directory `lib`, which holds `pythonX.Y/site-packages`.
    library: PathBuf,
    /// They are not the operator's: nothing of them may run before the seal.
    are_foreign: bool,
}

impl Host {
    /// Looks at the host's root directory. The packages are those of the virtual environment that the
    /// interpreter was found through, if any.
    pub(super) fn read(base: Base, private_root: Option<PathBuf>) -> Self {
        let environment = base.interpreter.environment.as_ref();
        let library = environment.map(|environment| match &private_root {
            None => environment.join("lib"),
            Some(root) => root.join("environment"),
        });
        let packages = library.map(|library| Packages {
            library,
            are_foreign: false,
        });
        Self::with_packages(base, private_root, packages)
    }

    /// The same with the packages of an environment and no others.
    pub(super) fn of_environment(
        base: Base,
        private_root: Option<PathBuf>,
        environment: &Environment,
    ) -> Self {
        let packages = Packages {
            library: environment.directory.join("lib"),
            are_foreign: true,
        };
        Self::with_packages(base, private_root, Some(packages))
    }

    fn with_packages(
        base: Base,
        private_root: Option<PathBuf>,
        packages: Option<Packages>,
    ) -> Self {
        let (trees, links) = match &private_root {
            None => host_root(),
            Some(root) => (vec![opaque(&root.join("usr"), "/usr")], merged_links()),
        };
        let mut host = Self {
            base,
            private_root,
            packages,
            trees,
            links,
        };
        host.add_interpreter();
        host.add_environment();
        host
    }

    /// Inside, the interpreter is at the same path if `/usr` holds it, else at [`PYTHON`].
    pub(super) fn python(&self) -> PathBuf {
        let inside = Path::new(&self.prefix()).join("bin");
        let name = self
            .base
            .interpreter
            .executable
            .file_name()
            .unwrap_or("python3".as_ref());
        if self.in_usr() {
            self.base.interpreter.executable.clone()
        } else {
            inside.join(name)
        }
    }

    /// What a build job sees of this host: the same trees and links, and no runner.
    pub(super) fn for_job(&self) -> Shown {
        let files = ETC.iter().map(|(path, content)| file(path, content));
        Shown {
            trees: self.trees.clone(),
            links: self.links.clone(),
            files: files.collect(),
            variables: self.environment(),
        }
    }

    fn prefix(&self) -> String {
        if self.in_usr() {
            self.base.interpreter.base_prefix.display().to_string()
        } else {
            PYTHON.to_owned()
        }
    }

    fn in_usr(&self) -> bool {
        self.base.interpreter.base_prefix.starts_with("/usr")
    }

    fn add_interpreter(&mut self) {
        if self.in_usr() {
            return;
        }
        let source = self.private_root.as_ref().map_or_else(
            || self.base.interpreter.base_prefix.clone(),
            |root| root.join("python"),
        );
        self.trees.push(opaque(&source, PYTHON));
        // Nix keeps a package's libraries under their full paths.
        if self.base.interpreter.base_prefix.starts_with("/nix") && self.private_root.is_none() {
            self.trees.push(Tree {
                source: "/nix/store".to_owned(),
                target: "/nix/store".to_owned(),
                opaque: false,
            });
        }
    }

    /// A virtual environment is rebuilt around its own `lib`: its links and its `pyvenv.cfg` name
    /// host paths that do not exist inside.
    fn add_environment(&mut self) {
        let Some(packages) = &self.packages else {
            return;
        };
        self.trees
            .push(opaque(&packages.library, &format!("{ENVIRONMENT}/lib")));
        for name in ["python", "python3"] {
            self.links.push(self.link(ENVIRONMENT, name));
        }
    }

    /// A virtual environment's own name of the interpreter.
    fn link(&self, prefix: &str, name: &str) -> Link {
        Link {
            path: format!("{prefix}/bin/{name}"),
            target: self.python().display().to_string(),
        }
    }

    /// What makes a directory a virtual environment.
    fn marker(&self, prefix: &str) -> File {
        let (major, minor, micro) = self.base.interpreter.version;
        let home = self
            .python()
            .parent()
            .map(|parent| parent.display().to_string())
            .unwrap_or_default();
        let content = format!(
            "home = {home}\ninclude-system-site-packages = false\nversion = {major}.{minor}.{micro}\n"
        );
        file(&format!("{prefix}/pyvenv.cfg"), &content)
    }

    /// The program to execute.
    fn program(&self) -> String {
        match self.packages {
            Some(_) => format!("{ENVIRONMENT}/bin/python3"),
            None => self.python().display().to_string(),
        }
    }

    fn files(&self) -> Vec<File> {
        let mut files: Vec<File> = ETC
            .iter()
            .map(|(path, content)| file(path, content))
            .collect();
        match self.base.runner.get() {
            Some(compiled) => files.extend_from_slice(compiled),
            None => files.extend(
                source::FILES
                    .iter()
                    .map(|(name, content)| file(&format!("{RUNNER}/{name}"), content)),
            ),
        }
        if self.packages.is_some() {
            files.push(self.marker(ENVIRONMENT));
        }
        files
    }

    /// The whole environment: nothing of the server's is inherited.
    fn environment(&self) -> Vec<(String, String)> {
        let bin = Path::new(&self.prefix()).join("bin");
        let mut path = vec!["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"];
        let bin = bin.display().to_string();
        if !path.contains(&bin.as_str()) {
            path.insert(0, &bin);
        }
        let own = format!("{ENVIRONMENT}/bin");
        if self.packages.is_some() {
            path.insert(0, &own);
        }
        let path = path.join(":");
        let mut variables: Vec<(String, String)> = VARIABLES
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        variables.push(("PATH".to_owned(), path));
        if self.private_root.is_some() {
            let bundle = "/usr/share/ca-certificates.crt".to_owned();
            variables.push(("SSL_CERT_FILE".to_owned(), bundle));
        }
        if self.base.interpreter.shared_library && !self.in_usr() {
            // Its run path names the host's directory.
            variables.push(("LD_LIBRARY_PATH".to_owned(), format!("{PYTHON}/lib")));
        }
        variables
    }
}

/// The limits in the jail's words.
pub(super) fn jail_limits(limits: &Limits) -> JailLimits {
    JailLimits {
        memory_bytes: limits.memory_bytes,
        cpu_quota_us: limits.cpu_quota_us,
        pids: limits.pids,
        tmp_bytes: limits.directory_bytes(),
        workspace_bytes: limits.directory_bytes(),
        shm_bytes: limits.shared_memory_bytes(),
        // All cores for the whole time, and a little: the deadline is what ends a turn.
        cpu_seconds: limits
            .timeout
            .as_secs()
            .saturating_mul(64)
            .saturating_add(10),
    }
}

/// What the jail is asked for a zygote. Its forks get their own limits.
pub(super) fn zygote_spec(
    limits: &Limits,
    host: &Host,
    required: Vec<Layer>,
    profile: Profile,
) -> JailSpec {
    let spec = SandboxSpec {
        id: String::new(),
        limits: limits.clone(),
        purpose: Purpose::default(),
        environment: None,
    };
    let mut spec = jail_spec(&spec, host, required);
    let hexadecimal = jail::SEAL_OBJECT.iter().flat_map(|byte| {
        [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0'))
    });
    spec.files.push(File {
        path: format!("{RUNNER}/seal.so"),
        content: hexadecimal.collect(),
        binary: true,
    });
    let are_foreign = host
        .packages
        .as_ref()
        .is_some_and(|packages| packages.are_foreign);
    let program = if are_foreign {
        spec.links.push(host.link(EMPTY, "python3"));
        spec.files.push(host.marker(EMPTY));
        spec.program = format!("{EMPTY}/bin/python3");
        source::ZYGOTE_WITHOUT_PACKAGES
    } else {
        source::ZYGOTE
    };
    if let Some(last) = spec.arguments.last_mut() {
        program.clone_into(last);
    }
    spec.zygote = true;
    spec.own_networks = profile == Profile::Strict;
    spec
}

/// The same, for a zygote that has imported these.
pub(super) fn with_modules(mut zygote: JailSpec, modules: &[String]) -> JailSpec {
    zygote.arguments.extend_from_slice(modules);
    zygote
}

/// What the jail is asked for one sandbox.
pub(super) fn jail_spec(spec: &SandboxSpec, host: &Host, required: Vec<Layer>) -> JailSpec {
    let limits = &spec.limits;
    JailSpec {
        id: spec.id.clone(),
        trees: host.trees.clone(),
        links: host.links.clone(),
        files: host.files(),
        limits: jail_limits(limits),
        program: host.program(),
        arguments: [
            // Isolated: no PYTHON* variable, no user site, no working directory decides what is imported.
            "-I",
            "-B",
            "-X",
            "utf8",
            "-c",
            source::BOOTSTRAP,
        ]
        .map(str::to_owned)
        .to_vec(),
        environment: host.environment(),
        required,
        zygote: false,
        own_networks: false,
        job: None,
    }
}

/// The host's programs and libraries, where this host keeps them.
fn host_root() -> (Vec<Tree>, Vec<Link>) {
    let mut trees = vec![Tree {
        source: "/usr".to_owned(),
        target: "/usr".to_owned(),
        opaque: false,
    }];
    let mut links = Vec::new();
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let path = format!("/{name}");
        match std::fs::read_link(&path) {
            Ok(target) => links.push(Link {
                path,
                target: target.display().to_string(),
            }),
            Err(_) if Path::new(&path).is_dir() => trees.push(Tree {
                source: path.clone(),
                target: path,
                opaque: false,
            }),
            Err(_) => {}
        }
    }
    // Certificates, where libraries and fonts are, the choices between alternatives: nothing of a user.
    for path in [
        "/etc/ssl/certs",
        "/etc/pki/tls/certs",
        "/etc/pki/ca-trust/extracted",
        "/etc/alternatives",
        "/etc/fonts",
        "/etc/ld.so.cache",
    ] {
        if Path::new(path).exists() {
            trees.push(Tree {
                source: path.to_owned(),
                target: path.to_owned(),
                opaque: false,
            });
        }
    }
    (trees, links)
}

/// A private root has one layout.
fn merged_links() -> Vec<Link> {
    ["bin", "sbin", "lib", "lib64"]
        .map(|name| Link {
            path: format!("/{name}"),
            target: format!("usr/{name}"),
        })
        .to_vec()
}

pub(super) fn opaque(source: &Path, target: &str) -> Tree {
    Tree {
        source: source.display().to_string(),
        target: target.to_owned(),
        opaque: true,
    }
}

pub(super) fn file(path: &str, content: &str) -> File {
    File {
        path: path.to_owned(),
        content: content.to_owned(),
        binary: false,
    }
}

/// `/etc`, made up: programs find what they look for, and nothing about this host.
const ETC: [(&str, &str); 9] = [
    (
        "/etc/passwd",
        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:/workspace:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    (
        "/etc/group",
        "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n",
    ),
    ("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("/etc/hostname", "sandbox\n"),
    (
        "/etc/nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
    ),
    ("/etc/resolv.conf", "# no network\n"),
    (
        "/etc/services",
        "http 80/tcp\nhttps 443/tcp\ndomain 53/tcp\ndomain 53/udp\nssh 22/tcp\n",
    ),
    (
        "/etc/protocols",
        "ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\n",
    ),
    ("/etc/timezone", "Etc/UTC\n"),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limits::Limits;

    fn rendered(
        executable: &str,
        prefix: &str,
        environment: Option<&str>,
        shared_library: bool,
    ) -> JailSpec {
        let interpreter = Interpreter {
            executable: executable.into(),
            base_prefix: prefix.into(),
            environment: environment.map(Into::into),
            version: (3, 12, 4),
            shared_library,
        };
        let mut host = Host {
            packages: environment.map(|environment| Packages {
                library: Path::new(environment).join("lib"),
                are_foreign: false,
            }),
            base: Base::new(interpreter),
            private_root: None,
            trees: Vec::new(),
            links: Vec::new(),
        };
        host.add_interpreter();
        host.add_environment();
        let limits = Limits {
            timeout: Duration::from_mins(5),
            memory_bytes: 512 << 20,
            cpu_quota_us: 50_000,
            pids: 100,
            storage_bytes: 1 << 30,
        };
        let spec = SandboxSpec {
            id: "abc".to_owned(),
            limits,
            purpose: Purpose::default(),
            environment: None,
        };
        let mut jail = jail_spec(&spec, &host, vec![Layer::Seccomp]);
        jail.files.retain(|file| !file.path.starts_with(RUNNER));
        jail
    }

    #[test]
    fn a_system_python_stays_where_it_is() {
        insta::assert_json_snapshot!(rendered("/usr/bin/python3.12", "/usr", None, false));
    }

    #[test]
    fn a_virtual_environment_of_a_home_directory_is_rebuilt_under_opt() {
        let jail = rendered(
            "/home/ada/.pyenv/versions/3.12.4/bin/python3.12",
            "/home/ada/.pyenv/versions/3.12.4",
            Some("/home/ada/p/.venv"),
            true,
        );
        insta::assert_json_snapshot!(jail);
        // The only places with the host's paths are the sources of opaque trees.
        for tree in &jail.trees {
            assert!(tree.opaque);
        }
        let rest = format!(
            "{:?}{:?}{:?}{:?}{}",
            jail.links, jail.files, jail.environment, jail.arguments, jail.program
        );
        assert!(!rest.contains("ada"), "{rest}");
    }
}
