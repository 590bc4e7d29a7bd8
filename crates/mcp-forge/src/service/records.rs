//! What the audit log is told of an execution and of its tool calls: names, hashes and sizes.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tracing::{Instrument as _, Span};

use super::{ExecuteResponse, ServiceError, request::Checked};
use crate::{
    audit::{Audit, fields},
    limits::LimitsView,
    names::Principal,
    policy::Violation,
    runner::wire::{ToolFailure, ToolFailureKind, ToolValue},
    telemetry::spans,
    turn::{Tools, json_size},
};

/// The code itself stays out of the log: its hash names it without revealing it.
pub(super) fn started(id: &str, principal: &Principal, checked: &Checked) -> Map<String, Value> {
    let mut started = fields(json!({
        "execution_id": id,
        "principal": principal,
        "code_sha256": format!("{:x}", Sha256::digest(&checked.code)),
        "code_bytes": checked.code.len(),
        "tools": checked.tools,
        "resources": LimitsView::from(&checked.limits),
    }));
    if let Some(session) = &checked.session {
        started.insert("session_id".to_owned(), session.id.as_str().into());
    }
    started
}

pub(super) fn ended(response: &ExecuteResponse) -> Map<String, Value> {
    fields(json!({
        "success": response.success,
        "outcome": response.outcome,
        "usage": response.usage,
        "tool_calls": response.tool_calls.len(),
        "stdout_bytes": response.stdout.len(),
        "stderr_bytes": response.stderr.len(),
    }))
}

pub(super) fn refused(principal: &Principal, refusal: &ServiceError) -> Map<String, Value> {
    let mut told = fields(match refusal {
        ServiceError::Rejected { field, .. } => json!({"field": field, "success": false}),
        ServiceError::Forbidden { field, message } => {
            json!({"field": field, "reason": message, "success": false})
        }
        _ => json!({"success": false}),
    });
    told.insert("principal".to_owned(), principal.as_str().into());
    told
}

/// Which rule of the allow-list was hit, and by which execution.
pub(super) fn violated(execution_id: &str, violation: &Violation) -> Map<String, Value> {
    fields(json!({
        "execution_id": execution_id,
        "rule": violation.rule,
        "reason": violation.message,
    }))
}

/// Tools whose every call is in the audit log before it is made: by name and size, never by content.
pub(super) struct AuditedTools {
    pub(super) tools: Arc<dyn Tools>,
    pub(super) audit: Audit,
    pub(super) execution_id: String,
    /// The execution's, which may run elsewhere.
    pub(super) span: Span,
}

#[async_trait::async_trait]
impl Tools for AuditedTools {
    async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<ToolValue, ToolFailure> {
        let started = fields(json!({
            "execution_id": self.execution_id,
            "tool": name,
            "request_bytes": json_size(&arguments),
        }));
        let pending = self
            .audit
            .begin("tool.call", started)
            .map_err(|error| ToolFailure {
                kind: ToolFailureKind::NotGranted,
                message: format!(
                    "the call was refused because it could not be written to the audit log: {error}"
                ),
            })?;
        let span = spans::tool(&self.span, name);
        let answer = self
            .tools
            .call(name, arguments)
            .instrument(span.clone())
            .await;
        let (status, response_bytes) = match &answer {
            Ok(value) => (json!("ok"), json_size(value)),
            Err(failure) => (json!(failure.kind), json_size(failure)),
        };
        span.record("status", status.as_str());
        let ended = fields(json!({
            "tool": name,
            "status": status,
            "response_bytes": response_bytes,
        }));
        if let Err(error) = pending.finish(ended) {
            tracing::error!(%error, tool = name, "a tool call's end is missing from the audit log");
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knows one tool.
    struct One;

    #[async_trait::async_trait]
    impl Tools for One {
        async fn call(&self, name: &str, _: Map<String, Value>) -> Result<ToolValue, ToolFailure> {
            match name {
                "good" => Ok(ToolValue::Json {
                    value: json!("secret answer"),
                }),
                "slow" => std::future::pending().await,
                _ => Err(ToolFailure {
                    kind: ToolFailureKind::Tool,
                    message: "secret failure".to_owned(),
                }),
            }
        }
    }

    #[tokio::test]
    async fn each_tool_call_has_two_records_with_sizes_and_no_content() {
        let directory = tempfile::tempdir().unwrap();
        let audit = Audit::open(&directory.path().join("audit")).unwrap();
        let tools = AuditedTools {
            tools: Arc::new(One),
            audit: audit.clone(),
            execution_id: "e1".to_owned(),
            span: Span::none(),
        };
        let arguments = || fields(json!({"q": "secret question"}));
        tools.call("good", arguments()).await.unwrap();
        tools.call("bad", arguments()).await.unwrap_err();
        let slow = tokio::time::timeout(
            std::time::Duration::from_millis(1),
            tools.call("slow", arguments()),
        );
        slow.await.unwrap_err();

        let mut records = audit.newest(10).unwrap();
        records.reverse();
        let told: Vec<String> = records
            .iter()
            .filter(|record| record["event"] == "tool.call")
            .map(|record| {
                let ended = record
                    .get("status")
                    .or(record.get("outcome"))
                    .unwrap_or(&Value::Null);
                format!(
                    "{} {} {} {ended}",
                    record["execution_id"], record["tool"], record["phase"]
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                r#""e1" "good" "started" null"#,
                r#""e1" "good" "finished" "ok""#,
                r#""e1" "bad" "started" null"#,
                r#""e1" "bad" "finished" "tool""#,
                r#""e1" "slow" "started" null"#,
                r#""e1" null "finished" "cancelled""#,
            ]
        );
        assert_eq!(
            records
                .iter()
                .find_map(|record| record.get("request_bytes")),
            Some(&json!(23))
        );
        assert!(!json!(records).to_string().contains("secret"));
    }
}
