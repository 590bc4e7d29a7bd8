//! A server over HTTP, and a client that sends exactly what it is told to.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::cli::command;

/// How long anything may take before the test gives up.
pub(super) const PATIENCE: Duration = Duration::from_mins(2);

/// The program, serving. Killed when dropped.
pub(crate) struct Served {
    pub(crate) directory: TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) child: Child,
    /// What it wrote to standard error.
    said: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The JSON-RPC answer, whether it came as JSON or as the last event of a stream.
    pub(crate) fn message(&self) -> Value {
        if self.header("content-type") == Some("application/json") {
            return self.json();
        }
        let mut data = self
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data:"));
        let last = data.rfind(|data| data.contains("\"id\""));
        let last = last.unwrap_or_else(|| panic!("no answer in {self:?}"));
        serde_json::from_str(last).unwrap()
    }
}

impl Served {
    /// Serves at a free port of 127.0.0.1, with the tokens `ada`, `bob` (scope run) and `admin`.
    pub(crate) fn start(variables: &[(&str, &str)]) -> Self {
        let directory = with_tokens();
        Self::start_in(directory, &["serve", "--http", "127.0.0.1:0"], variables)
    }

    /// The same with a configuration file.
    pub(crate) fn start_configured(config: &str, variables: &[(&str, &str)]) -> Self {
        let directory = with_tokens();
        let file = directory.path().join("config.yaml");
        fs::write(&file, config).unwrap();
        let arguments = [
            "serve",
            "--http",
            "127.0.0.1:0",
            "--config",
            file.to_str().unwrap(),
        ];
        Self::start_in(directory, &arguments, variables)
    }

    /// Serves in a directory as it is.
    pub(crate) fn start_in(
        directory: TempDir,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = command(directory.path(), arguments);
        command.stdout(Stdio::null());
        Self::start_as(directory, command, variables)
    }

    /// Waits until this command serves in this directory.
    pub(crate) fn start_as(
        directory: TempDir,
        mut command: Command,
        variables: &[(&str, &str)],
    ) -> Self {
        let mut child = command
            // No packages are prepared: what starts is bare Python.
            .env("MCP_FORGE_WARM_READY", "0")
            .env("MCP_FORGE_WARM_TIERS", "json")
            .env("MCP_FORGE_EXECUTION_DEFAULT_CPU_QUOTA", "100000")
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let url = loop {
            let Some(line) = lines.next() else {
                panic!("the server did not start: {said}");
            };
            let line = line.unwrap();
            said.push_str(&line);
            said.push('\n');
            if let Some((_, url)) = line.split_once("Listening at ") {
                // In a line of JSON it is a text.
                break url.trim_end_matches("\"}").to_owned();
            }
        };
        let said = Arc::new(Mutex::new(said));
        let heard = Arc::clone(&said);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self {
            directory,
            address: url.split_once("://").unwrap().1.parse().unwrap(),
            child,
            said,
            reader: Some(reader),
        }
    }

    /// Everything that the server wrote to standard error so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits for the server's end: its exit code, and all that it said.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        (status.code(), self.said())
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes, and reads until the server hangs up.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Reply {
        let mut stream = self.connect();
        // It may hang up before it has all.
        let _ = stream.write_all(bytes);
        read_reply(&mut stream)
    }

    /// A whole request, on a connection of its own. `headers` are whole lines.
    pub(crate) fn request(&self, line: &str, headers: &[&str], body: &str) -> Reply {
        self.raw(&self.bytes(line, headers, body))
    }

    /// Asks until this holds of the answer: what a busy server looks at may be late, and its disk.
    pub(crate) fn request_until(
        &self,
        line: &str,
        headers: &[&str],
        holds: impl Fn(&Reply) -> bool,
    ) -> Reply {
        let asked = Instant::now();
        loop {
            let reply = self.request(line, headers, "");
            if holds(&reply) {
                return reply;
            }
            assert!(asked.elapsed() < PATIENCE, "{line}: {reply:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Such a request's bytes.
    pub(crate) fn bytes(&self, line: &str, headers: &[&str], body: &str) -> Vec<u8> {
        let mut text = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        if !headers
            .iter()
            .any(|header| header.to_ascii_lowercase().starts_with("host:"))
        {
            let _ = write!(text, "Host: {}\r\n", self.address);
        }
        for header in headers {
            text.push_str(header);
            text.push_str("\r\n");
        }
        if !body.is_empty() {
            let _ = write!(text, "Content-Length: {}\r\n", body.len());
        }
        format!("{text}\r\n{body}").into_bytes()
    }

    /// A message to `/mcp` from somebody.
    pub(crate) fn post(&self, who: &str, more: &[&str], body: &str) -> Reply {
        let authorization = format!("Authorization: Bearer {}", token(who));
        let mut headers = vec![
            authorization.as_str(),
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
        ];
        headers.extend(more);
        self.request("POST /mcp", &headers, body)
    }

    /// A request of 2026-07-28, which needs no handshake.
    pub(crate) fn call(&self, who: &str, method: &str, mut params: Value) -> Value {
        params["_meta"] = modern_meta();
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let mut headers = vec![
            "MCP-Protocol-Version: 2026-07-28".to_owned(),
            format!("Mcp-Method: {method}"),
        ];
        if let Some(name) = params
            .get("name")
            .or_else(|| params.get("uri"))
            .and_then(Value::as_str)
        {
            headers.push(format!("Mcp-Name: {name}"));
        }
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        self.post(who, &headers, &message.to_string()).message()
    }

    /// Calls a tool.
    pub(crate) fn tool(&self, who: &str, name: &str, arguments: &Value) -> Value {
        let answer = self.call(
            who,
            "tools/call",
            json!({"name": name, "arguments": arguments}),
        );
        assert!(answer.get("result").is_some(), "{answer}");
        answer["result"].clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A data directory with the tokens of [`Served::start`].
pub(super) fn with_tokens() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let entry = |name: &str, scopes: &str| {
        let hash = Sha256::digest(token(name));
        format!("- {{principal: {name}, sha256: \"{hash:x}\", scopes: [{scopes}]}}\n")
    };
    let tokens = [
        entry("ada", "run"),
        entry("bob", "run"),
        entry("admin", "run, admin"),
        entry("nobody", ""),
    ];
    write_private(
        &directory.path().join("tokens.yaml"),
        &format!("tokens:\n{}", tokens.concat()),
    );
    directory
}

/// The token of a principal of [`Served::start`].
pub(crate) fn token(who: &str) -> String {
    format!("token-of-{who}")
}

pub(crate) fn modern_meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    })
}

pub(crate) fn initialize(version: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }})
    .to_string()
}

pub(crate) fn write_private(file: &Path, text: &str) {
    let mut options = fs::OpenOptions::new();
    let opened = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file);
    opened.unwrap().write_all(text.as_bytes()).unwrap();
}

/// Reads one reply, up to the end of its body or of the connection.
pub(crate) fn read_reply(stream: &mut impl Read) -> Reply {
    let mut bytes = Vec::new();
    // What came before a reset is a reply all the same.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no reply: {text:?}"));
    let mut lines = head.lines();
    let status = lines
        .next()
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let is_chunked = headers.contains(&("transfer-encoding".to_owned(), "chunked".to_owned()));
    let body = if is_chunked {
        dechunked(body)
    } else {
        body.to_owned()
    };
    Reply {
        status,
        headers,
        body,
    }
}

fn dechunked(mut text: &str) -> String {
    let mut body = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 || rest.len() < size {
            break;
        }
        body.push_str(&rest[..size]);
        text = rest[size..].trim_start_matches("\r\n");
    }
    body
}
