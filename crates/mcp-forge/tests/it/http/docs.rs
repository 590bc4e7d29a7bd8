//! The examples of README.md and docs/http.md are run, and TLS with the programs that people use for it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use super::served::{Served, token};

#[expect(
    clippy::disallowed_methods,
    reason = "what a reader of the documentation types"
)]
fn shell(script: &str, served: &Served) -> Output {
    Command::new("sh")
        .args(["-e", "-u", "-c", script])
        .env("FORGE", format!("http://{}", served.address))
        .env("TOKEN", token("ada"))
        .output()
        .unwrap()
}

#[test]
fn every_example_of_the_documentation_does_what_it_says() {
    let served = Served::start(&[]);
    for (name, at_least) in [("README.md", 1), ("docs/http.md", 5)] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(name);
        // The server is where the example starts one, but for its port.
        let address = served.address.to_string();
        let text = fs::read_to_string(file)
            .unwrap()
            .replace("127.0.0.1:3000", &address);
        let ran = run_examples(&text, &served);
        assert!(ran >= at_least, "{name}: {ran} examples were found");
    }
}

/// Runs each block `sh`, and looks for the lines of the block `output` after it in what it says.
fn run_examples(text: &str, served: &Served) -> usize {
    let mut blocks = text.split("\n```").skip(1).step_by(2);
    let mut ran = 0;
    while let Some(block) = blocks.next() {
        let Some(script) = block.strip_prefix("sh\n") else {
            continue;
        };
        let expected = blocks
            .next()
            .and_then(|block| block.strip_prefix("output\n"));
        let expected = expected.unwrap_or_else(|| panic!("no output follows {script}"));
        let output = shell(script, served);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{script}{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        for line in expected.lines() {
            assert!(said.contains(line), "{script}{said}has no {line}");
        }
        ran += 1;
    }
    ran
}

#[test]
fn tls_is_spoken_with_the_certificate_of_the_operator() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(&[]);
    let path = directory.path().display();
    let make = format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
         -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {path}/key.pem -out {path}/cert.pem"
    );
    let made = shell(&make, &served);
    assert!(made.status.success(), "{made:?}");
    let (cert, key) = (format!("{path}/cert.pem"), format!("{path}/key.pem"));
    let variables = [
        ("MCP_FORGE_SERVER_TLS_CERT", cert.as_str()),
        ("MCP_FORGE_SERVER_TLS_KEY", key.as_str()),
    ];
    // With TLS it may be reached from elsewhere, by its address.
    let data = tempfile::tempdir().unwrap();
    let secure = Served::start_in(data, &["serve", "--http", "0.0.0.0:0"], &variables);
    assert!(
        secure.said().contains("Listening at https://0.0.0.0:"),
        "{}",
        secure.said()
    );
    let port = secure.address.port();
    let get = |more: &str| {
        let output = shell(&format!("curl --silent --show-error {more}"), &served);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), text)
    };
    let (well, text) = get(&format!("--cacert {cert} https://127.0.0.1:{port}/health"));
    assert!(well && text.contains("\"ok\""), "{text}");
    assert!(
        !get(&format!("https://127.0.0.1:{port}/health")).0,
        "the certificate was not looked at"
    );
    assert!(
        !get(&format!("http://127.0.0.1:{port}/health")).0,
        "it answers without TLS"
    );
    let (_, refused) = get(&format!(
        "--cacert {cert} --header 'Host: evil.example' https://127.0.0.1:{port}/health"
    ));
    assert!(refused.contains("403"), "{refused}");

    // A key that is another certificate's.
    let other = shell(
        &format!("openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out {key}"),
        &served,
    );
    assert!(other.status.success(), "{other:?}");
    let place = tempfile::tempdir().unwrap();
    let mut command = crate::cli::command(place.path(), &["serve", "--http", "127.0.0.1:0"]);
    let (code, _, err) = crate::cli::said(&command.envs(variables).output().unwrap());
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("cannot be used together"), "{err}");
}
