//! The minimal root: a private copy of the interpreter, its libraries and a few programs.
//!
//! With it no page of a host program is shared with a sandbox, so a kernel bug that lets one
//! write into the page cache of a readable file (as two did in 2026) does not reach what the host
//! executes. Made once per interpreter, published by rename, found again by its key.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::Interpreter;

/// Changes whenever what is copied changes.
const LAYOUT: &str = "2";

/// What a shell script may expect. Copied where the host has it.
const PROGRAMS: [&str; 30] = [
    "sh", "bash", "env", "cat", "ls", "cp", "mv", "rm", "mkdir", "rmdir", "ln", "echo", "printf",
    "true", "false", "sleep", "head", "tail", "grep", "sed", "sort", "uniq", "wc", "cut", "tr",
    "find", "xargs", "tar", "gzip", "date",
];

/// Parts of the standard library that need a screen or are only tests.
const LEFT_OUT: [&str; 7] = [
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "__pycache__",
];

/// Libraries that wheels may expect of every Linux and do not bring (PEP 600). Copied where the host
/// has them, with what they need themselves.
const LIBRARIES: [&str; 22] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libatomic.so.1",
    "libz.so.1",
    "libexpat.so.1",
    "libresolv.so.2",
    "librt.so.1",
    "libnsl.so.1",
    "libutil.so.1",
    "libGL.so.1",
    "libX11.so.6",
    "libXext.so.6",
    "libXrender.so.1",
    "libICE.so.6",
    "libSM.so.6",
    "libglib-2.0.so.0",
    "libgobject-2.0.so.0",
    "libgthread-2.0.so.0",
];

/// Certificate bundles, where distributions keep them.
pub(super) const CERTIFICATES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Gives the root for this interpreter, and makes it if it is not there yet.
///
/// # Errors
///
/// A file could not be copied; nothing is published, and the next try starts anew.
pub(super) fn prepare(interpreter: &Interpreter, roots: &Path) -> io::Result<PathBuf> {
    let key = key(interpreter)?;
    let published = roots.join(&key);
    if published.is_dir() {
        return Ok(published);
    }
    fs::create_dir_all(roots)?;
    // Of its own, whoever else makes the same just now.
    let name = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), &key);
    let draft = roots.join(format!(".draft-{}-{name:x}", std::process::id()));
    let built = Draft::new(&draft).and_then(|mut root| root.fill(interpreter));
    let result = built.and_then(|()| match fs::rename(&draft, &published) {
        // Another server was faster: its copy is as good.
        Err(_) if published.is_dir() => Ok(()),
        renamed => renamed,
    });
    if draft.exists() {
        fs::remove_dir_all(&draft)?;
    }
    result.map(|()| published)
}

/// Names a copy: the same interpreter, unchanged, has the same key.
fn key(interpreter: &Interpreter) -> io::Result<String> {
    let meta = fs::metadata(&interpreter.executable)?;
    let mut hash = Sha256::new();
    for part in [
        LAYOUT.to_owned(),
        format!("{interpreter:?}"),
        format!("{} {} {}", meta.len(), meta.mtime(), meta.mtime_nsec()),
    ] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let mut digest = format!("{:x}", hash.finalize());
    digest.truncate(32);
    Ok(digest)
}

/// A root that is being filled.
struct Draft {
    root: PathBuf,
    /// Objects whose libraries are still to be found.
    objects: Vec<PathBuf>,
}

impl Draft {
    fn new(root: &Path) -> io::Result<Self> {
        for directory in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/share"] {
            fs::create_dir_all(root.join(directory))?;
        }
        Ok(Self {
            root: root.to_owned(),
            objects: Vec::new(),
        })
    }

    fn fill(&mut self, interpreter: &Interpreter) -> io::Result<()> {
        self.copy_interpreter(interpreter)?;
        for program in PROGRAMS {
            let found = ["/usr/bin", "/bin"]
                .iter()
                .map(|directory| Path::new(directory).join(program))
                .find(|path| path.is_file());
            if let Some(path) = found {
                self.copy_object(&path, &self.root.join("usr/bin").join(program))?;
            }
        }
        self.copy_expected_libraries()?;
        self.copy_libraries()?;
        if Path::new("/usr/share/zoneinfo").is_dir() {
            self.copy_tree(
                Path::new("/usr/share/zoneinfo"),
                &self.root.join("usr/share/zoneinfo"),
            )?;
        }
        if let Some(bundle) = CERTIFICATES.iter().find(|path| Path::new(path).is_file()) {
            fs::copy(bundle, self.root.join("usr/share/ca-certificates.crt"))?;
        }
        Ok(())
    }

    fn copy_interpreter(&mut self, interpreter: &Interpreter) -> io::Result<()> {
        let (major, minor, _) = interpreter.version;
        let library = format!("lib/python{major}.{minor}");
        let base = &interpreter.base_prefix;
        let prefix = if base.starts_with("/usr") {
            self.root.join(base.strip_prefix("/").unwrap_or(base))
        } else {
            self.root.join("python")
        };
        fs::create_dir_all(prefix.join("bin"))?;
        let name = interpreter
            .executable
            .file_name()
            .unwrap_or("python3".as_ref());
        let binary = prefix.join("bin").join(name);
        self.copy_object(&interpreter.executable, &binary)?;
        for alias in ["python3", "python"] {
            if name != alias && !prefix.join("bin").join(alias).exists() {
                symlink(name, prefix.join("bin").join(alias))?;
            }
        }
        self.copy_tree(&base.join(&library), &prefix.join(&library))?;
        for entry in fs::read_dir(base.join("lib"))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("libpython")
                && entry.path().is_file()
            {
                self.copy_object(&entry.path(), &prefix.join("lib").join(entry.file_name()))?;
            }
        }
        // Debian keeps packages of the system's Python beside the versions.
        let shared = Path::new("/usr/lib/python3/dist-packages");
        if base == Path::new("/usr") && shared.is_dir() {
            self.copy_tree(shared, &self.root.join("usr/lib/python3/dist-packages"))?;
        }
        match &interpreter.environment {
            Some(environment) => {
                self.copy_tree(&environment.join("lib"), &self.root.join("environment"))
            }
            None => Ok(()),
        }
    }

    /// Copies a directory, links as links, and remembers what has libraries to be found.
    fn copy_tree(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let (source, target) = (entry.path(), to.join(entry.file_name()));
            let kind = entry.file_type()?;
            if LEFT_OUT.iter().any(|name| entry.file_name() == *name)
                && !from.ends_with("site-packages")
            {
                continue;
            }
            if kind.is_dir() {
                self.copy_tree(&source, &target)?;
            } else if kind.is_file() {
                self.copy_object(&source, &target)?;
            } else if kind.is_symlink() && source.is_file() {
                // What a link inside the tree points at may lie outside it.
                self.copy_object(&source.canonicalize()?, &target)?;
            }
        }
        Ok(())
    }

    fn copy_object(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::copy(from, to)?;
        // Readable for the sandbox's user, whatever the host's umask was, and never set-user-id.
        let executable = fs::metadata(from)?.permissions().mode() & 0o111 != 0;
        fs::set_permissions(
            to,
            fs::Permissions::from_mode(if executable { 0o755 } else { 0o644 }),
        )?;
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        if executable || name.contains(".so") {
            self.objects.push(from.to_owned());
        }
        Ok(())
    }

    fn copy_expected_libraries(&mut self) -> io::Result<()> {
        let machine = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        for name in LIBRARIES {
            let found = [machine.as_str(), "/usr/lib64", "/usr/lib"]
                .iter()
                .map(|directory| Path::new(directory).join(name))
                .find_map(|path| Some((path.canonicalize().ok()?, path)));
            if let Some((real, path)) = found {
                self.copy_library(&path, &real)?;
                self.objects.push(real);
            }
        }
        Ok(())
    }

    /// Copies every library that a copied object needs, to the same place under the new root.
    fn copy_libraries(&self) -> io::Result<()> {
        let mut done = BTreeSet::new();
        for object in &self.objects {
            // Scripts and data with an executable bit are no objects.
            let Ok(tree) = lddtree::DependencyAnalyzer::new("/".into()).analyze(object) else {
                continue;
            };
            let libraries = tree
                .libraries
                .into_values()
                .filter_map(|library| library.realpath.map(|real| (library.path, real)));
            let loader = tree
                .interpreter
                .map(PathBuf::from)
                .and_then(|path| Some((path.clone(), path.canonicalize().ok()?)));
            for (path, real) in libraries.chain(loader) {
                if done.insert(path.clone()) {
                    self.copy_library(&path, &real)?;
                }
            }
        }
        Ok(())
    }

    fn copy_library(&self, path: &Path, real: &Path) -> io::Result<()> {
        let path = under_usr(path);
        let Ok(relative) = path.strip_prefix("/usr") else {
            return Ok(());
        };
        let target = self.root.join("usr").join(relative);
        if target.exists() {
            return Ok(());
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(real, &target)?;
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755))
    }
}

/// `/lib/x` is `/usr/lib/x` in the new root, as on most hosts. Libraries of a prefix elsewhere
/// come with their tree.
fn under_usr(path: &Path) -> PathBuf {
    let path = match path.parent().and_then(|parent| parent.canonicalize().ok()) {
        Some(parent) if parent.starts_with("/usr") => {
            parent.join(path.file_name().unwrap_or_default())
        }
        _ => path.to_owned(),
    };
    match path
        .strip_prefix("/")
        .ok()
        .filter(|path| path.starts_with("lib") || path.starts_with("lib64"))
    {
        Some(relative) => Path::new("/usr").join(relative),
        None => path,
    }
}
