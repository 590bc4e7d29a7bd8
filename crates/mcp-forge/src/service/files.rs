//! Files that a caller puts into a session, or removes from it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::json;

use super::{Service, ServiceError, SpawnRequest, request::parse_session_id};
use crate::{
    audit::fields,
    names::{Principal, SessionName},
    session::{Incoming, Placed, SessionError},
    text::clipped,
    turn::{Observer, Stream},
};

/// Files of one principal that may be on their way at the same time: each takes room on the disk.
const MOST_AT_ONCE: usize = 4;

/// A session may end between its start and the change of its files, which then did not happen.
const ATTEMPTS: usize = 3;

/// Who sends files now.
#[derive(Debug, Default)]
pub(super) struct Uploads(Arc<Mutex<HashMap<Principal, usize>>>);

/// A file on its way, and its place among those of its principal.
#[derive(Debug)]
pub struct Upload {
    incoming: Incoming,
}

impl Upload {
    /// Refuses a file that will have so many bytes, if those are too many.
    ///
    /// # Errors
    ///
    /// [`SessionError::TooLarge`].
    pub fn expect(&self, bytes: u64) -> Result<(), ServiceError> {
        Ok(self.incoming.expect(bytes)?)
    }

    /// Adds to its end.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Session`]: it is too large, or the disk refuses. The file is of no use any more.
    pub async fn push(&mut self, piece: &[u8]) -> Result<(), ServiceError> {
        Ok(self.incoming.push(piece).await?)
    }
}

impl Service {
    /// Begins to take a file for a session of a principal's, which need not be there yet.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; nothing has happened.
    pub async fn begin_upload(
        &self,
        principal: &Principal,
        session_id: &str,
        path: &str,
    ) -> Result<Upload, ServiceError> {
        let name = SessionName {
            principal: principal.clone(),
            id: parse_session_id(session_id)?,
        };
        let place = self.uploads.take(principal)?;
        // What no sandbox could hold is not even taken.
        let most = self.config.max_limits.directory_bytes();
        let most = most.min(self.config.volumes.session_quota);
        let held = (most, Arc::new(place) as Arc<_>);
        let incoming = self.sessions.receive(name, path, held).await?;
        Ok(Upload { incoming })
    }

    /// Puts a whole file into its session, which is started if it does not live.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; the session's files are as they were.
    pub async fn finish_upload(
        &self,
        upload: Upload,
        replace: bool,
    ) -> Result<Placed, ServiceError> {
        let mut incoming = upload.incoming;
        let name = incoming.name().clone();
        self.audit.record(
            "session.file_put",
            fields(json!({
                "session_id": name.id,
                "principal": name.principal,
                "path": clipped(incoming.path()),
                "bytes": incoming.size(),
            })),
        )?;
        let mut attempts = 1..ATTEMPTS;
        loop {
            self.revive(&name).await?;
            match self.sessions.put(&mut incoming, replace).await {
                Err(SessionError::NotLive(_)) if attempts.next().is_some() => {}
                placed => return Ok(placed?),
            }
        }
    }

    /// Removes a file of a session's `/workspace`. The session is started if it does not live.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; the session's files are as they were.
    pub async fn remove_file(
        &self,
        principal: &Principal,
        session_id: &str,
        path: &str,
    ) -> Result<(), ServiceError> {
        let name = SessionName {
            principal: principal.clone(),
            id: parse_session_id(session_id)?,
        };
        self.sessions.check_file(&name, path).await?;
        self.audit.record(
            "session.file_removed",
            fields(json!({
                "session_id": name.id,
                "principal": name.principal,
                "path": clipped(path),
            })),
        )?;
        let mut attempts = 1..ATTEMPTS;
        loop {
            self.revive(&name).await?;
            match self.sessions.remove_file(&name, path).await {
                Err(SessionError::NotLive(_)) if attempts.next().is_some() => {}
                removed => return Ok(removed?),
            }
        }
    }

    /// Its task owns a session's files: one that does not live is started, with what it had.
    async fn revive(&self, name: &SessionName) -> Result<(), ServiceError> {
        if self.sessions.is_live(name) {
            return Ok(());
        }
        let request = SpawnRequest {
            session_id: Some(name.id.to_string()),
            ..SpawnRequest::default()
        };
        let begun = self.spawn(&name.principal, request, &mut Unheard).await?;
        if begun.success {
            return Ok(());
        }
        // That an interpreter was lost before is told once, and it is this caller who is told.
        let lost = begun.session.and_then(|session| session.lost_reason);
        Err(ServiceError::Session(SessionError::Ended {
            id: name.id.clone(),
            reason: lost.unwrap_or_else(|| "it could not be started".to_owned()),
        }))
    }
}

impl Uploads {
    fn take(&self, principal: &Principal) -> Result<Place, ServiceError> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = all.entry(principal.clone()).or_default();
        if *mine >= MOST_AT_ONCE {
            return Err(ServiceError::TooManyUploads(MOST_AT_ONCE));
        }
        *mine += 1;
        Ok(Place(Arc::clone(&self.0), principal.clone()))
    }
}

#[derive(Debug)]
struct Place(Arc<Mutex<HashMap<Principal, usize>>>, Principal);

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mine) = all.get_mut(&self.1) {
            *mine -= 1;
            if *mine == 0 {
                all.remove(&self.1);
            }
        }
    }
}

/// Nothing is heard of a start.
struct Unheard;

impl Observer for Unheard {
    fn output(&mut self, _: Stream, _: &str) {}
}
