//! The application on a scripted engine: what is refused, what is queued, what a cancelled call
//! leaves, and that every execution has exactly one end in the audit log.

use std::{sync::Arc, time::Duration};

use mcp_forge::{
    engine::ExitCause,
    runner::wire::{Done, Raised},
    service::{ExecuteRequest, ExecuteResponse, LimitsRequest, Service, ServiceError},
    turn::{Observer, Stream},
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::fake::{FakeEngine, echo, hang, service};

struct Quiet;
impl Observer for Quiet {
    fn output(&mut self, _: Stream, _: &str) {}
}

fn code(code: &str) -> ExecuteRequest {
    ExecuteRequest {
        code: code.to_owned(),
        ..ExecuteRequest::default()
    }
}

async fn execute(
    service: &Service,
    request: ExecuteRequest,
) -> Result<ExecuteResponse, ServiceError> {
    service.execute(request, &mut Quiet).await
}

/// The audit's records of executions, oldest first, as (phase, outcome).
fn executions(service: &Service) -> Vec<(String, Value)> {
    let records = service.audit_operations().unwrap();
    let mine = records
        .iter()
        .rev()
        .filter(|record| record["event"] == "execution");
    mine.map(|record| {
        (
            record["phase"].as_str().unwrap().to_owned(),
            record["outcome"].clone(),
        )
    })
    .collect()
}

fn started_and(outcome: &str) -> Vec<(String, Value)> {
    vec![
        ("started".to_owned(), Value::Null),
        ("finished".to_owned(), json!(outcome)),
    ]
}

#[tokio::test]
async fn a_response_says_all_there_is_to_say() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(FakeEngine::new(echo), directory.path(), |_| {});
    let request = ExecuteRequest {
        timeout: Some(2.5),
        limits: Some(LimitsRequest {
            memory: Some("1g".to_owned()),
            pids: Some(7),
            ..LimitsRequest::default()
        }),
        ..code("1 + 1")
    };
    let response = execute(&service, request).await.unwrap();
    let mut value = serde_json::to_value(response).unwrap();
    assert_eq!(value["execution_id"].as_str().unwrap().len(), 32);
    value["execution_id"] = json!("[id]");
    value["execution_time"] = json!(0.0);
    value["usage"]["wall_ms"] = json!(0);
    insta::assert_json_snapshot!(value);
    assert_eq!(executions(&service), started_and("completed"));
}

#[tokio::test]
async fn the_audit_log_names_the_code_without_holding_it() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(FakeEngine::new(echo), directory.path(), |_| {});
    execute(&service, code("password = 'hunter2'"))
        .await
        .unwrap();
    let log = serde_json::to_string(&service.audit_operations().unwrap()).unwrap();
    assert!(!log.contains("hunter2"));
    // printf "password = 'hunter2'" | sha256sum
    assert!(
        log.contains("ddd353e692af6450281df1b7421bff94c14efbf9ed86c029c27a707b5498ffbd"),
        "{log}"
    );
}

#[tokio::test]
async fn every_way_to_end_has_its_name_and_its_advice() {
    let raised = Raised {
        kind: "ValueError".to_owned(),
        message: "no".to_owned(),
        traceback: "Traceback ...".to_owned(),
    };
    let mut seen = Vec::new();
    let directory = tempfile::tempdir().unwrap();

    let error = raised.clone();
    let engine = FakeEngine::new(move |mut runner| {
        let error = error.clone();
        async move {
            runner.code().await;
            runner
                .done(Done {
                    error: Some(error),
                    ..Done::default()
                })
                .await;
        }
    });
    seen.push((engine, Some(5.0)));
    seen.push((FakeEngine::new(hang), Some(0.05)));
    for cause in [
        ExitCause::Signaled(11),
        ExitCause::Exited(3),
        ExitCause::OutOfMemory,
    ] {
        let dies = |mut runner: crate::fake::Runner| async move {
            runner.code().await;
        };
        seen.push((FakeEngine::ending(cause, dies), Some(5.0)));
    }

    let mut told = Vec::new();
    for (index, (engine, timeout)) in seen.into_iter().enumerate() {
        let service = service(
            Arc::clone(&engine),
            &directory.path().join(index.to_string()),
            |_| {},
        );
        let response = execute(
            &service,
            ExecuteRequest {
                timeout,
                ..code("x")
            },
        )
        .await
        .unwrap();
        engine.wait_all_gone().await;
        assert_eq!(executions(&service), started_and(&response.outcome));
        assert!(!response.success);
        let error = response.error.unwrap();
        told.push(format!(
            "{}\n    {}: {}",
            response.outcome, error.kind, error.message
        ));
    }
    insta::assert_snapshot!(told.join("\n"));
}

#[tokio::test]
async fn bad_requests_are_refused_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let engine = FakeEngine::new(echo);
    let service = service(Arc::clone(&engine), directory.path(), |_| {});
    let big = "x".repeat(10_000_000);
    let requests = [
        json!({}),
        json!({"code": 5}),
        json!({"code": "a\n\u{0}"}),
        json!({"code": big}),
        json!({"code": "1", "tiemout": 5}),
        json!({"code": "1", "memory": "1g"}),
        json!({"code": "1", "timeout": "5"}),
        json!({"code": "1", "timeout": 0}),
        json!({"code": "1", "timeout": -1}),
        json!({"code": "1", "timeout": 3600}),
        json!({"code": "1", "mcp_tools": "github_search_repos"}),
        json!({"code": "1", "mcp_tools": ["a", 1]}),
        json!({"code": "1", "mcp_tools": vec!["a"; 1000]}),
        json!({"code": "1", "backend": "docker"}),
        json!({"code": "1", "custom_image": "ml"}),
        json!({"code": "1", "environment": "ml-basics"}),
        json!({"code": "1", "limits": "1g"}),
        json!({"code": "1", "limits": {"memory": "4g"}}),
        json!({"code": "1", "limits": {"memory": 512}}),
        json!({"code": "1", "limits": {"memory": "0"}}),
        json!({"code": "1", "limits": {"memory": "lots"}}),
        json!({"code": "1", "limits": {"cpu_quota": 200_000}}),
        json!({"code": "1", "limits": {"cpu_quota": -1}}),
        json!({"code": "1", "limits": {"pids": 0}}),
        json!({"code": "1", "limits": {"pids": 2.5}}),
        json!({"code": "1", "limits": {"storage": "11g"}}),
        json!({"code": "1", "limits": {"mem": "1g"}}),
        json!({"code": "1", "<\u{1b}[31m>": 1}),
    ];
    let mut sentences = Vec::new();
    for request in requests {
        let Value::Object(parameters) = request else {
            panic!("not an object")
        };
        let shown = if parameters
            .get("code")
            .is_some_and(|code| code.as_str().is_some_and(|code| code.len() > 100))
        {
            "{\"code\": 10 MB}".to_owned()
        } else {
            let mut shown = Value::Object(parameters.clone()).to_string();
            shown.truncate(60);
            shown
        };
        let refused = match ExecuteRequest::from_json(parameters) {
            Ok(request) => execute(&service, request).await.unwrap_err(),
            Err(refused) => refused,
        };
        sentences.push(format!("{shown}\n    {refused}"));
    }
    assert_eq!(engine.launches(), 0);
    insta::assert_snapshot!(sentences.join("\n"));
}

#[tokio::test]
async fn numbers_that_are_none_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(FakeEngine::new(echo), directory.path(), |_| {});
    for timeout in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-300, -0.0] {
        let refused = execute(
            &service,
            ExecuteRequest {
                timeout: Some(timeout),
                ..code("1")
            },
        )
        .await
        .unwrap_err();
        assert!(
            matches!(&refused, ServiceError::Rejected { field, .. } if field == "timeout"),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn a_dropped_call_kills_its_sandbox_and_ends_once_in_the_audit() {
    let directory = tempfile::tempdir().unwrap();
    let engine = FakeEngine::new(hang);
    let service = service(Arc::clone(&engine), directory.path(), |_| {});
    let running = tokio::spawn({
        let service = Arc::clone(&service);
        async move { execute(&service, code("while True: pass")).await }
    });
    engine.wait_launched(1).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    engine.wait_all_gone().await;
    assert_eq!(executions(&service), started_and("cancelled"));
}

/// A front door that is to end drops its calls when their tasks come to it, which may be late.
#[tokio::test]
async fn the_end_waits_for_the_last_record_of_what_is_about_to_be_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let engine = FakeEngine::new(hang);
    let service = service(Arc::clone(&engine), directory.path(), |_| {});
    let running = tokio::spawn({
        let (service, engine) = (Arc::clone(&service), Arc::clone(&engine));
        async move {
            let late = async {
                engine.wait_launched(1).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            };
            tokio::select! {
                answer = execute(&service, code("while True: pass")) => Some(answer),
                () = late => None,
            }
        }
    });
    engine.wait_launched(1).await;
    service.shutdown().await;
    assert_eq!(executions(&service), started_and("cancelled"));
    assert!(running.await.unwrap().is_none());
}

#[tokio::test]
async fn an_engine_that_starts_nothing_is_an_error_with_one_end() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(FakeEngine::refusing(), directory.path(), |_| {});
    let error = execute(&service, code("1")).await.unwrap_err();
    assert!(matches!(error, ServiceError::Launch(_)), "{error:?}");
    assert_eq!(executions(&service), started_and("failed"));
}

#[tokio::test]
async fn an_unknown_tool_is_refused_before_a_sandbox_exists() {
    let directory = tempfile::tempdir().unwrap();
    let engine = FakeEngine::new(echo);
    let service = service(Arc::clone(&engine), directory.path(), |_| {});
    let request = ExecuteRequest {
        mcp_tools: Some(vec!["nothing_here".to_owned()]),
        ..code("1")
    };
    let error = execute(&service, request).await.unwrap_err();
    assert!(matches!(error, ServiceError::Grant(_)), "{error:?}");
    assert!(error.to_string().contains("nothing_here"), "{error}");
    assert_eq!(engine.launches(), 0);
}

#[tokio::test]
async fn a_bounded_number_waits_and_the_rest_is_told_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let release = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&release);
    let engine = FakeEngine::new(move |mut runner| {
        let gate = Arc::clone(&gate);
        async move {
            let code = runner.code().await;
            gate.acquire().await.unwrap().forget();
            runner.returns(Value::String(code)).await;
        }
    });
    let service = service(Arc::clone(&engine), directory.path(), |config| {
        config.max_concurrent = 1;
    });
    let mut calls = Vec::new();
    for number in 0..5 {
        let service = Arc::clone(&service);
        calls.push(tokio::spawn(async move {
            execute(&service, code(&number.to_string())).await
        }));
    }
    engine.wait_launched(1).await;
    // All five have begun once their starts are in the audit; begin and queue are one step.
    while executions(&service).len() < 5 {
        tokio::task::yield_now().await;
    }
    let refused = execute(&service, code("one too many")).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the server is busy: all of its sandboxes (1) are in use and 4 more wait already. Try again in a moment"
    );
    release.add_permits(5);
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(
            call.await.unwrap().unwrap().result,
            json!(number.to_string())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let engine = FakeEngine::new(hang);
    let service = service(Arc::clone(&engine), directory.path(), |config| {
        config.max_concurrent = 1;
    });
    let first = tokio::spawn({
        let service = Arc::clone(&service);
        async move { execute(&service, code("1")).await }
    });
    engine.wait_launched(1).await;
    let refused = execute(&service, code("2")).await.unwrap_err();
    assert!(
        refused.to_string().contains("none ended within 60 s"),
        "{refused}"
    );
    assert_eq!(first.await.unwrap().unwrap().outcome, "timed_out");
    // The slot is free again.
    let third = tokio::time::timeout(Duration::from_secs(1), execute(&service, code("3"))).await;
    assert!(third.is_err(), "it ran, and hung as scripted");
    assert_eq!(engine.launches(), 2);
}

#[tokio::test]
async fn the_environment_is_asked_once() {
    let directory = tempfile::tempdir().unwrap();
    let engine = FakeEngine::new(|mut runner| async move {
        assert!(runner.code().await.contains("importlib.metadata"));
        runner
            .returns(json!({"python": {"version": "3.11.7"}, "packages": {"numpy": "2.0"}}))
            .await;
    });
    let service = service(Arc::clone(&engine), directory.path(), |_| {});
    let first = service.environment_info().await.unwrap();
    assert_eq!(first["python"]["version"], "3.11.7");
    assert_eq!(first["isolation"]["engine"], "fake");
    assert_eq!(first["limits"]["maximum"]["timeout"], 1800.0);
    assert_eq!(service.environment_info().await.unwrap(), first);
    assert_eq!(engine.launches(), 1);
}
