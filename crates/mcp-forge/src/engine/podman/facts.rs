//! What a container says of itself before any code runs, and what follows: layers, limits, refusal.
//!
//! The image is the operator's and the relay is ours, so its first words can be relied on as far as
//! the container service can. They are read from the kernel inside, which is how a limit that the
//! host ignores is noticed.

use serde::Deserialize;

use crate::{
    engine::{Isolation, LaunchError, Layer, LayerState, LimitReport},
    limits::Limits,
};

/// A container's facts.
#[expect(
    clippy::struct_excessive_bools,
    reason = "the relay's words, one field each"
)]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Facts {
    pub(super) python: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    pub(super) no_new_privs: bool,
    pub(super) seccomp: bool,
    /// Whether any of the five sets holds one.
    pub(super) capabilities: bool,
    pub(super) interfaces: Vec<String>,
    pub(super) read_only_root: bool,
    pub(super) pid: u32,
    pub(super) memory_bytes: Option<u64>,
    pub(super) pids: Option<u64>,
    pub(super) cpu_quota_us: Option<u64>,
}

/// What the operator requires and allows.
#[derive(Debug, Clone)]
pub(super) struct Requirements {
    /// `security.profile`.
    pub(super) profile: &'static str,
    /// `security.allow_degraded`.
    pub(super) allow_degraded: Vec<String>,
}

/// The user and group of everything inside.
pub(super) const USER: u32 = 1000;

/// A rounding of the kernel: memory is counted in pages, quotas in whole microseconds.
const PAGE: u64 = 4096;

impl Facts {
    /// The layers and limits in force.
    ///
    /// # Errors
    ///
    /// [`LaunchError::LayerMissing`]: one does not hold, and may not be missing.
    pub(super) fn isolation(
        &self,
        engine: &str,
        runtime: &str,
        limits: &Limits,
        requirements: &Requirements,
    ) -> Result<Isolation, LaunchError> {
        let limit_reports = self.limits(limits);
        let held = limit_reports
            .iter()
            .all(|limit| limit.state == LayerState::Enforced);
        let layers = self.layers(runtime, held);
        for layer in &layers {
            let may_be_missing = requirements.allow_degraded.contains(&layer.name);
            if layer.state != LayerState::Enforced && !may_be_missing {
                return Err(LaunchError::LayerMissing {
                    layer: layer.name.clone(),
                    profile: requirements.profile.to_owned(),
                    reason: layer.detail.clone(),
                    fix: fix(&layer.name),
                });
            }
        }
        Ok(Isolation {
            engine: engine.to_owned(),
            profile: requirements.profile.to_owned(),
            layers,
            limits: limit_reports,
        })
    }

    /// Whether memory is held for the whole container.
    pub(super) fn holds_memory(&self, limits: &Limits) -> bool {
        self.memory_bytes
            .is_some_and(|bytes| bytes.abs_diff(limits.memory_bytes) < PAGE)
    }

    fn layers(&self, runtime: &str, limits_hold: bool) -> Vec<Layer> {
        let layer = |name: &str, holds: bool, detail: &str, otherwise: String| Layer {
            name: name.to_owned(),
            state: if holds {
                LayerState::Enforced
            } else {
                LayerState::Missing
            },
            detail: if holds { detail.to_owned() } else { otherwise },
        };
        let is_user =
            (self.uid, self.gid) == (USER, USER) && self.groups.iter().all(|id| *id == USER);
        let network = self.interfaces.iter().all(|name| name == "lo");
        let mut layers = vec![
            layer("container", true, runtime, String::new()),
            layer(
                "pid_namespace",
                self.pid == 1,
                "it sees no process but its own",
                format!("the first process has the number {}", self.pid),
            ),
            layer(
                "network_namespace",
                network,
                "a network of its own, with nothing in it",
                format!("there are interfaces: {}", self.interfaces.join(", ")),
            ),
            layer(
                "read_only_root",
                self.read_only_root,
                "the image is read-only; /workspace, /tmp and /dev/shm are memory",
                "the image can be written to".to_owned(),
            ),
            layer(
                "user",
                is_user,
                "user and group 1000",
                format!(
                    "it runs as {}:{} with groups {:?}",
                    self.uid, self.gid, self.groups
                ),
            ),
            layer(
                "capabilities",
                !self.capabilities,
                "none, in any set",
                "it has capabilities".to_owned(),
            ),
            layer(
                "no_new_privs",
                self.no_new_privs,
                "programs gain no rights when executed",
                "programs could gain rights when executed".to_owned(),
            ),
            layer(
                "seccomp",
                self.seccomp,
                "the filter of the native engine, as an OCI profile",
                "no filter of system calls is installed".to_owned(),
            ),
        ];
        layers.push(Layer {
            name: "cgroup".to_owned(),
            state: if limits_hold {
                LayerState::Enforced
            } else {
                LayerState::BestEffort
            },
            detail: if limits_hold {
                "limits of all processes together, read back from inside".to_owned()
            } else {
                "the host ignores limits that it was asked for".to_owned()
            },
        });
        layers
    }

    fn limits(&self, limits: &Limits) -> Vec<LimitReport> {
        let report = |name: &str, holds: bool, otherwise: &str| LimitReport {
            name: name.to_owned(),
            state: if holds {
                LayerState::Enforced
            } else {
                LayerState::BestEffort
            },
            detail: if holds { "cgroup" } else { otherwise }.to_owned(),
        };
        let cpu = self
            .cpu_quota_us
            .is_some_and(|us| us.abs_diff(limits.cpu_quota_us) <= 1);
        vec![
            report(
                "memory",
                self.holds_memory(limits),
                "a limit of the interpreter's own data only",
            ),
            report("cpu", cpu, "none: the deadline is what ends a turn"),
            report(
                "pids",
                // The relay is one more.
                self.pids == Some(limits.pids + 1),
                "processes of this user id, on the whole host",
            ),
            LimitReport {
                name: "storage".to_owned(),
                state: LayerState::Enforced,
                detail: "size of the file systems in memory".to_owned(),
            },
        ]
    }
}

fn fix(layer: &str) -> String {
    let fix = match layer {
        "cgroup" => {
            "Use cgroup v2 with the controllers delegated to this user, or run the service as root; or \
             allow it by name: security.allow_degraded: [cgroup]"
        }
        "seccomp" => {
            "The service was told to install a filter: see whether its runtime supports seccomp"
        }
        _ => "The container service did not do what it was asked: see its own settings",
    };
    fix.to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn facts() -> Facts {
        Facts {
            python: "3.11.2".to_owned(),
            uid: 1000,
            gid: 1000,
            groups: vec![1000],
            no_new_privs: true,
            seccomp: true,
            capabilities: false,
            interfaces: vec!["lo".to_owned()],
            read_only_root: true,
            pid: 1,
            memory_bytes: Some(512 << 20),
            pids: Some(101),
            cpu_quota_us: Some(50_000),
        }
    }

    fn limits() -> Limits {
        Limits {
            timeout: Duration::from_secs(1),
            memory_bytes: 512 << 20,
            cpu_quota_us: 50_000,
            pids: 100,
            storage_bytes: 1 << 30,
        }
    }

    fn refused(facts: &Facts, allowed: &[&str]) -> Option<String> {
        let requirements = Requirements {
            profile: "desktop",
            allow_degraded: allowed.iter().map(|&name| name.to_owned()).collect(),
        };
        let isolation = facts.isolation("podman", "runc", &limits(), &requirements);
        isolation.err().map(|error| match error {
            LaunchError::LayerMissing { layer, .. } => layer,
            other => other.to_string(),
        })
    }

    #[test]
    fn a_container_as_it_was_asked_for_is_accepted() {
        assert_eq!(refused(&facts(), &[]), None);
    }

    #[test]
    fn each_layer_that_does_not_hold_is_a_refusal_that_names_it() {
        type Change = fn(&mut Facts);
        let changes: [(&str, Change); 9] = [
            ("pid_namespace", |facts| facts.pid = 4321),
            ("network_namespace", |facts| {
                facts.interfaces.push("eth0".to_owned());
            }),
            ("read_only_root", |facts| facts.read_only_root = false),
            ("user", |facts| facts.uid = 0),
            ("user", |facts| facts.groups.push(0)),
            ("capabilities", |facts| facts.capabilities = true),
            ("no_new_privs", |facts| facts.no_new_privs = false),
            ("seccomp", |facts| facts.seccomp = false),
            ("cgroup", |facts| facts.memory_bytes = None),
        ];
        for (layer, change) in changes {
            let mut facts = facts();
            change(&mut facts);
            assert_eq!(refused(&facts, &[]).as_deref(), Some(layer));
            assert_eq!(refused(&facts, &[layer]), None);
            assert_eq!(refused(&facts, &["other"]).as_deref(), Some(layer));
        }
    }

    #[test]
    fn limits_that_the_host_ignores_are_told_one_by_one() {
        let ignoring = Facts {
            memory_bytes: Some(u64::MAX),
            pids: None,
            ..facts()
        };
        let states: Vec<_> = ignoring
            .limits(&limits())
            .into_iter()
            .map(|limit| (limit.name, limit.state))
            .collect();
        assert_eq!(states[0], ("memory".to_owned(), LayerState::BestEffort));
        assert_eq!(states[1], ("cpu".to_owned(), LayerState::Enforced));
        assert_eq!(states[2], ("pids".to_owned(), LayerState::BestEffort));
    }
}
