//! Every key of the configuration, once: its kind, range, default, meaning and variable's name.
//!
//! The check for unknown keys, the check of values, the `MCP_FORGE_*` names and the reference in
//! `docs/configuration.md` all come from this table.

use std::fmt::Write as _;

use super::size::show_size;

/// One key.
#[derive(Debug)]
pub(super) struct Key {
    /// Its path, with `*` where a name of the operator's choice stands.
    pub(super) path: &'static str,
    /// What its value may be.
    pub(super) kind: Kind,
    /// The default, as one would write it; empty where there is none.
    pub(super) default: &'static str,
    /// What it decides.
    pub(super) meaning: &'static str,
}

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// A text that may be secret: its value is never shown.
    Secret,
    /// A path; a relative one starts at the file's own directory.
    Path,
    /// `true` or `false`.
    Boolean,
    /// A whole number from the first to the second.
    Integer(i64, i64),
    /// Bytes, from the first to the second.
    Size(u64, u64),
    /// Seconds, from the first to the second.
    Duration(f64, f64),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of texts.
    Texts,
    /// A list of texts that may be secret.
    Secrets,
    /// Names to texts that may be secret.
    SecretTable,
}

const MEBIBYTE: u64 = 1 << 20;
const PEBIBYTE: u64 = 1 << 50;
const DAY: f64 = 86_400.0;
const MOST_COUNT: i64 = 1_000_000;
const ANY_SIZE: Kind = Kind::Size(1, PEBIBYTE);
const MEMORY: Kind = Kind::Size(16 * MEBIBYTE, PEBIBYTE);
const TIMEOUT: Kind = Kind::Duration(0.1, 7.0 * DAY);
const CPU_QUOTA: Kind = Kind::Integer(1_000, 102_400_000);
const COUNT: Kind = Kind::Integer(1, MOST_COUNT);
const PERIOD: Kind = Kind::Duration(1.0, 3_650.0 * DAY);

/// The table. Order is the order of the reference. What a runner may send back in one frame, result
/// and displays, stays below `MAX_EVENT_BYTES` at the largest values.
#[rustfmt::skip] // One key a line: this is a table.
pub(super) const KEYS: &[Key] = &[
    key("data_dir", Kind::Path, "", "Where state lives. Default: `$XDG_DATA_HOME/mcp-forge`, else `~/.local/share/mcp-forge`."),
    key("server.host", Kind::Text, "localhost", "Address of the HTTP service."),
    key("server.port", Kind::Integer(1, 65_535), "3000", "Port of the HTTP service."),
    key("server.tokens", Kind::Path, "", "File of the tokens that HTTP clients show. Default: `tokens.yaml` in the data directory, made at the first start."),
    key("server.oauth.resource", Kind::Text, "", "Address of the service's `/mcp` as clients know it, such as `https://forge.example.com/mcp`, for access tokens of others: what these tokens must be for. Its name is then one that the server may be called by."),
    key("server.oauth.audiences", Kind::Texts, "", "What such a token may be for (`aud`), where the issuers cannot write `server.oauth.resource` into it. Default: that one alone."),
    key("server.oauth.issuers.*.issuer", Kind::Text, "", "Who may issue them: the address that it calls itself in tokens (`iss`), to the letter."),
    key("server.oauth.issuers.*.jwks_url", Kind::Text, "", "Where its keys are (a JSON Web Key Set): an `https` address, or an `http` one on this machine."),
    key("server.oauth.issuers.*.jwks_file", Kind::Path, "", "File with its keys, instead. It is looked at again every `server.oauth.jwks_min_interval`."),
    key("server.oauth.issuers.*.private_network", Kind::Boolean, "false", "Whether the name in `jwks_url` may have an address of a private network."),
    key("server.oauth.run_scope", Kind::Text, "mcp:run", "The scope of such a token that lets it run code, and use what belongs to its principal."),
    key("server.oauth.admin_scope", Kind::Text, "mcp:admin", "The scope of such a token that opens what is about everybody."),
    key("server.oauth.principal_claim", Kind::Text, "sub", "The claim that says whose such a token is. The issuer's name goes before it."),
    key("server.oauth.algorithms", Kind::Texts, "RS256,PS256,ES256,ES384,EdDSA", "How such tokens may be signed; `RS384`, `RS512`, `PS384` and `PS512` are known as well. Shared secrets are never accepted."),
    key("server.oauth.token_types", Kind::Texts, "at+jwt,JWT", "The types (`typ`) that such tokens may have; with `JWT` they may have none."),
    key("server.oauth.leeway", Kind::Duration(0.0, 300.0), "30", "By how much an issuer's clock may differ."),
    key("server.oauth.cpu_seconds_per_hour", COUNT, "", "As `server.cpu_seconds_per_hour`, for a principal of such a token. Default: that number, if there is one."),
    key("server.oauth.requests_per_minute", COUNT, "", "As `server.requests_per_minute`, for a principal of such a token. Default: that number."),
    key("server.oauth.requests_in_flight", Kind::Integer(1, 10_000), "", "As `server.requests_in_flight`, for a principal of such a token. Default: that number."),
    key("server.oauth.jwks_max_age", Kind::Duration(1.0, DAY), "3600", "Keys of issuers are read again after so long."),
    key("server.oauth.jwks_max_stale", Kind::Duration(1.0, 30.0 * DAY), "86400", "Keys that cannot be read again are used until they are so old."),
    key("server.oauth.jwks_min_interval", Kind::Duration(1.0, 3_600.0), "10", "Time between two reads of an issuer's keys, however many tokens name a key that is not there."),
    key("server.tls.cert", Kind::Path, "", "PEM file with the certificate of the HTTP service, and those between it and the root."),
    key("server.tls.key", Kind::Path, "", "PEM file with that certificate's private key."),
    key("server.plaintext", Kind::Boolean, "false", "Serve other machines without TLS, as behind a proxy that speaks it: tokens and answers then cross the network in the clear."),
    key("server.allowed_hosts", Kind::Texts, "", "Names that HTTP clients may call the server by, beside the one that it listens at."),
    key("server.allowed_origins", Kind::Texts, "", "Values of `Origin` that are not refused, as `https://host:port`: for a proxy that adds CORS headers, or that changes `Host`."),
    key("server.max_body", Kind::Size(1 << 10, 64 * MEBIBYTE), "4m", "The body of one HTTP request."),
    key("server.max_connections", Kind::Integer(1, 100_000), "1000", "HTTP connections at the same time; a further one is told to come back."),
    key("server.requests_per_minute", COUNT, "6000", "HTTP requests a minute of one principal; a further one is told when to come back."),
    key("server.requests_in_flight", Kind::Integer(1, 10_000), "64", "HTTP requests of one principal at the same time."),
    key("server.cpu_seconds_per_hour", COUNT, "", "CPU seconds that the turns, sessions and builds of one principal may use in an hour; whoever has used them is told when to come back. Default: as many as it likes."),
    key("server.drain", Kind::Duration(0.0, 3_600.0), "30", "Time that running requests have when the HTTP service is to end."),
    key("server.podman_socket", Kind::Path, "", "Socket of the container API. Default: the first that is there, the user's own before the system's."),
    key("server.background_idle", PERIOD, "300", "A server that the command line started ends after so long without a session and a client."),
    key("execution.default_backend", Kind::Choice(&["simple", "jupyter"]), "simple", "Backend of a request that names none: `simple` is a fresh sandbox, `jupyter` a session."),
    key("execution.engine", Kind::Choice(&["native", "podman", "docker"]), "native", "Where sandboxes come from: this Linux machine, or a container API."),
    key("execution.default_timeout", TIMEOUT, "300", "Wall-clock time of a turn that names none."),
    key("execution.max_timeout", TIMEOUT, "1800", "The most a request may ask for."),
    key("execution.default_memory", MEMORY, "512m", "Memory of all processes of a sandbox together."),
    key("execution.max_memory", MEMORY, "2g", "The most a request may ask for."),
    key("execution.default_cpu_quota", CPU_QUOTA, "50000", "Microseconds of CPU time per 100 ms; 100000 is one core."),
    key("execution.max_cpu_quota", CPU_QUOTA, "100000", "The most a request may ask for."),
    key("execution.default_pids", Kind::Integer(8, MOST_COUNT), "100", "Processes and threads of a sandbox."),
    key("execution.max_pids", Kind::Integer(8, MOST_COUNT), "100", "The most a request may ask for."),
    key("execution.default_storage", ANY_SIZE, "1g", "Space in `/workspace` and `/tmp`; never more than a part of the memory."),
    key("execution.max_storage", ANY_SIZE, "10g", "The most a request may ask for."),
    key("execution.max_concurrent", Kind::Integer(1, 10_000), "8", "Sandboxes alive at once; further turns wait."),
    key("execution.max_output", Kind::Size(1, 64 * MEBIBYTE), "1m", "Kept of standard output and of standard error, each."),
    key("execution.max_flood", ANY_SIZE, "256m", "Written to both together before the turn ends as `output_limit`."),
    key("execution.max_result", Kind::Size(1, 8 * MEBIBYTE), "1m", "The result as JSON."),
    key("execution.max_displays", Kind::Size(1, 12 * MEBIBYTE), "8m", "All displays of a turn together."),
    key("images.python_3_11", Kind::Text, "mcp-forge/python:3.11", "Image for Python 3.11, in containers. It is the one for turns, where it is there."),
    key("images.python_3_12", Kind::Text, "mcp-forge/python:3.12", "Image for Python 3.12, in containers."),
    key("images.jupyter", Kind::Text, "mcp-forge/jupyter:latest", "Image for sessions, in containers."),
    key("images.base", Kind::Text, "docker.io/library/python:{version}-slim-bookworm", "What `image build` builds them on; `{version}` stands for the version of Python."),
    key("images.allowed", Kind::Texts, "mcp-forge/python:3.11,mcp-forge/python:3.12,mcp-forge/jupyter:latest,mcp-forge/custom:*", "Images that may be used or pulled; `*` stands for any text at the end."),
    key("images.auto_pull", Kind::Boolean, "true", "Pull these images at start if they are not there."),
    key("images.pull_interval", PERIOD, "86400", "Time between looks for newer images."),
    key("containers.ready", Kind::Integer(0, 64), "2", "Started containers that wait for code. With 0 each is started for its call."),
    key("containers.max_age", PERIOD, "86400", "Containers that servers of this data directory left behind are looked for at start and again after so long, ten minutes at most."),
    key("sessions.idle_timeout", PERIOD, "3600", "A session that is idle for so long ends."),
    key("sessions.max_lifetime", PERIOD, "86400", "A session whose interpreter is so old ends, a running turn included."),
    key("sessions.max_concurrent", Kind::Integer(1, 10_000), "10", "Sessions alive at once in one server; a further one is refused."),
    key("sessions.max_per_principal", Kind::Integer(1, 10_000), "10", "Of these, sessions of one principal."),
    key("sessions.cleanup_interval", PERIOD, "300", "Time between looks for sessions that are idle or too old."),
    key("sessions.queue_length", Kind::Integer(1, 1_000), "16", "Calls that may wait for one session; a further one is refused."),
    key("sessions.max_files", Kind::Integer(1, 10_000), "1000", "Files of a session's `/workspace` that are kept on the host."),
    key("sessions.keep_code", Kind::Boolean, "false", "Keep the code of a session's executions, not only its SHA-256."),
    key("sessions.keep_history", Kind::Integer(1, MOST_COUNT), "1000", "Executions of a session that are remembered."),
    key("sessions.keep_ended", PERIOD, "2592000", "Time after which a session that is no longer used is forgotten: documentation, history and files."),
    key("volumes.base_path", Kind::Path, "", "Where the directories `sessions`, `shared/readonly`, `uploads` and `principals` lie that `volumes` may name. Default: `volumes` in the data directory."),
    key("volumes.session_quota", ANY_SIZE, "1g", "Bytes of a session's files that are kept on the host, and of the volumes that are copied into it."),
    key("volumes.max_session_quota", ANY_SIZE, "10g", "The most that `volumes.session_quota` may be."),
    key("security.profile", Kind::Choice(&["desktop", "strict"]), "desktop", "Which layers a sandbox must have: `strict` requires every one."),
    key("security.allow_degraded", Kind::Texts, "", "Layers that may be missing although the profile requires them, by the names that `doctor` prints."),
    key("security.audit_log", Kind::Path, "", "Directory of the audit log; an extension is dropped, so `audit.log` names the directory `audit`. Default: `audit` in the data directory."),
    key("security.enforce_resource_limits", Kind::Boolean, "true", "Limits are always enforced; anything but `true` is refused."),
    key("security.allow_network", Kind::Boolean, "false", "Sandboxes have no network; `true` has no effect yet and is warned of."),
    key("python.path", Kind::Path, "", "The interpreter. Default: the newest of 3.10 to 3.14 on PATH."),
    key("native.rootfs", Kind::Choice(&["host", "minimal"]), "host", "What a sandbox sees as `/`: the host's `/usr`, or only the interpreter and its libraries."),
    key("warm.enabled", Kind::Boolean, "true", "Fork sandboxes from a prepared interpreter. Otherwise each starts its own, which takes some fifty times as long."),
    key("warm.tiers", Kind::Texts, "asyncio+json+re+datetime+dataclasses+pathlib,numpy,numpy+pandas", "Modules that prepared interpreters have imported, each `+` for another; turns that import nothing of them use a bare one. What is not installed is left out."),
    key("warm.ready", Kind::Integer(0, 256), "32", "Sandboxes of one tier that wait for code, at most: as many as are needed, from 2. With 0 none waits and each is forked for its call."),
    key("environment_builder.enabled", Kind::Boolean, "true", "Whether environments may be built."),
    key("environment_builder.uv_cache_path", Kind::Path, "", "The cache of `uv`. Default: `uv` in the data directory."),
    key("environment_builder.max_packages", Kind::Integer(1, 10_000), "50", "Packages that one environment is asked for, its template's included; what they need is not counted."),
    key("environment_builder.max_build_time", PERIOD, "600", "Time for one build."),
    key("environment_builder.max_image_size", ANY_SIZE, "2g", "Size of a built environment."),
    key("environment_builder.max_concurrent_builds", Kind::Integer(1, 1_000), "3", "Builds at once."),
    key("environment_builder.build_rate_limit.requests", COUNT, "10", "Builds of one principal in one period."),
    key("environment_builder.build_rate_limit.period", PERIOD, "3600", "That period."),
    key("environment_builder.uv", Kind::Path, "", "The program `uv`, 0.11.15 or newer. Default: the one on PATH."),
    key("environment_builder.index_url", Kind::Secret, "https://pypi.org/simple", "The index of every package that no other index is named for. It may hold a user and a password."),
    key("environment_builder.extra_indexes.*.url", Kind::Secret, "", "A further index. It may hold a user and a password."),
    key("environment_builder.extra_indexes.*.packages", Kind::Texts, "", "The packages that come from it, and from nowhere else."),
    key("environment_builder.file_hosts", Kind::Texts, "files.pythonhosted.org", "Hosts that an index's files may come from, beside its own."),
    key("environment_builder.wheel_directory", Kind::Path, "", "Directory with wheels of your own, to be installed without an index."),
    key("environment_builder.exclude_newer", Kind::Text, "", "Files that were uploaded later are not seen: a date, a moment (RFC 3339), or an age such as `7d`."),
    key("environment_builder.python_paths", Kind::Texts, "", "Interpreters to build environments for, beside those on PATH."),
    key("environment_builder.python_downloads", Kind::Boolean, "false", "Let `uv` fetch a Python that the machine lacks."),
    key("environment_builder.archive_after", PERIOD, "2592000", "Of an environment that is unused for so long only the lock is kept."),
    key("environment_builder.delete_after", PERIOD, "7776000", "An environment that is unused for so long is forgotten."),
    key("environment_builder.scanner", Kind::Choice(&["auto", "off", "trivy", "grype"]), "auto", "What looks for known vulnerabilities: `auto` is whichever is on PATH."),
    key("environment_builder.refuse_severity", Kind::Choice(&["critical", "high", "none"]), "critical", "From which severity on an environment is refused; with `none` vulnerabilities are only told."),
    key("environment_builder.templates_path", Kind::Path, "", "Directory of YAML files with further templates: each has a section `templates`, or is one that is called as the file is."),
    key("environment_builder.templates.*.description", Kind::Text, "", "What the template is for."),
    key("environment_builder.templates.*.packages", Kind::Texts, "", "Its packages, as PEP 508 requirements."),
    key("packages.allowlist", Kind::Texts, "", "Packages that need no approval: names, or patterns with `*` for any text."),
    key("packages.allowlist_only", Kind::Boolean, "false", "Install packages of the allowlist only."),
    key("packages.blocklist", Kind::Texts, "", "Names and patterns of packages that are never installed, beside a built-in list of malicious ones."),
    key("packages.manual_approval", Kind::Texts, "", "Names and patterns of packages that the operator must approve."),
    key("log.format", Kind::Choice(&["text", "json"]), "text", "The log on standard error: for people, or one JSON object a line."),
    key("telemetry.otlp_endpoint", Kind::Secret, "", "Collector that traces are sent to, as OTLP over HTTP: `http://127.0.0.1:4318`. Default: `OTEL_EXPORTER_OTLP_ENDPOINT`; without either there are none."),
    key("telemetry.otlp_headers", Kind::SecretTable, "", "Headers of every request to it, in place of those of the standard variables. Default: `OTEL_EXPORTER_OTLP_HEADERS`."),
    key("telemetry.service_name", Kind::Text, "", "What spans say they are of. Default: `OTEL_SERVICE_NAME`, else `mcp-forge`."),
    key("telemetry.sample_percent", Kind::Integer(0, 100), "100", "Of a hundred traces that begin here, so many are sent; a caller that sends a `traceparent` decides itself."),
    key("bridge.max_calls", COUNT, "1000", "Tool calls of one turn."),
    key("bridge.max_in_flight", Kind::Integer(1, 1_000), "32", "Tool calls of one turn at the same time."),
    key("bridge.max_bytes", ANY_SIZE, "256m", "Moved through tools by one turn, both ways."),
    key("bridge.max_answer", Kind::Size(1, 64 * MEBIBYTE), "64m", "One tool's answer."),
    key("mcp_tools.*.type", Kind::Choice(&["stdio", "http", "streamable-http"]), "", "How to reach the server. Default: `stdio` with `command`, `http` with `url`."),
    key("mcp_tools.*.command", Kind::Text, "", "Program to start, found on PATH."),
    key("mcp_tools.*.args", Kind::Secrets, "", "Its arguments."),
    key("mcp_tools.*.env", Kind::SecretTable, "", "Variables added to its small base environment."),
    key("mcp_tools.*.cwd", Kind::Path, "", "Its working directory."),
    key("mcp_tools.*.url", Kind::Secret, "", "Address of a Streamable HTTP server."),
    key("mcp_tools.*.headers", Kind::SecretTable, "", "Headers of every request to it."),
    key("mcp_tools.*.disabled", Kind::Boolean, "false", "Leave this server out; its `${...}` are not looked up."),
    key("mcp_tools.*.start_timeout", TIMEOUT, "60", "Time for start and handshake."),
    key("mcp_tools.*.call_timeout", TIMEOUT, "120", "Time for one call."),
];

/// The names that the specification gives to four variables, beside the regular ones.
pub(super) const OTHER_NAMES: &[(&str, &str)] = &[
    ("MCP_FORGE_PODMAN_SOCKET", "server.podman_socket"),
    ("MCP_FORGE_VOLUMES_PATH", "volumes.base_path"),
    (
        "MCP_FORGE_UV_CACHE_PATH",
        "environment_builder.uv_cache_path",
    ),
    ("MCP_FORGE_AUDIT_LOG", "security.audit_log"),
];

/// Variables that are not keys: where the file is, and what is logged.
pub(super) const OTHER_VARIABLES: &[&str] = &["MCP_FORGE_CONFIG", "MCP_FORGE_LOG"];

const fn key(path: &'static str, kind: Kind, default: &'static str, meaning: &'static str) -> Key {
    Key {
        path,
        kind,
        default,
        meaning,
    }
}

impl Key {
    /// The environment variable that overrides it; none for keys under a name of the operator's, and for
    /// tables, which one text cannot hold.
    pub(super) fn variable(&self) -> Option<String> {
        (!self.path.contains('*') && self.kind != Kind::SecretTable)
            .then(|| format!("MCP_FORGE_{}", self.path.to_uppercase().replace('.', "_")))
    }
}

/// What may stand at a path.
pub(super) enum Place {
    /// The value of a key.
    Value(&'static Key),
    /// A section; these keys may stand in it, or any name.
    Section(Vec<&'static str>),
    /// Nothing.
    Unknown,
}

/// Looks up what the table says of a path.
pub(super) fn place(path: &[String]) -> Place {
    let mut inside: Vec<&'static str> = Vec::new();
    for key in KEYS {
        let mut pattern = key.path.split('.');
        if !path.iter().all(|part| {
            pattern
                .next()
                .is_some_and(|expected| expected == "*" || expected == part)
        }) {
            continue;
        }
        match pattern.next() {
            None => return Place::Value(key),
            Some(next) if inside.contains(&next) => {}
            Some(next) => inside.push(next),
        }
    }
    if inside.is_empty() {
        Place::Unknown
    } else {
        Place::Section(inside)
    }
}

/// The candidate that was probably meant, if any is near.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    const LONGEST: usize = 100;
    const NEAR: f64 = 0.75;
    if word.len() > LONGEST {
        return None;
    }
    let lower = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            (
                strsim::normalized_damerau_levenshtein(&lower, &candidate.to_lowercase()),
                candidate,
            )
        })
        .filter(|(score, _)| *score >= NEAR)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}

/// The reference of all keys, as the table in `docs/configuration.md`.
pub fn reference() -> String {
    let mut text = String::from(
        "| key | value | default | variable | what it decides |\n| --- | --- | --- | --- | --- |\n",
    );
    for key in KEYS {
        let default = if key.default.is_empty() {
            String::new()
        } else {
            format!("`{}`", key.default)
        };
        let variables: Vec<String> = OTHER_NAMES
            .iter()
            .filter(|(_, path)| *path == key.path)
            .map(|(name, _)| (*name).to_owned())
            .chain(key.variable())
            .map(|name| format!("`{name}`"))
            .collect();
        let (path, kind, variables) = (key.path, key.kind.described(), variables.join(", "));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| `{path}` | {kind} | {default} | {variables} | {} |",
            key.meaning
        );
    }
    text
}

impl Kind {
    /// The kind in words, with its range.
    pub(super) fn described(self) -> String {
        match self {
            Self::Text | Self::Secret => "a text".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::Boolean => "`true` or `false`".to_owned(),
            Self::Integer(least, most) => format!("a whole number from {least} to {most}"),
            Self::Size(least, most) => {
                format!("a size from {} to {}", show_size(least), show_size(most))
            }
            Self::Duration(least, most) => format!("a duration from {least} s to {most} s"),
            Self::Choice(words) => words
                .iter()
                .map(|word| format!("`{word}`"))
                .collect::<Vec<_>>()
                .join(" or "),
            Self::Texts | Self::Secrets => "a list of texts".to_owned(),
            Self::SecretTable => "names and texts".to_owned(),
        }
    }

    /// Whether a value of this kind must not be shown.
    pub(super) fn is_secret(self) -> bool {
        matches!(self, Self::Secret | Self::Secrets | Self::SecretTable)
    }
}
