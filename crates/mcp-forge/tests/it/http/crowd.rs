//! Rows M5 and N14: many callers at once, who never see each other's, and readers of streams who do not
//! read, leave in the middle, or come back all the time.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    rest::{ask, get},
    served::{PATIENCE, Reply, Served, initialize, read_reply, token},
};

/// As many requests as one likes.
const OFTEN: (&str, &str) = ("MCP_FORGE_SERVER_REQUESTS_PER_MINUTE", "1000000");

/// A server of tools that says what it is told.
const ECHO: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    method, answer = message.get("method"), None
    if method == "initialize":
        answer = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "echo", "version": "1"}}
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        answer = {"tools": [{"name": "say", "description": "Says it.", "inputSchema": schema}]}
    elif method == "tools/call":
        answer = {"content": [{"type": "text", "text": message["params"]["arguments"]["text"]}]}
    if "id" in message:
        what = {"result": answer} if answer else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **what}), flush=True)
"#;

/// A caller, and what it keeps between its calls.
struct Caller<'a> {
    served: &'a Served,
    who: &'static str,
    worker: usize,
    /// Its session of MCP's older versions.
    session: String,
}

#[test]
fn a_thousand_calls_of_every_kind_never_cross() {
    const CALLS: usize = 1000;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("forge.json");
    let upstream = json!({"command": "python3", "args": ["-c", ECHO]});
    fs::write(&file, json!({"mcp_tools": {"echo": upstream}}).to_string()).unwrap();
    let served = Served::start(&[
        ("MCP_FORGE_CONFIG", file.to_str().unwrap()),
        ("MCP_FORGE_EXECUTION_MAX_CONCURRENT", "8"),
        OFTEN,
    ]);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for worker in 0..8 {
            let (served, next) = (&served, &next);
            scope.spawn(move || {
                let caller = Caller::new(served, worker);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= CALLS {
                        return;
                    }
                    caller.call(number);
                }
            });
        }
    });
    for (who, other) in [("ada", "of-bob-"), ("bob", "of-ada-")] {
        for path in ["", "/s", "/s/files"] {
            let told = get(&served, who, &format!("/api/v1/sessions{path}"));
            assert_eq!(told.status, 200, "{told:?}");
            assert!(!told.body.contains(other), "{told:?}");
        }
        let state = get(&served, who, "/api/v1/sessions/s").body;
        assert!(state.contains("mine_"), "{state}");
    }
}

impl<'a> Caller<'a> {
    fn new(served: &'a Served, worker: usize) -> Self {
        let who = if worker.is_multiple_of(2) {
            "ada"
        } else {
            "bob"
        };
        let opened = served.post(who, &[], &initialize("2025-11-25"));
        let session = opened.header("mcp-session-id").unwrap();
        let session = format!("Mcp-Session-Id: {session}");
        let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        served.post(who, &[&session], ready);
        Self {
            served,
            who,
            worker,
            session,
        }
    }

    /// One call of a kind; its answer has its own marker, and nothing of the other principal's.
    fn call(&self, number: usize) {
        let marker = format!("of-{}-{number}", self.who);
        let code = format!("mine_{number} = {marker:?}; print(mine_{number}); mine_{number}");
        let tool = json!({"code": format!("echo_say(text={marker:?})"), "mcp_tools": ["echo_say"]});
        let raises = json!({"code": format!("raise ValueError({marker:?})")});
        let in_session = json!({"code": code, "session_id": "s"});
        let told = match number % 10 {
            0 => self.rest(&raises),
            1 => self.rest(&in_session),
            2 => self.modern(&in_session),
            3 => self.older(&in_session),
            4 => self.file(&marker),
            5 => self.state(&marker),
            6 => self.modern(&with(&tool, "session_id", "s")),
            7 => self.older(&tool),
            8 => self.older(&raises),
            _ => self.later(&json!({"code": code})),
        };
        let other = if self.who == "ada" {
            "of-bob-"
        } else {
            "of-ada-"
        };
        assert!(
            told.contains(&marker),
            "{number}: {marker} is not in {told}"
        );
        assert!(!told.contains(other), "{number}: {told}");
    }

    fn rest(&self, body: &Value) -> String {
        let reply = ask(self.served, self.who, "POST /api/v1/execute", &[], body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.body
    }

    fn modern(&self, arguments: &Value) -> String {
        let told = self.served.tool(self.who, "execute_python", arguments);
        told.to_string()
    }

    fn older(&self, arguments: &Value) -> String {
        let params = json!({"name": "execute_python", "arguments": arguments});
        let message = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params});
        let more = [self.session.as_str(), "MCP-Protocol-Version: 2025-11-25"];
        let reply = self.served.post(self.who, &more, &message.to_string());
        reply.message().to_string()
    }

    fn file(&self, marker: &str) -> String {
        let path = format!("/api/v1/sessions/s/files/f-{}", self.worker);
        let authorization = format!("Authorization: Bearer {}", token(self.who));
        let line = format!("PUT {path}?overwrite=true");
        let put = self.served.request(&line, &[&authorization], marker);
        assert!([200, 201].contains(&put.status), "{put:?}");
        let file = get(self.served, self.who, &path);
        assert_eq!(file.body, marker);
        file.body
    }

    fn state(&self, marker: &str) -> String {
        let session = format!("s-{}", self.worker / 2);
        // Two callers of different principals have the same name.
        let body = json!({"session_id": session, "state": {"marker": marker}});
        let put = ask(
            self.served,
            self.who,
            "POST /api/v1/context/state",
            &[],
            &body,
        );
        assert_eq!(put.status, 200, "{put:?}");
        let path = format!("/api/v1/context/state?session_id={session}");
        get(self.served, self.who, &path).body
    }

    fn later(&self, body: &Value) -> String {
        let begun = ask(
            self.served,
            self.who,
            "POST /api/v1/execute?wait=false",
            &[],
            body,
        );
        let place = begun.header("location").unwrap().to_owned();
        let events = get(self.served, self.who, &format!("{place}/events"));
        assert!(events.body.contains("event: end"), "{events:?}");
        get(self.served, self.who, &place).body
    }
}

fn with(value: &Value, key: &str, text: &str) -> Value {
    let mut value = value.clone();
    value[key] = text.into();
    value
}

/// Kilobytes of memory that the server has.
fn memory(served: &Served) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", served.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

fn descriptors(served: &Served) -> usize {
    let opened = fs::read_dir(format!("/proc/{}/fd", served.child.id()));
    opened.unwrap().count()
}

/// Starts code that nobody waits for: where its events are.
fn begin(served: &Served, code: &str) -> String {
    let body = json!({"code": code});
    let begun = ask(served, "ada", "POST /api/v1/execute?wait=false", &[], &body);
    format!("{}/events", begun.header("location").unwrap())
}

/// Asks for events, and reads nothing.
fn listen(served: &Served, events: &str, more: &[&str]) -> TcpStream {
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let mut headers = vec![authorization.as_str()];
    headers.extend(more);
    let mut stream = served.connect();
    let bytes = served.bytes(&format!("GET {events}"), &headers, "");
    stream.write_all(&bytes).unwrap();
    stream
}

fn texts(reply: &Reply) -> String {
    let data = reply
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str::<Value>(data).unwrap())
        .filter_map(|piece| piece["text"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn five_hundred_readers_and_some_who_never_read_harm_nobody() {
    let served = Served::start(&[
        ("MCP_FORGE_SERVER_REQUESTS_IN_FLIGHT", "600"),
        ("MCP_FORGE_EXECUTION_MAX_OUTPUT", "4m"),
    ]);
    // More than all buffers between the two ends hold.
    let flood = begin(&served, "for _ in range(6000): print('x' * 999)");
    assert!(get(&served, "ada", &flood).body.contains("event: end"));
    let before = memory(&served);
    let silent: Vec<_> = (0..20).map(|_| listen(&served, &flood, &[])).collect();
    let wait = "import time\nfor n in range(40): print(n, 'y' * 500, flush=True); time.sleep(0.05)";
    let events = begin(&served, wait);
    let lines: Vec<String> = (0..40)
        .map(|n| format!("{n} {}\n", "y".repeat(500)))
        .collect();
    let expected = lines.concat();
    thread::scope(|scope| {
        let readers: Vec<_> = (0..480)
            .map(|_| {
                let mut stream = listen(&served, &events, &[]);
                let reader = thread::Builder::new().stack_size(128 << 10);
                let read = move || texts(&read_reply(&mut stream));
                reader.spawn_scoped(scope, read).unwrap()
            })
            .collect();
        // Others go on meanwhile.
        let done = ask(
            &served,
            "bob",
            "POST /api/v1/execute",
            &[],
            &json!({"code": "6 * 7"}),
        );
        assert_eq!(done.json()["result"], 42);
        for reader in readers {
            assert!(
                reader.join().unwrap() == expected,
                "a reader missed something"
            );
        }
    });
    let more = memory(&served).saturating_sub(before);
    assert!(more < 150 << 10, "{more} kB more for 500 readers");
    drop(silent);
}

#[test]
fn readers_that_leave_anywhere_and_come_back_all_the_time_leave_nothing() {
    let served = Served::start(&[OFTEN]);
    let events = begin(
        &served,
        "import sys\nprint('out'); print('err', file=sys.stderr); 7",
    );
    let mut whole = Vec::new();
    // The first waits for its end; from then on all are alike.
    for _ in 0..2 {
        whole.clear();
        listen(&served, &events, &[])
            .read_to_end(&mut whole)
            .unwrap();
    }
    assert!(whole.len() > 500 && whole.len() < 5000, "{}", whole.len());
    let had = descriptors(&served);
    let running = begin(
        &served,
        "import time; print('begun', flush=True); time.sleep(200)",
    );
    // How many are there at once is the machine's to say: a second round is held against the first.
    let mut before = 0;
    for _ in 0..2 {
        before = memory(&served);
        for length in 0..whole.len() {
            let mut stream = listen(&served, &events, &[]);
            let mut piece = vec![0; length];
            stream.read_exact(&mut piece).unwrap();
        }
        for number in 0..500 {
            let last = format!("Last-Event-ID: {}", number % 7);
            // The last ones ask for what will never be.
            let last = if number < 400 {
                last
            } else {
                format!("Last-Event-ID: {}", u64::MAX)
            };
            drop(listen(&served, &running, &[&last]));
        }
        let begun = Instant::now();
        while descriptors(&served) > had + 20 {
            assert!(
                begun.elapsed() < PATIENCE,
                "{} descriptors stay open",
                descriptors(&served)
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
    let mut again = Vec::new();
    listen(&served, &events, &["Last-Event-ID: 1"])
        .read_to_end(&mut again)
        .unwrap();
    let again = String::from_utf8(again).unwrap();
    let goes_on = !again.contains("id: 1\n") && again.contains("id: 2\n");
    assert!(goes_on && again.contains("event: end"), "{again}");
    let more = memory(&served).saturating_sub(before);
    assert!(more < 96 << 10, "{more} kB more");
    let done = ask(
        &served,
        "ada",
        "POST /api/v1/execute",
        &[],
        &json!({"code": "6 * 7"}),
    );
    assert_eq!(done.json()["result"], 42);
}
