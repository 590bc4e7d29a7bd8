//! The native engine: Linux namespaces, built by this same program as `mcp-forge jail`.
//!
//! Here is only what comes before and after: which interpreter, which root, what to ask of the
//! jail (`render`, pure), and the launch socket (`launch`, thin).

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jail::{probe::HostFacts, spec::Layer};
use tokio::sync::OnceCell;

use super::{Engine, Isolation, LaunchError, Probe, Purpose, Sandbox, SandboxSpec};
use crate::{
    config::{Config, Profile, Rootfs},
    limits::Limits,
};

mod interpreter;
pub mod job;
mod launch;
mod minimal;
mod output_pipe;
mod render;
mod warm;

use interpreter::Interpreter;

/// Starts sandboxes on this Linux machine, as root or as an ordinary user.
#[derive(Debug)]
pub struct Native {
    settings: Settings,
    /// This program's own binary.
    jail: PathBuf,
    /// Found at first use: asking an interpreter what it is takes tens of milliseconds.
    host: OnceCell<Arc<render::Host>>,
    /// Sandboxes made ahead, once [`Engine::prepare`] was called: a command that runs one turn is
    /// quicker without.
    warm: OnceCell<warm::Warm>,
    /// Gives each probe a name of its own.
    probes: AtomicU64,
}

/// The part of the configuration that matters here.
#[derive(Debug, Clone)]
struct Settings {
    profile: Profile,
    allow_degraded: Vec<String>,
    python: Option<PathBuf>,
    rootfs: Rootfs,
    data_dir: PathBuf,
    default_limits: Limits,
    /// Whether sandboxes are forked from a zygote.
    warm: bool,
    /// What zygotes import.
    tiers: Vec<String>,
    /// Sandboxes that wait in each pool, at most.
    ready: usize,
}

impl Native {
    /// Prepares the engine; starts nothing.
    pub fn new(config: &Config) -> Self {
        // Not the path: it may name another file by the time of a launch.
        Self::with_jail(config, PathBuf::from("/proc/self/exe"))
    }

    /// As [`Native::new`], with the program that answers to `jail`: tests are not that program.
    pub fn with_jail(config: &Config, jail: PathBuf) -> Self {
        jail::cgroup::remove_stale();
        Self {
            settings: Settings {
                profile: config.profile,
                allow_degraded: config.allow_degraded.clone(),
                python: config.native.python.clone(),
                rootfs: config.native.rootfs,
                data_dir: config.data_dir.clone(),
                default_limits: config.default_limits.clone(),
                warm: config.native.warm,
                tiers: config.native.tiers.clone(),
                ready: config.native.ready,
            },
            jail,
            host: OnceCell::new(),
            warm: OnceCell::new(),
            probes: AtomicU64::new(0),
        }
    }

    async fn host(&self) -> Result<Arc<render::Host>, LaunchError> {
        self.host
            .get_or_try_init(|| self.find_host())
            .await
            .cloned()
    }

    async fn find_host(&self) -> Result<Arc<render::Host>, LaunchError> {
        let interpreter = interpreter::find(self.settings.python.as_deref())
            .await
            .map_err(LaunchError::Python)?;
        let private_root = match self.settings.rootfs {
            Rootfs::Host => None,
            Rootfs::Minimal => {
                let (interpreter, roots) =
                    (interpreter.clone(), self.settings.data_dir.join("roots"));
                let copied =
                    tokio::task::spawn_blocking(move || minimal::prepare(&interpreter, &roots))
                        .await;
                Some(
                    copied
                        .map_err(|error| LaunchError::Start(error.to_string()))?
                        .map_err(|error| {
                            LaunchError::Start(format!("cannot prepare the minimal root: {error}"))
                        })?,
                )
            }
        };
        Ok(Arc::new(render::Host::read(interpreter, private_root)))
    }

    async fn make_warm(&self, host: &render::Host) -> warm::Warm {
        let tiers = warm::Tier::parse_all(&self.settings.tiers);
        let modules: Vec<&str> = tiers.iter().flat_map(warm::Tier::names).collect();
        let installed = host.interpreter.installed(&modules).await;
        let has = |name: &str| installed.iter().any(|has| has == name);
        let mut tiers: Vec<warm::Tier> = tiers
            .into_iter()
            .filter(|tier| tier.names().all(has))
            .collect();
        tiers.push(warm::Tier::of_sessions());
        let spec = render::zygote_spec(
            &self.settings.default_limits,
            host,
            self.required(),
            self.settings.profile,
        );
        warm::Warm::new(
            &self.jail,
            &spec,
            self.settings.profile,
            tiers,
            self.settings.ready,
        )
    }

    fn required(&self) -> Vec<Layer> {
        required(self.settings.profile, &self.settings.allow_degraded)
    }
}

/// The layers without which a profile refuses to run.
fn required(profile: Profile, allow_degraded: &[String]) -> Vec<Layer> {
    let optional: &[Layer] = match profile {
        Profile::Desktop => &[Layer::Cgroup, Layer::Landlock],
        Profile::Strict => &[],
    };
    Layer::ALL
        .into_iter()
        .filter(|layer| {
            !optional.contains(layer) && !allow_degraded.iter().any(|name| name == layer.name())
        })
        .collect()
}

#[async_trait::async_trait]
impl Engine for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    /// Builds one real sandbox and takes it down again: what holds is known only by trying.
    async fn probe(&self) -> Probe {
        let facts = HostFacts::read();
        let mut notes = vec![
            format!("kernel {}", facts.kernel),
            format!("cgroups: {}", facts.cgroups),
            format!("security modules: {}", facts.security_modules),
        ];
        notes.extend(facts.warnings);
        if let Ok(host) = self.host().await {
            notes.push(host.interpreter.describe());
        }
        let id = format!(
            "probe-{}-{}",
            std::process::id(),
            self.probes.fetch_add(1, Ordering::Relaxed)
        );
        let spec = SandboxSpec {
            id,
            limits: self.settings.default_limits.clone(),
            purpose: Purpose::default(),
        };
        match self.launch(&spec).await {
            Ok(sandbox) => {
                let Isolation { layers, limits, .. } = sandbox.isolation;
                sandbox.guard.end(Duration::ZERO).await;
                Probe {
                    engine: self.name().to_owned(),
                    usable: true,
                    layers,
                    limits,
                    notes,
                }
            }
            Err(error) => {
                notes.push(error.to_string());
                let layers = launch::refused_layer(&error).into_iter().collect();
                Probe {
                    engine: self.name().to_owned(),
                    usable: false,
                    layers,
                    limits: Vec::new(),
                    notes,
                }
            }
        }
    }

    async fn prepare(&self) -> Result<(), LaunchError> {
        let host = self.host().await?;
        if let Err(error) = host.compile_runner().await {
            tracing::warn!(%error, "the interpreter does not compile the runner; each sandbox will");
        }
        if !self.settings.warm {
            return Ok(());
        }
        let warm = self.warm.get_or_init(|| self.make_warm(&host));
        warm.await.prepare().await
    }

    async fn launch(&self, spec: &SandboxSpec) -> Result<Sandbox, LaunchError> {
        let host = self.host().await?;
        if let Some(warm) = self.warm.get() {
            match warm.take(spec, render::jail_limits(&spec.limits)).await {
                Ok(sandbox) => return Ok(sandbox),
                // What the profile requires and the host refuses, the cold path refuses too.
                Err(error) => {
                    tracing::warn!(%error, "the zygote failed; this sandbox is made without it");
                }
            }
        }
        let jail_spec = render::jail_spec(spec, &host, self.required());
        launch::launch(&self.jail, &jail_spec, self.settings.profile).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_requires_every_layer_and_desktop_all_but_two() {
        assert_eq!(required(Profile::Strict, &[]), Layer::ALL);
        let missing: Vec<Layer> = Layer::ALL
            .into_iter()
            .filter(|layer| !required(Profile::Desktop, &[]).contains(layer))
            .collect();
        assert_eq!(missing, [Layer::Cgroup, Layer::Landlock]);
    }

    #[test]
    fn only_a_layer_that_is_named_may_be_missing() {
        let required = required(
            Profile::Strict,
            &["cgroup".to_owned(), "nonsense".to_owned()],
        );
        assert_eq!(required.len(), Layer::ALL.len() - 1);
        assert!(!required.contains(&Layer::Cgroup));
    }
}
