//! What the service says of itself, and whether a container holds: for `doctor`.

use std::time::Duration;

use bollard::models::SystemVersion;

use super::{Inner, Purpose};
use crate::engine::{Guard, Isolation, LaunchError, Layer, LayerState, Probe};

impl Inner {
    /// Starts a real container and removes it again: what holds is known only by trying.
    pub(super) async fn probe(&self) -> Probe {
        let mut notes = Vec::new();
        if let Ok(service) = self.service().await {
            notes.push(format!("socket {}", service.socket.path.display()));
            notes.push(runtime(&service.socket.version));
        }
        let made = self.make(&self.wanted(&Purpose::default())).await;
        let engine = self.kind.name().to_owned();
        match made {
            Ok(made) => {
                let Isolation { layers, limits, .. } = made.isolation;
                let guard: Box<dyn Guard> = Box::new(made.container);
                guard.end(Duration::ZERO).await;
                Probe {
                    engine,
                    usable: true,
                    layers,
                    limits,
                    notes,
                }
            }
            Err(error) => {
                notes.push(error.to_string());
                Probe {
                    engine,
                    usable: false,
                    layers: missing(error).into_iter().collect(),
                    limits: Vec::new(),
                    notes,
                }
            }
        }
    }
}

/// The service's parts with their versions.
pub(super) fn runtime(version: &SystemVersion) -> String {
    let parts: Vec<String> = version
        .components
        .iter()
        .flatten()
        .map(|part| {
            let first = part.version.lines().next().unwrap_or_default();
            let short = first.strip_prefix("conmon version ").unwrap_or(first);
            if short.contains(&part.name) || part.name.contains("Runtime") {
                short.to_owned()
            } else {
                format!("{} {short}", part.name)
            }
        })
        .collect();
    parts.join(", ")
}

fn missing(error: LaunchError) -> Option<Layer> {
    match error {
        LaunchError::LayerMissing {
            layer, reason, fix, ..
        } => Some(Layer {
            name: layer,
            state: LayerState::Missing,
            detail: format!("{reason}. {fix}"),
        }),
        _ => None,
    }
}
