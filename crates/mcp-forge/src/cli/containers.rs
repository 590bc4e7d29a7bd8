//! The part of `mcp-forge doctor` about a container API: what is behind it, and what is known of it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    config::{Config, EngineKind},
    engine::podman::{
        socket::{Socket, SocketError},
        versions::{Component, components},
    },
    text::printable,
};

use super::terminal::{one_line, wrapped};

/// How long a service may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(5);

const MENDED: &str = "A distribution may have mended these without changing the number: look there for \
                      each name (Debian: security-tracker.debian.org). This check cannot see it.";

/// What was found at a socket.
#[derive(Debug)]
pub(super) struct ContainerApi {
    socket: String,
    engine: &'static str,
    components: Vec<Component>,
}

/// Looks for the API of the configured engine. Where that is the native one, any that is there.
///
/// # Errors
///
/// Why the configured engine's cannot be used, in a sentence.
pub(super) async fn look(config: &Config) -> Result<Option<ContainerApi>, String> {
    let socket = config.containers.socket.as_deref();
    let ask = async |kind| {
        tokio::time::timeout(PATIENCE, Socket::connect(kind, socket))
            .await
            .map_err(|_| {
                format!(
                    "the container API did not answer within {} s",
                    PATIENCE.as_secs()
                )
            })?
            .map(|socket| Some(ContainerApi::of(&socket)))
            .map_err(|error: SocketError| error.to_string())
    };
    if config.engine != EngineKind::Native {
        return ask(config.engine).await;
    }
    match ask(EngineKind::Podman).await {
        Ok(found) => Ok(found),
        // Nobody asked for one.
        Err(_) => Ok(ask(EngineKind::Docker).await.unwrap_or(None)),
    }
}

impl ContainerApi {
    fn of(socket: &Socket) -> Self {
        Self {
            socket: socket.path.display().to_string(),
            engine: socket.kind.name(),
            components: components(&socket.version),
        }
    }

    pub(super) fn as_json(&self) -> Value {
        json!({ "socket": self.socket, "engine": self.engine, "components": self.components })
    }

    pub(super) fn rows(&self) -> Vec<String> {
        const INDENT: usize = 18;
        let mut rows = vec![format!("  socket          {}", printable(&self.socket))];
        for component in &self.components {
            let (name, version) = (one_line(&component.name), one_line(&component.version));
            rows.push(format!("  {name:<14}  {version}"));
            rows.extend(component.holes.iter().map(|hole| {
                let text = format!(
                    "{}: {}; fixed in {}",
                    hole.id,
                    hole.what,
                    hole.fixed_in.join(", ")
                );
                format!("{:INDENT$}{}", "", wrapped(&text, INDENT))
            }));
        }
        if self
            .components
            .iter()
            .any(|component| !component.holes.is_empty())
        {
            rows.push(format!("  {}", wrapped(MENDED, 2)));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::{SystemVersion, SystemVersionComponents};

    use super::*;

    #[test]
    fn the_report_for_people_and_for_programs() {
        let component = |name: &str, version: &str| SystemVersionComponents {
            name: name.to_owned(),
            version: version.to_owned(),
            details: None,
        };
        let version = SystemVersion {
            components: Some(vec![
                component("Podman Engine", "6.2.0"),
                component("Conmon", "conmon version 2.1.6, commit: \u{1b}[31m"),
                component("OCI Runtime (runc)", "runc version 1.2.7\ncommit: x"),
            ]),
            ..SystemVersion::default()
        };
        let api = ContainerApi {
            socket: "/run/podman/podman.sock".to_owned(),
            engine: "podman",
            components: components(&version),
        };
        insta::assert_snapshot!("containers", api.rows().join("\n"));
        let report = api.as_json();
        assert_eq!(report["components"][2]["holes"][0]["id"], "CVE-2026-41579");
        assert_eq!(report["components"][2]["holes"][0].get("program"), None);
    }
}
