//! Much data, and data that no relay sends.

use std::sync::atomic::Ordering;

use mcp_forge::{
    engine::{Engine, Purpose, SandboxSpec},
    runner::wire::{Parameter, Stub, ToolFailure, ToolValue},
    turn::Tools,
};
use serde_json::Map;

use super::{liar::Liar, *};
use crate::sandbox;

#[tokio::test(flavor = "multi_thread")]
async fn much_comes_through_both_ways_and_a_flood_is_cut() {
    let field = Field::new();
    let service = field.server(|config| {
        config.caps.result_bytes = 8 << 20;
        config.caps.flood_bytes = 256 << 20;
    });
    let big = "x".repeat(1_000_000);
    let code = format!("text = '{big}'\nlen(text)");
    assert_eq!(execute(&service, stateless(&code)).await.result, 1_000_000);
    let answer = execute(&service, stateless("'y' * (8 * 1000 * 1000)")).await;
    assert_eq!(answer.outcome, "completed", "{:?}", answer.error);
    assert_eq!(answer.result.as_str().map(str::len), Some(8_000_000));
    let flood = "import os\nline = b'z' * 65536\nfor _ in range(1024): os.write(1, line)\n'end'";
    let answer = execute(&service, stateless(flood)).await;
    assert_eq!(answer.result, "end", "{:?}", answer.error);
    let dropped = answer.truncated["stdout"].as_u64().unwrap();
    // Head and tail are kept, and a marker between them.
    let kept = answer.stdout.bytes().filter(|byte| *byte == b'z').count();
    assert_eq!(u64::try_from(kept).unwrap() + dropped, 64 << 20);
    service.shutdown().await;
    field.wait_empty().await;
}

/// The relay is not the code's to touch: its memory, its descriptors, its environment.
#[tokio::test(flavor = "multi_thread")]
async fn the_relay_is_closed_to_the_code_beside_it() {
    let field = Field::new();
    let service = field.server(|_| {});
    let code = "
import os
opened = []
for path in ('fd/0', 'fd/1', 'fd/2', 'mem', 'environ', 'maps', 'root/etc/passwd', 'cwd/x'):
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try:
            os.close(os.open('/proc/1/' + path, flags | os.O_NONBLOCK))
            opened.append(path)
        except OSError:
            pass
# Its own are, as ever.
open('/proc/self/maps').read(16), os.listdir('/proc/self/fd'), open('/proc/self/environ').read()
opened
";
    let answer = execute(&service, stateless(code)).await;
    assert_eq!(answer.result, json!([]), "{:?}", answer.error);
    let answer = execute(&service, in_session("a", code)).await;
    assert_eq!(answer.result, json!([]), "{:?}", answer.error);
    service.shutdown().await;
    field.wait_empty().await;
}

/// Records that no relay sends end the container's stream, and cost nobody else anything.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_in_place_of_records_ends_the_container_and_no_more() {
    const SAID: &[u8] = b"o\0\0\0\x06begun\n";
    // The relay is closed to the code, so it is a go-between that puts them into the stream.
    let (ends, lasts) = (("sandbox_error", 60.0), ("timed_out", 10.0));
    let garbage: [(&[u8], (&str, f64)); 6] = [
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", ends),
        (b"c\xff\xff\xff\xffbegun\n", ends),
        (b"x\0\0\0\x06begun\n", ends),
        (b"z\0\0\0\x06begun\n", ends),
        (b"h\0\0\0\x06begun\n", ends),
        // The beginning of a record that never ends: the deadline ends it, as it ends everything.
        (b"o\0\x10\0\0begun\n", lasts),
    ];
    for (garbage, (outcome, timeout)) in garbage {
        let liar = Liar::start(SAID, garbage);
        let field = Field::on(liar.socket());
        let service = field.server(|_| {});
        let request = ExecuteRequest {
            timeout: Some(timeout),
            ..stateless(ENDLESS)
        };
        let answer = execute(&service, request).await;
        assert_eq!(answer.outcome, outcome, "{garbage:?}: {:?}", answer.error);
        assert_eq!(liar.told.load(Ordering::Relaxed), 1);
        field.wait_empty().await;
        assert_eq!(execute(&service, stateless("20 + 22")).await.result, 42);
        service.shutdown().await;
        field.wait_empty().await;
    }
}

/// Answers with a text of ten megabytes.
struct Big;

#[async_trait::async_trait]
impl Tools for Big {
    async fn call(&self, _: &str, arguments: Map<String, Value>) -> Result<ToolValue, ToolFailure> {
        let sent = arguments["text"].as_str().unwrap().len();
        assert_eq!(sent, 10_000_000);
        Ok(ToolValue::Json {
            value: json!("x".repeat(10_000_000)),
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_takes_and_gives_ten_megabytes() {
    let field = Field::new();
    let config = field.config();
    let engine = Podman::new(&config);
    let stub = Stub {
        name: "big".to_owned(),
        doc: String::new(),
        parameters: vec![Parameter {
            name: "text".to_owned(),
            key: "text".to_owned(),
            required: true,
            annotation: "str".to_owned(),
            default: None,
        }],
        returns: "str".to_owned(),
    };
    let spec = SandboxSpec {
        id: "big".to_owned(),
        limits: config.default_limits.clone(),
        purpose: Purpose::default(),
        environment: None,
    };
    let sandbox = engine.launch(&spec).await.unwrap();
    let code = "answers = [big(text='y' * 10_000_000) for _ in range(3)]\n[len(answer) for answer in answers]";
    let report = sandbox::turn_with(sandbox, code, &spec.limits, (vec![stub], &Big)).await;
    assert_eq!(
        report.result,
        json!([10_000_000, 10_000_000, 10_000_000]),
        "{:?}",
        report.error
    );
    engine.shutdown().await;
    field.wait_empty().await;
}
