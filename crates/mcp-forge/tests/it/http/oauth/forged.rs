//! Tokens that are not what they seem: each differs in one thing from one that is let in.

use serde_json::{Value, json};

use super::{
    Served, ask,
    issuer::{Issuer, Key, encode, hs256, now, unsigned},
    serve,
};

/// What was answered to a forged token: nothing but a refusal, and how to do better.
fn refused(served: &Served, name: &str, token: &str) {
    let reply = ask(served, token);
    assert_eq!(reply.status, 401, "{name}: {reply:?}");
    let challenge = reply.header("www-authenticate").unwrap();
    assert_eq!(
        challenge,
        r#"Bearer error="invalid_token", scope="mcp:run", resource_metadata="https://forge.example/.well-known/oauth-protected-resource/mcp""#,
        "{name}"
    );
}

#[test]
fn every_algorithm_that_is_accepted_lets_in() {
    let issuer = Issuer::with(vec![
        Key::rsa("rsa"),
        Key::p256("p256"),
        Key::p384("p384"),
        Key::ed25519("ed"),
    ]);
    let served = serve(&[("one", &issuer)], "");
    let claims = issuer.claims();
    for key in &issuer.keys {
        let reply = ask(&served, &key.token(&key.header(), &claims));
        assert_eq!(reply.status, 200, "{}: {reply:?}", key.id);
    }
    let rsa = issuer.key();
    let padded = issuer.header(&json!({"alg": "PS256"}));
    assert_eq!(ask(&served, &rsa.token(&padded, &claims)).status, 200);
    for typ in [
        json!("JWT"),
        json!("application/at+jwt"),
        json!("AT+JWT"),
        Value::Null,
    ] {
        let header = issuer.header(&json!({"typ": typ}));
        assert_eq!(
            ask(&served, &rsa.token(&header, &claims)).status,
            200,
            "{typ}"
        );
    }
    for claims in [
        json!({"aud": ["https://other.example", super::RESOURCE]}),
        json!({"exp": now() - 20}),
        json!({"nbf": now() + 20, "iat": now() + 20}),
        json!({"iat": null}),
        json!({"scope": null, "scp": ["mcp:run"]}),
    ] {
        let reply = ask(&served, &issuer.token(&claims));
        assert_eq!(reply.status, 200, "{claims}: {reply:?}");
    }
}

#[test]
fn a_claim_that_is_wrong_lets_nobody_in() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    let served = serve(&[("one", &issuer)], "");
    assert_eq!(ask(&served, &issuer.token(&json!({}))).status, 200);
    for claims in [
        json!({"aud": "https://forge.example"}),
        json!({"aud": "https://forge.example/mcp/"}),
        json!({"aud": "HTTPS://FORGE.EXAMPLE/mcp"}),
        json!({"aud": ["https://other.example"]}),
        json!({"aud": []}),
        json!({"aud": null}),
        json!({"aud": {"https://forge.example/mcp": true}}),
        json!({"iss": other.name()}),
        json!({"iss": format!("{}/", issuer.name())}),
        json!({"iss": [issuer.name()]}),
        json!({"iss": null}),
        json!({"iss": ""}),
        json!({"exp": now() - 40}),
        json!({"exp": null}),
        json!({"exp": "9999999999"}),
        json!({"exp": -1}),
        json!({"exp": 0}),
        json!({"exp": 1e300}),
        json!({"exp": [9_999_999_999_u64]}),
        json!({"nbf": now() + 60}),
        json!({"nbf": "0"}),
        json!({"iat": now() + 60}),
        json!({"iat": "now"}),
        json!({"sub": null}),
        json!({"sub": ""}),
        json!({"sub": 7}),
        json!({"sub": ["ada"]}),
    ] {
        refused(&served, &claims.to_string(), &issuer.token(&claims));
    }
    // A name twice: whoever reads the first sees another token than whoever reads the second.
    let claims = issuer.claims().to_string();
    for doubled in [
        claims.replacen('{', r#"{"aud":"https://other.example","#, 1),
        claims.replacen('{', r#"{"iss":"https://other.example","#, 1),
        claims.replacen('{', r#"{"exp":9999999999,"#, 1),
    ] {
        let message = format!(
            "{}.{}",
            encode(issuer.header(&json!({})).to_string()),
            encode(&doubled)
        );
        let signature = issuer.key().sign("ES256", message.as_bytes());
        refused(
            &served,
            &doubled,
            &format!("{message}.{}", encode(signature)),
        );
    }
}

#[test]
fn a_header_that_is_wrong_lets_nobody_in() {
    let issuer = Issuer::with(vec![Key::rsa("rsa"), Key::p256("p256"), Key::p384("p384")]);
    let served = serve(&[("one", &issuer)], "");
    let (claims, rsa) = (issuer.claims(), issuer.key());
    assert_eq!(
        ask(&served, &rsa.token(&issuer.header(&json!({})), &claims)).status,
        200
    );
    for header in [
        json!({"alg": "RS384"}),
        json!({"alg": "PS512"}),
        json!({"alg": "ES256"}),
        json!({"alg": "rs256"}),
        json!({"alg": ""}),
        json!({"alg": null}),
        json!({"alg": ["RS256"]}),
        json!({"kid": "p256"}),
        json!({"kid": "RSA"}),
        json!({"kid": ""}),
        json!({"kid": null}),
        json!({"kid": ["rsa"]}),
        json!({"typ": "dpop+jwt"}),
        json!({"typ": "logout+jwt"}),
        json!({"typ": ""}),
        json!({"crit": ["exp"]}),
        json!({"crit": []}),
        json!({"crit": ["b64"], "b64": true}),
        json!({"crit": ["urn:example:no-such"], "urn:example:no-such": 1}),
        json!({"b64": false}),
    ] {
        let token = rsa.token(&issuer.header(&header), &claims);
        // A key of no name is looked for among all that fit, and here only one is of its kind.
        if header == json!({"kid": null}) {
            assert_eq!(ask(&served, &token).status, 200);
            continue;
        }
        refused(&served, &header.to_string(), &token);
    }
    // Keys of one curve with the algorithm of another.
    let (p256, p384) = (&issuer.keys[1], &issuer.keys[2]);
    let crossed = json!({"alg": "ES256", "typ": "at+jwt", "kid": "p384"});
    refused(&served, "ES256 by P-384", &p384.token(&crossed, &claims));
    let crossed = json!({"alg": "ES384", "typ": "at+jwt", "kid": "p256"});
    refused(&served, "ES384 by P-256", &p256.token(&crossed, &claims));
}

#[test]
fn a_signature_that_is_none_or_of_a_shared_secret_lets_nobody_in() {
    let issuer = Issuer::with(vec![Key::rsa("rsa")]);
    let served = serve(&[("one", &issuer)], "");
    let claims = issuer.claims();
    let good = issuer.token(&json!({}));
    assert_eq!(ask(&served, &good).status, 200);
    for name in ["none", "None", "NONE", "nOnE"] {
        let message = unsigned(&issuer.header(&json!({"alg": name})), &claims);
        refused(&served, name, &format!("{message}."));
        let signed = format!("{message}.{}", good.rsplit_once('.').unwrap().1);
        refused(&served, name, &signed);
    }
    // What everybody knows of the key, taken for a secret that both sides share.
    let public = issuer.key().public();
    let modulus = public["n"].as_str().unwrap();
    let message = unsigned(&issuer.header(&json!({"alg": "HS256"})), &claims);
    for secret in [
        modulus.as_bytes().to_vec(),
        base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, modulus).unwrap(),
        public.to_string().into_bytes(),
        b"rsa".to_vec(),
        Vec::new(),
    ] {
        refused(
            &served,
            "HS256",
            &format!("{message}.{}", hs256(&secret, &message)),
        );
    }
    let (message, signature) = good.rsplit_once('.').unwrap();
    let claims = issuer.with_claims(&json!({"scope": "mcp:run mcp:admin"}));
    let other = unsigned(&issuer.header(&json!({})), &claims);
    let mut flipped = signature.to_owned().into_bytes();
    flipped[10] = if flipped[10] == b'A' { b'B' } else { b'A' };
    let flipped = String::from_utf8(flipped).unwrap();
    for (name, token) in [
        ("no signature", format!("{message}.")),
        (
            "half of it",
            format!("{message}.{}", &signature[..signature.len() / 2]),
        ),
        ("another", format!("{message}.{flipped}")),
        ("of another message", format!("{other}.{signature}")),
        ("more parts", format!("{good}.{signature}")),
        ("fewer parts", message.to_owned()),
        ("padding", format!("{good}=")),
        ("nothing", "..".to_owned()),
        (
            "no JSON",
            format!("{}.{}.{signature}", encode("{"), encode("{")),
        ),
        (
            "deep JSON",
            format!("{}.{}.{signature}", encode("[".repeat(5_000)), encode("{}")),
        ),
    ] {
        refused(&served, name, &token);
    }
    let long = issuer.token(&json!({"groups": "x".repeat(17_000)}));
    refused(&served, "too long", &long);
    // Of a stranger's key with the same name.
    let stranger = Key::rsa("rsa");
    refused(
        &served,
        "a stranger's",
        &stranger.token(&stranger.header(), &issuer.claims()),
    );
}

#[test]
fn nothing_that_a_token_names_is_opened_or_fetched() {
    let issuer = Issuer::new();
    let trap = Issuer::with(vec![Key::p256("evil")]);
    let served = serve(&[("one", &issuer)], "");
    assert_eq!(ask(&served, &issuer.token(&json!({}))).status, 200);
    let (evil, url) = (trap.key(), trap.jwks_url());
    let forged = |changes: Value| {
        let mut header = evil.header();
        for (name, value) in changes.as_object().unwrap() {
            header[name] = value.clone();
        }
        evil.token(&header, &issuer.claims())
    };
    for header in [
        json!({"jku": url}),
        json!({"jku": url, "kid": "first"}),
        json!({"x5u": url}),
        json!({"jwk": evil.public()}),
        json!({"jwk": evil.public(), "kid": "first"}),
        json!({"x5c": [encode("certificate")]}),
        json!({"kid": url}),
        json!({"kid": format!("{url}#first")}),
        json!({"kid": "../../../../../../dev/null"}),
        json!({"kid": "/etc/passwd"}),
        json!({"kid": "file:///etc/passwd"}),
        json!({"kid": "first\u{0}"}),
        json!({"kid": "' OR '1'='1"}),
        json!({"kid": "x".repeat(8_000)}),
    ] {
        refused(&served, &header.to_string(), &forged(header.clone()));
    }
    refused(
        &served,
        "another issuer's",
        &evil.token(&evil.header(), &trap.claims()),
    );
    assert_eq!(trap.asked(), 0, "a token made the server ask somebody");
    // In a token of the issuer itself they do no harm, and are not followed either.
    let named = issuer.header(&json!({"jku": url, "x5u": url, "jwk": evil.public()}));
    let token = issuer.key().token(&named, &issuer.claims());
    assert_eq!(ask(&served, &token).status, 200);
    assert_eq!(trap.asked(), 0);
}

#[test]
fn nothing_of_a_token_is_in_the_log() {
    let issuer = Issuer::new();
    let served = serve(&[("one", &issuer)], "");
    let good = issuer.token(&json!({}));
    let expired = issuer.token(&json!({"exp": 1, "email": "ada@secret.example"}));
    assert_eq!(ask(&served, &good).status, 200);
    refused(&served, "expired", &expired);
    let header = served.request(
        "GET /api/v1/sessions",
        &[&format!("Authorization: {good}")],
        "",
    );
    assert_eq!(header.status, 401);
    let (directory, said) = (served.directory.path().join("audit"), served.said());
    let audit: String = std::fs::read_dir(directory)
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    for token in [good, expired] {
        for part in token.split('.').skip(1) {
            assert!(!said.contains(part) && !audit.contains(part), "{said}");
        }
    }
    assert!(!said.contains("secret.example") && !audit.contains("secret.example"));
}
