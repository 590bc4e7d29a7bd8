//! How a session gets its interpreter: claimed in the store, started, and given its files back.

use std::{pin::Pin, sync::Arc, time::Duration};

use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::json;
use tokio::{sync::oneshot, time::Sleep};

use super::{
    Packages, SessionError,
    keep::{CopyError, Keep},
    known::{self, Known},
    look::Look,
    task::Task,
    volumes::Volume,
};
use crate::{
    audit::{Pending, fields},
    engine::{Isolation, Purpose, Sandbox, SandboxSpec},
    limits::{Limits, LimitsView},
    names::SessionName,
    runner::{
        ProtocolError,
        wire::{Event, FileState, InspectBounds, Request},
    },
    store::Claim,
    turn::{Resident, ResidentError},
};

/// Time for a listing of files.
const LIST_LIMIT: Duration = Duration::from_secs(5);

/// What a session lives on.
pub(super) struct Live {
    /// None once it is lost.
    pub(super) resident: Option<Resident>,
    pub(super) generation: u64,
    pub(super) limits: Limits,
    pub(super) packages: Option<Packages>,
    pub(super) isolation: Isolation,
    pub(super) shell: String,
    pub(super) keep: Keep,
    pub(super) look: Look,
    /// Ends when a turn has run for so long that its beginning is worth a note.
    pub(super) begin_timer: Pin<Box<Sleep>>,
    /// Volumes that are in the sandbox already.
    pub(super) copied: Vec<Volume>,
    /// Told with the first answer.
    pub(super) is_fresh: bool,
    pub(super) warnings: Vec<String>,
    /// The sandbox's end, still to be written.
    pub(super) pending: Pending,
}

/// A timer that every turn sets anew.
fn begin_timer() -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(Duration::ZERO))
}

/// Where a session's interpreter comes from.
pub(super) enum Origin {
    /// A fresh sandbox.
    Store,
    /// A copy of another session's interpreter.
    Copy(Box<Copied>),
}

/// A copy of an interpreter that nobody has talked to.
pub(super) struct Copied {
    pub(super) sandbox: Sandbox,
    pub(super) shell: String,
    pub(super) limits: Limits,
    pub(super) packages: Option<Packages>,
    pub(super) volumes: Vec<Volume>,
    pub(super) known: Known,
    pub(super) ready: Option<oneshot::Sender<Result<(), SessionError>>>,
    pub(super) parent: SessionName,
}

/// What came of opening.
pub(super) enum Opened {
    Live(Box<Live>),
    /// Nothing was opened: first the loss is told.
    Lost {
        generation: u64,
        reason: String,
    },
}

impl Live {
    /// After the first answer.
    pub(super) fn tell_once(&mut self) {
        self.is_fresh = false;
        self.warnings.clear();
    }

    /// A copy's beginnings.
    pub(super) fn copy(&self, sandbox: Sandbox, known: Known, parent: &SessionName) -> Copied {
        Copied {
            sandbox,
            shell: self.shell.clone(),
            limits: self.limits.clone(),
            packages: self.packages.clone(),
            volumes: self.copied.clone(),
            known,
            ready: None,
            parent: parent.clone(),
        }
    }
}

impl Task {
    /// Takes the session in the store and starts its interpreter.
    ///
    /// # Errors
    ///
    /// [`SessionError`]: the session is as it was before.
    pub(super) async fn open(
        &mut self,
        origin: Origin,
        limits: Limits,
        (packages, has_own_packages): (Option<Packages>, bool),
    ) -> Result<Opened, SessionError> {
        let (record, is_new) = match self.inner.store.claim(&self.name).await? {
            Claim::Taken { record, is_new } => (record, is_new),
            Claim::Elsewhere { pid } => {
                let id = self.name.id.clone();
                return Err(SessionError::Elsewhere { id, pid });
            }
            Claim::Lost(record) => {
                let reason = record.lost_reason.unwrap_or_default();
                let generation = record.generation;
                return Ok(Opened::Lost { generation, reason });
            }
        };
        let generation = record.generation;
        let is_same = |packages: &Option<Packages>| {
            packages.as_ref().map(|it| &it.label) == record.packages.as_ref()
        };
        if matches!(origin, Origin::Store) && !is_new && !has_own_packages && !is_same(&packages) {
            // It lived when the call was made, and so its packages were not looked for.
            self.inner.store.give_back(&self.name, is_new).await?;
            let id = self.name.id.clone();
            let reason = "make the call again, and it starts with its environment".to_owned();
            return Err(SessionError::Ended { id, reason });
        }
        let opened = match origin {
            Origin::Store => self.start((generation, is_new), limits, packages).await,
            Origin::Copy(copied) if is_new => self.adopt(generation, *copied).await,
            Origin::Copy(_) => Err(SessionError::Exists(self.name.id.clone())),
        };
        match opened {
            Ok(live) => Ok(Opened::Live(Box::new(live))),
            Err(error) => {
                self.inner.store.give_back(&self.name, is_new).await?;
                Err(error)
            }
        }
    }

    async fn start(
        &self,
        (generation, is_new): (u64, bool),
        limits: Limits,
        packages: Option<Packages>,
    ) -> Result<Live, SessionError> {
        let inner = &self.inner;
        let spec = spec(&limits, packages.as_ref())?;
        let pending = self.begin_audit(&spec, generation, is_new, None)?;
        let started = async {
            let mut sandbox = inner.engine.launch(&spec).await?;
            sandbox.guard.charge_to(&self.name.principal);
            let isolation = sandbox.isolation.clone();
            let (resident, shell) = Resident::start(sandbox, inner.settings.caps)
                .await
                .map_err(|(error, ending)| {
                    SessionError::Start(format!("{error} ({:?})", ending.cause))
                })?;
            Ok((resident, isolation, shell))
        };
        let (mut resident, isolation, shell) = match started.await {
            Ok(started) => started,
            Err(error) => {
                return Err(fail(pending, error));
            }
        };
        let restored = self.restore(&mut resident).await;
        let (keep, warnings) = match restored {
            Ok(restored) => restored,
            Err(error) => {
                resident.end(Duration::ZERO).await;
                return Err(fail(pending, error));
            }
        };
        self.inner
            .store
            .set_packages(&self.name, packages.as_ref().map(|it| &*it.label))
            .await?;
        Ok(Live {
            resident: Some(resident),
            generation,
            limits,
            packages,
            isolation,
            shell,
            keep,
            look: Look::default(),
            begin_timer: begin_timer(),
            copied: Vec::new(),
            is_fresh: true,
            warnings,
            pending,
        })
    }

    async fn adopt(&self, generation: u64, copied: Copied) -> Result<Live, SessionError> {
        let Copied {
            sandbox,
            shell,
            limits,
            packages,
            volumes,
            known,
            ready,
            parent,
        } = copied;
        let spec = spec(&limits, packages.as_ref())?;
        let isolation = sandbox.isolation.clone();
        let adopted = async {
            let pending = self.begin_audit(&spec, generation, true, Some(&parent))?;
            let adopted = Resident::adopt(sandbox, self.inner.settings.caps).await;
            match adopted {
                Ok(resident) => Ok((resident, pending)),
                Err((error, _)) => Err(fail(pending, SessionError::Start(error.to_string()))),
            }
        };
        let (resident, pending) = adopted.await?;
        self.inner
            .store
            .set_packages(&self.name, packages.as_ref().map(|it| &*it.label))
            .await?;
        let mut keep = self.open_keep().await?;
        let listing = &known.inspected;
        // Nothing of the copy is on the host yet.
        keep.plan(&listing.files, listing.omitted_files == 0).await;
        self.facts.learn(known);
        if let Some(ready) = ready {
            let _ = ready.send(Ok(()));
        }
        Ok(Live {
            resident: Some(resident),
            generation,
            limits,
            packages,
            isolation,
            shell,
            keep,
            begin_timer: begin_timer(),
            look: Look {
                is_due: true,
                is_unwritten: true,
                written: None,
            },
            copied: volumes,
            is_fresh: false,
            warnings: Vec::new(),
            pending,
        })
    }

    /// Puts the session's files back.
    async fn restore(&self, resident: &mut Resident) -> Result<(Keep, Vec<String>), SessionError> {
        let start = |error: String| SessionError::Start(error);
        let mut keep = self.open_keep().await?;
        let (count, warnings) = match keep.put_back(resident).await {
            Ok(put) => put,
            Err(CopyError::Host(_, error)) => return Err(SessionError::Files(error)),
            Err(error) => return Err(start(error.to_string())),
        };
        if count > 0 {
            let bounds = known::bounds(self.inner.settings.sessions.max_files);
            let files = list_files(resident, &bounds)
                .await
                .map_err(|error| start(error.to_string()))?;
            keep.assume(&files);
            let mut known = Known::default();
            known.inspected.files = files;
            self.facts.learn(known);
        }
        Ok((keep, warnings))
    }

    async fn open_keep(&self) -> Result<Keep, SessionError> {
        let settings = &self.inner.settings;
        Keep::open(
            &settings.data_dir,
            &self.name,
            settings.volumes.session_quota,
            settings.sessions.max_files,
        )
        .await
        .map_err(SessionError::Files)
    }

    fn begin_audit(
        &self,
        spec: &SandboxSpec,
        generation: u64,
        is_new: bool,
        parent: Option<&SessionName>,
    ) -> Result<Pending, SessionError> {
        let event = if is_new {
            "session.created"
        } else {
            "session.started"
        };
        let mut told = fields(json!({
            "session_id": self.name.id,
            "principal": self.name.principal,
            "generation": generation,
        }));
        if let Some(parent) = parent {
            told.insert("forked_from".to_owned(), parent.id.as_str().into());
        }
        self.inner.audit.record(event, told)?;
        let pending = self.inner.audit.begin(
            "sandbox",
            fields(json!({
                "sandbox_id": spec.id,
                "session_id": self.name.id,
                "engine": self.inner.engine.name(),
                "resources": LimitsView::from(&spec.limits),
            })),
        )?;
        Ok(pending)
    }
}

/// The sandbox of a session: named at random, since a session's own name may be in use twice.
pub(super) fn spec(
    limits: &Limits,
    packages: Option<&Packages>,
) -> Result<SandboxSpec, SessionError> {
    let mut bytes = [0_u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(SandboxSpec {
        id: format!("{:032x}", u128::from_be_bytes(bytes)),
        limits: limits.clone(),
        purpose: Purpose::Session,
        environment: packages.map(|packages| Arc::clone(&packages.environment)),
    })
}

/// The files in a sandbox, as its runner tells.
pub(super) async fn list_files(
    resident: &mut Resident,
    bounds: &InspectBounds,
) -> Result<Vec<FileState>, ResidentError> {
    let (files, _) = list_all_files(resident, bounds).await?;
    Ok(files)
}

/// As [`list_files`], and how many there are more.
pub(super) async fn list_all_files(
    resident: &mut Resident,
    bounds: &InspectBounds,
) -> Result<(Vec<FileState>, u64), ResidentError> {
    let request = Request::Inspect {
        bounds: InspectBounds {
            variables: 0,
            ..*bounds
        },
    };
    match resident.ask(&request, LIST_LIMIT).await? {
        Event::Inspected(told) => {
            let told = known::bounded(told, bounds);
            Ok((told.files, told.omitted_files))
        }
        _ => Err(ProtocolError::Unexpected.into()),
    }
}

fn fail(pending: Pending, error: SessionError) -> SessionError {
    let told = fields(json!({"success": false, "error": error.to_string()}));
    match pending.finish(told) {
        Ok(()) => error,
        Err(missing) => missing.into(),
    }
}
