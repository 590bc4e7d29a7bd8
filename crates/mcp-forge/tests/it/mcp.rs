//! The MCP front door, driven by raw lines: both protocol eras, errors, progress, cancellation.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mcp_forge::{
    config::{Config, Transport, Upstream},
    mcp::{MAX_LINE_BYTES, ServeError, serve},
    runner::wire::{Done, Event},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::fake::{FakeEngine, Runner, echo, hang, service};

/// A client that writes lines and reads lines.
pub(crate) struct Client {
    reader: BufReader<ReadHalf<DuplexStream>>,
    pub(crate) writer: WriteHalf<DuplexStream>,
    pub(crate) server: JoinHandle<Result<(), ServeError>>,
    /// Sent with every request: empty before 2026-07-28.
    pub(crate) meta: Value,
    next_id: i64,
    _directory: TempDir,
}

impl Client {
    /// Connects, and opens as the given protocol version does.
    pub(crate) async fn open(engine: Arc<FakeEngine>, version: &str) -> Self {
        let mut client = Self::connect(engine);
        client.begin_as(version).await;
        client
    }

    /// Begins as the given protocol version does.
    pub(crate) async fn begin_as(&mut self, version: &str) {
        if version >= "2026-07-28" {
            self.meta = meta(version);
            return;
        }
        let opened = self.request("initialize", initialize(version)).await;
        assert_eq!(opened["result"]["protocolVersion"], version);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
    }

    pub(crate) fn connect(engine: Arc<FakeEngine>) -> Self {
        Self::connect_with(engine, |_| {})
    }

    pub(crate) fn connect_with(engine: Arc<FakeEngine>, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let service = service(engine, directory.path(), change);
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(ours);
        let (their_reader, their_writer) = tokio::io::split(theirs);
        let server = tokio::spawn(serve(
            service,
            their_reader,
            their_writer,
            CancellationToken::new(),
        ));
        Self {
            reader: BufReader::new(reader),
            writer,
            server,
            meta: json!({}),
            next_id: 1,
            _directory: directory,
        }
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.send_line(&message.to_string()).await;
    }

    async fn send_line(&mut self, line: &str) {
        self.writer.write_all(line.as_bytes()).await.unwrap();
        self.writer.write_all(b"\n").await.unwrap();
    }

    pub(crate) async fn receive(&mut self) -> Value {
        let mut line = String::new();
        assert_ne!(
            self.reader.read_line(&mut line).await.unwrap(),
            0,
            "the server hung up"
        );
        serde_json::from_str(&line).unwrap()
    }

    /// Sends a request without waiting for its answer.
    pub(crate) async fn begin(&mut self, method: &str, mut params: Value) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        let Value::Object(meta) = self.meta.clone() else {
            panic!("meta is an object")
        };
        for (key, value) in meta {
            params["_meta"][key] = value;
        }
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        id
    }

    /// The next answer; it must be to this request. Notifications before it are passed over.
    pub(crate) async fn answer(&mut self, id: i64) -> Value {
        loop {
            let message = self.receive().await;
            if message.get("method").is_none() {
                assert_eq!(message["id"], id, "{message}");
                return message;
            }
        }
    }

    pub(crate) async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params).await;
        self.answer(id).await
    }

    pub(crate) async fn call(&mut self, arguments: Value) -> Value {
        self.request(
            "tools/call",
            json!({"name": "execute_python", "arguments": arguments}),
        )
        .await["result"]
            .take()
    }
}

/// What a client of the second era sends with every request.
fn meta(version: &str) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

fn initialize(version: &str) -> Value {
    json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}})
}

/// An upstream that starts, says nothing, and is given up after five seconds.
fn add_silent_upstream(config: &mut Config) {
    let transport = Transport::Stdio {
        command: "sleep".to_owned(),
        args: vec!["1000".to_owned()],
        env: BTreeMap::new(),
        cwd: None,
    };
    let upstream = Upstream {
        transport,
        start_timeout: Duration::from_secs(5),
        call_timeout: Duration::from_secs(5),
    };
    config.upstreams.insert("silent".to_owned(), upstream);
}

const VERSIONS: [&str; 3] = ["2025-06-18", "2025-11-25", "2026-07-28"];

#[tokio::test]
async fn a_client_of_the_first_era_is_greeted() {
    let mut client = Client::connect(FakeEngine::new(echo));
    let mut answer = client.request("initialize", initialize("2025-11-25")).await;
    assert_eq!(
        answer["result"]["serverInfo"]["version"].take(),
        env!("CARGO_PKG_VERSION")
    );
    insta::assert_json_snapshot!(answer);
}

#[tokio::test]
async fn a_client_of_the_second_era_discovers() {
    let mut client = Client::open(FakeEngine::new(echo), "2026-07-28").await;
    let answer = client.request("server/discover", json!({})).await;
    insta::assert_json_snapshot!(answer);
}

#[tokio::test]
async fn a_client_may_discover_and_then_initialize() {
    let mut client = Client::open(FakeEngine::new(echo), "2026-07-28").await;
    client.request("server/discover", json!({})).await;
    client.meta = json!({});
    let opened = client.request("initialize", initialize("2025-11-25")).await;
    assert_eq!(opened["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(
        client.call(json!({"code": "1"})).await["structuredContent"]["result"],
        "1"
    );
}

#[tokio::test]
async fn every_era_lists_the_same_tools_and_resources() {
    for version in VERSIONS {
        let mut client = Client::open(FakeEngine::new(echo), version).await;
        let tools = client.request("tools/list", json!({})).await["result"]["tools"].take();
        let resources =
            client.request("resources/list", json!({})).await["result"]["resources"].take();
        let templates =
            client.request("resources/templates/list", json!({})).await["result"]["resourceTemplates"].take();
        insta::allow_duplicates! {
            insta::assert_json_snapshot!("tools", tools);
            insta::assert_json_snapshot!("resources", json!({"resources": resources, "templates": templates}));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_hangs_holds_up_no_list_and_is_announced_later() {
    let mut client = Client::connect_with(FakeEngine::new(echo), add_silent_upstream);
    client.request("initialize", initialize("2025-11-25")).await;
    let tools = client.request("tools/list", json!({})).await;
    assert_eq!(tools["result"]["tools"][0]["name"], "execute_python");
    assert_eq!(
        client.receive().await["method"],
        "notifications/tools/list_changed"
    );
    let available = client
        .request(
            "resources/read",
            json!({"uri": "mcp://forge/tools/available"}),
        )
        .await;
    assert_eq!(available["result"]["contents"][0]["text"], "[]");
}

#[tokio::test(start_paused = true)]
async fn a_client_of_the_second_era_hears_of_new_tools_if_it_listens() {
    let mut client = Client::connect_with(FakeEngine::new(echo), add_silent_upstream);
    client.meta = meta("2026-07-28");
    let id = client
        .begin(
            "subscriptions/listen",
            json!({"notifications": {"toolsListChanged": true}}),
        )
        .await;
    assert_eq!(
        client.receive().await["method"],
        "notifications/subscriptions/acknowledged"
    );
    let told = client.receive().await;
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert_eq!(
        told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"],
        json!(id),
        "{told}"
    );
}

#[tokio::test]
async fn every_era_runs_code() {
    for version in VERSIONS {
        let mut client = Client::open(FakeEngine::new(echo), version).await;
        let result = client.call(json!({"code": "6 * 7"})).await;
        assert_eq!(result["isError"], false);
        assert_eq!(
            result["content"],
            json!([{"type": "text", "text": "Result:\n\"6 * 7\""}])
        );
        assert_eq!(result["structuredContent"]["outcome"], "completed");
        assert_eq!(result["structuredContent"]["result"], "6 * 7");
        assert_eq!(result.get("resultType").is_some(), version == "2026-07-28");
    }
}

#[tokio::test]
async fn images_come_as_images_and_never_as_text() {
    let engine = FakeEngine::new(|mut runner: Runner| async move {
        runner.code().await;
        runner.print("drawing\n").await;
        let Value::Object(data) = json!({"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"})
        else {
            return;
        };
        runner
            .send(&Event::Display {
                data,
                metadata: serde_json::Map::new(),
            })
            .await;
        runner.returns(json!(null)).await;
    });
    let mut client = Client::open(engine, "2025-11-25").await;
    let result = client.call(json!({"code": "plt.plot()"})).await;
    assert_eq!(
        result["content"],
        json!([
            {"type": "text", "text": "Stdout:\ndrawing\n\nDisplays:\n1. image/png [image content 1], text/plain"},
            {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
        ])
    );
    assert!(
        !result["structuredContent"]
            .to_string()
            .contains("iVBORw0KGgo")
    );
}

#[tokio::test]
async fn a_text_stays_small_however_much_there_is() {
    let engine = FakeEngine::new(|mut runner: Runner| async move {
        runner.code().await;
        runner.print(&"out\n".repeat(100_000)).await;
        runner
            .stderr
            .write_all("err\n".repeat(10_000).as_bytes())
            .await
            .unwrap();
        runner
            .done(Done {
                result_repr: Some("r".repeat(200_000)),
                ..Done::default()
            })
            .await;
    });
    let mut client = Client::open(engine, "2025-11-25").await;
    let result = client.call(json!({"code": "x"})).await;
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.len() < 20_000, "{}", text.len());
    assert!(text.contains("bytes not shown"));
}

#[tokio::test]
async fn mistakes_are_answered_in_words() {
    let mut told = Vec::new();
    for version in ["2025-11-25", "2026-07-28"] {
        let mut client = Client::open(FakeEngine::new(echo), version).await;
        for (method, params) in [
            (
                "tools/call",
                json!({"name": "execute_pyton", "arguments": {}}),
            ),
            (
                "tools/call",
                json!({"name": "execute_python", "arguments": "1 + 1"}),
            ),
            ("tools/call", json!({"name": 7})),
            ("tools/call", json!({"name": "execute_python"})),
            (
                "tools/call",
                json!({"name": "execute_python", "arguments": {"code": "1", "tiemout": 5}}),
            ),
            (
                "tools/call",
                json!({"name": "execute_python", "arguments": {"code": "1", "session_id": "../a"}}),
            ),
            ("resources/read", json!({"uri": "mcp://forge/nothing"})),
            (
                "resources/read",
                json!({"uri": "mcp://forge/tools/nothing/schema"}),
            ),
            ("resources/read", json!({"uri": 7})),
            ("tools/destroy", json!({})),
        ] {
            let answer = client.request(method, params.clone()).await;
            let shown = answer.get("error").unwrap_or(&answer["result"]);
            told.push(format!("{version} {method} {params}\n    {shown}"));
        }
    }
    insta::assert_snapshot!(told.join("\n"));
}

#[tokio::test]
async fn a_resource_is_read_as_json() {
    for version in VERSIONS {
        let mut client = Client::open(FakeEngine::new(echo), version).await;
        client.call(json!({"code": "1"})).await;
        for uri in [
            "mcp://forge/tools/available",
            "mcp://forge/audit/operations",
        ] {
            let read = client.request("resources/read", json!({"uri": uri})).await;
            let content = &read["result"]["contents"][0];
            assert_eq!(
                (&content["uri"], &content["mimeType"]),
                (&json!(uri), &json!("application/json")),
                "{read}"
            );
            let value: Value = serde_json::from_str(content["text"].as_str().unwrap()).unwrap();
            assert!(value.is_array(), "{value}");
        }
    }
}

#[tokio::test]
async fn a_line_that_is_no_message_is_answered_and_the_connection_lives() {
    let mut client = Client::open(FakeEngine::new(echo), "2025-11-25").await;
    client
        .send_line("{\"jsonrpc\":\"2.0\",\"id\":70,\"method\":")
        .await;
    let answer = client.receive().await;
    assert_eq!(
        (&answer["id"], &answer["error"]["code"]),
        (&json!(70), &json!(-32700)),
        "{answer}"
    );
    client.send_line("[]").await;
    assert_eq!(client.receive().await["error"]["code"], -32600);
    let code = "x".repeat(MAX_LINE_BYTES);
    client.send_line(&format!("{{\"method\":\"tools/call\",\"params\":{{\"code\":\"{code}\"}},\"jsonrpc\":\"2.0\",\"id\":71}}")).await;
    let answer = client.receive().await;
    assert_eq!(
        (&answer["id"], &answer["error"]["code"]),
        (&json!(71), &json!(-32600)),
        "{answer}"
    );
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("more than the maximum of 33554432"),
        "{answer}"
    );
    assert_eq!(client.call(json!({"code": "1"})).await["isError"], false);
}

#[tokio::test]
async fn ten_megabytes_of_code_are_refused_with_both_numbers() {
    let mut client = Client::open(FakeEngine::new(echo), "2025-11-25").await;
    let result = client.call(json!({"code": "x".repeat(10_000_000)})).await;
    assert_eq!(result["isError"], true);
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("10000000 bytes") && text.contains("1048576"),
        "{text}"
    );
}

#[tokio::test]
async fn a_long_turn_holds_up_nothing_else() {
    let engine = FakeEngine::new(hang);
    let mut client = Client::open(Arc::clone(&engine), "2025-11-25").await;
    client
        .begin(
            "tools/call",
            json!({"name": "execute_python", "arguments": {"code": "x"}}),
        )
        .await;
    engine.wait_launched(1).await;
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
    client
        .begin(
            "tools/call",
            json!({"name": "execute_python", "arguments": {"code": "y"}}),
        )
        .await;
    engine.wait_launched(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_of_seventy_seconds_is_never_silent_for_ten() {
    for version in ["2025-06-18", "2026-07-28"] {
        let engine = FakeEngine::new(|mut runner: Runner| async move {
            runner.code().await;
            tokio::time::sleep(std::time::Duration::from_secs(30)).await;
            runner.print("half\u{1b}[2J way\n").await;
            tokio::time::sleep(std::time::Duration::from_secs(40)).await;
            runner.returns(json!(1)).await;
        });
        let mut client = Client::open(engine, version).await;
        let params = json!({"name": "execute_python", "arguments": {"code": "x"}, "_meta": {"progressToken": "p"}});
        let id = client.begin("tools/call", params).await;
        let mut seconds = Vec::new();
        let mut messages = Vec::new();
        loop {
            let message = client.receive().await;
            if message["method"] != "notifications/progress" {
                assert_eq!(
                    (&message["id"], &message["result"]["isError"]),
                    (&json!(id), &json!(false)),
                    "{message}"
                );
                break;
            }
            assert_eq!(message["params"]["progressToken"], "p");
            seconds.push(message["params"]["progress"].as_f64().unwrap());
            messages.push(message["params"]["message"].as_str().unwrap().to_owned());
        }
        assert!(seconds[0] < f64::EPSILON, "{seconds:?}");
        assert!(*seconds.last().unwrap() >= 60.0, "{seconds:?}");
        assert!(
            seconds
                .windows(2)
                .all(|pair| pair[0] < pair[1] && pair[1] - pair[0] <= 10.0),
            "{seconds:?}"
        );
        assert_eq!(messages[0], "0 s, no output yet");
        assert!(
            messages.last().unwrap().ends_with("s: half\\u{1b}[2J way"),
            "{messages:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn chatter_is_not_passed_on_line_by_line() {
    let engine = FakeEngine::new(|mut runner: Runner| async move {
        runner.code().await;
        for number in 0..1000 {
            runner.print(&format!("{number}\n")).await;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        runner.returns(json!(1)).await;
    });
    let mut client = Client::open(engine, "2025-11-25").await;
    let params = json!({"name": "execute_python", "arguments": {"code": "x"}, "_meta": {"progressToken": 1}});
    client.begin("tools/call", params).await;
    let mut notifications = 0;
    while client.receive().await["method"] == "notifications/progress" {
        notifications += 1;
    }
    assert!((5..=12).contains(&notifications), "{notifications} in 5 s");
}

#[tokio::test]
async fn a_cancelled_call_is_killed_and_the_next_one_works() {
    for version in VERSIONS {
        let engine = FakeEngine::new(|mut runner: Runner| async move {
            if runner.code().await == "hang" {
                std::future::pending::<()>().await;
            }
            runner.returns(json!("after")).await;
        });
        let mut client = Client::open(Arc::clone(&engine), version).await;
        let id = client
            .begin(
                "tools/call",
                json!({"name": "execute_python", "arguments": {"code": "hang"}}),
            )
            .await;
        engine.wait_launched(1).await;
        client
            .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}))
            .await;
        engine.wait_all_gone().await;
        // No answer to the cancelled call comes before the next one's.
        assert_eq!(
            client.call(json!({"code": "next"})).await["structuredContent"]["result"],
            "after"
        );
    }
}

#[tokio::test]
async fn when_the_client_hangs_up_everything_ends() {
    let engine = FakeEngine::new(hang);
    let mut client = Client::open(Arc::clone(&engine), "2025-11-25").await;
    client
        .begin(
            "tools/call",
            json!({"name": "execute_python", "arguments": {"code": "x"}}),
        )
        .await;
    engine.wait_launched(1).await;
    client.writer.shutdown().await.unwrap();
    client.server.await.unwrap().unwrap();
    engine.wait_all_gone().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_it_began_is_no_error() {
    let mut client = Client::connect(FakeEngine::new(echo));
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})).await;
    client.writer.shutdown().await.unwrap();
    client.server.await.unwrap().unwrap();
}
