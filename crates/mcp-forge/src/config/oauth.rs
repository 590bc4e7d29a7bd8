//! Settings of access tokens that others issue: whom the HTTP service trusts, and with what.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    time::Duration,
};

use jsonwebtoken::{Algorithm, AlgorithmFamily};
use reqwest::Url;

use super::{OwnQuotas, error::ConfigError, read::Reader};
use crate::text::{clipped, quoted};

/// The section of all of it, and that of the issuers in it.
const SECTION: &str = "server.oauth";
const ISSUERS: &str = "server.oauth.issuers";

/// Most issuers, and the longest name of one.
const MAX_ISSUERS: usize = 16;
const MAX_NAME: usize = 32;

/// Longest scope, and longest name of a claim, in bytes.
const MAX_WORD: usize = 128;

/// `server.oauth`: access tokens of others that are let in beside those of the file of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuthConfig {
    /// What the service is called by those who issue and ask for tokens, to the letter.
    pub resource: String,
    /// The same as an address. It has no query and no fragment.
    pub resource_url: Url,
    /// What a token may be for (`aud`), one of them. By default `resource`.
    pub audiences: BTreeSet<String>,
    /// Who may issue tokens. There is at least one.
    pub issuers: Vec<IssuerConfig>,
    /// The scopes of a token that mean our own.
    pub scopes: OAuthScopes,
    /// How tokens may be signed: with a private key, never with a shared one.
    pub algorithms: Vec<Algorithm>,
    /// What a token may call itself (`typ`), in lower case; with `jwt` it may say nothing.
    pub token_types: BTreeSet<String>,
    /// The claim that says whose a token is. Default `sub`.
    pub principal_claim: String,
    /// By how much clocks may differ. Default 30 s.
    pub leeway: Duration,
    /// Of one principal of such a token.
    pub quotas: OwnQuotas,
    /// When the keys of issuers are read.
    pub pace: JwksPace,
}

/// The words for the scopes in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuthScopes {
    /// Default `mcp:run`.
    pub run: String,
    /// Default `mcp:admin`.
    pub admin: String,
}

/// When the keys of an issuer are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JwksPace {
    /// Keys so old are read again. Default 1 h.
    pub max_age: Duration,
    /// Keys that cannot be read again are used until they are so old. Default 24 h.
    pub max_stale: Duration,
    /// Between two reads passes so much, whoever wants them. Default 10 s.
    pub min_interval: Duration,
}

/// Who may issue tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerConfig {
    /// The operator's name for it, with which the names of its principals begin.
    pub name: String,
    /// What it calls itself in its tokens (`iss`), to the letter.
    pub issuer: String,
    /// Where its keys are.
    pub keys: KeySource,
}

/// Where an issuer's public keys are, as a JSON Web Key Set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// At an address: `https`, or `http` on this machine.
    Url {
        /// It.
        url: Url,
        /// Whether its name may have an address that is not public.
        private_network: bool,
    },
    /// In a file.
    File(PathBuf),
}

/// Reads the section; `None` if it names nobody who issues tokens.
///
/// # Errors
///
/// [`ConfigError::Key`] for the first value that cannot be used.
pub(super) fn read(reader: &Reader<'_>) -> Result<Option<OAuthConfig>, ConfigError> {
    let issuers = issuers(reader)?;
    if issuers.is_empty() {
        let resource = key("resource");
        if reader.is_written(&resource) {
            let problem = "nobody issues tokens for it: name issuers under server.oauth.issuers";
            return Err(reader.error(&resource, problem));
        }
        return Ok(None);
    }
    let (resource, resource_url) = resource(reader)?;
    Ok(Some(OAuthConfig {
        audiences: audiences(reader, &resource),
        resource,
        resource_url,
        issuers,
        scopes: scopes(reader)?,
        algorithms: algorithms(reader)?,
        token_types: token_types(reader)?,
        principal_claim: word(reader, "principal_claim")?,
        leeway: reader.duration(&key("leeway"))?,
        quotas: OwnQuotas {
            requests_per_minute: optional(reader, "requests_per_minute")?,
            requests_in_flight: optional(reader, "requests_in_flight")?,
            cpu_seconds_per_hour: optional(reader, "cpu_seconds_per_hour")?,
        },
        pace: pace(reader)?,
    }))
}

fn key(name: &str) -> String {
    format!("{SECTION}.{name}")
}

fn optional<N: TryFrom<u64>>(reader: &Reader<'_>, name: &str) -> Result<Option<N>, ConfigError> {
    let path = key(name);
    if !reader.is_written(&path) {
        return Ok(None);
    }
    reader.number(&path).map(Some)
}

/// What is written, and as an address.
fn resource(reader: &Reader<'_>) -> Result<(String, Url), ConfigError> {
    let path = key("resource");
    let Some(written) = reader.text(&path) else {
        let problem = "tokens must be for this service and nothing else: write server.oauth.resource, the address of /mcp as clients know it, such as https://forge.example.com/mcp";
        return Err(reader.error(ISSUERS, problem));
    };
    let wrong = |problem| reader.error(&path, format!("{} {problem}", quoted(&written)));
    let url = address(&written).map_err(wrong)?;
    if url.query().is_some() {
        return Err(wrong("has a query: write the address up to its path"));
    }
    Ok((written, url))
}

/// An address that can be trusted to be whose it says: with TLS, or on this machine.
fn address(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text)
        .map_err(|_| "is no address: write one such as https://login.example.com/keys")?;
    let is_safe = url.scheme() == "https" || (url.scheme() == "http" && is_of_this_machine(&url));
    if !is_safe || url.host_str().is_none_or(str::is_empty) {
        return Err(
            "is not an https:// address; http:// is for this machine only (127.0.0.1, [::1], localhost)",
        );
    }
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err("has a user, a password or a # part: leave them out");
    }
    Ok(url)
}

/// Whether an address names this machine, and cannot come to mean another.
fn is_of_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let digits = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || digits.parse().is_ok_and(|address: IpAddr| match address {
            IpAddr::V4(address) => Ipv4Addr::is_loopback(&address),
            IpAddr::V6(address) => Ipv6Addr::is_loopback(&address),
        })
}

fn audiences(reader: &Reader<'_>, resource: &str) -> BTreeSet<String> {
    let written = reader.texts(&key("audiences"));
    if written.is_empty() {
        return BTreeSet::from([resource.to_owned()]);
    }
    written.into_iter().collect()
}

fn scopes(reader: &Reader<'_>) -> Result<OAuthScopes, ConfigError> {
    let scopes = OAuthScopes {
        run: word(reader, "run_scope")?,
        admin: word(reader, "admin_scope")?,
    };
    if scopes.run == scopes.admin {
        let problem = "this is server.oauth.run_scope as well: whoever may run code would be an admin; write another";
        return Err(reader.error(&key("admin_scope"), problem));
    }
    Ok(scopes)
}

/// A scope, as RFC 6749 has it, or a claim: printable, without blanks, quotes and backslashes.
fn word(reader: &Reader<'_>, name: &str) -> Result<String, ConfigError> {
    let path = key(name);
    let text = reader.text(&path).unwrap_or_default();
    let is_fit = (1..=MAX_WORD).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'));
    if is_fit {
        return Ok(text);
    }
    let problem = format!(
        "{} is not one word of 1 to {MAX_WORD} printable ASCII characters without \" and \\",
        quoted(&text)
    );
    Err(reader.error(&path, problem))
}

fn algorithms(reader: &Reader<'_>) -> Result<Vec<Algorithm>, ConfigError> {
    let path = key("algorithms");
    let mut algorithms = Vec::new();
    for (index, name) in reader.texts(&path).into_iter().enumerate() {
        let known = name.parse::<Algorithm>().ok();
        let Some(known) = known.filter(|known| known.family() != AlgorithmFamily::Hmac) else {
            let problem = format!(
                "{} is no signature by a private key: write some of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA",
                quoted(&name)
            );
            return Err(reader.error(&format!("{path}.{index}"), problem));
        };
        if !algorithms.contains(&known) {
            algorithms.push(known);
        }
    }
    if algorithms.is_empty() {
        let problem = "no token could be valid: write at least one algorithm, such as RS256";
        return Err(reader.error(&path, problem));
    }
    Ok(algorithms)
}

fn token_types(reader: &Reader<'_>) -> Result<BTreeSet<String>, ConfigError> {
    let path = key("token_types");
    let types: BTreeSet<String> = reader
        .texts(&path)
        .iter()
        .map(|name| name.to_ascii_lowercase())
        .collect();
    let is_known = |name: &String| matches!(name.as_str(), "at+jwt" | "jwt");
    if types.is_empty() || !types.iter().all(is_known) {
        let problem = "an access token is of type at+jwt or JWT: write one of them or both";
        return Err(reader.error(&path, problem));
    }
    Ok(types)
}

fn pace(reader: &Reader<'_>) -> Result<JwksPace, ConfigError> {
    let pace = JwksPace {
        max_age: reader.duration(&key("jwks_max_age"))?,
        max_stale: reader.duration(&key("jwks_max_stale"))?,
        min_interval: reader.duration(&key("jwks_min_interval"))?,
    };
    for (name, is_less, least) in [
        (
            "jwks_max_age",
            pace.max_age < pace.min_interval,
            "jwks_min_interval",
        ),
        (
            "jwks_max_stale",
            pace.max_stale < pace.max_age,
            "jwks_max_age",
        ),
    ] {
        if is_less {
            let (value, limit) = (reader.shown(&key(name)), reader.shown(&key(least)));
            let problem = format!(
                "{value} is below {SECTION}.{least}, which is {limit}: raise it, or lower {SECTION}.{least}"
            );
            return Err(reader.error(&key(name), problem));
        }
    }
    Ok(pace)
}

fn issuers(reader: &Reader<'_>) -> Result<Vec<IssuerConfig>, ConfigError> {
    let mut issuers: Vec<IssuerConfig> = Vec::new();
    for (name, node) in reader.named(ISSUERS) {
        let path = format!("{ISSUERS}.{}", clipped(name));
        let refused = |problem: &str| reader.errors.error(Some(node), path.as_str(), problem);
        if !is_name(name) {
            return Err(refused(
                "an issuer's name has 1 to 32 ASCII letters, digits, - and _, and begins with a letter or a digit",
            ));
        }
        if issuers.len() == MAX_ISSUERS {
            return Err(refused("there are more than 16 issuers"));
        }
        let issuer = issuer(&reader.inside(node), name, &path)?;
        if let Some(other) = issuers.iter().find(|other| other.issuer == issuer.issuer) {
            let problem = format!(
                "{ISSUERS}.{} is the same issuer: keep one, a token has one owner",
                other.name
            );
            return Err(refused(&problem));
        }
        issuers.push(issuer);
    }
    Ok(issuers)
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

fn issuer(inside: &Reader<'_>, name: &str, path: &str) -> Result<IssuerConfig, ConfigError> {
    let refused = |key: &str, problem: String| {
        let node = inside.tree.at(&[key]).unwrap_or(inside.tree);
        inside
            .errors
            .error(Some(node), format!("{path}.{key}"), problem)
    };
    let Some(issuer) = inside.text("issuer") else {
        let problem =
            "write what it calls itself in its tokens (iss), such as https://login.example.com";
        return Err(refused("issuer", problem.to_owned()));
    };
    let checked = |key: &str, text: &str| {
        address(text).map_err(|problem| refused(key, format!("{} {problem}", quoted(text))))
    };
    checked("issuer", &issuer)?;
    let keys = match (inside.text("jwks_url"), inside.path("jwks_file")) {
        (Some(url), None) => KeySource::Url {
            url: checked("jwks_url", &url)?,
            private_network: inside.flag("private_network"),
        },
        (None, Some(file)) => KeySource::File(file),
        (None, None) => {
            let problem = "nothing says where its keys are: write jwks_url or jwks_file";
            return Err(refused("jwks_url", problem.to_owned()));
        }
        (Some(_), Some(_)) => {
            let problem = "jwks_url and jwks_file are both there: keep one of them";
            return Err(refused("jwks_file", problem.to_owned()));
        }
    };
    Ok(IssuerConfig {
        name: name.to_owned(),
        issuer,
        keys,
    })
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, fs};

    use super::*;
    use crate::config::{Config, Sources};

    const ONE: &str =
        "issuers: {one: {issuer: 'https://a.example', jwks_url: 'https://a.example/keys'}}";
    const RESOURCE: &str = "resource: 'https://forge.example/mcp'";

    fn load(lines: &[&str]) -> Result<Option<OAuthConfig>, String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("f.yaml");
        let lines: Vec<String> = lines.iter().map(|line| format!("    {line}\n")).collect();
        fs::write(&file, format!("server:\n  oauth:\n{}", lines.concat())).unwrap();
        let sources = Sources {
            file: Some(file.clone()),
            data_dir: Some("/nowhere".into()),
            ..Sources::default()
        };
        match Config::load(&sources) {
            Ok(loaded) => Ok(loaded.config.server.oauth),
            Err(error) => Err(error
                .to_string()
                .replace(file.parent().unwrap().to_str().unwrap(), "")),
        }
    }

    #[test]
    fn an_issuer_and_an_address_are_enough() {
        let oauth = load(&[RESOURCE, ONE]).unwrap().unwrap();
        assert_eq!(
            oauth,
            OAuthConfig {
                resource: "https://forge.example/mcp".to_owned(),
                resource_url: Url::parse("https://forge.example/mcp").unwrap(),
                audiences: BTreeSet::from(["https://forge.example/mcp".to_owned()]),
                issuers: vec![IssuerConfig {
                    name: "one".to_owned(),
                    issuer: "https://a.example".to_owned(),
                    keys: KeySource::Url {
                        url: Url::parse("https://a.example/keys").unwrap(),
                        private_network: false,
                    },
                }],
                scopes: OAuthScopes {
                    run: "mcp:run".to_owned(),
                    admin: "mcp:admin".to_owned(),
                },
                algorithms: vec![
                    Algorithm::RS256,
                    Algorithm::PS256,
                    Algorithm::ES256,
                    Algorithm::ES384,
                    Algorithm::EdDSA,
                ],
                token_types: BTreeSet::from(["at+jwt".to_owned(), "jwt".to_owned()]),
                principal_claim: "sub".to_owned(),
                leeway: Duration::from_secs(30),
                quotas: OwnQuotas::default(),
                pace: JwksPace {
                    max_age: Duration::from_hours(1),
                    max_stale: Duration::from_hours(24),
                    min_interval: Duration::from_secs(10),
                },
            }
        );
        assert_eq!(load(&["leeway: 5"]), Ok(None));
    }

    #[test]
    fn this_machine_needs_no_tls() {
        for host in [
            "127.0.0.1:8000",
            "127.9.9.9",
            "[::1]:8000",
            "localhost:8000",
        ] {
            let issuer = format!(
                "issuers: {{one: {{issuer: 'http://{host}', jwks_url: 'http://{host}/k'}}}}"
            );
            assert!(load(&[RESOURCE, &issuer]).is_ok(), "{host}");
        }
        for host in [
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[::2]",
            "10.0.0.1",
            "0.0.0.0",
            "a@127.0.0.1",
            "localhost@evil.example",
            "",
        ] {
            let issuer = format!(
                "issuers: {{one: {{issuer: 'https://a.example', jwks_url: 'http://{host}/k'}}}}"
            );
            assert!(load(&[RESOURCE, &issuer]).is_err(), "{host}");
        }
    }

    #[test]
    fn error_texts() {
        let mut texts = String::new();
        for lines in [
            &[RESOURCE][..],
            &[ONE],
            &["resource: forge.example", ONE],
            &["resource: 'http://forge.example/mcp'", ONE],
            &["resource: 'https://forge.example/mcp?x=1'", ONE],
            &["resource: 'https://forge.example/mcp#x'", ONE],
            &[RESOURCE, ONE, "algorithms: [RS256, HS256]"],
            &[RESOURCE, ONE, "algorithms: [none]"],
            &[RESOURCE, ONE, "algorithms: []"],
            &[RESOURCE, ONE, "token_types: [id+jwt]"],
            &[RESOURCE, ONE, "run_scope: a b"],
            &[RESOURCE, ONE, "run_scope: 'a\"b'"],
            &[RESOURCE, ONE, "admin_scope: 'mcp:run'"],
            &[RESOURCE, ONE, "leeway: 1h"],
            &[RESOURCE, ONE, "requests_per_minute: 0"],
            &[RESOURCE, ONE, "jwks_max_age: 5"],
            &[RESOURCE, ONE, "jwks_max_stale: 60"],
            &[
                RESOURCE,
                "issuers: {one: {jwks_url: 'https://a.example/keys'}}",
            ],
            &[RESOURCE, "issuers: {one: {issuer: 'https://a.example'}}"],
            &[
                RESOURCE,
                "issuers: {one: {issuer: 'https://a.example', jwks_url: 'https://a.example', jwks_file: f}}",
            ],
            &[
                RESOURCE,
                "issuers: {one: {issuer: 'https://a.example', jwks_url: 'http://a.example/keys'}}",
            ],
            &[
                RESOURCE,
                "issuers: {one: {issuer: a.example, jwks_file: f}}",
            ],
            &[
                RESOURCE,
                "issuers: {a/b: {issuer: 'https://a.example', jwks_file: f}}",
            ],
            &[
                RESOURCE,
                "issuers: {one: {issuer: 'https://a.example', jwks_uri: 'https://a.example'}}",
            ],
            &[
                RESOURCE,
                "issuers: {a: {issuer: 'https://a.example', jwks_file: f}, b: {issuer: 'https://a.example', jwks_file: g}}",
            ],
        ] {
            let shown = lines.join(" | ").replace(RESOURCE, "R").replace(ONE, "ONE");
            writeln!(texts, "{shown}\n    {}", load(lines).unwrap_err()).unwrap();
        }
        insta::assert_snapshot!(texts);
    }
}
