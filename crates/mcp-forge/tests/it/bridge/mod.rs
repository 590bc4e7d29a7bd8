//! The bridge against real upstreams from npm, and against one that misbehaves on request.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use mcp_forge::{
    bridge::{Bridge, Catalogue, Grant, GrantError, UpstreamState},
    config::{BridgeLimits, Transport, Upstream},
    runner::wire::{Block, ToolFailure, ToolFailureKind, ToolValue},
    turn::Tools,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
    process::Command,
};

pub(crate) mod npm;

const SECRET: &str = "sesame-open-123";

fn limits() -> BridgeLimits {
    BridgeLimits {
        max_calls: 1000,
        max_in_flight: 32,
        max_bytes: 256 << 20,
        max_answer_bytes: 1 << 20,
    }
}

fn stdio(command: &str, args: &[&str]) -> Upstream {
    Upstream {
        transport: Transport::Stdio {
            command: command.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: BTreeMap::from([("API_TOKEN".to_owned(), SECRET.to_owned())]),
            cwd: None,
        },
        start_timeout: Duration::from_mins(1),
        call_timeout: Duration::from_mins(1),
    }
}

fn http(url: &str) -> Upstream {
    Upstream {
        transport: Transport::Http {
            url: url.to_owned(),
            headers: BTreeMap::from([("Authorization".to_owned(), format!("Bearer {SECRET}"))]),
        },
        start_timeout: Duration::from_mins(1),
        call_timeout: Duration::from_mins(1),
    }
}

pub(crate) fn hostile(mode: &str, state: Option<&Path>) -> Upstream {
    // As text: a test user may not be able to read the checkout.
    let mut args = vec!["-c", include_str!("hostile.py"), mode];
    args.extend(state.map(|state| state.to_str().unwrap()));
    stdio("python3", &args)
}

fn everything() -> Upstream {
    stdio("node", &[&npm::server("server-everything")])
}

fn bridge<const N: usize>(upstreams: [(&str, Upstream); N]) -> Arc<Bridge> {
    bridge_with(limits(), upstreams)
}

fn bridge_with<const N: usize>(
    limits: BridgeLimits,
    upstreams: [(&str, Upstream); N],
) -> Arc<Bridge> {
    Bridge::new(
        upstreams
            .into_iter()
            .map(|(name, upstream)| (name.to_owned(), upstream))
            .collect(),
        limits,
    )
}

async fn granted(bridge: &Arc<Bridge>, names: &[&str]) -> Grant {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    bridge.grant(&names).await.unwrap()
}

async fn call(grant: &Grant, name: &str, arguments: Value) -> Result<ToolValue, ToolFailure> {
    let Value::Object(arguments) = arguments else {
        panic!("arguments are an object")
    };
    grant.call(name, arguments).await
}

async fn value(grant: &Grant, name: &str, arguments: Value) -> Value {
    match call(grant, name, arguments).await {
        Ok(ToolValue::Json { value }) => value,
        other => panic!("{name} gave {other:?}"),
    }
}

async fn failure(grant: &Grant, name: &str, arguments: Value) -> ToolFailure {
    call(grant, name, arguments)
        .await
        .expect_err("the call must fail")
}

fn is_alive(pid: &str) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return false;
    };
    !status.contains("State:\tZ")
}

/// Waits for something to come true, bounded; says what it was if it does not.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let poll = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), poll)
        .await
        .unwrap_or_else(|_| panic!("never came true: {what}"));
}

fn state_file() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    std::fs::write(&path, "").unwrap();
    (directory, path)
}

fn listing(catalogue: &Catalogue) -> String {
    let stubs: Vec<String> = catalogue
        .tools
        .iter()
        .map(|tool| {
            format!(
                "{}\n{}\n",
                tool.signature,
                tool.stub.doc.replace('\n', "\n    ")
            )
        })
        .collect();
    stubs.join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_everything_server_over_stdio() {
    let bridge = bridge([("everything", everything())]);
    let catalogue = bridge.catalogue().await;
    assert_eq!(
        catalogue.upstreams[0].state,
        UpstreamState::Ready,
        "{:?}",
        catalogue.upstreams
    );
    assert_eq!(
        catalogue.upstreams[0].server.as_deref(),
        Some("mcp-servers/everything 2.0.0")
    );
    insta::assert_snapshot!("everything", listing(&catalogue));

    let names = [
        "everything_echo",
        "everything_get_sum",
        "everything_get_structured_content",
        "everything_get_tiny_image",
        "everything_get_resource_links",
        "everything_get_env",
        "everything_get_annotated_message",
    ];
    let grant = granted(&bridge, &names).await;
    assert_eq!(
        value(&grant, "everything_echo", json!({"message": "hi"})).await,
        json!("Echo: hi")
    );
    let sum = value(&grant, "everything_get_sum", json!({"a": 1, "b": 2})).await;
    assert_eq!(sum, json!("The sum of 1 and 2 is 3."));
    let weather = value(
        &grant,
        "everything_get_structured_content",
        json!({"location": "New York"}),
    )
    .await;
    assert_eq!(weather["conditions"], json!("Cloudy"), "{weather}");
    let Ok(ToolValue::Blocks { blocks }) =
        call(&grant, "everything_get_tiny_image", json!({})).await
    else {
        panic!()
    };
    assert!(
        blocks.iter().any(
            |block| matches!(block, Block::Image { mime_type, .. } if mime_type == "image/png")
        )
    );
    let Ok(ToolValue::Blocks { blocks }) =
        call(&grant, "everything_get_resource_links", json!({"count": 2})).await
    else {
        panic!()
    };
    assert_eq!(
        blocks
            .iter()
            .filter(|block| matches!(block, Block::Resource { text: None, .. }))
            .count(),
        2,
        "{blocks:?}"
    );

    let invalid = failure(&grant, "everything_get_sum", json!({"a": "one", "b": 2})).await;
    assert_eq!(invalid.kind, ToolFailureKind::InvalidArguments);
    assert_eq!(
        invalid.message,
        "everything_get_sum: argument `a` must be a number, not str"
    );
    let left_out = value(
        &grant,
        "everything_get_annotated_message",
        json!({"messageType": "error", "includeImage": null}),
    )
    .await;
    assert!(left_out.as_str().unwrap().contains("Error"), "{left_out}");

    let environment = value(&grant, "everything_get_env", json!({})).await;
    assert_eq!(environment["API_TOKEN"], json!(SECRET));
    assert!(
        environment.get("CARGO_MANIFEST_DIR").is_none(),
        "our own environment leaks"
    );
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_parallel_calls_and_a_cancelled_one() {
    let bridge = bridge([("everything", everything())]);
    let grant = Arc::new(
        granted(
            &bridge,
            &[
                "everything_echo",
                "everything_trigger_long_running_operation",
            ],
        )
        .await,
    );
    let calls = (0..10).map(|n| {
        let grant = Arc::clone(&grant);
        tokio::spawn(async move {
            value(
                &grant,
                "everything_echo",
                json!({"message": format!("{n}")}),
            )
            .await
        })
    });
    for (n, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(call.await.unwrap(), json!(format!("Echo: {n}")));
    }
    let long = call(
        &grant,
        "everything_trigger_long_running_operation",
        json!({"duration": 600, "steps": 600}),
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(300), long)
            .await
            .is_err()
    );
    assert_eq!(
        value(&grant, "everything_echo", json!({"message": "after"})).await,
        json!("Echo: after")
    );
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_filesystem_server_reads_files_and_raises() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    std::fs::write(root.join("a.txt"), "123").unwrap();
    std::fs::write(root.join("b.json"), "{\"a\": 1}").unwrap();
    let bridge = bridge([(
        "filesystem",
        stdio(
            "node",
            &[&npm::server("server-filesystem"), root.to_str().unwrap()],
        ),
    )]);
    let grant = granted(
        &bridge,
        &[
            "filesystem_read_text_file",
            "filesystem_list_directory",
            "filesystem_read_media_file",
        ],
    )
    .await;
    let path = |name: &str| json!({"path": root.join(name).to_str().unwrap()});
    assert_eq!(
        value(&grant, "filesystem_read_text_file", path("a.txt")).await,
        json!("123")
    );
    assert_eq!(
        value(&grant, "filesystem_read_text_file", path("b.json")).await,
        json!("{\"a\": 1}")
    );
    let list = value(&grant, "filesystem_list_directory", path("")).await;
    assert_eq!(list, json!("[FILE] a.txt\n[FILE] b.json"));
    let missing = failure(&grant, "filesystem_read_text_file", path("nowhere")).await;
    assert_eq!(missing.kind, ToolFailureKind::Tool);
    assert!(missing.message.contains("ENOENT"), "{missing:?}");
    let outside = failure(
        &grant,
        "filesystem_read_text_file",
        json!({"path": "/etc/passwd"}),
    )
    .await;
    assert!(outside.message.contains("denied"), "{outside:?}");
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_everything_server_over_http_survives_its_restart() {
    let port = free_port();
    let mut server = serve_everything(port).await;
    let bridge = bridge([("web", http(&format!("http://127.0.0.1:{port}/mcp")))]);
    let grant = granted(&bridge, &["web_echo"]).await;
    assert_eq!(
        value(&grant, "web_echo", json!({"message": "hi"})).await,
        json!("Echo: hi")
    );
    let message = "x".repeat(2 << 20);
    let too_big = failure(&grant, "web_echo", json!({"message": message})).await;
    assert_eq!(too_big.kind, ToolFailureKind::Upstream, "{too_big:?}");
    assert_eq!(
        value(&grant, "web_echo", json!({"message": "hi"})).await,
        json!("Echo: hi")
    );
    server.kill().await.unwrap();
    let gone = failure(&grant, "web_echo", json!({"message": "anyone?"})).await;
    assert_eq!(gone.kind, ToolFailureKind::Upstream);
    assert!(!gone.message.contains(SECRET), "{gone:?}");
    let _server = serve_everything(port).await;
    let back = async {
        loop {
            match call(&grant, "web_echo", json!({"message": "back"})).await {
                Ok(answer) => return answer,
                Err(failure) => assert_eq!(failure.kind, ToolFailureKind::Upstream, "{failure:?}"),
            }
        }
    };
    let back = tokio::time::timeout(Duration::from_mins(1), back)
        .await
        .expect("the bridge must reconnect");
    assert_eq!(
        back,
        ToolValue::Json {
            value: json!("Echo: back")
        }
    );
    bridge.shutdown().await;
}

async fn serve_everything(port: u16) -> tokio::process::Child {
    #[expect(
        clippy::disallowed_methods,
        reason = "the test starts the server it talks to"
    )]
    let mut command = Command::new("node");
    command
        .arg(npm::server("server-everything"))
        .arg("streamableHttp")
        .env("PORT", port.to_string());
    command
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.contains("listening on port") {
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return child;
        }
    }
    panic!("the server did not start");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_granted_tools_can_be_called() {
    let bridge = bridge([("h", hostile("calls", None))]);
    let grant = granted(&bridge, &["h_echo", "h_echo"]).await;
    assert_eq!(grant.names(), ["h_echo"]);
    let long = "x".repeat(10_000);
    for name in [
        "h_die",
        "H_echo",
        "h.echo",
        "h_ech\u{43e}",
        "h_echo ",
        "",
        "echo",
        "../h_echo",
        &long,
    ] {
        let refused = failure(&grant, name, json!({})).await;
        assert_eq!(refused.kind, ToolFailureKind::NotGranted, "{name}");
        assert!(refused.message.len() < 300, "{}", refused.message);
    }
    assert_eq!(
        value(&grant, "h_echo", json!({"x": [1]})).await,
        json!({"got": {"x": [1]}})
    );
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_names_get_suggestions_and_down_servers_a_reason() {
    let bridge = bridge([
        ("h", hostile("calls", None)),
        ("gone", stdio("no-such-program-anywhere", &[])),
    ]);
    let error = bridge.grant(&["h_ecko".to_owned()]).await.unwrap_err();
    let GrantError::Unknown {
        nearest, available, ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(nearest.first().map(String::as_str), Some("h_echo"));
    assert!(available.contains(&"h_media".to_owned()));
    assert!(
        error
            .to_string()
            .starts_with("mcp_tools: there is no tool `h_ecko`; did you mean `h_echo`"),
        "{error}"
    );
    let error = bridge.grant(&["gone_tool".to_owned()]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "mcp_tools: `gone_tool` is not available because its server `gone` is down: there is no program \
         `no-such-program-anywhere` on PATH; install it or give its full path"
    );
    assert_eq!(bridge.grant(&[]).await.unwrap().stubs(), []);
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caps_on_calls_and_bytes_fail_with_numbers() {
    let few = BridgeLimits {
        max_calls: 3,
        max_bytes: 600,
        ..limits()
    };
    let bridge = bridge_with(few, [("h", hostile("calls", None))]);
    let grant = granted(&bridge, &["h_echo"]).await;
    let big = failure(&grant, "h_echo", json!({"x": "y".repeat(1000)})).await;
    assert_eq!(big.kind, ToolFailureKind::Limit);
    assert!(big.message.contains("600 bytes"), "{big:?}");
    let big_answer = failure(&grant, "h_echo", json!({"x": "y".repeat(250)})).await;
    assert_eq!(big_answer.kind, ToolFailureKind::Limit);
    value(&grant, "h_echo", json!({"x": 1})).await;
    let fourth = failure(&grant, "h_echo", json!({})).await;
    assert_eq!(
        fourth.message,
        "this turn has made the 3 tool calls that it may make"
    );
    let next_turn = granted(&bridge, &["h_echo"]).await;
    value(&next_turn, "h_echo", json!({})).await;
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_over_the_in_flight_cap_wait_and_a_dropped_call_frees_its_slot() {
    let (_directory, state) = state_file();
    let one = BridgeLimits {
        max_in_flight: 1,
        ..limits()
    };
    let bridge = bridge_with(one, [("h", hostile("calls", Some(&state)))]);
    let grant = Arc::new(granted(&bridge, &["h_echo", "h_silent"]).await);
    let blocking = tokio::spawn({
        let grant = Arc::clone(&grant);
        async move { call(&grant, "h_silent", json!({})).await }
    });
    let noted = || std::fs::read_to_string(&state).unwrap();
    eventually("the call is sent", || noted().contains("call silent")).await;
    let waiting = tokio::time::timeout(
        Duration::from_millis(200),
        call(&grant, "h_echo", json!({})),
    )
    .await;
    assert!(waiting.is_err(), "the second call must wait");
    assert!(!noted().contains("call echo"), "and must not be sent");
    blocking.abort();
    value(&grant, "h_echo", json!({})).await;
    eventually("the upstream hears of the cancellation", || {
        noted().contains("cancelled")
    })
    .await;
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_answer_times_out_and_is_cancelled() {
    let (_directory, state) = state_file();
    let impatient = Upstream {
        call_timeout: Duration::from_millis(300),
        ..hostile("calls", Some(&state))
    };
    let bridge = bridge([("h", impatient)]);
    let grant = granted(&bridge, &["h_silent", "h_wrong_id", "h_echo"]).await;
    for name in ["h_silent", "h_wrong_id"] {
        let late = failure(&grant, name, json!({})).await;
        assert_eq!(late.kind, ToolFailureKind::Timeout);
        assert_eq!(
            late.message,
            "upstream `h` did not answer within 0.3 s; the call may still be running there"
        );
    }
    // The limit is this one's too, and a busy machine does not always answer within it.
    let answered = async {
        loop {
            match call(&grant, "h_echo", json!({})).await {
                Err(late) if late.kind == ToolFailureKind::Timeout => {}
                answer => return answer.unwrap(),
            }
        }
    };
    tokio::time::timeout(Duration::from_mins(1), answered)
        .await
        .expect("what is answered at once must be answered");
    eventually("both are cancelled", || {
        std::fs::read_to_string(&state)
            .unwrap()
            .matches("cancelled")
            .count()
            >= 2
    })
    .await;
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_dies_in_a_call_is_not_asked_again_but_starts_again() {
    let (_directory, state) = state_file();
    let bridge = bridge([("h", hostile("calls", Some(&state)))]);
    let grant = granted(&bridge, &["h_die", "h_echo"]).await;
    let died = failure(&grant, "h_die", json!({})).await;
    assert_eq!(died.kind, ToolFailureKind::Upstream);
    assert_eq!(
        died.message,
        "upstream `h` went away: its process ended with exit status: 3; its standard error ends with: \
         these are my last words [redacted]; the call may or may not have run"
    );
    assert_eq!(
        std::fs::read_to_string(&state)
            .unwrap()
            .matches("call die")
            .count(),
        1,
        "sent calls are never sent again"
    );
    value(&grant, "h_echo", json!({})).await;
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gigabyte_in_one_line_ends_the_upstream_not_us() {
    let bridge = bridge([("h", hostile("calls", None))]);
    let grant = granted(&bridge, &["h_line", "h_echo"]).await;
    let before = resident_bytes();
    let flood = failure(&grant, "h_line", json!({})).await;
    assert_eq!(flood.kind, ToolFailureKind::Upstream);
    assert!(
        flood
            .message
            .contains("a message of more than 1114112 bytes"),
        "{flood:?}"
    );
    assert!(
        resident_bytes() < before + ROOM,
        "memory grew with the line"
    );
    value(&grant, "h_echo", json!({})).await;
    bridge.shutdown().await;
}

/// What this process may grow by meanwhile: other tests run in it, and what is sent is a gigabyte or more.
const ROOM: u64 = 512 << 20;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 4096
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_garbage_and_duplicates_do_not_disturb_answers() {
    let bridge = bridge([("h", hostile("calls", None))]);
    let grant = granted(
        &bridge,
        &[
            "h_progress",
            "h_garbage",
            "h_double",
            "h_requests",
            "h_number",
            "h_nothing",
        ],
    )
    .await;
    assert_eq!(value(&grant, "h_progress", json!({})).await, json!("done"));
    assert_eq!(
        value(&grant, "h_garbage", json!({})).await,
        json!("after garbage")
    );
    assert_eq!(value(&grant, "h_double", json!({})).await, json!("first"));
    assert_eq!(value(&grant, "h_number", json!({})).await, json!("123"));
    assert_eq!(value(&grant, "h_nothing", json!({})).await, json!(null));
    // It sends 20000 requests and reads no answer while doing so.
    assert_eq!(value(&grant, "h_requests", json!({})).await, json!("done"));
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sampling_and_roots_are_refused_and_links_are_data() {
    let bridge = bridge([("h", hostile("calls", None))]);
    let grant = granted(&bridge, &["h_sample", "h_media", "h_texts"]).await;
    assert_eq!(
        value(&grant, "h_sample", json!({})).await,
        json!({"s1": -32601, "s2": -32601, "s3": "ok"})
    );
    let media = call(&grant, "h_media", json!({})).await.unwrap();
    insta::assert_json_snapshot!("media", media);
    let texts = call(&grant, "h_texts", json!({})).await.unwrap();
    let text = |text: &str| Block::Text {
        text: text.to_owned(),
    };
    assert_eq!(
        texts,
        ToolValue::Blocks {
            blocks: vec![text("one"), text("[2]")]
        }
    );
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_tools_lose_secrets_and_hidden_characters() {
    let bridge = bridge([("h", hostile("calls", None))]);
    let grant = granted(&bridge, &["h_fail", "h_error"]).await;
    let failed = failure(&grant, "h_fail", json!({})).await;
    assert_eq!(
        failed,
        ToolFailure {
            kind: ToolFailureKind::Tool,
            message: "bad token [redacted]".to_owned()
        }
    );
    let refused = failure(&grant, "h_error", json!({})).await;
    assert_eq!(refused.kind, ToolFailureKind::Tool);
    assert_eq!(
        refused.message,
        "upstream `h` refused the call: I refuse (code -32602)"
    );
    assert!(!format!("{bridge:?} {grant:?}").contains(SECRET));
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_whose_definition_changes_is_suspended_until_the_next_turn() {
    let bridge = bridge([("h", hostile("calls", None))]);
    let grant = granted(&bridge, &["h_change", "h_echo"]).await;
    assert_eq!(value(&grant, "h_change", json!({})).await, json!("changed"));
    let suspended = async {
        loop {
            match call(&grant, "h_echo", json!({})).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(failure) => return failure,
            }
        }
    };
    let suspended = tokio::time::timeout(Duration::from_mins(1), suspended)
        .await
        .unwrap();
    assert_eq!(suspended.kind, ToolFailureKind::NotGranted);
    assert!(
        suspended
            .message
            .contains("changed the definition of `h_echo`"),
        "{suspended:?}"
    );
    let next_turn = granted(&bridge, &["h_echo"]).await;
    assert_eq!(next_turn.stubs()[0].doc.lines().next(), Some("after"));
    value(&next_turn, "h_echo", json!({})).await;
    bridge.shutdown().await;
}

/// The first question of the newest protocol is answered only after the client gave up on it and
/// asked in the older way: that late answer is not the answer to the second question.
#[tokio::test]
async fn an_upstream_that_takes_eleven_seconds_to_start_is_waited_for() {
    let bridge = bridge([("slow", hostile("slow", None))]);
    let grant = granted(&bridge, &["slow_echo"]).await;
    value(&grant, "slow_echo", json!({})).await;
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upstreams_that_hang_flood_or_break_do_not_block_another() {
    let soon = |mode: &str| Upstream {
        start_timeout: Duration::from_secs(3),
        ..hostile(mode, None)
    };
    let upstreams = [
        ("hang", soon("hang")),
        ("flood", hostile("flood", None)),
        ("chatter", soon("chatter")),
        ("broken", hostile("broken", None)),
        ("good", hostile("calls", None)),
        ("strict", hostile("strict", None)),
        ("endless", hostile("endless", None)),
    ];
    let bridge = bridge(upstreams);
    bridge.start();
    let grant = granted(&bridge, &["good_echo"]).await;
    value(&grant, "good_echo", json!({})).await;
    let catalogue = bridge.catalogue().await;
    let status = |name: &str| {
        catalogue
            .upstreams
            .iter()
            .find(|upstream| upstream.name == name)
            .unwrap()
    };
    let error = |name: &str| status(name).error.clone().unwrap_or_default();
    assert_eq!(error("hang"), "it did not start within 3 s");
    let flood = error("flood");
    assert!(
        flood.starts_with("it sent a message of more than 1114112 bytes and was closed"),
        "{flood}"
    );
    // What it wrote when its pipe was closed may be told as well.
    let chatter = error("chatter");
    assert!(
        chatter.starts_with("it did not start within 3 s"),
        "{chatter}"
    );
    assert!(
        error("broken").contains(r"config \u{1b}[31mis broken [redacted]"),
        "{}",
        error("broken")
    );
    assert_eq!(status("good").state, UpstreamState::Ready);
    assert_eq!(status("good").server.as_deref(), Some("hostile 1"));
    assert_eq!(
        status("strict").state,
        UpstreamState::Ready,
        "{:?}",
        status("strict")
    );
    assert_eq!(status("endless").tools, 100);
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_and_schemas_become_harmless_stubs() {
    let bridge = bridge([("evil", hostile("names", None))]);
    let catalogue = bridge.catalogue().await;
    assert_eq!(
        catalogue.upstreams[0].state,
        UpstreamState::Ready,
        "{:?}",
        catalogue.upstreams
    );
    insta::assert_snapshot!("hostile_names", listing(&catalogue));
    let shown = serde_json::to_string(
        &catalogue
            .tools
            .iter()
            .map(|tool| (&tool.description, &tool.stub.doc))
            .collect::<Vec<_>>(),
    )
    .unwrap();
    for hidden in ['\u{202e}', '\u{200b}', '\u{e0041}'] {
        assert!(!shown.contains(hidden), "{hidden:?}");
    }
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_an_upstream_or_its_children() {
    for with_shutdown in [true, false] {
        let (_directory, state) = state_file();
        let bridge = bridge([("h", hostile("family", Some(&state)))]);
        let grant = granted(&bridge, &["h_echo"]).await;
        value(&grant, "h_echo", json!({})).await;
        let noted = std::fs::read_to_string(&state).unwrap();
        let pids: Vec<&str> = noted
            .lines()
            .filter(|line| line.parse::<u32>().is_ok())
            .collect();
        assert_eq!(pids.len(), 2);
        assert!(pids.iter().all(|pid| is_alive(pid)));
        drop(grant);
        if with_shutdown {
            bridge.shutdown().await;
            assert!(
                !pids.iter().any(|pid| is_alive(pid)),
                "shutdown waits until they are gone"
            );
        }
        drop(bridge);
        eventually("the family is gone", || {
            !pids.iter().any(|pid| is_alive(pid))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_an_upstream_that_is_still_starting() {
    let (_directory, state) = state_file();
    let bridge = bridge([("h", hostile("hang", Some(&state)))]);
    bridge.start();
    let noted = || std::fs::read_to_string(&state).unwrap().trim().to_owned();
    eventually("the program runs", || noted().parse::<u32>().is_ok()).await;
    let pid = noted();
    assert!(is_alive(&pid));
    bridge.shutdown().await;
    eventually("the program is gone", || !is_alive(&pid)).await;
    let closed = bridge.grant(&["h_echo".to_owned()]).await.unwrap_err();
    assert!(
        closed.to_string().ends_with("the bridge is shut down"),
        "{closed}"
    );
}

/// Answers every request with these bytes; says what it received.
async fn canned(answer: &'static [u8], endless: bool) -> (u16, Arc<std::sync::Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let received = Arc::new(std::sync::Mutex::new(String::new()));
    let log = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                let read = stream.read(&mut buffer).await.unwrap_or(0);
                log.lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&buffer[..read]));
                let _ = stream.write_all(answer).await;
                while endless && stream.write_all(&[b'a'; 4096]).await.is_ok() {}
            });
        }
    });
    (port, received)
}

async fn error_of(upstream: Upstream) -> String {
    let bridge = bridge([("web", upstream)]);
    let catalogue = bridge.catalogue().await;
    bridge.shutdown().await;
    catalogue.upstreams[0].error.clone().expect("it must fail")
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_do_not_follow_a_redirect_to_another_origin() {
    let (elsewhere, stolen) = canned(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false).await;
    let redirect = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:{elsewhere}/\r\ncontent-length: 0\r\n\r\n"
    );
    let (port, received) = canned(redirect.leak().as_bytes(), false).await;
    let error = error_of(http(&format!(
        "http://127.0.0.1:{port}/mcp?key=querysecret"
    )))
    .await;
    assert!(
        received.lock().unwrap().contains(SECRET),
        "the configured origin gets the header"
    );
    assert_eq!(*stolen.lock().unwrap(), "", "another origin gets nothing");
    assert!(
        !error.contains(SECRET) && !error.contains("querysecret"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_bodies_and_refusals_over_http_end_in_one_sentence() {
    let json_head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
    let error = error_of(http(&format!(
        "http://127.0.0.1:{}/",
        canned(json_head, true).await.0
    )))
    .await;
    assert!(error.contains("maximum size of 1114112 bytes"), "{error}");
    let events_head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ";
    let quick = |port: u16| Upstream {
        start_timeout: Duration::from_secs(30),
        ..http(&format!("http://127.0.0.1:{port}/"))
    };
    let before = resident_bytes();
    let error = error_of(quick(canned(events_head, true).await.0)).await;
    // The time limit would end an event of any size.
    assert!(!error.contains("did not start"), "{error}");
    assert!(
        resident_bytes() < before + ROOM,
        "memory grew with the event: {error}"
    );
    let refusal =
        b"HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer\r\ncontent-length: 0\r\n\r\n";
    let error = error_of(http(&format!(
        "http://127.0.0.1:{}/",
        canned(refusal, false).await.0
    )))
    .await;
    assert_eq!(
        error,
        "it refused the credentials (HTTP 401); check its `headers`"
    );
    // Nobody listens at the first of all ports.
    let error = error_of(http("http://127.0.0.1:1/?key=querysecret")).await;
    assert!(
        error.starts_with("could not connect: Connection refused"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_never_connected_says_that_it_was_not_sent() {
    let port = free_port();
    let mut server = serve_everything(port).await;
    let bridge = bridge([(
        "web",
        http(&format!("http://127.0.0.1:{port}/mcp?key=querysecret")),
    )]);
    let grant = granted(&bridge, &["web_echo"]).await;
    server.kill().await.unwrap();
    let refused = async {
        loop {
            let failed = failure(&grant, "web_echo", json!({"message": "anyone?"})).await;
            assert_eq!(failed.kind, ToolFailureKind::Upstream);
            assert!(!failed.message.contains("querysecret"), "{failed:?}");
            if failed.message.contains("could not connect") {
                return failed.message;
            }
        }
    };
    let message = tokio::time::timeout(Duration::from_mins(1), refused)
        .await
        .unwrap();
    assert!(message.ends_with("the call was not sent"), "{message}");
    bridge.shutdown().await;
}

/// A port for a program that must be told one. It is below those that are given to whoever asks for any,
/// so nobody else has taken it by the time that the program does.
pub(crate) fn free_port() -> u16 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 16 + ASKED.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + u16::try_from(number % 12_000).unwrap();
        if std::net::TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}
