//! Runs turns for `cargo xtask bench`, in a process that holds a [`Service`] as a server does.
//!
//! One line of JSON on standard input asks for something, one on standard output answers; the clock
//! runs in here. Started as `turns upstream` it is the MCP server whose tools the turns call.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
    path::PathBuf,
    sync::Arc,
};

use mcp_forge::{
    audit::Audit,
    bridge::Bridge,
    config::{Config, EngineKind, Sources},
    engine::{self, Engine, native::Native},
    service::Service,
};
use serde_json::{Value, json};

mod alive;
mod load;
mod sessions;
mod stages;
mod turn;
mod upstream;

/// The bench's image of containers.
const IMAGE: &str = "mcp-forge-bench:1";

/// Any failure: the bench shows it and goes on with the next contender.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["upstream"] => upstream::serve(),
        ["serve", path, binary, python, data] => {
            let setup = Setup {
                path: Path::parse(path)?,
                binary: binary.into(),
                python: (*python).to_owned(),
                data: data.into(),
            };
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()?;
            runtime.block_on(serve(&setup))
        }
        _ => Err("this program is started by `cargo xtask bench`".into()),
    }
}

/// What is different from the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Default,
    /// The warm path is switched off.
    Cold,
    /// No sandbox waits: each is forked when it is asked for.
    Empty,
    /// Everything runs in sessions.
    Session,
    /// In containers, one of which waits.
    Podman,
    /// In containers, each started for its turn.
    PodmanCold,
}

impl Path {
    fn parse(word: &str) -> Result<Self, Failure> {
        match word {
            "default" => Ok(Self::Default),
            "cold" => Ok(Self::Cold),
            "empty" => Ok(Self::Empty),
            "session" => Ok(Self::Session),
            "podman" => Ok(Self::Podman),
            "podman-cold" => Ok(Self::PodmanCold),
            _ => Err("this program is started by `cargo xtask bench`".into()),
        }
    }
}

/// How services are made.
struct Setup {
    path: Path,
    /// The program that answers to `jail`.
    binary: PathBuf,
    /// The interpreter; for containers, the service's socket.
    python: String,
    /// The data directory.
    data: PathBuf,
}

impl Setup {
    /// The defaults, but a whole core for each sandbox: no other contender has a quota.
    fn config(&self, max_concurrent: usize) -> Result<Config, Failure> {
        let is_native = !matches!(self.path, Path::Podman | Path::PodmanCold);
        let own: &[(&str, &str)] = if is_native {
            &[("PYTHON_PATH", &self.python)]
        } else {
            &[
                ("EXECUTION_ENGINE", "podman"),
                ("PODMAN_SOCKET", &self.python),
                ("IMAGES_PYTHON_3_11", IMAGE),
                ("IMAGES_PYTHON_3_12", IMAGE),
                ("IMAGES_JUPYTER", IMAGE),
                ("IMAGES_ALLOWED", IMAGE),
            ]
        };
        let own = own.iter().map(|(key, value)| (*key, (*value).to_owned()));
        let mut environment: BTreeMap<String, String> = [
            ("EXECUTION_DEFAULT_CPU_QUOTA", "100000".to_owned()),
            ("EXECUTION_MAX_CONCURRENT", max_concurrent.to_string()),
            ("SESSIONS_MAX_CONCURRENT", sessions::MOST.to_string()),
            ("SESSIONS_MAX_PER_PRINCIPAL", sessions::MOST.to_string()),
            ("WARM_ENABLED", (self.path != Path::Cold).to_string()),
        ]
        .into_iter()
        .chain(own)
        .map(|(key, value)| (format!("MCP_FORGE_{key}"), value))
        .collect();
        if self.path == Path::PodmanCold {
            environment.insert("MCP_FORGE_CONTAINERS_READY".to_owned(), "0".to_owned());
        }
        if self.path == Path::Empty {
            environment.insert("MCP_FORGE_WARM_READY".to_owned(), "0".to_owned());
        }
        let loaded = Config::load(&Sources {
            file: Some(self.upstream_file()?),
            data_dir: Some(self.data.clone()),
            environment,
        })?;
        // A variable that names no key is warned of: then this is not measured, but the defaults.
        match loaded
            .warnings
            .iter()
            .find(|warning| warning.contains("MCP_FORGE_"))
        {
            Some(warning) => Err(warning.clone().into()),
            None => Ok(loaded.config),
        }
    }

    fn service(&self, max_concurrent: usize) -> Result<(Arc<Service>, Arc<Bridge>), Failure> {
        let config = self.config(max_concurrent)?;
        config.create_data_dir()?;
        let audit = Audit::open(&config.audit_dir)?;
        let engine: Arc<dyn Engine> = match config.engine {
            EngineKind::Native => Arc::new(Native::with_jail(&config, self.binary.clone())),
            EngineKind::Podman | EngineKind::Docker => engine::of(&config),
        };
        let bridge = Bridge::new(config.upstreams.clone(), config.bridge);
        let service = Service::new(config, engine, Arc::clone(&bridge), audit);
        service.start();
        Ok((service, bridge))
    }

    /// A configuration with this program as the only upstream.
    fn upstream_file(&self) -> Result<PathBuf, Failure> {
        std::fs::create_dir_all(&self.data)?;
        let file = self.data.with_extension("json");
        let program = std::env::current_exe()?;
        let text = json!({"mcp_tools": {"bench": {"command": program, "args": ["upstream"]}}});
        std::fs::write(&file, text.to_string())?;
        Ok(file)
    }
}

async fn serve(setup: &Setup) -> Result<(), Failure> {
    let (service, bridge) = setup.service(load::MAX_CONCURRENT)?;
    answer(&json!({"ready": true}))?;
    let mut live = sessions::Live::default();
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let code = request["code"].as_str().unwrap_or_default();
        let done = match request["op"].as_str() {
            // As a server does: on a worker, which waits for the kernel's events itself.
            Some("run") if setup.path == Path::Session => {
                let (service, mut sessions) = (Arc::clone(&service), live);
                let measured = tokio::spawn(async move {
                    let done = sessions.measured(&service, &request).await;
                    (done, sessions)
                });
                let (done, sessions) = measured.await?;
                live = sessions;
                done
            }
            Some("run") => {
                let (service, code) = (Arc::clone(&service), code.to_owned());
                let with_tools = request["tools"] == true;
                tokio::spawn(async move { turn::measured(&service, &code, with_tools).await })
                    .await?
            }
            Some("direct") => turn::direct(&bridge, &request).await,
            Some("load") => load::closed(&service, code, &request).await,
            Some("soak") => load::soak(&service, code, &request).await,
            Some("paced") => load::paced(&service, code, &request).await,
            Some("alive") => alive::many(setup, &request).await,
            Some("stages") => stages::measure(setup, &request).await,
            Some("sessions") => sessions::many(setup, &request).await,
            _ => Err("unknown op".into()),
        };
        answer(&done.unwrap_or_else(|failure| json!({"error": failure.to_string()})))?;
    }
    service.shutdown().await;
    Ok(())
}

fn answer(value: &Value) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{value}")?;
    Ok(stdout.flush()?)
}
