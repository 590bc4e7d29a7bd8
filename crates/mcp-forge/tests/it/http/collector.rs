//! A collector of traces: takes OTLP over HTTP and keeps every span.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, BufRead, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    time::Instant,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message as _;

use super::served::PATIENCE;

/// One that takes everything, until the process ends.
pub(super) struct Collector {
    pub(super) address: SocketAddr,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    spans: Vec<Span>,
    services: Vec<String>,
    /// Values of the header `x-key`.
    keys: Vec<String>,
}

/// One span, in words.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) trace: String,
    pub(super) id: String,
    pub(super) parent: String,
    pub(super) kind: i32,
    pub(super) state: String,
    pub(super) links: Vec<String>,
    pub(super) attributes: BTreeMap<String, String>,
}

impl Collector {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let kept = Arc::<Mutex<Kept>>::default();
        let keeping = Arc::clone(&kept);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream);
                // Whoever gave up in the middle sent nothing; the next is heard all the same.
                let Ok((head, body)) = receive(&mut reader) else {
                    continue;
                };
                let header = |name: &str| value_of(&head, name);
                assert!(head[0].starts_with("post /v1/traces "), "{head:?}");
                assert_eq!(header("content-type: "), Some("application/x-protobuf"));
                let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
                let mut kept = keeping.lock().unwrap();
                kept.keys.extend(header("x-key: ").map(str::to_owned));
                for group in request.resource_spans {
                    let of = group.resource.unwrap().attributes;
                    let name = of.into_iter().find(|it| it.key == "service.name").unwrap();
                    kept.services.push(text(name.value.as_ref()));
                    let spans = group.scope_spans.into_iter().flat_map(|scope| scope.spans);
                    kept.spans.extend(spans);
                }
                drop(kept);
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let _ = reader.get_mut().write_all(answer.as_bytes());
            }
        });
        Self { address, kept }
    }

    /// The spans, once one of each of these names has come.
    pub(super) fn wait(&self, names: &[&str]) -> Vec<Seen> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let spans: Vec<Seen> = self.kept.lock().unwrap().spans.iter().map(seen).collect();
            let has = |name: &&str| spans.iter().any(|span| span.name == *name);
            if names.iter().all(has) {
                return spans;
            }
            assert!(Instant::now() < deadline, "{names:?} in {spans:#?}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    pub(super) fn services(&self) -> Vec<String> {
        self.kept.lock().unwrap().services.clone()
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.kept.lock().unwrap().keys.clone()
    }
}

/// A request: the lines of its head, in lower case, and its body.
fn receive(reader: &mut impl BufRead) -> io::Result<(Vec<String>, Vec<u8>)> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_ascii_lowercase());
    }
    let length = value_of(&head, "content-length: ").unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body)?;
    Ok((head, body))
}

fn value_of<'a>(head: &'a [String], name: &str) -> Option<&'a str> {
    head.iter().find_map(|line| line.strip_prefix(name))
}

fn seen(span: &Span) -> Seen {
    let attributes = span.attributes.iter();
    Seen {
        name: span.name.clone(),
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        kind: span.kind,
        state: span.trace_state.clone(),
        links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
        attributes: attributes
            .map(|it| (it.key.clone(), text(it.value.as_ref())))
            .collect(),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}
