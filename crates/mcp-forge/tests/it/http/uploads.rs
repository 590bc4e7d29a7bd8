//! Files into sessions and out of them: rows H1, H3 and H7, whose they are, and what they may take.

use std::{fs, io::Write, thread};

use serde_json::json;

use super::{
    rest::{ask, get},
    served::{Reply, Served, read_reply, token},
};

const FILES: &str = "/api/v1/sessions/s/files";

/// Sends a file as it is.
fn put(served: &Served, who: &str, place: &str, more: &[&str], body: &str) -> Reply {
    let authorization = format!("Authorization: Bearer {}", token(who));
    let mut headers = vec![authorization.as_str()];
    headers.extend(more);
    if body.is_empty() {
        headers.push("Content-Length: 0");
    }
    served.request(&format!("PUT {place}"), &headers, body)
}

fn delete(served: &Served, who: &str, place: &str) -> Reply {
    ask(served, who, &format!("DELETE {place}"), &[], &json!(null))
}

/// What code in the session makes of it.
fn value(served: &Served, who: &str, code: &str) -> serde_json::Value {
    let body = json!({"code": code, "session_id": "s"});
    let reply = ask(served, who, "POST /api/v1/execute", &[], &body);
    let done = reply.json();
    assert_eq!(done["outcome"], "completed", "{done}");
    done["result"].clone()
}

#[test]
fn a_file_goes_in_is_read_by_code_and_comes_out() {
    let served = Served::start(&[]);
    // The session need not be there.
    let place = format!("{FILES}/data/in%20%25.csv");
    let made = put(&served, "ada", &place, &["Content-Type: text/csv"], "a,b\n");
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(made.header("location"), Some(place.as_str()));
    assert_eq!(
        (&made.json()["path"], &made.json()["size"]),
        (&json!("data/in %.csv"), &json!(4))
    );
    let read = "open('/workspace/data/in %.csv').read()";
    assert_eq!(value(&served, "ada", read), "a,b\n");
    assert_eq!(get(&served, "ada", &place).body, "a,b\n");
    let listed = get(&served, "ada", FILES).json();
    assert_eq!(listed["files"].as_array().unwrap().len(), 1, "{listed}");

    // Nothing is replaced unless that is said.
    let again = put(&served, "ada", &place, &[], "other");
    assert_eq!(again.status, 409, "{again:?}");
    assert!(again.body.contains("overwrite=true"), "{again:?}");
    assert_eq!(value(&served, "ada", read), "a,b\n");
    let replaced = put(
        &served,
        "ada",
        &format!("{place}?overwrite=true"),
        &[],
        "new",
    );
    assert_eq!(replaced.status, 200, "{replaced:?}");
    assert_eq!(value(&served, "ada", read), "new");
    assert_eq!(get(&served, "ada", &place).body, "new");

    // For others there is neither the session nor the file.
    assert_eq!(get(&served, "bob", &place).status, 404);
    assert_eq!(delete(&served, "bob", &place).status, 404);
    assert_eq!(put(&served, "nobody", &place, &[], "x").status, 403);
    assert_eq!(value(&served, "ada", read), "new");

    assert_eq!(delete(&served, "ada", &place).status, 204);
    assert_eq!(delete(&served, "ada", &place).status, 404);
    assert_eq!(get(&served, "ada", &place).status, 404);
    assert_eq!(
        value(&served, "ada", "import os; os.listdir('/workspace/data')"),
        json!([])
    );
}

#[test]
fn hostile_names_are_refused_and_nothing_is_left() {
    let served = Served::start(&[]);
    assert_eq!(
        put(&served, "ada", &format!("{FILES}/kept"), &[], "kept").status,
        201
    );
    let long = format!("{FILES}/{}", "y".repeat(300));
    let deep = format!("{FILES}/{}x", "d/".repeat(40));
    let wide = format!("{FILES}/{}", "x/y".repeat(600));
    for name in [
        "..",
        "../x",
        "a/../../x",
        "a/..",
        "a//b",
        "a/",
        ".",
        "./a",
        "/etc/passwd",
        "%2e%2e",
        "%2e%2e%2fx",
        "..%2f..%2fetc%2fpasswd",
        "a%00b",
        "..%00",
        "%2Fetc%2Fpasswd",
        "%ff%fe",
        "%c0%ae%c0%ae/x",
    ] {
        let place = format!("{FILES}/{name}");
        let refused = put(&served, "ada", &place, &[], "x");
        assert_eq!(refused.status, 400, "{name}: {refused:?}");
        assert_eq!(delete(&served, "ada", &place).status, 400, "{name}");
    }
    for place in [&long, &deep, &wide] {
        assert!(
            [400, 404, 414].contains(&put(&served, "ada", place, &[], "x").status),
            "{place}"
        );
    }
    // Decoded once, these are names as any other.
    for name in [
        "%252e%252e",
        "a%5C..%5Cb",
        "%7E",
        "CON",
        "-rf",
        "a%20",
        "%22%27%3B$(x)",
        "Kept",
    ] {
        assert_eq!(
            put(&served, "ada", &format!("{FILES}/{name}"), &[], "x").status,
            201,
            "{name}"
        );
    }
    let names = value(
        &served,
        "ada",
        "import os; sorted(os.listdir('/workspace'))",
    );
    assert_eq!(
        names,
        json!([
            "\"';$(x)", "%2e%2e", "-rf", "CON", "Kept", "a ", "a\\..\\b", "kept", "~"
        ])
    );
    for session in ["..", "%2e%2e", "a%2Fb", "s%00"] {
        let place = format!("/api/v1/sessions/{session}/files/x");
        assert_eq!(
            put(&served, "ada", &place, &[], "x").status,
            400,
            "{session}"
        );
    }
}

#[test]
fn links_devices_and_directories_of_the_session_are_not_written_through() {
    let served = Served::start(&[]);
    let code = "import os, tempfile
os.makedirs('directory/below')
os.symlink('/etc', 'out'); os.symlink('/etc/passwd', 'link'); os.symlink('gone', 'dangling')
os.mkfifo('fifo'); open('target', 'w').write('as it was'); os.symlink('target', 'alias')
before = open('/etc/passwd').read() if os.path.exists('/etc/passwd') else ''";
    value(&served, "ada", code);
    for (name, status) in [
        ("directory", 409),
        ("out/new", 409),
        ("link", 409),
        ("dangling", 409),
        ("fifo", 409),
        ("alias", 409),
        ("target/below", 409),
    ] {
        let refused = put(&served, "ada", &format!("{FILES}/{name}"), &[], "x");
        assert_eq!(refused.status, status, "{name}: {refused:?}");
        assert_eq!(
            delete(&served, "ada", &format!("{FILES}/{name}")).status,
            404,
            "{name}"
        );
    }
    // To replace a link is to replace the link.
    let place = format!("{FILES}/alias?overwrite=true");
    put(&served, "ada", &place, &[], "new");
    let now = value(
        &served,
        "ada",
        "[open('target').read(), os.path.islink('alias'), sorted(os.listdir())]",
    );
    assert_eq!(now[0], "as it was");
    assert_eq!(now[1], false);
    assert_eq!(
        now[2],
        json!([
            "alias",
            "dangling",
            "directory",
            "fifo",
            "link",
            "out",
            "target"
        ])
    );
    assert_eq!(
        put(
            &served,
            "ada",
            &format!("{FILES}/directory?overwrite=true"),
            &[],
            "x"
        )
        .status,
        409
    );
}

#[test]
fn sizes_are_held_to_the_byte_and_quotas_hold() {
    let served = Served::start(&[
        ("MCP_FORGE_VOLUMES_SESSION_QUOTA", "100000"),
        ("MCP_FORGE_SESSIONS_MAX_FILES", "5"),
    ]);
    let of = |bytes: usize| "x".repeat(bytes);
    let place = |name: &str| format!("{FILES}/{name}");
    for (name, bytes, status) in [
        ("empty", 0, 201),
        ("less", 99_999, 201),
        ("most", 100_000, 413),
    ] {
        let reply = put(&served, "ada", &place(name), &[], &of(bytes));
        assert_eq!(reply.status, status, "{bytes}: {reply:?}");
    }
    assert_eq!(delete(&served, "ada", &place("less")).status, 204);
    assert_eq!(
        put(&served, "ada", &place("most"), &[], &of(100_000)).status,
        201
    );
    let over = put(
        &served,
        "ada",
        &place("most?overwrite=true"),
        &[],
        &of(100_001),
    );
    assert_eq!(over.status, 413, "{over:?}");
    assert_eq!(put(&served, "ada", &place("more"), &[], "x").status, 413);
    // In place of itself there is room.
    assert_eq!(
        put(
            &served,
            "ada",
            &place("most?overwrite=true"),
            &[],
            &of(90_000)
        )
        .status,
        200
    );
    for name in ["a", "b", "c"] {
        assert_eq!(put(&served, "ada", &place(name), &[], name).status, 201);
    }
    let many = put(&served, "ada", &place("d"), &[], "x");
    assert_eq!(many.status, 413, "{many:?}");
    assert!(many.body.contains("5 files"), "{many:?}");

    // Without a length, with a wrong one, and with one that is a lie.
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let raw = |headers: &str, body: &str| {
        let line = format!(
            "PUT {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            place("c?overwrite=true"),
            served.address
        );
        served.raw(format!("{line}{authorization}\r\n{headers}\r\n\r\n{body}").as_bytes())
    };
    assert_eq!(
        raw("Transfer-Encoding: chunked", "2\r\nab\r\n0\r\n\r\n").status,
        200
    );
    let chunk = of(60_000);
    let chunks = format!("ea60\r\n{chunk}\r\nea60\r\n{chunk}\r\n0\r\n\r\n");
    assert_eq!(raw("Transfer-Encoding: chunked", &chunks).status, 413);
    assert_eq!(raw("Content-Length: 99999999999", "x").status, 413);
    assert_eq!(raw("Content-Length: -1", "x").status, 400);
    let mut stream = served.connect();
    let begun = format!(
        "PUT {} HTTP/1.1\r\nHost: x\r\n{authorization}\r\nContent-Length: 50\r\n\r\nabc",
        place("c?overwrite=true")
    );
    stream
        .write_all(
            begun
                .replace("Host: x", &format!("Host: {}", served.address))
                .as_bytes(),
        )
        .unwrap();
    drop(stream);
    assert_eq!(value(&served, "ada", "open('c').read()"), "ab");
    for (header, status) in [
        ("Content-Encoding: gzip", 415),
        ("Content-Range: bytes 0-1/2", 400),
        ("If-Match: *", 400),
        ("If-None-Match: *", 400),
    ] {
        assert_eq!(
            put(&served, "ada", &place("c?overwrite=true"), &[header], "x").status,
            status,
            "{header}"
        );
    }
    for query in [
        "?overwrite",
        "?overwrite=1",
        "?overwrite=true&overwrite=true",
        "?x=1",
    ] {
        assert_eq!(
            put(&served, "ada", &place(&format!("c{query}")), &[], "x").status,
            400,
            "{query}"
        );
    }
    // Several parts are a file's bytes like any other.
    let kind = "Content-Type: multipart/form-data; boundary=x";
    let parts = "--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"../../e\"\r\n\r\nhi\r\n--x--\r\n";
    assert_eq!(
        put(&served, "ada", &place("c?overwrite=true"), &[kind], parts).status,
        200
    );
    assert_eq!(
        value(&served, "ada", "len(open('c', 'rb').read())"),
        json!(parts.len())
    );
    assert_eq!(
        value(&served, "ada", "import os; sorted(os.listdir())"),
        json!(["a", "b", "c", "empty", "most"])
    );
    // Nor on the host.
    let incoming = served.directory.path().join("incoming");
    assert_eq!(fs::read_dir(incoming).unwrap().count(), 0);
}

#[test]
fn one_principal_has_few_files_on_their_way_and_others_their_own() {
    let served = Served::start(&[]);
    let begin = |who: &str| {
        let mut stream = served.connect();
        let head = format!(
            "PUT {FILES}/x HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Length: 3\r\n\r\nab",
            served.address,
            token(who)
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let mut waiting: Vec<_> = (0..4).map(|_| begin("ada")).collect();
    let mut refused = None;
    for _ in 0..200 {
        let reply = put(
            &served,
            "ada",
            &format!("{FILES}/y?overwrite=true"),
            &[],
            "y",
        );
        if reply.status == 429 {
            refused = Some(reply);
            break;
        }
    }
    let refused = refused.expect("the fifth was let in");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(
        put(&served, "bob", &format!("{FILES}/y"), &[], "y").status,
        201
    );
    let mut made = 0;
    for stream in &mut waiting {
        stream.write_all(b"c").unwrap();
        let reply = read_reply(stream);
        assert!([201, 409].contains(&reply.status), "{reply:?}");
        made += usize::from(reply.status == 201);
    }
    assert_eq!(made, 1, "one made the file, and no other replaced it");
    assert_eq!(value(&served, "ada", "open('x').read()"), "abc");
}

#[test]
fn a_session_that_ends_meanwhile_is_a_clean_error_and_one_that_ended_gets_its_files_back() {
    let served = Served::start(&[]);
    assert_eq!(
        put(&served, "ada", &format!("{FILES}/kept"), &[], "kept").status,
        201
    );
    thread::scope(|scope| {
        let putting = scope.spawn(|| {
            (0..20)
                .map(|number| {
                    put(
                        &served,
                        "ada",
                        &format!("{FILES}/{number}"),
                        &[],
                        &"x".repeat(100_000),
                    )
                    .status
                })
                .collect::<Vec<_>>()
        });
        let ending = scope.spawn(|| {
            (0..5)
                .map(|_| delete(&served, "ada", "/api/v1/sessions/s").status)
                .collect::<Vec<_>>()
        });
        for status in putting.join().unwrap() {
            assert!([201, 409].contains(&status), "{status}");
        }
        for status in ending.join().unwrap() {
            assert!([204, 404, 409].contains(&status), "{status}");
        }
    });
    let last = || {
        let path = format!("{FILES}/last?overwrite=true");
        put(&served, "ada", &path, &[], "last").status
    };
    assert!([201, 409].contains(&last()));
    assert!([200, 201].contains(&last()));
    let pid = value(&served, "ada", "import os; os.getpid()");
    assert!(pid.is_number());
    let body = json!({"code": "os._exit(3)", "session_id": "s"});
    let crashed = ask(&served, "ada", "POST /api/v1/execute", &[], &body).json();
    assert_eq!(crashed["outcome"], "crashed", "{crashed}");
    // The interpreter is gone, which is told once; then the file starts another, which has what was kept.
    let told = put(&served, "ada", &format!("{FILES}/after"), &[], "after");
    assert_eq!(told.status, 409, "{told:?}");
    assert!(told.body.contains("exit"), "{told:?}");
    let reply = put(&served, "ada", &format!("{FILES}/after"), &[], "after");
    assert_eq!(reply.status, 201, "{reply:?}");
    assert_eq!(
        value(
            &served,
            "ada",
            "[open('last').read(), open('after').read()]"
        ),
        json!(["last", "after"])
    );
}
