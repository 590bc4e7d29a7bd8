//! What programs keep about their sessions: one JSON value each, with a version and an end.

use sqlx::{Row, Sqlite, Transaction, sqlite::SqliteRow};

use super::{Store, StoreError, column, now_ms};
use crate::names::SessionName;

/// A kept value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The value, as JSON.
    pub state: String,
    /// Counts the writings.
    pub version: i64,
    /// When it was last written, in milliseconds since 1970.
    pub updated_ms: i64,
    /// When it is forgotten, in milliseconds since 1970.
    pub expires_ms: Option<i64>,
}

/// What came of changing one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextChange {
    /// It was changed; for a removal this is the version that was removed.
    Done(i64),
    /// Its version is another than the one that was expected: 0 if there is none.
    Version(i64),
    /// The principal keeps as many as it may.
    Full,
}

impl Store {
    /// Writes a value, if the version that there is is the expected one; 0 expects that there is none.
    /// Of one principal at most `most` are kept.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; what was written before stands.
    pub async fn put_context(
        &self,
        name: &SessionName,
        (state, expires_ms): (&str, Option<i64>),
        expected: Option<i64>,
        most: i64,
    ) -> Result<ContextChange, StoreError> {
        let opened = self.opened().await?;
        let mut change = opened.pool.begin_with("BEGIN IMMEDIATE").await?;
        // Those whose time is over are gone, whoever looks next.
        sqlx::query("DELETE FROM context WHERE expires_at <= ?")
            .bind(now_ms())
            .execute(&mut *change)
            .await?;
        let found = version(&mut change, name).await?;
        if expected.is_some_and(|expected| expected != found) {
            return Ok(ContextChange::Version(found));
        }
        if found == 0 && count(&mut change, name).await? >= most {
            return Ok(ContextChange::Full);
        }
        sqlx::query(
            "INSERT OR REPLACE INTO context (principal, session_id, state, version, updated_at, expires_at)
             VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(name.principal.as_str())
        .bind(name.id.as_str())
        .bind(state)
        .bind(found + 1)
        .bind(now_ms())
        .bind(expires_ms)
        .execute(&mut *change)
        .await?;
        change.commit().await?;
        Ok(ContextChange::Done(found + 1))
    }

    /// A value, unless its time is over.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn context(&self, name: &SessionName) -> Result<Option<Context>, StoreError> {
        let row = sqlx::query(
            "SELECT state, version, updated_at, expires_at FROM context
             WHERE principal = ? AND session_id = ? AND (expires_at IS NULL OR expires_at > ?)",
        )
        .bind(name.principal.as_str())
        .bind(name.id.as_str())
        .bind(now_ms())
        .fetch_optional(&self.opened().await?.pool)
        .await?;
        row.as_ref().map(read).transpose()
    }

    /// Removes a value, if its version is the expected one.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; it is still there.
    pub async fn remove_context(
        &self,
        name: &SessionName,
        expected: Option<i64>,
    ) -> Result<ContextChange, StoreError> {
        let opened = self.opened().await?;
        let mut change = opened.pool.begin_with("BEGIN IMMEDIATE").await?;
        let found = version(&mut change, name).await?;
        if found == 0 || expected.is_some_and(|expected| expected != found) {
            return Ok(ContextChange::Version(found));
        }
        sqlx::query("DELETE FROM context WHERE principal = ? AND session_id = ?")
            .bind(name.principal.as_str())
            .bind(name.id.as_str())
            .execute(&mut *change)
            .await?;
        change.commit().await?;
        Ok(ContextChange::Done(found))
    }
}

async fn version(
    change: &mut Transaction<'_, Sqlite>,
    name: &SessionName,
) -> Result<i64, StoreError> {
    let found: Option<i64> = sqlx::query_scalar(
        "SELECT version FROM context
         WHERE principal = ? AND session_id = ? AND (expires_at IS NULL OR expires_at > ?)",
    )
    .bind(name.principal.as_str())
    .bind(name.id.as_str())
    .bind(now_ms())
    .fetch_optional(&mut **change)
    .await?;
    Ok(found.unwrap_or(0))
}

async fn count(
    change: &mut Transaction<'_, Sqlite>,
    name: &SessionName,
) -> Result<i64, StoreError> {
    let row = sqlx::query("SELECT count(*) FROM context WHERE principal = ?")
        .bind(name.principal.as_str())
        .fetch_one(&mut **change)
        .await?;
    Ok(row.try_get(0)?)
}

fn read(row: &SqliteRow) -> Result<Context, StoreError> {
    Ok(Context {
        state: column(row, "state")?,
        version: column(row, "version")?,
        updated_ms: column(row, "updated_at")?,
        expires_ms: column(row, "expires_at")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Principal, SessionId};

    fn name(principal: &str, id: &str) -> SessionName {
        SessionName {
            principal: Principal::named(principal),
            id: SessionId::parse(id).unwrap(),
        }
    }

    #[tokio::test]
    async fn of_many_writers_that_expect_the_same_version_one_writes() {
        let directory = tempfile::tempdir().unwrap();
        let stores = [Store::new(directory.path()), Store::new(directory.path())];
        let me = name("ada", "s");
        stores[0].context(&me).await.unwrap();
        let writes = (0..20).map(|number: usize| {
            let (store, me) = (&stores[number % 2], &me);
            async move {
                store
                    .put_context(me, ("1", None), Some(0), 10)
                    .await
                    .unwrap()
            }
        });
        let changes = futures_util::future::join_all(writes).await;
        let done = changes
            .iter()
            .filter(|change| **change == ContextChange::Done(1));
        assert_eq!(done.count(), 1, "{changes:?}");
        let late = changes
            .iter()
            .filter(|change| **change == ContextChange::Version(1));
        assert_eq!(late.count(), 19);
        let put = stores[1].put_context(&me, ("2", None), None, 10).await;
        assert_eq!(put.unwrap(), ContextChange::Done(2));
        assert_eq!(stores[0].context(&me).await.unwrap().unwrap().state, "2");
        assert_eq!(stores[0].context(&name("bob", "s")).await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_over_is_not_there_and_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let (old, new) = (name("ada", "old"), name("ada", "new"));
        store
            .put_context(&old, ("1", Some(now_ms() - 1)), None, 1)
            .await
            .unwrap();
        assert_eq!(store.context(&old).await.unwrap(), None);
        let removed = store.remove_context(&old, None).await.unwrap();
        assert_eq!(removed, ContextChange::Version(0));
        let put = store
            .put_context(&new, ("1", None), Some(0), 1)
            .await
            .unwrap();
        assert_eq!(put, ContextChange::Done(1));
        let full = store.put_context(&old, ("1", None), None, 1).await.unwrap();
        assert_eq!(full, ContextChange::Full);
        let stale = store.remove_context(&new, Some(7)).await.unwrap();
        assert_eq!(stale, ContextChange::Version(1));
        let removed = store.remove_context(&new, Some(1)).await.unwrap();
        assert_eq!(removed, ContextChange::Done(1));
        let put = store.put_context(&old, ("1", None), None, 1).await.unwrap();
        assert_eq!(put, ContextChange::Done(1));
    }
}
