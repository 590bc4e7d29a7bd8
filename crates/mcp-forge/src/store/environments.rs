//! Named environments, and how many builds there were.

use sqlx::{Row, sqlite::SqliteRow};

use super::{Store, StoreError, column, now_ms};

/// A name for a built environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentRecord {
    /// Whose it is. Empty for a template, which is everybody's.
    pub principal: String,
    /// Its name.
    pub name: String,
    /// The lock's hash, under which its packages lie.
    pub tree: String,
    /// What the caller says of it.
    pub description: String,
    /// The template that it began with.
    pub template: Option<String>,
    /// The requirements as they were asked for, in canonical form.
    pub requested: Vec<String>,
    /// Hash of all that decides what the same request would resolve to.
    pub request: String,
    /// Python's version, `3.11`.
    pub python: String,
    /// The lock, as JSON: kept when the packages are not.
    pub lock: String,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// Time that the build took, in milliseconds.
    pub build_ms: u64,
    /// When the name was first given, in milliseconds since 1970.
    pub created_ms: i64,
    /// When it was last built.
    pub built_ms: i64,
    /// When it was last used.
    pub used_ms: i64,
    /// When its packages were removed for want of use.
    pub archived_ms: Option<i64>,
}

/// How often one principal may build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildLimit {
    /// Builds in one period.
    pub builds: u64,
    /// That period, in milliseconds.
    pub period_ms: i64,
}

impl Store {
    /// Gives a name to an environment, in place of what had it. A name that is given again keeps
    /// the time at which it was first given.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the name means what it meant.
    pub async fn put_environment(&self, record: &EnvironmentRecord) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO environment (principal, name, tree, description, template, requested, request, python,
                 lock, size_bytes, build_ms, created_at, built_at, used_at, archived_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (principal, name) DO UPDATE SET tree = excluded.tree, description = excluded.description,
                 template = excluded.template, requested = excluded.requested, request = excluded.request,
                 python = excluded.python, lock = excluded.lock, size_bytes = excluded.size_bytes,
                 build_ms = excluded.build_ms, built_at = excluded.built_at, used_at = excluded.used_at,
                 archived_at = excluded.archived_at",
        )
        .bind(&record.principal)
        .bind(&record.name)
        .bind(&record.tree)
        .bind(&record.description)
        .bind(&record.template)
        .bind(serde_json::json!(record.requested).to_string())
        .bind(&record.request)
        .bind(&record.python)
        .bind(&record.lock)
        .bind(signed(record.size_bytes))
        .bind(signed(record.build_ms))
        .bind(record.created_ms)
        .bind(record.built_ms)
        .bind(record.used_ms)
        .bind(record.archived_ms)
        .execute(&self.opened().await?.pool)
        .await?;
        Ok(())
    }

    /// What a name means.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn environment(
        &self,
        principal: &str,
        name: &str,
    ) -> Result<Option<EnvironmentRecord>, StoreError> {
        let row = sqlx::query("SELECT * FROM environment WHERE principal = ? AND name = ?")
            .bind(principal)
            .bind(name)
            .fetch_optional(&self.opened().await?.pool)
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// A principal's environments, by name; of all principals if none is given.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn environments(
        &self,
        principal: Option<&str>,
    ) -> Result<Vec<EnvironmentRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT * FROM environment WHERE ?1 IS NULL OR principal = ?1 ORDER BY name, principal",
        )
        .bind(principal)
        .fetch_all(&self.opened().await?.pool)
        .await?;
        rows.iter().map(read).collect()
    }

    /// How many environments there are, of this principal and of all others.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn count_environments(&self, principal: &str) -> Result<[i64; 2], StoreError> {
        let row = sqlx::query(
            "SELECT coalesce(sum(principal = ?1), 0) AS own, coalesce(sum(principal <> ?1), 0) AS others FROM environment",
        )
        .bind(principal)
        .fetch_one(&self.opened().await?.pool)
        .await?;
        Ok([column(&row, "own")?, column(&row, "others")?])
    }

    /// The newest environment, of whomever, that the same request led to.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn environment_of_request(
        &self,
        request: &str,
    ) -> Result<Option<EnvironmentRecord>, StoreError> {
        let row = sqlx::query(
            "SELECT * FROM environment WHERE request = ? ORDER BY built_at DESC LIMIT 1",
        )
        .bind(request)
        .fetch_optional(&self.opened().await?.pool)
        .await?;
        row.as_ref().map(read).transpose()
    }

    /// Takes a name away. Gives back what it meant.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the name means what it meant.
    pub async fn remove_environment(
        &self,
        principal: &str,
        name: &str,
    ) -> Result<Option<EnvironmentRecord>, StoreError> {
        let row =
            sqlx::query("DELETE FROM environment WHERE principal = ? AND name = ? RETURNING *")
                .bind(principal)
                .bind(name)
                .fetch_optional(&self.opened().await?.pool)
                .await?;
        row.as_ref().map(read).transpose()
    }

    /// Notes that an environment is used now.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn use_environment(&self, principal: &str, name: &str) -> Result<(), StoreError> {
        sqlx::query("UPDATE environment SET used_at = ? WHERE principal = ? AND name = ?")
            .bind(now_ms())
            .bind(principal)
            .bind(name)
            .execute(&self.opened().await?.pool)
            .await?;
        Ok(())
    }

    /// Notes that an environment's packages are removed, if nobody used it since `used_ms`.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn archive_environment(
        &self,
        record: &EnvironmentRecord,
    ) -> Result<bool, StoreError> {
        let done = sqlx::query(
            "UPDATE environment SET archived_at = ?
             WHERE principal = ? AND name = ? AND used_at = ? AND archived_at IS NULL",
        )
        .bind(now_ms())
        .bind(&record.principal)
        .bind(&record.name)
        .bind(record.used_ms)
        .execute(&self.opened().await?.pool)
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Notes that an archived environment's packages are there again and used, if the name still means
    /// them.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn revive_environment(&self, record: &EnvironmentRecord) -> Result<bool, StoreError> {
        let done = sqlx::query(
            "UPDATE environment SET archived_at = NULL, used_at = ?
             WHERE principal = ? AND name = ? AND tree = ?",
        )
        .bind(now_ms())
        .bind(&record.principal)
        .bind(&record.name)
        .bind(&record.tree)
        .execute(&self.opened().await?.pool)
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Takes a name away, if nobody used it since `used_ms`.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the name means what it meant.
    pub async fn forget_environment(&self, record: &EnvironmentRecord) -> Result<bool, StoreError> {
        let done =
            sqlx::query("DELETE FROM environment WHERE principal = ? AND name = ? AND used_at = ?")
                .bind(&record.principal)
                .bind(&record.name)
                .bind(record.used_ms)
                .execute(&self.opened().await?.pool)
                .await?;
        Ok(done.rows_affected() == 1)
    }

    /// The trees that a name needs: all others may go.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn needed_trees(&self) -> Result<Vec<String>, StoreError> {
        let trees =
            sqlx::query_scalar("SELECT DISTINCT tree FROM environment WHERE archived_at IS NULL")
                .fetch_all(&self.opened().await?.pool)
                .await?;
        Ok(trees)
    }

    /// Counts a build, unless the principal has made as many as it may: then the milliseconds until
    /// it may again.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; nothing was counted.
    pub async fn count_build(
        &self,
        (principal, name): (&str, &str),
        limit: BuildLimit,
    ) -> Result<Result<(), i64>, StoreError> {
        let opened = self.opened().await?;
        let mut change = opened.pool.begin_with("BEGIN IMMEDIATE").await?;
        let now = now_ms();
        // Those of the future are from a clock that was wrong, and would count until then.
        sqlx::query("DELETE FROM build WHERE started_at <= ? OR started_at > ?")
            .bind(now.saturating_sub(limit.period_ms))
            .bind(now)
            .execute(&mut *change)
            .await?;
        let started: Vec<i64> = sqlx::query_scalar(
            "SELECT started_at FROM build WHERE principal = ? ORDER BY started_at",
        )
        .bind(principal)
        .fetch_all(&mut *change)
        .await?;
        let most = usize::try_from(limit.builds).unwrap_or(usize::MAX);
        if started.len() >= most {
            let oldest = started.first().copied().unwrap_or(now);
            return Ok(Err(oldest
                .saturating_add(limit.period_ms)
                .saturating_sub(now)
                .max(1)));
        }
        sqlx::query("INSERT INTO build (principal, name, started_at) VALUES (?, ?, ?)")
            .bind(principal)
            .bind(name)
            .bind(now)
            .execute(&mut *change)
            .await?;
        change.commit().await?;
        Ok(Ok(()))
    }
}

fn read(row: &SqliteRow) -> Result<EnvironmentRecord, StoreError> {
    let name: String = column(row, "name")?;
    let requested: String = column(row, "requested")?;
    let requested = serde_json::from_str(&requested)
        .map_err(|_| StoreError::Damaged(format!("the requirements of `{name}`")))?;
    Ok(EnvironmentRecord {
        principal: column(row, "principal")?,
        tree: column(row, "tree")?,
        description: column(row, "description")?,
        template: row.try_get("template")?,
        requested,
        request: column(row, "request")?,
        python: column(row, "python")?,
        lock: column(row, "lock")?,
        size_bytes: column::<i64>(row, "size_bytes")?.unsigned_abs(),
        build_ms: column::<i64>(row, "build_ms")?.unsigned_abs(),
        created_ms: column(row, "created_at")?,
        built_ms: column(row, "built_at")?,
        used_ms: column(row, "used_at")?,
        archived_ms: row.try_get("archived_at")?,
        name,
    })
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(principal: &str, name: &str, tree: &str) -> EnvironmentRecord {
        EnvironmentRecord {
            principal: principal.to_owned(),
            name: name.to_owned(),
            tree: tree.to_owned(),
            description: "for plots".to_owned(),
            template: None,
            requested: vec!["numpy>=2".to_owned()],
            request: "r1".to_owned(),
            python: "3.11".to_owned(),
            lock: "{}".to_owned(),
            size_bytes: 7,
            build_ms: 8,
            created_ms: 1,
            built_ms: 2,
            used_ms: 3,
            archived_ms: None,
        }
    }

    #[tokio::test]
    async fn a_name_is_one_principals_and_means_what_was_given_last() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        store
            .put_environment(&record("ada", "e", "t1"))
            .await
            .unwrap();
        let mut again = record("ada", "e", "t2");
        (again.created_ms, again.built_ms) = (50, 51);
        store.put_environment(&again).await.unwrap();
        store
            .put_environment(&record("bob", "e", "t3"))
            .await
            .unwrap();
        again.created_ms = 1;
        assert_eq!(
            store.environment("ada", "e").await.unwrap(),
            Some(again.clone())
        );
        assert_eq!(
            store.environments(Some("ada")).await.unwrap(),
            [again.clone()]
        );
        assert_eq!(store.environments(None).await.unwrap().len(), 2);
        assert_eq!(
            store.environment_of_request("r1").await.unwrap(),
            Some(again.clone())
        );
        assert_eq!(
            store.remove_environment("ada", "e").await.unwrap(),
            Some(again)
        );
        assert_eq!(store.remove_environment("ada", "e").await.unwrap(), None);
        assert_eq!(store.needed_trees().await.unwrap(), ["t3"]);
    }

    #[tokio::test]
    async fn what_was_used_meanwhile_is_not_archived() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let old = record("ada", "e", "t1");
        store.put_environment(&old).await.unwrap();
        store.use_environment("ada", "e").await.unwrap();
        assert!(!store.archive_environment(&old).await.unwrap());
        let used = store.environment("ada", "e").await.unwrap().unwrap();
        assert!(store.archive_environment(&used).await.unwrap());
        assert!(store.needed_trees().await.unwrap().is_empty());
    }

    /// Restoring takes a minute, in which the name may be given to something else.
    #[tokio::test]
    async fn a_restored_environment_takes_no_name_back() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let mut old = record("ada", "e", "t1");
        old.archived_ms = Some(9);
        store.put_environment(&old).await.unwrap();
        assert!(store.revive_environment(&old).await.unwrap());
        let there = store.environment("ada", "e").await.unwrap().unwrap();
        assert!(there.archived_ms.is_none() && there.used_ms > old.used_ms);
        assert!(!store.forget_environment(&old).await.unwrap(), "it is used");
        let new = record("ada", "e", "t2");
        store.put_environment(&new).await.unwrap();
        assert!(!store.revive_environment(&old).await.unwrap());
        assert_eq!(
            store.environment("ada", "e").await.unwrap().unwrap().tree,
            "t2"
        );
        assert!(store.forget_environment(&new).await.unwrap());
        assert!(!store.revive_environment(&new).await.unwrap());
        assert_eq!(store.environment("ada", "e").await.unwrap(), None);
    }

    #[tokio::test]
    async fn builds_are_counted_by_principal_and_time() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let limit = BuildLimit {
            builds: 2,
            period_ms: 60_000,
        };
        for _ in 0..2 {
            assert_eq!(
                store.count_build(("ada", "e"), limit).await.unwrap(),
                Ok(())
            );
        }
        let wait = store
            .count_build(("ada", "e"), limit)
            .await
            .unwrap()
            .unwrap_err();
        assert!((1..=60_000).contains(&wait), "{wait}");
        assert_eq!(
            store.count_build(("bob", "e"), limit).await.unwrap(),
            Ok(())
        );
        // A clock that was years ahead and is right again.
        let opened = store.opened().await.unwrap();
        sqlx::query("UPDATE build SET started_at = started_at + 100000000000")
            .execute(&opened.pool)
            .await
            .unwrap();
        assert_eq!(
            store.count_build(("ada", "e"), limit).await.unwrap(),
            Ok(())
        );
        let over = BuildLimit {
            builds: 2,
            period_ms: 0,
        };
        assert_eq!(store.count_build(("ada", "e"), over).await.unwrap(), Ok(()));
    }
}
