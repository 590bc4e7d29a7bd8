//! The kernel boundary of MCP-Forge: builds a sealed sandbox around one process.
//!
//! [`main`] is the process `mcp-forge jail`, the *keeper*: it receives a [`spec::JailSpec`] on its
//! standard input, makes a process in new namespaces (*init*, pid 1 of the sandbox), and
//! supervises it. Init walks the one ordered list below, then forks the *worker*, which becomes
//! the program. **The list is the security argument**: read `enter` below and `seal.rs` first.
//!
//! Synchronous, Linux only, single-threaded; all `unsafe` of the project is in `sys.rs`, `raw.rs`
//! and `fork_calls.rs`.
#![cfg(target_os = "linux")]

pub mod cgroup;
mod channel;
mod descriptors;
mod error;
pub mod explain;
mod fork;
mod gateway;
mod in_place;
mod init;
mod keeper;
pub mod launch;
pub mod meter;
mod mover;
mod namespaces;
mod plan;
pub mod probe;
mod raw;
mod ready;
mod rlimits;
mod rootfs;
mod seal;
pub mod seccomp;
pub mod spec;
mod sys;
mod twin;
mod watch;
mod zygote;

/// The object that a zygote loads, built from `object.rs`.
pub const SEAL_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/seal.so"));

pub use error::JailError;
pub use keeper::main;
pub use namespaces::job_ids;

use std::os::fd::OwnedFd;

use namespaces::Outside;
use rootfs::{Root, Sources};
use spec::{JailSpec, Layer, LayerReport};

/// Keeps every descriptor above standard error from programs that this process starts from now on.
/// For a server that is to outlive whoever started it, with whatever they had open.
///
/// # Errors
///
/// The system's; nothing changed.
pub fn pass_no_descriptors() -> std::io::Result<()> {
    sys::close_range(3, true)
}

/// Enters the jail, in order. Called once by init, alone in its fresh namespaces, before any byte
/// of the program has been read. The order *is* the argument for why it holds. Gives the layers, and a
/// build job's listener, which is the server's.
///
/// # Errors
///
/// The first step that failed and whose layer the spec requires; the caller must exit at once.
fn enter(
    spec: &JailSpec,
    sources: Sources,
    outside: &Outside,
) -> Result<(Vec<LayerReport>, Option<OwnedFd>), JailError> {
    let mut layers = Layers::of(spec);
    // What is made below must not depend on how the server was started.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // Before anything else: a failure below must never be seen by, or reach, an inherited descriptor.
    layers.step(Layer::Descriptors, descriptors::close_inherited)?;
    // Ids first: files made from here on belong to the sandbox's user, not to ours.
    layers.step(Layer::UserNamespace, namespaces::become_sandbox_user)?;
    layers.step(Layer::UserNamespace, || outside.left(Layer::UserNamespace))?;
    // After the keeper put us into our cgroup, so that its path reads `/` from inside.
    layers.step(Layer::CgroupNamespace, namespaces::leave_cgroup_view)?;
    layers.step(Layer::IpcNamespace, || outside.left(Layer::IpcNamespace))?;
    layers.step(Layer::NetworkNamespace, || {
        outside.left(Layer::NetworkNamespace)
    })?;
    layers.step(Layer::NetworkNamespace, namespaces::check_network)?;
    // A build job's one address, made while there is the privilege to: it is the server that answers.
    let listener = spec.job.as_ref().map(|_| gateway::open()).transpose()?;
    if listener.is_some() {
        let detail = gateway::describe();
        layers.note(Layer::NetworkNamespace, spec::State::Enforced, detail);
    }
    layers.step(Layer::UtsNamespace, || outside.left(Layer::UtsNamespace))?;
    layers.step(Layer::UtsNamespace, namespaces::set_names)?;
    layers.step(Layer::PidNamespace, || outside.left(Layer::PidNamespace))?;
    // A zygote's pids are those of all its forks together, whose limits are their own.
    if !spec.zygote {
        layers.step(Layer::PidNamespace, || {
            namespaces::limit_pids(spec.limits.pids)
        })?;
    }
    namespaces::limit_watches();
    layers.step(Layer::MountNamespace, || {
        outside.left(Layer::MountNamespace)
    })?;
    // No mount of ours may ever propagate to the host.
    layers.step(Layer::MountNamespace, rootfs::make_private)?;
    let root = Root::build(spec, sources)?;
    layers.step(Layer::PrivateDev, || {
        root.mount_devices(spec.limits.shm_bytes)
    })?;
    // Before the host's /proc is out of sight: the kernel wants to see one to give one.
    layers.step(Layer::ProcSubset, || root.mount_proc())?;
    if omitted(Layer::ProcSubset) {
        // Left out is the subset, not `/proc`.
        root.mount_proc()?;
    }
    // From here on no host path can be named.
    layers.step(Layer::MountNamespace, || root.enter())?;
    layers.step(Layer::ReadOnlyRoot, || {
        rootfs::make_read_only(spec.job.is_some())
    })?;
    if spec.zygote {
        in_place::prepare_zygote(spec, &mut layers)?;
    } else {
        in_place::seal(spec, &mut layers)?;
    }
    Ok((layers.reports, listener))
}

/// Runs steps, keeps what came of each, and refuses when a required one fails.
struct Layers<'a> {
    required: &'a [Layer],
    reports: Vec<LayerReport>,
}

impl<'a> Layers<'a> {
    fn of(spec: &'a JailSpec) -> Self {
        Self {
            required: &spec.required,
            reports: Vec::new(),
        }
    }

    /// Runs one step of a layer. Success is noted with what it found.
    fn step(
        &mut self,
        layer: Layer,
        step: impl FnOnce() -> Result<String, JailError>,
    ) -> Result<(), JailError> {
        if skipped(layer) {
            self.note(
                layer,
                spec::State::Missing,
                "left out by a test build".to_owned(),
            );
            return Ok(());
        }
        match step() {
            Ok(detail) => self.note(layer, spec::State::Enforced, detail),
            Err(error) if self.required.contains(&layer) => return Err(error),
            Err(error) => self.note(layer, spec::State::Missing, error.to_string()),
        }
        Ok(())
    }

    /// Notes what the seal did, or did not where a test build says so.
    fn sealed(&mut self, layer: Layer, state: spec::State, detail: String) {
        if omitted(layer) {
            self.note(
                layer,
                spec::State::Missing,
                "left out by a test build".to_owned(),
            );
        } else {
            self.note(layer, state, detail);
        }
    }

    /// Keeps one line a layer: a later step of the same layer adds to its detail.
    fn note(&mut self, layer: Layer, state: spec::State, detail: String) {
        match self.reports.iter_mut().find(|report| report.layer == layer) {
            Some(report) => {
                if state == spec::State::Missing {
                    report.state = state;
                }
                if !detail.is_empty() {
                    report.detail = [report.detail.as_str(), detail.as_str()].join("; ");
                }
            }
            None => self.reports.push(LayerReport {
                layer,
                state,
                detail,
            }),
        }
    }
}

/// Whether a layer's steps are skipped. Those of the mount namespace never are: without one, the
/// rest would be built over the host's directories. A test build that is to leave it out keeps the
/// host's root in sight instead (`Root::build`).
fn skipped(layer: Layer) -> bool {
    omitted(layer) && layer != Layer::MountNamespace
}

/// Whether a test build leaves this layer out, so that an escape test can show what it stops.
#[cfg(feature = "negative-controls")]
fn omitted(layer: Layer) -> bool {
    std::env::var("MCP_FORGE_OMIT_LAYERS")
        .is_ok_and(|names| names.split(',').any(|name| name == layer.name()))
}

/// There is no way to leave a layer out of a release.
#[cfg(not(feature = "negative-controls"))]
const fn omitted(_: Layer) -> bool {
    false
}
