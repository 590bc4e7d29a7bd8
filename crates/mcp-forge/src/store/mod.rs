//! What outlives an interpreter and a server: sessions, their documentation and their history, environments.
//!
//! One SQLite file in the data directory, shared by all servers that use it. Every change is one
//! transaction, and a change to a live session is made by the server that owns it or not at all.
//! Opened at first use: who runs stateless code only never makes the file.

use std::{
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use sqlx::{
    Row, SqlitePool,
    sqlite::{
        SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
    },
};
use tokio::sync::OnceCell;

mod approvals;
mod context;
mod document;
mod environments;
mod history;
mod owner;
mod schema;
mod sessions;
/// Opens the file. Where several servers make a new one, SQLite tells some of them that it is locked, at
/// once and whatever timeout they have: the switch to its log waits for nobody.
async fn connect(options: &SqliteConnectOptions) -> Result<SqlitePool, sqlx::Error> {
    const LOCKED: &str = "5";
    const PAUSE: Duration = Duration::from_millis(20);
    let deadline = std::time::Instant::now() + BUSY_TIMEOUT;
    loop {
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS);
        match pool.connect_with(options.clone()).await {
            Err(sqlx::Error::Database(error))
                if error.code().as_deref() == Some(LOCKED)
                    && std::time::Instant::now() < deadline =>
            {
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests;

pub use approvals::Approval;
pub use context::{Context, ContextChange};
pub use document::{Documentation, Documented};
pub use environments::{BuildLimit, EnvironmentRecord};
pub use history::{Execution, ExecutionStart};
pub use sessions::{Claim, Forgotten, Life, SessionRecord};

use owner::Owner;

/// How long a change waits for another server's.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections to the file: SQLite has one writer at a time, and readers are short.
const CONNECTIONS: u32 = 2;

/// The store could not do what it was asked; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file or its directory cannot be used.
    #[error("the session store {} cannot be opened: {source}", file.display())]
    Open {
        /// The database.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// SQLite refused.
    #[error("the session store failed: {0}")]
    Database(#[from] sqlx::Error),
    /// A newer mcp-forge has changed the file's tables.
    #[error(
        "the session store was written by a newer mcp-forge (its version is {found}, this one knows {known}): use that one, or another --data-dir"
    )]
    Newer {
        /// What the file says.
        found: i64,
        /// What this program knows.
        known: i64,
    },
    /// What is in the file is not what was put there.
    #[error("the session store holds something that it should not: {0}")]
    Damaged(String),
}

/// The store of one server process. Opened at first use.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    opened: OnceCell<Opened>,
}

/// An open store, and this process in it.
#[derive(Debug)]
struct Opened {
    pool: SqlitePool,
    owner: Owner,
}

impl Store {
    /// A store in a data directory that exists, or will by the time of its first use.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            opened: OnceCell::new(),
        }
    }

    /// Closes the file. What other servers do with it is not disturbed.
    pub async fn close(&self) {
        if let Some(opened) = self.opened.get() {
            opened.pool.close().await;
        }
    }

    /// Whether the file can be used.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn check(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1")
            .execute(&self.opened().await?.pool)
            .await?;
        Ok(())
    }

    async fn opened(&self) -> Result<&Opened, StoreError> {
        self.opened.get_or_try_init(|| self.open()).await
    }

    async fn open(&self) -> Result<Opened, StoreError> {
        let file = self.directory.join("store.db");
        let failed = |source: io::Error| StoreError::Open {
            file: file.clone(),
            source,
        };
        // SQLite makes its side files with the mode of the file.
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&file)
            .map_err(failed)?;
        let options = SqliteConnectOptions::new()
            .filename(&file)
            .journal_mode(SqliteJournalMode::Wal)
            // A power cut may cost the last changes, never the file.
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(BUSY_TIMEOUT)
            .foreign_keys(true);
        let pool = connect(&options).await?;
        schema::migrate(&pool).await?;
        let owner = Owner::register(&self.directory, &pool)
            .await
            .map_err(|error| match error {
                owner::RegisterError::Files(source) => failed(source),
                owner::RegisterError::Database(error) => error.into(),
            })?;
        Ok(Opened { pool, owner })
    }
}

/// Milliseconds since 1970: how the store writes times.
pub fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// A column that is never NULL.
fn column<'r, T>(row: &'r SqliteRow, name: &str) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    Ok(row.try_get::<T, _>(name)?)
}
