//! Where builds happen and environments lie: a place for jobs, and one that no job sees.
//!
//! ```text
//! DATA/environments/<id>/         published: the lock's hash names it, a rename made it
//! DATA/environments/new-<build>/  a build's files, taken from the job and not looked at yet
//! DATA/environments/building/     one lock for each build that runs, one for each tree that is made
//! UV/cache/                       uv's own, shared by all builds (`cache.rs`)
//! UV/staging-<data>-<build>/      what a job writes; several data directories may share one UV
//! ```
//!
//! A build holds the lock of its name for as long as it lives, so that what a killed server leaves
//! is known to be garbage. A tree gets its hash by a rename, as a whole, and counts only once it was
//! checked as well.
//!
//! `UV` belongs to the jobs: a hostile one can move what is in it and leave links in its place, while
//! this server is root. So a build's directory is reached by its descriptor, never by its path.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    rand::{GetRandomFlags, getrandom},
};

use sha2::{Digest, Sha256};
use tokio_util::task::TaskTracker;

use super::{
    cache::Cache,
    site::{Site, remove_from_the_dying},
};
use crate::{engine::native::job::hand_over, lock::FileLock};

/// Between two looks at whether another build of the same tree is done.
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A file in a tree that has passed all checks: what they found.
const CHECKED: &str = "checked";

/// Bytes that are read of it.
const MOST_FOUND: u64 = 1 << 20;

/// How the names of builds' directories begin.
const STAGING: &str = "staging-";

/// The two places.
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub(super) trees: PathBuf,
    pub(super) uv: PathBuf,
    pub(super) cache: Cache,
    /// What the names of this data directory's builds begin with.
    pub(super) staging: String,
    /// Removals of what builds leave, which a server that ends waits for.
    removals: TaskTracker,
}

/// The right to make one tree, or to call oneself by one name.
pub(super) type Sole = FileLock;

impl Places {
    /// Between builds `uv`'s cache takes no more bytes than `most_cached`.
    pub(super) fn new(data_dir: &Path, uv: &Path, most_cached: u64) -> Self {
        let whose = Sha256::digest(data_dir.as_os_str().as_bytes());
        let [first, second, third, fourth, ..] = <[u8; 32]>::from(whose);
        Self {
            trees: data_dir.join("environments"),
            uv: uv.to_owned(),
            cache: Cache::new(uv.join("cache"), most_cached),
            removals: TaskTracker::new(),
            staging: format!("{STAGING}{first:02x}{second:02x}{third:02x}{fourth:02x}-"),
        }
    }

    /// Waits until what ended builds left is removed. For a server's end: what is not removed then stays
    /// until another server starts.
    pub(super) async fn settled(&self) {
        self.removals.close();
        self.removals.wait().await;
    }

    /// Removes thousands of files: not on a thread that serves others.
    pub(super) fn in_background(&self, remove: impl FnOnce() + Send + 'static) {
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(self.removals.spawn_blocking_on(remove, &runtime)),
            Err(_) => remove(),
        }
    }

    /// Runs what makes files on a thread for such. Once begun it comes to its end, whoever waits for it;
    /// [`Self::settled`] waits, and for what is removed if nobody wants its result.
    ///
    /// # Errors
    ///
    /// Its own.
    pub(super) async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let token = self.removals.token();
        // The token last: a result that nobody wants has begun its removal by then.
        match tokio::task::spawn_blocking(move || (work(), token)).await {
            Ok((done, _token)) => done,
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Where a tree lies, or would.
    pub(super) fn tree(&self, id: &str) -> PathBuf {
        self.trees.join(id)
    }

    /// What a job sees as its one writable directory.
    pub(super) fn writable(&self) -> &Path {
        &self.uv
    }

    /// Whether a tree is published and has passed its checks.
    pub(super) fn has(&self, id: &str) -> bool {
        self.tree(id).join(CHECKED).is_file()
    }

    /// What was found in a tree when it was checked.
    pub(super) fn found_in(&self, id: &str) -> Vec<u8> {
        let mut found = Vec::new();
        if let Ok(file) = File::open(self.tree(id).join(CHECKED)) {
            // What cannot be read says nothing.
            let _ = file.take(MOST_FOUND).read_to_end(&mut found);
        }
        found
    }

    /// Notes what another look at a tree found.
    ///
    /// # Errors
    ///
    /// The system's; what was noted stands.
    pub(super) fn note(&self, id: &str, found: &[u8]) -> io::Result<()> {
        note(&self.tree(id), found)
    }

    /// Whether anything was ever built here.
    pub(super) fn are_begun(&self) -> bool {
        self.trees.is_dir()
    }

    /// The trees that are published.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub(super) fn published(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.trees) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| is_id(name) && self.has(name)).collect())
    }

    /// Makes a build's directories.
    ///
    /// # Errors
    ///
    /// The system's; what is left [`Self::remove_left`] removes.
    pub(super) fn begin(&self) -> io::Result<Site> {
        for directory in [&self.trees, &self.building(), &self.uv] {
            create(directory)?;
        }
        let in_use = self.cache.enter()?;
        let (name, alive) = loop {
            let mut bytes = [0_u8; 8];
            getrandom(&mut bytes, GetRandomFlags::empty())?;
            let name = format!("{:016x}", u64::from_be_bytes(bytes));
            if let Some(alive) = self.try_sole(&name)? {
                break (name, alive);
            }
        };
        let staging = self.uv.join(format!("{}{name}", self.staging));
        create(&staging)?;
        hand_over(&staging)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Site {
            places: self.clone(),
            name,
            staging: Arc::new(rustix::fs::open(&staging, flags, Mode::empty())?),
            alive: Some(alive),
            in_use: Some(in_use),
        })
    }

    /// Waits for the right to make this tree: of all builds of all servers one has it.
    ///
    /// # Errors
    ///
    /// The system's.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has no right.
    pub(super) async fn sole(&self, id: &str) -> io::Result<Sole> {
        loop {
            if let Some(sole) = self.try_sole(id)? {
                return Ok(sole);
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
    }

    /// As [`Self::sole`], but without waiting: `None` while another has it.
    pub(super) fn try_sole(&self, id: &str) -> io::Result<Option<Sole>> {
        let path = self.lock_of(id);
        let sole = FileLock::try_alone(open_lock(&path)?)?;
        // Another may have removed the file between opening and locking it.
        Ok(sole.filter(|sole| is_same(sole.file(), &path)))
    }

    /// Removes what builds left whose server is gone. A job of theirs may be about to die.
    ///
    /// # Errors
    ///
    /// The system's, all that there were; what they are of is left for the next time.
    pub(super) fn remove_left(&self) -> io::Result<()> {
        let mut failed = Vec::new();
        let mut note = |path: &Path, removed: io::Result<()>| {
            if let Err(error) = removed {
                failed.push(format!("{}: {error}", path.display()));
            }
        };
        for (directory, start) in [(&self.uv, &*self.staging), (&self.trees, "new-")] {
            for name in names(directory)? {
                if let Some(build) = name.strip_prefix(start)
                    && !self.is_alive(build)
                {
                    let path = directory.join(&name);
                    note(&path, remove_from_the_dying(|| fs::remove_dir_all(&path)));
                }
            }
        }
        note(&self.uv, remove_from_the_dying(|| self.cache.clean()));
        for name in names(&self.trees)? {
            // Removed and not gone, or published and never checked.
            let is_left = || name.starts_with(".removed-") || (is_id(&name) && !self.has(&name));
            let id = name.strip_prefix(".removed-").unwrap_or(&name);
            let path = self.trees.join(&name);
            if is_left() {
                // It may have passed its checks between the first look and the lock.
                let removed = self.try_sole(id).and_then(|sole| match sole {
                    Some(_sole) if is_left() => gone(fs::remove_dir_all(&path)),
                    _ => Ok(()),
                });
                note(&path, removed);
            }
        }
        for name in names(&self.building())? {
            if let Some(build) = name.strip_suffix(".lock") {
                let path = self.lock_of(build);
                let removed = self.try_sole(build).and_then(|sole| match sole {
                    Some(_sole) => gone(fs::remove_file(&path)),
                    None => Ok(()),
                });
                note(&path, removed);
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        Err(io::Error::other(failed.join("; ")))
    }

    fn is_alive(&self, build: &str) -> bool {
        match OpenOptions::new().write(true).open(self.lock_of(build)) {
            Ok(lock) => matches!(FileLock::try_share(lock), Ok(None)),
            // One that cannot be looked at is left alone.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    fn building(&self) -> PathBuf {
        self.trees.join("building")
    }

    pub(super) fn lock_of(&self, name: &str) -> PathBuf {
        self.building().join(format!("{name}.lock"))
    }
}

/// Writes what was found in a tree, whole or not at all.
pub(super) fn note(tree: &Path, found: &[u8]) -> io::Result<()> {
    let new = tree.join("checked.new");
    fs::write(&new, found)?;
    File::open(&new)?.sync_all()?;
    fs::rename(new, tree.join(CHECKED))
}

/// Whether a directory's name is a lock's hash.
fn is_id(name: &str) -> bool {
    name.len() == 64
        && name
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// What another has removed meanwhile is as gone as it was to be.
pub(super) fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

pub(super) fn create(directory: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
}

fn is_same(lock: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(ours), Ok(there)) = (lock.metadata(), fs::metadata(path)) else {
        return false;
    };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

pub(super) fn names(directory: &Path) -> io::Result<Vec<String>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => Ok(entries?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> (tempfile::TempDir, Places) {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::new(directory.path(), &directory.path().join("uv"), 1 << 20);
        (directory, places)
    }

    fn staging(site: &Site) -> PathBuf {
        let name = format!("{}{}", site.places.staging, site.name);
        site.places.uv.join(name)
    }

    /// A job is hostile, and this server may be root: what it leaves in a directory's place is not
    /// followed, and a directory that it has moved is still the build's.
    #[tokio::test]
    async fn links_that_a_job_leaves_lead_nowhere() {
        let (directory, places) = places();
        let elsewhere = directory.path().join("elsewhere");
        for below in ["bin", "site"] {
            fs::create_dir_all(elsewhere.join(below)).unwrap();
        }
        fs::write(elsewhere.join("pylock.toml"), "secret").unwrap();
        let link = |to: &Path, from: PathBuf| std::os::unix::fs::symlink(to, from).unwrap();

        let site = places.begin().unwrap();
        link(&elsewhere, staging(&site).join("site"));
        link(
            &elsewhere.join("pylock.toml"),
            staging(&site).join("pylock.toml"),
        );
        let error = site.take("site", "lib/site-packages").unwrap_err();
        assert!(error.to_string().contains("no directory"), "{error}");
        site.read("pylock.toml", 100).await.unwrap_err();

        let site = places.begin().unwrap();
        fs::rename(staging(&site), places.writable().join("moved")).unwrap();
        link(&elsewhere, staging(&site));
        site.take("site", "lib/site-packages").unwrap_err();
        site.read("pylock.toml", 100).await.unwrap_err();
        drop(site);
        assert_eq!(names(&elsewhere).unwrap().len(), 3);
    }

    /// Whose lock is in another data directory is not dead.
    #[test]
    fn builds_of_another_data_directory_are_left_alone() {
        let (directory, places) = places();
        let alive = places.begin().unwrap();
        let other = Places::new(&directory.path().join("other"), places.writable(), 1 << 20);
        let _own = other.begin().unwrap();
        other.remove_left().unwrap();
        assert!(staging(&alive).exists());
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_waited_for_at_the_end() {
        let (_directory, places) = places();
        let (let_go, waits) = std::sync::mpsc::channel();
        let begun = places.clone();
        let work = places.to_the_end(move || {
            waits.recv().unwrap();
            begun.begin()
        });
        tokio::select! {
            biased;
            _ = work => panic!("it was let go by nobody"),
            () = std::future::ready(()) => {}
        }
        let_go.send(()).unwrap();
        places.settled().await;
        assert_eq!(names(places.writable()).unwrap(), ["cache"]);
        assert_eq!(names(&places.building()).unwrap(), Vec::<String>::new());
    }

    /// Between the look and the lock another server may be done with it.
    #[test]
    fn what_is_being_checked_is_not_removed_as_left() {
        let (_directory, places) = places();
        let site = places.begin().unwrap();
        fs::create_dir_all(site.new_tree()).unwrap();
        let sole = places.try_sole(ID).unwrap().unwrap();
        let unchecked = site.publish(ID, sole).unwrap();
        places.remove_left().unwrap();
        assert!(places.tree(ID).exists());
        drop(unchecked);
        assert!(!places.tree(ID).exists(), "dropped, it is removed");
    }

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn a_tree_is_published_whole_and_its_build_leaves_nothing() {
        let (_directory, places) = places();
        let site = places.begin().unwrap();
        fs::create_dir(staging(&site).join("site")).unwrap();
        fs::write(staging(&site).join("site/x.py"), "x").unwrap();
        site.take("site", "lib/python3.11/site-packages").unwrap();
        let sole = places.try_sole(ID).unwrap().unwrap();
        let unchecked = site.publish(ID, sole).unwrap();
        assert!(!places.has(ID));
        places.remove_left().unwrap();
        unchecked.pass(b"found").unwrap();
        assert_eq!(places.found_in(ID), b"found");
        assert!(places.has(ID));
        assert_eq!(places.published().unwrap(), [ID]);
        drop(site);
        places.remove_left().unwrap();
        assert!(
            places
                .tree(ID)
                .join("lib/python3.11/site-packages/x.py")
                .exists()
        );
        assert_eq!(names(&places.building()).unwrap(), Vec::<String>::new());
        assert_eq!(names(places.writable()).unwrap(), ["cache"]);
    }

    #[test]
    fn only_what_dead_builds_left_is_removed() {
        let (_directory, places) = places();
        let alive = places.begin().unwrap();
        let dead = places.begin().unwrap();
        let left = staging(&dead);
        fs::create_dir(dead.new_tree()).unwrap();
        // As a server that is killed: no drop, and the kernel lets go of the lock.
        let lock = dead.alive.as_ref().unwrap().file();
        rustix::fs::flock(lock, rustix::fs::FlockOperation::Unlock).unwrap();
        let new = dead.new_tree();
        std::mem::forget(dead);
        places.remove_left().unwrap();
        assert!(!left.exists() && !new.exists());
        assert!(staging(&alive).exists());
        assert_eq!(names(&places.building()).unwrap().len(), 1);
    }

    #[tokio::test]
    async fn one_at_a_time_makes_a_tree() {
        let (_directory, places) = places();
        let _site = places.begin().unwrap();
        let first = places.sole(ID).await.unwrap();
        let mut second = Box::pin(places.sole(ID));
        let waited = tokio::time::timeout(Duration::from_millis(120), &mut second).await;
        assert!(waited.is_err(), "two made the same tree");
        drop(first);
        second.await.unwrap();
    }

    #[test]
    fn what_is_no_hash_is_no_tree() {
        let (_directory, places) = places();
        drop(places.begin().unwrap());
        fs::create_dir(places.tree("latest")).unwrap();
        fs::create_dir(places.tree(&"A".repeat(64))).unwrap();
        assert_eq!(places.published().unwrap(), Vec::<String>::new());
    }
}
