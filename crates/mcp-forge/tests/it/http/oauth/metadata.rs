//! What a client is told before it has a token, and when its token is not enough.

use serde_json::json;

use super::{Served, get, issuer::Issuer, serve, token};

const METADATA: &str = "https://forge.example/.well-known/oauth-protected-resource/mcp";

#[test]
fn anybody_may_read_who_issues_tokens() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    let served = serve(&[("one", &issuer), ("two", &other)], "");
    for path in [
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
    ] {
        // A page elsewhere, without any token.
        let reply = served.request(
            &format!("GET {path}"),
            &["Origin: https://page.example"],
            "",
        );
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
        assert_eq!(reply.header("access-control-allow-credentials"), None);
        assert_eq!(
            reply.json(),
            json!({
                "resource": "https://forge.example/mcp",
                "authorization_servers": [issuer.name(), other.name()],
                "scopes_supported": ["mcp:run", "mcp:admin"],
                "bearer_methods_supported": ["header"],
                "resource_name": "MCP-Forge",
            })
        );
        let asked = served.request(
            &format!("OPTIONS {path}"),
            &[
                "Origin: https://page.example",
                "Access-Control-Request-Method: GET",
                "Access-Control-Request-Headers: mcp-protocol-version",
            ],
            "",
        );
        assert_eq!(asked.status, 204, "{asked:?}");
        assert_eq!(asked.header("access-control-allow-origin"), Some("*"));
        assert_eq!(
            asked.header("access-control-allow-headers"),
            Some("MCP-Protocol-Version")
        );
        let posted = served.request(&format!("POST {path}"), &[], "{}");
        assert_eq!(posted.status, 405, "{posted:?}");
        // Whoever made a name of theirs point here learns nothing.
        let rebound = served.request(&format!("GET {path}"), &["Host: evil.example"], "");
        assert_eq!(rebound.status, 403, "{rebound:?}");
    }
    // The name that tokens are for is one of the server's.
    let named = served.request("GET /health", &["Host: forge.example"], "");
    assert_eq!(named.status, 200, "{named:?}");
    let elsewhere = served.request("GET /.well-known/oauth-protected-resource/other", &[], "");
    assert_eq!(elsewhere.status, 401, "{elsewhere:?}");
    // A page elsewhere may read nothing else, with a token or without.
    let good = format!("Authorization: Bearer {}", issuer.token(&json!({})));
    let page = served.request(
        "GET /api/v1/sessions",
        &[&good, "Origin: https://page.example"],
        "",
    );
    assert_eq!(page.status, 403, "{page:?}");
    assert_eq!(page.header("access-control-allow-origin"), None);
}

#[test]
fn without_issuers_nothing_is_told_of_them() {
    let served = Served::start(&[]);
    let reply = served.request("GET /.well-known/oauth-protected-resource", &[], "");
    assert_eq!(reply.status, 401, "{reply:?}");
    assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    assert!(super::readiness(&served)["checks"].get("issuers").is_none());
    let jwt = Issuer::new().token(&json!({}));
    let refused = super::ask(&served, &jwt);
    assert_eq!(
        refused.header("www-authenticate"),
        Some(r#"Bearer error="invalid_token""#)
    );
}

#[test]
fn without_a_token_a_client_is_told_where_to_get_one() {
    let issuer = Issuer::new();
    let served = serve(&[("one", &issuer)], "    run_scope: forge.use\n");
    for line in ["POST /mcp", "GET /api/v1/sessions", "GET /metrics"] {
        let reply = served.request(line, &[], "");
        assert_eq!(reply.status, 401, "{reply:?}");
        let challenge = format!(r#"Bearer scope="forge.use", resource_metadata="{METADATA}""#);
        assert_eq!(reply.header("www-authenticate"), Some(challenge.as_str()));
    }
    // The word is the operator's.
    let scoped = |scope: &str| super::ask(&served, &issuer.token(&json!({"scope": scope}))).status;
    assert_eq!((scoped("forge.use"), scoped("mcp:run")), (200, 403));
}

#[test]
fn a_scope_that_is_missing_is_named() {
    let issuer = Issuer::new();
    let served = serve(&[("one", &issuer)], "");
    let with_scope = |scope: &str| issuer.token(&json!({"scope": scope}));
    let refused = |path: &str, scope: &str, wanted: &str| {
        let reply = get(&served, path, &with_scope(scope));
        assert_eq!(reply.status, 403, "{path} {scope}: {reply:?}");
        let challenge = format!(
            r#"Bearer error="insufficient_scope", scope="{wanted}", resource_metadata="{METADATA}""#
        );
        assert_eq!(
            reply.header("www-authenticate"),
            Some(challenge.as_str()),
            "{path}"
        );
    };
    for scope in [
        "",
        "openid",
        "mcp:runs",
        "mcp",
        "MCP:RUN",
        "mcp:run,mcp:admin",
    ] {
        refused("/api/v1/sessions", scope, "mcp:run");
        refused("/mcp", scope, "mcp:run");
    }
    refused("/api/v1/sessions", "mcp:admin", "mcp:admin mcp:run");
    let admin_only = ["/metrics", "/api/v1/audit", "/api/v1/approvals"];
    for path in admin_only {
        refused(path, "mcp:run", "mcp:run mcp:admin");
        refused(path, "", "mcp:admin");
        // Of the file of tokens as before.
        let listed = get(&served, path, &token("ada"));
        assert_eq!(
            (listed.status, listed.header("www-authenticate")),
            (
                403,
                Some(r#"Bearer error="insufficient_scope", scope="admin""#)
            )
        );
        let admin = get(&served, path, &with_scope("mcp:run mcp:admin"));
        assert_eq!(admin.status, 200, "{path}: {admin:?}");
        assert_eq!(get(&served, path, &token("admin")).status, 200);
    }
}
