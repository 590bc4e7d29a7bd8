//! From single checked values to the typed configuration: what must fit together is checked here.

use std::path::{Path, PathBuf};

use crate::limits::Limits;

use super::{
    Backend, BridgeLimits, Config, ContainersConfig, EngineKind, Images, LogFormat, NativeConfig,
    OutputCaps, Profile, Rootfs, ServerConfig, SessionsConfig, TelemetryConfig, TlsFiles,
    VolumesConfig, environments, error::ConfigError, later::Later, oauth, read::Reader, upstreams,
};

/// Builds the configuration; returns it with the warnings that its values deserve.
///
/// # Errors
///
/// [`ConfigError::Key`] for values that are right alone and wrong together.
pub(super) fn build(
    reader: &Reader<'_>,
    data_dir: PathBuf,
) -> Result<(Config, Vec<String>), ConfigError> {
    let (default_limits, max_limits) = limits(reader)?;
    if !reader.flag("security.enforce_resource_limits") {
        let problem = "limits are always enforced, this cannot be switched off: remove the key";
        return Err(reader.error("security.enforce_resource_limits", problem));
    }
    let (upstreams, mut warnings) = upstreams::read(reader)?;
    let config = Config {
        default_limits,
        max_limits,
        max_concurrent: reader.number("execution.max_concurrent")?,
        caps: OutputCaps {
            output_bytes: reader.bytes("execution.max_output")?,
            flood_bytes: reader.size("execution.max_flood")?,
            result_bytes: reader.bytes("execution.max_result")?,
            display_bytes: reader.bytes("execution.max_displays")?,
        },
        bridge: BridgeLimits {
            max_calls: reader.count("bridge.max_calls")?,
            max_in_flight: reader.number("bridge.max_in_flight")?,
            max_bytes: reader.size("bridge.max_bytes")?,
            max_answer_bytes: reader.bytes("bridge.max_answer")?,
        },
        profile: match reader.text("security.profile").as_deref() {
            Some("strict") => Profile::Strict,
            _ => Profile::Desktop,
        },
        allow_degraded: reader.texts("security.allow_degraded"),
        native: NativeConfig {
            python: reader.path("python.path"),
            rootfs: match reader.text("native.rootfs").as_deref() {
                Some("minimal") => Rootfs::Minimal,
                _ => Rootfs::Host,
            },
            warm: reader.flag("warm.enabled"),
            tiers: reader.texts("warm.tiers"),
            ready: reader.number("warm.ready")?,
        },
        engine: match reader.text("execution.engine").as_deref() {
            Some("podman") => EngineKind::Podman,
            Some("docker") => EngineKind::Docker,
            _ => EngineKind::Native,
        },
        containers: containers(reader)?,
        audit_dir: audit_directory(reader, &data_dir)?,
        upstreams,
        default_backend: match reader.text("execution.default_backend").as_deref() {
            Some("jupyter") => Backend::Jupyter,
            _ => Backend::Simple,
        },
        server: server(reader)?,
        background_idle: reader.duration("server.background_idle")?,
        sessions: sessions(reader)?,
        volumes: volumes(reader, &data_dir)?,
        environments: environments::read(reader, &data_dir)?,
        telemetry: telemetry(reader)?,
        later: Later {
            allow_network: reader.flag("security.allow_network"),
        },
        data_dir,
    };
    warnings.extend(weakened(&config));
    Ok((config, warnings))
}

fn limits(reader: &Reader<'_>) -> Result<(Limits, Limits), ConfigError> {
    let read = |which: &str| {
        Ok::<_, ConfigError>(Limits {
            timeout: reader.duration(&format!("execution.{which}_timeout"))?,
            memory_bytes: reader.size(&format!("execution.{which}_memory"))?,
            cpu_quota_us: reader.count(&format!("execution.{which}_cpu_quota"))?,
            pids: reader.count(&format!("execution.{which}_pids"))?,
            storage_bytes: reader.size(&format!("execution.{which}_storage"))?,
        })
    };
    let (default, most) = (read("default")?, read("max")?);
    for (name, above) in [
        ("timeout", default.timeout > most.timeout),
        ("memory", default.memory_bytes > most.memory_bytes),
        ("cpu_quota", default.cpu_quota_us > most.cpu_quota_us),
        ("pids", default.pids > most.pids),
        ("storage", default.storage_bytes > most.storage_bytes),
    ] {
        if above {
            return Err(above_maximum(
                reader,
                &format!("execution.default_{name}"),
                &format!("execution.max_{name}"),
            ));
        }
    }
    Ok((default, most))
}

fn above_maximum(reader: &Reader<'_>, key: &str, most: &str) -> ConfigError {
    let (value, limit) = (reader.shown(key), reader.shown(most));
    // The one that was written is the one to change; the other may be a default.
    if reader.is_written(key) {
        reader.error(
            key,
            format!("{value} is above {most}, which is {limit}: lower it, or raise {most}"),
        )
    } else {
        reader.error(
            most,
            format!("{limit} is below {key}, which is {value}: raise it, or lower {key}"),
        )
    }
}

fn server(reader: &Reader<'_>) -> Result<ServerConfig, ConfigError> {
    let tls = match (
        reader.path("server.tls.cert"),
        reader.path("server.tls.key"),
    ) {
        (Some(cert), Some(key)) => Some(TlsFiles { cert, key }),
        (None, None) => None,
        (cert, _) => {
            let (given, missing) = if cert.is_some() {
                ("server.tls.cert", "server.tls.key")
            } else {
                ("server.tls.key", "server.tls.cert")
            };
            let problem = format!("TLS needs a certificate and its key: give {missing} as well");
            return Err(reader.error(given, problem));
        }
    };
    Ok(ServerConfig {
        host: reader.text("server.host").unwrap_or_default(),
        port: reader.number("server.port")?,
        tokens: reader.path("server.tokens"),
        oauth: oauth::read(reader)?,
        tls,
        plaintext: reader.flag("server.plaintext"),
        allowed_hosts: reader.texts("server.allowed_hosts"),
        allowed_origins: reader.texts("server.allowed_origins"),
        max_body: reader.bytes("server.max_body")?,
        max_connections: reader.number("server.max_connections")?,
        requests_per_minute: reader.number("server.requests_per_minute")?,
        requests_in_flight: reader.number("server.requests_in_flight")?,
        cpu_seconds_per_hour: if reader.is_written("server.cpu_seconds_per_hour") {
            Some(reader.number("server.cpu_seconds_per_hour")?)
        } else {
            None
        },
        drain: reader.duration("server.drain")?,
    })
}

fn telemetry(reader: &Reader<'_>) -> Result<TelemetryConfig, ConfigError> {
    Ok(TelemetryConfig {
        log_format: match reader.text("log.format").as_deref() {
            Some("json") => LogFormat::Json,
            _ => LogFormat::Text,
        },
        otlp_endpoint: reader.text("telemetry.otlp_endpoint"),
        otlp_headers: reader.text_table("telemetry.otlp_headers"),
        service_name: reader.text("telemetry.service_name"),
        sample_percent: reader.number("telemetry.sample_percent")?,
    })
}

fn containers(reader: &Reader<'_>) -> Result<ContainersConfig, ConfigError> {
    let text = |path: &str| reader.text(path).unwrap_or_default();
    Ok(ContainersConfig {
        socket: reader.path("server.podman_socket"),
        images: Images {
            python_3_11: text("images.python_3_11"),
            python_3_12: text("images.python_3_12"),
            jupyter: text("images.jupyter"),
            base: text("images.base"),
            allowed: reader.texts("images.allowed"),
            auto_pull: reader.flag("images.auto_pull"),
            pull_interval: reader.duration("images.pull_interval")?,
        },
        ready: reader.number("containers.ready")?,
        max_age: reader.duration("containers.max_age")?,
    })
}

fn sessions(reader: &Reader<'_>) -> Result<SessionsConfig, ConfigError> {
    Ok(SessionsConfig {
        idle_timeout: reader.duration("sessions.idle_timeout")?,
        max_lifetime: reader.duration("sessions.max_lifetime")?,
        max_concurrent: reader.number("sessions.max_concurrent")?,
        max_per_principal: reader.number("sessions.max_per_principal")?,
        cleanup_interval: reader.duration("sessions.cleanup_interval")?,
        queue_length: reader.number("sessions.queue_length")?,
        max_files: reader.number("sessions.max_files")?,
        keep_code: reader.flag("sessions.keep_code"),
        keep_history: reader.number("sessions.keep_history")?,
        keep_ended: reader.duration("sessions.keep_ended")?,
    })
}

fn volumes(reader: &Reader<'_>, data_dir: &Path) -> Result<VolumesConfig, ConfigError> {
    let volumes = VolumesConfig {
        base_path: reader
            .path("volumes.base_path")
            .unwrap_or_else(|| data_dir.join("volumes")),
        session_quota: reader.size("volumes.session_quota")?,
        max_session_quota: reader.size("volumes.max_session_quota")?,
    };
    if volumes.session_quota > volumes.max_session_quota {
        return Err(above_maximum(
            reader,
            "volumes.session_quota",
            "volumes.max_session_quota",
        ));
    }
    Ok(volumes)
}

/// The specification names a file; the log is one file a server process. So the path without its
/// extension is the directory in which those files lie, and nothing else lies there.
fn audit_directory(reader: &Reader<'_>, data_dir: &Path) -> Result<PathBuf, ConfigError> {
    let Some(path) = reader.path("security.audit_log") else {
        return Ok(data_dir.join("audit"));
    };
    match path.file_name() {
        Some(_) => Ok(path.with_extension("")),
        None => Err(reader.error(
            "security.audit_log",
            "this names no directory of its own: write one such as /var/log/mcp-forge/audit",
        )),
    }
}

/// What an operator chose that protects or does less than it may seem.
fn weakened(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.later.allow_network {
        warnings.push(
            "security.allow_network: true has no effect: sandboxes have no network in this version"
                .to_owned(),
        );
    }
    if !config.allow_degraded.is_empty() {
        let layers = config.allow_degraded.join(", ");
        warnings.push(format!(
            "security.allow_degraded: sandboxes may run without {layers}"
        ));
    }
    warnings
}
