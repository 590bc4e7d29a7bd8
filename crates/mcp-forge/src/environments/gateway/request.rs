//! What a build job asks the gateway for: the one head of a connection, bounded, then parsed.

use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes of a request's head, at most.
const HEAD_BYTES: usize = 16 << 10;

/// Lines of a head, at most.
const MOST_HEADERS: usize = 64;

/// How a destination is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// Bytes both ways, after `CONNECT`.
    Tunnel,
    /// One `GET` or `HEAD`.
    Plain,
}

/// A request that is well-formed: nothing is known of whether it is allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) way: Way,
    /// Normalised by [`host`].
    pub(super) host: String,
    pub(super) port: u16,
    /// For [`Way::Plain`]: the head to send, made anew.
    pub(super) forwarded: Vec<u8>,
}

impl Request {
    /// `host:port`, for people.
    pub(super) fn target(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// No head came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeadError {
    /// The client left.
    Gone,
    /// What came is none; why.
    Malformed(&'static str),
}

/// Reads up to the end of a head, and perhaps some bytes after it.
pub(super) async fn read_head(client: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, HeadError> {
    let mut bytes = Vec::with_capacity(1 << 10);
    loop {
        let before = bytes.len();
        let room = HEAD_BYTES.saturating_sub(before) as u64;
        if room == 0 {
            return Err(HeadError::Malformed(
                "the request's head is larger than 16 KiB",
            ));
        }
        match client.take(room).read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return Err(HeadError::Gone),
            Ok(_) => {}
        }
        // The end may lie across two reads.
        let from = before.saturating_sub(3);
        if bytes[from..].windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(bytes);
        }
        if bytes
            .iter()
            .take(8)
            .any(|byte| !byte.is_ascii_graphic() && *byte != b' ')
        {
            return Err(HeadError::Malformed("this is not HTTP"));
        }
    }
}

/// Parses a head, and gives what came after it.
pub(super) fn parse(bytes: &[u8]) -> Result<(Request, &[u8]), &'static str> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) | Err(_) => {
            return Err("the request is not well-formed HTTP");
        }
    };
    let (Some(method), Some(target)) = (head.method, head.path) else {
        return Err("the request is not well-formed HTTP");
    };
    let rest = &bytes[length..];
    let request = match method {
        "CONNECT" => {
            let (host, port) = authority(target, None)?;
            Request {
                way: Way::Tunnel,
                host,
                port,
                forwarded: Vec::new(),
            }
        }
        "GET" | "HEAD" => plain(method, target, head.headers)?,
        _ => return Err("only CONNECT, GET and HEAD are answered here"),
    };
    Ok((request, rest))
}

/// An absolute address, and the head that its host gets: ours, with the client's harmless lines.
fn plain(
    method: &str,
    target: &str,
    headers: &[httparse::Header<'_>],
) -> Result<Request, &'static str> {
    const OURS: [&str; 10] = [
        "host",
        "connection",
        "proxy-connection",
        "proxy-authorization",
        "proxy-authenticate",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
    ];
    let address = target
        .get(..7)
        .filter(|scheme| scheme.eq_ignore_ascii_case("http://"))
        .and_then(|_| target.get(7..))
        .ok_or("GET and HEAD need an absolute http:// address here")?;
    let end = address.find(['/', '?', '#']).unwrap_or(address.len());
    let (named, path) = address.split_at(end);
    let path = path.split('#').next().unwrap_or_default();
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the address has characters that must be escaped");
    }
    let (host, port) = authority(named, Some(80))?;
    let mut request = Request {
        way: Way::Plain,
        host,
        port,
        forwarded: Vec::new(),
    };
    let slash = if path.starts_with('/') { "" } else { "/" };
    let target = request.target();
    let mut head = format!("{method} {slash}{path} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
    for header in headers {
        let name = header.name.to_ascii_lowercase();
        let has_body =
            name == "transfer-encoding" || name == "content-length" && header.value != b"0";
        if has_body {
            return Err("a GET or HEAD with a body is not passed on");
        }
        if name == "content-length" || OURS.contains(&name.as_str()) {
            continue;
        }
        head.extend_from_slice(name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(header.value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    request.forwarded = head;
    Ok(request)
}

/// `host:port`, the host perhaps an IPv6 address in brackets.
fn authority(text: &str, default: Option<u16>) -> Result<(String, u16), &'static str> {
    const HOST: &str = "the address has no well-formed host; user information is not taken";
    const PORT: &str = "the address has no well-formed port";
    let (named, after) = if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']').ok_or(HOST)?;
        if inside.parse::<Ipv6Addr>().is_err() {
            return Err(HOST);
        }
        (inside, after)
    } else {
        text.split_at(text.find(':').unwrap_or(text.len()))
    };
    let port = match after.strip_prefix(':') {
        Some(digits) => port(digits).ok_or(PORT)?,
        None if after.is_empty() => default.ok_or(PORT)?,
        None => return Err(HOST),
    };
    Ok((host(named).ok_or(HOST)?, port))
}

/// Digits alone: the standard parser takes a sign too.
fn port(digits: &str) -> Option<u16> {
    let are_digits =
        (1..=5).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    are_digits
        .then(|| digits.parse().ok())
        .flatten()
        .filter(|port| *port != 0)
}

/// The one spelling of a host: lower-case, without the dot at the end; addresses as they print.
pub(super) fn host(text: &str) -> Option<String> {
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        return Some(address.to_string());
    }
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return Some(address.to_string());
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    (name.len() <= 253 && name.split('.').all(is_label)).then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &str) -> Result<(Way, String), &'static str> {
        let head = format!("{head}\r\n\r\n");
        parse(head.as_bytes()).map(|(request, _)| (request.way, request.target()))
    }

    #[test]
    fn a_tunnel_has_one_spelling_of_its_end() {
        for spelling in [
            "pypi.org:443",
            "PyPI.ORG:443",
            "pypi.org.:443",
            "pypi.org:0443",
        ] {
            let target = parsed(&format!("CONNECT {spelling} HTTP/1.1"));
            assert_eq!(target, Ok((Way::Tunnel, "pypi.org:443".to_owned())));
        }
        for (spelling, target) in [
            ("[::1]:443", "[::1]:443"),
            ("[0:0:0:0:0:0:0:1]:443", "[::1]:443"),
            ("[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:1"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            // Names, as far as this proxy goes: none of them is listed.
            ("2130706433:80", "2130706433:80"),
            ("0x7f.1:80", "0x7f.1:80"),
        ] {
            let parsed = parsed(&format!("CONNECT {spelling} HTTP/1.1"));
            assert_eq!(parsed, Ok((Way::Tunnel, target.to_owned())), "{spelling}");
        }
    }

    #[test]
    fn what_is_no_plain_host_and_port_is_refused() {
        let long = format!("{}.org:443", "a".repeat(64));
        for target in [
            "pypi.org",
            "pypi.org:",
            "pypi.org:0",
            "pypi.org:00000",
            "pypi.org:65536",
            "pypi.org:+443",
            "pypi.org:-1",
            "pypi.org:443:443",
            "pypi.org:443@evil.example:443",
            "evil@pypi.org:443",
            "evil:secret@pypi.org:443",
            "pypi.org@evil.example:443",
            "http://pypi.org:443",
            "pypi.org/x:443",
            "/pypi.org:443",
            ":443",
            ".:443",
            "..:443",
            "pypi..org:443",
            "pypi.org..:443",
            ".pypi.org:443",
            "pypi.org\\x:443",
            "pypi.org%2e:443",
            "pypi.org%00:443",
            "*.org:443",
            "[::1:443",
            "[::1]443",
            "[::1]",
            "[pypi.org]:443",
            "[fe80::1%25eth0]:443",
            "::1:443",
            "p\u{443}pi.org:443",
            &long,
        ] {
            let answer = parsed(&format!("CONNECT {target} HTTP/1.1"));
            assert!(answer.is_err(), "{target}: {answer:?}");
        }
    }

    #[test]
    fn other_methods_and_broken_heads_are_refused() {
        for head in [
            "POST http://pypi.org/ HTTP/1.1",
            "PUT http://pypi.org/ HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            "connect pypi.org:443 HTTP/1.1",
            "GET / HTTP/1.1",
            "GET https://pypi.org/ HTTP/1.1",
            "GET ftp://pypi.org/ HTTP/1.1",
            "GET file:///etc/passwd HTTP/1.1",
            "GET //pypi.org/ HTTP/1.1",
            "GET http:///etc/passwd HTTP/1.1",
            "GET http://user@pypi.org/ HTTP/1.1",
            "GET http://pypi.org:80@evil.example/ HTTP/1.1",
            "GET http://pypi.org\\@evil.example/ HTTP/1.1",
            "GET http://pypi.org/ HTTP/1.1\r\nContent-Length: 5",
            "GET http://pypi.org/ HTTP/1.1\r\nTransfer-Encoding: chunked",
            "GET http://pypi.org/ HTTP/1.1\r\nX : y",
            "GET http://pypi.org/\u{e9} HTTP/1.1",
            "GET http://pypi.org/",
            "CONNECT pypi.org:443 HTTP/3.0",
            "CONNECT pypi.org:443",
            "\u{16}\u{3}\u{1}",
            "",
        ] {
            assert!(parsed(head).is_err(), "{head}: {:?}", parsed(head));
        }
        let many = format!(
            "CONNECT a:1 HTTP/1.1{}",
            "\r\na: b".repeat(MOST_HEADERS + 1)
        );
        assert!(parsed(&many).is_err());
    }

    #[test]
    fn a_plain_request_is_made_anew() {
        let head = b"GET HTTP://Files.Example.:8080/simple/six/?x=1#frag HTTP/1.1\r\nHost: evil.example\r\n\
            User-Agent: uv\r\nProxy-Authorization: Basic eA==\r\nConnection: keep-alive, x\r\n\
            Range: bytes=0-1\r\nContent-Length: 0\r\n\r\nGET /second HTTP/1.1\r\n\r\n";
        let (request, rest) = parse(head).unwrap();
        assert_eq!(
            String::from_utf8(request.forwarded).unwrap(),
            "GET /simple/six/?x=1 HTTP/1.1\r\nHost: files.example:8080\r\nuser-agent: uv\r\n\
             range: bytes=0-1\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(rest, b"GET /second HTTP/1.1\r\n\r\n");
        let (request, _) = parse(b"HEAD http://a?q HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(request.target(), "a:80");
        assert!(
            request
                .forwarded
                .starts_with(b"HEAD /?q HTTP/1.1\r\nHost: a:80\r\n")
        );
    }

    #[tokio::test]
    async fn a_head_is_read_across_pieces_and_bounded() {
        let pieces = tokio_util::io::StreamReader::new(futures_util::stream::iter(
            ["CONNECT a:1 HTTP/1.1\r", "\n\r", "\nearly"]
                .map(|piece| Ok::<_, std::io::Error>(bytes::Bytes::from(piece))),
        ));
        let mut pieces = Box::pin(pieces);
        let head = read_head(&mut pieces).await.unwrap();
        assert_eq!(parse(&head).unwrap().1, b"early");
        let endless = format!("CONNECT a:1 HTTP/1.1\r\nx: {}", "y".repeat(HEAD_BYTES));
        let error = read_head(&mut endless.as_bytes()).await.unwrap_err();
        assert!(matches!(error, HeadError::Malformed(reason) if reason.contains("16 KiB")));
        let cut = read_head(&mut &b"CONNECT a:1 HTTP/1.1\r\n"[..]).await;
        assert_eq!(cut, Err(HeadError::Gone));
        // The beginning of a TLS handshake, of somebody who takes this for the host itself.
        let tls = read_head(&mut &b"\x16\x03\x01\x02\x00"[..]).await;
        assert_eq!(tls, Err(HeadError::Malformed("this is not HTTP")));
    }
}
