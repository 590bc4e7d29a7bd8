//! Files that a caller puts into a session's workspace, or removes from it, between turns.
//!
//! A file is whole on the host, without a name there, before the session hears of it; in the sandbox it
//! gets its name when it is whole there.

use std::{any::Any, fs::File, io, path::Path, sync::Arc};

use tokio::{sync::oneshot, task::spawn_blocking, time::Instant};

use super::{
    Change, FileView, SessionError, Sessions,
    answer::broken,
    keep::{self, CopyError},
    known::{self, Known},
    notes::{Note, Notes},
    open::Live,
    task::{Message, Task},
    tree::{self, Tree},
    view::file_view,
};
use crate::{
    config::size::show_size,
    names::SessionName,
    runner::{
        ProtocolError,
        wire::{Event, FileState, InspectBounds, Request},
    },
    text::clipped,
    turn::{Resident, ResidentError},
};

/// Bytes that are collected before they are written.
const PIECE_BYTES: usize = 256 << 10;

/// A file on its way: on the host's disk, gone with this.
#[derive(Debug)]
pub struct Incoming {
    pub(super) name: SessionName,
    pub(super) path: String,
    file: Arc<File>,
    collected: Vec<u8>,
    size: u64,
    most: u64,
    held: Held,
}

/// What is held for as long as the file takes room on the disk.
type Held = Arc<dyn Any + Send + Sync>;

/// A file that is there now.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// The file.
    pub file: FileView,
    /// Whether there was none of its name.
    pub is_new: bool,
}

/// What a session's task is asked: a whole file, and its name.
#[derive(Debug)]
pub(super) struct Put {
    pub(super) path: String,
    pub(super) file: Arc<File>,
    pub(super) size: u64,
    /// Whether a file of that name goes.
    pub(super) replace: bool,
    pub(super) reply: oneshot::Sender<Result<Placed, SessionError>>,
    /// The caller may be gone, and the file is there all the same.
    _held: Held,
}

/// Files could not be changed: what the caller is told, or that the interpreter is lost.
enum Failure {
    Told(SessionError),
    Lost(ResidentError),
}

impl From<ResidentError> for Failure {
    fn from(error: ResidentError) -> Self {
        Self::Lost(error)
    }
}

impl Incoming {
    /// `directory` is the server's own; the file has `most` bytes at most.
    pub(super) async fn new(
        directory: &Path,
        (name, path): (SessionName, &str),
        (most, held): (u64, Held),
    ) -> Result<Self, SessionError> {
        if !tree::is_path(path) {
            return Err(SessionError::BadPath(clipped(path)));
        }
        let directory = directory.to_owned();
        let file = blocking(move || Tree::create(&directory)?.nameless()).await;
        Ok(Self {
            name,
            path: path.to_owned(),
            file: Arc::new(file?),
            collected: Vec::new(),
            size: 0,
            most,
            held,
        })
    }

    /// Whose session it is for.
    pub(crate) fn name(&self) -> &SessionName {
        &self.name
    }

    /// Where it goes, relative to `/workspace`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Bytes so far.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Refuses a file that will have so many bytes, if those are too many.
    ///
    /// # Errors
    ///
    /// [`SessionError::TooLarge`].
    pub(crate) fn expect(&self, bytes: u64) -> Result<(), SessionError> {
        if bytes > self.most {
            return Err(SessionError::TooLarge(show_size(self.most)));
        }
        Ok(())
    }

    /// Adds to its end.
    ///
    /// # Errors
    ///
    /// [`SessionError::TooLarge`], or the disk's: the file is of no use any more.
    pub(crate) async fn push(&mut self, piece: &[u8]) -> Result<(), SessionError> {
        self.expect(self.size.saturating_add(piece.len() as u64))?;
        self.size += piece.len() as u64;
        self.collected.extend_from_slice(piece);
        if self.collected.len() >= PIECE_BYTES {
            self.write().await?;
        }
        Ok(())
    }

    /// The whole file.
    pub(super) async fn whole(&mut self) -> Result<(Arc<File>, u64), SessionError> {
        self.write().await?;
        Ok((Arc::clone(&self.file), self.size))
    }

    async fn write(&mut self) -> Result<(), SessionError> {
        let (file, piece) = (Arc::clone(&self.file), std::mem::take(&mut self.collected));
        blocking(move || tree::append(&file, &piece)).await
    }
}

impl Sessions {
    /// Begins to take a file of at most so many bytes for a session. Something may be held for as long as
    /// it takes room on the disk.
    ///
    /// # Errors
    ///
    /// [`SessionError::BadPath`], or the disk's.
    pub async fn receive(
        &self,
        name: SessionName,
        path: &str,
        (most, held): (u64, Arc<dyn Any + Send + Sync>),
    ) -> Result<Incoming, SessionError> {
        let directory = self.inner.settings.data_dir.join("incoming");
        Incoming::new(&directory, (name, path), (most, held)).await
    }

    /// Puts a file into the workspace of its session, which lives, once earlier calls are answered.
    ///
    /// # Errors
    ///
    /// [`SessionError`]; the workspace is as it was.
    pub async fn put(
        &self,
        incoming: &mut Incoming,
        replace: bool,
    ) -> Result<Placed, SessionError> {
        let (name, path) = (incoming.name.clone(), incoming.path.clone());
        let (file, size) = incoming.whole().await?;
        let (reply, placed) = oneshot::channel();
        let put = Put {
            path,
            file,
            size,
            replace,
            reply,
            _held: Arc::clone(&incoming.held),
        };
        self.inner
            .send(&name, Message::Put(Box::new(put)), false)
            .await?;
        placed
            .await
            .unwrap_or_else(|_| Err(SessionError::NotLive(name.id.clone())))
    }

    /// Removes a file from the workspace of a session that lives, once earlier calls are answered.
    ///
    /// # Errors
    ///
    /// [`SessionError`]; the workspace is as it was.
    pub async fn remove_file(&self, name: &SessionName, path: &str) -> Result<(), SessionError> {
        self.check_file(name, path).await?;
        let (reply, removed) = oneshot::channel();
        let path = path.to_owned();
        self.inner
            .send(name, Message::Remove { path, reply }, false)
            .await?;
        removed
            .await
            .unwrap_or_else(|_| Err(SessionError::NotLive(name.id.clone())))
    }

    /// Refuses what can be no file of a session, and sessions that are not known.
    ///
    /// # Errors
    ///
    /// [`SessionError`].
    pub async fn check_file(&self, name: &SessionName, path: &str) -> Result<(), SessionError> {
        if !tree::is_path(path) {
            return Err(SessionError::BadPath(clipped(path)));
        }
        if self.inner.store.session(name).await?.is_none() {
            return Err(SessionError::Unknown(name.id.clone()));
        }
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, SessionError> {
    let done = spawn_blocking(work).await.map_err(io::Error::other);
    done.and_then(|done| done).map_err(SessionError::Files)
}

impl Task {
    /// Puts a file into the workspace, and answers. Says why the interpreter was lost, if it was.
    pub(super) async fn put(&self, live: &mut Live, notes: &Notes, put: Put) -> Option<String> {
        self.facts.begin();
        let placed = self.place(live, notes, &put).await;
        self.facts.end();
        self.told(placed, &put.path, put.reply)
    }

    /// Removes a file of the workspace, and answers. Says why the interpreter was lost, if it was.
    pub(super) async fn remove_file(
        &self,
        live: &mut Live,
        notes: &Notes,
        path: &str,
        reply: oneshot::Sender<Result<(), SessionError>>,
    ) -> Option<String> {
        self.facts.begin();
        let removed = self.take_away(live, notes, path).await;
        self.facts.end();
        self.told(removed, path, reply)
    }

    fn told<T>(
        &self,
        done: Result<T, Failure>,
        path: &str,
        reply: oneshot::Sender<Result<T, SessionError>>,
    ) -> Option<String> {
        let (answer, lost) = match done {
            Ok(done) => (Ok(done), None),
            Err(Failure::Told(error)) => (Err(error), None),
            // Code holds the interpreter, in a thread. It goes on, and so does the session.
            Err(Failure::Lost(ResidentError::Silent(limit))) => {
                let (id, path) = (self.name.id.clone(), clipped(path));
                let reason = format!(
                    "the session did not answer within {} s; look at its files before you try again",
                    limit.as_secs()
                );
                (Err(SessionError::NotWritten { id, path, reason }), None)
            }
            Err(Failure::Lost(error)) => {
                let (id, reason) = (self.name.id.clone(), broken(&error));
                let ended = SessionError::Ended {
                    id,
                    reason: reason.clone(),
                };
                (Err(ended), Some(reason))
            }
        };
        // Who asked may be gone.
        let _ = reply.send(answer);
        lost
    }

    async fn place(&self, live: &mut Live, notes: &Notes, put: &Put) -> Result<Placed, Failure> {
        let known = self.facts.know();
        self.check_room(&known, put).map_err(Failure::Told)?;
        let resident = resident(live)?;
        let temporary = beside(&put.path).map_err(Failure::Told)?;
        let started = Instant::now();
        let goes_on = || started.elapsed() < keep::COPY_LIMIT && self.stop.borrow().is_none();
        let place = (temporary.as_str(), put.size);
        let copied = keep::copy_in(resident, Arc::clone(&put.file), place, &goes_on).await;
        let name = put.path.rsplit('/').next().unwrap_or_default().to_owned();
        let moved = match copied {
            Ok(_) => {
                let request = Request::MoveFile {
                    path: temporary.clone(),
                    name,
                    replace: put.replace,
                };
                change(resident, &request).await?
            }
            Err(CopyError::Resident(error)) => {
                if let ResidentError::Silent(_) = error {
                    // It is done once it answers again: requests are answered in order.
                    let _ = change(resident, &Request::RemoveFile { path: temporary }).await;
                }
                return Err(error.into());
            }
            Err(CopyError::Refused { reason, .. }) => Err((reason, None)),
            Err(error) => Err((error.to_string(), None)),
        };
        if let Err((reason, problem)) = moved {
            // If it is not there, so much the better.
            let _ = change(resident, &Request::RemoveFile { path: temporary }).await?;
            let (id, path) = (self.name.id.clone(), clipped(&put.path));
            return Err(Failure::Told(match problem.as_deref() {
                Some("exists") => SessionError::FileExists { id, path },
                _ => SessionError::NotWritten { id, path, reason },
            }));
        }
        let files = self.learn_files(live, notes).await?;
        // Whoever asks for it next finds it, whatever runs then.
        while live.keep.is_behind() && goes_on() {
            let resident = live.resident.as_mut();
            let resident =
                resident.ok_or_else(|| ResidentError::from(ProtocolError::Unexpected))?;
            live.keep.step(resident).await?;
        }
        self.facts.set_not_kept(live.keep.refused().clone());
        let found = files.iter().find(|file| file.path == put.path).cloned();
        let file = found.unwrap_or_else(|| FileState {
            path: put.path.clone(),
            size: put.size,
            ..FileState::default()
        });
        let is_known = |file: &FileState| file.path == put.path;
        Ok(Placed {
            file: file_view(self.name.id.as_str(), &file),
            is_new: !known.inspected.files.iter().any(is_known),
        })
    }

    fn check_room(&self, known: &Known, put: &Put) -> Result<(), SessionError> {
        let settings = &self.inner.settings;
        let others = known
            .inspected
            .files
            .iter()
            .filter(|file| file.path != put.path);
        let (count, bytes) = others.fold((0, put.size), |(count, bytes), file| {
            (count + 1, file.size.saturating_add(bytes))
        });
        let quota = settings.volumes.session_quota;
        let id = self.name.id.clone();
        if bytes > quota {
            let what = format!("{} of files", show_size(quota));
            return Err(SessionError::NoRoom { id, what });
        }
        if count >= settings.sessions.max_files {
            let what = format!("{} files", settings.sessions.max_files);
            return Err(SessionError::NoRoom { id, what });
        }
        Ok(())
    }

    async fn take_away(&self, live: &mut Live, notes: &Notes, path: &str) -> Result<(), Failure> {
        let request = Request::RemoveFile {
            path: path.to_owned(),
        };
        if let Err((reason, _)) = change(resident(live)?, &request).await? {
            return Err(Failure::Told(SessionError::NoFile {
                id: self.name.id.clone(),
                path: clipped(path),
                reason,
            }));
        }
        self.learn_files(live, notes).await?;
        Ok(())
    }

    /// Hears which files there are now, and plans to bring them out.
    async fn learn_files(&self, live: &mut Live, notes: &Notes) -> Result<Vec<FileState>, Failure> {
        let bounds = InspectBounds {
            variables: 0,
            ..known::bounds(self.inner.settings.sessions.max_files)
        };
        let (files, omitted) = super::open::list_all_files(resident(live)?, &bounds).await?;
        live.keep.plan(&files, omitted == 0).await;
        self.facts.set_not_kept(live.keep.refused().clone());
        let mut known = Known::clone(&self.facts.know());
        known.inspected.files.clone_from(&files);
        known.inspected.omitted_files = omitted;
        self.facts.learn(known);
        live.look.is_unwritten = true;
        live.look.written = None;
        self.write_known(live, notes).await;
        notes.put(Note::Tell(Change::State)).await;
        Ok(files)
    }
}

fn resident(live: &mut Live) -> Result<&mut Resident, Failure> {
    live.resident
        .as_mut()
        .ok_or_else(|| ResidentError::from(ProtocolError::Unexpected).into())
}

/// A name in the same directory, which is nobody's.
fn beside(path: &str) -> Result<String, SessionError> {
    let directory = path.rsplit_once('/').map(|(directory, _)| directory);
    let name = format!(".mcp-forge-{}", tree::random_name()?);
    Ok(directory.map_or_else(|| name.clone(), |directory| format!("{directory}/{name}")))
}

/// Has something done with files. The inner error is the runner's word, and which kind it is.
async fn change(
    resident: &mut Resident,
    request: &Request,
) -> Result<Result<(), (String, Option<String>)>, Failure> {
    match resident.ask(request, keep::PIECE_LIMIT).await? {
        Event::FileWritten { error: None, .. } => Ok(Ok(())),
        Event::FileWritten {
            error: Some(reason),
            problem,
            ..
        } => Ok(Err((keep::clip(reason), problem))),
        _ => Err(ResidentError::from(ProtocolError::Unexpected).into()),
    }
}
