//! Sessions from the shell: servers that commands find, share, start in the background, and lose.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::AsRawFd,
        unix::{
            fs::{MetadataExt, PermissionsExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli::{command, run, said};

/// A data directory whose background servers end with the test.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Sockets of that kind: the process, and where it is.
    pub(crate) fn sockets(&self, kind: &str) -> Vec<(u32, PathBuf)> {
        let Ok(entries) = fs::read_dir(self.path().join("servers")) else {
            return Vec::new();
        };
        let sockets = entries.filter_map(|entry| {
            let path = entry.unwrap().path();
            let mut parts = path.file_name()?.to_str()?.split('-');
            (parts.next()? == kind).then_some(())?;
            Some((parts.next()?.parse().ok()?, path))
        });
        sockets.collect()
    }

    /// The one background server.
    fn server(&self) -> u32 {
        let sockets = self.sockets("background");
        assert_eq!(sockets.len(), 1, "{sockets:?}");
        sockets[0].0
    }

    fn in_session(&self, session: &str, code: &str) -> (Option<i32>, String, String) {
        said(&run(
            self.path(),
            &["run", "--session", session, "-c", code],
        ))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for (pid, _) in self.sockets("background") {
            // It may have ended, but no other process can be meant: its socket would be gone.
            let _ = kill_process(pid_of(pid), Signal::KILL);
            until(|| is_gone(pid));
        }
    }
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

/// Waits for a condition that is sure to come.
fn until(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !holds() {
        assert!(Instant::now() < deadline, "it never came");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process whose parent does not wait for it stays as a zombie.
fn is_gone(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| {
        stat.rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            .starts_with(['Z', 'X'])
    })
}

fn json_of(output: &std::process::Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {:?}", said(output)))
}

#[test]
fn invocations_share_a_session_and_end_as_their_code_does() {
    let place = Place::new();
    let file = place.path().join("code.py");
    fs::write(&file, "x += 1\nprint('half', end='')").unwrap();
    assert_eq!(
        place.in_session("a", "x = 40; print('one')"),
        (Some(0), "one\n".to_owned(), String::new())
    );
    let from_file = ["run", "--session", "a", file.to_str().unwrap()];
    assert_eq!(
        said(&run(place.path(), &from_file)),
        (Some(0), "half\n".to_owned(), String::new())
    );
    let mut from_pipe = command(place.path(), &["run", "--session", "a", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    from_pipe.stdin.take().unwrap().write_all(b"x + 1").unwrap();
    let output = from_pipe.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout),
        (Some(0), b"42\n".to_vec())
    );

    for (code, more, exit, stderr) in [
        ("1 / 0", &[][..], 1, "ZeroDivisionError: division by zero"),
        ("while True: pass", &["--timeout", "1"], 124, "TimedOut"),
        ("1", &["--timeout", "99999"], 2, "maximum of 1800"),
        ("1", &["--tools", "nope"], 2, "nope"),
        ("1", &["--env", "nope"], 2, "there is no environment `nope`"),
    ] {
        let arguments = [&["run", "--session", "a", "-c", code], more].concat();
        let (got, _, error) = said(&run(place.path(), &arguments));
        assert_eq!(got, Some(exit), "{code}: {error}");
        assert!(error.contains(stderr), "{code}: {error}");
    }
    // Whatever happened, what was there is there.
    let response = json_of(&run(
        place.path(),
        &["run", "--session", "a", "-c", "print(x); x", "--json"],
    ));
    assert_eq!(
        (
            &response["result"],
            &response["stdout"],
            &response["session_id"]
        ),
        (&json!(41), &json!("41\n"), &json!("a"))
    );

    let (code, _, told) = place.in_session("new", "y = 1");
    assert_eq!(code, Some(0));
    let id = told.strip_prefix("Session ").unwrap().trim_end();
    assert_eq!(place.in_session(id, "y").1, "1\n");
    assert_eq!(place.in_session("a", "y").0, Some(1));
}

#[test]
fn output_comes_while_the_code_runs_and_ctrl_c_keeps_the_session() {
    let place = Place::new();
    let code = "n = 1; print('up', flush=True)\nimport time; time.sleep(1000)";
    let mut child = command(place.path(), &["run", "--session", "a", "-c", code])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let (exit, _, told) = said(&child.wait_with_output().unwrap());
    assert_eq!(exit, Some(130), "{told}");
    assert!(
        told.contains("KeyboardInterrupt") && told.contains("was kept"),
        "{told}"
    );
    assert_eq!(place.in_session("a", "n").1, "1\n");
}

#[test]
fn a_server_in_the_background_has_nothing_of_the_terminal() {
    let place = Place::new();
    let held = place.path().join("held");
    // A descriptor without close-on-exec, as shells and build tools leave them open.
    #[expect(clippy::disallowed_methods, reason = "a shell that starts the binary")]
    let output = Command::new("sh")
        .args(["-c", "exec 7>\"$1\"; shift; exec \"$@\"", "sh"])
        .arg(&held)
        .arg(crate::sandbox::binary())
        .args(["run", "--session", "a", "-c", "1", "--data-dir"])
        .arg(place.path())
        .env("HOME", place.path())
        .output()
        .unwrap();
    assert_eq!(said(&output), (Some(0), "1\n".to_owned(), String::new()));
    let pid = place.server();
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let stat = fs::read_to_string(proc.join("stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    // State, parent, group, session, terminal.
    let own = pid.to_string();
    assert_eq!((fields[2], fields[3], fields[4]), (&*own, &*own, "0"));
    assert_eq!(fs::read_link(proc.join("cwd")).unwrap(), place.path());
    let log = place.path().join("background.log");
    let links: Vec<PathBuf> = fs::read_dir(proc.join("fd"))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .collect();
    assert!(!links.contains(&held), "{links:?}");
    for (number, target) in [
        ("0", Path::new("/dev/null")),
        ("1", Path::new("/dev/null")),
        ("2", &log),
    ] {
        assert_eq!(fs::read_link(proc.join("fd").join(number)).unwrap(), target);
    }
    assert_eq!(fs::metadata(&log).unwrap().mode() & 0o777, 0o600);
    let (_, socket) = place.sockets("background").remove(0);
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    assert_eq!(
        fs::metadata(socket.parent().unwrap()).unwrap().mode() & 0o777,
        0o700
    );
}

#[test]
fn commands_that_race_start_one_server() {
    let place = Place::new();
    let children: Vec<Child> = (0..4)
        .map(|number| {
            let code = format!("x{number} = {number}");
            command(place.path(), &["run", "--session", "a", "-c", &code])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{:?}", said(&output));
    }
    place.server();
    assert_eq!(place.in_session("a", "x0, x1, x2, x3").1, "(0, 1, 2, 3)\n");
}

#[test]
fn a_killed_server_loses_its_sessions_and_that_is_told_once() {
    let place = Place::new();
    place.in_session("a", "x = 1");
    let first = place.server();
    kill_process(pid_of(first), Signal::KILL).unwrap();
    until(|| is_gone(first));
    let (code, stdout, stderr) = place.in_session("a", "print('must not run')");
    assert_eq!((code, stdout.as_str()), (Some(3), ""), "{stderr}");
    assert!(
        stderr.starts_with("SessionLost: ") && stderr.contains(&format!("(pid {first})")),
        "{stderr}"
    );
    // The socket of the dead one is gone, and there is one server.
    assert_ne!(place.server(), first);
    let (code, stdout, stderr) = place.in_session("a", "'x' in globals()");
    assert_eq!((code, stdout.as_str()), (Some(0), "False\n"), "{stderr}");
}

#[test]
fn a_server_that_dies_under_a_command_is_code_3() {
    let place = Place::new();
    let code = "print('up', flush=True)\nimport time; time.sleep(1000)";
    let mut child = command(place.path(), &["run", "--session", "a", "-c", code])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    kill_process(pid_of(place.server()), Signal::KILL).unwrap();
    let (exit, _, told) = said(&child.wait_with_output().unwrap());
    assert_eq!(exit, Some(3), "{told}");
    assert!(told.contains("the server went away"), "{told}");
}

#[test]
fn sessions_are_listed_shown_and_deleted_with_and_without_a_server() {
    let place = Place::new();
    let json_for =
        |arguments: &[&str]| json_of(&run(place.path(), &[arguments, &["--json"]].concat()));
    assert_eq!(
        json_for(&["session", "list"]),
        json!({"sessions": [], "notices": []})
    );
    let (code, stdout, _) = said(&run(place.path(), &["session", "list"]));
    assert_eq!(code, Some(0));
    assert!(stdout.starts_with("There are no sessions"), "{stdout}");
    // To look is no reason to start a server that stays.
    assert_eq!(place.sockets("background"), []);

    place.in_session(
        "a",
        "import math\nx = [1, 2]\nopen('f.txt', 'w').write('1')",
    );
    until(|| json_for(&["session", "show", "a"])["all_variables"] == json!(["x"]));
    let filters = [
        (r#""[0-9a-f]{32}""#, r#""[id]""#),
        (r#""[0-9a-f]{64}""#, r#""[sha256]""#),
        (r#""20[0-9]{2}-[0-9TZ:.-]+""#, r#""[time]""#),
        (r"expires_in\W+[0-9.]+", r#"expires_in": "[seconds]""#),
        (r"memory_bytes\W+[0-9.]+", r#"memory_bytes": "[bytes]""#),
        (r"memory_mb\W+[0-9.]+", r#"memory_mb": "[megabytes]""#),
    ];
    insta::with_settings!({filters => filters}, {
        insta::assert_json_snapshot!("session_list", json_for(&["session", "list"]));
        insta::assert_json_snapshot!("session_show", json_for(&["session", "show", "a"]));
    });
    let (code, stdout, _) = said(&run(place.path(), &["session", "show", "a"]));
    assert_eq!(code, Some(0));
    assert!(stdout.contains("  x: list; [1, 2]\n"), "{stdout}");

    // The same without the server, but that the session lives no more.
    kill_process(pid_of(place.server()), Signal::TERM).unwrap();
    until(|| place.sockets("background").is_empty());
    let lost = || json_for(&["session", "show", "a"]);
    until(|| lost()["state"] == "lost");
    assert_eq!(
        (&lost()["all_variables"], &lost()["lost_reason"]),
        (&json!(["x"]), &json!("the server was stopped"))
    );
    assert_eq!(
        json_for(&["session", "delete", "a"]),
        json!({"success": true, "session_id": "a"})
    );
    for what in ["show", "delete"] {
        let (code, stdout, stderr) = said(&run(place.path(), &["session", what, "a"]));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.contains("no session `a`"), "{stderr}");
        let (code, _, stderr) = said(&run(place.path(), &["session", what, "../a"]));
        assert_eq!(code, Some(2), "{stderr}");
    }
    assert_eq!(place.sockets("background"), []);
}

#[test]
fn a_server_that_nobody_needs_leaves() {
    let place = Place::new();
    fs::write(
        place.path().join("config.yaml"),
        "server: {background_idle: 1}\n",
    )
    .unwrap();
    let config = place.path().join("config.yaml");
    let arguments = ["run", "--session", "a", "-c", "1", "--config"];
    let output = run(
        place.path(),
        &[&arguments[..], &[config.to_str().unwrap()]].concat(),
    );
    assert_eq!(said(&output).0, Some(0));
    let pid = place.server();
    let deleted = run(place.path(), &["session", "delete", "a"]);
    assert_eq!(said(&deleted).0, Some(0));
    until(|| is_gone(pid));
    // It has left in order: its socket is gone, and its log says nothing.
    assert_eq!(place.sockets("background"), []);
    let log = fs::read_to_string(place.path().join("background.log")).unwrap();
    assert_eq!(log, "");
    let (code, stdout, _) = said(&run(place.path(), &["audit", "verify"]));
    assert_eq!(code, Some(0), "{stdout}");
}

/// A server as a desktop client starts it.
struct Desktop {
    child: Child,
    _stdin: std::process::ChildStdin,
    out: BufReader<std::process::ChildStdout>,
}

impl Desktop {
    fn start(place: &Path, session: &str, code: &str) -> Self {
        let mut child = command(place, &["serve"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        for message in [
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
            }}),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
                "name": "execute_python", "arguments": {"session_id": session, "code": code},
            }}),
        ] {
            writeln!(stdin, "{message}").unwrap();
        }
        let mut desktop = Self {
            child,
            _stdin: stdin,
            out,
        };
        let hello = desktop.answer(1);
        // What the socket offers is not offered here.
        assert!(
            hello["result"]["capabilities"]
                .get("experimental")
                .is_none()
        );
        let answer = desktop.answer(2);
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        desktop
    }

    fn answer(&mut self, id: u64) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "it hung up");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                return message;
            }
        }
    }
}

impl Drop for Desktop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_server_that_runs_a_session_is_found_among_several() {
    let place = Place::new();
    let one = Desktop::start(place.path(), "one", "x = 1");
    let two = Desktop::start(place.path(), "two", "x = 2");
    assert_eq!(place.sockets("server").len(), 2);
    assert_eq!(place.in_session("one", "x").1, "1\n");
    assert_eq!(place.in_session("two", "x").1, "2\n");
    // A new one is taken by either: none is started beside them.
    assert_eq!(place.in_session("three", "3").1, "3\n");
    assert_eq!(place.sockets("background"), []);
    for session in ["one", "two"] {
        let shown = json_of(&run(place.path(), &["session", "show", session, "--json"]));
        assert_eq!(
            (&shown["state"], &shown["all_variables"]),
            (&json!("live"), &json!(["x"])),
            "{session}"
        );
    }
    let (code, stdout, stderr) = said(&run(place.path(), &["session", "delete", "two"]));
    assert_eq!(
        (code, stdout.as_str()),
        (Some(0), "Session two is gone.\n"),
        "{stderr}"
    );

    // One that is there and does not answer is told, not waited for.
    let (_, socket) = place
        .sockets("server")
        .into_iter()
        .find(|(pid, _)| *pid == one.child.id())
        .unwrap();
    fs::remove_file(socket).unwrap();
    let (code, _, stderr) = place.in_session("one", "x");
    assert_eq!(code, Some(3), "{stderr}");
    assert!(
        stderr.contains(&format!(
            "another mcp-forge server (pid {})",
            one.child.id()
        )),
        "{stderr}"
    );
    drop((one, two));
}

#[test]
fn a_server_that_does_not_answer_is_passed_over() {
    let place = Place::new();
    place.in_session("a", "x = 1");
    let stopped = place.server();
    // Once all of the turn is written, no lock is held.
    until(|| {
        let shown = json_of(&run(place.path(), &["session", "show", "a", "--json"]));
        shown["history"][0]["outcome"] == "completed"
            && shown["introspection"]["x"]["repr"].is_string()
    });
    kill_process(pid_of(stopped), Signal::STOP).unwrap();
    let (code, stdout, stderr) = place.in_session("b", "2");
    assert_eq!((code, stdout.as_str()), (Some(0), "2\n"), "{stderr}");
    assert!(stderr.contains("was passed over"), "{stderr}");
    // Its session is not taken from it.
    let (code, _, stderr) = place.in_session("a", "x");
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains(&format!("(pid {stopped})")), "{stderr}");
    kill_process(pid_of(stopped), Signal::CONT).unwrap();
    assert_eq!(place.in_session("a", "x").1, "1\n");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let place = Place::new();
    let audit = place.path().join("audit");
    fs::write(&audit, "no directory").unwrap();
    let (code, stdout, stderr) = place.in_session("a", "1");
    assert_eq!((code, stdout.as_str()), (Some(3), ""), "{stderr}");
    assert!(
        stderr.contains("could not be started in the background")
            && stderr.contains(audit.to_str().unwrap()),
        "{stderr}"
    );
}

#[test]
fn a_place_that_others_could_use_is_refused() {
    let place = Place::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let servers = place.path().join("servers");
    std::os::unix::fs::symlink(elsewhere.path(), &servers).unwrap();
    let (code, _, stderr) = place.in_session("a", "1");
    assert_eq!(code, Some(3), "{stderr}");
    assert!(
        stderr.contains("symbolic link") && stderr.lines().count() == 1,
        "{stderr}"
    );
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);

    fs::remove_file(&servers).unwrap();
    fs::create_dir(&servers).unwrap();
    fs::set_permissions(&servers, fs::Permissions::from_mode(0o711)).unwrap();
    let (code, _, stderr) = place.in_session("a", "1");
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("chmod 700"), "{stderr}");
}

/// The directory keeps others out; here it does not, and the server must.
#[test]
fn a_process_of_another_user_is_hung_up_on() {
    assert!(
        rustix::process::geteuid().is_root(),
        "only root can become another user: leave this test out, as `cargo xtask test` does"
    );
    let place = Place::new();
    assert_eq!(place.in_session("a", "1").0, Some(0));
    let (_, socket) = place.sockets("background").remove(0);
    for open in [place.path(), socket.parent().unwrap(), &socket] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let ask = "
import os, socket, sys
peer = socket.socket(socket.AF_UNIX)
os.chdir(os.path.dirname(sys.argv[1]))  # its path may be too long for an address
peer.connect(os.path.basename(sys.argv[1]))
try:
    peer.sendall(b'{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\\n')
    answer = peer.recv(1000)
except OSError as error:
    answer = type(error).__name__.encode()
print(answer)
";
    let answer_to = |wrapper: &[&str]| {
        let words = [wrapper, &["python3", "-c", ask]].concat();
        #[expect(clippy::disallowed_methods, reason = "a stranger")]
        let output = Command::new(words[0])
            .args(&words[1..])
            .arg(&socket)
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .output()
            .unwrap();
        let (code, stdout, stderr) = said(&output);
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    };
    let stranger = answer_to(&[
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ]);
    assert!(
        ["b''\n", "b'ConnectionResetError'\n", "b'BrokenPipeError'\n"].contains(&&*stranger),
        "{stranger}"
    );
    // The owner is answered by the same words.
    let owner = answer_to(&[]);
    assert!(owner.contains("jsonrpc"), "{owner}");
}

#[test]
fn what_a_socket_is_sent_is_bounded_and_costs_its_sender_only() {
    let place = Place::new();
    assert_eq!(place.in_session("a", "x = 1").0, Some(0));
    let (_, socket) = place.sockets("background").remove(0);
    // By its directory's descriptor: the path of the data directory may be too long for an address.
    let directory = fs::File::open(socket.parent().unwrap()).unwrap();
    let address = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
        .join(socket.file_name().unwrap());
    let mut stranger = UnixStream::connect(&address).unwrap();
    stranger.write_all(b"\xff\xfe nonsense\n{}\n").unwrap();
    let mut answer = vec![0; 4096];
    let length = stranger.read(&mut answer).unwrap();
    assert!(length > 0, "nonsense is answered");
    let mut silent: Vec<_> = (0..80)
        .filter_map(|_| UnixStream::connect(&address).ok())
        .collect();
    // Of so many some are hung up on; none of them is in anybody's way once they are gone.
    silent.clear();
    drop(stranger);
    // While it counts them still, a command takes it for one that leaves, and starts another.
    until(|| {
        let mut client = UnixStream::connect(&address).unwrap();
        let ping = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n";
        client.write_all(ping).is_ok() && client.read(&mut [0; 4096]).is_ok_and(|length| length > 0)
    });
    assert_eq!(place.in_session("a", "x").1, "1\n");
    assert_eq!(place.sockets("background").len(), 1);
}
