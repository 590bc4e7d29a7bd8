//! One token: what it says, and whether that is true.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use jsonwebtoken::{Algorithm, DecodingKey, Validation, dangerous, decode, errors::ErrorKind};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Refusal;
use crate::config::OAuthConfig;

/// Longest token that is looked at, in bytes. Those of the largest issuers, with all groups of a
/// user, have half of it.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// What a token must be to be let in.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) principal_claim: String,
    algorithms: Vec<Algorithm>,
    types: BTreeSet<String>,
    audiences: BTreeSet<String>,
    leeway: u64,
}

impl Rules {
    pub(super) fn new(config: &OAuthConfig) -> Self {
        Self {
            principal_claim: config.principal_claim.clone(),
            algorithms: config.algorithms.clone(),
            types: config.token_types.clone(),
            audiences: config.audiences.clone(),
            leeway: config.leeway.as_secs(),
        }
    }
}

/// What a token says of itself. Anybody can say that.
#[derive(Debug)]
pub(super) struct Unverified<'a> {
    token: &'a str,
    pub(super) issuer: String,
    pub(super) key_id: Option<String>,
    pub(super) algorithm: Algorithm,
}

/// All that is read before the signature is checked. Where else a key might be (`jku`, `x5u`, `jwk`)
/// is not in it.
#[derive(Deserialize)]
struct Issued {
    iss: String,
}

impl<'a> Unverified<'a> {
    /// Reads what says by which key a token is to be checked.
    pub(super) fn read(token: &'a str, rules: &Rules) -> Result<Self, Refusal> {
        const NONE: Refusal = Refusal::Invalid("it is no signed JSON Web Token");
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refusal::Invalid("it is too long"));
        }
        // `none` is no algorithm of the library's.
        let header = jsonwebtoken::decode_header(token).map_err(|_| NONE)?;
        if !rules.algorithms.contains(&header.alg) {
            return Err(Refusal::Invalid(
                "its algorithm is none that is accepted here",
            ));
        }
        if header.crit.is_some() {
            return Err(Refusal::Invalid(
                "it has critical headers, of which none is known here",
            ));
        }
        if !rules.types.contains(&type_of(header.typ.as_deref())) {
            return Err(Refusal::Invalid("its type is none that is accepted here"));
        }
        let issued: Issued = dangerous::insecure_decode_claims(token).map_err(|_| NONE)?;
        Ok(Self {
            token,
            issuer: issued.iss,
            key_id: header.kid,
            algorithm: header.alg,
        })
    }

    /// Checks the signature, and after it what the token says.
    pub(super) fn verify(&self, key: &DecodingKey, rules: &Rules) -> Result<Claims, Refusal> {
        let mut validation = Validation::new(self.algorithm);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[&self.issuer]);
        validation.aud = Some(rules.audiences.iter().cloned().collect());
        validation.validate_nbf = true;
        validation.leeway = rules.leeway;
        let decoded = decode::<Map<String, Value>>(self.token, key, &validation);
        let claims = Claims(decoded.map_err(|error| refusal(error.kind()))?.claims);
        claims.check_issued_at(rules.leeway)?;
        // The library lets it live to the end of its last second.
        if claims
            .until(rules)
            .is_some_and(|until| until <= SystemTime::now())
        {
            return Err(refusal(&ErrorKind::ExpiredSignature));
        }
        Ok(claims)
    }
}

/// A type in lower case, without the prefix that it may have; a token that has none is a JWT.
fn type_of(typ: Option<&str>) -> String {
    let typ = typ.unwrap_or("JWT").to_ascii_lowercase();
    typ.strip_prefix("application/")
        .map_or(typ.clone(), str::to_owned)
}

fn refusal(kind: &ErrorKind) -> Refusal {
    Refusal::Invalid(match kind {
        ErrorKind::InvalidSignature => "its signature is wrong",
        ErrorKind::ExpiredSignature => "it has expired",
        ErrorKind::ImmatureSignature => "it is not valid yet",
        ErrorKind::InvalidAudience => "it is for another service",
        ErrorKind::InvalidIssuer => "its issuer is none that is trusted here",
        ErrorKind::MissingRequiredClaim(_) => "it has not all of iss, aud and exp",
        ErrorKind::InvalidClaimFormat(_) => "one of its claims is malformed",
        _ => "it cannot be checked with the key that it names",
    })
}

/// What a token's issuer says of it.
#[derive(Debug)]
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    /// The text of one claim.
    pub(super) fn owner(&self, claim: &str) -> Option<&str> {
        let text = self.0.get(claim)?.as_str()?;
        (!text.is_empty()).then_some(text)
    }

    /// Until when it is let in.
    pub(super) fn until(&self, rules: &Rules) -> Option<SystemTime> {
        let seconds = self.0.get("exp")?.as_f64()?;
        let lifetime = Duration::try_from_secs_f64(seconds).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(lifetime.checked_add(Duration::from_secs(rules.leeway))?)
    }

    /// Whether a scope was granted: in `scope`, as RFC 9068 has it, or in `scp`, as others do.
    pub(super) fn has_scope(&self, word: &str) -> bool {
        ["scope", "scp"]
            .into_iter()
            .filter_map(|claim| self.0.get(claim))
            .any(|granted| match granted {
                Value::String(text) => text.split(' ').any(|scope| scope == word),
                Value::Array(scopes) => scopes.iter().any(|scope| scope == word),
                _ => false,
            })
    }

    /// A token of the future was made by a clock that is wrong, or to outlive what it should not.
    fn check_issued_at(&self, leeway: u64) -> Result<(), Refusal> {
        let Some(claim) = self.0.get("iat") else {
            return Ok(());
        };
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "at most 300")]
        let latest = now.as_secs_f64() + leeway as f64;
        match claim.as_f64() {
            Some(moment) if moment <= latest => Ok(()),
            Some(_) => Err(Refusal::Invalid("it is not valid yet")),
            None => Err(Refusal::Invalid("one of its claims is malformed")),
        }
    }
}
