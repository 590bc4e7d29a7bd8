//! The keys of an issuer: that change, that are not there, that somebody asks for without end.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use serde_json::{Value, json};

use super::{
    ask, await_that,
    issuer::{Answer, Issuer, Key, set_of},
    readiness, serve, serve_trusting, serve_with, token,
};

#[test]
fn a_new_key_is_found_and_an_old_one_forgotten() {
    let issuer = Issuer::new();
    let served = serve(&[("one", &issuer)], "    jwks_min_interval: 1\n");
    let old = issuer.token(&json!({}));
    assert_eq!(ask(&served, &old).status, 200);
    let next = Key::ed25519("second");
    issuer.publish(&[issuer.key(), &next]);
    let new = next.token(&next.header(), &issuer.claims());
    await_that("the new key is found", || ask(&served, &new).status == 200);
    assert_eq!(ask(&served, &old).status, 200, "both are valid");
    // The old one is taken back: at the next look its tokens are refused.
    issuer.publish(&[&next]);
    let unknown = issuer.header(&json!({"kid": "third"}));
    let unknown = issuer.key().token(&unknown, &issuer.claims());
    await_that("the old key is gone", || {
        assert_eq!(ask(&served, &unknown).status, 401);
        ask(&served, &old).status == 401
    });
    assert_eq!(ask(&served, &new).status, 200);
}

#[test]
fn keys_that_are_old_are_read_again_though_nobody_asks() {
    let issuer = Issuer::new();
    let served = serve(
        &[("one", &issuer)],
        "    jwks_min_interval: 1\n    jwks_max_age: 1\n",
    );
    let old = issuer.token(&json!({}));
    assert_eq!(ask(&served, &old).status, 200);
    issuer.publish(&[&Key::p256("second")]);
    await_that("the old key is gone", || ask(&served, &old).status == 401);
}

#[test]
fn an_issuer_that_is_down_at_the_start_shuts_its_own_tokens_out_and_nobody_elses() {
    let issuer = Issuer::new();
    issuer.answer(Answer::Nothing);
    let served = serve(&[("one", &issuer)], "    jwks_min_interval: 1\n");
    // A disk that is busy with others' work is not well at once.
    await_that("it is ready without that issuer", || {
        let ready = readiness(&served);
        assert_eq!(ready["checks"]["issuers"], "degraded", "{ready}");
        ready["status"] == "ready"
    });
    let valid = issuer.token(&json!({}));
    let refused = ask(&served, &valid);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(ask(&served, &token("ada")).status, 200);
    let stranger = Issuer::new();
    assert_eq!(ask(&served, &stranger.token(&json!({}))).status, 401);

    issuer.publish(&[issuer.key()]);
    await_that("its keys are read", || {
        readiness(&served)["checks"]["issuers"] == "ok"
    });
    assert_eq!(ask(&served, &valid).status, 200);
}

#[test]
fn keys_outlive_their_issuer_for_a_time() {
    let issuer = Issuer::new();
    let more = "    jwks_min_interval: 1\n    jwks_max_age: 1\n    jwks_max_stale: 20\n";
    let served = serve(&[("one", &issuer)], more);
    let valid = issuer.token(&json!({}));
    assert_eq!(ask(&served, &valid).status, 200);
    let before = Instant::now();
    issuer.answer(Answer::Nothing);
    let asked = issuer.asked();
    await_that("it was asked in vain", || issuer.asked() >= asked + 2);
    assert_eq!(
        ask(&served, &valid).status,
        200,
        "after {:?}",
        before.elapsed()
    );
    await_that("its keys are too old", || {
        ask(&served, &valid).status == 503
    });
    assert_eq!(readiness(&served)["checks"]["issuers"], "degraded");
    issuer.publish(&[issuer.key()]);
    await_that("it is back", || ask(&served, &valid).status == 200);
    assert!(
        served.said().contains("cannot be read"),
        "{}",
        served.said()
    );
}

#[test]
fn a_storm_of_unknown_keys_asks_the_issuer_once() {
    const PAUSE: u64 = 5;
    let issuer = Issuer::new();
    let served = serve(
        &[("one", &issuer)],
        &format!("    jwks_min_interval: {PAUSE}\n"),
    );
    let valid = issuer.token(&json!({}));
    assert_eq!(ask(&served, &valid).status, 200);
    let unknown = |name: String| {
        let header = issuer.header(&json!({"kid": name}));
        issuer.key().token(&header, &issuer.claims())
    };
    // The pause after the first read passes, so that the storm begins with one that may be made.
    thread::sleep(std::time::Duration::from_secs(PAUSE));
    let (asked, began) = (issuer.asked(), Instant::now());
    thread::scope(|scope| {
        for worker in 0..16 {
            let (served, unknown, valid) = (&served, &unknown, &valid);
            scope.spawn(move || {
                for number in 0..25 {
                    let refused = ask(served, &unknown(format!("{worker}-{number}")));
                    assert_eq!(refused.status, 401, "{refused:?}");
                    assert_eq!(ask(served, valid).status, 200, "the storm shut others out");
                }
            });
        }
    });
    let most = 1 + began.elapsed().as_secs() / PAUSE;
    let reads = issuer.asked() - asked;
    assert!(
        (1..=usize::try_from(most).unwrap()).contains(&reads),
        "{reads} reads, {most} may be"
    );
}

#[test]
fn an_issuer_cannot_send_the_server_elsewhere_or_drown_it() {
    let trap = Issuer::new();
    let good = Key::p256("first");
    let many: Vec<Value> = (0..101).map(|_| good.public()).collect();
    let redirect = Answer::Other(
        302,
        format!("Location: {}\r\n", trap.jwks_url()),
        String::new(),
    );
    let mut huge = set_of(&[good.public()]);
    huge["padding"] = "x".repeat(300 << 10).into();
    let mut secret = good.public();
    secret["kty"] = "oct".into();
    secret["k"] = "c2VjcmV0".into();
    let mut wrapping = good.public();
    wrapping["use"] = "enc".into();
    let mut deriving = good.public();
    deriving["key_ops"] = json!(["deriveKey"]);
    let mut other = good.public();
    other["alg"] = "ES384".into();
    let mut off = good.public();
    off["x"] = off["y"].clone();
    for (name, answer) in [
        ("a redirect", redirect),
        (
            "an error",
            Answer::Other(500, String::new(), set_of(&[good.public()]).to_string()),
        ),
        ("too much", Answer::Keys(huge)),
        ("too many", Answer::Keys(set_of(&many))),
        (
            "no JSON",
            Answer::Other(200, String::new(), "<html>".to_owned()),
        ),
        (
            "too deep",
            Answer::Other(200, String::new(), "[".repeat(100_000)),
        ),
        ("no set", Answer::Keys(json!([good.public()]))),
        ("a secret", Answer::Keys(set_of(&[secret]))),
        ("for encryption", Answer::Keys(set_of(&[wrapping]))),
        ("for agreement", Answer::Keys(set_of(&[deriving]))),
        ("for another algorithm", Answer::Keys(set_of(&[other]))),
        ("not on its curve", Answer::Keys(set_of(&[off]))),
        (
            "two of one name",
            Answer::Keys(set_of(&[good.public(), Key::p256("first").public()])),
        ),
    ] {
        let issuer = Issuer::with(Vec::new());
        issuer.answer(answer);
        // A key that is there and wrong is not asked for again until it is old.
        let more = "    jwks_min_interval: 1\n    jwks_max_age: 1\n";
        let served = serve(&[("one", &issuer)], more);
        let valid = good.token(&good.header(), &issuer.claims());
        let refused = ask(&served, &valid);
        assert!(matches!(refused.status, 401 | 503), "{name}: {refused:?}");
        // Among them one that is good is found.
        issuer.answer(Answer::Keys(set_of(&[
            json!({"kty": "PQ", "kid": "new"}),
            json!({"kty": "RSA", "kid": "x"}),
            json!(7),
            good.public(),
        ])));
        await_that(name, || ask(&served, &valid).status == 200);
    }
    assert_eq!(trap.asked(), 0, "a redirect was followed");
}

#[test]
fn keys_in_a_file_are_those_that_it_has_now() {
    let issuer = Issuer::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys.json");
    let write = |keys: Vec<Value>| fs::write(&file, set_of(&keys).to_string()).unwrap();
    write(vec![issuer.key().public()]);
    let entry = format!(
        "      one: {{issuer: \"{}\", jwks_file: \"{}\"}}\n",
        issuer.name(),
        file.display()
    );
    let served = serve_with(&entry, "    jwks_min_interval: 1\n");
    let valid = issuer.token(&json!({}));
    assert_eq!(ask(&served, &valid).status, 200);
    let next = Key::p384("second");
    write(vec![next.public()]);
    await_that("the key is gone", || ask(&served, &valid).status == 401);
    let second = next.token(&next.header(), &issuer.claims());
    assert_eq!(ask(&served, &second).status, 200);
    // Half a file lets nobody in, rather than whom it let in before.
    fs::write(&file, r#"{"keys": ["#).unwrap();
    await_that("nobody is let in", || ask(&served, &second).status == 503);
    write(vec![next.public()]);
    await_that("the file is whole again", || {
        ask(&served, &second).status == 200
    });
    assert_eq!(issuer.asked(), 0);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "openssl makes the certificates and serves the keys"
)]
fn keys_are_taken_from_whom_the_certificate_names_only() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Issuer::new();
    let path = directory.path();
    let make = "
        new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        openssl req -x509 $new -days 2 -subj /CN=test -keyout ca.key -out ca.pem &&
        openssl req $new -subj /CN=localhost -keyout key.pem -out request.pem &&
        echo subjectAltName=DNS:localhost > names &&
        openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out cert.pem";
    let made = Command::new("sh")
        .args(["-c", make])
        .current_dir(path)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let keys = set_of(&[issuer.key().public()]);
    fs::write(path.join("keys"), format!("HTTP/1.0 200 OK\r\n\r\n{keys}")).unwrap();
    let mut https = Command::new("openssl")
        .args([
            "s_server",
            "-accept",
            "127.0.0.1:0",
            "-cert",
            "cert.pem",
            "-key",
            "key.pem",
            "-HTTP",
        ])
        .current_dir(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It is read to its end, or what serves the keys would wait for room.
    let mut said = BufReader::new(https.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let port = said.find_map(|line| Some(line.strip_prefix("ACCEPT 127.0.0.1:")?.to_owned()));
    let reader = thread::spawn(move || said.for_each(drop));
    let serve = |host: &str, trusted: &[(&str, &str)]| {
        let url = format!("https://{host}:{}/keys", port.as_ref().unwrap());
        let entry = format!(
            "      one: {{issuer: \"{}\", jwks_url: \"{url}\"}}\n",
            issuer.name()
        );
        serve_trusting(&entry, "    jwks_min_interval: 1\n", trusted)
    };
    let authority = path.join("ca.pem");
    let trusted = [("SSL_CERT_FILE", authority.to_str().unwrap())];
    let valid = issuer.token(&json!({}));
    let served = serve("localhost", &trusted);
    assert_eq!(ask(&served, &valid).status, 200, "{}", served.said());
    for (host, trusted) in [("localhost", &[][..]), ("127.0.0.1", &trusted)] {
        let served = serve(host, trusted);
        assert_eq!(ask(&served, &valid).status, 503, "{host}");
        await_that("it is told why", || served.said().contains("certificate"));
    }
    https.kill().unwrap();
    https.wait().unwrap();
    reader.join().unwrap();
}
