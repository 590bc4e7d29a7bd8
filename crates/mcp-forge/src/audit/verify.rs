//! Checks every chain in a directory, record by record.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use serde::Serialize;

use super::{
    directory::{self, Listed},
    error::AuditError,
    record::{self, MAX_LINE_BYTES, NO_HASH},
};

/// What a check of the log found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Whether no record was found to be changed, removed, added or moved.
    pub intact: bool,
    /// All records that were checked.
    pub records: u64,
    /// Each chain, oldest first.
    pub chains: Vec<ChainReport>,
    /// The first break of each broken chain, oldest chain first.
    pub breaks: Vec<Break>,
    /// Things in the directory that are not part of the log.
    pub ignored: Vec<String>,
}

/// One server process's records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChainReport {
    /// Start time, process id and a random part.
    pub chain: String,
    /// Its files.
    pub files: usize,
    /// Its records.
    pub records: u64,
    /// Sequence number of the first record that is there: above 0 when older files were removed.
    pub first_sequence: u64,
    /// Whether the server wrote its last record: else it still runs, or was killed.
    pub ended: bool,
    /// The file whose last line was cut off by a crash. Not a sign of tampering.
    pub torn: Option<String>,
    /// The last record's hash: keep it elsewhere to notice later that a whole tail was removed.
    pub last_hash: String,
}

/// Where a chain does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Break {
    /// The file's name.
    pub file: String,
    /// The line in it, from 1 on.
    pub line: u64,
    /// Why.
    pub reason: String,
}

/// Reads and checks all files of a directory.
///
/// # Errors
///
/// [`AuditError::Read`] if something cannot be read; a chain that does not hold is no error.
pub fn verify(directory: &Path) -> Result<Verification, AuditError> {
    let (files, ignored) = directory::list(directory)?;
    let (mut chains, mut breaks) = (Vec::new(), Vec::new());
    for files in files.chunk_by(|left, right| left.name.chain == right.name.chain) {
        let mut check = Check::new(files);
        breaks.extend(check.run(files)?);
        chains.push(check.report);
    }
    let records = chains.iter().map(|chain: &ChainReport| chain.records).sum();
    Ok(Verification {
        intact: breaks.is_empty(),
        records,
        chains,
        breaks,
        ignored,
    })
}

/// The check of one chain, and what it knows so far.
#[derive(Debug)]
struct Check {
    report: ChainReport,
    /// Sequence number and previous hash that the next record must have; none before the first.
    expected: Option<(u64, String)>,
}

impl Check {
    fn new(files: &[Listed]) -> Self {
        let chain = files
            .first()
            .map(|file| file.name.chain.clone())
            .unwrap_or_default();
        let from_start = files.first().is_some_and(|file| file.name.part == 1);
        let report = ChainReport {
            chain,
            files: files.len(),
            records: 0,
            first_sequence: 0,
            ended: false,
            torn: None,
            last_hash: NO_HASH.to_owned(),
        };
        // Where the oldest files were removed, the first record that is left is taken as it is.
        Self {
            report,
            expected: from_start.then(|| (0, NO_HASH.to_owned())),
        }
    }

    fn run(&mut self, files: &[Listed]) -> Result<Option<Break>, AuditError> {
        for (index, file) in files.iter().enumerate() {
            let follows = index == 0 || file.name.part == files[index - 1].name.part + 1;
            if !follows {
                let reason = "the file before this one is missing".to_owned();
                return Ok(Some(Break {
                    file: file.name.text(),
                    line: 1,
                    reason,
                }));
            }
            let found = self.file(file, index + 1 == files.len())?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn file(&mut self, file: &Listed, is_last: bool) -> Result<Option<Break>, AuditError> {
        let failed = |source: io::Error| AuditError::Read {
            path: file.path.clone(),
            source,
        };
        let mut reader = BufReader::new(directory::open(&file.path)?);
        for number in 1.. {
            let mut line = Vec::new();
            let most = 2 * MAX_LINE_BYTES as u64;
            if reader
                .by_ref()
                .take(most)
                .read_until(b'\n', &mut line)
                .map_err(failed)?
                == 0
            {
                break;
            }
            let broken = |reason: &str| {
                Some(Break {
                    file: file.name.text(),
                    line: number,
                    reason: reason.to_owned(),
                })
            };
            if line.pop_if(|byte| *byte == b'\n').is_none() {
                // A crash leaves a piece of a line, or zeros where the disk was never written.
                let rest_is_there = !reader.fill_buf().map_err(failed)?.is_empty();
                if !is_last || rest_is_there {
                    return Ok(broken("the line does not end"));
                }
                self.report.torn = Some(file.name.text());
                break;
            }
            if let Err(reason) = self.record(&line) {
                return Ok(broken(&reason));
            }
        }
        Ok(None)
    }

    fn record(&mut self, line: &[u8]) -> Result<(), String> {
        if self.report.ended {
            return Err("there is a record after the chain's last one".to_owned());
        }
        let found = record::open(line)?;
        match &self.expected {
            None => self.report.first_sequence = found.sequence,
            Some((sequence, _)) if *sequence != found.sequence => {
                return Err(format!(
                    "here belongs record {sequence}, and record {} stands here",
                    found.sequence
                ));
            }
            Some((_, previous)) if *previous != found.previous => {
                return Err("the record does not continue the one before it".to_owned());
            }
            Some(_) => {}
        }
        self.report.records += 1;
        self.report.ended = found.event == "chain.ended";
        self.report.last_hash.clone_from(&found.hash);
        self.expected = Some((found.sequence + 1, found.hash));
        Ok(())
    }
}
