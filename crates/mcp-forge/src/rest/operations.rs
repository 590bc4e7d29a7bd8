//! The operations of REST, once: from this table comes the OpenAPI document (`openapi.rs`).

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::views::{
    ApprovalsView, AuditView, ExecutionView, FilesView, SandboxView, SandboxesView, SessionsView,
    SpawnedView, ToolsView,
};
use crate::{
    environments::{Built, EnvironmentView, Listed},
    service::{
        BuildEnvironmentRequest, ContextKept, ContextRequest, ContextView, ExecuteRequest,
        ExecuteResponse, SpawnRequest,
    },
    session::{FileView, SessionState},
};

/// One operation.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    /// Name, where it is, and what it says. Those of the path are there always, the others may be.
    pub(super) parameters: &'static [(&'static str, &'static str, &'static str)],
    pub(super) request: Option<SchemaOf>,
    /// Status, what it means, and what the body is.
    pub(super) answers: &'static [(u16, &'static str, Body)],
    /// Statuses that come as a problem.
    pub(super) problems: &'static [u16],
}

pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What the body of an answer is.
pub(super) enum Body {
    None,
    Json(SchemaOf),
    /// Any JSON object.
    Object,
    Bytes,
    Events,
}

const EXECUTION: (&str, &str, &str) = ("id", "path", "The execution, as 202 named it.");
const SANDBOX: (&str, &str, &str) = ("container_id", "path", "The sandbox's name.");
const STATE_OF: (&str, &str, &str) = ("session_id", "query", "What it is kept for.");
const ENVIRONMENT: (&str, &str, &str) = ("name", "path", "The environment's name.");
const PACKAGE: (&str, &str, &str) = ("package", "path", "The package's name.");
const KEY: (&str, &str, &str) = (
    "Idempotency-Key",
    "header",
    "A name of the client's for this request, new for each. The same request with the same key is not run again: it gets the same answer.",
);
const SESSION: (&str, &str, &str) = ("id", "path", "The session's name.");

/// All of them.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        method: "post",
        path: "/api/v1/execute",
        id: "execute",
        summary: "Run Python in a fresh sandbox, or in a session. How the code ended is `outcome`, whatever it did the status is 200. A client that goes away before the answer ends the code, unless it gave an Idempotency-Key.",
        parameters: &[
            (
                "wait",
                "query",
                "`false` answers 202 at once; the execution is then asked for by its name.",
            ),
            KEY,
        ],
        request: Some(schema::<ExecuteRequest>),
        answers: &[
            (
                200,
                "The code ended.",
                Body::Json(schema::<ExecuteResponse>),
            ),
            (
                202,
                "The code was started; `Location` says where to ask.",
                Body::Json(schema::<ExecutionView<'static>>),
            ),
        ],
        problems: &[400, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503],
    },
    Operation {
        method: "get",
        path: "/api/v1/executions/{id}",
        id: "showExecution",
        summary: "An execution of `wait=false`. It is remembered for an hour after its end, the newest 64 of a principal.",
        parameters: &[EXECUTION],
        request: None,
        answers: &[(
            200,
            "What has become of it.",
            Body::Json(schema::<ExecutionView<'static>>),
        )],
        problems: &[400, 403, 404],
    },
    Operation {
        method: "delete",
        path: "/api/v1/executions/{id}",
        id: "cancelExecution",
        summary: "End an execution, and wait for its end. In a session the code is interrupted, and the session goes on.",
        parameters: &[EXECUTION],
        request: None,
        answers: &[(
            200,
            "It has ended, now or before.",
            Body::Json(schema::<ExecutionView<'static>>),
        )],
        problems: &[400, 403, 404],
    },
    Operation {
        method: "get",
        path: "/api/v1/executions/{id}/events",
        id: "watchExecution",
        summary: "What an execution writes, from its beginning and as it happens: events `output` with `stream` and `text`, then one event `end` with the execution.",
        parameters: &[
            EXECUTION,
            (
                "Last-Event-ID",
                "header",
                "The last event that was seen: go on after it.",
            ),
        ],
        request: None,
        answers: &[(200, "Server-sent events.", Body::Events)],
        problems: &[400, 403, 404],
    },
    Operation {
        method: "get",
        path: "/api/v1/sessions",
        id: "listSessions",
        summary: "The caller's sessions: which live, which lost their interpreter and why, which end soon.",
        parameters: &[],
        request: None,
        answers: &[(200, "The sessions.", Body::Json(schema::<SessionsView>))],
        problems: &[403, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/sessions/{id}",
        id: "showSession",
        summary: "All that is known of a session: documentation, variables, imports, functions, files, history.",
        parameters: &[SESSION],
        request: None,
        answers: &[(200, "Its state.", Body::Json(schema::<SessionState>))],
        problems: &[400, 403, 404, 500],
    },
    Operation {
        method: "delete",
        path: "/api/v1/sessions/{id}",
        id: "deleteSession",
        summary: "End a session and forget all of it, files included.",
        parameters: &[SESSION],
        request: None,
        answers: &[(204, "It is gone.", Body::None)],
        problems: &[400, 403, 404, 409, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/sessions/{id}/files",
        id: "listFiles",
        summary: "The files of a session's /workspace, as they were after the last call.",
        parameters: &[SESSION],
        request: None,
        answers: &[(200, "The files.", Body::Json(schema::<FilesView>))],
        problems: &[400, 403, 404, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/sessions/{id}/files/{path}",
        id: "downloadFile",
        summary: "A file of a session's /workspace, as it was after the last call. Its path may have slashes.",
        parameters: &[SESSION, ("path", "path", "Relative to /workspace.")],
        request: None,
        answers: &[(200, "Its bytes.", Body::Bytes)],
        problems: &[400, 403, 404, 409, 500],
    },
    Operation {
        method: "put",
        path: "/api/v1/sessions/{id}/files/{path}",
        id: "uploadFile",
        summary: "Put a file into a session's /workspace, missing directories included. The body is its bytes. A session that does not live is started, as by `spawnSandbox`. What is there already is replaced only with `overwrite=true`.",
        parameters: &[
            SESSION,
            ("path", "path", "Relative to /workspace."),
            (
                "overwrite",
                "query",
                "`true` replaces a file that is there.",
            ),
        ],
        request: Some(bytes),
        answers: &[
            (200, "It was replaced.", Body::Json(schema::<FileView>)),
            (
                201,
                "It is there; `Location` says where.",
                Body::Json(schema::<FileView>),
            ),
        ],
        problems: &[400, 403, 404, 408, 409, 413, 415, 429, 500, 503],
    },
    Operation {
        method: "delete",
        path: "/api/v1/sessions/{id}/files/{path}",
        id: "removeFile",
        summary: "Remove a file from a session's /workspace. A session that does not live is started for it.",
        parameters: &[SESSION, ("path", "path", "Relative to /workspace.")],
        request: None,
        answers: &[(204, "It is gone.", Body::None)],
        problems: &[400, 403, 404, 409, 429, 500, 503],
    },
    Operation {
        method: "post",
        path: "/api/v1/sandbox/spawn",
        id: "spawnSandbox",
        summary: "Start a sandbox that stays, and wait until it can be used. It is a session: code runs in it with its name as `session_id`, and it ends as sessions end.",
        parameters: &[],
        request: Some(schema::<SpawnRequest>),
        answers: &[
            (
                200,
                "A sandbox of that name was there.",
                Body::Json(schema::<SpawnedView<'static>>),
            ),
            (
                201,
                "It was started.",
                Body::Json(schema::<SpawnedView<'static>>),
            ),
        ],
        problems: &[400, 403, 404, 408, 409, 413, 415, 429, 500, 503],
    },
    Operation {
        method: "get",
        path: "/api/v1/sandbox",
        id: "listSandboxes",
        summary: "The caller's sandboxes that stay. Those of single executions come and go, and are not among them.",
        parameters: &[],
        request: None,
        answers: &[(200, "The sandboxes.", Body::Json(schema::<SandboxesView>))],
        problems: &[403, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/sandbox/{container_id}",
        id: "showSandbox",
        summary: "One sandbox.",
        parameters: &[SANDBOX],
        request: None,
        answers: &[(200, "The sandbox.", Body::Json(schema::<SandboxView>))],
        problems: &[400, 403, 404, 500],
    },
    Operation {
        method: "delete",
        path: "/api/v1/sandbox/{container_id}",
        id: "endSandbox",
        summary: "End a sandbox, and forget the session that it is, files included. What runs in it is killed.",
        parameters: &[SANDBOX],
        request: None,
        answers: &[(204, "It is gone.", Body::None)],
        problems: &[400, 403, 404, 409, 500],
    },
    Operation {
        method: "post",
        path: "/api/v1/context/state",
        id: "putState",
        summary: "Keep a JSON value for a session's name, whether there is a session or not: what a program must know when it comes back. It outlives the server. With `version` it is written only if nobody else wrote meanwhile.",
        parameters: &[],
        request: Some(schema::<ContextRequest>),
        answers: &[(200, "It is kept.", Body::Json(schema::<ContextKept>))],
        problems: &[400, 403, 408, 409, 413, 415, 429, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/context/state",
        id: "showState",
        summary: "A value that is kept.",
        parameters: &[STATE_OF],
        request: None,
        answers: &[(200, "The value.", Body::Json(schema::<ContextView>))],
        problems: &[400, 403, 404, 500],
    },
    Operation {
        method: "delete",
        path: "/api/v1/context/state",
        id: "removeState",
        summary: "Forget a value that is kept.",
        parameters: &[
            STATE_OF,
            ("version", "query", "Only if this is its version."),
        ],
        request: None,
        answers: &[(204, "It is gone.", Body::None)],
        problems: &[400, 403, 404, 409, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/tools",
        id: "listTools",
        summary: "The tools that code can call, by the names that `mcp_tools` takes.",
        parameters: &[],
        request: None,
        answers: &[(200, "The names.", Body::Json(schema::<ToolsView>))],
        problems: &[403],
    },
    Operation {
        method: "get",
        path: "/api/v1/tools/{name}",
        id: "showTool",
        summary: "One tool: its Python signature, description, input and output schema.",
        parameters: &[("name", "path", "The tool's name.")],
        request: None,
        answers: &[(200, "The tool.", Body::Object)],
        problems: &[400, 403, 404],
    },
    Operation {
        method: "get",
        path: "/api/v1/environment",
        id: "showEnvironment",
        summary: "Python's version, the installed packages, the system and the limits, as code in a sandbox finds them.",
        parameters: &[],
        request: None,
        answers: &[(200, "The environment.", Body::Object)],
        problems: &[403, 500, 503],
    },
    Operation {
        method: "get",
        path: "/api/v1/environments",
        id: "listEnvironments",
        summary: "The caller's environments, for `custom_image`, and the templates, for `environment`.",
        parameters: &[],
        request: None,
        answers: &[(200, "The environments.", Body::Json(schema::<Listed>))],
        problems: &[403, 500],
    },
    Operation {
        method: "post",
        path: "/api/v1/environments",
        id: "buildEnvironment",
        summary: "Build an environment from packages, and wait until it can be used: seconds to minutes. A name that is in use means the new packages once they are there. A client that goes away ends the build, unless it gave an Idempotency-Key.",
        parameters: &[KEY],
        request: Some(schema::<BuildEnvironmentRequest>),
        answers: &[
            (
                200,
                "The same packages were there already.",
                Body::Json(schema::<Built>),
            ),
            (
                201,
                "It was built; `Location` says where it is.",
                Body::Json(schema::<Built>),
            ),
        ],
        problems: &[400, 403, 404, 408, 413, 415, 422, 429, 500, 503],
    },
    Operation {
        method: "get",
        path: "/api/v1/environments/{name}",
        id: "describeEnvironment",
        summary: "One environment: what was asked for, what is installed, and until when it is kept.",
        parameters: &[ENVIRONMENT],
        request: None,
        answers: &[(
            200,
            "The environment.",
            Body::Json(schema::<EnvironmentView>),
        )],
        problems: &[400, 403, 404, 500],
    },
    Operation {
        method: "delete",
        path: "/api/v1/environments/{name}",
        id: "deleteEnvironment",
        summary: "Forget an environment. Its packages go once no sandbox has them any more.",
        parameters: &[ENVIRONMENT],
        request: None,
        answers: &[(204, "It is gone.", Body::None)],
        problems: &[400, 403, 404, 500],
    },
    Operation {
        method: "post",
        path: "/api/v1/environments/{name}/rebuild",
        id: "rebuildEnvironment",
        summary: "Build an environment anew, with the newest versions that its requirements allow, and wait for it.",
        parameters: &[ENVIRONMENT, KEY],
        request: None,
        answers: &[
            (200, "There is nothing newer.", Body::Json(schema::<Built>)),
            (201, "It was built.", Body::Json(schema::<Built>)),
        ],
        problems: &[400, 403, 404, 422, 429, 500, 503],
    },
    Operation {
        method: "get",
        path: "/api/v1/approvals",
        id: "listApprovals",
        summary: "The packages that wait for an approval, or have one, for everybody: needs the scope `admin`.",
        parameters: &[],
        request: None,
        answers: &[(200, "The packages.", Body::Json(schema::<ApprovalsView>))],
        problems: &[403, 500],
    },
    Operation {
        method: "put",
        path: "/api/v1/approvals/{package}",
        id: "approvePackage",
        summary: "Approve a package, for everybody: needs the scope `admin`. Whoever waits for it builds again.",
        parameters: &[PACKAGE],
        request: None,
        answers: &[(204, "It is approved.", Body::None)],
        problems: &[400, 403, 500],
    },
    Operation {
        method: "delete",
        path: "/api/v1/approvals/{package}",
        id: "revokeApproval",
        summary: "Take an approval, or a request for one, back: needs the scope `admin`. What was built with it stays.",
        parameters: &[PACKAGE],
        request: None,
        answers: &[(204, "It is taken back.", Body::None)],
        problems: &[400, 403, 404, 500],
    },
    Operation {
        method: "get",
        path: "/api/v1/audit",
        id: "readAudit",
        summary: "The newest records of what this server ran, for everybody: needs the scope `admin`. Code and arguments are not in it.",
        parameters: &[],
        request: None,
        answers: &[(200, "The records.", Body::Json(schema::<AuditView>))],
        problems: &[403, 500],
    },
];

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// A body that is no JSON: OpenAPI names its type by this.
fn bytes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"contentMediaType": "application/octet-stream"})
}
