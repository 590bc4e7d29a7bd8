//! Images for environments: the packages of a published tree, laid over an image for turns.
//!
//! The build runs nothing. Its context is made here, file by file from the tree, and its build file holds
//! nothing but the base's hash and fixed text, so no name of a package or a file is ever part of a command.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Component, Path, PathBuf},
};

use bollard::{
    Docker, body_try_stream,
    errors::Error as ApiError,
    query_parameters::{BuildImageOptionsBuilder, RemoveImageOptions},
};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::images::{self, ImageError};
use crate::{engine::Environment, policy::Image};

/// Which environment an image holds: the whole hash.
const ENVIRONMENT_LABEL: &str = "io.mcp-forge.environment";

/// Which image it was laid over.
const BASE_LABEL: &str = "io.mcp-forge.base";

/// Where the environment is in the image.
const INSIDE: &str = "opt/environment";

/// Where the relay puts what only it knows: the interpreter, and where that is at home.
const KNOWN_INSIDE: &str = "/opt/mcp-forge/environment";

/// Files, directories and links of a tree, at most.
const MOST_MEMBERS: usize = 500_000;

/// Directories within each other, at most.
const DEEPEST: usize = 64;

/// Bytes that are sent together.
const PIECE_BYTES: usize = 1 << 18;

/// The name of an environment's image.
pub(super) fn name(environment_id: &str) -> String {
    let start: String = environment_id.chars().take(12).collect();
    format!("mcp-forge/custom:{start}")
}

/// The image of this environment over this base, if the service has it and we made it.
pub(super) async fn find(
    client: &Docker,
    environment: &Environment,
    base: &Image,
    place: &(String, String),
) -> Result<Option<Image>, ImageError> {
    let labels = labels(environment, base, place);
    let name = name(&environment.id);
    let Some(found) = look(client, &name).await? else {
        return Ok(None);
    };
    let is_it = labels
        .iter()
        .all(|(label, value)| found.labels.get(label) == Some(value));
    Ok(is_it.then_some(Image { name, id: found.id }))
}

/// Lays the packages of an environment over a base.
///
/// # Errors
///
/// [`ImageError::Build`]; what was there before still is.
pub(super) async fn build(
    client: &Docker,
    environment: &Environment,
    base: &Image,
    place: &(String, String),
) -> Result<Image, ImageError> {
    let name = name(&environment.id);
    let failed = |problem: String| ImageError::Build {
        image: name.clone(),
        problem,
    };
    let containerfile = containerfile(&base.id).map_err(&failed)?;
    if let Some(found) = look(client, &base.id).await?
        && found.has_triggers
    {
        let problem = format!(
            "{} has ONBUILD commands, which would run: build it without",
            base.name
        );
        return Err(failed(problem));
    }
    let context = Context::of(environment).await.map_err(&failed)?;
    let request = BuildImageOptionsBuilder::new()
        .dockerfile("Containerfile")
        .t(&name)
        .labels(&labels(environment, base, place))
        .networkmode("none")
        .rm(true)
        .forcerm(true)
        .build();
    let stream = client.build_image(
        request,
        None,
        Some(body_try_stream(context.send(containerfile))),
    );
    images::follow(stream, &name, |_| {}).await?;
    let built = find(client, environment, base, place).await?;
    built.ok_or_else(|| failed("the service ended the build without an image".to_owned()))
}

/// Removes the image of an environment, if it is there and is this data directory's. One that a
/// container has stays.
///
/// # Errors
///
/// [`ImageError::Service`].
pub(super) async fn remove(
    client: &Docker,
    environment_id: &str,
    (place_label, place): &(String, String),
) -> Result<(), ImageError> {
    let name = name(environment_id);
    let Some(found) = look(client, &name).await? else {
        return Ok(());
    };
    let has = |label: &str, value: &str| found.labels.get(label).is_some_and(|has| has == value);
    if !has(ENVIRONMENT_LABEL, environment_id) || !has(place_label, place) {
        return Ok(());
    }
    let removed = client
        .remove_image(&found.id, None::<RemoveImageOptions>, None)
        .await;
    match removed {
        Ok(_) => Ok(()),
        Err(ApiError::DockerResponseServerError {
            status_code: 404, ..
        }) => Ok(()),
        Err(error) => Err(ImageError::Service(images::sentence(&images::words(
            &error,
        )))),
    }
}

/// What the service says of an image.
struct Looked {
    id: String,
    labels: HashMap<String, String>,
    /// Commands that a build on it would run.
    has_triggers: bool,
}

async fn look(client: &Docker, image: &str) -> Result<Option<Looked>, ImageError> {
    // A service completes short names; what it has under `localhost` was built on it.
    for candidate in [image.to_owned(), format!("localhost/{image}")] {
        match client.inspect_image(&candidate).await {
            Ok(found) => {
                let config = found.config.unwrap_or_default();
                return Ok(found.id.map(|id| Looked {
                    id,
                    labels: config.labels.unwrap_or_default(),
                    has_triggers: config.on_build.is_some_and(|commands| !commands.is_empty()),
                }));
            }
            Err(ApiError::DockerResponseServerError {
                status_code: 404, ..
            }) => {}
            Err(error) => {
                return Err(ImageError::Service(images::sentence(&images::words(
                    &error,
                ))));
            }
        }
    }
    Ok(None)
}

fn labels(
    environment: &Environment,
    base: &Image,
    (place_label, place): &(String, String),
) -> HashMap<String, String> {
    HashMap::from([
        (ENVIRONMENT_LABEL.to_owned(), environment.id.clone()),
        (BASE_LABEL.to_owned(), base.id.clone()),
        (place_label.clone(), place.clone()),
    ])
}

/// The build file. By hash: a name might be looked up in a registry, or be another image by now.
fn containerfile(base: &str) -> Result<String, String> {
    let digits = base.strip_prefix("sha256:").unwrap_or(base);
    let is_hash = digits.len() == 64
        && digits
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hash {
        Ok(format!("FROM {base}\nCOPY {INSIDE}/ /{INSIDE}/\n"))
    } else {
        Err("its base has no hash that could be built on".to_owned())
    }
}

/// The members of a tree, looked at before anything is sent.
struct Context {
    root: PathBuf,
    /// Below `lib/pythonX.Y/site-packages`, in the image.
    inside: String,
    members: Vec<Member>,
}

/// One member, by its path below the root.
struct Member {
    path: PathBuf,
    kind: Kind,
}

enum Kind {
    Directory,
    File { is_executable: bool },
    Link(PathBuf),
}

impl Context {
    async fn of(environment: &Environment) -> Result<Self, String> {
        let root = environment.site_packages();
        let (major, minor) = environment.python;
        let inside = format!("{INSIDE}/lib/python{major}.{minor}/site-packages");
        let walking =
            tokio::task::spawn_blocking(move || walk(&root).map(|members| (root, members)));
        let walked = walking.await.map_err(|error| error.to_string())?;
        let (root, members) = walked?;
        Ok(Self {
            root,
            inside,
            members,
        })
    }

    /// The archive, as it is made.
    fn send(
        self,
        containerfile: String,
    ) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static {
        let (sender, mut receiver) = mpsc::channel(4);
        tokio::task::spawn_blocking(move || {
            let mut pieces = Pieces {
                sender,
                piece: Vec::new(),
            };
            let written = self.write(&containerfile, &mut pieces);
            // The service has hung up, or is told why there is no more.
            match written.and_then(|()| pieces.flush()) {
                Ok(()) => {}
                Err(error) => drop(pieces.sender.blocking_send(Err(error))),
            }
        });
        futures_util::stream::poll_fn(move |context| receiver.poll_recv(context))
    }

    fn write(&self, containerfile: &str, out: &mut impl Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(out);
        let text = containerfile.as_bytes();
        let mut head = header(tar::EntryType::Regular, 0o644, text.len() as u64);
        archive.append_data(&mut head, "Containerfile", text)?;
        let mut link = |path: &str, target: &str| {
            let mut head = header(tar::EntryType::Symlink, 0o777, 0);
            archive.append_link(&mut head, format!("{INSIDE}/{path}"), target)
        };
        link("pyvenv.cfg", &format!("{KNOWN_INSIDE}/pyvenv.cfg"))?;
        for name in ["python", "python3"] {
            link(&format!("bin/{name}"), &format!("{KNOWN_INSIDE}/python3"))?;
        }
        let inside = Path::new(&self.inside);
        let mut head = header(tar::EntryType::Directory, 0o755, 0);
        archive.append_data(&mut head, inside, io::empty())?;
        for member in &self.members {
            let path = inside.join(&member.path);
            match &member.kind {
                Kind::Directory => {
                    let mut head = header(tar::EntryType::Directory, 0o755, 0);
                    archive.append_data(&mut head, path, io::empty())?;
                }
                Kind::Link(target) => {
                    let mut head = header(tar::EntryType::Symlink, 0o777, 0);
                    archive.append_link(&mut head, path, target)?;
                }
                Kind::File { is_executable } => {
                    let file = open(&self.root.join(&member.path))?;
                    let bytes = file.metadata()?.len();
                    let mode = if *is_executable { 0o755 } else { 0o644 };
                    let mut head = header(tar::EntryType::Regular, mode, bytes);
                    // One that grows meanwhile would make the rest unreadable.
                    archive.append_data(&mut head, path, io::Read::take(file, bytes))?;
                }
            }
        }
        archive.finish()
    }
}

/// All members of a tree, each directory before what is in it, in an order that is always the same.
///
/// # Errors
///
/// The first member that no wheel brings, in a sentence: nothing of the tree is used then.
fn walk(root: &Path) -> Result<Vec<Member>, String> {
    let mut members = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(directory) = waiting.pop() {
        let cannot = |error: io::Error| format!("{} cannot be read: {error}", directory.display());
        if directory.components().count() > DEEPEST {
            return Err(format!(
                "its packages have more than {DEEPEST} directories in each other"
            ));
        }
        let entries = fs::read_dir(root.join(&directory)).map_err(cannot)?;
        let mut names = entries
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(cannot)?;
        names.sort();
        for name in names {
            let path = directory.join(name);
            let kind = kind(root, &path)?;
            if matches!(kind, Kind::Directory) {
                waiting.push(path.clone());
            }
            members.push(Member { path, kind });
            if members.len() > MOST_MEMBERS {
                return Err(format!("its packages have more than {MOST_MEMBERS} files"));
            }
        }
    }
    Ok(members)
}

fn kind(root: &Path, path: &Path) -> Result<Kind, String> {
    let shown = || crate::text::printable(&path.to_string_lossy());
    let whole = root.join(path);
    let found = fs::symlink_metadata(&whole).map_err(|error| format!("{}: {error}", shown()))?;
    let mode = found.permissions().mode();
    if found.is_symlink() {
        let target = fs::read_link(&whole).map_err(|error| format!("{}: {error}", shown()))?;
        if !stays_inside(path, &target) {
            return Err(format!(
                "its packages have a link that leads out of them: {}",
                shown()
            ));
        }
        return Ok(Kind::Link(target));
    }
    if !found.is_dir() && !found.is_file() {
        return Err(format!(
            "its packages have a member that is no file: {}",
            shown()
        ));
    }
    if mode & 0o6000 != 0 && found.is_file() {
        return Err(format!(
            "its packages have a file that gives rights: {}",
            shown()
        ));
    }
    Ok(if found.is_dir() {
        Kind::Directory
    } else {
        Kind::File {
            is_executable: mode & 0o111 != 0,
        }
    })
}

/// Whether a link at this path below the root leads to a place below the root, by its words alone.
fn stays_inside(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().count() - 1;
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    !target.as_os_str().as_bytes().is_empty()
}

/// Never through a link: the member was looked at before.
fn open(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

fn header(kind: tar::EntryType, mode: u32, bytes: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(bytes);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Bytes on their way to the service.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.piece);
        self.sender
            .blocking_send(Ok(piece.into()))
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_build_file_is_a_hash_and_fixed_words() {
        let hash = "ab".repeat(32);
        let expected = format!("FROM sha256:{hash}\nCOPY opt/environment/ /opt/environment/\n");
        assert_eq!(containerfile(&format!("sha256:{hash}")).unwrap(), expected);
        assert!(containerfile(&hash).is_ok());
        for base in [
            "",
            "mcp-forge/python:3.11",
            "sha256:",
            &format!("sha256:{hash}\nRUN id"),
            &format!("sha256:{}", "AB".repeat(32)),
            &format!("{hash} AS x"),
            "sha256:../../x",
        ] {
            assert!(containerfile(base).is_err(), "{base}");
        }
    }

    #[test]
    fn names_are_of_hashes() {
        assert_eq!(name(&"ab".repeat(32)), "mcp-forge/custom:abababababab");
    }

    /// What is said, and what it is said of.
    type Plant = (&'static str, &'static dyn Fn(&Path));

    #[test]
    fn hostile_members_are_refused() {
        let plant: [Plant; 8] = [
            ("leads out", &|root| {
                symlink("/etc/passwd", root.join("x")).unwrap();
            }),
            ("leads out", &|root| {
                symlink("../x", root.join("x")).unwrap();
            }),
            ("leads out", &|root| {
                symlink("b/../../../x", root.join("a/x")).unwrap();
            }),
            ("no file: x", &|root| {
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    root.join("x"),
                    rustix::fs::FileType::Fifo,
                    0o644.into(),
                    0,
                )
                .unwrap();
            }),
            ("no file: x", &|root| {
                std::os::unix::net::UnixListener::bind(root.join("x")).unwrap();
            }),
            ("gives rights: x", &|root| {
                fs::write(root.join("x"), "").unwrap();
                fs::set_permissions(root.join("x"), fs::Permissions::from_mode(0o4755)).unwrap();
            }),
            ("gives rights: x", &|root| {
                fs::write(root.join("x"), "").unwrap();
                fs::set_permissions(root.join("x"), fs::Permissions::from_mode(0o2755)).unwrap();
            }),
            ("in each other", &|root| {
                fs::create_dir_all(root.join("d/".repeat(DEEPEST + 2))).unwrap();
            }),
        ];
        for (expected, plant) in plant {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("a")).unwrap();
            assert!(walk(root.path()).is_ok());
            plant(root.path());
            let said = walk(root.path()).err().unwrap();
            assert!(said.contains(expected), "{expected}: {said}");
        }
    }

    #[test]
    fn what_is_sent_is_the_tree_and_links_of_ours() {
        let root = tempfile::tempdir().unwrap();
        let package = root.path().join("tiny");
        fs::create_dir(&package).unwrap();
        fs::write(package.join("__init__.py"), "x = 1").unwrap();
        fs::set_permissions(
            package.join("__init__.py"),
            fs::Permissions::from_mode(0o700),
        )
        .unwrap();
        symlink("tiny/__init__.py", root.path().join("other.py")).unwrap();
        // Whatever a name holds, it is only a name.
        let odd = "a\nRUN id\n.py".to_owned() + &"l".repeat(150);
        fs::write(root.path().join(&odd), "").unwrap();
        let context = Context {
            members: walk(root.path()).unwrap(),
            root: root.path().to_owned(),
            inside: "opt/environment/lib/python3.11/site-packages".to_owned(),
        };
        let mut sent = Vec::new();
        context.write("FROM x\n", &mut sent).unwrap();
        let mut archive = tar::Archive::new(sent.as_slice());
        let seen: Vec<(String, u32, String)> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let link = entry.link_name().unwrap();
                let link = link.map(|link| link.display().to_string());
                (
                    entry.path().unwrap().display().to_string(),
                    entry.header().mode().unwrap(),
                    link.unwrap_or_default(),
                )
            })
            .collect();
        let site = "opt/environment/lib/python3.11/site-packages";
        let seen: Vec<(&str, u32, &str)> = seen
            .iter()
            .map(|(path, mode, link)| (path.as_str(), *mode, link.as_str()))
            .collect();
        let known = "/opt/mcp-forge/environment";
        assert_eq!(
            seen,
            [
                ("Containerfile", 0o644, ""),
                (
                    "opt/environment/pyvenv.cfg",
                    0o777,
                    &*format!("{known}/pyvenv.cfg")
                ),
                (
                    "opt/environment/bin/python",
                    0o777,
                    &*format!("{known}/python3")
                ),
                (
                    "opt/environment/bin/python3",
                    0o777,
                    &*format!("{known}/python3")
                ),
                (site, 0o755, ""),
                (&*format!("{site}/{odd}"), 0o644, ""),
                (&*format!("{site}/other.py"), 0o777, "tiny/__init__.py"),
                (&*format!("{site}/tiny"), 0o755, ""),
                (&*format!("{site}/tiny/__init__.py"), 0o755, ""),
            ]
        );
    }
}
