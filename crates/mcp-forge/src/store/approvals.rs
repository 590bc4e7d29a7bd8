//! Packages that somebody has to approve, and whether an operator did.

use sqlx::{Row, sqlite::SqliteRow};

use super::{Store, StoreError, column, now_ms};

/// Requests that wait for an answer, at most: whoever asks is not trusted with more.
const MOST_WAITING: i64 = 1_000;

/// The same, of one principal: it leaves room for others.
const MOST_OF_ONE: i64 = 100;

/// A package that somebody asked for, and what was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// Its name, normalised.
    pub package: String,
    /// The pattern because of which it needs one.
    pub pattern: String,
    /// Who asked last.
    pub principal: String,
    /// For which environment.
    pub environment: String,
    /// When, in milliseconds since 1970.
    pub asked_ms: i64,
    /// When it was approved, if it was.
    pub approved_ms: Option<i64>,
    /// By whom.
    pub approved_by: Option<String>,
}

impl Store {
    /// Notes that a package needs an approval.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; nothing was noted.
    pub async fn ask_approval(
        &self,
        (package, pattern): (&str, &str),
        (principal, environment): (&str, &str),
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO approval (package, pattern, principal, environment, asked_at)
             SELECT ?1, ?2, ?3, ?4, ?5 WHERE (SELECT count(*) FROM approval WHERE approved_at IS NULL) < ?6
                 AND (SELECT count(*) FROM approval WHERE approved_at IS NULL AND principal = ?3) < ?7
             ON CONFLICT (package) DO UPDATE SET pattern = excluded.pattern, principal = excluded.principal,
                 environment = excluded.environment, asked_at = excluded.asked_at",
        )
        .bind(package)
        .bind(pattern)
        .bind(principal)
        .bind(environment)
        .bind(now_ms())
        .bind(MOST_WAITING)
        .bind(MOST_OF_ONE)
        .execute(&self.opened().await?.pool)
        .await?;
        Ok(())
    }

    /// Approves a package, whether somebody asked for it or not.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; nothing was approved.
    pub async fn approve(&self, package: &str, by: &str) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO approval (package, pattern, principal, environment, asked_at, approved_at, approved_by)
             VALUES (?1, '', '', '', ?2, ?2, ?3)
             ON CONFLICT (package) DO UPDATE SET approved_at = excluded.approved_at, approved_by = excluded.approved_by",
        )
        .bind(package)
        .bind(now_ms())
        .bind(by)
        .execute(&self.opened().await?.pool)
        .await?;
        Ok(())
    }

    /// Takes an approval, or a request for one, back. Says whether there was any.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; it stands.
    pub async fn revoke_approval(&self, package: &str) -> Result<bool, StoreError> {
        let done = sqlx::query("DELETE FROM approval WHERE package = ?")
            .bind(package)
            .execute(&self.opened().await?.pool)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// All requests and approvals, by name.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn approvals(&self) -> Result<Vec<Approval>, StoreError> {
        let rows = sqlx::query("SELECT * FROM approval ORDER BY package")
            .fetch_all(&self.opened().await?.pool)
            .await?;
        rows.iter().map(read).collect()
    }
}

fn read(row: &SqliteRow) -> Result<Approval, StoreError> {
    Ok(Approval {
        package: column(row, "package")?,
        pattern: column(row, "pattern")?,
        principal: column(row, "principal")?,
        environment: column(row, "environment")?,
        asked_ms: column(row, "asked_at")?,
        approved_ms: row.try_get("approved_at")?,
        approved_by: row.try_get("approved_by")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_approval_outlives_later_requests_until_it_is_revoked() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let ask = |environment| store.ask_approval(("pycrypto", "*crypto*"), ("ada", environment));
        ask("e1").await.unwrap();
        assert_eq!(store.approvals().await.unwrap()[0].approved_ms, None);
        store.approve("pycrypto", "local").await.unwrap();
        ask("e2").await.unwrap();
        let approval = store.approvals().await.unwrap().remove(0);
        assert_eq!(approval.environment, "e2");
        assert_eq!(approval.approved_by.as_deref(), Some("local"));
        assert!(approval.approved_ms.is_some());
        assert!(store.revoke_approval("pycrypto").await.unwrap());
        assert!(!store.revoke_approval("pycrypto").await.unwrap());
    }

    #[tokio::test]
    async fn a_flood_of_requests_is_not_kept_and_hinders_no_approval() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        for number in 0..MOST_WAITING + 5 {
            let package = format!("p{number}");
            let who = format!("eve-{}", number / (MOST_OF_ONE + 1));
            store
                .ask_approval((&package, "p*"), (&who, "e"))
                .await
                .unwrap();
        }
        // One principal's flood leaves room for another's request.
        let kept = store.approvals().await.unwrap();
        let of_one = kept.iter().filter(|asked| asked.principal == "eve-0");
        assert_eq!(of_one.count(), 100);
        store
            .ask_approval(("paramiko", "*"), ("ada", "e"))
            .await
            .unwrap();
        store.approve("other", "local").await.unwrap();
        let now = store.approvals().await.unwrap();
        assert_eq!(now.len(), kept.len() + 2);
        assert!(now.len() <= 1_001);
    }
}
