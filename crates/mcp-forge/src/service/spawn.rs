//! A sandbox made ahead of its first call: a session whose interpreter is there.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::{
    ExecuteRequest, ExecuteResponse, LimitsRequest, Service, ServiceError, fields::rejected,
};
use crate::{names::Principal, turn::Observer};

/// What runs in it: nothing.
const NOTHING: &str = "pass";

/// What a sandbox is to be like.
#[derive(Debug, Clone, Default, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SpawnRequest {
    /// Its name, and that of the session which it is. Default: a new one.
    pub session_id: Option<String>,
    /// Limits other than the defaults.
    pub limits: Option<LimitsRequest>,
    /// Copied into it, as for an execution.
    pub volumes: Option<Map<String, Value>>,
    /// Name of a custom environment, as for an execution.
    pub custom_image: Option<String>,
    /// Name of a template environment, as for an execution.
    pub environment: Option<String>,
}

impl SpawnRequest {
    /// Reads a request from JSON.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Rejected`]; nothing has happened.
    pub fn from_json(mut parameters: Map<String, Value>) -> Result<Self, ServiceError> {
        const KNOWN: [&str; 5] = [
            "session_id",
            "limits",
            "volumes",
            "custom_image",
            "environment",
        ];
        if let Some(name) = parameters
            .keys()
            .find(|name| !KNOWN.contains(&name.as_str()))
        {
            let name = crate::text::clipped(name);
            let message = format!("Unknown parameter `{name}`. Known: {}.", KNOWN.join(", "));
            return Err(rejected(&name, message));
        }
        // The same fields, read and refused in the same words.
        parameters.insert("code".to_owned(), NOTHING.into());
        let request = ExecuteRequest::from_json(parameters)?;
        Ok(Self {
            session_id: request.session_id,
            limits: request.limits,
            volumes: request.volumes,
            custom_image: request.custom_image,
            environment: request.environment,
        })
    }
}

impl Service {
    /// Starts a session's interpreter, unless it is there, and waits until it can be used.
    ///
    /// # Errors
    ///
    /// [`ServiceError`], as for an execution; nothing was started.
    pub async fn spawn(
        &self,
        principal: &Principal,
        request: SpawnRequest,
        observer: &mut dyn Observer,
    ) -> Result<ExecuteResponse, ServiceError> {
        let request = ExecuteRequest {
            code: NOTHING.to_owned(),
            session_id: Some(request.session_id.unwrap_or_else(|| "new".to_owned())),
            limits: request.limits,
            volumes: request.volumes,
            custom_image: request.custom_image,
            environment: request.environment,
            ..ExecuteRequest::default()
        };
        self.execute_for(principal, request, observer).await
    }
}
