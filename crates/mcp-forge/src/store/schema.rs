//! The tables, and how older ones become them.

use sqlx::SqlitePool;

use super::StoreError;

/// One step a version: the file's `user_version` counts those that were made.
const STEPS: &[&[&str]] = &[FIRST, CONTEXTS, ENVIRONMENTS];

const FIRST: &[&str] = &[
    "CREATE TABLE server (
        id TEXT PRIMARY KEY,
        pid INTEGER NOT NULL,
        started_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID",
    // `owner` names the server that runs the interpreter; NULL when there is none.
    "CREATE TABLE session (
        principal TEXT NOT NULL,
        id TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        used_at INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        owner TEXT,
        lost_reason TEXT,
        loss_is_told INTEGER NOT NULL DEFAULT 1,
        variables TEXT NOT NULL DEFAULT '{}',
        note TEXT NOT NULL DEFAULT '',
        documented_at INTEGER,
        known TEXT,
        known_at INTEGER,
        PRIMARY KEY (principal, id)
    ) STRICT, WITHOUT ROWID",
    "CREATE TABLE execution (
        number INTEGER PRIMARY KEY,
        principal TEXT NOT NULL,
        session_id TEXT NOT NULL,
        execution_id TEXT NOT NULL UNIQUE,
        generation INTEGER NOT NULL,
        code_sha256 TEXT NOT NULL,
        code TEXT,
        outcome TEXT,
        started_at INTEGER NOT NULL,
        ended_at INTEGER,
        FOREIGN KEY (principal, session_id) REFERENCES session (principal, id) ON DELETE CASCADE
    ) STRICT",
    "CREATE INDEX execution_of_session ON execution (principal, session_id, number)",
];

const CONTEXTS: &[&str] = &[
    "CREATE TABLE context (
        principal TEXT NOT NULL,
        session_id TEXT NOT NULL,
        state TEXT NOT NULL,
        version INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        expires_at INTEGER,
        PRIMARY KEY (principal, session_id)
    ) STRICT",
    "CREATE INDEX context_by_end ON context (expires_at)",
];

const ENVIRONMENTS: &[&str] = &[
    // `tree` is the lock's hash, under which the packages lie; several names may share one. A
    // template's principal is empty: it is everybody's.
    "CREATE TABLE environment (
        principal TEXT NOT NULL,
        name TEXT NOT NULL,
        tree TEXT NOT NULL,
        description TEXT NOT NULL,
        template TEXT,
        requested TEXT NOT NULL,
        request TEXT NOT NULL,
        python TEXT NOT NULL,
        lock TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        build_ms INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        built_at INTEGER NOT NULL,
        used_at INTEGER NOT NULL,
        archived_at INTEGER,
        PRIMARY KEY (principal, name)
    ) STRICT, WITHOUT ROWID",
    "CREATE INDEX environment_by_tree ON environment (tree)",
    "CREATE INDEX environment_by_request ON environment (request, built_at)",
    "ALTER TABLE session ADD COLUMN packages TEXT",
    "CREATE TABLE build (
        number INTEGER PRIMARY KEY,
        principal TEXT NOT NULL,
        name TEXT NOT NULL,
        started_at INTEGER NOT NULL
    ) STRICT",
    "CREATE INDEX build_by_time ON build (principal, started_at)",
    "CREATE TABLE approval (
        package TEXT PRIMARY KEY,
        pattern TEXT NOT NULL,
        principal TEXT NOT NULL,
        environment TEXT NOT NULL,
        asked_at INTEGER NOT NULL,
        approved_at INTEGER,
        approved_by TEXT
    ) STRICT, WITHOUT ROWID",
];

/// Brings the file to the newest version, whichever of several servers comes first.
///
/// # Errors
///
/// [`StoreError`]; the file is as it was.
pub(super) async fn migrate(pool: &SqlitePool) -> Result<(), StoreError> {
    let mut change = pool.begin_with("BEGIN IMMEDIATE").await?;
    let found: i64 = sqlx::query_scalar("PRAGMA user_version")
        .fetch_one(&mut *change)
        .await?;
    let known = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(StoreError::Newer { found, known });
    }
    let made = usize::try_from(found)
        .map_err(|_| StoreError::Damaged(format!("its version is {found}")))?;
    for statement in STEPS.iter().skip(made).flat_map(|step| step.iter()) {
        sqlx::query(*statement).execute(&mut *change).await?;
    }
    if found < known {
        // A PRAGMA takes no parameters; this one is a number of ours.
        let statement = sqlx::AssertSqlSafe(format!("PRAGMA user_version = {known}"));
        sqlx::query(statement).execute(&mut *change).await?;
    }
    change.commit().await?;
    Ok(())
}
