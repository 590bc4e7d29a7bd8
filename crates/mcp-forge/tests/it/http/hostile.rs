//! Rows N1-N14 and N20-N22: bytes that no honest client sends. After each the server is well.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use serde_json::json;

use super::served::{Reply, Served, initialize, modern_meta, read_reply, token};

fn is_well(served: &Served) {
    assert_eq!(served.request("GET /health", &[], "").status, 200);
}

fn problem(reply: &Reply) -> String {
    assert_eq!(
        reply.header("content-type"),
        Some("application/problem+json"),
        "{reply:?}"
    );
    let problem = reply.json();
    assert_eq!(problem["status"], reply.status, "{problem}");
    problem["detail"].as_str().unwrap().to_owned()
}

#[test]
fn another_name_in_the_host_header_is_refused() {
    let served = Served::start(&[("MCP_FORGE_SERVER_ALLOWED_HOSTS", "forge.example")]);
    let port = served.address.port();
    let get = |host: &str| {
        served
            .request("GET /health", &[&format!("Host: {host}")], "")
            .status
    };
    for ours in [
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1",
        "[::1]:80",
        "forge.example",
    ] {
        assert_eq!(get(ours), 200, "{ours}");
    }
    assert_eq!(get(&format!("localhost:{port}")), 200);
    // A name that points here only now, as in DNS rebinding, is a name that is not ours.
    for evil in [
        "evil.example",
        "localhost.",
        "127.0.0.2",
        "localhost.evil.example",
        "user@localhost",
        "127.0.0.1.nip.example",
    ] {
        assert_eq!(get(evil), 403, "{evil}");
    }
    assert_eq!(get(""), 400);
    assert_eq!(get("a b"), 400);
    assert_eq!(
        served
            .request(
                "GET /health",
                &["Host: localhost", "Host: evil.example"],
                ""
            )
            .status,
        400
    );
    assert_eq!(
        served
            .raw(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
            .status,
        400
    );
    assert_eq!(
        served
            .request("GET http://evil.example/health", &["Host: localhost"], "")
            .status,
        403
    );
}

/// Answers once with the address of whoever attacks, and then with ours, as a name of his does.
#[derive(Debug, Default)]
struct Flipping(AtomicUsize);

impl Resolve for Flipping {
    fn resolve(&self, _: Name) -> Resolving {
        let asked = self.0.fetch_add(1, Ordering::Relaxed);
        let address = Ipv4Addr::new(127, 0, 0, if asked == 0 { 2 } else { 1 });
        let addresses: Addrs = Box::new(std::iter::once(SocketAddr::from((address, 0))));
        Box::pin(std::future::ready(Ok(addresses)))
    }
}

#[tokio::test]
async fn a_page_whose_name_comes_to_mean_this_machine_is_refused() {
    let name = "rebound.example";
    for (allowed, expected) in [("other.example", 403), (name, 200)] {
        let served = Served::start(&[("MCP_FORGE_SERVER_ALLOWED_HOSTS", allowed)]);
        let page = format!("http://{name}:{}", served.address.port());
        // The attacker's server, at the same port of another address.
        let attacker =
            TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), served.address.port())).unwrap();
        let attacker = thread::spawn(move || {
            let (mut stream, _) = attacker.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\npage";
            stream.write_all(answer).unwrap();
        });
        let resolver = Arc::new(Flipping::default());
        let browser = reqwest::Client::builder()
            .dns_resolver(resolver.clone())
            .pool_max_idle_per_host(0)
            .no_proxy()
            .build()
            .unwrap();
        let loaded = browser.get(&page).send().await.unwrap();
        assert_eq!(loaded.text().await.unwrap(), "page");
        attacker.join().unwrap();
        let asked = browser.get(format!("{page}/health")).send().await.unwrap();
        assert_eq!(asked.status(), expected, "{allowed}");
        let permission = asked.headers().get("access-control-allow-origin");
        assert_eq!(permission, None, "{allowed}");
        assert_eq!(
            resolver.0.load(Ordering::Relaxed),
            2,
            "the control: the name was asked again"
        );
    }
}

#[test]
fn another_web_page_is_refused() {
    let served = Served::start(&[(
        "MCP_FORGE_SERVER_ALLOWED_ORIGINS",
        "https://app.example,http://dev.example:8080",
    )]);
    let own = format!("http://{}", served.address);
    let send = |origin: &str| {
        served
            .post(
                "ada",
                &[&format!("Origin: {origin}")],
                &initialize("2025-11-25"),
            )
            .status
    };
    for good in [
        "https://app.example",
        "HTTPS://App.Example",
        "http://dev.example:8080",
        &own,
    ] {
        assert_eq!(send(good), 200, "{good}");
    }
    for evil in [
        "https://evil.example",
        "null",
        "http://app.example",
        "https://app.example:8443",
        "http://dev.example",
        "https://app.example.evil.example",
        "http://localhost",
        "http://127.0.0.1:1",
        "file://",
        "",
    ] {
        assert_eq!(send(evil), 403, "{evil}");
    }
    assert_eq!(
        served
            .post(
                "ada",
                &[
                    "Origin: https://app.example",
                    "Origin: https://evil.example"
                ],
                "{}"
            )
            .status,
        403
    );
    // A browser asks first; it gets no permission, and no answer says that any page may read it.
    let asked = served.request(
        "OPTIONS /mcp",
        &[
            "Origin: https://evil.example",
            "Access-Control-Request-Method: POST",
        ],
        "",
    );
    assert_eq!(asked.status, 403);
    assert_eq!(asked.header("access-control-allow-origin"), None);
    // What a page may send without asking is refused before anything runs.
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ] {
        let authorization = format!("Authorization: Bearer {}", token("ada"));
        let headers = [
            authorization.as_str(),
            &format!("Content-Type: {kind}"),
            "Accept: application/json, text/event-stream",
        ];
        assert_eq!(
            served
                .request("POST /mcp", &headers, &initialize("2025-11-25"))
                .status,
            415,
            "{kind}"
        );
    }
}

#[test]
fn without_a_token_there_is_nothing() {
    let served = Served::start(&[("MCP_FORGE_LOG", "trace")]);
    let send = |line: &str, headers: &[&str]| served.request(line, headers, "");
    let good = format!("Authorization: Bearer {}", token("ada"));
    for line in [
        "POST /mcp",
        "GET /mcp",
        "DELETE /mcp",
        "GET /",
        "GET /nothing",
        "GET /metrics",
        "PUT /health2",
    ] {
        let refused = send(line, &[]);
        assert_eq!(refused.status, 401, "{line}");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
        problem(&refused);
    }
    for wrong in [
        "Authorization: Bearer wrong-secret",
        "Authorization: Bearer",
        "Authorization: Basic dG9rZW4=",
        "Authorization: token-of-ada",
        "X-Authorization: Bearer token-of-ada",
        "Cookie: token=token-of-ada",
        "Authorization: Bearer token-of-ada x",
    ] {
        assert_eq!(send("POST /mcp", &[wrong]).status, 401, "{wrong}");
    }
    assert_eq!(send("POST /mcp", &[&good, &good]).status, 401);
    assert_eq!(
        send(
            "POST /mcp?token=token-of-ada&access_token=token-of-ada",
            &[]
        )
        .status,
        401
    );
    // One that is good for nothing opens nothing.
    let refused = send("POST /mcp", &["Authorization: Bearer token-of-nobody"]);
    assert_eq!(refused.status, 403);
    assert!(
        refused
            .header("www-authenticate")
            .unwrap()
            .contains("insufficient_scope")
    );
    // With one there is something, and elsewhere there is not.
    assert_eq!(send("GET /nothing", &[&good]).status, 404);
    served.call("ada", "tools/list", json!({}));
    let said = served.said();
    assert!(
        said.contains("DEBUG") || said.contains("TRACE"),
        "nothing was logged"
    );
    assert!(
        !said.contains("token-of-ada") && !said.contains("wrong-secret"),
        "{said}"
    );
}

#[test]
fn what_is_not_one_message_is_refused_with_its_reason() {
    let served = Served::start(&[]);
    let code = |body: &str| {
        let reply = served.post("ada", &[], body);
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(
            !reply.body.contains("src/") && reply.body.len() < 1000,
            "{reply:?}"
        );
        reply.message()["error"]["code"].as_i64().unwrap()
    };
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{}"#,
        "[".repeat(100_000)
    );
    let number = format!(
        r#"{{"jsonrpc":"2.0","id":{},"method":"ping"}}"#,
        "9".repeat(1_000_000)
    );
    for text in [
        "",
        "{",
        "\u{feff}{}",
        "{} {}",
        "nul",
        "{'a': 1}",
        r#"{"id": 1e400}"#,
        &deep,
        &number,
    ] {
        assert_eq!(code(text), -32700, "{}", &text[..text.len().min(40)]);
    }
    for text in [
        "[]",
        r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
        "7",
        "null",
        "{}",
        r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
        r#"{"id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":18446744073709551615,"method":"ping"}"#,
        // Two readers, two messages.
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_sessions","arguments":{"a":1,"\u0061":2}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"METHOD":"ping"}"#,
    ] {
        assert_eq!(code(text), -32600, "{text}");
    }
    for bytes in [
        &b"\xff\xfe{\0}\0"[..],
        b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}",
    ] {
        let mut request = served.bytes(
            "POST /mcp",
            &[
                &format!("Authorization: Bearer {}", token("ada")),
                "Content-Type: application/json",
                "Accept: application/json, text/event-stream",
                &format!("Content-Length: {}", bytes.len()),
            ],
            "",
        );
        request.extend_from_slice(bytes);
        let reply = served.raw(&request);
        assert_eq!(
            (reply.status, &reply.message()["error"]["code"]),
            (400, &json!(-32700))
        );
    }
    let odd = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list\u{0}", "params": {"_meta": modern_meta()}});
    let headers = ["MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/list"];
    let reply = served.post("ada", &headers, &odd.to_string());
    assert_eq!(
        (reply.status, &reply.message()["error"]["code"]),
        (400, &json!(-32020))
    );
    assert_eq!(
        served
            .post("ada", &["Mcp-Method: tools/list\0"], &odd.to_string())
            .status,
        400
    );
    is_well(&served);
}

#[test]
fn a_body_is_refused_before_it_is_read_whole() {
    let served = Served::start(&[("MCP_FORGE_SERVER_MAX_BODY", "64k")]);
    let large = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"x":"{}"}}}}"#,
        "x".repeat(200_000)
    );
    let refused = served.post("ada", &[], &large);
    assert_eq!(refused.status, 413);
    assert!(problem(&refused).contains("server.max_body"), "{refused:?}");

    // Chunks that would never end: the answer comes while they still do.
    let mut stream = served.connect();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        token("ada")
    );
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("2000\r\n{}\r\n", " ".repeat(0x2000));
    let mut sent = 0;
    while sent < 64 << 20 && stream.write_all(chunk.as_bytes()).is_ok() {
        sent += chunk.len();
    }
    assert!(sent < 64 << 20, "the server took it all");
    is_well(&served);
}

#[test]
fn bytes_that_are_no_http_are_refused() {
    let served = Served::start(&[]);
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let huge = format!("X: {}", "x".repeat(200_000));
    assert_eq!(served.request("GET /health", &[&huge], "").status, 431);
    let many: Vec<String> = (0..1000).map(|number| format!("X-{number}: x")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(served.request("GET /health", &many, "").status, 431);
    // Two lengths, and another request where one of them ends: whoever stands before the server may
    // believe either, so nothing is answered after the first.
    let smuggled = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n\
         0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    );
    let reply = served.raw(smuggled.as_bytes());
    assert_eq!(
        (reply.status, reply.header("connection")),
        (406, Some("close"))
    );
    assert!(!reply.body.contains("version"), "{reply:?}");
    for wrong in [
        &b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"[..],
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello",
    ] {
        let reply = served.raw(wrong);
        assert_eq!(reply.status, 400, "{:?}", String::from_utf8_lossy(wrong));
    }
    // HTTP/2, and so rapid resets and floods of CONTINUATION, is hung up on.
    let mut stream = served.connect();
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 2"), "{answer:?}");
    for method in ["PUT", "PATCH", "TRACE", "OPTIONS", "HEAD"] {
        let reply = served.request(&format!("{method} /mcp"), &[&authorization], "");
        assert_eq!(reply.status, 405, "{method}");
    }
    let modern = [
        authorization.as_str(),
        "MCP-Protocol-Version: 2026-07-28",
        "Accept: text/event-stream",
        "Last-Event-ID: 0",
    ];
    for method in ["GET", "DELETE"] {
        assert_eq!(
            served
                .request(&format!("{method} /mcp"), &modern, "")
                .status,
            405,
            "{method}"
        );
    }
    is_well(&served);
}

#[test]
fn requests_that_never_end_and_clients_that_never_read_harm_nobody() {
    let served = Served::start(&[]);
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let kept: Vec<_> = (0..200)
        .map(|number| {
            let mut stream = served.connect();
            let whole = served.bytes(
                "POST /mcp",
                &[&authorization, "Content-Type: application/json"],
                &initialize("2025-11-25"),
            );
            // Each stops at another byte.
            stream
                .write_all(&whole[..number.min(whole.len() - 1)])
                .unwrap();
            stream
        })
        .collect();
    // Streams that are open and never read.
    let opened = served.post("ada", &[], &initialize("2025-11-25"));
    let session = format!(
        "Mcp-Session-Id: {}",
        opened.header("mcp-session-id").unwrap()
    );
    let listening: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = served.connect();
            let headers = [
                authorization.as_str(),
                "Accept: text/event-stream",
                session.as_str(),
            ];
            stream
                .write_all(&served.bytes("GET /mcp", &headers, ""))
                .unwrap();
            stream
        })
        .collect();
    is_well(&served);
    let result = served.tool("bob", "execute_python", &json!({"code": "6 * 7"}));
    assert_eq!(result["structuredContent"]["result"], 42);
    drop((kept, listening));
    is_well(&served);
}

/// A body that comes later than its refusal is not taken for a request, and the client is told that the
/// connection ends.
#[test]
fn a_refusal_of_a_request_with_a_body_ends_its_connection() {
    let served = Served::start(&[]);
    for (line, more, status) in [
        ("POST /mcp", "", 401),
        (
            "POST /nothing",
            "Authorization: Bearer token-of-ada\r\n",
            404,
        ),
        ("PUT /mcp", "Authorization: Bearer token-of-ada\r\n", 405),
    ] {
        let mut stream = served.connect();
        let head =
            format!("{line} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: 30\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let reply = read_reply(&mut stream);
        assert_eq!(
            (reply.status, reply.header("connection")),
            (status, Some("close")),
            "{reply:?}"
        );
    }
    // One without a body keeps it.
    let mut stream = served.connect();
    for _ in 0..2 {
        stream
            .write_all(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let text = read_kept(&mut stream).to_lowercase();
        assert!(
            text.starts_with("http/1.1 401") && !text.contains("connection: close"),
            "{text}"
        );
    }
    is_well(&served);
}

/// Reads one reply of a connection that is kept: its head, and what that says is to come.
fn read_kept(stream: &mut impl Read) -> String {
    let (mut text, mut byte) = (String::new(), [0]);
    while !text.ends_with("\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        text.push(byte[0].into());
    }
    let lower = text.to_lowercase();
    let (_, length) = lower.split_once("content-length: ").unwrap();
    let length = length.lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    text + &String::from_utf8(body).unwrap()
}

#[test]
fn one_connection_too_many_is_told_so() {
    let served = Served::start(&[("MCP_FORGE_SERVER_MAX_CONNECTIONS", "4")]);
    let mut kept: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = served.connect();
            stream
                .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
            // Answered, so it has its place.
            read_kept(&mut stream);
            stream
        })
        .collect();
    let mut stream = served.connect();
    let reply = read_reply(&mut stream);
    assert_eq!(
        (reply.status, reply.header("retry-after")),
        (503, Some("1"))
    );
    let freed = kept.pop().unwrap();
    freed.shutdown(Shutdown::Both).unwrap();
    drop(freed);
    let deadline = std::time::Instant::now() + super::served::PATIENCE;
    loop {
        let mut stream = served.connect();
        let _ = stream
            .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        if read_reply(&mut stream).status == 200 {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "its place was never free"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn handshakes_that_are_left_behind_are_bounded() {
    let served = Served::start(&[("MCP_FORGE_SERVER_REQUESTS_PER_MINUTE", "1000000")]);
    let mut stream = served.connect();
    let one = served.bytes(
        "POST /mcp",
        &[
            &format!("Authorization: Bearer {}", token("ada")),
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
        ],
        &initialize("2025-11-25"),
    );
    let one = String::from_utf8(one)
        .unwrap()
        .replace("Connection: close\r\n", "");
    let memory = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", served.child.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let mut greet = |times: usize| {
        for _ in 0..times {
            stream.write_all(one.as_bytes()).unwrap();
            let mut seen = Vec::new();
            let mut buffer = [0; 4096];
            while !seen.ends_with(b"0\r\n\r\n") {
                let read = stream.read(&mut buffer).unwrap();
                assert_ne!(read, 0);
                seen.extend_from_slice(&buffer[..read]);
            }
        }
    };
    // Many times as many as are kept, until the allocator has what it wants; then as many again.
    greet(4000);
    let before = memory();
    greet(6000);
    let grown = memory().saturating_sub(before);
    assert!(grown < 96 << 10, "{grown} kB more");
    is_well(&served);
}
