//! The other end of the front door, for the command line: a client of a server's socket.
//!
//! `rmcp` has a client, but it hands out notifications in any order; here output must come as it
//! was written. What is owed is small: one request at a time, and the notifications that belong to it.

use std::{io, pin::Pin};

use futures_util::{SinkExt, StreamExt};
use rmcp::model::ErrorCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::codec::{FramedRead, FramedWrite, LinesCodec, LinesCodecError};

use super::console::{CONSOLE, INTERRUPT, OUTPUT, REFUSAL, VERSION, stream_named};
use crate::turn::Stream;

/// Longest line from a server. An answer has all output of a turn, escaped.
const MAX_LINE_BYTES: usize = 512 << 20;

/// The era of the protocol that is spoken here.
const PROTOCOL: &str = "2025-11-25";

/// A server could not be asked, or refused.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection ended. What ran is interrupted; nothing else is known of it.
    #[error("the server went away: {0}")]
    Gone(io::Error),
    /// The server speaks, but not as it must. The connection is of no further use.
    #[error("the server's answer makes no sense: {0}")]
    Nonsense(String),
    /// The server is of a version that this one cannot speak with. Nothing was asked.
    #[error(
        "the server is {0}, which this mcp-forge cannot speak with: end that server, or use the same version"
    )]
    Version(String),
    /// The server refused. Nothing ran.
    #[error("{message}")]
    Refused {
        /// The server's words.
        message: String,
        /// Whether the caller can mend it.
        is_callers: bool,
        /// The process that runs the session, if that is why.
        pid: Option<i64>,
    },
}

/// What a server says next.
#[derive(Debug)]
pub(crate) enum Said {
    /// A piece of the turn's output.
    Output(Stream, String),
    /// The answer to the request.
    Answer(Result<Value, ClientError>),
}

/// One request that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked(i64);

/// A connection to a server.
pub(crate) struct Client {
    reader: FramedRead<Pin<Box<dyn AsyncRead + Send>>, LinesCodec>,
    writer: FramedWrite<Pin<Box<dyn AsyncWrite + Send>>, LinesCodec>,
    last_id: i64,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Introduces itself to a server.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; nothing was asked.
    pub(crate) async fn open(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
    ) -> Result<Self, ClientError> {
        let (reader, writer) = tokio::io::split(stream);
        let codec = || LinesCodec::new_with_max_length(MAX_LINE_BYTES);
        let mut client = Self {
            reader: FramedRead::new(Box::pin(reader), codec()),
            writer: FramedWrite::new(Box::pin(writer), codec()),
            last_id: 0,
        };
        let hello = json!({
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "mcp-forge", "version": env!("CARGO_PKG_VERSION")},
        });
        let server = client.request("initialize", hello).await?;
        let console = &server["capabilities"]["experimental"][CONSOLE];
        if console["version"] != VERSION {
            let text = |value: &Value| value.as_str().unwrap_or("?").chars().take(100).collect();
            let (name, version): (String, String) = (
                text(&server["serverInfo"]["name"]),
                text(&server["serverInfo"]["version"]),
            );
            return Err(ClientError::Version(format!("{name} {version}")));
        }
        client
            .notify("notifications/initialized", Map::new())
            .await?;
        Ok(client)
    }

    /// Calls a tool whose answer says all.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub(crate) async fn call(
        &mut self,
        tool: &str,
        arguments: &Value,
    ) -> Result<Value, ClientError> {
        let asked = self.begin(tool, arguments).await?;
        loop {
            if let Said::Answer(answer) = self.next(asked).await? {
                return answer;
            }
        }
    }

    /// Reads a resource that is JSON.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub(crate) async fn read(&mut self, uri: &str) -> Result<Value, ClientError> {
        let result = self.request("resources/read", json!({"uri": uri})).await?;
        let text = result["contents"][0]["text"].as_str().unwrap_or_default();
        serde_json::from_str(text).map_err(|error| ClientError::Nonsense(error.to_string()))
    }

    /// Calls a tool, whose output and answer are then to be heard with [`Self::next`].
    ///
    /// # Errors
    ///
    /// [`ClientError::Gone`].
    pub(crate) async fn begin(
        &mut self,
        tool: &str,
        arguments: &Value,
    ) -> Result<Asked, ClientError> {
        let params = json!({"name": tool, "arguments": arguments, "_meta": {CONSOLE: true}});
        self.send_request("tools/call", params).await
    }

    /// What the server says next of a tool's call. After the answer there is nothing more.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: the connection is of no further use.
    ///
    /// # Cancel safety
    ///
    /// Nothing that was said is lost.
    pub(crate) async fn next(&mut self, asked: Asked) -> Result<Said, ClientError> {
        loop {
            let message = self.receive().await?;
            if message.id == Some(asked.0) {
                let result = message.result();
                return Ok(Said::Answer(result.and_then(|result| tool_answer(&result))));
            }
            let params = &message.params;
            if message.method.as_deref() == Some(OUTPUT) && params["requestId"] == asked.0 {
                let stream = params["stream"].as_str().and_then(stream_named);
                if let (Some(stream), Some(text)) = (stream, params["text"].as_str()) {
                    return Ok(Said::Output(stream, text.to_owned()));
                }
            }
            // What is left belongs to calls that were given up, or is of no interest.
        }
    }

    /// Asks for an interrupt. The answer still comes.
    ///
    /// # Errors
    ///
    /// [`ClientError::Gone`].
    pub(crate) async fn interrupt(&mut self, asked: Asked) -> Result<(), ClientError> {
        let params = Map::from_iter([("requestId".to_owned(), asked.0.into())]);
        self.notify(INTERRUPT, params).await
    }

    /// Gives a call up: it is interrupted, and its answer will not come.
    ///
    /// # Errors
    ///
    /// [`ClientError::Gone`].
    pub(crate) async fn give_up(&mut self, asked: Asked) -> Result<(), ClientError> {
        let params = Map::from_iter([("requestId".to_owned(), asked.0.into())]);
        self.notify("notifications/cancelled", params).await
    }

    async fn request(&mut self, method: &str, params: Value) -> Result<Value, ClientError> {
        let asked = self.send_request(method, params).await?;
        loop {
            let message = self.receive().await?;
            if message.id == Some(asked.0) {
                return message.result();
            }
        }
    }

    async fn send_request(&mut self, method: &str, params: Value) -> Result<Asked, ClientError> {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await?;
        Ok(Asked(id))
    }

    async fn notify(
        &mut self,
        method: &str,
        params: Map<String, Value>,
    ) -> Result<(), ClientError> {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
            .await
    }

    async fn send(&mut self, message: &Value) -> Result<(), ClientError> {
        self.writer.send(message.to_string()).await.map_err(broken)
    }

    async fn receive(&mut self) -> Result<Message, ClientError> {
        let line = match self.reader.next().await {
            None => return Err(ClientError::Gone(io::ErrorKind::UnexpectedEof.into())),
            Some(line) => line.map_err(broken)?,
        };
        serde_json::from_str(&line).map_err(|error| ClientError::Nonsense(error.to_string()))
    }
}

/// A line from the server.
#[derive(Debug, Deserialize)]
struct Message {
    #[serde(default)]
    id: Option<i64>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Value,
    #[serde(default)]
    error: Option<Failure>,
}

#[derive(Debug, Deserialize)]
struct Failure {
    code: i64,
    message: String,
}

impl Message {
    fn result(self) -> Result<Value, ClientError> {
        let Some(Failure { code, message }) = self.error else {
            return Ok(self.result);
        };
        let callers = [ErrorCode::INVALID_PARAMS, ErrorCode::RESOURCE_NOT_FOUND];
        Err(ClientError::Refused {
            message: as_clause(&message),
            is_callers: callers.iter().any(|callers| i64::from(callers.0) == code),
            pid: None,
        })
    }
}

/// The structured content of a tool's answer, or its refusal.
fn tool_answer(result: &Value) -> Result<Value, ClientError> {
    if let Some(refusal) = result["_meta"].get(REFUSAL) {
        return Err(ClientError::Refused {
            message: refusal["message"].as_str().unwrap_or_default().to_owned(),
            is_callers: refusal["is_callers"] == true,
            pid: refusal["pid"].as_i64(),
        });
    }
    match &result["structuredContent"] {
        Value::Null => Err(ClientError::Nonsense(
            "a tool's answer has no structured content".to_owned(),
        )),
        content => Ok(content.clone()),
    }
}

/// A sentence as this program's errors are written: no full stop at its end.
fn as_clause(sentence: &str) -> String {
    sentence.strip_suffix('.').unwrap_or(sentence).to_owned()
}

fn broken(error: LinesCodecError) -> ClientError {
    match error {
        LinesCodecError::MaxLineLengthExceeded => {
            ClientError::Nonsense(format!("it is longer than {MAX_LINE_BYTES} bytes"))
        }
        LinesCodecError::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            ClientError::Nonsense(error.to_string())
        }
        LinesCodecError::Io(error) => ClientError::Gone(error),
    }
}
