//! What a caller may ask of sessions: run code in one, write about it, look at it, end or fork it.

use std::{collections::BTreeMap, sync::Arc};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use super::{
    ExecuteResponse, Service, ServiceError,
    fields::{Fields, rejected},
    records::AuditedTools,
    request::{Checked, CheckedSession, mint_session_id, parse_session_id},
    response,
};
use crate::{
    engine::Isolation,
    environments::Selection,
    names::{Principal, SessionId, SessionName},
    session::{
        Answer, Changed, FileContent, SessionError, SessionState, SessionSummary, SessionTurn,
    },
    store::Documentation,
    telemetry::spans,
    text::quoted,
    turn::Observer,
};

/// Bytes of a documented variable's name, of a description, and of a note.
const MAX_NAME_BYTES: usize = 256;
const MAX_DESCRIPTION_BYTES: usize = 4 << 10;
const MAX_NOTE_BYTES: usize = 16 << 10;

/// Other sessions that one reply warns of.
const MAX_NOTICES: usize = 5;

/// The parameters of the MCP tool `document_state`.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct DocumentRequest {
    /// The session to document.
    pub session_id: String,
    /// Variable name to description. Added to what is documented already.
    pub variables: BTreeMap<String, String>,
    /// About the session as a whole: what is done, what comes next. Replaces the last note.
    pub note: Option<String>,
    /// Drop what was documented before.
    pub clear: Option<bool>,
}

/// The answer to [`DocumentRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DocumentResponse {
    /// Always true.
    pub success: bool,
    /// Variables that are documented now.
    pub documented_count: usize,
    /// The session.
    pub session_id: String,
}

/// The answer to a fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ForkResponse {
    /// Always true.
    pub success: bool,
    /// The new session.
    pub session_id: String,
    /// The session that it is a copy of.
    pub forked_from: String,
}

impl DocumentRequest {
    /// Reads a request from JSON.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Rejected`]; nothing has happened.
    pub fn from_json(parameters: Map<String, Value>) -> Result<Self, ServiceError> {
        let mut fields = Fields::new("", parameters);
        let session_id = fields.take("session_id", "the session's name, a string")?;
        let variables: Option<BTreeMap<String, String>> = fields.take(
            "variables",
            "an object of descriptions, for example {\"df\": \"Sales of 2024, cleaned\"}",
        )?;
        let request = Self {
            session_id: session_id.ok_or_else(|| {
                rejected("session_id", "`session_id` is missing; pass the session's name.")
            })?,
            variables: variables.ok_or_else(|| {
                rejected(
                    "variables",
                    "`variables` is missing; pass an object of names and descriptions, {} for none.",
                )
            })?,
            note: fields.take("note", "a string")?,
            clear: fields.take("clear", "true or false")?,
        };
        fields.finish("parameter")?;
        Ok(request)
    }

    fn check(self) -> Result<(SessionId, Documentation, bool), ServiceError> {
        let id = parse_session_id(&self.session_id)?;
        for (name, description) in &self.variables {
            for (what, text, most) in [
                ("a name", name, MAX_NAME_BYTES),
                ("a description", description, MAX_DESCRIPTION_BYTES),
            ] {
                if text.len() > most {
                    let message = format!(
                        "`variables` has {what} of {} bytes, {}, more than the maximum of {most}; shorten it.",
                        text.len(),
                        quoted(text)
                    );
                    return Err(rejected("variables", message));
                }
            }
        }
        let note = self.note.unwrap_or_default();
        if note.len() > MAX_NOTE_BYTES {
            let message = format!(
                "`note` has {} bytes, more than the maximum of {MAX_NOTE_BYTES}; shorten it, or write it to a file in /workspace.",
                note.len()
            );
            return Err(rejected("note", message));
        }
        let documentation = Documentation {
            variables: self.variables,
            note,
            updated_ms: None,
        };
        Ok((id, documentation, self.clear.unwrap_or(false)))
    }
}

impl Service {
    pub(super) async fn run_in_session(
        &self,
        id: &str,
        checked: &Checked,
        (name, session): (&SessionName, &CheckedSession),
        (observer, interrupt): (&mut dyn Observer, CancellationToken),
    ) -> Result<ExecuteResponse, ServiceError> {
        // A template may be built first, which takes minutes.
        let packages = tokio::select! {
            packages = self.packages_for(name, checked, observer) => packages?,
            () = interrupt.cancelled() => {
                return Err(SessionError::Interrupted(name.id.clone()).into());
            }
        };
        let grant = self.bridge.grant(&checked.tools).await?;
        let grant = Arc::new(grant.traced(checked.trace.clone()));
        let (granted, stubs) = (grant.names(), grant.stubs());
        let turn = SessionTurn {
            execution_id: id.to_owned(),
            code: checked.code.clone(),
            stubs,
            tools: Arc::new(AuditedTools {
                tools: grant,
                audit: self.audit.clone(),
                execution_id: id.to_owned(),
                span: Span::current(),
            }),
            limits: checked.limits.clone(),
            has_own_limits: session.has_own_limits,
            volumes: session.volumes.clone(),
            packages,
            has_own_packages: checked.has_own_environment,
            interrupt,
        };
        let answer = Box::pin(self.sessions.turn(name, turn, observer))
            .instrument(spans::session(name.id.as_str()))
            .await?;
        let mut response = match answer {
            Answer::Ran(ran) => {
                let applied = Checked {
                    limits: ran.limits,
                    ..checked.clone()
                };
                let environment = ran.packages.as_deref().and_then(Selection::from_label);
                let mut response = response::assemble(
                    id.to_owned(),
                    &applied,
                    &self.config.max_limits,
                    granted,
                    (ran.report, ran.isolation),
                );
                let more = (ran.session, ran.between, ran.files);
                response::add_session(&mut response, &name.id, more);
                if let Some(selection) = environment {
                    response.environment = selection.name().to_string();
                }
                response
            }
            Answer::Lost(view) => {
                let isolation = Isolation {
                    engine: self.engine.name().to_owned(),
                    profile: self.config.profile.name().to_owned(),
                    layers: Vec::new(),
                    limits: Vec::new(),
                };
                response::session_lost(id.to_owned(), checked, (&name.id, view), isolation)
            }
        };
        response.notices = self.notices(&name.principal, Some(name));
        Ok(response)
    }

    /// Sentences about a principal's sessions that end soon.
    pub fn notices(&self, principal: &Principal, but: Option<&SessionName>) -> Vec<String> {
        let expiring = self.sessions.expiring(principal, but);
        let soon = expiring.iter().take(MAX_NOTICES).map(|session| {
            format!(
                "Session `{}` is idle and ends in {} s; run anything in it to keep it.",
                session.session_id,
                session.after.as_secs()
            )
        });
        soon.collect()
    }

    /// Writes about a session's variables, for whoever comes back to it.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; what was written before stands.
    pub async fn document_state(
        &self,
        principal: &Principal,
        request: DocumentRequest,
    ) -> Result<DocumentResponse, ServiceError> {
        let (id, documentation, clear) = request.check()?;
        let name = named(principal, id);
        let documented_count = self.sessions.document(&name, documentation, clear).await?;
        Ok(DocumentResponse {
            success: true,
            documented_count,
            session_id: name.id.to_string(),
        })
    }

    /// A principal's sessions, the most recently used first.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Session`].
    pub async fn list_sessions(
        &self,
        principal: &Principal,
    ) -> Result<Vec<SessionSummary>, ServiceError> {
        Ok(self.sessions.list(principal).await?)
    }

    /// All that is known of a session.
    ///
    /// # Errors
    ///
    /// [`ServiceError`].
    pub async fn session_state(
        &self,
        principal: &Principal,
        session_id: &str,
    ) -> Result<SessionState, ServiceError> {
        let name = named(principal, parse_session_id(session_id)?);
        Ok(self.sessions.state(&name).await?)
    }

    /// Ends a session and forgets all of it, files included.
    ///
    /// # Errors
    ///
    /// [`ServiceError`].
    pub async fn delete_session(
        &self,
        principal: &Principal,
        session_id: &str,
    ) -> Result<(), ServiceError> {
        let name = named(principal, parse_session_id(session_id)?);
        Ok(self.sessions.delete(&name).await?)
    }

    /// Copies a live session into a new one; its name is made up if none is given.
    ///
    /// # Errors
    ///
    /// [`ServiceError`]; the session goes on as before.
    pub async fn fork_session(
        &self,
        principal: &Principal,
        session_id: &str,
        new_session_id: Option<&str>,
    ) -> Result<ForkResponse, ServiceError> {
        let name = named(principal, parse_session_id(session_id)?);
        let new = match new_session_id {
            None | Some("new") => mint_session_id()?,
            Some(id) => parse_session_id(id)?,
        };
        let new = named(principal, new);
        self.may_use_cpu(principal)?;
        self.sessions.fork(&name, &new).await?;
        Ok(ForkResponse {
            success: true,
            session_id: new.id.to_string(),
            forked_from: name.id.to_string(),
        })
    }

    /// Reads a file of a session's `/workspace`.
    ///
    /// # Errors
    ///
    /// [`ServiceError`].
    pub async fn session_file(
        &self,
        principal: &Principal,
        session_id: &str,
        path: &str,
    ) -> Result<FileContent, ServiceError> {
        let name = named(principal, parse_session_id(session_id)?);
        Ok(self.sessions.file(&name, path).await?)
    }

    /// How many sessions have an interpreter in this process.
    pub fn live_sessions(&self) -> usize {
        self.sessions.live()
    }

    /// Hears of changes to sessions from now on, everybody's: the listener chooses.
    pub fn session_changes(&self) -> broadcast::Receiver<Changed> {
        self.sessions.changes()
    }
}

fn named(principal: &Principal, id: SessionId) -> SessionName {
    SessionName {
        principal: principal.clone(),
        id,
    }
}
