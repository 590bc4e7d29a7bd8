//! Tests of what needs no key: names of principals, and what clients are told. Tokens and keys are
//! tried over HTTP.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::config::{Config, Sources};

fn config(section: &str) -> OAuthConfig {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.yaml");
    let issuers =
        "issuers: {one: {issuer: 'https://a.example', jwks_url: 'https://a.example/keys'}}";
    std::fs::write(
        &file,
        format!("server:\n  oauth:\n    {issuers}\n    {section}\n"),
    )
    .unwrap();
    let sources = Sources {
        file: Some(file),
        data_dir: Some("/nowhere".into()),
        ..Sources::default()
    };
    Config::load(&sources).unwrap().config.server.oauth.unwrap()
}

#[test]
fn the_document_is_where_clients_look_for_it() {
    for (resource, metadata, path) in [
        (
            "https://forge.example/mcp",
            "https://forge.example/.well-known/oauth-protected-resource/mcp",
            "/mcp",
        ),
        (
            "https://forge.example",
            "https://forge.example/.well-known/oauth-protected-resource",
            "",
        ),
        (
            "https://forge.example/",
            "https://forge.example/.well-known/oauth-protected-resource",
            "",
        ),
        (
            "https://forge.example:8443/a/b/",
            "https://forge.example:8443/.well-known/oauth-protected-resource/a/b",
            "/a/b",
        ),
        (
            "http://127.0.0.1:3000/mcp",
            "http://127.0.0.1:3000/.well-known/oauth-protected-resource/mcp",
            "/mcp",
        ),
    ] {
        let terms = Terms::new(&config(&format!("resource: '{resource}'")));
        assert_eq!(terms.document()["resource"], resource);
        assert_eq!(
            terms.challenge(),
            format!(r#"Bearer scope="mcp:run", resource_metadata="{metadata}""#)
        );
        for served in ["", "/mcp", path] {
            assert!(terms.are_at(&format!("/.well-known/oauth-protected-resource{served}")));
        }
        assert!(!terms.are_at("/.well-known/oauth-protected-resource/other"));
        assert!(!terms.are_at("/mcp"));
    }
}

#[test]
fn principals_can_be_read_where_that_is_safe() {
    let named = |owner: &str| principal("one", owner).as_str().to_owned();
    for owner in [
        "ada",
        "auth0|5f7c8ec7",
        "ada@example.com",
        "1089-ab:c_d.e+f",
        &"x".repeat(64),
    ] {
        assert_eq!(named(owner), format!("one/{owner}"));
    }
    for owner in ["a b", "a/b", "#a", "ä", "a\n", "\"", &"x".repeat(65)] {
        let name = named(owner);
        assert!(
            name.starts_with("one/#") && name.len() == 69,
            "{owner}: {name}"
        );
    }
}

proptest! {
    /// Whatever issuers write, nobody gets another's name, nor one of the file of tokens.
    #[test]
    fn principals_are_told_apart(owners in prop::collection::btree_set(".{1,80}|[a-c/#]{1,3}", 1..20)) {
        let names: BTreeSet<Principal> = owners
            .iter()
            .flat_map(|owner| ["a", "a-b"].map(|issuer| principal(issuer, owner)))
            .collect();
        prop_assert_eq!(names.len(), owners.len() * 2);
        prop_assert!(names.iter().all(|name| name.as_str().contains('/')));
    }
}
