//! The keys of one issuer: kept, read again in time, and never more often than they may be.
//!
//! Whoever shows a token can make us look for a key. So it is one read for all who wait, with a pause
//! after it, and nobody waits whose key is known.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};
use tokio_util::task::AbortOnDropHandle;

use super::fetch::{JwksError, Source};
use crate::config::JwksPace;

/// Most keys of one issuer.
const MAX_KEYS: usize = 100;

/// An issuer's keys, which are read again until this is dropped.
#[derive(Debug)]
pub(super) struct Keys {
    kept: Arc<Kept>,
    _reader: AbortOnDropHandle<()>,
}

/// There is no key for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// The issuer has none that fits.
    Key,
    /// There are no keys that could be trusted now.
    AllKeys,
}

#[derive(Debug)]
struct Kept {
    issuer: String,
    source: Source,
    pace: JwksPace,
    known: RwLock<Option<Known>>,
    /// Held while keys are read.
    reading: Mutex<Reading>,
}

#[derive(Debug, Clone)]
struct Known {
    keys: Arc<[Key]>,
    read: Instant,
}

#[derive(Debug, Default)]
struct Reading {
    /// When the last one ended, however it did.
    ended: Option<Instant>,
    /// What is wrong since then, so that it is told once.
    trouble: Option<String>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// What may be checked with it.
    algorithms: Vec<Algorithm>,
    public: DecodingKey,
}

impl Keys {
    /// Reads a file at once, and begins to read an address.
    pub(super) async fn open(
        issuer: &str,
        source: Source,
        pace: JwksPace,
    ) -> Result<Self, JwksError> {
        let kept = Arc::new(Kept {
            issuer: issuer.to_owned(),
            source,
            pace,
            known: RwLock::default(),
            reading: Mutex::default(),
        });
        if let Source::File(file) = &kept.source {
            kept.read().await.map_err(|problem| JwksError::File {
                issuer: issuer.to_owned(),
                file: file.clone(),
                problem,
            })?;
        }
        let reader = tokio::spawn(read_again(Arc::clone(&kept)));
        Ok(Self {
            kept,
            _reader: AbortOnDropHandle::new(reader),
        })
    }

    /// Whether there are keys that may be trusted.
    pub(super) fn are_there(&self) -> bool {
        self.kept.usable().is_some_and(|keys| !keys.is_empty())
    }

    /// The key for a token, by its name; without a name the only one that fits.
    pub(super) async fn find(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<DecodingKey, Missing> {
        if let Ok(key) = self.kept.find(id, algorithm) {
            return Ok(key);
        }
        // In a task of its own: whoever asked may hang up, and that must not end what others wait for.
        let kept = Arc::clone(&self.kept);
        let read = tokio::spawn(async move { kept.read_if_it_may().await });
        // It ends early only with the server.
        let _ = read.await;
        self.kept.find(id, algorithm)
    }
}

async fn read_again(kept: Arc<Kept>) {
    loop {
        let pause = kept.until_due();
        if pause.is_zero() {
            kept.read_if_it_may().await;
            sleep(kept.pace.min_interval).await;
        } else {
            sleep(pause).await;
        }
    }
}

impl Kept {
    fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<DecodingKey, Missing> {
        let keys = self.usable().ok_or(Missing::AllKeys)?;
        let mut fitting = keys.iter().filter(|key| {
            key.algorithms.contains(&algorithm) && (id.is_none() || key.id.as_deref() == id)
        });
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok(key.public.clone()),
            // Two of one name would let the issuer's mistake decide which counts.
            _ => Err(Missing::Key),
        }
    }

    fn usable(&self) -> Option<Arc<[Key]>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let known = known.as_ref()?;
        (known.read.elapsed() < self.pace.max_stale).then(|| Arc::clone(&known.keys))
    }

    /// A file is looked at all the time, an address when its keys are old.
    fn until_due(&self) -> Duration {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let max_age = match &self.source {
            Source::File(_) => self.pace.min_interval,
            Source::Url { .. } => self.pace.max_age,
        };
        known.as_ref().map_or(Duration::ZERO, |known| {
            max_age.saturating_sub(known.read.elapsed())
        })
    }

    /// Reads the keys, unless that was done a moment ago.
    async fn read_if_it_may(&self) {
        let mut reading = self.reading.lock().await;
        let is_too_soon = reading
            .ended
            .is_some_and(|ended| ended.elapsed() < self.pace.min_interval);
        if is_too_soon {
            return;
        }
        let trouble = self.read().await.err();
        if trouble != reading.trouble {
            if let Some(problem) = &trouble {
                tracing::warn!(
                    issuer = self.issuer,
                    "the keys of an issuer of tokens cannot be read: {problem}"
                );
            } else {
                tracing::info!(
                    issuer = self.issuer,
                    "the keys of an issuer of tokens are there again"
                );
            }
        }
        *reading = Reading {
            ended: Some(Instant::now()),
            trouble,
        };
    }

    async fn read(&self) -> Result<(), String> {
        let read = Instant::now();
        let keys = match self.source.read().await {
            Ok(bytes) => parse(&bytes),
            Err(problem) => Err(problem),
        };
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        match keys {
            Ok(keys) => {
                *known = Some(Known {
                    keys: keys.into(),
                    read,
                });
                Ok(())
            }
            Err(problem) => {
                // A file is the operator's: if half of it is written, what it said before does not count.
                if matches!(self.source, Source::File(_)) {
                    *known = None;
                }
                Err(problem)
            }
        }
    }
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

/// The keys of a set that can check a signature; others are passed over.
fn parse(bytes: &[u8]) -> Result<Vec<Key>, String> {
    let set: Set = serde_json::from_slice(bytes)
        .map_err(|_| "this is no JSON Web Key Set: an object with a list `keys`".to_owned())?;
    if set.keys.len() > MAX_KEYS {
        return Err(format!("there are more than {MAX_KEYS} of them"));
    }
    let known = set.keys.into_iter().filter_map(|key| {
        let key: Jwk = serde_json::from_value(key).ok()?;
        Key::read(&key)
    });
    Ok(known.collect())
}

impl Key {
    fn read(key: &Jwk) -> Option<Self> {
        let about = &key.common;
        let is_for_signatures =
            matches!(about.public_key_use, None | Some(PublicKeyUse::Signature))
                && about
                    .key_operations
                    .as_ref()
                    .is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        if !is_for_signatures {
            return None;
        }
        let mut algorithms = algorithms(&key.algorithm);
        if let Some(only) = about.key_algorithm {
            let only = Algorithm::try_from(only).ok()?;
            algorithms.retain(|algorithm| *algorithm == only);
        }
        (!algorithms.is_empty()).then_some(())?;
        Some(Self {
            id: about.key_id.clone(),
            algorithms,
            public: DecodingKey::from_jwk(key).ok()?,
        })
    }
}

/// What a key of a kind can check. A shared secret checks nothing: whoever can check could sign.
fn algorithms(kind: &AlgorithmParameters) -> Vec<Algorithm> {
    match kind {
        AlgorithmParameters::RSA(_) => vec![
            Algorithm::RS256,
            Algorithm::RS384,
            Algorithm::RS512,
            Algorithm::PS256,
            Algorithm::PS384,
            Algorithm::PS512,
        ],
        AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
            EllipticCurve::P256 => vec![Algorithm::ES256],
            EllipticCurve::P384 => vec![Algorithm::ES384],
            _ => Vec::new(),
        },
        AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
            vec![Algorithm::EdDSA]
        }
        _ => Vec::new(),
    }
}
