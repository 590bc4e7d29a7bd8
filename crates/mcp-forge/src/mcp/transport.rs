//! Lines of JSON-RPC, both ways, with every line bounded before it is parsed.
//!
//! `rmcp` has such a transport, but it drops a line that is too long or does not parse without an
//! answer, and the client waits for ever. Here every such line is answered, with the request's id
//! wherever it can be known, and the connection lives on.

use std::io;

use rmcp::{
    RoleServer,
    model::{
        ClientJsonRpcMessage, ErrorCode, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
    },
    transport::Transport,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::mpsc,
    task::JoinHandle,
    time::{Duration, timeout},
};
use tokio_util::sync::CancellationToken;

/// Longest line accepted from a client, in bytes.
pub const MAX_LINE_BYTES: usize = 32 << 20;

/// Kept of each end of a line that is too long, to find its id there.
const KEPT_BYTES: usize = 1024;

/// Messages that may wait for a client that does not read.
const OUTGOING: usize = 16;

/// How long the last messages may take to reach a client that is going away.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// One client, on any pair of byte streams.
#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    line: Line,
    /// The answer to a line that is no message, not yet queued.
    reply: Option<Vec<u8>>,
    outgoing: Option<mpsc::Sender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    /// Cancelled when the client's end is seen.
    disconnected: CancellationToken,
    /// Whether a request came yet: before it, `rmcp` takes anything else for a broken client.
    opened: bool,
}

impl<R: AsyncRead + Send + Unpin> Lines<R> {
    pub(super) fn new(
        reader: R,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        disconnected: CancellationToken,
    ) -> Self {
        let (outgoing, queue) = mpsc::channel(OUTGOING);
        Self {
            reader: BufReader::with_capacity(1 << 16, reader),
            line: Line::new(MAX_LINE_BYTES),
            reply: None,
            outgoing: Some(outgoing),
            writer: Some(tokio::spawn(write_lines(queue, writer))),
            disconnected,
            opened: false,
        }
    }

    /// The next message. What is none is answered. `None` at the client's end.
    async fn next(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            self.send_reply().await?;
            let ended = self.read_line().await.ok()?;
            let parsed = match ended {
                LineEnd::Eof => return None,
                LineEnd::Whole => parse(self.line.bytes()),
                LineEnd::TooLong => Err(self.line.too_long()),
            };
            self.line.clear();
            match parsed {
                Ok(Some(message)) if self.accepts(&message) => return Some(message),
                Ok(_) => {}
                Err(refusal) => self.reply = serde_json::to_vec(&refusal).ok(),
            }
        }
    }

    fn accepts(&mut self, message: &ClientJsonRpcMessage) -> bool {
        self.opened |= matches!(message, JsonRpcMessage::Request(_));
        self.opened
    }

    /// Queues the reply. Cancel safe: the reply leaves its place only together with its queueing.
    async fn send_reply(&mut self) -> Option<()> {
        if self.reply.is_some() {
            let permit = self.outgoing.as_ref()?.reserve().await.ok()?;
            if let Some(reply) = self.reply.take() {
                permit.send(reply);
            }
        }
        Some(())
    }

    /// Reads on until the line ends. Cancel safe: nothing is consumed that is not also kept.
    async fn read_line(&mut self) -> io::Result<LineEnd> {
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                return Ok(LineEnd::Eof);
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            self.line
                .push(&available[..newline.unwrap_or(available.len())]);
            let consumed = newline.map_or(available.len(), |position| position + 1);
            self.reader.consume(consumed);
            if newline.is_some() {
                return Ok(if self.line.fits() {
                    LineEnd::Whole
                } else {
                    LineEnd::TooLong
                });
            }
        }
    }
}

impl<R: AsyncRead + Send + Unpin> Transport<RoleServer> for Lines<R> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let outgoing = self.outgoing.clone();
        async move {
            let line = serde_json::to_vec(&message)?;
            let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
            outgoing
                .ok_or_else(closed)?
                .send(line)
                .await
                .map_err(|_| closed())
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        let message = self.next().await;
        if message.is_none() {
            self.disconnected.cancel();
        }
        message
    }

    async fn close(&mut self) -> io::Result<()> {
        self.outgoing = None;
        if let Some(writer) = self.writer.take() {
            // A client that stopped reading must not keep the server alive.
            let _ = timeout(FLUSH_TIME, writer).await;
        }
        Ok(())
    }
}

/// Writes whole lines, one after the other, until nobody can send more.
async fn write_lines(
    mut queue: mpsc::Receiver<Vec<u8>>,
    mut writer: impl AsyncWrite + Send + Unpin,
) {
    while let Some(mut line) = queue.recv().await {
        line.push(b'\n');
        if writer.write_all(&line).await.is_err() || writer.flush().await.is_err() {
            // The client is gone: what is still sent fails at the closed queue.
            return;
        }
    }
}

enum LineEnd {
    Whole,
    TooLong,
    Eof,
}

/// One line as it grows; beyond the limit only its two ends are kept.
#[derive(Debug)]
struct Line {
    limit: usize,
    bytes: Vec<u8>,
    tail: Vec<u8>,
    length: usize,
}

impl Line {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: Vec::new(),
            tail: Vec::new(),
            length: 0,
        }
    }

    fn push(&mut self, piece: &[u8]) {
        self.length += piece.len();
        if self.fits() {
            self.bytes.extend_from_slice(piece);
            return;
        }
        if self.tail.is_empty() {
            self.tail = self
                .bytes
                .split_off(self.bytes.len().saturating_sub(KEPT_BYTES));
            self.bytes.truncate(KEPT_BYTES);
            self.bytes.shrink_to_fit();
        }
        self.tail.extend_from_slice(piece);
        self.tail
            .drain(..self.tail.len().saturating_sub(KEPT_BYTES));
    }

    fn fits(&self) -> bool {
        self.length <= self.limit
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn too_long(&self) -> Box<ServerJsonRpcMessage> {
        let message = format!(
            "the message has {} bytes, more than the maximum of {} for one line",
            self.length, self.limit
        );
        let id = id_at_start(&self.bytes).or_else(|| id_at_end(&self.tail));
        refusal(ErrorCode::INVALID_REQUEST, message, id)
    }

    fn clear(&mut self) {
        *self = Self::new(self.limit);
    }
}

/// Reads one line. `Ok(None)` for what needs no answer.
pub(super) fn parse(
    line: &[u8],
) -> Result<Option<ClientJsonRpcMessage>, Box<ServerJsonRpcMessage>> {
    let line = line
        .strip_prefix(b"\xEF\xBB\xBF")
        .unwrap_or(line)
        .trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    if let Ok(message) = serde_json::from_slice(line) {
        return Ok(Some(message));
    }
    match serde_json::from_slice::<Value>(line) {
        Ok(Value::Object(message))
            if message.contains_key("method") && !message.contains_key("id") =>
        {
            Ok(None)
        }
        Ok(Value::Object(message)) => {
            let id = message.get("id").and_then(as_id);
            let text = "not a JSON-RPC 2.0 request: it needs \"jsonrpc\": \"2.0\", an \"id\" that is a string or a whole number, and a \"method\"";
            Err(refusal(ErrorCode::INVALID_REQUEST, text.to_owned(), id))
        }
        Ok(Value::Array(_)) => {
            let text = "batches are not part of MCP; send each message on its own line".to_owned();
            Err(refusal(ErrorCode::INVALID_REQUEST, text, None))
        }
        Ok(_) => Err(refusal(
            ErrorCode::INVALID_REQUEST,
            "a message is a JSON object".to_owned(),
            None,
        )),
        Err(error) => {
            let id = id_at_start(line).or_else(|| id_at_end(line));
            Err(refusal(
                ErrorCode::PARSE_ERROR,
                format!("the line is not valid JSON: {error}"),
                id,
            ))
        }
    }
}

/// The answer to what is no message.
pub(super) fn refusal(
    code: ErrorCode,
    message: String,
    id: Option<RequestId>,
) -> Box<ServerJsonRpcMessage> {
    Box::new(ServerJsonRpcMessage::error(
        ErrorData::new(code, message, None),
        id,
    ))
}

fn as_id(value: &Value) -> Option<RequestId> {
    match value {
        Value::String(text) if text.len() <= KEPT_BYTES => {
            Some(RequestId::String(text.as_str().into()))
        }
        Value::Number(number) => number.as_i64().map(RequestId::Number),
        _ => None,
    }
}

/// The id in the first members of an object that need not be complete: reads whole members until
/// one is `id`, and stops at the first that does not end.
fn id_at_start(line: &[u8]) -> Option<RequestId> {
    let mut rest = line.trim_ascii_start().strip_prefix(b"{")?;
    loop {
        let (name, after) = first_value(rest)?;
        let (value, after) = first_value(after.trim_ascii_start().strip_prefix(b":")?)?;
        if name == "id" {
            return as_id(&value);
        }
        rest = after.trim_ascii_start().strip_prefix(b",")?;
    }
}

/// The id if it is an object's last member. The text is valid JSON's end, so that the last brace
/// is the message's own, and a key right before it is at the top level.
fn id_at_end(line: &[u8]) -> Option<RequestId> {
    let members = line.trim_ascii_end().strip_suffix(b"}")?;
    let start = members
        .windows(5)
        .rposition(|window| window == b"\"id\":")?;
    let (value, after) = first_value(&members[start + 5..])?;
    after.trim_ascii().is_empty().then_some(())?;
    as_id(&value)
}

/// The JSON value a text begins with, and what follows it.
fn first_value(text: &[u8]) -> Option<(Value, &[u8])> {
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    let end = values.byte_offset();
    Some((value, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(id: i64) -> RequestId {
        RequestId::Number(id)
    }

    #[test]
    fn the_id_of_a_cut_line_is_found_at_either_end() {
        assert_eq!(
            id_at_start(br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"co"#),
            Some(number(7))
        );
        assert_eq!(
            id_at_start(br#"{"method":"tools/call","params":{"id":9,"co"#),
            None
        );
        assert_eq!(
            id_at_end(br#"aaaa"},"jsonrpc":"2.0","id":8}"#),
            Some(number(8))
        );
        assert_eq!(
            id_at_end(br#"aaaa"}, "id": "a" }"#),
            Some(RequestId::String("a".into()))
        );
        assert_eq!(
            id_at_end(br#"aaaa"},"id":"a-1" }"#),
            Some(RequestId::String("a-1".into()))
        );
        assert_eq!(id_at_end(br#"{"id":8},"jsonrpc":"2.0"}"#), None);
        assert_eq!(id_at_end(br#""params":{"id":8}}"#), None);
        assert_eq!(id_at_end(br#""code":"\"id\":8"}"#), None);
    }

    #[test]
    fn a_line_beyond_the_limit_keeps_only_its_ends() {
        let mut line = Line::new(4096);
        line.push(br#"{"jsonrpc":"2.0","id":3,"params":""#);
        for _ in 0..1000 {
            line.push(&[b'x'; 1000]);
        }
        assert!(!line.fits());
        assert!(line.bytes.capacity() <= 2 * KEPT_BYTES && line.tail.len() <= KEPT_BYTES);
        let JsonRpcMessage::Error(error) = *line.too_long() else {
            panic!("not an error")
        };
        assert_eq!(error.id, Some(number(3)));
        assert!(
            error
                .error
                .message
                .contains("1000034 bytes, more than the maximum of 4096")
        );
    }

    #[test]
    fn what_is_no_message_is_refused_with_its_id() {
        let refused = |line: &str| {
            let JsonRpcMessage::Error(error) = *parse(line.as_bytes()).unwrap_err() else {
                panic!("{line} was not refused with an error")
            };
            (error.error.code.0, error.id)
        };
        assert_eq!(
            refused(r#"{"jsonrpc":"1.0","id":4,"method":"ping"}"#),
            (-32600, Some(number(4)))
        );
        assert_eq!(
            refused(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#),
            (-32600, None)
        );
        assert_eq!(
            refused(r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#),
            (-32600, None)
        );
        assert_eq!(
            refused(r#"[{"jsonrpc":"2.0","id":4,"method":"ping"}]"#),
            (-32600, None)
        );
        assert_eq!(
            refused(r#"{"jsonrpc":"2.0","id":5,"method":"ping""#),
            (-32700, Some(number(5)))
        );
        assert_eq!(
            refused(&format!(
                r#"{{"jsonrpc":"2.0","id":6,"params":{}"#,
                "[".repeat(100_000)
            )),
            (-32700, Some(number(6)))
        );
    }

    proptest! {
        #[test]
        fn no_line_panics(line in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&line);
            let _ = id_at_start(&line);
            let _ = id_at_end(&line);
        }
    }
}
