//! What clients are told of the tokens that are accepted: the document of RFC 9728, and challenges.

use serde_json::{Value, json};

use super::super::Scope;
use crate::config::{OAuthConfig, OAuthScopes};

/// Where such a document is, of a resource without a path; the path of others follows.
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// Where MCP is, whatever it is called from outside.
const MCP: &str = "/mcp";

/// Under which terms tokens of others are let in.
#[derive(Debug, PartialEq, Eq)]
pub struct Terms {
    resource: String,
    issuers: Vec<String>,
    scopes: OAuthScopes,
    /// The document's address as clients know it.
    metadata: String,
    /// The paths at which it is served.
    paths: [String; 3],
}

impl Terms {
    pub(super) fn new(config: &OAuthConfig) -> Self {
        let path = config.resource_url.path().trim_end_matches('/');
        let origin = config.resource_url.origin().ascii_serialization();
        let own = format!("{WELL_KNOWN}{path}");
        Self {
            resource: config.resource.clone(),
            issuers: config
                .issuers
                .iter()
                .map(|issuer| issuer.issuer.clone())
                .collect(),
            scopes: config.scopes.clone(),
            metadata: format!("{origin}{own}"),
            paths: [WELL_KNOWN.to_owned(), format!("{WELL_KNOWN}{MCP}"), own],
        }
    }

    /// The word for a scope.
    pub fn word(&self, scope: Scope) -> &str {
        match scope {
            Scope::Run => &self.scopes.run,
            Scope::Admin => &self.scopes.admin,
        }
    }

    /// Whether the document is at a path.
    pub fn are_at(&self, path: &str) -> bool {
        self.paths.iter().any(|known| known == path)
    }

    /// The document: what the service is called, who issues tokens for it, and with which scopes.
    pub fn document(&self) -> Value {
        json!({
            "resource": self.resource,
            "authorization_servers": self.issuers,
            "scopes_supported": [self.scopes.run, self.scopes.admin],
            "bearer_methods_supported": ["header"],
            "resource_name": "MCP-Forge",
        })
    }

    /// What a request without a token is told.
    pub fn challenge(&self) -> String {
        self.told("", &self.scopes.run)
    }

    /// What a request is told whose token lets nobody in.
    pub fn invalid(&self) -> String {
        self.told(r#"error="invalid_token", "#, &self.scopes.run)
    }

    /// What a request is told whose token has some scopes and needs one more. All are named: a
    /// token that is asked for with the new one alone would have lost the others.
    pub fn insufficient(&self, granted: impl IntoIterator<Item = Scope>, needed: Scope) -> String {
        let mut words: Vec<&str> = granted.into_iter().map(|scope| self.word(scope)).collect();
        words.push(self.word(needed));
        self.told(r#"error="insufficient_scope", "#, &words.join(" "))
    }

    fn told(&self, error: &str, scope: &str) -> String {
        let metadata = &self.metadata;
        format!(r#"Bearer {error}scope="{scope}", resource_metadata="{metadata}""#)
    }
}
