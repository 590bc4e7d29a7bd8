//! Access tokens that others issue (OAuth 2.1): JWTs, checked against the keys of their issuer.
//!
//! A token names its issuer and a key of it. Both are looked up among what the operator listed;
//! nothing that a token says is ever read, fetched or opened.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{Caller, Credential, Scope};
use crate::{
    config::{IssuerConfig, JwksPace, OAuthConfig, OwnQuotas},
    names::Principal,
};

mod fetch;
mod keys;
mod terms;
#[cfg(test)]
mod tests;
mod token;

pub use fetch::JwksError;
pub use terms::Terms;

use fetch::Source;
use keys::{Keys, Missing};
use token::{Rules, Unverified};

/// Longest claim that is part of a principal's name as it is.
const MAX_PLAIN: usize = 64;

/// Who issues access tokens for this service, and under which terms.
#[derive(Debug)]
pub struct OAuth {
    terms: Arc<Terms>,
    rules: Rules,
    issuers: Vec<Issuer>,
    quotas: OwnQuotas,
}

#[derive(Debug)]
struct Issuer {
    /// The operator's name for it.
    name: String,
    /// Its own.
    url: String,
    keys: Keys,
}

/// A token of this kind does not let anybody in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is not valid, whoever shows it and however often.
    #[error("{0}")]
    Invalid(&'static str),
    /// There are no keys of its issuer now, so it may be valid or not.
    #[error("the keys of its issuer cannot be had now")]
    NoKeys,
}

impl OAuth {
    /// Begins to read the keys of all issuers, and keeps reading them until it is dropped. An issuer
    /// that does not answer is asked again; its tokens are refused until it does.
    ///
    /// # Errors
    ///
    /// [`JwksError`] for keys in a file that cannot be used.
    pub async fn open(config: &OAuthConfig) -> Result<Self, JwksError> {
        let mut issuers = Vec::new();
        for issuer in &config.issuers {
            issuers.push(Issuer::open(issuer, config.pace).await?);
        }
        Ok(Self {
            terms: Arc::new(Terms::new(config)),
            rules: Rules::new(config),
            issuers,
            quotas: config.quotas,
        })
    }

    /// What clients are told of it.
    pub fn terms(&self) -> &Arc<Terms> {
        &self.terms
    }

    /// Whether there are keys of every issuer.
    pub fn has_all_keys(&self) -> bool {
        self.issuers.iter().all(|issuer| issuer.keys.are_there())
    }

    /// Who a token belongs to, and what it is good for.
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub async fn caller(&self, token: &str) -> Result<Caller, Refusal> {
        let unverified = Unverified::read(token, &self.rules)?;
        let issuer = self
            .issuers
            .iter()
            .find(|issuer| issuer.url == unverified.issuer)
            .ok_or(Refusal::Invalid("its issuer is none that is trusted here"))?;
        let key = issuer
            .keys
            .find(unverified.key_id.as_deref(), unverified.algorithm)
            .await
            .map_err(|missing| match missing {
                Missing::Key => Refusal::Invalid("its issuer has no such key"),
                Missing::AllKeys => Refusal::NoKeys,
            })?;
        let claims = unverified.verify(&key, &self.rules)?;
        let owner = claims
            .owner(&self.rules.principal_claim)
            .ok_or(Refusal::Invalid("it does not say whose it is"))?;
        let scopes = [Scope::Run, Scope::Admin]
            .into_iter()
            .filter(|scope| claims.has_scope(self.terms.word(*scope)))
            .collect();
        Ok(Caller {
            principal: principal(&issuer.name, owner),
            scopes,
            quotas: self.quotas,
            credential: Credential::Issued {
                terms: Arc::clone(&self.terms),
                until: claims.until(&self.rules),
            },
        })
    }
}

impl Issuer {
    async fn open(config: &IssuerConfig, pace: JwksPace) -> Result<Self, JwksError> {
        let source = Source::open(&config.keys)?;
        Ok(Self {
            name: config.name.clone(),
            url: config.issuer.clone(),
            keys: Keys::open(&config.name, source, pace).await?,
        })
    }
}

/// The principal that an issuer means by a text. No two pairs give the same one, and none gives one
/// of the file of tokens, in whose names there is no `/`.
fn principal(issuer: &str, owner: &str) -> Principal {
    let is_plain = owner.len() <= MAX_PLAIN
        && owner.bytes().all(|byte| {
            byte.is_ascii_alphanumeric()
                || matches!(byte, b'.' | b'_' | b'-' | b'@' | b'|' | b'+' | b':')
        });
    if is_plain {
        return Principal::named(format!("{issuer}/{owner}"));
    }
    Principal::named(format!("{issuer}/#{:x}", Sha256::digest(owner)))
}
