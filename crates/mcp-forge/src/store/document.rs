//! What the users of sessions wrote about them.

use std::collections::BTreeMap;

use sqlx::sqlite::SqliteRow;

use super::{Store, StoreError, column, now_ms};
use crate::names::SessionName;

/// What a session's user wrote about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Documentation {
    /// Variable to description.
    pub variables: BTreeMap<String, String>,
    /// About the session as a whole.
    pub note: String,
    /// When it was last written, in milliseconds since 1970.
    pub updated_ms: Option<i64>,
}

/// What came of writing about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Documented {
    /// So many variables are described now.
    Yes(usize),
    /// There is no such session.
    Unknown,
    /// More variables would be described than may be: the number that it would be.
    TooMany(usize),
}

impl Store {
    /// Adds to what is written about a session; `clear` first drops what was. A note of `None`
    /// leaves the note. At most `most` variables are described in the end.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; what was written before stands.
    pub async fn document(
        &self,
        name: &SessionName,
        more: Documentation,
        clear: bool,
        most: usize,
    ) -> Result<Documented, StoreError> {
        let opened = self.opened().await?;
        let mut change = opened.pool.begin_with("BEGIN IMMEDIATE").await?;
        let row = sqlx::query(
            "SELECT variables, note, documented_at FROM session WHERE principal = ? AND id = ?",
        )
        .bind(name.principal.as_str())
        .bind(name.id.as_str())
        .fetch_optional(&mut *change)
        .await?;
        let Some(row) = row else {
            return Ok(Documented::Unknown);
        };
        let mut whole = read(&row)?;
        if clear {
            whole = Documentation::default();
        }
        whole.variables.extend(more.variables);
        if !more.note.is_empty() {
            whole.note = more.note;
        }
        let count = whole.variables.len();
        if count > most {
            return Ok(Documented::TooMany(count));
        }
        let variables = serde_json::to_string(&whole.variables)
            .map_err(|error| StoreError::Damaged(error.to_string()))?;
        sqlx::query(
            "UPDATE session SET variables = ?, note = ?, documented_at = ? WHERE principal = ? AND id = ?",
        )
        .bind(variables)
        .bind(whole.note)
        .bind(now_ms())
        .bind(name.principal.as_str())
        .bind(name.id.as_str())
        .execute(&mut *change)
        .await?;
        change.commit().await?;
        Ok(Documented::Yes(count))
    }
}

pub(super) fn read(row: &SqliteRow) -> Result<Documentation, StoreError> {
    let variables: String = column(row, "variables")?;
    Ok(Documentation {
        variables: serde_json::from_str(&variables)
            .map_err(|_| StoreError::Damaged("a session's documentation".to_owned()))?,
        note: column(row, "note")?,
        updated_ms: column(row, "documented_at")?,
    })
}
