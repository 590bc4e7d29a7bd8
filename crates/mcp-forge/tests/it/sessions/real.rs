//! Sessions in real sandboxes: state, interrupts, deaths of the interpreter and of the server.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use mcp_forge::{audit::Audit, bridge::Bridge, engine::native::Native};

use super::*;
use crate::sandbox::{binary, config};

/// A service with the native engine, its data below a directory that the test holds.
pub(super) fn real_service(directory: &Path, change: impl FnOnce(&mut Config)) -> Arc<Service> {
    let mut config = config();
    directory.clone_into(&mut config.data_dir);
    change(&mut config);
    let engine = Arc::new(Native::with_jail(&config, binary()));
    let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
    let audit = Audit::open(&directory.join("audit")).unwrap();
    Service::new(config, engine, bridge, audit)
}

#[tokio::test]
async fn state_stays_is_told_and_is_not_shared() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |_| {});
    let first = run(
        &service,
        "a",
        "import math\nimport json as j\nx = [1, 2, 3]\ndef f(): return 7\nclass C: pass\nopen('out.csv', 'w').write('1,2')",
    )
    .await;
    assert_eq!(first.outcome, "completed", "{:?}", first.error);
    assert_eq!(first.files[0].path, "out.csv");
    let second = run(&service, "a", "x.append(f()); y = sum(x); y").await;
    assert_eq!(second.result, json!(13));
    assert_eq!(second.files, []);
    let state = state_when(&service, "a", |state| {
        state["introspection"]["y"]["repr"].is_string()
    })
    .await;
    assert_eq!(state["introspection"]["x"]["type"], "list");
    assert_eq!(state["introspection"]["x"]["length"], 4);
    assert_eq!(
        state["introspection"]["y"]["execution_id"],
        json!(second.execution_id)
    );
    assert_eq!(state["introspection"]["y"]["repr"], "13");
    assert_eq!(state["imports"]["j"], "json");
    assert_eq!(
        (&state["functions"], &state["classes"]),
        (&json!(["f"]), &json!(["C"]))
    );
    assert_eq!(state["changes"]["added"], json!(["y"]));
    // A stateless call and another session have nothing of it.
    let other = run(
        &service,
        "b",
        "import os\n(sorted(os.listdir('/workspace')), 'x' in globals())",
    )
    .await;
    assert_eq!(other.result, json!([[], false]));
    let stateless = ExecuteRequest {
        code: "'x' in globals()".to_owned(),
        ..ExecuteRequest::default()
    };
    let stateless = service.execute(stateless, &mut Quiet).await.unwrap();
    assert_eq!(stateless.result, json!(false));
    service.shutdown().await;
}

#[tokio::test]
async fn whatever_a_turn_waits_for_an_interrupt_ends_it_and_the_state_stays() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |_| {});
    run(&service, "a", "kept = 1").await;
    for code in [
        "while True: pass",
        "import time; time.sleep(100)",
        "import subprocess; subprocess.run(['sleep', '100'])",
        "import threading; threading.Event().wait()",
        "await __import__('asyncio').sleep(100)",
        "import re; re.match('(a+)+$', 'a' * 24 + 'b') and 0\nwhile True: sum(range(1000))",
    ] {
        let stopped = ExecuteRequest {
            timeout: Some(0.5),
            ..request("a", code)
        };
        let response = service.execute(stopped, &mut Quiet).await.unwrap();
        assert_eq!(
            response.outcome, "timed_out",
            "{code}: {:?}",
            response.error
        );
        assert_eq!(response.session.unwrap().lost_reason, None, "{code}");
        let next = run(&service, "a", "kept").await;
        assert_eq!(
            (next.outcome.as_str(), next.result),
            ("completed", json!(1)),
            "{code}"
        );
    }
    service.shutdown().await;
}

#[tokio::test]
async fn a_turn_that_ignores_interrupts_costs_the_interpreter_and_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |_| {});
    run(&service, "a", "open('kept.txt', 'w').write('yes')").await;
    let stubborn = ExecuteRequest {
        timeout: Some(3.0),
        ..request(
            "a",
            "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        )
    };
    let response = service.execute(stubborn, &mut Quiet).await.unwrap();
    assert_eq!(response.outcome, "timed_out");
    assert!(response.session.unwrap().lost_reason.is_some());
    assert_eq!(run(&service, "a", "1").await.outcome, "session_lost");
    let fresh = run(&service, "a", "open('kept.txt').read()").await;
    assert_eq!(fresh.result, json!("yes"), "{:?}", fresh.error);
    service.shutdown().await;
}

#[tokio::test]
async fn an_interpreter_that_dies_in_any_way_is_told_of_once() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |_| {});
    let mut generation = 1;
    for (code, outcome) in [
        ("import os; os.kill(os.getpid(), 9)", "crashed"),
        ("import os; os._exit(3)", "crashed"),
        ("import ctypes; ctypes.string_at(0)", "crashed"),
        ("import os; os.closerange(3, 100)", "crashed"),
        (
            "x = bytearray(1 << 30)\nx[::4096] = b'x' * len(x[::4096])",
            "out_of_memory",
        ),
    ] {
        run(&service, "a", "state = 1").await;
        let response = run(&service, "a", code).await;
        if response.session.as_ref().unwrap().lost_reason.is_none() {
            // Python noticed in time, and the interpreter lives.
            assert_eq!(response.outcome, outcome, "{code}");
            continue;
        }
        assert_eq!(response.outcome, outcome, "{code}: {:?}", response.error);
        generation += 1;
        let told = run(&service, "a", "state").await;
        assert_eq!(told.outcome, "session_lost", "{code}");
        assert_eq!(told.session.unwrap().generation, generation);
        let fresh = run(&service, "a", "state").await;
        assert_eq!(fresh.error.unwrap().kind, "NameError", "{code}");
    }
    service.shutdown().await;
}

#[tokio::test]
async fn what_a_thread_writes_later_never_belongs_to_another_turn() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |_| {});
    run(
        &service,
        "a",
        "import threading\ngo = threading.Event()\ndef late():\n    go.wait()\n    print('late')\n    done.set()\ndone = threading.Event()\nthreading.Thread(target=late).start()",
    )
    .await;
    let second = run(&service, "a", "go.set(); done.wait(); print('mine')").await;
    assert_eq!(second.stdout, "mine\n");
    let third = run(&service, "a", "print('third')").await;
    assert_eq!(third.stdout, "third\n");
    let told = second.between_turns.or(third.between_turns).unwrap();
    assert_eq!(told.stdout, "late\n");
    service.shutdown().await;
}

#[tokio::test]
async fn what_is_no_plain_file_is_never_brought_out() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |config| {
        config.volumes.session_quota = 1 << 20;
    });
    let me = Principal::local();
    let code = r"
import os, socket
os.symlink('/etc/passwd', 'link'); os.symlink('/proc/self/environ', 'environ'); os.symlink('/', 'root')
os.symlink('../../../../etc/passwd', 'up'); os.mkfifo('fifo'); os.makedirs('dir/deep')
socket.socket(socket.AF_UNIX).bind('socket')
sparse = os.open('sparse', os.O_CREAT | os.O_RDWR)
try: os.truncate(sparse, 1 << 40)
except OSError: os.truncate(sparse, 8 << 20)  # where no cgroup counts memory, files are bounded
names = ['plain', 'a\nb', '-rf', '$(x)', ' dot. ', '\u202egnp.exe', '\U0001F600', 'con', 'dir/deep/x']
for name in names: open(name, 'w').write(name)
open(b'\xff', 'w').write('bytes')
path = ''
for _ in range(60): path += 'd/'
os.makedirs(path); open(path + 'f', 'w').write('deep')
os.chmod('plain', 0o7777)
";
    let response = run(&service, "a", code).await;
    assert_eq!(response.outcome, "completed", "{:?}", response.error);
    for path in [
        "link",
        "environ",
        "root/etc/passwd",
        "up",
        "fifo",
        "dir",
        "socket",
        "sparse",
        "\u{fffd}",
    ] {
        let refused = service.session_file(&me, "a", path).await.unwrap_err();
        assert!(
            matches!(refused, ServiceError::Session(SessionError::NoFile { .. })),
            "{path}: {refused}"
        );
    }
    for name in [
        "plain",
        "a\nb",
        "-rf",
        "$(x)",
        " dot. ",
        "\u{202e}gnp.exe",
        "\u{1F600}",
        "con",
        "dir/deep/x",
    ] {
        let read = service.session_file(&me, "a", name).await.unwrap();
        assert_eq!(String::from_utf8(read.bytes).unwrap(), name);
    }
    let kept = directory.path().join("sessions/a/files/plain");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(kept).unwrap());
    assert_eq!(mode & 0o7777, 0o600);
    service.delete_session(&me, "a").await.unwrap();
    assert!(!directory.path().join("sessions/a").exists());
}

#[tokio::test]
async fn files_that_change_while_they_are_brought_out_come_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let service = real_service(directory.path(), |_| {});
    let me = Principal::local();
    // A thread swaps a file, a link and a directory while the server reads.
    let code = r"
import os, shutil, threading, time
def swap():
    while True:
        for make in (lambda: open('target', 'w').write('x' * 300000), lambda: os.symlink('/etc/passwd', 'target'),
                     lambda: os.makedirs('target/below')):
            try:
                if os.path.isdir('target') and not os.path.islink('target'): shutil.rmtree('target')
                elif os.path.lexists('target'): os.unlink('target')
                make()
            except OSError: pass
            time.sleep(0)
threading.Thread(target=swap, daemon=True).start()
";
    run(&service, "a", code).await;
    let secret = std::fs::read("/etc/passwd").unwrap();
    let mut came = 0;
    while came < 5 {
        run(&service, "a", "1").await;
        if let Ok(read) = service.session_file(&me, "a", "target").await {
            came += 1;
            assert_ne!(read.bytes, secret);
            assert!(
                read.bytes.iter().all(|byte| *byte == b'x'),
                "{:?}",
                read.bytes.get(..50)
            );
        }
    }
    service.shutdown().await;
}

/// The program under test, on its standard input and output.
pub(crate) struct Program {
    pub(crate) child: Child,
    /// Closed by taking it away.
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) stdout: Option<BufReader<ChildStdout>>,
    next_id: i64,
    /// Sent with every request: empty in the first era.
    meta: Value,
}

impl Program {
    pub(crate) fn start(data_dir: &Path) -> Self {
        Self::start_with(data_dir, &[])
    }

    /// With these variables beside the usual few.
    pub(crate) fn start_with(data_dir: &Path, variables: &[(&str, &str)]) -> Self {
        let mut program = Self::spawn(data_dir, variables);
        let id = program.send(
            "initialize",
            &json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}),
        );
        program.answer(id);
        program.notify("notifications/initialized", &json!({}));
        program
    }

    /// A client of the second era: it says who it is with every request.
    pub(crate) fn start_of_second_era(data_dir: &Path) -> Self {
        let mut program = Self::spawn(data_dir, &[]);
        program.meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        program
    }

    #[expect(clippy::disallowed_methods, reason = "the binary under test")]
    fn spawn(data_dir: &Path, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(binary())
            .arg("serve")
            .arg("--data-dir")
            .arg(data_dir)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", data_dir)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdin: child.stdin.take(),
            stdout: child.stdout.take().map(BufReader::new),
            child,
            next_id: 0,
            meta: json!({}),
        }
    }

    pub(crate) fn notify(&mut self, method: &str, params: &Value) {
        self.write(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    fn write(&mut self, message: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    pub(crate) fn send(&mut self, method: &str, params: &Value) -> i64 {
        self.next_id += 1;
        let mut params = params.clone();
        for (key, value) in self.meta.as_object().unwrap() {
            params["_meta"][key] = value.clone();
        }
        self.write(
            &json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params}),
        );
        self.next_id
    }

    pub(crate) fn receive(&mut self) -> Value {
        let mut line = String::new();
        assert_ne!(
            self.stdout.as_mut().unwrap().read_line(&mut line).unwrap(),
            0,
            "the server hung up"
        );
        serde_json::from_str(&line).unwrap()
    }

    pub(crate) fn answer(&mut self, id: i64) -> Value {
        loop {
            let message = self.receive();
            if message["id"] == id && message.get("method").is_none() {
                return message["result"].clone();
            }
        }
    }

    pub(crate) fn begin_run(&mut self, code: &str) -> i64 {
        let arguments = json!({"code": code, "session_id": "a"});
        let params = json!({"name": "execute_python", "arguments": arguments, "_meta": {"progressToken": "p"}});
        self.send("tools/call", &params)
    }

    /// Waits until the code of a call has said that it has begun. It must say so for half a second:
    /// a client is told of the newest line, twice a second.
    pub(crate) fn wait_begun(&mut self) {
        loop {
            let message = self.receive();
            assert_eq!(message["method"], "notifications/progress", "{message}");
            let told = message["params"]["message"].as_str().unwrap();
            if told.contains("begun") {
                return;
            }
        }
    }

    pub(crate) fn run(&mut self, code: &str) -> Value {
        let id = self.begin_run(code);
        let answer = self.answer(id);
        assert_ne!(answer["structuredContent"], Value::Null, "{answer}");
        answer["structuredContent"].clone()
    }

    pub(crate) fn read_state(&mut self) -> Value {
        let id = self.send(
            "resources/read",
            &json!({"uri": "mcp://forge/sessions/a/state"}),
        );
        let answer = self.answer(id);
        serde_json::from_str(answer["contents"][0]["text"].as_str().unwrap()).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_fork_by_its_tool_lives_beside_its_original() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = Program::start(directory.path());
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    // Until its zygotes are there a server starts sessions without them.
    let answer = loop {
        let made = program.run("x = ['a']");
        assert_eq!(made["outcome"], "completed", "{made}");
        let arguments = json!({"session_id": "a", "new_session_id": "b"});
        let id = program.send(
            "tools/call",
            &json!({"name": "fork_session", "arguments": arguments}),
        );
        let answer = program.answer(id);
        if answer["isError"] != true {
            break answer;
        }
        let text = answer["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("`warm.enabled: true`"), "{text}");
        assert!(std::time::Instant::now() < deadline, "no zygote");
        let id = program.send(
            "tools/call",
            &json!({"name": "delete_session", "arguments": {"session_id": "a"}}),
        );
        program.answer(id);
    };
    assert_eq!(answer["structuredContent"]["session_id"], "b");
    assert_eq!(answer["structuredContent"]["forked_from"], "a");
    let mut run_in = |session: &str, code: &str| {
        let arguments = json!({"code": code, "session_id": session});
        let id = program.send(
            "tools/call",
            &json!({"name": "execute_python", "arguments": arguments}),
        );
        program.answer(id)["structuredContent"]["result"].clone()
    };
    assert_eq!(run_in("b", "x.append('b'); x"), json!(["a", "b"]));
    assert_eq!(run_in("a", "x"), json!(["a"]));
}

#[test]
fn a_server_killed_in_the_middle_of_a_turn_is_a_loss_and_nothing_worse() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = Program::start(directory.path());
    let made = first.run("x = 1\nopen('f.txt', 'w').write('kept')");
    assert_eq!(made["outcome"], "completed", "{made}");
    let id = first.send(
        "tools/call",
        &json!({"name": "document_state", "arguments": {"session_id": "a", "variables": {"x": "one"}}}),
    );
    first.answer(id);
    // Read once: then the file is on the host.
    let id = first.send(
        "resources/read",
        &json!({"uri": "mcp://forge/sessions/a/files/f.txt"}),
    );
    assert_eq!(first.answer(id)["contents"][0]["text"], "kept");
    first.begin_run("import time\nprint('begun', flush=True)\ntime.sleep(1000)");
    first.wait_begun();

    let mut beside = Program::start(directory.path());
    let id = beside.begin_run("x");
    let refused = beside.answer(id);
    let text = refused["content"][0]["text"].as_str().unwrap();
    let pid = first.child.id();
    assert!(
        text.contains(&format!("another mcp-forge server (pid {pid})")),
        "{text}"
    );

    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let state = beside.read_state();
    assert_eq!(state["state"], "lost");
    assert_eq!(state["documented_variables"], json!({"x": "one"}));
    assert_eq!(state["all_variables"], json!(["x"]));
    let told = beside.run("x");
    assert_eq!(told["outcome"], "session_lost", "{told}");
    assert_eq!(told["session"]["generation"], 2);
    assert_eq!(
        told["session"]["lost_reason"],
        format!("the server (pid {pid}) that ran it ended")
    );
    let fresh = beside.run("open('f.txt').read()");
    assert_eq!(fresh["result"], "kept", "{fresh}");
    let state = beside.read_state();
    let outcomes: Vec<&Value> = state["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|execution| &execution["outcome"])
        .collect();
    assert_eq!(
        outcomes[outcomes.len() - 2..],
        ["session_lost", "completed"]
    );
}
