//! The podman engine: containers, made through a container API's socket. Docker's speaks the same.
//!
//! A container's first process is our relay (`runner/mcp_forge_runner/relay.py`), which gets the
//! runner's source over the container's own stream, says what holds in there, and then starts the
//! interpreter. Nothing is mounted, so the service may be in a virtual machine or on another host.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use jail::meter::Meter;
use tokio::sync::Mutex;

use super::{Engine, Environment, Isolation, LaunchError, Probe, Purpose, Sandbox, SandboxSpec};
use crate::{
    config::{Config, ContainersConfig, EngineKind},
    limits::Limits,
    policy::{ContainerPolicy, Image},
};

mod body;
mod containers;
mod environments;
mod facts;
mod guard;
pub mod images;
mod layered;
mod link;
mod owner;
mod pool;
mod probe;
pub mod socket;
mod upkeep;
pub mod versions;

use containers::{ContainerError, Containers, Own};
use facts::Requirements;
use guard::Container;
use images::{Pull, Pulled};
use link::{LinkError, Opening, Streams};
use owner::Owner;
use pool::Pools;
use socket::Socket;

/// After the service did not answer, the time until it is asked again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The longest such time.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The longest wait for containers to be gone when the server ends.
const END: Duration = Duration::from_secs(30);

/// Starts containers.
#[derive(Debug, Clone)]
pub struct Podman(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: EngineKind,
    settings: ContainersConfig,
    requirements: Requirements,
    default_limits: Limits,
    data_dir: PathBuf,
    policy: Arc<ContainerPolicy>,
    service: Mutex<Connection>,
    /// Written once: what the service is told to filter system calls with.
    filter: OnceLock<String>,
    owner: OnceLock<Arc<Owner>>,
    own: Own,
    pools: Pools,
    /// Held by whoever builds or removes an image of an environment.
    building: Mutex<()>,
}

/// The service, as far as it answers.
#[derive(Debug, Default)]
struct Connection {
    service: Option<Service>,
    /// When it may be asked again, and how long after that, and what it said.
    failed: Option<(Instant, Duration, String)>,
}

/// A service that has answered.
#[derive(Debug, Clone)]
struct Service {
    socket: Arc<Socket>,
    containers: Containers,
}

/// What a container is for, whoever gets it.
#[derive(Debug, Clone)]
struct Wanted {
    limits: Limits,
    purpose: Purpose,
    environment: Option<Arc<Environment>>,
}

/// A container whose interpreter waits.
pub(in crate::engine) struct Made {
    container: Container,
    streams: Streams,
    isolation: Isolation,
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Made")
            .field("container", &self.container)
            .finish_non_exhaustive()
    }
}

impl Made {
    fn into_sandbox(self) -> Sandbox {
        Sandbox {
            connection: Box::new(self.streams.connection),
            stdout: Box::new(self.streams.stdout),
            stderr: Box::new(self.streams.stderr),
            guard: Box::new(self.container),
            isolation: self.isolation,
        }
    }
}

impl Podman {
    /// Prepares the engine for `execution.engine`; asks nobody anything.
    pub fn new(config: &Config) -> Self {
        let images = config.containers.images.allowed.clone();
        Self(Arc::new(Inner {
            kind: match config.engine {
                EngineKind::Docker => EngineKind::Docker,
                EngineKind::Native | EngineKind::Podman => EngineKind::Podman,
            },
            settings: config.containers.clone(),
            requirements: Requirements {
                profile: config.profile.name(),
                allow_degraded: config.allow_degraded.clone(),
            },
            default_limits: config.default_limits.clone(),
            data_dir: config.data_dir.clone(),
            policy: Arc::new(ContainerPolicy::new(images)),
            service: Mutex::default(),
            filter: OnceLock::new(),
            owner: OnceLock::new(),
            own: Own::default(),
            pools: Pools::default(),
            building: Mutex::default(),
        }))
    }
}

impl Inner {
    /// The service; one that failed is asked again after a pause that grows.
    async fn service(&self) -> Result<Service, LaunchError> {
        let mut connection = self.service.lock().await;
        if let Some(service) = &connection.service {
            return Ok(service.clone());
        }
        let pause = match &connection.failed {
            Some((when, pause, problem)) if Instant::now() < *when => {
                let again = format!("{problem} (asked again in {} s)", pause.as_secs().max(1));
                return Err(LaunchError::Unreachable(again));
            }
            Some((_, pause, _)) => (*pause * 2).min(LONGEST_PAUSE),
            None => FIRST_PAUSE,
        };
        match self.connect().await {
            Ok(service) => {
                connection.failed = None;
                connection.service = Some(service.clone());
                Ok(service)
            }
            Err(error) => {
                connection.failed = Some((Instant::now() + pause, pause, error.to_string()));
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Service, LaunchError> {
        let unreachable = |error: socket::SocketError| LaunchError::Unreachable(error.to_string());
        let socket = Socket::connect(self.kind, self.settings.socket.as_deref());
        let socket = Arc::new(socket.await.map_err(unreachable)?);
        let owner = if let Some(owner) = self.owner.get() {
            Arc::clone(owner)
        } else {
            let owner = Owner::register(&self.data_dir).map_err(|error| files(&error))?;
            // Connections are made one at a time: nobody else has registered meanwhile.
            Arc::clone(self.owner.get_or_init(|| Arc::new(owner)))
        };
        let policy = Arc::clone(&self.policy);
        let own = (owner, self.own.clone());
        let containers = Containers::new(socket.client.clone(), policy, own);
        let removed = containers.remove_orphans().await;
        match removed.map_err(|error| self.refused(error))? {
            0 => {}
            count => tracing::info!(count, "containers of servers that are gone were removed"),
        }
        containers.owner().forget_dead();
        Ok(Service { socket, containers })
    }

    /// Forgets a service that does not answer, so that the next launch looks for it again.
    async fn forget(&self) {
        self.service.lock().await.service = None;
        drop(self.pools.turns.drain());
        drop(self.pools.sessions.drain());
    }

    /// Pulls the configured images, as far as that is wanted and allowed.
    async fn pull(&self, service: &Service, what: Pull) {
        let is_allowed = |name: &str| self.policy.image(name).is_ok();
        let client = service.containers.client();
        for (image, became) in images::pull(client, &self.settings.images, what, &is_allowed).await
        {
            match became {
                Pulled::Pulled => tracing::info!(image, "pulled"),
                Pulled::Failed(error) => tracing::warn!(image, %error, "not pulled"),
                Pulled::Present | Pulled::NotAllowed | Pulled::NoRegistry => {}
            }
        }
    }

    fn image_names(&self, purpose: &Purpose) -> Vec<&str> {
        let images = &self.settings.images;
        match purpose {
            Purpose::Session => vec![&images.jupyter, &images.python_3_12, &images.python_3_11],
            Purpose::Turn(_) => vec![&images.python_3_12, &images.python_3_11, &images.jupyter],
        }
    }

    /// The first image of those that fit which is there.
    async fn image(&self, service: &Service, purpose: &Purpose) -> Result<Image, LaunchError> {
        let names = self.image_names(purpose);
        for name in &names {
            let found = service.containers.image(name).await;
            if let Some(image) = found.map_err(|error| self.refused(error))? {
                return Ok(image);
            }
        }
        Err(LaunchError::Python(format!(
            "the {} service has none of the images {}: build them with `mcp-forge image build`",
            self.kind.name(),
            names.join(", ")
        )))
    }

    /// What containers that are made ahead are for.
    fn wanted(&self, purpose: &Purpose) -> Wanted {
        Wanted {
            limits: self.default_limits.clone(),
            purpose: purpose.clone(),
            environment: None,
        }
    }

    /// As [`Self::make`], to its end even if the caller goes: what is half made cannot be taken back.
    async fn make_whole(self: &Arc<Self>, wanted: Wanted) -> Result<Made, LaunchError> {
        let inner = Arc::clone(self);
        let making = async move { inner.make(&wanted).await };
        let made = self.own.tasks.spawn(making).await;
        made.unwrap_or_else(|error| Err(LaunchError::Start(error.to_string())))
    }

    /// Makes a container, cold.
    async fn make(&self, wanted: &Wanted) -> Result<Made, LaunchError> {
        let service = self.service().await?;
        let made = self.make_with(&service, wanted).await;
        match made {
            Err(LaunchError::Unreachable(problem)) => {
                self.forget().await;
                Err(LaunchError::Unreachable(problem))
            }
            Err(LaunchError::Start(problem)) if needs_runc(&problem) => {
                Err(LaunchError::Start(format!(
                    "{problem}. Its runtime does not run with this host's cgroups: install runc, and set \
                     `runtime = \"runc\"` under [engine] in containers.conf"
                )))
            }
            made => made,
        }
    }

    async fn make_with(&self, service: &Service, wanted: &Wanted) -> Result<Made, LaunchError> {
        let image = match &wanted.environment {
            None => self.image(service, &wanted.purpose).await?,
            Some(environment) => self.image_of(service, environment).await?,
        };
        let containers = &service.containers;
        let filter = self.filter()?;
        let labels = containers.owner().labels();
        let body = body::body(&image, &wanted.limits, labels, (filter, self.kind));
        let id = containers.create(&image, body).await;
        let id = id.map_err(|error| self.refused(error))?;
        match self.open(service, &id, wanted).await {
            Ok(made) => Ok(made),
            Err(error) => {
                containers.remove(&id).await;
                Err(error)
            }
        }
    }

    async fn open(
        &self,
        service: &Service,
        id: &str,
        wanted: &Wanted,
    ) -> Result<Made, LaunchError> {
        let limits = &wanted.limits;
        let broken = |error: LinkError| LaunchError::Start(error.to_string());
        let containers = &service.containers;
        let attached = containers.start(id).await;
        let attached = attached.map_err(|error| self.refused(error))?;
        let (opening, facts) = Opening::begin(attached, &body::runner())
            .await
            .map_err(broken)?;
        let runtime = probe::runtime(&service.socket.version);
        let isolation = facts.isolation(self.kind.name(), &runtime, limits, &self.requirements)?;
        if let Some(environment) = &wanted.environment {
            environments::fits(environment, &facts.python)?;
        }
        let is_other = wanted.environment.is_some();
        let start = body::start(&wanted.purpose, limits, is_other, &facts);
        let (link, streams) = opening.start(&start).await.map_err(broken)?;
        let process = containers.process(id).await;
        let meter = process.and_then(|process| Meter::of_container(process, id));
        Ok(Made {
            container: Container {
                id: id.to_owned(),
                link: Some(link),
                meter: meter.map(|meter| Arc::new(meter.open())),
                memory_bytes: limits.memory_bytes,
                containers: containers.clone(),
                _environment: wanted.environment.clone(),
                is_removed: false,
            },
            streams,
            isolation,
        })
    }

    /// What the option `seccomp` is given: Podman wants a file of its host, Docker the profile itself.
    fn filter(&self) -> Result<&str, LaunchError> {
        if let Some(filter) = self.filter.get() {
            return Ok(filter);
        }
        let profile = jail::seccomp::oci_profile();
        let filter = if self.kind == EngineKind::Docker {
            profile
        } else {
            let path = self.data_dir.join("containers/seccomp.json");
            write_whole(&path, &profile).map_err(|error| files(&error))?;
            let path = path.canonicalize().map_err(|error| files(&error))?;
            path.display().to_string()
        };
        Ok(self.filter.get_or_init(|| filter))
    }

    fn refused(&self, error: ContainerError) -> LaunchError {
        match error {
            ContainerError::Forbidden(violation) => LaunchError::Forbidden(violation),
            ContainerError::Unreachable(problem) => LaunchError::Unreachable(format!(
                "the {} service does not answer: {problem}",
                self.kind.name()
            )),
            ContainerError::Refused(problem) => {
                LaunchError::Start(format!("{} refused: {problem}", self.kind.name()))
            }
        }
    }

    /// Makes containers ahead, and says in the log when that fails.
    async fn fill(&self, purpose: &Purpose) {
        let pool = match purpose {
            Purpose::Session => &self.pools.sessions,
            Purpose::Turn(_) => &self.pools.turns,
        };
        let Some(_filling) = pool.filling() else {
            return;
        };
        // So many at a time: those that die as soon as they are made are not made without end.
        for _ in 0..self.settings.ready {
            if !pool.lacks(self.settings.ready) || self.own.tasks.is_closed() {
                return;
            }
            match self.make(&self.wanted(purpose)).await {
                Ok(made) => pool.put(made),
                Err(error) => {
                    tracing::warn!(%error, "no container could be made ahead");
                    return;
                }
            }
        }
    }
}

#[async_trait::async_trait]
impl Engine for Podman {
    fn name(&self) -> &'static str {
        self.0.kind.name()
    }

    async fn probe(&self) -> Probe {
        self.0.probe().await
    }

    async fn prepare(&self) -> Result<(), LaunchError> {
        let service = self.0.service().await?;
        self.0.pull(&service, Pull::Missing).await;
        tokio::spawn(upkeep::pull_newer(Arc::downgrade(&self.0)));
        tokio::spawn(upkeep::tidy(
            Arc::downgrade(&self.0),
            self.0.settings.max_age,
        ));
        self.0.image(&service, &Purpose::default()).await?;
        if self.0.settings.ready > 0 {
            let wanted = self.0.wanted(&Purpose::default());
            let made = self.0.make_whole(wanted).await?;
            self.0.pools.turns.put(made);
        }
        // Whoever ends the engine waits for what is being made here too.
        let tasks = &self.0.own.tasks;
        tasks.track_future(self.0.fill(&Purpose::default())).await;
        Ok(())
    }

    fn ready(&self) -> usize {
        self.0.pools.turns.len() + self.0.pools.sessions.len()
    }

    async fn launch(&self, spec: &SandboxSpec) -> Result<Sandbox, LaunchError> {
        let inner = &self.0;
        let wanted = Wanted {
            limits: spec.limits.clone(),
            purpose: spec.purpose.clone(),
            environment: spec.environment.clone(),
        };
        // Of an environment none is made ahead.
        let is_plain = spec.environment.is_none() && spec.limits.are_alike(&inner.default_limits);
        if inner.settings.ready == 0 || !is_plain {
            let made = inner.make_whole(wanted).await?;
            return Ok(made.into_sandbox());
        }
        let (pool, purpose) = match &spec.purpose {
            Purpose::Session => (&inner.pools.sessions, Purpose::Session),
            Purpose::Turn(_) => (&inner.pools.turns, Purpose::default()),
        };
        let waiting = pool.take();
        let made = match waiting {
            Some(made) => made,
            None => inner.make_whole(wanted).await?,
        };
        let filling = Arc::clone(inner);
        let filling = async move { filling.fill(&purpose).await };
        inner.own.tasks.spawn(filling);
        Ok(made.into_sandbox())
    }

    async fn release(&self, id: &str) -> bool {
        self.0.release(id).await
    }

    async fn shutdown(&self) {
        let Inner { pools, own, .. } = &*self.0;
        own.tasks.close();
        own.ending.cancel();
        // Dropped, they are removed by tasks; so is what others make just now, or have dropped.
        drop((pools.turns.drain(), pools.sessions.drain()));
        let gone = async {
            own.tasks.wait().await;
            // What was being made for them meanwhile.
            drop((pools.turns.drain(), pools.sessions.drain()));
            own.tasks.wait().await;
        };
        if tokio::time::timeout(END, gone).await.is_err() {
            tracing::warn!("not all containers are gone; the next start removes them");
        }
        own.ended.cancel();
    }
}

/// Whether the service's runtime does not know this host's cgroups, as crun on a hybrid one.
fn needs_runc(problem: &str) -> bool {
    problem.contains("crun") || problem.contains("hybrid mode")
}

fn files(error: &io::Error) -> LaunchError {
    LaunchError::Start(format!("the data directory cannot be used: {error}"))
}

/// Writes a file so that nobody ever reads a part of it.
fn write_whole(path: &Path, content: &str) -> io::Result<()> {
    let temporary = path.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&temporary, content)?;
    std::fs::rename(temporary, path)
}
