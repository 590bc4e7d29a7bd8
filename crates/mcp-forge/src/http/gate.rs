//! The gate: what is asked of every request before anything else happens with it.
//!
//! By which name the server is called and which web page asks: against pages that make a name of
//! theirs point here. Then the token, also from this machine: every local program can connect.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use axum::{
    body::Body,
    extract::State,
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri,
    header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, ORIGIN, TRANSFER_ENCODING},
    uri::Authority,
};

use super::{Caller, Problem, Scope};
use crate::{
    identity::{Credentials, NotLetIn, Refusal, Terms},
    web::needs,
};

/// What anybody may ask who can connect. It tells nothing of what the server does.
const PUBLIC: [&str; 3] = ["/health", "/livez", "/readyz"];

/// After so many seconds a token is worth showing again whose issuer did not answer.
const ISSUER_PAUSE: u64 = 10;

/// By which names requests may call the server.
#[derive(Debug, Clone)]
pub(super) struct Hosts {
    /// In lower case.
    pub(super) names: BTreeSet<String>,
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Whether any address in digits will do.
    pub(super) any_address: bool,
}

/// What the gate knows.
#[derive(Debug)]
pub(super) struct Gate {
    hosts: Hosts,
    origins: BTreeSet<String>,
    credentials: Arc<Credentials>,
}

impl Gate {
    pub(super) fn new(hosts: Hosts, origins: &[String], credentials: Arc<Credentials>) -> Self {
        Self {
            hosts,
            origins: origins
                .iter()
                .map(|origin| origin.to_ascii_lowercase())
                .collect(),
            credentials,
        }
    }
}

/// Lets a request pass, with its [`Caller`] and without its token; or says why not.
pub(super) async fn pass(
    State(gate): State<Arc<Gate>>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    // What is refused may not have been read to its end: what is left of it would be taken for the next
    // request, or the connection closed under a client that had already sent one.
    let has_body = has_body(request.headers());
    match gate.admit(request.uri(), request.headers()).await {
        Ok(Some(caller)) => {
            request.extensions_mut().insert(caller);
        }
        Ok(None) => {}
        Err(refused) => return last_if(has_body, refused.into_response()),
    }
    // Nothing behind the gate needs it, and what is not there ends in no log.
    request.headers_mut().remove(AUTHORIZATION);
    // A length beside the chunks has been passed over; a proxy in front of us may have believed it, and
    // what follows on the connection would not be what it thinks.
    let is_last = request.headers().contains_key(TRANSFER_ENCODING);
    let response = next.run(request).await;
    let is_refused = response.status().is_client_error() || response.status().is_server_error();
    last_if(is_last || (has_body && is_refused), response)
}

fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH);
    headers.contains_key(TRANSFER_ENCODING) || length.is_some_and(|length| length != "0")
}

/// Tells the client, perhaps, that its connection ends with this.
fn last_if(is_last: bool, mut response: Response) -> Response {
    if is_last {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    response
}

/// Whoever sent a request that has passed, if the token is good for what it asks.
pub(super) fn caller(request: &Request<Body>, scope: Scope) -> Result<Caller, Problem> {
    let caller = request
        .extensions()
        .get::<Caller>()
        .cloned()
        .ok_or_else(unknown)?;
    needs(&caller, scope)?;
    Ok(caller)
}

impl Gate {
    /// Who sent a request that may pass; nobody, where anybody may ask.
    async fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<Caller>, Problem> {
        let host = self.check_host(uri, headers)?;
        // Where tokens are had is told to any page: it is for clients that have none yet.
        if self.terms().is_some_and(|terms| terms.are_at(uri.path())) {
            return Ok(None);
        }
        self.check_origin(headers, &host)?;
        if PUBLIC.contains(&uri.path()) {
            return Ok(None);
        }
        self.identify(headers).await.map(Some)
    }

    fn terms(&self) -> Option<&Terms> {
        let oauth = self.credentials.oauth.as_ref()?;
        Some(oauth.terms())
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<Authority, Problem> {
        let bad = |detail: &str| Problem::new(StatusCode::BAD_REQUEST, detail);
        let host = single(headers, &HOST)
            .ok_or_else(|| bad("A request has one Host header."))?
            .parse::<Authority>()
            .map_err(|_| bad("The Host header is no host and port."))?;
        // A whole address in the request's first line goes before the header, so it counts as well.
        let hosts = [Some(&host), uri.authority()];
        if hosts
            .into_iter()
            .flatten()
            .any(|host| !self.hosts.has(host))
        {
            let detail = "The server may not be called by the name in the Host header; server.allowed_hosts lists further names.";
            return Err(Problem::new(StatusCode::FORBIDDEN, detail));
        }
        Ok(host)
    }

    fn check_origin(&self, headers: &HeaderMap, host: &Authority) -> Result<(), Problem> {
        if headers.contains_key(ORIGIN) && !self.is_allowed_origin(headers, host) {
            let detail = "The web page in the Origin header may not call this server; server.allowed_origins lists those that may.";
            return Err(Problem::new(StatusCode::FORBIDDEN, detail));
        }
        Ok(())
    }

    /// A page of this server itself, or one that the operator lists.
    fn is_allowed_origin(&self, headers: &HeaderMap, host: &Authority) -> bool {
        let Some(origin) = single(headers, &ORIGIN).map(str::to_ascii_lowercase) else {
            return false;
        };
        let own = host.as_str().to_ascii_lowercase();
        self.origins.contains(&origin)
            || ["http://", "https://"]
                .iter()
                .any(|scheme| origin.strip_prefix(scheme) == Some(&own))
    }

    async fn identify(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let Some(token) = single(headers, &AUTHORIZATION).and_then(bearer) else {
            let challenge = self.terms().map(Terms::challenge);
            return Err(no_token().with_challenge(challenge.as_deref().unwrap_or("Bearer")));
        };
        self.credentials
            .caller(token)
            .await
            .map_err(|not_let_in| self.refused(&not_let_in))
    }

    fn refused(&self, not_let_in: &NotLetIn) -> Problem {
        match not_let_in {
            NotLetIn::Tokens(error) => {
                tracing::error!("nobody is let in: {error}");
                let detail = "The server cannot read its tokens; its log says why.";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
            }
            NotLetIn::Refused(Refusal::NoKeys) => {
                let detail = "The server has no keys of this token's issuer now, so it cannot tell whether it is valid; its log says why.";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).again_in(ISSUER_PAUSE)
            }
            NotLetIn::Unknown => self.invalid("The token is none that this server knows."),
            NotLetIn::Refused(Refusal::Invalid(reason)) => {
                self.invalid(&format!("The access token is refused: {reason}."))
            }
        }
    }

    fn invalid(&self, detail: &str) -> Problem {
        let challenge = self.terms().map(Terms::invalid);
        let challenge = challenge
            .as_deref()
            .unwrap_or(r#"Bearer error="invalid_token""#);
        Problem::new(StatusCode::UNAUTHORIZED, detail).with_challenge(challenge)
    }
}

impl Hosts {
    fn has(&self, host: &Authority) -> bool {
        // No names and passwords.
        if host.as_str().contains('@') {
            return false;
        }
        let name = host.host().to_ascii_lowercase();
        let digits = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(&name);
        match digits.parse::<IpAddr>() {
            Ok(address) => self.any_address || self.addresses.contains(&address),
            Err(_) => self.names.contains(&name),
        }
    }
}

/// What is said where the gate has let somebody pass without a token, which it does not.
pub(super) fn unknown() -> Problem {
    no_token().with_challenge("Bearer")
}

fn no_token() -> Problem {
    let detail = "A request shows its token: `Authorization: Bearer TOKEN`. The server prints one at its first start.";
    Problem::new(StatusCode::UNAUTHORIZED, detail)
}

/// A header that is there exactly once, and is text.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim_start_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(any_address: bool) -> Hosts {
        Hosts {
            names: BTreeSet::from(["localhost".to_owned(), "forge.example".to_owned()]),
            addresses: BTreeSet::from(["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()]),
            any_address,
        }
    }

    #[test]
    fn a_name_that_is_not_ours_is_no_host() {
        let has = |any, host: &str| hosts(any).has(&host.parse().unwrap());
        for ours in [
            "localhost",
            "LocalHost:3000",
            "127.0.0.1:1",
            "[::1]:3000",
            "forge.example",
        ] {
            assert!(has(false, ours), "{ours}");
        }
        for other in [
            "evil.example",
            "localhost.",
            "localhost.evil.example",
            "127.0.0.2",
            "127.1",
            "2130706433",
            "a@localhost",
        ] {
            assert!(!has(false, other), "{other}");
        }
        assert!(has(true, "192.0.2.7:3000") && !has(true, "evil.example"));
    }

    #[test]
    fn a_token_is_in_its_header_once() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc"), Some("abc"));
        for wrong in ["abc", "Basic abc", "Bearer", "Bearerabc"] {
            assert_eq!(bearer(wrong), None, "{wrong}");
        }
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, "Bearer a".parse().unwrap());
        assert_eq!(single(&headers, &AUTHORIZATION), Some("Bearer a"));
        headers.append(AUTHORIZATION, "Bearer b".parse().unwrap());
        assert_eq!(single(&headers, &AUTHORIZATION), None);
    }
}
