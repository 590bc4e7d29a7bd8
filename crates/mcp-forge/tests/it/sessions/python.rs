//! A scripted interpreter with a memory: the runner's side of a session, for a small language.
//!
//! One command a line: `set NAME VALUE`, `get NAME`, `print TEXT`, `write PATH TEXT`, `remove PATH`,
//! `read PATH`, `sleep` (until interrupted), `hang` (for ever), `die`, `late TEXT` (output once the
//! turn is over), `tool NAME` (calls it), `gate` (waits for the test), `boast` (claims absurd things),
//! `thread` (starts one, so that no copy can be made).

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use mcp_forge::runner::wire::{
    Changes, Done, Event, FileState, Inspected, Raised, Request, Variable,
};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use crate::fake::{FakeEngine, Runner};

/// What the test holds of all interpreters.
#[derive(Clone)]
pub(crate) struct Control {
    /// One permit lets one `gate` pass.
    pub(crate) gate: Arc<Semaphore>,
}

/// An engine of such interpreters.
pub(crate) fn engine() -> (Arc<FakeEngine>, Control) {
    let control = Control {
        gate: Arc::new(Semaphore::new(0)),
    };
    let shared = control.clone();
    let engine = FakeEngine::new(move |runner| Python::new(runner, shared.clone()).run());
    (engine, control)
}

struct Python {
    runner: Runner,
    control: Control,
    variables: Vec<(String, String, String)>,
    files: BTreeMap<String, (Vec<u8>, u64)>,
    clock: u64,
    late: Vec<(String, String)>,
    boasts: bool,
    has_thread: bool,
}

enum Ended {
    Done(Box<Done>),
    Died,
}

impl Python {
    fn new(runner: Runner, control: Control) -> Self {
        Self {
            runner,
            control,
            variables: Vec::new(),
            files: BTreeMap::new(),
            clock: 1,
            late: Vec::new(),
            boasts: false,
            has_thread: false,
        }
    }

    async fn run(mut self) {
        loop {
            let request = match self.runner.receive_or_branch().await {
                Ok(request) => request,
                Err(copy) => {
                    self.branch(*copy).await;
                    continue;
                }
            };
            match request {
                Request::StartSession {} => {
                    let shell = "plain".to_owned();
                    self.runner.send(&Event::SessionStarted { shell }).await;
                }
                Request::Execute {
                    code,
                    execution_id,
                    inspect,
                    ..
                } => {
                    let id = execution_id.unwrap();
                    match self.execute(&code, &id).await {
                        Ended::Died => return,
                        Ended::Done(done) => self.runner.send(&Event::Done(*done)).await,
                    }
                    for (id, text) in std::mem::take(&mut self.late) {
                        let late = Event::LateOutput {
                            execution_id: id,
                            stream: "stdout".to_owned(),
                            text,
                        };
                        self.runner.send(&late).await;
                    }
                    if inspect.is_some() {
                        let told = self.inspect();
                        self.runner.send(&Event::Inspected(told)).await;
                    }
                }
                Request::Inspect { .. } => {
                    let told = self.inspect();
                    self.runner.send(&Event::Inspected(told)).await;
                }
                Request::WriteFile { path, offset, data } => {
                    self.clock += 1;
                    let clock = self.clock;
                    let file = self.files.entry(path.clone()).or_default();
                    file.0.truncate(usize::try_from(offset).unwrap());
                    file.0.extend(STANDARD.decode(data).unwrap());
                    file.1 = clock;
                    self.runner
                        .send(&Event::FileWritten {
                            path,
                            error: None,
                            problem: None,
                        })
                        .await;
                }
                Request::ReadFile {
                    path,
                    offset,
                    length,
                } => {
                    let answer = self.read(path, offset, length);
                    self.runner.send(&answer).await;
                }
                Request::ToolResult { .. } => {}
                Request::MoveFile { .. } | Request::RemoveFile { .. } => {
                    panic!("files are put into real sandboxes only")
                }
                Request::Branch {} => panic!("the fake engine gives descriptors its own way"),
            }
        }
    }

    async fn branch(&mut self, mut runner: Runner) {
        let error = self
            .has_thread
            .then(|| "thread `worker` is alive".to_owned());
        let pid = error.is_none().then_some(42);
        if error.is_none() {
            let python = "3.11.7".to_owned();
            runner.send(&Event::Ready { python }).await;
            let mut copy = Self::new(runner, self.control.clone());
            copy.variables.clone_from(&self.variables);
            copy.files.clone_from(&self.files);
            tokio::spawn(boxed(copy));
        }
        self.runner.send(&Event::Branched { pid, error }).await;
    }

    async fn execute(&mut self, code: &str, id: &str) -> Ended {
        let mut result = Value::Null;
        for line in code.lines() {
            let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
            match command {
                "set" => {
                    self.variables.retain(|(known, ..)| known != name);
                    let entry = (name.to_owned(), value.to_owned(), id.to_owned());
                    self.variables.insert(0, entry);
                }
                "get" => match self.variables.iter().find(|(known, ..)| known == name) {
                    Some((_, value, _)) => result = json!(value),
                    None => return Ended::Done(raised("NameError", name)),
                },
                "print" => self.runner.print(rest).await,
                "write" => {
                    self.clock += 1;
                    let file = (value.as_bytes().to_vec(), self.clock);
                    self.files.insert(name.to_owned(), file);
                }
                "remove" => {
                    self.files.remove(name);
                }
                "read" => match self.files.get(name) {
                    Some((bytes, _)) => result = json!(String::from_utf8_lossy(bytes)),
                    None => return Ended::Done(raised("FileNotFoundError", name)),
                },
                "sleep" => {
                    self.runner.interrupt.notified().await;
                    return Ended::Done(raised("KeyboardInterrupt", ""));
                }
                "hang" => std::future::pending().await,
                "die" => return Ended::Died,
                "late" => self.late.push((id.to_owned(), rest.to_owned())),
                "gate" => self.control.gate.acquire().await.unwrap().forget(),
                "boast" => self.boasts = true,
                "thread" => self.has_thread = true,
                "tool" => {
                    let call = Event::ToolCall {
                        call_id: 7,
                        name: name.to_owned(),
                        arguments: Map::new(),
                    };
                    self.runner.send(&call).await;
                    match self.runner.receive().await {
                        Request::ToolResult { answer, .. } => result = json!(format!("{answer:?}")),
                        other => panic!("{other:?}"),
                    }
                }
                other => panic!("no command {other:?}"),
            }
        }
        let result_repr = (!result.is_null()).then(|| result.to_string());
        Ended::Done(Box::new(Done {
            result,
            result_repr,
            ..Done::default()
        }))
    }

    fn inspect(&self) -> Inspected {
        let variables = self.variables.iter().map(|(name, value, id)| Variable {
            name: name.clone(),
            kind: "str".to_owned(),
            length: Some(value.len() as u64),
            repr: Some(format!("{value:?}")),
            execution_id: Some(id.clone()),
            ..Variable::default()
        });
        let files = self.files.iter().map(|(path, (bytes, clock))| FileState {
            path: path.clone(),
            size: bytes.len() as u64,
            modified_ns: *clock,
        });
        let mut told = Inspected {
            variables: variables.collect(),
            files: files.collect(),
            changes: Changes::default(),
            ..Inspected::default()
        };
        if self.boasts {
            let absurd = |path: &str| FileState {
                path: path.to_owned(),
                size: u64::MAX,
                modified_ns: u64::MAX,
            };
            told.files.push(absurd("../../escaped"));
            told.files.push(absurd("/etc/escaped"));
            told.files.push(absurd("huge"));
            told.files.push(FileState {
                size: 3,
                ..absurd("liar")
            });
            told.functions = vec!["f".repeat(1 << 20); 10];
        }
        told
    }

    fn read(&self, path: String, offset: u64, length: u64) -> Event {
        let (start, length) = (
            usize::try_from(offset).unwrap(),
            usize::try_from(length).unwrap(),
        );
        let whole = match self.files.get(&path) {
            Some((bytes, _)) => bytes.clone(),
            // More than it said it has.
            None if path == "liar" => vec![b'x'; 1 << 16],
            None => {
                return Event::FileRead {
                    path,
                    offset,
                    data: String::new(),
                    end: true,
                    error: Some("no such file".to_owned()),
                };
            }
        };
        let piece = &whole[start.min(whole.len())..(start + length).min(whole.len())];
        Event::FileRead {
            path,
            offset,
            data: STANDARD.encode(piece),
            end: start + length >= whole.len(),
            error: None,
        }
    }
}

/// A task that starts one of its own kind needs a type that does not contain itself.
fn boxed(python: Python) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(python.run())
}

fn raised(kind: &str, message: &str) -> Box<Done> {
    Box::new(Done {
        error: Some(Raised {
            kind: kind.to_owned(),
            message: message.to_owned(),
            traceback: format!("Traceback\n{kind}: {message}"),
        }),
        ..Done::default()
    })
}
