//! The audit log: append-only, hash-chained JSON lines, written before the effect.
//!
//! Every server process writes a chain of files of its own in one directory. A record that cannot
//! be written is an error, and its caller must refuse what it was about to do.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Map, Value};

pub use error::AuditError;
pub use read::{Follower, follow};
pub(crate) use record::fields;
pub use verify::{Break, ChainReport, Verification, verify};

mod chain;
mod directory;
mod error;
mod read;
mod record;
#[cfg(test)]
mod tests;
mod verify;

/// Size at which a file is continued in a new one, in bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// The log of this process. Cheap to clone: clones write to one chain.
#[derive(Clone)]
pub struct Audit {
    chain: Arc<Mutex<chain::Chain>>,
    directory: PathBuf,
}

impl Audit {
    /// Starts this process's chain in a directory, which is made for its owner only if need be.
    ///
    /// # Errors
    ///
    /// [`AuditError`]: the directory or the file cannot be made, or would not be safe to write to.
    pub fn open(directory: &Path) -> Result<Self, AuditError> {
        Self::open_with(directory, MAX_FILE_BYTES)
    }

    /// Like [`Audit::open`], with another size at which files are continued.
    ///
    /// # Errors
    ///
    /// As [`Audit::open`].
    pub fn open_with(directory: &Path, max_file_bytes: u64) -> Result<Self, AuditError> {
        let chain = Arc::new(Mutex::new(chain::Chain::start(directory, max_file_bytes)?));
        Ok(Self {
            chain,
            directory: directory.to_owned(),
        })
    }

    /// Writes one record. Returns when the kernel has it: a crash of this process loses nothing.
    /// Long texts are cut, with their hash; `fields` may not use the names that every record has.
    ///
    /// # Errors
    ///
    /// [`AuditError`]: nothing was written, and what the record announces must not be done. The
    /// next record that can be written is preceded by one that counts the missing ones.
    pub fn record(
        &self,
        event: &'static str,
        fields: Map<String, Value>,
    ) -> Result<(), AuditError> {
        self.chain().append(event, fields).map(|_| ())
    }

    /// Writes the first of two records. The second is certain: [`Pending`] writes it when dropped.
    ///
    /// # Errors
    ///
    /// As [`Audit::record`]; there is no second record then.
    pub fn begin(
        &self,
        event: &'static str,
        fields: Map<String, Value>,
    ) -> Result<Pending, AuditError> {
        let ids = fields.iter().filter(|(name, _)| name.ends_with("_id"));
        let mut repeated: Map<String, Value> = ids
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let mut first = Map::new();
        first.insert("phase".to_owned(), "started".into());
        first.extend(fields);
        let sequence = self.chain().append(event, first)?;
        repeated.insert("started_by".to_owned(), sequence.into());
        Ok(Pending {
            audit: self.clone(),
            event,
            repeated,
            is_finished: false,
        })
    }

    /// The newest records of all servers that share the directory, newest first, `count` at most.
    ///
    /// # Errors
    ///
    /// [`AuditError::Read`].
    pub fn newest(&self, count: usize) -> Result<Vec<Value>, AuditError> {
        newest(&self.directory, count)
    }

    fn chain(&self) -> MutexGuard<'_, chain::Chain> {
        // A panic while the lock was held left a chain that checks its file before each record.
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

/// The newest records in a directory, newest first, `count` at most. Reads from the files' ends.
///
/// # Errors
///
/// [`AuditError::Read`].
pub fn newest(directory: &Path, count: usize) -> Result<Vec<Value>, AuditError> {
    read::newest(directory, count)
}

/// A started matter whose terminal record is still to be written: by [`Pending::finish`], else by
/// drop, with the outcome `cancelled`.
#[must_use = "dropping it records a cancellation"]
pub struct Pending {
    audit: Audit,
    event: &'static str,
    repeated: Map<String, Value>,
    is_finished: bool,
}

impl Pending {
    /// Writes the terminal record, with the first one's `*_id` fields repeated, and has it brought to
    /// the disk in the background.
    ///
    /// # Errors
    ///
    /// As [`Audit::record`]: the effect has taken place and the log misses its end.
    pub fn finish(mut self, fields: Map<String, Value>) -> Result<(), AuditError> {
        self.is_finished = true;
        self.write(fields)
    }

    fn write(&mut self, fields: Map<String, Value>) -> Result<(), AuditError> {
        let mut terminal = Map::new();
        terminal.insert("phase".to_owned(), "finished".into());
        terminal.extend(std::mem::take(&mut self.repeated));
        terminal.extend(fields);
        let mut chain = self.audit.chain();
        chain.append(self.event, terminal)?;
        chain.sync();
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let mut fields = Map::new();
        fields.insert("outcome".to_owned(), "cancelled".into());
        if let Err(error) = self.write(fields) {
            tracing::error!(%error, "the record of a cancelled {} could not be written", self.event);
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}
