//! Environments and approvals over HTTP: what is refused, to whom, and how. No index is needed for it.

use mcp_forge::store::{EnvironmentRecord, Store};
use serde_json::{Value, json};

use super::{
    rest::{ask, get},
    served::{Reply, Served, token},
};

/// A server whose rules hold packages back, and which has no `uv`: what passes the rules ends there.
fn served(more: &[(&str, &str)]) -> Served {
    let mut variables = vec![
        ("MCP_FORGE_PACKAGES_BLOCKLIST", "evil,evil-*"),
        ("MCP_FORGE_PACKAGES_MANUAL_APPROVAL", "*crypto*,paramiko"),
        ("MCP_FORGE_ENVIRONMENT_BUILDER_UV", "/nonexistent/uv"),
    ];
    variables.extend(more);
    Served::start(&variables)
}

fn build(served: &Served, who: &str, body: &Value) -> Reply {
    ask(served, who, "POST /api/v1/environments", &[], body)
}

fn plain(served: &Served, who: &str, line: &str) -> Reply {
    ask(served, who, line, &[], &Value::Null)
}

#[test]
fn a_refused_build_is_a_problem_that_names_each_package_and_rule() {
    let served = served(&[]);
    let body = json!({"name": "e", "packages": ["Evil_Thing==1", "six", "evil"]});
    let refused = build(&served, "ada", &body);
    assert_eq!(refused.status, 403, "{refused:?}");
    let problem = refused.json();
    let packages: Vec<_> = problem["refused"]
        .as_array()
        .unwrap()
        .iter()
        .map(|refusal| (&refusal["package"], refusal["rule"].as_str().unwrap()))
        .collect();
    assert_eq!(packages.len(), 2, "{problem}");
    assert_eq!(
        packages[1],
        (&json!("evil-thing"), "packages.blocklist: evil-*")
    );
    assert_eq!(packages[0], (&json!("evil"), "packages.blocklist: evil"));
    for refusal in problem["refused"].as_array().unwrap() {
        assert!(
            refusal["reason"]
                .as_str()
                .is_some_and(|reason| !reason.is_empty())
        );
    }
    for (body, status, field) in [
        (json!({"packages": ["six"]}), 400, Some("name")),
        (json!({"name": "e"}), 400, Some("packages")),
        (
            json!({"name": "../e", "packages": ["six"]}),
            400,
            Some("name"),
        ),
        (
            json!({"name": "e", "packages": "six"}),
            400,
            Some("packages"),
        ),
        (
            json!({"name": "e", "packages": ["six", "--index-url=http://x"]}),
            400,
            Some("packages[1]"),
        ),
        (
            json!({"name": "e", "packages": ["six @ file:///etc/passwd"]}),
            400,
            Some("packages[0]"),
        ),
        (
            json!({"name": "e", "packages": ["six"], "python_version": "2.7"}),
            400,
            Some("python_version"),
        ),
        (
            json!({"name": "e", "packages": ["six"], "index": "x"}),
            400,
            Some("index"),
        ),
        (json!({"name": "e", "template": "none-such"}), 404, None),
        (
            json!({"name": "ml-basic", "packages": ["six"]}),
            400,
            Some("name"),
        ),
        (json!([]), 400, None),
    ] {
        let reply = build(&served, "ada", &body);
        let problem = reply.json();
        assert_eq!(
            (reply.status, problem["field"].as_str()),
            (status, field),
            "{body}: {problem}"
        );
        assert_eq!(
            reply.header("content-type"),
            Some("application/problem+json")
        );
        assert!(problem.get("refused").is_none(), "{problem}");
    }
    let waits = ask(
        &served,
        "ada",
        "POST /api/v1/environments?wait=false",
        &[],
        &body,
    );
    assert_eq!(waits.status, 400, "{waits:?}");
    assert_eq!(build(&served, "nobody", &body).status, 403);
    // The host's paths are nobody's business here.
    let none = build(&served, "ada", &json!({"name": "e", "packages": ["six"]}));
    assert_eq!(none.status, 503, "{none:?}");
    assert!(!none.body.contains("/nonexistent"), "{none:?}");
    // The same request with the same key is not made twice.
    let keyed = || {
        ask(
            &served,
            "ada",
            "POST /api/v1/environments",
            &["Idempotency-Key: k"],
            &body,
        )
    };
    let (first, second) = (keyed(), keyed());
    assert_eq!((first.status, &first.body), (403, &second.body));
    assert_eq!(second.header("idempotency-replayed"), Some("true"));
    let other = json!({"code": "1"});
    let crossed = ask(
        &served,
        "ada",
        "POST /api/v1/execute",
        &["Idempotency-Key: k"],
        &other,
    );
    assert_eq!(crossed.status, 422, "{crossed:?}");
}

#[test]
fn an_administrator_approves_for_everybody_and_nobody_else_may() {
    let served = served(&[]);
    let body = json!({"name": "e", "packages": ["pycrypto", "paramiko"]});
    let waiting = build(&served, "ada", &body);
    assert_eq!(waiting.status, 403, "{waiting:?}");
    assert_eq!(
        waiting.json()["refused"][1]["rule"],
        "packages.manual_approval: *crypto*"
    );
    for line in [
        "GET /api/v1/approvals",
        "PUT /api/v1/approvals/paramiko",
        "DELETE /api/v1/approvals/paramiko",
    ] {
        assert_eq!(plain(&served, "ada", line).status, 403, "{line}");
    }
    let listed = get(&served, "admin", "/api/v1/approvals").json();
    assert_eq!(listed["approvals"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(
        (
            &listed["approvals"][0]["package"],
            &listed["approvals"][0]["asked_by"],
            &listed["approvals"][0]["approved_by"]
        ),
        (&json!("paramiko"), &json!("ada"), &Value::Null),
    );
    // One is not enough, and the name may be written in any way.
    assert_eq!(
        plain(&served, "admin", "PUT /api/v1/approvals/Paramiko").status,
        204
    );
    let waiting = build(&served, "ada", &body).json();
    assert_eq!(waiting["refused"].as_array().unwrap().len(), 1, "{waiting}");
    assert_eq!(
        plain(&served, "admin", "PUT /api/v1/approvals/pycrypto").status,
        204
    );
    assert_eq!(build(&served, "bob", &body).status, 503);
    let listed = get(&served, "admin", "/api/v1/approvals").json();
    assert_eq!(listed["approvals"][0]["approved_by"], "admin");
    assert!(
        listed["approvals"][0]["approved_at"].is_string(),
        "{listed}"
    );

    assert_eq!(
        plain(&served, "admin", "DELETE /api/v1/approvals/pycrypto").status,
        204
    );
    assert_eq!(
        plain(&served, "admin", "DELETE /api/v1/approvals/pycrypto").status,
        404
    );
    assert_eq!(build(&served, "ada", &body).status, 403);
    assert_eq!(
        plain(&served, "admin", "PUT /api/v1/approvals/-").status,
        400
    );

    let metrics = get(&served, "admin", "/metrics").body;
    for line in [
        "mcp_forge_builds_total{outcome=\"waiting\"} 3",
        "mcp_forge_builds_total{outcome=\"failed\"} 1",
        "mcp_forge_environments{kind=\"custom\"} 0",
    ] {
        assert!(
            metrics.lines().any(|known| known == line),
            "{line}: {metrics}"
        );
    }
}

#[test]
fn a_foreign_environment_is_as_one_that_does_not_exist() {
    let served = served(&[]);
    put(&served, "ada", "plots");
    let address = "/api/v1/environments/plots";
    let view = get(&served, "ada", address);
    assert_eq!(
        (view.status, &view.json()["description"]),
        (200, &json!("ada's own"))
    );
    let names = |who: &str| get(&served, who, "/api/v1/environments").json()["custom"].clone();
    assert_eq!(names("ada")[0]["name"], "plots");
    assert_eq!(names("bob"), json!([]));
    assert!(
        get(&served, "bob", "/api/v1/environments").json()["templates"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    );

    let same = |line: &str, body: &Value| {
        let foreign = ask(&served, "bob", line, &[], body);
        let text = body.to_string().replace("plots", "other");
        let unknown = line.replace("plots", "other");
        let unknown = ask(
            &served,
            "bob",
            &unknown,
            &[],
            &serde_json::from_str(&text).unwrap(),
        );
        assert!(foreign.status >= 400, "{line}: {foreign:?}");
        assert_eq!(
            (foreign.status, foreign.body.replace("plots", "other")),
            (unknown.status, unknown.body),
            "{line}"
        );
    };
    same(&format!("GET {address}"), &Value::Null);
    same(&format!("DELETE {address}"), &Value::Null);
    same(&format!("POST {address}/rebuild"), &Value::Null);
    same(
        "POST /api/v1/execute",
        &json!({"code": "1", "custom_image": "plots"}),
    );
    for bad in ["%2e%2e", "a%00b", "A_B", "%ff"] {
        let reply = get(&served, "ada", &format!("/api/v1/environments/{bad}"));
        assert_eq!(reply.status, 400, "{bad}: {reply:?}");
    }
    // Over MCP it is the same.
    let read = |who: &str, name: &str| {
        let uri = format!("mcp://forge/environments/{name}/info");
        call(&served, who, ("resources/read", &uri), json!({"uri": uri}))
    };
    assert!(
        read("ada", "plots")["result"]["contents"][0]["text"]
            .as_str()
            .is_some_and(|text| text.contains("ada's own"))
    );
    let foreign = read("bob", "plots").to_string().replace("plots", "other");
    assert_eq!(foreign, read("bob", "other").to_string());
    assert!(foreign.contains("error"), "{foreign}");

    assert_eq!(
        plain(&served, "ada", &format!("DELETE {address}")).status,
        204
    );
    assert_eq!(get(&served, "ada", address).status, 404);
}

#[test]
fn who_builds_too_often_is_told_when_to_come_back() {
    let served = served(&[
        (
            "MCP_FORGE_ENVIRONMENT_BUILDER_BUILD_RATE_LIMIT_REQUESTS",
            "1",
        ),
        (
            "MCP_FORGE_ENVIRONMENT_BUILDER_BUILD_RATE_LIMIT_PERIOD",
            "1h",
        ),
    ]);
    let body = json!({"name": "e", "packages": ["six"]});
    assert_eq!(build(&served, "ada", &body).status, 503);
    let late = build(&served, "ada", &body);
    assert_eq!(late.status, 429, "{late:?}");
    let wait: u64 = late.header("retry-after").unwrap().parse().unwrap();
    assert!((3500..=3600).contains(&wait), "{wait}");
    // The limit is one principal's.
    assert_eq!(build(&served, "bob", &body).status, 503);
}

/// Gives a principal an environment, as a build would leave it for want of use: archived.
fn put(served: &Served, principal: &str, name: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Store::new(served.directory.path());
        let record = EnvironmentRecord {
            principal: principal.to_owned(),
            name: name.to_owned(),
            tree: "0".repeat(64),
            description: format!("{principal}'s own"),
            template: None,
            requested: vec!["six".to_owned()],
            request: "none".to_owned(),
            python: "3.11".to_owned(),
            lock: "{}".to_owned(),
            size_bytes: 1,
            build_ms: 1,
            created_ms: mcp_forge::store::now_ms(),
            built_ms: mcp_forge::store::now_ms(),
            used_ms: mcp_forge::store::now_ms(),
            archived_ms: None,
        };
        store.put_environment(&record).await.unwrap();
    });
}

#[test]
fn only_an_administrator_is_asked_in_place() {
    let served = served(&[]);
    let arguments = json!({"name": "e", "packages": ["paramiko"]});
    let params = json!({"name": "build_custom_environment", "arguments": arguments});
    let tool = ("tools/call", "build_custom_environment");
    let asked = call(&served, "admin", tool, params.clone());
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let questions = asked["result"]["inputRequests"].as_object().unwrap();
    let key = questions.keys().next().unwrap();

    // Neither asked, nor heard if it answers all the same.
    let mut answered = params.clone();
    answered["inputResponses"] = json!({ key: {"action": "accept", "content": {}} });
    for params in [&params, &answered] {
        let refused = call(&served, "ada", tool, params.clone());
        let text = refused["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("waits for an approval"), "{refused}");
    }
    let approvals = get(&served, "admin", "/api/v1/approvals").json();
    assert_eq!(approvals["approvals"][0]["approved_by"], Value::Null);

    let built = call(&served, "admin", tool, answered);
    let text = built["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("has no uv that it can use"), "{built}");
    let approvals = get(&served, "admin", "/api/v1/approvals").json();
    assert_eq!(approvals["approvals"][0]["approved_by"], "admin");
}

/// A request of a client of 2026-07-28 that can show forms, and its answer.
fn call(served: &Served, who: &str, (method, name): (&str, &str), mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let headers = [
        &*format!("Authorization: Bearer {}", token(who)),
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        "MCP-Protocol-Version: 2026-07-28",
        &*format!("Mcp-Method: {method}"),
        &*format!("Mcp-Name: {name}"),
    ];
    served
        .request("POST /mcp", &headers, &message.to_string())
        .message()
}
