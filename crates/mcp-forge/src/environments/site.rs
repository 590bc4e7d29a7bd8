//! One build's own directories, and what becomes of them: a tree that is taken from the job, published
//! by a rename and checked, or nothing.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FallocateFlags, Mode, OFlags},
    io::Errno,
};

use super::places::{LOCK_PAUSE, Places, Sole, gone, note};
use crate::lock::FileLock;

/// For how long it is tried to remove what a killed job wrote. It dies at once, but what kills it has to
/// get its turn on a busy machine.
const DYING: Duration = Duration::from_secs(30);

/// Bytes that must be free when all is installed. Python's compiler goes on when the disk is full, and
/// leaves the beginnings of files behind; none of them is so large.
const ROOM: u64 = 8 << 20;

/// One build's directories, and the proof that it lives. Dropping it removes what is left of them.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) places: Places,
    pub(super) name: String,
    /// What the job writes.
    pub(super) staging: Arc<OwnedFd>,
    pub(super) alive: Option<Sole>,
    /// Of `uv`'s cache.
    pub(super) in_use: Option<FileLock>,
}

/// A tree that has its name and has not passed its checks, which nobody else makes meanwhile.
/// Dropped, it is removed.
#[derive(Debug)]
pub(super) struct Unchecked {
    directory: PathBuf,
    places: Places,
    sole: Option<Sole>,
}

impl Site {
    /// What the job writes, as the job sees it.
    pub(super) fn staging_inside(&self) -> String {
        format!("/build/{}{}", self.places.staging, self.name)
    }

    /// A name for the jobs of this build.
    pub(super) fn job_id(&self, what: &str) -> String {
        format!("build-{what}-{}", self.name)
    }

    /// Reads a file that the job wrote: a regular one, never a link, and one byte more than `most` at
    /// most.
    ///
    /// # Errors
    ///
    /// The system's, or it is something else.
    pub(super) async fn read(&self, name: &'static str, most: u64) -> io::Result<Vec<u8>> {
        let staging = Arc::clone(&self.staging);
        let read = tokio::task::spawn_blocking(move || {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = File::from(rustix::fs::openat(&*staging, name, flags, Mode::empty())?);
            if !file.metadata()?.is_file() {
                return Err(io::Error::other("it is no file"));
            }
            let mut bytes = Vec::new();
            file.take(most + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        });
        read.await.map_err(io::Error::other)?
    }

    /// Takes the directory that the job wrote as `name` out of its reach.
    ///
    /// # Errors
    ///
    /// The system's, or it is no directory; what was moved goes with the build.
    pub(super) fn take(&self, name: &str, to: &str) -> io::Result<PathBuf> {
        let new = self.new_tree();
        let target = new.join(to);
        // Readable for sandboxes' users; the data directory keeps others out.
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(target.parent().unwrap_or(&new))?;
        rustix::fs::renameat(&*self.staging, name, rustix::fs::CWD, &target)?;
        // A link would lead whoever looks through it, as root, to wherever the job likes.
        if !fs::symlink_metadata(&target)?.is_dir() {
            return Err(io::Error::other("what was installed is no directory"));
        }
        Ok(target)
    }

    /// Whether what was taken is whole: there was room for it if there is room for more.
    ///
    /// # Errors
    ///
    /// The system's: the disk is full, or was a moment ago.
    pub(super) fn had_room(&self) -> io::Result<()> {
        let path = self.new_tree().join("room");
        let file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(&path)?;
        let reserved = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, ROOM);
        fs::remove_file(&path)?;
        match reserved {
            // A file system that reserves nothing says nothing either.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What the job of a build sees that is not to see other builds, nor the cache.
    pub(super) fn own_directory(&self) -> PathBuf {
        self.places
            .uv
            .join(format!("{}{}", self.places.staging, self.name))
    }

    /// Where a tree grows before it is published.
    pub(super) fn new_tree(&self) -> PathBuf {
        self.places.trees.join(format!("new-{}", self.name))
    }

    /// Makes the new tree the one of this name, as a whole or not at all.
    ///
    /// # Errors
    ///
    /// The system's; nothing is published.
    pub(super) fn publish(&self, id: &str, sole: Sole) -> io::Result<Unchecked> {
        let (new, tree) = (self.new_tree(), self.places.tree(id));
        // What a server left that was killed while it checked.
        if tree.exists() && !self.places.has(id) {
            fs::remove_dir_all(&tree)?;
        }
        File::open(&new)?.sync_all()?;
        fs::rename(&new, &tree)?;
        let unchecked = Unchecked {
            places: self.places.clone(),
            directory: tree,
            sole: Some(sole),
        };
        File::open(&self.places.trees)?.sync_all()?;
        Ok(unchecked)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next server's start. Of a link, the link.
        let left = [self.own_directory(), self.new_tree()];
        let lock = self.places.lock_of(&self.name);
        let (alive, in_use) = (self.alive.take(), self.in_use.take());
        let cache = self.places.cache.clone();
        self.places.in_background(move || {
            let mut removed = Ok(());
            for directory in left {
                removed = removed.and(remove_from_the_dying(|| fs::remove_dir_all(&directory)));
            }
            let _ = fs::remove_file(lock);
            drop(in_use);
            removed = removed.and(remove_from_the_dying(|| cache.clean()));
            if let Err(error) = removed {
                tracing::warn!(%error, "what a build left is removed by the next server's start");
            }
            drop(alive);
        });
    }
}

impl Unchecked {
    /// Notes that the tree has passed its checks, and what was found: from now on it may be used.
    ///
    /// # Errors
    ///
    /// The system's; it is removed.
    pub(super) fn pass(mut self, found: &[u8]) -> io::Result<()> {
        note(&self.directory, found)?;
        self.sole = None;
        Ok(())
    }

    /// Removes the tree, and waits for it.
    pub(super) async fn withdraw(mut self) {
        let sole = self.sole.take();
        let directory = std::mem::take(&mut self.directory);
        let removed = self.places.to_the_end(move || {
            let removed = fs::remove_dir_all(directory);
            drop(sole);
            removed
        });
        if let Err(error) = removed.await {
            tracing::warn!(%error, "what did not pass its checks is removed later");
        }
    }
}

impl Drop for Unchecked {
    fn drop(&mut self) {
        if let Some(sole) = self.sole.take() {
            let directory = std::mem::take(&mut self.directory);
            self.places.in_background(move || {
                let _ = fs::remove_dir_all(directory);
                drop(sole);
            });
        }
    }
}

/// Removes what a job that was killed a moment ago may still write to: what fills again while it is
/// emptied is tried again. Nothing else becomes better by waiting.
///
/// # Errors
///
/// The system's; the rest is left.
pub(super) fn remove_from_the_dying(remove: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match remove() {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::IsADirectory
                ) && began.elapsed() < DYING =>
            {
                thread::sleep(LOCK_PAUSE);
            }
            removed => return gone(removed),
        }
    }
}
