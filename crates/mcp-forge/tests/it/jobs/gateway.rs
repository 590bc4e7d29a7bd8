//! The gateway between hostile ends: builds that ask for what they may not, indexes that do not behave.

use std::{future::Future, sync::Arc, time::Duration};

use mcp_forge::environments::gateway::{Destination, Gateway, GatewayLimits, Traffic};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::bench::{Bench, KEY};

/// A gateway that serves, to one host of the test.
struct Served {
    address: std::net::SocketAddr,
    traffic: Arc<Traffic>,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Deadlines that nobody reaches who only does not get a turn for a while.
fn patient() -> GatewayLimits {
    GatewayLimits {
        connections: 4,
        bytes: 1 << 20,
        head: Duration::from_secs(10),
        connect: Duration::from_secs(10),
        idle: Duration::from_secs(10),
    }
}

/// A deadline for what does not move that a test can wait for.
fn quickly_idle() -> GatewayLimits {
    GatewayLimits {
        idle: Duration::from_millis(500),
        ..patient()
    }
}

impl Served {
    async fn to(port: u16, limits: GatewayLimits) -> Self {
        let destinations = [
            Destination::tls("127.0.0.1", port).unwrap(),
            Destination::plain("localhost", port).unwrap(),
        ];
        let gateway = Gateway::new(destinations, KEY, limits);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            traffic: gateway.traffic(),
            task: tokio::spawn(async move {
                gateway.serve(listener).await;
            }),
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends this, and reads until the end.
    async fn ask(&self, request: &str) -> String {
        let mut client = self.connect().await;
        client.write_all(request.as_bytes()).await.unwrap();
        all(&mut client).await
    }

    /// A tunnel that is open.
    async fn tunnel(&self, port: u16) -> TcpStream {
        let mut client = self.connect().await;
        let request = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 39];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 Connection established\r\n\r\n");
        client
    }
}

/// Until the end, or until the connection is broken off.
async fn all(client: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = async {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = client.read(&mut buffer).await {
            bytes.extend_from_slice(&buffer[..read]);
        }
    };
    timeout(Duration::from_mins(1), read)
        .await
        .expect("the gateway ends what does not move");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A host, which does this with each connection.
async fn host<F>(behaviour: impl Fn(TcpStream) -> F + Send + 'static) -> u16
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(behaviour(stream));
        }
    });
    port
}

/// Reads a request's head, then says this and closes.
async fn says(mut stream: TcpStream, answer: Vec<u8>) {
    let mut head = [0; 4096];
    let _ = stream.read(&mut head).await;
    stream.write_all(&answer).await.ok();
}

async fn never_answers(stream: TcpStream) {
    let _open = stream;
    std::future::pending::<()>().await;
}

async fn echoes(mut stream: TcpStream) {
    let (mut from, mut to) = stream.split();
    tokio::io::copy(&mut from, &mut to).await.ok();
    to.shutdown().await.ok();
}

async fn sends_without_end(mut stream: TcpStream) {
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
        .await
        .ok();
    while stream.write_all(&[b'x'; 8 << 10]).await.is_ok() {}
}

#[tokio::test]
async fn only_what_is_listed_is_reached_in_the_way_it_is_listed() {
    let port = host(|stream| says(stream, b"HTTP/1.1 200 OK\r\n\r\nreached".to_vec())).await;
    let served = Served::to(port, patient()).await;
    let plain = format!("GET http://LOCALHOST.:{port}/x HTTP/1.1\r\n\r\n");
    assert!(served.ask(&plain).await.ends_with("reached"));
    let refused = [
        // The other way of each, another port, other names of the same address.
        (
            format!("GET http://127.0.0.1:{port}/ HTTP/1.1"),
            format!("127.0.0.1:{port}"),
        ),
        (
            format!("CONNECT localhost:{port} HTTP/1.1"),
            format!("localhost:{port}"),
        ),
        (
            "CONNECT 127.0.0.1:1 HTTP/1.1".to_owned(),
            "127.0.0.1:1".to_owned(),
        ),
        (
            format!("CONNECT [::ffff:127.0.0.1]:{port} HTTP/1.1"),
            format!("[::ffff:127.0.0.1]:{port}"),
        ),
        (
            format!("CONNECT 2130706433:{port} HTTP/1.1"),
            format!("2130706433:{port}"),
        ),
        (
            format!("CONNECT 127.1:{port} HTTP/1.1"),
            format!("127.1:{port}"),
        ),
        (
            "GET http://169.254.169.254/latest/ HTTP/1.1".to_owned(),
            "169.254.169.254:80".to_owned(),
        ),
    ];
    for (request, target) in refused {
        let answer = served.ask(&format!("{request}\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{request}: {answer}");
        assert!(answer.contains(&target) && answer.contains(KEY), "{answer}");
        assert!(served.traffic.refused().contains(&target));
    }
    for request in [
        format!("CONNECT me@127.0.0.1:{port} HTTP/1.1"),
        "CONNECT 127.0.0.1:0 HTTP/1.1".to_owned(),
        format!("POST http://localhost:{port}/ HTTP/1.1"),
        "\u{1}garbage".to_owned(),
    ] {
        let answer = served.ask(&format!("{request}\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request}: {answer}");
    }
    let huge = format!(
        "CONNECT 127.0.0.1:{port} HTTP/1.1\r\nx: {}\r\n\r\n",
        "y".repeat(1 << 20)
    );
    let mut client = served.connect().await;
    client.write_all(huge.as_bytes()).await.ok();
    assert!(!all(&mut client).await.contains("200"));
    // It still serves.
    assert!(served.ask(&plain).await.ends_with("reached"));
}

#[tokio::test]
async fn a_redirect_to_an_address_within_leads_nowhere() {
    let inside = host(|stream| says(stream, b"HTTP/1.1 200 OK\r\n\r\nmetadata".to_vec())).await;
    let location = format!("http://127.0.0.1:{inside}/latest");
    let answer = format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n");
    let port = host(move |stream| says(stream, answer.clone().into_bytes())).await;
    let served = Served::to(port, patient()).await;
    let first = served
        .ask(&format!("GET http://localhost:{port}/ HTTP/1.1\r\n\r\n"))
        .await;
    assert!(first.contains(&location), "{first}");
    let followed = served
        .ask(&format!("GET {location} HTTP/1.1\r\n\r\n"))
        .await;
    assert!(followed.starts_with("HTTP/1.1 403 "), "{followed}");
}

#[tokio::test]
async fn a_tunnel_carries_early_bytes_and_each_end_may_finish_first() {
    let port = host(echoes).await;
    let served = Served::to(port, patient()).await;
    let mut client = served.connect().await;
    let request = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nearly ");
    client.write_all(request.as_bytes()).await.unwrap();
    client.write_all(b"late").await.unwrap();
    client.shutdown().await.unwrap();
    let answer = all(&mut client).await;
    assert!(answer.ends_with("\r\n\r\nearly late"), "{answer}");
    assert_eq!(served.traffic.bytes(), 2 * "early late".len() as u64);
    // The host is the first to finish.
    let port = host(|stream| says(stream, b"bye".to_vec())).await;
    let served = Served::to(port, patient()).await;
    let mut client = served.tunnel(port).await;
    client.write_all(b"hello").await.unwrap();
    assert_eq!(all(&mut client).await, "bye");
}

#[tokio::test]
async fn a_client_that_dawdles_is_let_go_and_others_get_its_place() {
    let port = host(echoes).await;
    let limits = GatewayLimits {
        head: Duration::from_millis(300),
        ..patient()
    };
    let served = Served::to(port, limits).await;
    // All places are taken, by clients that say nothing, or a byte at a time.
    let mut slow = Vec::new();
    for _ in 0..4 {
        slow.push(served.connect().await);
    }
    let dripping = tokio::spawn({
        let mut client = slow.pop().unwrap();
        async move {
            for byte in b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nx: ".iter().cycle() {
                if client.write_all(&[*byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let mut client = served.tunnel(port).await;
    client.write_all(b"x").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'x');
    assert!(all(&mut slow[0]).await.starts_with("HTTP/1.1 408 "));
    timeout(Duration::from_mins(1), dripping)
        .await
        .expect("the one that drips is let go too")
        .unwrap();
}

#[tokio::test]
async fn connections_at_once_are_bounded() {
    let port = host(echoes).await;
    let limits = GatewayLimits {
        idle: Duration::from_mins(1),
        ..patient()
    };
    let served = Served::to(port, limits).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(served.tunnel(port).await);
    }
    let fifth = served.tunnel(port);
    tokio::pin!(fifth);
    assert!(
        timeout(Duration::from_millis(300), &mut fifth)
            .await
            .is_err()
    );
    open.pop();
    timeout(Duration::from_mins(1), fifth)
        .await
        .expect("a place became free");
}

#[tokio::test]
async fn hosts_that_do_not_behave_end_in_time() {
    // Silent, in both ways of asking.
    let port = host(never_answers).await;
    let served = Served::to(port, quickly_idle()).await;
    let start = Instant::now();
    let plain = format!("GET http://localhost:{port}/ HTTP/1.1\r\n\r\n");
    assert_eq!(served.ask(&plain).await, "");
    assert_eq!(all(&mut served.tunnel(port).await).await, "");
    assert!(start.elapsed() >= 2 * quickly_idle().idle);
    // Without end: as many bytes as it may, and then nothing for anybody.
    let port = host(sends_without_end).await;
    let served = Served::to(port, patient()).await;
    let plain = format!("GET http://localhost:{port}/ HTTP/1.1\r\n\r\n");
    let answer = served.ask(&plain).await;
    assert!(answer.len() > 1 << 19 && answer.len() <= 1 << 20);
    assert!(served.traffic.is_exhausted() && served.traffic.bytes() <= 1 << 20);
    assert!(served.ask(&plain).await.starts_with("HTTP/1.1 403 "));
    // Garbage and half an answer are the client's to judge, and over at once.
    for (answer, length) in [
        (vec![0xFF; 300], 300),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".to_vec(),
            42,
        ),
    ] {
        let port = host(move |stream| says(stream, answer.clone())).await;
        let served = Served::to(port, patient()).await;
        let plain = format!("GET http://localhost:{port}/ HTTP/1.1\r\n\r\n");
        served.ask(&plain).await;
        let sent = format!("GET / HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
        assert_eq!(served.traffic.bytes(), length + sent.len() as u64);
    }
    // Nobody listens.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let served = Served::to(port, patient()).await;
    let answer = served
        .ask(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n"))
        .await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let unreachable = served.traffic.unreachable();
    assert!(unreachable[&format!("127.0.0.1:{port}")].contains("refused"));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_let_go() {
    let let_go = Arc::new(tokio::sync::Notify::new());
    let port = host({
        let let_go = Arc::clone(&let_go);
        move |stream| {
            let let_go = Arc::clone(&let_go);
            async move {
                sends_without_end(stream).await;
                let_go.notify_one();
            }
        }
    })
    .await;
    let limits = GatewayLimits {
        bytes: 1 << 40,
        ..quickly_idle()
    };
    let served = Served::to(port, limits).await;
    let mut client = served.tunnel(port).await;
    // Buffers fill, then nothing moves.
    timeout(Duration::from_mins(1), let_go.notified())
        .await
        .expect("the gateway ends what does not move");
    let read = all(&mut client).await;
    assert!(read.len() as u64 <= served.traffic.bytes());
}

#[tokio::test]
async fn uv_ends_whatever_an_index_does() {
    let bench = Bench::new();
    let build = bench.build("build");
    let python = bench.jobs.python(None).await.unwrap();
    let ports = [
        host(never_answers).await,
        host(sends_without_end).await,
        host(|stream| says(stream, vec![0xFF; 4096])).await,
        host(|stream| says(stream, b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 999\r\n\r\n<a".to_vec())).await,
        host(|stream| says(stream, b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n".to_vec())).await,
    ];
    for port in ports {
        let index = format!("http://localhost:{port}/simple");
        let arguments = [
            "pip",
            "install",
            "six",
            "--target",
            "/build/out",
            "--python",
            &python.program,
            "--default-index",
            &index,
            "--no-cache",
        ];
        let gateway = Gateway::new(
            [Destination::plain("localhost", port).unwrap()],
            KEY,
            quickly_idle(),
        );
        let traffic = gateway.traffic();
        let mut spec = bench.uv(&build, &arguments);
        // It is the same each time that it asks.
        let is_retries = |(name, _): &&mut (String, String)| name == "UV_HTTP_RETRIES";
        let retries = spec.variables.iter_mut().find(is_retries);
        retries.unwrap().1 = "0".to_owned();
        let done = bench.run(spec, Some(gateway)).await;
        assert!(
            matches!(
                done.ending.cause,
                mcp_forge::engine::native::job::JobEnd::Exited(1 | 2)
            ),
            "{done:?}"
        );
        assert!(
            traffic.bytes() > 0 && traffic.bytes() <= 1 << 20,
            "{done:?}"
        );
    }
}
