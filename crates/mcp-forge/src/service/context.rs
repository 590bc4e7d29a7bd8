//! What programs keep about a session beside it: a JSON value of their own, with a version and an end.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    Service, ServiceError,
    fields::{Fields, rejected},
    request::parse_session_id,
};
use crate::{
    audit::fields,
    names::{Principal, SESSION_ID_PATTERN, SessionName},
    session::SessionError,
    store::{ContextChange, StoreError, now_ms},
};

/// Largest state, in bytes of JSON.
const MAX_STATE_BYTES: usize = 256 << 10;

/// States that one principal may keep.
const MAX_STATES: i64 = 1_000;

/// Longest life of a state, in seconds, and the life of one that names none: 30 days.
const MAX_TTL: f64 = 366.0 * 86_400.0;
const DEFAULT_TTL: f64 = 30.0 * 86_400.0;

/// A state to keep.
#[derive(Debug, Clone, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ContextRequest {
    /// What it is kept for: the name of a session, whether there is one or not.
    #[schemars(regex(pattern = SESSION_ID_PATTERN))]
    pub session_id: String,
    /// Any JSON, at most 256 KiB.
    pub state: Value,
    /// Write only if this is the version that there is; 0 if there is to be none. Default: write in any case.
    pub version: Option<i64>,
    /// Seconds after which it is forgotten. Default: 30 days.
    #[schemars(range(min = 0.001, max = MAX_TTL))]
    pub ttl: Option<f64>,
}

/// A state that was kept.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ContextKept {
    /// What it is kept for.
    pub session_id: String,
    /// Counts the writings.
    pub version: i64,
    /// When it is forgotten; RFC 3339.
    pub expires_at: Option<String>,
}

/// A state as it is kept.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ContextView {
    /// What it is kept for.
    pub session_id: String,
    /// As it was written.
    pub state: Value,
    /// Counts the writings.
    pub version: i64,
    /// RFC 3339.
    pub updated_at: String,
    /// When it is forgotten; RFC 3339.
    pub expires_at: Option<String>,
}

impl ContextRequest {
    /// Reads a request from JSON.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Rejected`]; nothing has happened.
    pub fn from_json(mut parameters: Map<String, Value>) -> Result<Self, ServiceError> {
        // `null` is a state as well.
        let state = parameters
            .remove("state")
            .ok_or_else(|| rejected("state", "`state` is missing; pass the JSON to keep."))?;
        let mut fields = Fields::new("", parameters);
        let session_id = fields.take("session_id", "the session's name, a string")?;
        let request = Self {
            session_id: session_id.ok_or_else(|| {
                rejected(
                    "session_id",
                    "`session_id` is missing; pass the session's name.",
                )
            })?,
            state,
            version: fields.take(
                "version",
                "a whole number: the version that is to be replaced",
            )?,
            ttl: fields.take("ttl", "a number of seconds, for example 3600")?,
        };
        fields.finish("parameter")?;
        Ok(request)
    }
}

impl Service {
    /// Keeps a state.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; what was kept before is still there.
    pub async fn put_context(
        &self,
        principal: &Principal,
        request: ContextRequest,
    ) -> Result<ContextKept, ServiceError> {
        let name = named(principal, &request.session_id)?;
        let state = request.state.to_string();
        if state.len() > MAX_STATE_BYTES {
            let message = format!(
                "`state` has {} bytes, more than the maximum of {MAX_STATE_BYTES}; keep less, or write it to a file in the session.",
                state.len()
            );
            return Err(rejected("state", message));
        }
        let ttl = request.ttl.unwrap_or(DEFAULT_TTL);
        if !(0.001..=MAX_TTL).contains(&ttl) {
            let message = format!("`ttl` is {ttl}; pass a number of seconds up to {MAX_TTL}.");
            return Err(rejected("ttl", message));
        }
        #[expect(clippy::cast_possible_truncation, reason = "within a year")]
        let expires_ms = now_ms() + (ttl * 1000.0) as i64;
        self.audit.record(
            "context.put",
            fields(json!({
                "principal": principal, "session_id": request.session_id, "bytes": state.len(),
            })),
        )?;
        let value = (state.as_str(), Some(expires_ms));
        let put = self
            .sessions
            .store()
            .put_context(&name, value, request.version, MAX_STATES);
        let version = changed(&name, &put.await.map_err(failed)?)?;
        Ok(ContextKept {
            session_id: name.id.to_string(),
            version,
            expires_at: Some(shown(expires_ms)),
        })
    }

    /// A kept state.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NoContext`], or the store failed.
    pub async fn context(
        &self,
        principal: &Principal,
        session_id: &str,
    ) -> Result<ContextView, ServiceError> {
        let name = named(principal, session_id)?;
        let found = self.sessions.store().context(&name).await.map_err(failed)?;
        let found = found.ok_or_else(|| ServiceError::NoContext(session_id.to_owned()))?;
        let damaged = |_: serde_json::Error| failed(StoreError::Damaged("a kept state".to_owned()));
        Ok(ContextView {
            session_id: name.id.to_string(),
            state: serde_json::from_str(&found.state).map_err(damaged)?,
            version: found.version,
            updated_at: shown(found.updated_ms),
            expires_at: found.expires_ms.map(shown),
        })
    }

    /// Removes a kept state; with a version only if that is the one that there is.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NoContext`], [`ServiceError::ContextVersion`], or the store failed.
    pub async fn remove_context(
        &self,
        principal: &Principal,
        session_id: &str,
        version: Option<i64>,
    ) -> Result<(), ServiceError> {
        let name = named(principal, session_id)?;
        self.audit.record(
            "context.remove",
            fields(json!({
                "principal": principal, "session_id": session_id,
            })),
        )?;
        let removed = self.sessions.store().remove_context(&name, version).await;
        match removed.map_err(failed)? {
            ContextChange::Version(0) => Err(ServiceError::NoContext(session_id.to_owned())),
            change => changed(&name, &change).map(|_| ()),
        }
    }
}

fn changed(name: &SessionName, change: &ContextChange) -> Result<i64, ServiceError> {
    match change {
        ContextChange::Done(version) => Ok(*version),
        ContextChange::Version(version) => Err(ServiceError::ContextVersion {
            session_id: name.id.to_string(),
            version: *version,
        }),
        ContextChange::Full => Err(ServiceError::TooManyContexts(MAX_STATES)),
    }
}

fn named(principal: &Principal, session_id: &str) -> Result<SessionName, ServiceError> {
    Ok(SessionName {
        principal: principal.clone(),
        id: parse_session_id(session_id)?,
    })
}

fn failed(error: StoreError) -> ServiceError {
    ServiceError::Session(SessionError::Store(error))
}

fn shown(milliseconds: i64) -> String {
    jiff::Timestamp::from_millisecond(milliseconds)
        .map(|time| time.to_string())
        .unwrap_or_default()
}
