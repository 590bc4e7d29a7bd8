//! Which server process owns a live session, and whether that process still lives.
//!
//! Each server holds a lock on a file of its own for as long as it lives; the kernel lets go of it
//! however the process ends. A pid alone would not do: it is used again, and it means something
//! else in a container that shares the data directory.

use std::{
    fs::File,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};
use sqlx::{SqliteConnection, SqlitePool};

use super::now_ms;

/// Why a server could not be made known.
#[derive(Debug)]
pub(super) enum RegisterError {
    Files(io::Error),
    Database(sqlx::Error),
}

/// This process, as other servers see it.
#[derive(Debug)]
pub(super) struct Owner {
    id: String,
    directory: PathBuf,
    /// Locked until the process ends.
    _lock: File,
}

impl Owner {
    /// Makes this process known.
    pub(super) async fn register(
        data_dir: &Path,
        pool: &SqlitePool,
    ) -> Result<Self, RegisterError> {
        let directory = data_dir.join("servers");
        let mut bytes = [0_u8; 16];
        getrandom(&mut bytes, GetRandomFlags::empty())
            .map_err(|error| RegisterError::Files(error.into()))?;
        let id = format!("{:032x}", u128::from_be_bytes(bytes));
        let lock = Self::lock(&directory, &id).map_err(RegisterError::Files)?;
        sqlx::query("INSERT INTO server (id, pid, started_at) VALUES (?, ?, ?)")
            .bind(&id)
            .bind(i64::from(std::process::id()))
            .bind(now_ms())
            .execute(pool)
            .await
            .map_err(RegisterError::Database)?;
        Ok(Self {
            id,
            directory,
            _lock: lock,
        })
    }

    /// This process's name in the store.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Whether the server of this name lives.
    pub(super) fn is_alive(&self, id: &str) -> bool {
        if id == self.id {
            return true;
        }
        let opened = rustix::fs::open(
            path_of(&self.directory, id),
            OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        );
        // Shared: two who look at the same time do not take each other for the owner.
        opened.is_ok_and(|file| {
            rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
        })
    }

    /// Removes what dead servers left, but for those that still own a session.
    pub(super) async fn forget_dead(&self, change: &mut SqliteConnection) -> sqlx::Result<()> {
        let ids: Vec<String> = sqlx::query_scalar(
            "SELECT id FROM server WHERE id NOT IN (SELECT owner FROM session WHERE owner IS NOT NULL)",
        )
        .fetch_all(&mut *change)
        .await?;
        for id in ids.into_iter().filter(|id| !self.is_alive(id)) {
            // It may be gone already; the row is what counts.
            let _ = std::fs::remove_file(path_of(&self.directory, &id));
            sqlx::query("DELETE FROM server WHERE id = ?")
                .bind(id)
                .execute(&mut *change)
                .await?;
        }
        Ok(())
    }

    fn lock(directory: &Path, id: &str) -> io::Result<File> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = File::from(rustix::fs::open(path_of(directory, id), flags, mode)?);
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    }
}

fn path_of(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.lock"))
}
