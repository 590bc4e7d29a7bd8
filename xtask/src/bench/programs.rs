//! Ways to ask a contender for one sample: a program a run, a driver that answers lines of JSON, or an
//! MCP server.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::{
    watchdog::{Watchdog, end_group},
    workloads::Workload,
};

/// Time for one answer.
const ANSWER_LIMIT: Duration = Duration::from_mins(2);

/// The workload that an empty request is compared with.
pub(super) const PINGED: &str = "one";

/// Microseconds by the name of the row that they belong to.
pub(crate) type Sample = Vec<(&'static str, f64)>;

/// A contender, ready to run.
pub(crate) trait Sampler: Send {
    /// Runs a workload once and checks its answer.
    ///
    /// # Errors
    ///
    /// It failed, or gave another answer than is right.
    fn sample(&mut self, workload: &Workload) -> anyhow::Result<Sample>;

    /// Asks for something that only some drivers know: load, many at once.
    ///
    /// # Errors
    ///
    /// It failed or does not know this.
    fn ask(&mut self, _: &Value, _: Duration) -> anyhow::Result<Value> {
        bail!("it has no driver for this")
    }

    /// One run in a process of its own, for load from several threads; none where there is no such thing.
    fn one_shot(&self) -> Option<&OneShot> {
        None
    }
}

/// A round trip over a socket pair, to a thread and back.
#[derive(Debug)]
pub(crate) struct SocketFloor(UnixStream);

impl SocketFloor {
    /// # Errors
    ///
    /// No socket could be had.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        thread::spawn(move || {
            // Ends when the other end is dropped.
            let mut back = &theirs;
            std::io::copy(&mut &theirs, &mut back)
        });
        Ok(Self(ours))
    }
}

impl Sampler for SocketFloor {
    fn sample(&mut self, _: &Workload) -> anyhow::Result<Sample> {
        use std::io::Read;
        let mut byte = [0_u8; 1];
        let started = Instant::now();
        self.0.write_all(&byte)?;
        self.0.read_exact(&mut byte)?;
        Ok(vec![("socket", microseconds(started))])
    }
}

/// A program that is started for every run; its output is the answer.
pub(crate) struct OneShot {
    pub(crate) row: &'static str,
    /// Makes the command of a workload.
    pub(crate) command: Box<dyn Fn(&Workload) -> Command + Send + Sync>,
    /// Whether what it prints is the answer.
    pub(crate) answers: bool,
    pub(crate) watchdog: Watchdog,
}

impl OneShot {
    /// # Errors
    ///
    /// It could not be started, failed, or printed a wrong answer.
    pub(crate) fn run(&self, workload: &Workload) -> anyhow::Result<f64> {
        let mut command = (self.command)(workload);
        // With a group of its own, what hangs can be ended with all its children.
        command.stdin(Stdio::null()).process_group(0);
        if self.answers {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let started = Instant::now();
        let child = command.spawn().context("it does not start")?;
        let _watched = self.watchdog.watch(child.id(), ANSWER_LIMIT);
        let output = child.wait_with_output()?;
        let taken = microseconds(started);
        ensure!(
            output.status.success(),
            "{}: {}",
            output.status,
            last_line(&String::from_utf8_lossy(&output.stderr))
        );
        if self.answers {
            check(workload, String::from_utf8_lossy(&output.stdout).trim())?;
        }
        Ok(taken)
    }
}

impl Sampler for OneShot {
    fn sample(&mut self, workload: &Workload) -> anyhow::Result<Sample> {
        Ok(vec![(self.row, self.run(workload)?)])
    }

    fn one_shot(&self) -> Option<&OneShot> {
        Some(self)
    }
}

/// A child that answers lines with lines.
struct Lines {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    watchdog: Watchdog,
    log: std::path::PathBuf,
}

impl Lines {
    fn start(
        mut command: Command,
        log: &std::path::Path,
        watchdog: &Watchdog,
    ) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            .process_group(0)
            .spawn()
            .context("it does not start")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("stdout is piped")?;
        Ok(Self {
            child,
            stdin,
            stdout: BufReader::new(stdout),
            watchdog: watchdog.clone(),
            log: log.to_owned(),
        })
    }

    fn send(&mut self, message: &Value) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("it was ended")?;
        let written = writeln!(stdin, "{message}").and_then(|()| stdin.flush());
        written.map_err(|_| self.gone())
    }

    fn receive(&mut self, limit: Duration) -> anyhow::Result<Value> {
        let mut line = String::new();
        let read = {
            let _watched = self.watchdog.watch(self.child.id(), limit);
            self.stdout.read_line(&mut line)?
        };
        if read == 0 {
            return Err(self.gone());
        }
        serde_json::from_str(&line).with_context(|| format!("not JSON: {}", line.trim()))
    }

    /// Its own last words are the best reason.
    fn gone(&self) -> anyhow::Error {
        let log = std::fs::read(&self.log).unwrap_or_default();
        anyhow::anyhow!("it ended: {}", last_line(&String::from_utf8_lossy(&log)))
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // Most end by themselves once nothing more can come, and clean up.
        drop(self.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        end_group(self.child.id());
        // Nothing is left to do if it cannot be reaped.
        let _ = self.child.wait();
    }
}

/// A program that holds a contender and has the clock: see `drivers/`, and the bench `turns`.
pub(crate) struct Driver {
    row: &'static str,
    lines: Lines,
}

impl Driver {
    /// # Errors
    ///
    /// It cannot run here, for the reason in the error.
    pub(crate) fn start(
        row: &'static str,
        command: Command,
        log: &std::path::Path,
        watchdog: &Watchdog,
    ) -> anyhow::Result<Self> {
        let mut lines = Lines::start(command, log, watchdog)?;
        let hello = lines.receive(ANSWER_LIMIT)?;
        if let Some(reason) = hello["unavailable"].as_str() {
            bail!("{reason}");
        }
        Ok(Self { row, lines })
    }
}

impl Sampler for Driver {
    fn sample(&mut self, workload: &Workload) -> anyhow::Result<Sample> {
        let request = json!({
            "op": "run", "workload": workload.name, "tools": workload.tools,
            "code": workload.snippet(), "body": workload.body, "last": workload.last,
        });
        let answer = self.ask(&request, ANSWER_LIMIT)?;
        check(workload, answer["result"].as_str().unwrap_or_default())?;
        if workload.printed > 0 {
            let printed = answer["printed"].as_u64().unwrap_or_default();
            ensure!(
                printed == workload.printed as u64,
                "{printed} bytes of output came and should be {}",
                workload.printed
            );
        }
        let taken = answer["us"].as_f64().context("no time")?;
        Ok(vec![(self.row, taken)])
    }

    fn ask(&mut self, request: &Value, limit: Duration) -> anyhow::Result<Value> {
        self.lines.send(request)?;
        let answer = self.lines.receive(limit)?;
        match answer["error"].as_str() {
            Some(error) => bail!("{error}"),
            None => Ok(answer),
        }
    }
}

/// An MCP server on standard input and output, with a tool that runs Python.
pub(crate) struct McpServer {
    rows: McpRows,
    lines: Lines,
    next: u64,
}

/// How a server is spoken to, and the rows that its samples go to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct McpRows {
    /// Row of the tool call.
    pub(crate) call: &'static str,
    /// Row of an empty `ping` on the same connection, right before.
    pub(crate) ping: Option<&'static str>,
    /// The tool.
    pub(crate) tool: &'static str,
    /// Its parameter with the code.
    pub(crate) parameter: &'static str,
}

impl McpServer {
    /// # Errors
    ///
    /// It cannot run here, for the reason in the error.
    pub(crate) fn start(
        rows: McpRows,
        command: Command,
        log: &std::path::Path,
        watchdog: &Watchdog,
    ) -> anyhow::Result<Self> {
        let mut server = Self {
            rows,
            lines: Lines::start(command, log, watchdog)?,
            next: 0,
        };
        let hello = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        });
        server.request("initialize", &hello)?;
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        server.lines.send(&initialized)?;
        Ok(server)
    }

    /// Microseconds until the answer, and the answer.
    ///
    /// # Errors
    ///
    /// It is gone, or refused.
    pub(crate) fn request(
        &mut self,
        method: &str,
        parameters: &Value,
    ) -> anyhow::Result<(f64, Value)> {
        self.next += 1;
        let id = self.next;
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": parameters});
        let started = Instant::now();
        self.lines.send(&message)?;
        loop {
            let mut answer = self.lines.receive(ANSWER_LIMIT)?;
            if answer["id"] == id {
                let taken = microseconds(started);
                ensure!(answer.get("error").is_none(), "{}", answer["error"]);
                return Ok((taken, answer["result"].take()));
            }
        }
    }
}

impl Sampler for McpServer {
    fn sample(&mut self, workload: &Workload) -> anyhow::Result<Sample> {
        let mut sample = Vec::new();
        if let Some(row) = self.rows.ping.filter(|_| workload.name == PINGED) {
            sample.push((row, self.request("ping", &json!({}))?.0));
        }
        let call = json!({
            "name": self.rows.tool,
            "arguments": {self.rows.parameter: workload.snippet()},
        });
        let (taken, result) = self.request("tools/call", &call)?;
        let told = result["content"].to_string();
        ensure!(
            result["isError"] != true && told.contains(workload.expected),
            "wrong answer: {told}"
        );
        sample.push((self.rows.call, taken));
        Ok(sample)
    }
}

pub(crate) fn check(workload: &Workload, answer: &str) -> anyhow::Result<()> {
    ensure!(
        answer == workload.expected,
        "the answer is {answer:?} and should be {}",
        workload.expected
    );
    Ok(())
}

pub(crate) fn microseconds(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e6
}

/// What the end of a log says went wrong: its last line, from the last `error:` in it if there is
/// one, up to the end of that sentence.
fn last_line(text: &str) -> String {
    let plain = without_colours(text);
    let line = plain
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("it said nothing");
    let reason = line.rsplit("error: ").next().unwrap_or(line);
    let sentence = reason.split(". ").next().unwrap_or(reason);
    sentence.chars().take(200).collect()
}

/// Leaves out what starts with an escape and ends with the letter `m`.
fn without_colours(text: &str) -> String {
    let mut pieces = text.split('\u{1b}');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |plain, piece| {
        plain + piece.split_once('m').map_or(piece, |(_, rest)| rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_found_in_a_colourful_last_line() {
        let log = "Traceback:\nRuntimeError: status 1: \u{1b}[32mDownload\u{1b}[0m zod\u{1b}[31merror\u{1b}[0m: \
                   manifest failed to load. Import failed.at 7:27\n\n";
        assert_eq!(last_line(log), "manifest failed to load");
        assert_eq!(last_line("a\nValueError: no\n"), "ValueError: no");
        assert_eq!(last_line(""), "it said nothing");
    }
}
