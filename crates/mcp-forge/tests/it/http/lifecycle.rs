//! How the server starts, whom it refuses to serve, and how it ends.

use std::{io::Write, os::unix::fs::MetadataExt, thread};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::served::{Served, initialize, read_reply, token};
use crate::cli::{run, said};

#[test]
fn the_first_start_prints_a_token_once() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["serve", "--http", "localhost:0"];
    let served = Served::start_in(directory, &arguments, &[]);
    let told = served.said();
    let shown = told
        .lines()
        .find_map(|line| line.trim().strip_prefix("mcpf_"))
        .unwrap();
    let authorization = format!("Authorization: Bearer mcpf_{shown}");
    let headers = [
        authorization.as_str(),
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
    ];
    assert_eq!(
        served
            .request("POST /mcp", &headers, &initialize("2025-11-25"))
            .status,
        200
    );
    let file = served.directory.path().join("tokens.yaml");
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    assert!(!std::fs::read_to_string(&file).unwrap().contains(shown));
    stop(&served);
    let (code, said) = {
        let mut served = served;
        let directory = std::mem::replace(&mut served.directory, tempfile::tempdir().unwrap());
        assert_eq!(served.wait().0, Some(0));
        let again = Served::start_in(directory, &arguments, &[]);
        assert_eq!(
            again
                .request("POST /mcp", &headers, &initialize("2025-11-25"))
                .status,
            200
        );
        stop(&again);
        again.wait()
    };
    assert_eq!(code, Some(0));
    assert!(!said.contains("mcpf_"), "{said}");
}

#[test]
fn what_is_not_safe_or_makes_no_sense_is_refused_with_the_fix() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none.pem");
    let config = directory.path().join("tls.yaml");
    std::fs::write(
        &config,
        format!("server: {{tls: {{cert: {missing:?}, key: {missing:?}}}}}"),
    )
    .unwrap();
    let half = directory.path().join("half.yaml");
    std::fs::write(&half, "server: {tls: {cert: a.pem}}").unwrap();
    let tokens = directory.path().join("tokens-missing.yaml");
    std::fs::write(&tokens, "server: {tokens: nowhere.yaml}").unwrap();
    let (config, half, tokens) = (
        config.to_str().unwrap(),
        half.to_str().unwrap(),
        tokens.to_str().unwrap(),
    );
    for (arguments, code, part) in [
        (
            &["serve", "--http", "0.0.0.0:0"][..],
            2,
            "server.plaintext: true",
        ),
        (&["serve", "--http", "[::]:0"], 2, "server.tls.cert"),
        (&["serve", "--http", "127.0.0.1"], 2, "there is no port"),
        (
            &["serve", "--http", "127.0.0.1:http"],
            2,
            "its port is no number",
        ),
        (
            &["serve", "--http", "--config", config],
            2,
            "none.pem: the certificate cannot be read",
        ),
        (
            &["serve", "--http", "--config", half],
            2,
            "give server.tls.key as well",
        ),
        (
            &["serve", "--http", "127.0.0.1:0", "--config", tokens],
            3,
            "nowhere.yaml: the file of tokens cannot be used",
        ),
        (
            &["serve", "--http", "127.0.0.1:0", "--background"],
            2,
            "cannot be used with",
        ),
    ] {
        let (found, out, err) = said(&run(directory.path(), arguments));
        assert_eq!(
            (found, out.as_str()),
            (Some(code), ""),
            "{arguments:?}: {err}"
        );
        assert!(err.contains(part), "{arguments:?}: {err}");
    }
    let taken = Served::start(&[]);
    let address = taken.address.to_string();
    let (code, _, err) = said(&run(directory.path(), &["serve", "--http", &address]));
    assert_eq!(code, Some(3));
    assert!(err.contains("cannot be listened at"), "{err}");
}

#[test]
fn at_the_end_what_runs_is_finished_and_nobody_new_is_let_in() {
    let served = Served::start(&[]);
    let begun = served.directory.path().join("audit");
    let (address, answer) = thread::scope(|scope| {
        let working = scope.spawn(|| {
            let code = "import time; time.sleep(3); 'finished'";
            served.tool("ada", "execute_python", &json!({"code": code}))
        });
        // The audit log says when it runs.
        let runs = || {
            let files = std::fs::read_dir(&begun).into_iter().flatten().flatten();
            files
                .map(|file| std::fs::read_to_string(file.path()).unwrap())
                .any(|text| text.contains("code_sha256"))
        };
        while !runs() {
            thread::sleep(std::time::Duration::from_millis(20));
        }
        stop(&served);
        (served.address, working.join().unwrap())
    });
    assert_eq!(answer["structuredContent"]["result"], "finished");
    let (code, said) = served.wait();
    assert_eq!(code, Some(0), "{said}");
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_turn_that_does_not_end_in_time_is_ended() {
    let served = Served::start(&[("MCP_FORGE_SERVER_DRAIN", "0.2s")]);
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let headers = [
        authorization.as_str(),
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
    ];
    let opened = served.post("ada", &[], &initialize("2025-11-25"));
    let session = format!(
        "Mcp-Session-Id: {}",
        opened.header("mcp-session-id").unwrap()
    );
    served.post(
        "ada",
        &[&session],
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    );
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "execute_python",
        "arguments": {"code": "while True: pass"}}});
    let mut stream = served.connect();
    let headers = [&headers[..], &[&session]].concat();
    stream
        .write_all(&served.bytes("POST /mcp", &headers, &call.to_string()))
        .unwrap();
    let audit = served.directory.path().join("audit");
    let text = || {
        let files = std::fs::read_dir(&audit).into_iter().flatten().flatten();
        files
            .map(|file| std::fs::read_to_string(file.path()).unwrap())
            .collect::<String>()
    };
    while !text().contains("code_sha256") {
        thread::sleep(std::time::Duration::from_millis(20));
    }
    stop(&served);
    // Hung up on, one way or another.
    let _ = read_reply_or_nothing(&mut stream);
    let directory = served.directory.path().to_owned();
    let child = served.child.id();
    let log = {
        let mut served = served;
        let kept = std::mem::replace(&mut served.directory, tempfile::tempdir().unwrap());
        assert_eq!(served.wait().0, Some(0));
        assert!(!std::path::Path::new(&format!("/proc/{child}")).exists());
        let files = std::fs::read_dir(directory.join("audit"))
            .unwrap()
            .flatten();
        let log: String = files
            .map(|file| std::fs::read_to_string(file.path()).unwrap())
            .collect();
        drop(kept);
        log
    };
    assert!(log.contains("cancelled"), "{log}");
}

fn stop(served: &Served) {
    let pid = Pid::from_raw(served.child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

fn read_reply_or_nothing(stream: &mut impl std::io::Read) -> Option<u16> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    (!bytes.is_empty()).then(|| read_reply(&mut bytes.as_slice()).status)
}
