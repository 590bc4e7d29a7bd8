//! A session's files on the host: brought out after each turn, put back into a fresh interpreter.
//!
//! What comes out of a sandbox is bytes and names of its choice: pieces are bounded, the sum is
//! bounded by the quota, and a file is moved to its name only when it is whole.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::task::spawn_blocking;

use super::{
    tree::{self, Listing, Tree},
    volumes::Volume,
};
use crate::{
    config::size::show_size,
    names::{Principal, SessionName},
    runner::{
        ProtocolError,
        wire::{Event, FileState, Request},
    },
    turn::{Resident, ResidentError},
};

/// Bytes of one piece, both ways.
const PIECE_BYTES: usize = 512 << 10;

/// Time for one piece.
pub(super) const PIECE_LIMIT: Duration = Duration::from_secs(10);

/// For files that a caller has copied in.
pub(super) const COPY_LIMIT: Duration = Duration::from_mins(5);

/// Time for putting files back: who waits for the first turn waits for it.
const PUT_BACK_LIMIT: Duration = Duration::from_mins(1);

/// Files that cannot be put back before no more are tried.
const MAX_PROBLEMS: usize = 10;

/// The place of a session's files on the host.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
    files: Tree,
    partial: Tree,
}

/// What one session keeps there.
#[derive(Debug)]
pub(super) struct Keep {
    place: Arc<Place>,
    quota: u64,
    most: usize,
    /// As they were in the sandbox when they were brought out or put in.
    kept: BTreeMap<String, FileState>,
    /// Not kept, with the reason.
    refused: BTreeMap<String, String>,
    todo: VecDeque<FileState>,
    current: Option<Current>,
}

/// The file that is being brought out.
#[derive(Debug)]
struct Current {
    state: FileState,
    offset: u64,
    file: Arc<File>,
}

/// Files could not be copied in. The sandbox may hold some of them.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    /// The interpreter failed.
    #[error(transparent)]
    Resident(#[from] ResidentError),
    /// The host's side failed.
    #[error("{0}: {1}")]
    Host(String, io::Error),
    /// The sandbox could not take it.
    #[error("{path} cannot be written into the sandbox: {reason}")]
    Refused {
        /// In the sandbox.
        path: String,
        /// The runner's words.
        reason: String,
    },
    /// There is more than may be copied.
    #[error("{0}")]
    TooMuch(String),
}

/// Where a session's directory is.
pub(super) fn directory_of(data_dir: &Path, name: &SessionName) -> PathBuf {
    let sessions = data_dir.join("sessions");
    if name.principal == Principal::local() {
        return sessions.join(name.id.as_str());
    }
    // No session's name begins with a dot.
    let digest = <sha2::Sha256 as sha2::Digest>::digest(name.principal.as_str());
    sessions.join(format!(".{digest:x}")).join(name.id.as_str())
}

/// Removes all that is kept of a session. None is no error.
pub(super) async fn remove(data_dir: &Path, name: &SessionName) -> io::Result<()> {
    let directory = directory_of(data_dir, name);
    blocking(move || match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    })
    .await
}

/// Reads a kept file, `most` bytes at most: its bytes and its whole size.
pub(super) async fn read_kept(
    data_dir: &Path,
    name: &SessionName,
    path: &str,
    most: usize,
) -> io::Result<(Vec<u8>, u64)> {
    let (files, path) = (directory_of(data_dir, name).join("files"), path.to_owned());
    blocking(move || {
        let file = Tree::open(&files)?.file(&path)?;
        let size = file.metadata()?.len();
        Ok((tree::read_piece(&file, 0, most)?, size))
    })
    .await
}

impl Keep {
    /// Opens or makes a session's place.
    pub(super) async fn open(
        data_dir: &Path,
        name: &SessionName,
        quota: u64,
        most: usize,
    ) -> io::Result<Self> {
        let directory = directory_of(data_dir, name);
        let place = blocking(move || {
            let files = Tree::create(&directory.join("files"))?;
            let partial = Tree::create(&directory.join("partial"))?;
            Ok(Place {
                directory,
                files,
                partial,
            })
        })
        .await?;
        Ok(Self {
            place: Arc::new(place),
            quota,
            most,
            kept: BTreeMap::new(),
            refused: BTreeMap::new(),
            todo: VecDeque::new(),
            current: None,
        })
    }

    /// Puts what is kept into a fresh sandbox. Returns how many files that were, and sentences about
    /// what did not fit.
    pub(super) async fn put_back(
        &mut self,
        resident: &mut Resident,
    ) -> Result<(usize, Vec<String>), CopyError> {
        let (place, most) = (Arc::clone(&self.place), self.most);
        let listing = blocking(move || place.files.list(most))
            .await
            .map_err(|error| CopyError::Host("the session's files".to_owned(), error))?;
        let (mut count, mut problems) = (0, Vec::new());
        let started = Instant::now();
        for found in listing.files {
            if problems.len() >= MAX_PROBLEMS || started.elapsed() > PUT_BACK_LIMIT {
                problems.push(
                    "further files were not put back into /workspace; they are kept on the host"
                        .to_owned(),
                );
                break;
            }
            let place = Arc::clone(&self.place);
            let path = found.path.clone();
            let opened = blocking(move || place.files.file(&path)).await;
            let copied = match opened {
                Ok(file) => {
                    let goes_on = || started.elapsed() < PUT_BACK_LIMIT;
                    let place = (found.path.as_str(), self.quota);
                    copy_in(resident, Arc::new(file), place, &goes_on).await
                }
                Err(error) => Err(CopyError::Host(found.path.clone(), error)),
            };
            match copied {
                Ok(_) => count += 1,
                Err(error @ CopyError::Resident(_)) => return Err(error),
                Err(error) => problems.push(error.to_string()),
            }
        }
        Ok((count, problems))
    }

    /// Takes what the sandbox holds now for what is kept.
    pub(super) fn assume(&mut self, listing: &[FileState]) {
        self.kept = listing
            .iter()
            .map(|file| (file.path.clone(), file.clone()))
            .collect();
    }

    /// Plans what is to be brought out, and removes what the sandbox no longer has.
    pub(super) async fn plan(&mut self, listing: &[FileState], is_whole: bool) {
        self.current = None;
        self.todo.clear();
        self.refused.clear();
        if is_whole {
            let now: std::collections::BTreeSet<&str> =
                listing.iter().map(|file| file.path.as_str()).collect();
            let gone: Vec<String> = self
                .kept
                .keys()
                .filter(|path| !now.contains(path.as_str()))
                .cloned()
                .collect();
            for path in gone {
                self.forget(&path).await;
            }
        }
        let mut room = self.quota;
        for file in listing {
            if file.size > room {
                let reason = format!(
                    "beyond the session's quota of {} for files on the host",
                    show_size(self.quota)
                );
                self.refused.insert(file.path.clone(), reason);
                self.forget(&file.path).await;
                continue;
            }
            room -= file.size;
            if self.kept.get(&file.path) != Some(file) {
                self.todo.push_back(file.clone());
            }
        }
    }

    /// Whether there is something to bring out.
    pub(super) fn is_behind(&self) -> bool {
        self.current.is_some() || !self.todo.is_empty()
    }

    /// Why some files are not kept.
    pub(super) fn refused(&self) -> &BTreeMap<String, String> {
        &self.refused
    }

    /// Brings out one piece.
    ///
    /// # Errors
    ///
    /// The interpreter's. What the host could not do only costs the file.
    pub(super) async fn step(&mut self, resident: &mut Resident) -> Result<(), ResidentError> {
        let Some(mut current) = self.next_file().await else {
            return Ok(());
        };
        let path = current.state.path.clone();
        let request = Request::ReadFile {
            path: path.clone(),
            offset: current.offset,
            length: PIECE_BYTES as u64,
        };
        let answer = resident.ask(&request, PIECE_LIMIT).await?;
        let Event::FileRead {
            offset,
            data,
            end,
            error,
            path: echoed,
        } = answer
        else {
            return Err(ProtocolError::Unexpected.into());
        };
        if let Some(error) = error {
            self.refuse(&path, &clip(error));
            return Ok(());
        }
        let piece = STANDARD
            .decode(&data)
            .ok()
            .filter(|piece| piece.len() <= PIECE_BYTES && (end || !piece.is_empty()));
        let (Some(piece), true) = (piece, echoed == path && offset == current.offset) else {
            return Err(ProtocolError::Unexpected.into());
        };
        current.offset += piece.len() as u64;
        if current.offset > current.state.size || (end && current.offset != current.state.size) {
            // It changed while it was read: the next turn's end tells its new size.
            return Ok(());
        }
        let (file, place) = (Arc::clone(&current.file), Arc::clone(&self.place));
        let written = blocking(move || {
            tree::append(&file, &piece)?;
            if end {
                place.partial.move_to("file", &place.files, &path)?;
            }
            Ok(())
        })
        .await;
        match written {
            Err(error) => self.refuse(&current.state.path, &error.to_string()),
            Ok(()) if end => {
                self.kept.insert(current.state.path.clone(), current.state);
            }
            Ok(()) => self.current = Some(current),
        }
        Ok(())
    }

    /// The file to go on with. None if there is none, or its place cannot be made.
    async fn next_file(&mut self) -> Option<Current> {
        if let Some(current) = self.current.take() {
            return Some(current);
        }
        let state = self.todo.pop_front()?;
        let place = Arc::clone(&self.place);
        match blocking(move || place.partial.new_file("file")).await {
            Ok(file) => Some(Current {
                state,
                offset: 0,
                file: Arc::new(file),
            }),
            Err(error) => {
                self.refuse(&state.path, &error.to_string());
                None
            }
        }
    }

    fn refuse(&mut self, path: &str, reason: &str) {
        self.refused.insert(path.to_owned(), reason.to_owned());
    }

    async fn forget(&mut self, path: &str) {
        if self.kept.remove(path).is_none() {
            return;
        }
        let (place, path) = (Arc::clone(&self.place), path.to_owned());
        let shown = self.place.directory.display().to_string();
        if let Err(error) = blocking(move || place.files.remove(&path)).await {
            tracing::warn!(%error, directory = shown, "a session's file could not be removed");
        }
    }
}

/// Copies volumes in. Returns how many files that were.
pub(super) async fn copy_volumes(
    resident: &mut Resident,
    (base, owner): (&Path, &Principal),
    volumes: &[Volume],
    (quota, most): (u64, usize),
) -> Result<usize, CopyError> {
    let mut room = quota;
    let mut count = 0;
    let started = Instant::now();
    let goes_on = || started.elapsed() < COPY_LIMIT;
    for volume in volumes {
        let (base, source) = (base.to_owned(), volume.place(owner));
        let found = blocking(move || look(&base, &source, most + 1)).await;
        let (tree, listing) = found
            .map_err(|error| CopyError::Host(format!("the volume {}", volume.source), error))?;
        count += listing.files.len();
        if count > most || listing.is_cut {
            return Err(CopyError::TooMuch(format!(
                "the volumes hold more than {most} files, or files with names that cannot be copied"
            )));
        }
        let tree = Arc::new(tree);
        for file in listing.files {
            let (tree, path) = (Arc::clone(&tree), file.path.clone());
            let opened = blocking(move || tree.file(&path)).await;
            let opened = opened.map_err(|error| {
                CopyError::Host(format!("{}/{}", volume.source, file.path), error)
            })?;
            let target = match volume.target.as_str() {
                "" => file.path.clone(),
                target if listing.is_one_file => target.to_owned(),
                target => format!("{target}/{}", file.path),
            };
            room -= copy_in(resident, Arc::new(opened), (&target, room), &goes_on).await?;
        }
    }
    Ok(count)
}

/// What a volume's name names: a directory's listing, or the one file that it is.
struct Look {
    files: Vec<tree::Found>,
    is_cut: bool,
    is_one_file: bool,
}

fn look(base: &Path, source: &str, most: usize) -> io::Result<(Tree, Look)> {
    let base = Volume::base(base)?;
    match base.subtree(source) {
        Ok(tree) => {
            let Listing { files, is_cut } = tree.list(most)?;
            let is_one_file = false;
            Ok((
                tree,
                Look {
                    files,
                    is_cut,
                    is_one_file,
                },
            ))
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            let (parent, last) = source.rsplit_once('/').unwrap_or(("", source));
            let tree = base.subtree(parent)?;
            let size = tree.file(last)?.metadata()?.len();
            let files = vec![tree::Found {
                path: last.to_owned(),
                size,
                modified_ns: 0,
            }];
            Ok((
                tree,
                Look {
                    files,
                    is_cut: false,
                    is_one_file: true,
                },
            ))
        }
        Err(error) => Err(error),
    }
}

/// Writes one file of the host into the sandbox, if it has no more than `room` bytes. Returns its size.
pub(super) async fn copy_in(
    resident: &mut Resident,
    file: Arc<File>,
    (path, room): (&str, u64),
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Result<u64, CopyError> {
    let host = |error| CopyError::Host(path.to_owned(), error);
    let mut offset = 0_u64;
    loop {
        // Whoever answers each piece at the last moment would take hours.
        if !goes_on() {
            return Err(CopyError::TooMuch(format!(
                "{path} took too long, or the session ends"
            )));
        }
        let source = Arc::clone(&file);
        let piece = blocking(move || tree::read_piece(&source, offset, PIECE_BYTES))
            .await
            .map_err(host)?;
        if offset > 0 && piece.is_empty() {
            return Ok(offset);
        }
        let length = piece.len() as u64;
        if offset + length > room {
            return Err(CopyError::TooMuch(format!(
                "{path} goes beyond the quota of bytes that are copied into a session"
            )));
        }
        let request = Request::WriteFile {
            path: path.to_owned(),
            offset,
            data: STANDARD.encode(&piece),
        };
        match resident.ask(&request, PIECE_LIMIT).await? {
            Event::FileWritten { error: None, .. } => {}
            Event::FileWritten {
                error: Some(reason),
                ..
            } => {
                return Err(CopyError::Refused {
                    path: path.to_owned(),
                    reason: clip(reason),
                });
            }
            _ => return Err(ResidentError::from(ProtocolError::Unexpected).into()),
        }
        offset += length;
        if piece.len() < PIECE_BYTES {
            return Ok(offset);
        }
    }
}

pub(super) fn clip(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(300));
    text
}

/// File systems may block; the threads that run everything else may not.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}
