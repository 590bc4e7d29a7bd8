//! Who may come in over a network: tokens, what each is good for, and the file that lists them.
//! Those that others issue are in `oauth/`.
//!
//! The file holds hashes only. It is looked at again whenever it changed, so that a token which was
//! taken out of it is refused at its next use.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
    fs::{self, File},
    io::{self, Read, Write},
    num::NonZeroU32,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::SystemTime,
};

use rustix::rand::{GetRandomFlags, getrandom};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{config::OwnQuotas, names::Principal};

mod credentials;
mod oauth;
#[cfg(test)]
mod tests;

pub use credentials::{Credentials, NotLetIn};
pub use oauth::{JwksError, OAuth, Refusal, Terms};

/// Largest file of tokens, and the most that it may list.
const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_TOKENS: usize = 1_000;

/// Longest token that is hashed: nobody has a longer one.
const MAX_TOKEN_BYTES: usize = 512;

/// Longest name of a principal, in bytes.
const MAX_PRINCIPAL: usize = 64;

/// What our own tokens begin with, so that a person or a scanner recognises one.
const PREFIX: &str = "mcpf_";

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Running code, and all that belongs to the token's principal.
    Run,
    /// What concerns everybody: the audit log, the metrics.
    Admin,
}

/// Whoever showed a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Who it is.
    pub principal: Principal,
    /// What the token is good for.
    pub scopes: BTreeSet<Scope>,
    /// What it may take.
    pub quotas: OwnQuotas,
    /// What was shown.
    pub credential: Credential,
}

/// What proved who a caller is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// A token of the file.
    Listed,
    /// A token that somebody else issued.
    Issued {
        /// The terms under which it is accepted.
        terms: Arc<Terms>,
        /// When it is over, if that is a moment that the system knows.
        until: Option<SystemTime>,
    },
}

impl Caller {
    /// Whether the token is good for it.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }
}

/// A token that was just made. It is kept nowhere.
pub struct NewToken(String);

impl NewToken {
    /// The token itself, for its owner's eyes.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewToken(hidden)")
    }
}

/// The tokens cannot be read or made. Nobody is let in.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TokensError {
    /// The file cannot be read or written.
    #[error("{}: the file of tokens cannot be used: {source}", file.display())]
    File {
        /// Its path.
        file: PathBuf,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// What is in it is no list of tokens.
    #[error("{}: {problem}", file.display())]
    Content {
        /// Its path.
        file: PathBuf,
        /// What is wrong, and what to write instead.
        problem: String,
    },
    /// The kernel gave no random bytes for a token.
    #[error("no random bytes from the kernel: {0}")]
    Random(#[from] rustix::io::Errno),
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    tokens: Vec<WrittenToken>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenToken {
    principal: String,
    sha256: String,
    #[serde(default = "run_only")]
    scopes: BTreeSet<Scope>,
    #[serde(default)]
    quotas: WrittenQuotas,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenQuotas {
    requests_per_minute: Option<NonZeroU32>,
    requests_in_flight: Option<NonZeroU32>,
    cpu_seconds_per_hour: Option<NonZeroU32>,
}

impl From<WrittenQuotas> for OwnQuotas {
    fn from(written: WrittenQuotas) -> Self {
        Self {
            requests_per_minute: written.requests_per_minute.map(NonZeroU32::get),
            requests_in_flight: written.requests_in_flight.map(|most| most.get() as usize),
            cpu_seconds_per_hour: written.cpu_seconds_per_hour.map(NonZeroU32::get),
        }
    }
}

fn run_only() -> BTreeSet<Scope> {
    BTreeSet::from([Scope::Run])
}

/// The tokens of a file, by their hashes.
type Listed = Arc<[(Hash, Caller)]>;

/// A SHA-256.
type Hash = [u8; 32];

/// The tokens of one server.
#[derive(Debug)]
pub struct Tokens {
    file: PathBuf,
    known: RwLock<Known>,
}

#[derive(Debug)]
struct Known {
    stamp: Stamp,
    tokens: Listed,
}

/// Differs whenever the file was written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp([i64; 5]);

impl Tokens {
    /// Reads a file that the operator keeps.
    ///
    /// # Errors
    ///
    /// [`TokensError`].
    pub fn open(file: &Path) -> Result<Self, TokensError> {
        let known = RwLock::new(read(file)?);
        Ok(Self {
            file: file.to_owned(),
            known,
        })
    }

    /// Reads a file of our own; where there is none it is made, with one token that is good for
    /// everything and belongs to the local user. That one is returned, and kept nowhere.
    ///
    /// # Errors
    ///
    /// [`TokensError`]; a file that is there is never changed.
    pub fn open_or_make(file: &Path) -> Result<(Self, Option<NewToken>), TokensError> {
        let made = if file.exists() { None } else { make(file)? };
        Ok((Self::open(file)?, made))
    }

    /// Who a token belongs to; `None` if to nobody.
    ///
    /// # Errors
    ///
    /// [`TokensError`]: the file changed and cannot be read, so nobody is let in until it can.
    pub fn caller(&self, token: &str) -> Result<Option<Caller>, TokensError> {
        let tokens = self.current()?;
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Ok(None);
        }
        let shown: [u8; 32] = Sha256::digest(token).into();
        let mut found = None;
        // All of them, whichever fits: how long this takes tells nothing.
        for (hash, caller) in tokens.iter() {
            if bool::from(hash.ct_eq(&shown)) {
                found = Some(caller);
            }
        }
        Ok(found.cloned())
    }

    fn current(&self) -> Result<Listed, TokensError> {
        let stamp = stamp(&self.file)?;
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            if known.stamp == stamp {
                return Ok(Arc::clone(&known.tokens));
            }
        }
        let fresh = read(&self.file)?;
        let tokens = Arc::clone(&fresh.tokens);
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(tokens)
    }
}

fn unusable(file: &Path) -> impl Fn(io::Error) -> TokensError {
    |source| TokensError::File {
        file: file.to_owned(),
        source: Arc::new(source),
    }
}

fn stamp(file: &Path) -> Result<Stamp, TokensError> {
    fs::metadata(file)
        .map(|metadata| Stamp::of(&metadata))
        .map_err(unusable(file))
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        let inode = i64::from_ne_bytes(metadata.ino().to_ne_bytes());
        let size = i64::from_ne_bytes(metadata.size().to_ne_bytes());
        Self([
            inode,
            size,
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime_nsec(),
        ])
    }
}

fn read(file: &Path) -> Result<Known, TokensError> {
    let wrong = |problem: String| TokensError::Content {
        file: file.to_owned(),
        problem,
    };
    let opened = File::open(file).map_err(unusable(file))?;
    let metadata = opened.metadata().map_err(unusable(file))?;
    if metadata.mode() & 0o022 != 0 {
        let problem = "other users can write to the file of tokens: chmod 600 it";
        return Err(wrong(problem.to_owned()));
    }
    let mut text = String::new();
    opened
        .take(MAX_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(unusable(file))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(format!(
            "the file of tokens is larger than {MAX_FILE_BYTES} bytes"
        )));
    }
    let tokens = parse(&text).map_err(wrong)?;
    Ok(Known {
        stamp: Stamp::of(&metadata),
        tokens,
    })
}

fn parse(text: &str) -> Result<Listed, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    let written: Written = serde_saphyr::from_str_with_options(text, options)
        // The parser's own words may quote the file.
        .map_err(|error| match error.location() {
            Some(location) if location.line() > 0 => format!("line {}: {SHAPE}", location.line()),
            _ => SHAPE.to_owned(),
        })?;
    if written.tokens.len() > MAX_TOKENS {
        return Err(format!("there are more than {MAX_TOKENS} tokens"));
    }
    let mut tokens: Vec<(Hash, Caller)> = Vec::new();
    for (index, token) in written.tokens.into_iter().enumerate() {
        let hash = parse_hash(&token.sha256).ok_or_else(|| {
            format!(
                "tokens.{index}.sha256: write the SHA-256 of the token as 64 hexadecimal digits"
            )
        })?;
        if !is_name(&token.principal) {
            return Err(format!(
                "tokens.{index}.principal: write a name of 1 to {MAX_PRINCIPAL} letters, digits and `.`, `_`, `-`, `@`"
            ));
        }
        if tokens.iter().any(|(known, _)| *known == hash) {
            return Err(format!(
                "tokens.{index}.sha256: this token is listed twice; a token has one owner"
            ));
        }
        let caller = Caller {
            principal: Principal::named(token.principal),
            scopes: token.scopes,
            quotas: token.quotas.into(),
            credential: Credential::Listed,
        };
        tokens.push((hash, caller));
    }
    Ok(tokens.into())
}

/// What a file of tokens looks like, for whoever wrote another.
const SHAPE: &str = "this is no list of tokens: write `tokens:` and under it `- {principal: NAME, sha256: HEX, scopes: [run]}`, where the scopes are `run` and `admin`, and there may be `quotas: {requests_per_minute: N, requests_in_flight: N, cpu_seconds_per_hour: N}`";

fn is_name(text: &str) -> bool {
    (1..=MAX_PRINCIPAL).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'@'))
}

fn parse_hash(text: &str) -> Option<Hash> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// Writes a file with one token; `None` if another server was quicker.
fn make(file: &Path) -> Result<Option<NewToken>, TokensError> {
    let mut random = [0_u8; 32];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let mut token = PREFIX.to_owned();
    for byte in random {
        // Writing to a String cannot fail.
        let _ = write!(token, "{byte:02x}");
    }
    let text = format!(
        "# Tokens of HTTP clients. Only hashes are kept: printf %s TOKEN | sha256sum\n\
         # A token that is taken out is refused from then on; without this file a new one is made.\n\
         tokens:\n- principal: {}\n  sha256: \"{:x}\"\n  scopes: [run, admin]\n",
        Principal::local().as_str(),
        Sha256::digest(&token)
    );
    // Whole or not at all, and never over one that is there.
    let draft = file.with_extension(format!("{}.draft", std::process::id()));
    let written = write_draft(&draft, &text).and_then(|()| fs::hard_link(&draft, file));
    let _ = fs::remove_file(&draft);
    match written {
        Ok(()) => Ok(Some(NewToken(token))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && file.exists() => Ok(None),
        Err(error) => Err(unusable(file)(error)),
    }
}

fn write_draft(draft: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
