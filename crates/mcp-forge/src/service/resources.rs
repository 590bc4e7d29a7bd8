//! What a caller may read: the tools there are, a tool's schema, the environment, the audit log.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::{ExecuteRequest, Service, ServiceError};
use crate::{
    bridge::ToolInfo,
    limits::LimitsView,
    text::clipped,
    turn::{Observer, Stream},
};

/// Most audit records that one reading returns.
const AUDIT_RECORDS: usize = 200;

/// How long a reading waits for upstreams that are still starting.
const READING_PATIENCE: Duration = Duration::from_secs(20);

/// Run in a sandbox to learn what code finds there: facts of the place, not of the host.
const DESCRIBE_ENVIRONMENT: &str = include_str!("environment.py");

impl Service {
    /// Every tool that a request may name in `mcp_tools`, sorted by name, and whether the list is
    /// whole. Waits so long for upstreams that are starting; one that hangs hides no other's tools.
    pub async fn tools(&self, patience: Duration) -> (Vec<ToolInfo>, bool) {
        let whole = timeout(patience, self.bridge.catalogue()).await.is_ok();
        (self.bridge.known().tools, whole)
    }

    /// The names of those tools.
    pub async fn tools_available(&self) -> Vec<String> {
        let (tools, _) = self.tools(READING_PATIENCE).await;
        tools.into_iter().map(|tool| tool.name).collect()
    }

    /// All that is known of one tool.
    ///
    /// # Errors
    ///
    /// [`ServiceError::UnknownTool`].
    pub async fn tool_schema(&self, name: &str) -> Result<Value, ServiceError> {
        let is_it = |tool: &ToolInfo| tool.name == name;
        let mut found = self.bridge.known().tools.into_iter().find(is_it);
        if found.is_none() {
            found = self.tools(READING_PATIENCE).await.0.into_iter().find(is_it);
        }
        let tool = found.ok_or_else(|| ServiceError::UnknownTool(clipped(name)))?;
        Ok(json!({
            "name": tool.name,
            "upstream": tool.upstream,
            "tool": tool.tool,
            "title": tool.title,
            "description": tool.description,
            "signature": tool.signature,
            "input_schema": tool.input_schema,
            "output_schema": tool.output_schema,
        }))
    }

    /// Python's version, the installed packages, the system and the limits, as code in a sandbox
    /// finds them. The first call runs a sandbox; later ones repeat its answer.
    ///
    /// # Errors
    ///
    /// [`ServiceError`], as [`Service::execute`], or [`ServiceError::Environment`].
    pub async fn environment_info(&self) -> Result<Value, ServiceError> {
        self.environment
            .get_or_try_init(|| self.describe_environment())
            .await
            .cloned()
    }

    async fn describe_environment(&self) -> Result<Value, ServiceError> {
        let request = ExecuteRequest {
            code: DESCRIBE_ENVIRONMENT.to_owned(),
            backend: Some("simple".to_owned()),
            ..ExecuteRequest::default()
        };
        let response = self.execute(request, &mut Unheard).await?;
        let Value::Object(mut info) = response.result else {
            let reason = response.error.map_or(response.outcome, |error| {
                format!("{}: {}", error.kind, error.message)
            });
            return Err(ServiceError::Environment(reason));
        };
        info.insert("environment".to_owned(), json!(response.environment));
        info.insert("isolation".to_owned(), json!(response.isolation));
        info.insert(
            "limits".to_owned(),
            json!({
                "default": LimitsView::from(&self.config.default_limits),
                "maximum": LimitsView::from(&self.config.max_limits),
            }),
        );
        Ok(Value::Object(info))
    }

    /// The newest records of the audit log.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Audit`].
    pub fn audit_operations(&self) -> Result<Vec<Value>, ServiceError> {
        Ok(self.audit.newest(AUDIT_RECORDS)?)
    }
}

/// For turns that nobody watches.
struct Unheard;

impl Observer for Unheard {
    fn output(&mut self, _: Stream, _: &str) {}
}
