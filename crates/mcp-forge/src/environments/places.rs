//! Where builds happen and environments lie: a place for jobs, and one that no job sees.
//!
//! ```text
//! DATA/environments/<id>/         published: the lock's hash names it, a rename made it
//! DATA/environments/new-<build>/  a build's files, taken from the job and not looked at yet
//! DATA/environments/building/     one lock for each build that runs, one for each tree that is made
//! UV/cache/                       uv's own, shared by all builds
//! UV/staging-<build>/             what a job writes
//! ```
//!
//! A build holds the lock of its name for as long as it lives, so that what a killed server leaves
//! is known to be garbage. A tree gets its hash by a rename, as a whole, and counts only once it was
//! checked as well.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{FallocateFlags, FlockOperation, Mode, OFlags},
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};
use tokio_util::task::TaskTracker;

use crate::engine::native::job::hand_over;

/// Between two looks at whether another build of the same tree is done.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A file in a tree that has passed all checks.
const CHECKED: &str = "checked";

/// How the names of builds' directories begin, and in `uv`'s cache those of what is being unpacked and of
/// what was.
const STAGING: &str = "staging-";
const UNFINISHED: &str = ".tmp";
const ARCHIVES: &str = "archive-v";

/// How often it is tried to remove what a killed job wrote.
const TRIES: usize = 40;

/// Bytes that must be free when all is installed. Python's compiler goes on when the disk is full, and
/// leaves the beginnings of files behind; none of them is so large.
const ROOM: u64 = 8 << 20;

/// The two places.
#[derive(Debug, Clone)]
pub(super) struct Places {
    trees: PathBuf,
    uv: PathBuf,
    /// Removals of what builds leave, which a server that ends waits for.
    removals: TaskTracker,
}

/// One build's directories, and the proof that it lives. Dropping it removes what is left of them.
#[derive(Debug)]
pub(super) struct Site {
    places: Places,
    name: String,
    _alive: File,
}

/// The right to make one tree.
#[derive(Debug)]
pub(super) struct Sole(
    #[expect(dead_code, reason = "the kernel lets go of the lock with it")] File,
);

impl Places {
    pub(super) fn new(data_dir: &Path, uv: &Path) -> Self {
        Self {
            trees: data_dir.join("environments"),
            uv: uv.to_owned(),
            removals: TaskTracker::new(),
        }
    }

    /// Waits until what ended builds left is removed. For a server's end: what is not removed then stays
    /// until another server starts.
    pub(super) async fn settled(&self) {
        self.removals.close();
        self.removals.wait().await;
    }

    /// Where a tree lies, or would.
    pub(super) fn tree(&self, id: &str) -> PathBuf {
        self.trees.join(id)
    }

    /// Whether the builds that run have written more than this since then. Of the cache only what is
    /// unpacked is looked at: the rest came through the gateway, which counts.
    pub(super) fn has_grown(&self, since: SystemTime, most: u64) -> bool {
        let cache = self.uv.join("cache");
        let is_new = |path: &PathBuf| {
            let changed = fs::symlink_metadata(path).map(|found| found.ctime());
            let since = since
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            changed
                .is_ok_and(|changed| u64::try_from(changed).is_ok_and(|at| at >= since.as_secs()))
        };
        let below = |directory: PathBuf, start: &'static str| {
            let is_directory = fs::symlink_metadata(&directory).is_ok_and(|found| found.is_dir());
            let names = is_directory.then(|| names(&directory).unwrap_or_default());
            let names = names.into_iter().flatten();
            let names = names.filter(move |name| name.starts_with(start));
            names.map(move |name| directory.join(name))
        };
        let archives = below(cache.clone(), ARCHIVES).flat_map(|archives| below(archives, ""));
        let mut left = below(self.uv.clone(), STAGING)
            .chain(below(cache, UNFINISHED))
            .chain(archives.filter(is_new))
            .collect();
        takes_more_than(&mut left, most)
    }

    /// Removes what `uv` was killed over, once no build can be at it any more.
    ///
    /// # Errors
    ///
    /// The system's; the rest is left for the next time.
    fn remove_unfinished(&self) -> io::Result<()> {
        let path = self.uv.join("cache");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(&path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
        // Jobs own it, and could put a link in its place: only what was opened is touched.
        let cache = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let mut unfinished = names(&cache)?;
        unfinished.retain(|name| name.starts_with(UNFINISHED));
        // Looked at after the list was made: who comes later has other names.
        let is_busy = names(&self.building())?
            .iter()
            .filter_map(|name| name.strip_suffix(".lock"))
            .any(|build| !is_id(build) && self.is_alive(build));
        if is_busy {
            return Ok(());
        }
        let mut removed = Ok(());
        for name in unfinished {
            removed = removed.and(fs::remove_dir_all(cache.join(name)));
        }
        removed
    }

    /// Has something removed while nobody waits for it, but [`Self::settled`].
    pub(super) fn remove_later(&self, removal: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime the next server's start does it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.removals.spawn_on(removal, &runtime);
        }
    }

    /// What a job sees as its one writable directory.
    pub(super) fn writable(&self) -> &Path {
        &self.uv
    }

    /// Whether a tree is published and has passed its checks.
    pub(super) fn has(&self, id: &str) -> bool {
        self.tree(id).join(CHECKED).is_file()
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
    /// The system's; nothing is left.
    pub(super) fn begin(&self) -> io::Result<Site> {
        let cache = self.uv.join("cache");
        for directory in [&self.trees, &self.building(), &self.uv, &cache] {
            create(directory)?;
        }
        hand_over(&cache)?;
        let mut bytes = [0_u8; 8];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        let name = format!("{:016x}", u64::from_be_bytes(bytes));
        let alive = open_lock(&self.lock_of(&name))?;
        rustix::fs::flock(&alive, FlockOperation::NonBlockingLockExclusive)?;
        let site = Site {
            places: self.clone(),
            name,
            _alive: alive,
        };
        create(&site.staging())?;
        hand_over(&site.staging())?;
        Ok(site)
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
        let lock = open_lock(&path)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            // Another may have removed the file between opening and locking it.
            Ok(()) => Ok(is_same(&lock, &path).then_some(Sole(lock))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Notes that a tree has passed its checks: from now on it may be used.
    ///
    /// # Errors
    ///
    /// The system's; it may not be used.
    pub(super) fn pass(&self, id: &str) -> io::Result<()> {
        let mark = File::create(self.tree(id).join(CHECKED))?;
        mark.sync_all()
    }

    /// Removes what builds left whose server is gone.
    ///
    /// # Errors
    ///
    /// The system's; the rest is left for the next time.
    pub(super) fn remove_left(&self) -> io::Result<()> {
        for (directory, start) in [(&self.uv, STAGING), (&self.trees, "new-")] {
            for name in names(directory)? {
                if let Some(build) = name.strip_prefix(start)
                    && !self.is_alive(build)
                {
                    fs::remove_dir_all(directory.join(&name))?;
                }
            }
        }
        self.remove_unfinished()?;
        for name in names(&self.trees)? {
            // Removed and not gone, or published and never checked.
            let is_left = name.starts_with(".removed-") || (is_id(&name) && !self.has(&name));
            let id = name.trim_start_matches(".removed-");
            if is_left && self.try_sole(id)?.is_some() {
                fs::remove_dir_all(self.trees.join(&name))?;
            }
        }
        for name in names(&self.building())? {
            if let Some(build) = name.strip_suffix(".lock")
                && let Ok(lock) = OpenOptions::new().write(true).open(self.lock_of(build))
                && rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
            {
                fs::remove_file(self.lock_of(build))?;
            }
        }
        Ok(())
    }

    fn is_alive(&self, build: &str) -> bool {
        match OpenOptions::new().write(true).open(self.lock_of(build)) {
            Ok(lock) => {
                rustix::fs::flock(lock, FlockOperation::NonBlockingLockShared)
                    == Err(Errno::WOULDBLOCK)
            }
            // One that cannot be looked at is left alone.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    fn building(&self) -> PathBuf {
        self.trees.join("building")
    }

    fn lock_of(&self, name: &str) -> PathBuf {
        self.building().join(format!("{name}.lock"))
    }
}

impl Site {
    /// What the job writes, as the server sees it.
    pub(super) fn staging(&self) -> PathBuf {
        self.places.uv.join(format!("staging-{}", self.name))
    }

    /// The same, as the job sees it.
    pub(super) fn staging_inside(&self) -> String {
        format!("/build/staging-{}", self.name)
    }

    /// A name for the jobs of this build.
    pub(super) fn job_id(&self, what: &str) -> String {
        format!("build-{what}-{}", self.name)
    }

    /// Takes what the job wrote below `name` out of its reach.
    ///
    /// # Errors
    ///
    /// The system's; nothing was moved.
    pub(super) fn take(&self, name: &str, to: &str) -> io::Result<PathBuf> {
        let new = self.new_tree();
        let target = new.join(to);
        // Readable for sandboxes' users; the data directory keeps others out.
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(target.parent().unwrap_or(&new))?;
        fs::rename(self.staging().join(name), &target)?;
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

    /// Where a tree grows before it is published.
    pub(super) fn new_tree(&self) -> PathBuf {
        self.places.trees.join(format!("new-{}", self.name))
    }

    /// Makes the new tree the one of this name, as a whole or not at all.
    ///
    /// # Errors
    ///
    /// The system's; nothing is published.
    pub(super) fn publish(&self, id: &str) -> io::Result<()> {
        let (new, tree) = (self.new_tree(), self.places.tree(id));
        // What a server left that was killed while it checked.
        if tree.exists() && !self.places.has(id) {
            fs::remove_dir_all(&tree)?;
        }
        File::open(&new)?.sync_all()?;
        fs::rename(&new, &tree)?;
        File::open(&self.places.trees)?.sync_all()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next server's start.
        let left = [self.staging(), self.new_tree()];
        let lock = self.places.lock_of(&self.name);
        let places = self.places.clone();
        let remove = move || {
            for directory in left {
                remove_from_the_dying(|| fs::remove_dir_all(&directory));
            }
            let _ = fs::remove_file(lock);
            remove_from_the_dying(|| places.remove_unfinished());
        };
        // Thousands of files: not on a thread that serves others.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(self.places.removals.spawn_blocking_on(remove, &runtime)),
            Err(_) => remove(),
        }
    }
}

/// Removes what a job that was killed a moment ago may still write to.
fn remove_from_the_dying(remove: impl Fn() -> io::Result<()>) {
    for _ in 0..TRIES {
        match remove() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(LOCK_PAUSE),
            _ => return,
        }
    }
}

/// Whether everything below these directories takes more. No link is followed.
fn takes_more_than(left: &mut Vec<PathBuf>, most: u64) -> bool {
    let mut taken = 0_u64;
    while let Some(path) = left.pop() {
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
        // An empty file is not free either.
        taken = taken.saturating_add(found.blocks().saturating_mul(512).max(4096));
        if taken > most {
            return true;
        }
        if found.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()));
        }
    }
    false
}

/// Whether a directory's name is a lock's hash.
fn is_id(name: &str) -> bool {
    name.len() == 64
        && name
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn create(directory: &Path) -> io::Result<()> {
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
    let (Ok(ours), Ok(there)) = (lock.metadata(), fs::metadata(path)) else {
        return false;
    };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
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
        let places = Places::new(directory.path(), &directory.path().join("uv"));
        (directory, places)
    }

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn a_tree_is_published_whole_and_its_build_leaves_nothing() {
        let (_directory, places) = places();
        let site = places.begin().unwrap();
        fs::create_dir(site.staging().join("site")).unwrap();
        fs::write(site.staging().join("site/x.py"), "x").unwrap();
        site.take("site", "lib/python3.11/site-packages").unwrap();
        site.publish(ID).unwrap();
        assert!(!places.has(ID));
        places.pass(ID).unwrap();
        assert!(places.has(ID));
        assert_eq!(places.published().unwrap(), [ID]);
        drop(site);
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
        let staging = dead.staging();
        fs::create_dir(dead.new_tree()).unwrap();
        // As a server that is killed: no drop, and the kernel lets go of the lock.
        let Site { _alive: lock, .. } = &dead;
        rustix::fs::flock(lock, FlockOperation::Unlock).unwrap();
        let new = dead.new_tree();
        std::mem::forget(dead);
        places.remove_left().unwrap();
        assert!(!staging.exists() && !new.exists());
        assert!(alive.staging().exists());
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
    fn what_was_being_unpacked_is_removed_once_no_build_is_at_it_and_no_link_is_followed() {
        let (directory, places) = places();
        let alive = places.begin().unwrap();
        let cache = places.writable().join("cache");
        fs::create_dir(cache.join(".tmpA")).unwrap();
        fs::write(cache.join("kept"), "").unwrap();
        places.remove_unfinished().unwrap();
        assert_eq!(names(&cache).unwrap().len(), 2, "a build is at it");
        drop(alive);
        assert_eq!(names(&cache).unwrap(), ["kept"]);
        let elsewhere = directory.path().join("elsewhere");
        fs::create_dir_all(elsewhere.join(".tmpB")).unwrap();
        fs::remove_dir_all(&cache).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &cache).unwrap();
        places.remove_unfinished().unwrap_err();
        assert!(elsewhere.join(".tmpB").exists());
    }

    #[test]
    fn only_what_was_unpacked_since_then_counts() {
        let (_directory, places) = places();
        let site = places.begin().unwrap();
        let archive = places.writable().join("cache/archive-v0/a");
        fs::create_dir_all(&archive).unwrap();
        fs::write(archive.join("f"), vec![1; 1 << 20]).unwrap();
        let before = SystemTime::UNIX_EPOCH;
        assert!(places.has_grown(before, 1 << 20));
        assert!(!places.has_grown(before, 2 << 20));
        let later = SystemTime::now() + Duration::from_secs(10);
        assert!(!places.has_grown(later, 1 << 20), "it was there before");
        fs::write(site.staging().join("f"), vec![1; 1 << 20]).unwrap();
        assert!(
            places.has_grown(later, 1 << 20),
            "what is staged always counts"
        );
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
