//! The newest records, from the ends of the files, and those that are being written.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{
    directory::{self, Listed},
    error::AuditError,
    record::MAX_LINE_BYTES,
};

/// Most records that one call returns.
const MAX_RECORDS: usize = 10_000;

/// How much of one file is read at a time.
const CHUNK_BYTES: u64 = 64 << 10;

/// Most that is read of one file for one call.
const MAX_TAIL_BYTES: u64 = 8 << 20;

pub(super) fn newest(directory: &Path, count: usize) -> Result<Vec<Value>, AuditError> {
    let count = count.min(MAX_RECORDS);
    let (mut files, _) = directory::list(directory)?;
    files.sort_by(|left, right| {
        right
            .modified
            .cmp(&left.modified)
            .then_with(|| right.name.cmp(&left.name))
    });
    let mut records: Vec<Value> = Vec::new();
    for file in &files {
        let is_full = count == 0 || records.len() >= count;
        // What was last written before the oldest record we keep has nothing newer in it.
        if is_full
            && records
                .last()
                .is_none_or(|oldest| timestamp(oldest) > file.modified.as_str())
        {
            break;
        }
        records.extend(last_lines(file, count)?);
        records.sort_by(|left, right| order(right).cmp(&order(left)));
        records.truncate(count);
    }
    Ok(records)
}

/// Starts to follow a directory: only what is written from now on is returned.
///
/// # Errors
///
/// [`AuditError::Read`].
pub fn follow(directory: &Path) -> Result<Follower, AuditError> {
    let mut follower = Follower {
        directory: directory.to_owned(),
        positions: BTreeMap::new(),
    };
    for file in directory::list(directory)?.0 {
        let length = size(&directory::open(&file.path)?, &file.path)?;
        follower.positions.insert(file.path, length);
    }
    Ok(follower)
}

/// Reads on where it stopped, in all files of a directory.
#[derive(Debug)]
pub struct Follower {
    directory: PathBuf,
    positions: BTreeMap<PathBuf, u64>,
}

impl Follower {
    /// The records that were written since the last call, oldest first; it does not wait.
    ///
    /// # Errors
    ///
    /// [`AuditError::Read`]; a later call tries again.
    pub fn read(&mut self) -> Result<Vec<Value>, AuditError> {
        let mut records = Vec::new();
        for listed in directory::list(&self.directory)?.0 {
            let mut file = directory::open(&listed.path)?;
            let position = self.positions.entry(listed.path.clone()).or_insert(0);
            let bytes = read_range(&mut file, &listed.path, *position, MAX_TAIL_BYTES)?;
            // What follows the last newline is still being written.
            let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
                continue;
            };
            *position += end as u64 + 1;
            records.extend(
                bytes[..end]
                    .split(|byte| *byte == b'\n')
                    .map(|line| parse(line, &listed)),
            );
        }
        records.sort_by(|left, right| order(left).cmp(&order(right)));
        Ok(records)
    }
}

/// The last records of a file, newest first.
fn last_lines(listed: &Listed, count: usize) -> Result<Vec<Value>, AuditError> {
    let mut file = directory::open(&listed.path)?;
    let mut start = size(&file, &listed.path)?;
    let floor = start.saturating_sub(MAX_TAIL_BYTES);
    let mut bytes: Vec<u8> = Vec::new();
    let mut newlines = 0;
    while start > floor && newlines <= count {
        let from = start.saturating_sub(CHUNK_BYTES).max(floor);
        let mut chunk = read_range(&mut file, &listed.path, from, start - from)?;
        newlines += chunk.split(|byte| *byte == b'\n').count() - 1;
        chunk.append(&mut bytes);
        (bytes, start) = (chunk, from);
    }
    let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    // The piece after the last newline: nothing, or a line that is still being written.
    lines.pop();
    let is_cut = start > 0 && !lines.is_empty();
    let whole = &lines[usize::from(is_cut)..];
    Ok(whole
        .iter()
        .rev()
        .take(count)
        .map(|line| parse(line, listed))
        .collect())
}

fn parse(line: &[u8], listed: &Listed) -> Value {
    let parsed = if line.len() > 2 * MAX_LINE_BYTES {
        None
    } else {
        serde_json::from_slice::<Value>(line).ok()
    };
    parsed.filter(Value::is_object).unwrap_or_else(|| {
        let problem = "this line is not a record: run `mcp-forge audit verify`";
        json!({ "timestamp": listed.modified, "event": "unreadable", "file": listed.name.text(), "problem": problem })
    })
}

fn read_range(file: &mut File, path: &Path, from: u64, length: u64) -> Result<Vec<u8>, AuditError> {
    let failed = |source: io::Error| AuditError::Read {
        path: path.to_owned(),
        source,
    };
    file.seek(SeekFrom::Start(from)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn size(file: &File, path: &Path) -> Result<u64, AuditError> {
    let metadata = file.metadata().map_err(|source| AuditError::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(metadata.len())
}

fn timestamp(record: &Value) -> &str {
    record["timestamp"].as_str().unwrap_or_default()
}

/// By time; records of one millisecond by their place in the chain.
fn order(record: &Value) -> (&str, u64) {
    (
        timestamp(record),
        record["sequence"].as_u64().unwrap_or_default(),
    )
}
