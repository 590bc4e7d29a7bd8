//! mcp-forge over HTTP: one request at a time on a connection that stays, and `wrk` for load.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::{
    contenders::{EMPTY_HTTP, Start},
    programs::{PINGED, Sample, Sampler, check, microseconds},
    tools::Tools,
    watchdog::Watchdog,
    workloads::Workload,
};
use crate::process::program;

/// Time for a start, and for one answer.
const LIMIT: Duration = Duration::from_mins(1);

/// Connections that say hello.
const GREETING: u64 = 64;

/// One script for all load: what is sent comes from the environment.
const SCRIPT: &str = include_str!("drivers/wrk.lua");

/// What an MCP client says first.
const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;

/// The server, and a connection to it.
pub(crate) struct HttpServer {
    row: &'static str,
    child: Child,
    address: String,
    token: String,
    agent: ureq::Agent,
    script: PathBuf,
    watchdog: Watchdog,
}

impl HttpServer {
    /// # Errors
    ///
    /// It cannot run here, for the reason in the error.
    pub(crate) fn start(row: &'static str, tools: &Tools, start: &Start) -> anyhow::Result<Self> {
        let data = tools.directory.join(format!("data-{row}"));
        // Only the first start of a data directory shows its token.
        match fs::remove_dir_all(&data) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let script = tools.directory.join("wrk.lua");
        fs::write(&script, SCRIPT)?;
        let mut command = program(&tools.binary);
        command
            .arg("--data-dir")
            .arg(&data)
            .args(["serve", "--http", "127.0.0.1:0"])
            .env("MCP_FORGE_PYTHON_PATH", tools.python())
            .env("MCP_FORGE_EXECUTION_DEFAULT_CPU_QUOTA", "100000")
            // As in the service of the bench's own: four times as many may wait, so that 64 clients find room.
            .env("MCP_FORGE_EXECUTION_MAX_CONCURRENT", "16")
            // What is measured is the service, not what one client may take of it.
            .env("MCP_FORGE_SERVER_REQUESTS_PER_MINUTE", "1000000")
            .env("MCP_FORGE_SERVER_REQUESTS_IN_FLIGHT", "1000");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&start.log)?)
            .spawn()
            .context("it does not start")?;
        let told = listening(&mut child, &start.log);
        let (address, token) = told.inspect_err(|_| end(&mut child))?;
        let settings = ureq::Agent::config_builder()
            .timeout_global(Some(LIMIT))
            .http_status_as_error(false);
        Ok(Self {
            row,
            child,
            address,
            token,
            agent: settings.build().into(),
            script,
            watchdog: start.watchdog.clone(),
        })
    }

    /// As many requests as these connections get done.
    fn wrk(
        &self,
        (path, body, expected): (&str, &str, &str),
        clients: u64,
        seconds: u64,
    ) -> anyhow::Result<Value> {
        let threads = clients.min(2);
        let child = program("wrk")
            .args(["--script".as_ref(), self.script.as_os_str()])
            .args([
                format!("-t{threads}"),
                format!("-c{clients}"),
                format!("-d{seconds}s"),
            ])
            .args(["--timeout", "30s"])
            .arg(format!("{}{path}", self.address))
            .env("BENCH_TOKEN", &self.token)
            .env("BENCH_BODY", body)
            .env("BENCH_EXPECTED", expected)
            .stdout(Stdio::piped())
            .spawn()
            .context("wrk does not start")?;
        let _watched = self
            .watchdog
            .watch(child.id(), Duration::from_secs(seconds) + LIMIT);
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find(|line| line.starts_with('{'));
        let line = line.with_context(|| format!("wrk said no numbers: {text}"))?;
        serde_json::from_str(line).context("what wrk's script says is JSON")
    }

    /// Clients that say hello and are never heard of again; what the server's memory does.
    fn handshakes(&self, count: u64) -> anyhow::Result<Value> {
        let mut done = 0;
        let mut first = None;
        while done < count {
            // For so short a time that the memory after the first is not the memory after all.
            let answer = self.wrk(("/mcp", HELLO, "serverInfo"), GREETING, 1)?;
            let failed = answer["failed"].as_u64().unwrap_or_default();
            ensure!(failed == 0, "{failed} were refused");
            done += answer["completed"].as_u64().context("no count")?;
            first = first.or(Some((done, resident_kib(self.child.id())?)));
        }
        let (after, first_kib) = first.context("none was asked for")?;
        ensure!(done > after, "all {done} came in the first second");
        let last_kib = resident_kib(self.child.id())?;
        Ok(json!({"count": done, "first": after, "first_kib": first_kib, "last_kib": last_kib}))
    }
}

impl Sampler for HttpServer {
    fn sample(&mut self, workload: &Workload) -> anyhow::Result<Sample> {
        let mut sample = Vec::new();
        if workload.name == PINGED {
            let started = Instant::now();
            let url = format!("{}/livez", self.address);
            self.agent.get(&url).call()?.body_mut().read_to_string()?;
            sample.push((EMPTY_HTTP.0, microseconds(started)));
        }
        let body = json!({"code": workload.snippet()}).to_string();
        let url = format!("{}/api/v1/execute", self.address);
        let started = Instant::now();
        let mut answer = self
            .agent
            .post(&url)
            .header("Authorization", format!("Bearer {}", self.token))
            .header("Content-Type", "application/json")
            .send(&body)?;
        let text = answer.body_mut().read_to_string()?;
        let taken = microseconds(started);
        let answer: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        check(workload, &answer["result"].to_string())?;
        sample.push((self.row, taken));
        Ok(sample)
    }

    fn ask(&mut self, request: &Value, _: Duration) -> anyhow::Result<Value> {
        let number = |key: &str| request[key].as_u64().context("no number");
        match request["op"].as_str() {
            Some("load") => {
                let body = json!({"code": request["code"]}).to_string();
                let sent = ("/api/v1/execute", body.as_str(), "\"result\":");
                self.wrk(sent, number("clients")?, number("seconds")?)
            }
            Some("handshakes") => self.handshakes(number("count")?),
            _ => bail!("it has no driver for this"),
        }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Waits until it listens: where, and the token that it made.
fn listening(child: &mut Child, log: &Path) -> anyhow::Result<(String, String)> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        let said = fs::read_to_string(log)?;
        if let Some(address) = said
            .lines()
            .find_map(|line| line.strip_prefix("Listening at "))
        {
            let token = said
                .lines()
                .map(str::trim)
                .find(|line| line.starts_with("mcpf_"));
            return Ok((
                address.to_owned(),
                token.context("it showed no token")?.to_owned(),
            ));
        }
        if let Some(status) = child.try_wait()? {
            bail!("it ended ({status}): {said}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    bail!("it did not listen within {} s", LIMIT.as_secs())
}

/// As a service manager ends it; by force if that takes long.
fn end(child: &mut Child) {
    let pid = child.id().to_string();
    // If it cannot be asked, it is killed below.
    let _ = program("kill").args(["-TERM", &pid]).status();
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number
        .context("no VmRSS")?
        .parse()
        .context("VmRSS is a number")
}
