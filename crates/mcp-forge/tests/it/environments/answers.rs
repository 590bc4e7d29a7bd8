//! Row J13: whatever an index answers, a build ends in time, with a sentence, and reaches nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use mcp_forge::{config::IndexUrl, environments::EnvironmentsError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{
    hostile::{assert_clean, assert_no_trees, make_wheels},
    place::Place,
};

/// What a build may take that comes to its end: `uv` asks five times again, and waits up to 31 s between.
const TIME: Duration = Duration::from_mins(2);

/// What one may take that does not.
const SHORT: Duration = Duration::from_secs(15);

/// Bytes of an environment, of which the gateway passes on twice as many.
const MOST_BYTES: u64 = 8 << 20;

/// A host that counts who comes, and does this with the path that is asked for.
struct Host {
    port: u16,
    came: Arc<AtomicUsize>,
}

impl Host {
    async fn start<F>(answer: impl Fn(TcpStream, String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let came = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&came);
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let answer = Arc::clone(&answer);
                tokio::spawn(async move {
                    let path = asked_for(&mut stream).await;
                    answer(stream, path).await;
                });
            }
        });
        Self { port, came }
    }

    /// One that always says the same.
    async fn saying(answer: impl Into<Vec<u8>>) -> Self {
        let answer: Vec<u8> = answer.into();
        Self::start(move |mut stream, _| {
            let answer = answer.clone();
            async move {
                stream.write_all(&answer).await.ok();
            }
        })
        .await
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::Relaxed)
    }

    fn place(&self, time: Duration) -> Place {
        let address = format!("http://127.0.0.1:{}/simple", self.port);
        Place::new(|config| {
            config.environments.index = IndexUrl::parse(&address).unwrap();
            config.environments.file_hosts = Vec::new();
            config.environments.max_build_time = time;
            config.environments.max_bytes = MOST_BYTES;
        })
    }
}

/// The path in a request's head.
async fn asked_for(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(read) if read > 0 && head.len() < 1 << 16 => head.extend(&buffer[..read]),
            _ => break,
        }
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or_default();
    path.to_owned()
}

fn page(text: &str) -> Vec<u8> {
    let length = text.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}").into_bytes()
}

fn redirect(to: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

/// Builds from it: the error, which is one that people can read and that tells nothing of this machine.
async fn refused(host: &Host, what: &str, time: Duration) -> EnvironmentsError {
    let place = host.place(time);
    let began = Instant::now();
    let error = place.build("e", &["helper"]).await.unwrap_err();
    // It may take as long again to end what it began.
    assert!(began.elapsed() < time * 2, "{what}: {:?}", began.elapsed());
    assert!(host.came() > 0, "{what}: it was not asked");
    let said = error.to_string();
    assert!(
        said.len() < 4_000 && !said.chars().any(char::is_control),
        "{what}: {said}"
    );
    for secret in ["/build", place.directory.path().to_str().unwrap(), "root:"] {
        assert!(!said.contains(secret), "{what}: {said}");
    }
    assert_no_trees(&place, what);
    assert_clean(&place, what);
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_answers_badly_ends_a_build_with_a_sentence() {
    let bad = [
        ("500", b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()),
        ("403", b"HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()),
        ("nothing at all", Vec::new()),
        ("bytes that are no HTTP", vec![0xFF; 4096]),
        ("half a page", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9999\r\n\r\n<a".to_vec()),
        ("a page that is no page", page("<a href=\"\u{1b}[31m\0../../../etc/passwd\">helper-1.0-py3-none-any.whl</a><")),
        ("a redirect to itself", redirect("/simple/helper/")),
        ("JSON that is none", b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.pypi.simple.v1+json\r\nContent-Length: 5\r\nConnection: close\r\n\r\n{\"a\":".to_vec()),
    ];
    for (what, answer) in bad {
        let host = Host::saying(answer).await;
        let error = refused(&host, what, TIME).await;
        assert!(
            matches!(
                error,
                EnvironmentsError::Resolve(_) | EnvironmentsError::TimedOut(_)
            ),
            "{what}: {error}"
        );
    }
    // With TLS, which nobody speaks there.
    let host = Host::saying("HTTP/1.1 400 No\r\n\r\n").await;
    let address = format!("https://localhost:{}/simple", host.port);
    let place = Place::new(|config| {
        config.environments.index = IndexUrl::parse(&address).unwrap();
        config.environments.max_build_time = TIME;
    });
    let error = place.build("e", &["helper"]).await.unwrap_err();
    assert!(
        matches!(
            error,
            EnvironmentsError::Resolve(_) | EnvironmentsError::TimedOut(_)
        ),
        "{error}"
    );
    assert!(host.came() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_never_ends_is_bounded_in_time_and_bytes() {
    let silent = Host::start(|stream, _| async move {
        let _open = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let error = refused(&silent, "no answer", SHORT).await;
    assert!(matches!(error, EnvironmentsError::TimedOut(15)), "{error}");
    let slow = Host::start(|mut stream, _| async move {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n";
        stream.write_all(head.as_bytes()).await.ok();
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
    let error = refused(&slow, "a byte at a time", SHORT).await;
    assert!(matches!(error, EnvironmentsError::TimedOut(15)), "{error}");
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let endless = Host::start(move |mut stream, _| {
        let counted = Arc::clone(&counted);
        async move {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n";
            stream.write_all(head.as_bytes()).await.ok();
            let line = b"<a href=\"helper-1.0-py3-none-any.whl\">helper-1.0-py3-none-any.whl</a>\n"
                .repeat(500);
            while stream.write_all(&line).await.is_ok() {
                counted.fetch_add(line.len(), Ordering::Relaxed);
            }
        }
    })
    .await;
    // Whichever comes first: its cache has a file that is too large, or too much was passed on.
    let error = refused(&endless, "a page without an end", TIME).await;
    assert!(
        matches!(error, EnvironmentsError::TooLarge { .. })
            || error
                .to_string()
                .contains("more was downloaded than one build may"),
        "{error}"
    );
    // What the kernel's buffers hold comes on top.
    let most = 2 * usize::try_from(MOST_BYTES).unwrap() + (16 << 20);
    assert!(sent.load(Ordering::Relaxed) < most, "{sent:?}");
}

/// The gateway passes on to the index alone: whatever else it names is not reached.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_leads_nowhere_else() {
    let canary = Host::saying(page(
        "<a href=\"helper-1.0-py3-none-any.whl\">helper-1.0-py3-none-any.whl</a>",
    ))
    .await;
    let elsewhere = [
        format!("http://127.0.0.1:{}/simple/helper/", canary.port),
        format!("http://localhost:{}/simple/helper/", canary.port),
        format!("http://[::1]:{}/simple/helper/", canary.port),
        format!("http://2130706433:{}/simple/helper/", canary.port),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://169.254.169.254/helper-1.0-py3-none-any.whl".to_owned(),
        "file:///etc/passwd".to_owned(),
        "file:///etc/helper-1.0-py3-none-any.whl".to_owned(),
        "ftp://127.0.0.1/helper-1.0-py3-none-any.whl".to_owned(),
    ];
    for to in &elsewhere {
        let host = Host::saying(redirect(to)).await;
        refused(&host, &format!("a redirect to {to}"), TIME).await;
        // As the address of a file.
        let file = format!(
            "{}#sha256={}",
            to.replace("/simple/helper/", "/helper-1.0-py3-none-any.whl"),
            "0".repeat(64)
        );
        let text = format!("<a href=\"{file}\">helper-1.0-py3-none-any.whl</a>");
        let host = Host::saying(page(&text)).await;
        refused(&host, &format!("a file at {to}"), TIME).await;
    }
    assert_eq!(canary.came(), 0, "it was reached");
    // The control: it would have been seen.
    refused(&canary, "the canary itself", TIME).await;
}

/// The control of all the above, and what a file must be that it says it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_what_its_index_promised_or_is_not_installed() {
    let directory = tempfile::tempdir().unwrap();
    make_wheels(directory.path(), &["good"]);
    let wheel = std::fs::read(directory.path().join("helper-1.0-py3-none-any.whl")).unwrap();
    let hash = {
        use sha2::Digest as _;
        format!("{:x}", sha2::Sha256::digest(&wheel))
    };
    for (promised, is_true) in [(hash.as_str(), true), (&"0".repeat(64), false)] {
        let (promised, wheel) = (promised.to_owned(), wheel.clone());
        let host = Host::start(move |mut stream, path| {
            let answer = if path == "/simple/helper/" {
                // Within itself an index may redirect.
                redirect("/elsewhere/helper/")
            } else if path == "/elsewhere/helper/" {
                page(&format!("<a href=\"/files/helper-1.0-py3-none-any.whl#sha256={promised}\">helper-1.0-py3-none-any.whl</a>"))
            } else if path.starts_with("/files/") {
                let length = wheel.len();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/zip\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                [head.into_bytes(), wheel.clone()].concat()
            } else {
                b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()
            };
            async move {
                stream.write_all(&answer).await.ok();
            }
        })
        .await;
        if is_true {
            let place = host.place(TIME);
            place.build("e", &["helper"]).await.unwrap();
            assert_eq!(place.run("e", "import helper; helper.value").await, 1);
        } else {
            let error = refused(&host, "another hash", TIME).await.to_string();
            assert!(error.to_lowercase().contains("hash"), "{error}");
        }
    }
}
