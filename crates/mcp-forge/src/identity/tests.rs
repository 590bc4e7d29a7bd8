//! Tests of the file of tokens.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn hash(token: &str) -> String {
    format!("{:x}", Sha256::digest(token))
}

fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens.yaml");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    (directory, file)
}

#[test]
fn the_first_start_makes_a_token_that_is_kept_as_a_hash() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens.yaml");
    let (tokens, made) = Tokens::open_or_make(&file).unwrap();
    let made = made.unwrap();
    let caller = tokens.caller(made.reveal()).unwrap().unwrap();
    assert_eq!(caller.principal, Principal::local());
    assert!(caller.may(Scope::Run) && caller.may(Scope::Admin));
    // 256 bits.
    assert_eq!(made.reveal().len(), PREFIX.len() + 64);
    assert!(!fs::read_to_string(&file).unwrap().contains(made.reveal()));
    assert!(!format!("{made:?}").contains(made.reveal()));
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    // Nothing is left of the draft.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);

    let (again, none) = Tokens::open_or_make(&file).unwrap();
    assert!(none.is_none());
    assert!(again.caller(made.reveal()).unwrap().is_some());
}

#[test]
fn only_the_whole_token_is_one() {
    let text = format!("tokens: [{{principal: ada, sha256: {}}}]", hash("secret"));
    let (_directory, file) = written(&text);
    let tokens = Tokens::open(&file).unwrap();
    let caller = tokens.caller("secret").unwrap().unwrap();
    assert_eq!(caller.principal, Principal::named("ada"));
    assert!(caller.may(Scope::Run) && !caller.may(Scope::Admin));
    let long = "secret".repeat(1000);
    for wrong in [
        "",
        "Secret",
        "secre",
        "secret ",
        "secrets",
        &hash("secret"),
        &long,
    ] {
        assert_eq!(tokens.caller(wrong).unwrap(), None, "{wrong}");
    }
}

#[test]
fn a_token_that_is_taken_out_is_refused_at_once() {
    let entry =
        |name: &str, token: &str| format!("- {{principal: {name}, sha256: {}}}\n", hash(token));
    let (_directory, file) = written(&format!(
        "tokens:\n{}{}",
        entry("ada", "a"),
        entry("bob", "b")
    ));
    let tokens = Tokens::open(&file).unwrap();
    assert!(tokens.caller("a").unwrap().is_some());
    fs::write(&file, format!("tokens:\n{}", entry("bob", "b"))).unwrap();
    assert!(tokens.caller("a").unwrap().is_none());
    assert!(tokens.caller("b").unwrap().is_some());
    // Half a file lets nobody in, rather than whom it let in before.
    fs::write(&file, "tokens:\n- {principal: bob").unwrap();
    assert!(tokens.caller("b").is_err());
    fs::write(&file, format!("tokens:\n{}", entry("bob", "b"))).unwrap();
    assert!(tokens.caller("b").unwrap().is_some());
}

#[test]
fn a_file_that_is_no_list_of_tokens_is_refused_without_quoting_it() {
    let good = hash("x");
    for (text, told) in [
        (
            "tokens: [{principal: ada, sha256: supersecret}]".to_owned(),
            "tokens.0.sha256",
        ),
        (
            format!("tokens: [{{principal: 'a/b', sha256: {good}}}]"),
            "tokens.0.principal",
        ),
        (
            format!("tokens: [{{principal: ada, sha256: {good}, scopes: [root]}}]"),
            "`run` and `admin`",
        ),
        (
            format!("tokens: [{{principal: ada, sha256: {good}, token: supersecret}}]"),
            "no list of tokens",
        ),
        (
            format!("tokens: [{{principal: a, sha256: {good}}}, {{principal: b, sha256: {good}}}]"),
            "listed twice",
        ),
        ("supersecret".to_owned(), "no list of tokens"),
        (String::new(), "no list of tokens"),
    ] {
        let (_directory, file) = written(&text);
        let message = Tokens::open(&file).unwrap_err().to_string();
        assert!(message.contains(told), "{text}: {message}");
        assert!(!message.contains("supersecret"), "{message}");
    }
}

#[test]
fn a_file_that_others_can_write_is_refused() {
    let (_directory, file) = written("tokens: []");
    assert!(Tokens::open(&file).is_ok());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o622)).unwrap();
    let message = Tokens::open(&file).unwrap_err().to_string();
    assert!(message.contains("chmod 600"), "{message}");
}
