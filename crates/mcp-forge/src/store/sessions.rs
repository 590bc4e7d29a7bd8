//! Sessions as they are kept: taken by a server, lost with a reason, listed, forgotten.

use serde_json::Value;
use sqlx::{SqliteConnection, sqlite::SqliteRow};

use super::{Documentation, Opened, Store, StoreError, column, document, now_ms};
use crate::names::{Principal, SessionId, SessionName};

/// What the store knows of one session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRecord {
    /// Its name.
    pub name: SessionName,
    /// When it was first asked for, in milliseconds since 1970.
    pub created_ms: i64,
    /// When it was last asked to run code.
    pub used_ms: i64,
    /// Counts the interpreters that it has had. From 1 on.
    pub generation: u64,
    /// Whether there is an interpreter, and where.
    pub life: Life,
    /// Why the interpreter before this one, or the last one, is gone.
    pub lost_reason: Option<String>,
    /// What its user wrote about it.
    pub documentation: Documentation,
    /// What the interpreter held when it was last asked, as the session wrote it down.
    pub known: Option<Value>,
    /// When that was.
    pub known_ms: Option<i64>,
    /// Under which name the packages are found that its interpreter starts with.
    pub packages: Option<String>,
}

/// Whether a session has an interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Life {
    /// In this process.
    Here,
    /// In another living server process.
    Elsewhere {
        /// That process.
        pid: i64,
    },
    /// Nowhere: the next call starts one, after the loss was told.
    Lost,
}

/// What came of asking for a session.
#[derive(Debug, Clone, PartialEq)]
pub enum Claim {
    /// It is ours; an interpreter is to be started for this generation.
    Taken {
        /// What is known of it.
        record: Box<SessionRecord>,
        /// Whether it was made just now.
        is_new: bool,
    },
    /// Its interpreter was lost, and nobody was told so yet. Now somebody is: the next claim takes it.
    Lost(Box<SessionRecord>),
    /// It lives in another server.
    Elsewhere {
        /// That process.
        pid: i64,
    },
}

/// What came of forgetting a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// It is gone from the store.
    Yes,
    /// There was none.
    Unknown,
    /// It lives in another server.
    Elsewhere {
        /// That process.
        pid: i64,
    },
}

impl Store {
    /// Asks for a session, to run an interpreter for it in this process. Makes it if there is none.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the session is as it was.
    pub async fn claim(&self, name: &SessionName) -> Result<Claim, StoreError> {
        let opened = self.opened().await?;
        let mut change = opened.pool.begin_with("BEGIN IMMEDIATE").await?;
        notice_dead_owner(opened, &mut change, name).await?;
        let claim = match load(opened, &mut change, name).await? {
            None => {
                insert(&mut change, name, opened.owner.id()).await?;
                let record = load(opened, &mut change, name).await?;
                Claim::Taken {
                    record: Box::new(record.ok_or_else(vanished)?.0),
                    is_new: true,
                }
            }
            Some((record, is_told)) => match record.life {
                Life::Elsewhere { pid } => Claim::Elsewhere { pid },
                // Its task failed without a word. That is a loss like any other.
                Life::Here => {
                    let reason = "the server's task for it failed";
                    set_lost(&mut change, name, opened.owner.id(), reason, true).await?;
                    let record = load(opened, &mut change, name).await?;
                    Claim::Lost(Box::new(record.ok_or_else(vanished)?.0))
                }
                Life::Lost if !is_told => {
                    tell(&mut change, name).await?;
                    Claim::Lost(Box::new(record))
                }
                Life::Lost => {
                    take(&mut change, name, opened.owner.id()).await?;
                    let life = Life::Here;
                    Claim::Taken {
                        record: Box::new(SessionRecord { life, ..record }),
                        is_new: false,
                    }
                }
            },
        };
        change.commit().await?;
        Ok(claim)
    }

    /// Writes down that this process's interpreter of a session is gone, and why. The generation
    /// that follows is numbered at once. Nothing happens if the session is not this process's.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. Should this process end, the loss is noticed all the same.
    pub async fn lose(
        &self,
        name: &SessionName,
        reason: &str,
        is_told: bool,
    ) -> Result<(), StoreError> {
        let opened = self.opened().await?;
        let mut change = opened.pool.begin_with("BEGIN IMMEDIATE").await?;
        set_lost(&mut change, name, opened.owner.id(), reason, is_told).await?;
        change.commit().await?;
        Ok(())
    }

    /// Gives back a claim whose interpreter never came to be: the session is as before the claim.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn give_back(&self, name: &SessionName, is_new: bool) -> Result<(), StoreError> {
        let opened = self.opened().await?;
        let statement = if is_new {
            "DELETE FROM session WHERE principal = ? AND id = ? AND owner = ?"
        } else {
            "UPDATE session SET owner = NULL WHERE principal = ? AND id = ? AND owner = ?"
        };
        sqlx::query(statement)
            .bind(name.principal.as_str())
            .bind(name.id.as_str())
            .bind(opened.owner.id())
            .execute(&opened.pool)
            .await?;
        Ok(())
    }

    /// Notes under which name the packages are found that this process's interpreter of a session
    /// started with.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn set_packages(
        &self,
        name: &SessionName,
        label: Option<&str>,
    ) -> Result<(), StoreError> {
        let opened = self.opened().await?;
        sqlx::query(
            "UPDATE session SET packages = ? WHERE principal = ? AND id = ? AND owner = ? AND packages IS NOT ?",
        )
        .bind(label)
        .bind(name.principal.as_str())
        .bind(name.id.as_str())
        .bind(opened.owner.id())
        .bind(label)
        .execute(&opened.pool)
        .await?;
        Ok(())
    }

    /// That name, if there is the session and it has one.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn packages_of(&self, name: &SessionName) -> Result<Option<String>, StoreError> {
        let found: Option<Option<String>> =
            sqlx::query_scalar("SELECT packages FROM session WHERE principal = ? AND id = ?")
                .bind(name.principal.as_str())
                .bind(name.id.as_str())
                .fetch_optional(&self.opened().await?.pool)
                .await?;
        Ok(found.flatten())
    }

    /// Keeps what this process's interpreter of a session holds.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn know(&self, name: &SessionName, known: &Value) -> Result<(), StoreError> {
        let opened = self.opened().await?;
        sqlx::query(
            "UPDATE session SET known = ?, known_at = ? WHERE principal = ? AND id = ? AND owner = ?",
        )
        .bind(known.to_string())
        .bind(now_ms())
        .bind(name.principal.as_str())
        .bind(name.id.as_str())
        .bind(opened.owner.id())
        .execute(&opened.pool)
        .await?;
        Ok(())
    }

    /// What there is to know of a session. A server that died since is noticed.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn session(&self, name: &SessionName) -> Result<Option<SessionRecord>, StoreError> {
        let opened = self.opened().await?;
        let mut reader = opened.pool.acquire().await?;
        Ok(load(opened, &mut reader, name)
            .await?
            .map(|(record, _)| record))
    }

    /// All sessions of a principal, the most recently used first.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub async fn sessions(&self, principal: &Principal) -> Result<Vec<SessionRecord>, StoreError> {
        let opened = self.opened().await?;
        let rows = sqlx::query(
            "SELECT session.*, server.pid FROM session LEFT JOIN server ON server.id = session.owner
             WHERE principal = ? ORDER BY used_at DESC, session.id LIMIT 10000",
        )
        .bind(principal.as_str())
        .fetch_all(&opened.pool)
        .await?;
        rows.iter().map(|row| Ok(record(opened, row)?.0)).collect()
    }

    /// Forgets a session: its row, documentation and history.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; nothing is forgotten.
    pub async fn forget(&self, name: &SessionName) -> Result<Forgotten, StoreError> {
        let opened = self.opened().await?;
        let mut change = opened.pool.begin_with("BEGIN IMMEDIATE").await?;
        let Some((record, _)) = load(opened, &mut change, name).await? else {
            return Ok(Forgotten::Unknown);
        };
        if let Life::Elsewhere { pid } = record.life {
            return Ok(Forgotten::Elsewhere { pid });
        }
        sqlx::query("DELETE FROM session WHERE principal = ? AND id = ?")
            .bind(name.principal.as_str())
            .bind(name.id.as_str())
            .execute(&mut *change)
            .await?;
        change.commit().await?;
        Ok(Forgotten::Yes)
    }

    /// Forgets sessions that no server runs and nobody used since a time, and what dead servers
    /// left. Returns the names of those that are gone.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; nothing is forgotten.
    pub async fn forget_unused(&self, before_ms: i64) -> Result<Vec<SessionName>, StoreError> {
        let opened = self.opened().await?;
        let mut change = opened.pool.begin_with("BEGIN IMMEDIATE").await?;
        opened.owner.forget_dead(&mut change).await?;
        let rows = sqlx::query(
            "SELECT session.*, server.pid FROM session LEFT JOIN server ON server.id = session.owner
             WHERE used_at < ?",
        )
        .bind(before_ms)
        .fetch_all(&mut *change)
        .await?;
        let mut gone = Vec::new();
        for row in &rows {
            let (record, _) = record(opened, row)?;
            if record.life != Life::Lost {
                continue;
            }
            sqlx::query("DELETE FROM session WHERE principal = ? AND id = ?")
                .bind(record.name.principal.as_str())
                .bind(record.name.id.as_str())
                .execute(&mut *change)
                .await?;
            gone.push(record.name);
        }
        change.commit().await?;
        Ok(gone)
    }
}

async fn load(
    opened: &Opened,
    reader: &mut SqliteConnection,
    name: &SessionName,
) -> Result<Option<(SessionRecord, bool)>, StoreError> {
    let row = sqlx::query(
        "SELECT session.*, server.pid FROM session LEFT JOIN server ON server.id = session.owner
         WHERE principal = ? AND session.id = ?",
    )
    .bind(name.principal.as_str())
    .bind(name.id.as_str())
    .fetch_optional(reader)
    .await?;
    row.map(|row| record(opened, &row)).transpose()
}

/// A row as a record, and whether its loss was told.
fn record(opened: &Opened, row: &SqliteRow) -> Result<(SessionRecord, bool), StoreError> {
    let damaged = |what: &str| StoreError::Damaged(format!("a session's {what}"));
    let id: String = column(row, "id")?;
    let owner: Option<String> = column(row, "owner")?;
    let pid: Option<i64> = column(row, "pid")?;
    let life = match owner.as_deref() {
        Some(owner) if owner == opened.owner.id() => Life::Here,
        Some(owner) if opened.owner.is_alive(owner) => Life::Elsewhere {
            pid: pid.unwrap_or_default(),
        },
        _ => Life::Lost,
    };
    let mut lost_reason: Option<String> = column(row, "lost_reason")?;
    let mut generation: i64 = column(row, "generation")?;
    let mut is_told: bool = column(row, "loss_is_told")?;
    if owner.is_some() && life == Life::Lost {
        // Nobody wrote it down yet; the next claim does.
        lost_reason = Some(dead_reason(pid));
        generation += 1;
        is_told = false;
    }
    let known: Option<String> = column(row, "known")?;
    let record = SessionRecord {
        name: SessionName {
            principal: Principal::named(column::<String>(row, "principal")?),
            id: SessionId::parse(&id).map_err(|_| damaged("name"))?,
        },
        created_ms: column(row, "created_at")?,
        used_ms: column(row, "used_at")?,
        generation: u64::try_from(generation).map_err(|_| damaged("generation"))?,
        life,
        lost_reason,
        documentation: document::read(row)?,
        known: known
            .map(|known| serde_json::from_str(&known))
            .transpose()
            .map_err(|_| damaged("last known state"))?,
        known_ms: column(row, "known_at")?,
        packages: column(row, "packages")?,
    };
    Ok((record, is_told))
}

fn dead_reason(pid: Option<i64>) -> String {
    let who = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
    format!("the server{who} that ran it ended")
}

/// Turns the death of an owner into a loss.
async fn notice_dead_owner(
    opened: &Opened,
    change: &mut SqliteConnection,
    name: &SessionName,
) -> Result<(), StoreError> {
    let owned: Option<(String, Option<i64>)> = sqlx::query_as(
        "SELECT owner, server.pid FROM session LEFT JOIN server ON server.id = session.owner
         WHERE principal = ? AND session.id = ? AND owner IS NOT NULL",
    )
    .bind(name.principal.as_str())
    .bind(name.id.as_str())
    .fetch_optional(&mut *change)
    .await?;
    match owned {
        Some((owner, pid)) if !opened.owner.is_alive(&owner) => {
            set_lost(change, name, &owner, &dead_reason(pid), false).await
        }
        _ => Ok(()),
    }
}

async fn insert(
    change: &mut SqliteConnection,
    name: &SessionName,
    owner: &str,
) -> Result<(), StoreError> {
    let now = now_ms();
    sqlx::query(
        "INSERT INTO session (principal, id, created_at, used_at, generation, owner) VALUES (?, ?, ?, ?, 1, ?)",
    )
    .bind(name.principal.as_str())
    .bind(name.id.as_str())
    .bind(now)
    .bind(now)
    .bind(owner)
    .execute(change)
    .await?;
    Ok(())
}

async fn take(
    change: &mut SqliteConnection,
    name: &SessionName,
    owner: &str,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE session SET owner = ?, used_at = ? WHERE principal = ? AND id = ?")
        .bind(owner)
        .bind(now_ms())
        .bind(name.principal.as_str())
        .bind(name.id.as_str())
        .execute(change)
        .await?;
    Ok(())
}

async fn tell(change: &mut SqliteConnection, name: &SessionName) -> Result<(), StoreError> {
    sqlx::query("UPDATE session SET loss_is_told = 1 WHERE principal = ? AND id = ?")
        .bind(name.principal.as_str())
        .bind(name.id.as_str())
        .execute(change)
        .await?;
    Ok(())
}

async fn set_lost(
    change: &mut SqliteConnection,
    name: &SessionName,
    owner: &str,
    reason: &str,
    is_told: bool,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE session SET owner = NULL, lost_reason = ?, loss_is_told = ?, generation = generation + 1
         WHERE principal = ? AND id = ? AND owner = ?",
    )
    .bind(reason)
    .bind(is_told)
    .bind(name.principal.as_str())
    .bind(name.id.as_str())
    .bind(owner)
    .execute(&mut *change)
    .await?;
    // A turn that had begun has ended with it.
    sqlx::query(
        "UPDATE execution SET outcome = 'session_lost', ended_at = ?
         WHERE principal = ? AND session_id = ? AND outcome IS NULL",
    )
    .bind(now_ms())
    .bind(name.principal.as_str())
    .bind(name.id.as_str())
    .execute(change)
    .await?;
    Ok(())
}

fn vanished() -> StoreError {
    StoreError::Damaged("a session vanished while it was taken".to_owned())
}
