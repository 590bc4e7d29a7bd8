//! Which server process owns a live session, and whether that process still lives.

use std::{io, path::Path};

use sqlx::{SqliteConnection, SqlitePool};

use super::now_ms;
use crate::liveness::Alive;

/// Why a server could not be made known.
#[derive(Debug)]
pub(super) enum RegisterError {
    Files(io::Error),
    Database(sqlx::Error),
}

/// This process, as other servers see it.
#[derive(Debug)]
pub(super) struct Owner(Alive);

impl Owner {
    /// Makes this process known.
    pub(super) async fn register(
        data_dir: &Path,
        pool: &SqlitePool,
    ) -> Result<Self, RegisterError> {
        let alive = Alive::register(data_dir.join("servers")).map_err(RegisterError::Files)?;
        sqlx::query("INSERT INTO server (id, pid, started_at) VALUES (?, ?, ?)")
            .bind(alive.name())
            .bind(i64::from(std::process::id()))
            .bind(now_ms())
            .execute(pool)
            .await
            .map_err(RegisterError::Database)?;
        Ok(Self(alive))
    }

    /// This process's name in the store.
    pub(super) fn id(&self) -> &str {
        self.0.name()
    }

    /// Whether the server of this name lives.
    pub(super) fn is_alive(&self, id: &str) -> bool {
        self.0.is_alive(id)
    }

    /// Removes what dead servers left, but for those that still own a session.
    pub(super) async fn forget_dead(&self, change: &mut SqliteConnection) -> sqlx::Result<()> {
        let ids: Vec<String> = sqlx::query_scalar(
            "SELECT id FROM server WHERE id NOT IN (SELECT owner FROM session WHERE owner IS NOT NULL)",
        )
        .fetch_all(&mut *change)
        .await?;
        for id in ids.into_iter().filter(|id| !self.is_alive(id)) {
            sqlx::query("DELETE FROM server WHERE id = ?")
                .bind(id)
                .execute(&mut *change)
                .await?;
        }
        self.0.forget_dead();
        Ok(())
    }
}
