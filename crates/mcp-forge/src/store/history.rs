//! What ran in a session: names, hashes, outcomes and times; the code only if the operator wants it.

use super::{Store, StoreError, column};
use crate::names::SessionName;

/// An execution that is about to begin.
#[derive(Debug, Clone, Copy)]
pub struct ExecutionStart<'a> {
    /// Its name in the audit log.
    pub execution_id: &'a str,
    /// The session's generation.
    pub generation: u64,
    /// SHA-256 of the code, in hex.
    pub code_sha256: &'a str,
    /// The code, if it is to be kept.
    pub code: Option<&'a str>,
    /// Executions of the session that are remembered, this one included.
    pub keep: u32,
    /// When it began, in milliseconds since 1970.
    pub started_ms: i64,
}

/// An execution of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// Its name in the audit log.
    pub execution_id: String,
    /// The session's generation.
    pub generation: u64,
    /// SHA-256 of the code, in hex.
    pub code_sha256: String,
    /// The code, if it was kept.
    pub code: Option<String>,
    /// How it ended; `None` while it runs.
    pub outcome: Option<String>,
    /// When it began, in milliseconds since 1970.
    pub started_ms: i64,
    /// When it ended.
    pub ended_ms: Option<i64>,
}

impl Store {
    /// Writes that an execution begins, and forgets the oldest ones beyond what is kept.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn begin(
        &self,
        name: &SessionName,
        start: ExecutionStart<'_>,
    ) -> Result<(), StoreError> {
        let opened = self.opened().await?;
        let mut change = opened.pool.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query(
            "INSERT INTO execution (principal, session_id, execution_id, generation, code_sha256, code, started_at)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(name.principal.as_str())
        .bind(name.id.as_str())
        .bind(start.execution_id)
        .bind(i64::try_from(start.generation).unwrap_or(i64::MAX))
        .bind(start.code_sha256)
        .bind(start.code)
        .bind(start.started_ms)
        .execute(&mut *change)
        .await?;
        sqlx::query("UPDATE session SET used_at = ? WHERE principal = ? AND id = ?")
            .bind(start.started_ms)
            .bind(name.principal.as_str())
            .bind(name.id.as_str())
            .execute(&mut *change)
            .await?;
        sqlx::query(
            "DELETE FROM execution WHERE number <= (
                SELECT number FROM execution WHERE principal = ?1 AND session_id = ?2
                ORDER BY number DESC LIMIT 1 OFFSET ?3
             ) AND principal = ?1 AND session_id = ?2",
        )
        .bind(name.principal.as_str())
        .bind(name.id.as_str())
        .bind(i64::from(start.keep))
        .execute(&mut *change)
        .await?;
        change.commit().await?;
        Ok(())
    }

    /// Writes how an execution ended and when, and that the session was used until then.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn finish(
        &self,
        name: &SessionName,
        execution_id: &str,
        outcome: &str,
        ended_ms: i64,
    ) -> Result<(), StoreError> {
        let opened = self.opened().await?;
        let mut change = opened.pool.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query("UPDATE execution SET outcome = ?, ended_at = ? WHERE execution_id = ?")
            .bind(outcome)
            .bind(ended_ms)
            .bind(execution_id)
            .execute(&mut *change)
            .await?;
        sqlx::query("UPDATE session SET used_at = ? WHERE principal = ? AND id = ?")
            .bind(ended_ms)
            .bind(name.principal.as_str())
            .bind(name.id.as_str())
            .execute(&mut *change)
            .await?;
        change.commit().await?;
        Ok(())
    }

    /// The newest executions of a session, newest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn history(
        &self,
        name: &SessionName,
        count: u32,
    ) -> Result<Vec<Execution>, StoreError> {
        let opened = self.opened().await?;
        let rows = sqlx::query(
            "SELECT * FROM execution WHERE principal = ? AND session_id = ? ORDER BY number DESC LIMIT ?",
        )
        .bind(name.principal.as_str())
        .bind(name.id.as_str())
        .bind(i64::from(count))
        .fetch_all(&opened.pool)
        .await?;
        rows.iter()
            .map(|row| {
                Ok(Execution {
                    execution_id: column(row, "execution_id")?,
                    generation: u64::try_from(column::<i64>(row, "generation")?)
                        .unwrap_or_default(),
                    code_sha256: column(row, "code_sha256")?,
                    code: column(row, "code")?,
                    outcome: column(row, "outcome")?,
                    started_ms: column(row, "started_at")?,
                    ended_ms: column(row, "ended_at")?,
                })
            })
            .collect()
    }
}
