//! The file system of a sandbox: built on a tmpfs, entered with `pivot_root`, then read-only.

use std::{
    cell::Cell,
    fs,
    io::{self, Read as _},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};

use crate::{
    error::JailError,
    spec::{BUILD, File, JailSpec, Layer, Tree},
    sys,
};

/// Where the new root is put together before it is entered. Any directory that every Linux has
/// will do: only this namespace sees the mount.
const STAGING: &str = "/tmp";

/// Bytes of a root's own tmpfs: what is copied into it, not what is shown. Files are half at most.
const ROOT_BYTES: u64 = 16 << 20;

/// The same for a build job, which gets a copy of a whole program.
const JOB_ROOT_BYTES: u64 = 512 << 20;

/// What a test build shows in place of a layer that it leaves out: host path, path inside.
const LEFT_IN_SIGHT: [(Layer, &str, &str); 3] = [
    (Layer::MountNamespace, "/", "/host"),
    (Layer::PrivateDev, "/dev", "/dev"),
    // Whoever has no pid namespace of their own may not mount a proc.
    (Layer::PidNamespace, "/proc", "/proc"),
];

/// The trees of the spec, and a job's directory, as mounts that hang nowhere yet.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    trees: Vec<OwnedFd>,
    writable: Option<OwnedFd>,
}

impl Sources {
    /// Opened by a privileged keeper, which may read what the sandbox's user may not pass
    /// through (an interpreter under `/root`). Without privilege, init opens them itself.
    ///
    /// # Errors
    ///
    /// Which tree, and why.
    pub(crate) fn open(spec: &JailSpec) -> Result<Self, JailError> {
        let trees = spec.trees.iter().map(|tree| open_tree(&tree.source));
        let writable = spec.job.as_ref().map(|job| open_tree(&job.writable));
        Ok(Self {
            trees: trees.collect::<Result<_, _>>()?,
            writable: writable.transpose()?,
        })
    }
}

fn open_tree(source: &str) -> Result<OwnedFd, JailError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    rustix::mount::open_tree(rustix::fs::CWD, source, flags)
        .map_err(failed(format!("open {source}")))
}

/// Cuts this namespace off from mounts that happen elsewhere, both ways.
pub(crate) fn make_private() -> Result<String, JailError> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags).map_err(failed("make mounts private"))?;
    Ok("own root, old one detached".to_owned())
}

/// A root under construction at [`STAGING`].
#[derive(Debug)]
pub(crate) struct Root {
    staging: &'static Path,
    /// Trees that are the host's own objects, for want of an overlay.
    bind_mounts: Cell<usize>,
    /// Bytes of a tree that is a single file.
    most_of_file: u64,
}

impl Root {
    /// Puts trees, links, files and the writable directories in place.
    ///
    /// # Errors
    ///
    /// The first thing that could not be made.
    pub(crate) fn build(spec: &JailSpec, sources: Sources) -> Result<Self, JailError> {
        // Before anything is mounted over STAGING: a source may lie below it.
        let sources = if sources.trees.is_empty() {
            Sources::open(spec)?
        } else {
            sources
        };
        let left = LEFT_IN_SIGHT
            .into_iter()
            .filter(|(layer, ..)| crate::omitted(*layer))
            .map(|(_, source, target)| Ok((target, open_tree(source)?)))
            .collect::<Result<Vec<_>, JailError>>()?;
        let most = if spec.job.is_some() {
            JOB_ROOT_BYTES
        } else {
            ROOT_BYTES
        };
        mount_tmpfs(STAGING, most, "755")?;
        let root = Self {
            staging: Path::new(STAGING),
            bind_mounts: Cell::new(0),
            most_of_file: most / 2,
        };
        for (tree, source) in spec.trees.iter().zip(sources.trees) {
            root.place(tree, &source)?;
        }
        for link in &spec.links {
            let path = root.inside(&link.path)?;
            make_parents(&path)?;
            symlink(&link.target, &path).map_err(failed(format!("link {}", link.path)))?;
        }
        for file in &spec.files {
            let path = root.inside(&file.path)?;
            make_parents(&path)?;
            fs::write(&path, content(file)?).map_err(failed(format!("write {}", file.path)))?;
        }
        for (target, source) in left {
            let target = root.inside(target)?;
            make_mount_point(&target, true)?;
            attach(&source, &target)?;
        }
        root.writable("/tmp", spec.limits.tmp_bytes)?;
        root.writable("/workspace", spec.limits.workspace_bytes)?;
        if let Some(source) = sources.writable {
            root.place_writable(&source)?;
        }
        Ok(root)
    }

    /// Attaches a job's directory, the host's own object: what is written is to stay. Nothing in it can
    /// be executed, not even by a name that the interpreter's is linked to from there.
    fn place_writable(&self, source: &OwnedFd) -> Result<(), JailError> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        sys::mount_setattr(source.as_fd(), attributes.bits().into(), true)
            .map_err(failed(format!("restrict {BUILD}")))?;
        let stat = rustix::fs::fstat(source).map_err(failed(format!("stat {BUILD}")))?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            let error = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(failed(format!("attach {BUILD}"))(error));
        }
        let target = self.inside(BUILD)?;
        make_mount_point(&target, true)?;
        self.bind_mounts.set(self.bind_mounts.get() + 1);
        attach(source, &target)
    }

    /// Attaches one tree, read-only with everything below it.
    fn place(&self, tree: &Tree, source: &OwnedFd) -> Result<(), JailError> {
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV;
        if !crate::omitted(Layer::ReadOnlyRoot) {
            sys::mount_setattr(source.as_fd(), attributes.bits().into(), true)
                .map_err(failed(format!("make {} read-only", tree.source)))?;
        }
        let target = self.inside(&tree.target)?;
        let stat = rustix::fs::fstat(source).map_err(failed(format!("stat {}", tree.source)))?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            let mode = stat.st_mode & 0o111;
            return copy_file(source, &target, self.most_of_file, mode != 0);
        }
        make_mount_point(&target, true)?;
        // An overlay of one layer is read-only by itself.
        let overlay = !crate::omitted(Layer::ReadOnlyRoot)
            && (tree.opaque || !has_mounts_below(&tree.source));
        if overlay {
            return self.place_overlay(&target, source);
        }
        self.bind_mounts.set(self.bind_mounts.get() + 1);
        attach(source, &target)
    }

    /// Shows the tree through a read-only overlay. Its directories and files are other objects than
    /// the host's: what is watched, locked or connected to inside is not what the host uses. Its
    /// options are relative names: mountinfo says `lowerdir=tree:empty` where a bind mount would
    /// print the host's path. A kernel that refuses the overlay gets the bind mount.
    fn place_overlay(&self, target: &Path, source: &OwnedFd) -> Result<(), JailError> {
        let workbench = self.inside("/var")?;
        let (lower, empty) = (workbench.join("tree"), workbench.join("empty"));
        for directory in [&lower, &empty] {
            fs::create_dir_all(directory).map_err(failed("make the overlay's directories"))?;
        }
        attach(source, &lower)?;
        std::env::set_current_dir(&workbench).map_err(failed("enter the overlay's directory"))?;
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        let mounted =
            rustix::mount::mount("overlay", target, "overlay", flags, c"lowerdir=tree:empty");
        // Not back to where we were: that may lie below the staging place, or be closed to us.
        std::env::set_current_dir("/").map_err(failed("leave the overlay's directory"))?;
        if mounted.is_ok() {
            // The overlay keeps its own hold on the lower tree.
            rustix::mount::unmount(&lower, UnmountFlags::DETACH)
                .map_err(failed("detach the lower tree"))?;
        } else {
            rustix::mount::mount_move(&lower, target).map_err(failed("move the tree"))?;
            self.bind_mounts.set(self.bind_mounts.get() + 1);
        }
        // The empty one stays: an overlay that has lost a layer's directory lists nothing.
        fs::remove_dir(&lower).map_err(failed("remove the overlay's mount point"))
    }

    /// A private writable directory, bounded in bytes and inodes.
    fn writable(&self, path: &str, bytes: u64) -> Result<(), JailError> {
        let target = self.inside(path)?;
        make_mount_point(&target, true)?;
        mount_tmpfs(
            &target,
            bytes,
            if path == "/workspace" { "755" } else { "1777" },
        )
    }

    /// `/dev` by hand: the five devices that have no state, checked by number, since a hostile
    /// root could plant anything under their names (CVE-2025-31133), and `/dev/shm`.
    pub(crate) fn mount_devices(&self, shm_bytes: u64) -> Result<String, JailError> {
        const DEVICES: [(&str, u32, u32); 5] = [
            ("null", 1, 3),
            ("zero", 1, 5),
            ("full", 1, 7),
            ("random", 1, 8),
            ("urandom", 1, 9),
        ];
        let failed = |step: String| JailError::at(Layer::PrivateDev, step);
        let directory = self.inside("/dev")?;
        fs::create_dir_all(&directory).map_err(failed("make /dev".to_owned()))?;
        for (name, major, minor) in DEVICES {
            let host = format!("/dev/{name}");
            let meta = fs::symlink_metadata(&host).map_err(failed(format!("look at {host}")))?;
            let is_it = meta.file_type().is_char_device()
                && rustix::fs::major(meta.rdev()) == major
                && rustix::fs::minor(meta.rdev()) == minor;
            if !is_it {
                return Err(failed(format!("{host} is not the device {major}:{minor}"))(
                    io::Error::from(io::ErrorKind::InvalidData),
                ));
            }
            let target = directory.join(name);
            make_mount_point(&target, false)?;
            let device = open_tree(&host)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            sys::mount_setattr(device.as_fd(), attributes.bits().into(), false)
                .map_err(failed(format!("restrict {host}")))?;
            attach(&device, &target)?;
        }
        for (name, target) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "fd/0"),
            ("stdout", "fd/1"),
            ("stderr", "fd/2"),
        ] {
            symlink(target, directory.join(name)).map_err(failed(format!("link /dev/{name}")))?;
        }
        // POSIX shared memory; `multiprocessing` needs it.
        self.writable("/dev/shm", shm_bytes)?;
        Ok("null, zero, full, random, urandom, shm".to_owned())
    }

    /// `/proc` with processes only: no host facts, nothing to write that matters.
    pub(crate) fn mount_proc(&self) -> Result<String, JailError> {
        if crate::omitted(Layer::PidNamespace) {
            return Ok("the host's, in a test build".to_owned());
        }
        let target = self.inside("/proc")?;
        fs::create_dir_all(&target).map_err(failed("make /proc"))?;
        let subset = if crate::omitted(Layer::ProcSubset) {
            None
        } else {
            Some("pid")
        };
        let mount = new_proc(subset).map_err(JailError::at(Layer::ProcSubset, "mount proc"))?;
        rustix::mount::move_mount(
            &mount,
            "",
            rustix::fs::CWD,
            &target,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )
        .map_err(JailError::at(Layer::ProcSubset, "attach proc"))?;
        Ok("processes only".to_owned())
    }

    /// Makes the new root `/` and lets go of the old one.
    pub(crate) fn enter(&self) -> Result<String, JailError> {
        std::env::set_current_dir(self.staging).map_err(failed("enter the new root"))?;
        rustix::process::pivot_root(".", ".").map_err(failed("pivot_root"))?;
        // The old root now lies over the new one; its last name goes with this.
        rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(failed("detach the old root"))?;
        std::env::set_current_dir("/workspace").map_err(failed("enter /workspace"))?;
        let bound = match self.bind_mounts.get() {
            0 => String::new(),
            count => format!("{count} trees are bind mounts, which show their host path"),
        };
        Ok(bound)
    }

    /// A path inside, as a path at the staging place. The spec is ours, but a `..` in it would be
    /// an escape, so it is refused rather than trusted.
    fn inside(&self, path: &str) -> Result<PathBuf, JailError> {
        let relative = path
            .strip_prefix('/')
            .filter(|rest| !rest.split('/').any(|part| part == ".." || part.is_empty()));
        relative
            .map(|relative| self.staging.join(relative))
            .ok_or_else(|| {
                failed(format!("`{path}` is not a plain absolute path"))(io::Error::from(
                    io::ErrorKind::InvalidInput,
                ))
            })
    }
}

/// The root's own tmpfs, last: every directory in it was made above.
pub(crate) fn make_read_only(is_job: bool) -> Result<String, JailError> {
    let root = rustix::fs::open(
        "/",
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .map_err(JailError::at(Layer::ReadOnlyRoot, "open the root"))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    sys::mount_setattr(root.as_fd(), attributes.bits().into(), false).map_err(JailError::at(
        Layer::ReadOnlyRoot,
        "make the root read-only",
    ))?;
    let writable = if is_job {
        "only /build, /tmp, /workspace and /dev/shm can be written"
    } else {
        "only /tmp, /workspace and /dev/shm can be written"
    };
    Ok(writable.to_owned())
}

/// Writes a sysctl of this pid namespace through a `/proc` that nobody else ever sees.
///
/// # Errors
///
/// The kernel's answer: older ones have no such sysctl per namespace.
pub(crate) fn write_own_sysctl(name: &str, value: &str) -> io::Result<()> {
    let mount = new_proc(None)?;
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::openat(
        &mount,
        format!("sys/{name}"),
        flags,
        rustix::fs::Mode::empty(),
    )?;
    rustix::io::write(&file, value.as_bytes())?;
    Ok(())
}

fn new_proc(subset: Option<&str>) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    if let Some(subset) = subset {
        rustix::mount::fsconfig_set_string(&context, "subset", subset)?;
        rustix::mount::fsconfig_set_string(&context, "hidepid", "ptraceable")?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(rustix::mount::fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

fn content(file: &File) -> Result<Vec<u8>, JailError> {
    if !file.binary {
        return Ok(file.content.clone().into_bytes());
    }
    let digits = file.content.as_bytes().chunks(2);
    digits
        .map(|pair| {
            std::str::from_utf8(pair)
                .ok()
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
        })
        .collect::<Option<_>>()
        .ok_or_else(|| {
            failed(format!("{} is not in hexadecimal", file.path))(io::Error::from(
                io::ErrorKind::InvalidData,
            ))
        })
}

/// Options of a tmpfs that is bounded in bytes and in inodes: an inode costs about a kilobyte of
/// kernel memory, and without a bound empty files are a way around the size.
pub(crate) fn tmpfs_options(bytes: u64, mode: &str) -> String {
    let inodes = (bytes / 4096).clamp(1024, 400_000);
    format!("mode={mode},size={bytes},nr_inodes={inodes}")
}

fn mount_tmpfs(target: impl AsRef<Path>, bytes: u64, mode: &str) -> Result<(), JailError> {
    let target = target.as_ref();
    let options = tmpfs_options(bytes, mode);
    rustix::mount::mount(
        "tmpfs",
        target,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        &*to_c(&options)?,
    )
    .map_err(failed(format!("mount a tmpfs at {}", target.display())))
}

/// A single file is copied, not shown: every program of the host that opens it could be watched.
fn copy_file(
    source: &OwnedFd,
    target: &Path,
    most: u64,
    executable: bool,
) -> Result<(), JailError> {
    let step = || format!("copy {}", target.display());
    make_parents(target)?;
    // The tree's descriptor only names it.
    let path = format!("/proc/self/fd/{}", source.as_raw_fd());
    let file = fs::File::open(path).map_err(failed(step()))?;
    let mut copy = fs::File::create(target).map_err(failed(step()))?;
    let copied = io::copy(&mut file.take(most + 1), &mut copy).map_err(failed(step()))?;
    if copied > most {
        return Err(failed(step())(io::Error::from(io::ErrorKind::FileTooLarge)));
    }
    if executable {
        copy.set_permissions(fs::Permissions::from_mode(0o755))
            .map_err(failed(step()))?;
    }
    Ok(())
}

/// Whether something is mounted below a directory: an overlay would not show it.
fn has_mounts_below(directory: &str) -> bool {
    let inside = format!("{directory}/");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|point| point.starts_with(&inside))
}

fn attach(tree: &OwnedFd, target: &Path) -> Result<(), JailError> {
    rustix::mount::move_mount(
        tree,
        "",
        rustix::fs::CWD,
        target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .map_err(failed(format!("attach {}", target.display())))
}

fn make_mount_point(path: &Path, is_directory: bool) -> Result<(), JailError> {
    make_parents(path)?;
    let made = if is_directory {
        fs::create_dir_all(path)
    } else {
        fs::write(path, "")
    };
    made.map_err(failed(format!("make {}", path.display())))
}

fn make_parents(path: &Path) -> Result<(), JailError> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    fs::create_dir_all(parent).map_err(failed(format!("make {}", parent.display())))
}

fn to_c(text: &str) -> Result<std::ffi::CString, JailError> {
    std::ffi::CString::new(text).map_err(|_| {
        failed("a NUL byte in a mount option")(io::Error::from(io::ErrorKind::InvalidInput))
    })
}

fn failed<E: Into<io::Error>>(step: impl Into<String>) -> impl FnOnce(E) -> JailError {
    JailError::at(Layer::MountNamespace, step)
}
