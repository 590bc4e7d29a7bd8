//! Row P6: a server whose disk is full, stands still, or has become read-only.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::geteuid;
use serde_json::{Value, json};

use super::served::{Reply, Served, token, with_tokens};
use crate::cli::command;

/// Room in the pages that the log and the store have already; what comes after needs a new one.
const WRITES_WITHOUT_ROOM: usize = 200;

/// The disk that a server's data lie on, which only the server and this test see.
struct Disk {
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Disk {
    /// A server on a disk of this kind.
    #[expect(clippy::disallowed_methods, reason = "a test drives the program")]
    fn serving(kind: &str) -> (Served, Self) {
        let directory = with_tokens();
        let served = command(directory.path(), &["serve", "--http", "127.0.0.1:0"]);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/http/state_disk.py");
        let mut helper = Command::new("unshare");
        // Who is not root may mount in a user namespace of its own only.
        if !geteuid().is_root() {
            helper.args(["--user", "--map-current-user", "--keep-caps"]);
        }
        helper
            .args(["--mount", "--propagation", "private", "/usr/bin/python3.11"])
            .args([
                script.as_os_str(),
                OsStr::new(kind),
                directory.path().as_os_str(),
            ])
            .arg(served.get_program())
            .args(served.get_args())
            .env_clear()
            .envs(
                served
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut served = Served::start_as(directory, helper, &[]);
        let disk = Self {
            commands: served.child.stdin.take().unwrap(),
            answers: BufReader::new(served.child.stdout.take().unwrap()),
        };
        (served, disk)
    }

    fn becomes(&mut self, what: &str) {
        writeln!(self.commands, "{what}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "done\n", "{what}");
    }
}

fn ask(served: &Served, line: &str, body: &str) -> Reply {
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let kind = if line.starts_with("PUT") {
        "Content-Type: application/octet-stream"
    } else {
        "Content-Type: application/json"
    };
    served.request(line, &[&authorization, kind], body)
}

fn execute(served: &Served, body: &Value) -> Reply {
    ask(served, "POST /api/v1/execute", &body.to_string())
}

fn in_session(served: &Served, code: &str) -> Reply {
    execute(served, &json!({"code": code, "session_id": "s"}))
}

fn status(served: &Served, path: &str) -> u16 {
    ask(served, &format!("GET {path}"), "").status
}

/// Everything that leaves something behind is refused in the same way.
fn refuses_what_it_cannot_keep(served: &Served) {
    let state = json!({"session_id": "other", "state": {"a": "x".repeat(9000)}}).to_string();
    let refused = [
        execute(served, &json!({"code": "1"})),
        in_session(served, "x = 0"),
        execute(served, &json!({"code": "1", "session_id": "new"})),
        ask(served, "POST /api/v1/context/state", &state),
    ];
    for refused in refused {
        assert_eq!(refused.status, 503, "{refused:?}");
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
        let place = served.directory.path().to_str().unwrap();
        assert!(!refused.body.contains(place), "{refused:?}");
    }
    // Who only looks is served.
    assert_eq!(status(served, "/livez"), 200);
    assert_eq!(status(served, "/readyz"), 503);
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    served.request_until("GET /api/v1/sessions/s", &[&authorization], |look| {
        look.json()["introspection"]["x"]["repr"] == "41"
    });
}

#[test]
fn a_full_disk_refuses_what_it_cannot_keep_and_recovers() {
    let (served, mut disk) = Disk::serving("memory");
    assert_eq!(in_session(&served, "x = 41").status, 200);
    served.request_until("GET /readyz", &[], |ready| ready.status == 200);
    disk.becomes("fill");
    let is_served = |_: &usize| execute(&served, &json!({"code": "1"})).status == 200;
    let had_room = (0..WRITES_WITHOUT_ROOM).take_while(is_served).count();
    assert!(had_room < WRITES_WITHOUT_ROOM, "it is not full");
    refuses_what_it_cannot_keep(&served);
    disk.becomes("free");
    let reply = in_session(&served, "x + 1");
    assert_eq!(
        (reply.status, &reply.json()["result"]),
        (200, &json!(42)),
        "{reply:?}"
    );
    served.request_until("GET /readyz", &[], |ready| ready.status == 200);
    let state = r#"{"session_id": "other", "state": {"a": 1}}"#;
    assert_eq!(
        ask(&served, "POST /api/v1/context/state", state).status,
        200
    );
}

/// For root only: nobody else may mount a disk that can do this.
mod only_root {
    use super::*;

    /// What is written waits, as for a disk that takes ten seconds to write it.
    #[test]
    fn a_disk_that_stands_still_loses_nothing() {
        let (served, mut disk) = Disk::serving("image");
        assert_eq!(in_session(&served, "x = 0").status, 200);
        let began = Instant::now();
        disk.becomes("stop 10");
        let replies = thread::scope(|scope| {
            let in_vain = || execute(&served, &json!({"code": "6 * 7"}));
            let mut waiting: Vec<_> = (0..6).map(|_| scope.spawn(in_vain)).collect();
            waiting.push(scope.spawn(|| in_session(&served, "x += 1; 42")));
            let replies = waiting.into_iter().map(|one| one.join().unwrap());
            replies.collect::<Vec<_>>()
        });
        assert!(
            began.elapsed() > Duration::from_secs(9),
            "the control: it stood still"
        );
        for reply in replies {
            assert_eq!(
                (reply.status, &reply.json()["result"]),
                (200, &json!(42)),
                "{reply:?}"
            );
        }
        assert_eq!(in_session(&served, "x").json()["result"], 1);
    }

    #[test]
    fn a_disk_that_became_read_only_refuses_what_it_cannot_keep() {
        let (served, mut disk) = Disk::serving("image");
        assert_eq!(in_session(&served, "x = 41").status, 200);
        disk.becomes("abort");
        refuses_what_it_cannot_keep(&served);
    }
}
