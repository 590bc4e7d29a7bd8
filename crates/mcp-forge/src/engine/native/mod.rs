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
use tokio::sync::{Mutex, OnceCell};

use super::{Engine, Environment, Isolation, LaunchError, Probe, Purpose, Sandbox, SandboxSpec};
use crate::{
    config::{Config, Profile, Rootfs},
    limits::Limits,
};

mod environments;
mod interpreter;
pub mod job;
mod launch;
mod minimal;
mod output_pipe;
mod render;
mod versions;
mod warm;

pub use versions::{NoPython, Python, PythonSearch, find_python};

use environments::{Environments, Kept};
use interpreter::Interpreter;
use render::{Base, Host};
use warm::{Origin, Tier, Warm};

/// Starts sandboxes on this Linux machine, as root or as an ordinary user.
#[derive(Debug)]
pub struct Native {
    settings: Settings,
    /// This program's own binary.
    jail: PathBuf,
    /// Found at first use: asking an interpreter what it is takes tens of milliseconds.
    host: OnceCell<Arc<Host>>,
    /// Sandboxes made ahead, once [`Engine::prepare`] was called: a command that runs one turn is
    /// quicker without.
    warm: OnceCell<Warm>,
    /// The same for environments.
    environments: Environments,
    /// Held while a minimal root is made.
    roots: Mutex<()>,
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
            environments: Environments::default(),
            roots: Mutex::new(()),
            probes: AtomicU64::new(0),
        }
    }

    async fn host(&self) -> Result<Arc<Host>, LaunchError> {
        self.host
            .get_or_try_init(|| self.find_host())
            .await
            .cloned()
    }

    async fn find_host(&self) -> Result<Arc<Host>, LaunchError> {
        let interpreter = interpreter::find(self.settings.python.as_deref())
            .await
            .map_err(LaunchError::Python)?;
        let base = Base::new(interpreter);
        self.environments.know(&base).await;
        let private_root = self.private_root(&base.interpreter).await?;
        Ok(Arc::new(Host::read(base, private_root)))
    }

    async fn private_root(
        &self,
        interpreter: &Interpreter,
    ) -> Result<Option<PathBuf>, LaunchError> {
        if self.settings.rootfs == Rootfs::Host {
            return Ok(None);
        }
        let (interpreter, roots) = (interpreter.clone(), self.settings.data_dir.join("roots"));
        let _only_one = self.roots.lock().await;
        let copied =
            tokio::task::spawn_blocking(move || minimal::prepare(&interpreter, &roots)).await;
        copied
            .map_err(|error| LaunchError::Start(error.to_string()))?
            .map(Some)
            .map_err(|error| {
                LaunchError::Start(format!("cannot prepare the minimal root: {error}"))
            })
    }

    async fn make_warm(&self, host: &Host) -> Warm {
        let tiers = Tier::parse_all(&self.settings.tiers);
        let modules: Vec<&str> = tiers.iter().flat_map(Tier::names).collect();
        // The second is for environments, whose first turn shall not wait for it.
        let (installed, _) = tokio::join!(
            host.base.interpreter.installed(&modules),
            host.base.standard(&modules)
        );
        self.warm_with(host, &installed, None)
    }

    /// Pools whose sandboxes see these modules, in tiers that need no others.
    fn warm_with(
        &self,
        host: &Host,
        installed: &[String],
        environment: Option<Arc<Environment>>,
    ) -> Warm {
        let has = |name: &str| installed.iter().any(|has| has == name);
        let mut tiers = Tier::parse_all(&self.settings.tiers);
        tiers.retain(|tier| tier.names().all(has));
        tiers.push(Tier::of_sessions());
        let ready = match environment {
            None => self.settings.ready,
            Some(_) => self.settings.ready.min(environments::MOST_READY),
        };
        let profile = self.settings.profile;
        let spec = render::zygote_spec(
            &self.settings.default_limits,
            host,
            self.required(),
            profile,
        );
        let origin = Origin {
            jail: self.jail.clone(),
            profile,
            environment,
        };
        Warm::new(&origin, &spec, tiers, ready)
    }

    /// A root around the tree of an environment.
    async fn host_of(&self, environment: &Environment) -> Result<Arc<Host>, LaunchError> {
        let base = self.environments.base(environment).await?;
        if self.warm.initialized()
            && let Err(error) = base.compile_runner().await
        {
            tracing::warn!(%error, "the interpreter does not compile the runner; each sandbox will");
        }
        let private_root = self.private_root(&base.interpreter).await?;
        Ok(Arc::new(Host::of_environment(
            base,
            private_root,
            environment,
        )))
    }

    async fn warm_of(&self, kept: &Kept, host: &Host) -> Warm {
        let tiers = Tier::parse_all(&self.settings.tiers);
        let names: Vec<&str> = tiers.iter().flat_map(Tier::names).collect();
        let mut modules = host.base.standard(&names).await.to_vec();
        modules.extend_from_slice(&kept.environment.modules);
        self.warm_with(host, &modules, Some(Arc::clone(&kept.environment)))
    }

    async fn launch_in(
        &self,
        spec: &SandboxSpec,
        environment: &Arc<Environment>,
    ) -> Result<Sandbox, LaunchError> {
        let kept = self.environments.get(environment);
        let host = kept
            .host
            .get_or_try_init(|| self.host_of(environment))
            .await?;
        let warm = if self.warm.initialized() && environment.is_published() {
            Some(kept.warm.get_or_init(|| self.warm_of(&kept, host)).await)
        } else {
            None
        };
        self.launch_on(spec, host, warm).await
    }

    /// Takes a sandbox that is warm if there is a way to, else starts one.
    async fn launch_on(
        &self,
        spec: &SandboxSpec,
        host: &Host,
        warm: Option<&Warm>,
    ) -> Result<Sandbox, LaunchError> {
        if let Some(warm) = warm {
            match warm.take(spec, render::jail_limits(&spec.limits)).await {
                Ok(sandbox) => return Ok(sandbox),
                // What the profile requires and the host refuses, the cold path refuses too.
                Err(error) => {
                    tracing::warn!(%error, "the zygote failed; this sandbox is made without it");
                }
            }
        }
        let jail_spec = render::jail_spec(spec, host, self.required());
        let environment = spec.environment.clone();
        launch::launch(&self.jail, &jail_spec, self.settings.profile, environment).await
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
            notes.push(host.base.interpreter.describe());
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
            environment: None,
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
        if let Err(error) = host.base.compile_runner().await {
            tracing::warn!(%error, "the interpreter does not compile the runner; each sandbox will");
        }
        if !self.settings.warm {
            return Ok(());
        }
        let warm = self.warm.get_or_init(|| self.make_warm(&host));
        warm.await.prepare().await
    }

    async fn launch(&self, spec: &SandboxSpec) -> Result<Sandbox, LaunchError> {
        if let Some(environment) = &spec.environment {
            return self.launch_in(spec, environment).await;
        }
        let host = self.host().await?;
        self.launch_on(spec, &host, self.warm.get()).await
    }

    fn ready(&self) -> usize {
        self.warm.get().map_or(0, warm::Warm::ready) + self.environments.ready()
    }

    async fn release(&self, id: &str) -> bool {
        self.environments.release(id);
        true
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
