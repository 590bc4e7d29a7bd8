//! Whose things are whose, where tokens come from several issuers and from the file.

use std::time::Instant;

use serde_json::{Value, json};

use super::{
    Served, ask, await_that, get,
    issuer::{Issuer, Key, now},
    serve, serve_with, token,
};
use crate::http::{
    quotas::BURN,
    served::{PATIENCE, Reply, initialize, modern_meta},
};

fn post(served: &Served, token: &str, more: &[&str], body: &str) -> Reply {
    let authorization = format!("Authorization: Bearer {token}");
    let mut headers = vec![
        authorization.as_str(),
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
    ];
    headers.extend(more);
    served.request("POST /mcp", &headers, body)
}

/// Runs code in the session `shared` of whoever shows a token.
fn run(served: &Served, token: &str, code: &str) -> Value {
    let headers = [
        "MCP-Protocol-Version: 2026-07-28",
        "Mcp-Method: tools/call",
        "Mcp-Name: execute_python",
    ];
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
        "name": "execute_python", "arguments": {"code": code, "session_id": "shared"}, "_meta": modern_meta()}});
    let reply = post(served, token, &headers, &message.to_string());
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.message()["result"]["structuredContent"].clone()
}

#[test]
fn a_name_is_another_principal_for_each_issuer_and_for_the_file() {
    let (one, two) = (Issuer::new(), Issuer::new());
    let served = serve(&[("one", &one), ("two", &two)], "");
    let tokens = [one.token(&json!({})), two.token(&json!({})), token("ada")];
    for (index, token) in tokens.iter().enumerate() {
        let answer = run(
            &served,
            token,
            &format!("found = globals().get('mine'); mine = {index}; found"),
        );
        assert_eq!(answer["result"], Value::Null, "{answer}");
    }
    for (index, token) in tokens.iter().enumerate() {
        assert_eq!(
            run(&served, token, "mine")["result"],
            index,
            "another's session"
        );
        let sessions = ask(&served, token).json();
        assert_eq!(
            sessions["sessions"].as_array().unwrap().len(),
            1,
            "{sessions}"
        );
    }
    // The same person with another token, of another key.
    assert_eq!(
        run(&served, &one.token(&json!({"jti": "2"})), "mine")["result"],
        0
    );
    let audit = get(&served, "/api/v1/audit", &token("admin")).body;
    for principal in ["one/ada", "two/ada", "ada"] {
        assert!(
            audit.contains(&format!("\"principal\":\"{principal}\"")),
            "{audit}"
        );
    }
    // What a token says of its owner is no way into the names of others.
    for sub in [
        "../one/ada",
        "one/ada",
        "ada\u{0}",
        "Ada",
        "ada ",
        "\u{430}da",
        "#ada",
    ] {
        let answer = run(
            &served,
            &two.token(&json!({"sub": sub})),
            "'mine' in globals()",
        );
        assert_eq!(answer["result"], false, "{sub}");
    }
}

#[test]
fn a_token_that_expires_in_the_middle_of_a_session_opens_nothing_more() {
    let issuer = Issuer::new();
    let served = serve(&[("one", &issuer)], "    leeway: 0\n");
    let short = issuer.token(&json!({"exp": now() + 20}));
    let opened = post(&served, &short, &[], &initialize("2025-11-25"));
    let session = format!(
        "Mcp-Session-Id: {}",
        opened.header("mcp-session-id").unwrap()
    );
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_eq!(post(&served, &short, &[&session], initialized).status, 202);
    assert_eq!(post(&served, &short, &[&session], list).status, 200);
    await_that("it expires", || {
        post(&served, &short, &[&session], list).status == 401
    });
    let refused = post(&served, &short, &[&session], list);
    assert!(
        refused.json()["detail"]
            .as_str()
            .unwrap()
            .contains("expired"),
        "{refused:?}"
    );
    // Its owner goes on with a new one; nobody else does with theirs.
    let (fresh, other) = (
        issuer.token(&json!({})),
        issuer.token(&json!({"sub": "bob"})),
    );
    assert_eq!(post(&served, &other, &[&session], list).status, 404);
    assert_eq!(post(&served, &fresh, &[&session], list).status, 200);
}

#[test]
fn a_stream_without_an_end_ends_with_the_token_that_opened_it() {
    let issuer = Issuer::new();
    let served = serve(&[("one", &issuer)], "    leeway: 0\n");
    let short = issuer.token(&json!({"exp": now() + 20}));
    let opened = post(&served, &short, &[], &initialize("2025-11-25"));
    let session = format!(
        "Mcp-Session-Id: {}",
        opened.header("mcp-session-id").unwrap()
    );
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_eq!(post(&served, &short, &[&session], initialized).status, 202);
    let began = Instant::now();
    let authorization = format!("Authorization: Bearer {short}");
    let headers = [
        authorization.as_str(),
        session.as_str(),
        "Accept: text/event-stream",
    ];
    // Read until the server is done with it; what had no end would be given up after two minutes.
    let stream = served.request("GET /mcp", &headers, "");
    assert_eq!(stream.status, 200, "{stream:?}");
    assert!(began.elapsed() < PATIENCE / 2, "it did not end");
    assert_eq!(
        ask(&served, &short).status,
        401,
        "it ended before its token"
    );
}

#[test]
fn who_it_is_and_how_much_they_may_is_the_operators_to_say() {
    let issuer = Issuer::with(vec![Key::p256("first")]);
    let more = "    principal_claim: email\n    requests_in_flight: 4\n    requests_per_minute: 1\n    audiences: [forge]\n    algorithms: [ES256]\n    token_types: [at+jwt]\n";
    let served = serve(&[("one", &issuer)], more);
    let claims = |email: &str| json!({"aud": "forge", "email": email});
    assert_eq!(
        ask(&served, &issuer.token(&json!({"aud": "forge"}))).status,
        401,
        "no email"
    );
    assert_eq!(
        ask(&served, &issuer.token(&json!({"email": "a@b"}))).status,
        401,
        "aud"
    );
    let untyped = issuer.header(&json!({"typ": null}));
    let untyped = issuer
        .key()
        .token(&untyped, &issuer.with_claims(&claims("a@b")));
    assert_eq!(ask(&served, &untyped).status, 401, "typ");
    let first = issuer.token(&claims("a@b"));
    assert_eq!(
        (ask(&served, &first).status, ask(&served, &first).status),
        (200, 429)
    );
    assert_eq!(ask(&served, &issuer.token(&claims("c@d"))).status, 200);
    assert_eq!(ask(&served, &token("ada")).status, 200);
    assert_eq!(ask(&served, &token("ada")).status, 200);
}

#[test]
fn cpu_time_of_an_issuers_principal_is_the_operators_to_say_too() {
    let issuer = Issuer::with(vec![Key::p256("first")]);
    let served = serve(&[("one", &issuer)], "    cpu_seconds_per_hour: 1\n");
    let run = |token: &str, code: &str| {
        let authorization = format!("Authorization: Bearer {token}");
        let headers = [authorization.as_str(), "Content-Type: application/json"];
        let body = json!({"code": code}).to_string();
        served
            .request("POST /api/v1/execute", &headers, &body)
            .status
    };
    let theirs = issuer.token(&json!({}));
    assert_eq!((run(&theirs, BURN), run(&theirs, "1")), (200, 429));
    let ours = token("ada");
    assert_eq!((run(&ours, BURN), run(&ours, "1")), (200, 200));
}

#[test]
fn what_cannot_work_is_refused_at_the_start() {
    for (issuers, wanted) in [
        (
            "      one: {issuer: \"https://a.example\", jwks_file: nowhere.json}\n",
            "nowhere.json",
        ),
        (
            "      one: {issuer: \"https://a.example\", jwks_url: \"http://a.example/keys\"}\n",
            "server.oauth.issuers.one.jwks_url",
        ),
    ] {
        let said = std::panic::catch_unwind(|| serve_with(issuers, ""));
        let said = said.err().unwrap();
        let said = said.downcast_ref::<String>().unwrap();
        assert!(said.contains(wanted), "{said}");
    }
}
