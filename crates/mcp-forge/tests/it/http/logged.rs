//! The log as JSON: one object a line, whatever is in it, and no secrets.

use serde_json::{Value, json};

use super::{
    observed::execute,
    served::{Served, token, write_private},
    traced::{TRACE, config_with_upstreams},
};

/// Everything that the server wrote to standard error, each line read.
fn lines(said: &str) -> Vec<Value> {
    let lines = said.lines().map(|line| {
        // As those see it who end lines at more than `\n`.
        assert!(
            !line.contains(['\r', '\u{85}', '\u{2028}', '\u{2029}', '\u{1b}', '\u{202e}']),
            "{line:?}"
        );
        let read: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        for key in ["time", "level", "target", "message"] {
            assert!(read[key].is_string(), "{key}: {line}");
        }
        read["time"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap();
        read
    });
    lines.collect()
}

#[test]
fn every_line_is_one_object_and_no_secret_is_in_any() {
    let hostile = "import sys\nsys.stderr.write('dying\\r\\n{\"level\":\"forged\"}\\n\\x1b[31m\\u2028\\u202ecanary-of-env\\n')\nsys.exit(3)";
    let more = json!({
        "log": {"format": "json"},
        "mcp_tools": {
            "bad\u{2028}\"name\u{202e}": {
                "command": "python3", "args": ["-c", hostile], "env": {"KEY": "canary-of-env"},
            },
        },
    });
    let config = config_with_upstreams(&["local"], more);
    let variables = [
        ("MCP_FORGE_CONFIG", config.path().to_str().unwrap()),
        ("MCP_FORGE_LOG", "info"),
        ("SECRET", "canary-of-process"),
    ];
    let served = Served::start(&variables);
    let code = "# canary-of-code\ntry:\n    local_fails()\nexcept Exception as e:\n    print(e)";
    let ran = execute(
        &served,
        "ada",
        &json!({"code": code, "mcp_tools": ["local_fails"]}),
    );
    assert!(
        ran["stdout"]
            .as_str()
            .unwrap()
            .contains("canary-of-upstream"),
        "{ran}"
    );
    let arguments = json!({"code": code, "mcp_tools": ["local_fails"], "session_id": "s"});
    served.tool("ada", "execute_python", &arguments);
    execute(
        &served,
        "ada",
        &json!({"code": "1", "mcp_tools": ["bad_name\r\nx"]}),
    );
    execute(&served, "ada", &json!({"code": "1", "session_id": "a\nb"}));
    // Something goes wrong for somebody: the line says for whom, and in which request.
    let audit = served.directory.path().join("audit");
    std::fs::rename(&audit, served.directory.path().join("gone")).unwrap();
    std::fs::write(&audit, "").unwrap();
    let authorization = format!("Authorization: Bearer {}", token("admin"));
    let parent = format!("traceparent: 00-{TRACE}-b7ad6b7169203331-01");
    let headers = [authorization.as_str(), parent.as_str()];
    let failed = served.request("GET /api/v1/audit", &headers, "");
    assert_eq!(failed.status, 503, "{failed:?}");
    write_private(
        &served.directory.path().join("tokens.yaml"),
        "tokens: [canary-of-file",
    );
    let authorization = format!("Authorization: Bearer {}", token("ada"));
    let refused = served.request("GET /api/v1/sessions", &[&authorization], "");
    assert_eq!(refused.status, 503);
    let pid = rustix::process::Pid::from_child(&served.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let (_, said) = served.wait();
    let lines = lines(&said);
    assert!(
        lines.iter().any(|line| line["message"]
            .as_str()
            .unwrap()
            .starts_with("Listening at http://")),
        "{said}"
    );
    let told = lines
        .iter()
        .find(|line| line["trace_id"] == TRACE)
        .unwrap_or_else(|| panic!("{said}"));
    assert_eq!(
        (&told["level"], &told["principal"]),
        (&json!("ERROR"), &json!("admin"))
    );
    assert_eq!(told["request_id"].as_str().unwrap().len(), 16, "{told}");
    assert!(lines.iter().all(|line| line["level"] != "forged"), "{said}");
    for secret in ["canary", "token-of-"] {
        assert!(!said.contains(secret), "{secret}: {said}");
    }
}

/// The first start's token is nothing for a log that is kept.
#[test]
fn a_new_token_is_not_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start_in(
        directory,
        &["serve", "--http", "127.0.0.1:0"],
        &[("MCP_FORGE_LOG_FORMAT", "json")],
    );
    assert!(served.directory.path().join("tokens.yaml").exists());
    let said = served.said();
    assert_eq!(lines(&said).len(), 1, "{said}");
    assert!(!said.contains("mcpf_"), "{said}");
}
