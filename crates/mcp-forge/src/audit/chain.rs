//! The writing end: one chain, its current file, and what to do when the disk says no.

use std::{
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    directory::{self, FileName},
    error::AuditError,
    record::{self, Draft, NO_HASH, RESERVED, fields},
};

/// Requests to the disk that may wait; while it is slow, one serves many records.
const MAX_WAITING_SYNCS: usize = 16;

/// One process's chain of records.
#[derive(Debug)]
pub(super) struct Chain {
    directory: Arc<File>,
    path: PathBuf,
    name: FileName,
    file: Arc<File>,
    /// Where the file ends if nobody else touched it.
    length: u64,
    max_file_bytes: u64,
    started: Instant,
    sequence: u64,
    hash: String,
    /// Records that could not be written since the last one that could.
    missed: u64,
    syncer: Syncer,
}

impl Chain {
    /// Makes the first file and its first record.
    pub(super) fn start(directory: &Path, max_file_bytes: u64) -> Result<Self, AuditError> {
        let opened = Arc::new(directory::prepare(directory)?);
        let name = FileName {
            chain: new_chain_name(),
            part: 1,
        };
        let file = directory::create(&opened, &name).map_err(|source| AuditError::Write {
            file: directory.join(name.text()),
            source,
        })?;
        let mut chain = Self {
            directory: opened,
            path: directory.to_owned(),
            name,
            file: Arc::new(file),
            length: 0,
            max_file_bytes,
            started: Instant::now(),
            sequence: 0,
            hash: NO_HASH.to_owned(),
            missed: 0,
            syncer: Syncer::start().map_err(|source| AuditError::Write {
                file: directory.to_owned(),
                source,
            })?,
        };
        let about = json!({ "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id() });
        chain.append("chain.started", fields(about))?;
        Ok(chain)
    }

    /// Appends one record and returns its sequence number.
    pub(super) fn append(
        &mut self,
        event: &str,
        fields: Map<String, Value>,
    ) -> Result<u64, AuditError> {
        if let Some(name) = fields.keys().find(|name| RESERVED.contains(&name.as_str())) {
            return Err(AuditError::ReservedField(name.clone()));
        }
        let appended = self.ready().and_then(|()| self.write(event, fields));
        match &appended {
            Ok(_) => self.missed = 0,
            Err(_) => self.missed += 1,
        }
        appended
    }

    /// Has what was written brought to the disk, without waiting for it.
    pub(super) fn sync(&self) {
        self.syncer.request(&self.file);
    }

    /// Everything that must be so before a record: the file is ours and whole, has room, and the
    /// log says what it misses.
    fn ready(&mut self) -> Result<(), AuditError> {
        if self.syncer.has_failed() {
            return Err(AuditError::Sync {
                file: self.file_path(),
            });
        }
        let metadata = self.file.metadata().map_err(|source| self.failed(source))?;
        if metadata.nlink() == 0 || metadata.len() != self.length {
            // Someone deleted, cut or wrote to it. What is there stays, and the log says so.
            let found = if metadata.nlink() == 0 {
                Value::Null
            } else {
                metadata.len().into()
            };
            let damage = json!({ "file": self.name.text(), "expected_bytes": self.length, "found_bytes": found });
            self.next_file()?;
            self.write("chain.damaged", fields(damage))?;
        } else if self.length >= self.max_file_bytes {
            self.next_file()?;
        }
        if self.missed > 0 {
            self.write(
                "chain.gap",
                fields(json!({ "missed_records": self.missed })),
            )?;
            self.missed = 0;
        }
        Ok(())
    }

    fn next_file(&mut self) -> Result<(), AuditError> {
        self.sync();
        let name = FileName {
            chain: self.name.chain.clone(),
            part: self.name.part.saturating_add(1),
        };
        let file =
            directory::create(&self.directory, &name).map_err(|source| AuditError::Write {
                file: self.path.join(name.text()),
                source,
            })?;
        (self.file, self.name, self.length) = (Arc::new(file), name, 0);
        self.syncer.request(&self.directory);
        Ok(())
    }

    fn write(&mut self, event: &str, fields: Map<String, Value>) -> Result<u64, AuditError> {
        let monotonic_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let draft = Draft {
            sequence: self.sequence,
            monotonic_ms,
            event,
            fields,
            previous: &self.hash,
        };
        let (line, hash) = record::seal(draft);
        if let Err(source) = (&*self.file).write_all(line.as_bytes()) {
            // A part of the line may be there. If it cannot be taken back, the length does not fit
            // any more and the next record goes to a new file.
            let _ = self.file.set_len(self.length);
            return Err(self.failed(source));
        }
        self.length += line.len() as u64;
        self.hash = hash;
        self.sequence += 1;
        Ok(self.sequence - 1)
    }

    fn failed(&self, source: io::Error) -> AuditError {
        AuditError::Write {
            file: self.file_path(),
            source,
        }
    }

    fn file_path(&self) -> PathBuf {
        self.path.join(self.name.text())
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        if let Err(error) = self.append("chain.ended", Map::new()) {
            tracing::error!(%error, "the audit log has no last record");
        }
        self.sync();
    }
}

/// Time between two syncs, at least.
const SYNC_INTERVAL: Duration = Duration::from_millis(20);

/// Brings files to the disk on a thread of its own: no execution waits for a slow disk.
#[derive(Debug)]
struct Syncer {
    requests: SyncSender<Arc<File>>,
    has_failed: Arc<AtomicBool>,
}

impl Syncer {
    fn start() -> io::Result<Self> {
        let (requests, received) = sync_channel(MAX_WAITING_SYNCS);
        let has_failed = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&has_failed);
        let thread = std::thread::Builder::new().name("audit-sync".to_owned());
        thread.spawn(move || Self::run(&received, &flag))?;
        Ok(Self {
            requests,
            has_failed,
        })
    }

    fn run(requests: &Receiver<Arc<File>>, has_failed: &AtomicBool) {
        for file in requests {
            if file.sync_data().is_err() {
                // The kernel has dropped the pages: a second attempt would succeed and lie.
                has_failed.store(true, Ordering::Release);
            }
            // One for all that is written meanwhile: under load they would follow without a break.
            std::thread::sleep(SYNC_INTERVAL);
        }
    }

    /// A request that finds no place is answered by those that wait: they cover what it wrote.
    fn request(&self, file: &Arc<File>) {
        let _ = self.requests.try_send(Arc::clone(file));
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }
}

/// Start time, process and something nobody can guess beforehand.
fn new_chain_name() -> String {
    let time = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let pid = std::process::id();
    // The standard library seeds this from the system's random source.
    let random = RandomState::new().hash_one(pid);
    format!("{time}-{pid}-{random:016x}")
}
