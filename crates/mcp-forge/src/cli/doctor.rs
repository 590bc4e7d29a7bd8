//! `mcp-forge doctor`: what this host gives a sandbox, what is missing, and how to get it.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::fs::Access;
use serde_json::{Value, json};

use crate::{
    config::{Config, Loaded, Transport},
    engine::{self, LayerState, Probe},
    text::printable,
};

use super::{
    CliError, Exit,
    containers::{self, ContainerApi},
    terminal::{Screen, print_json, wrapped},
};

/// Check whether this machine can run sealed sandboxes
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Shows every layer of the sandbox with what was found and, where something is missing, what to do. \
Nothing is installed or changed, and no MCP server is started. Where a container API is configured, \
or there is one, the programs behind it are named with the holes that are known in their versions.

Exit codes: 0 if the configured engine can run sealed under the configured profile, else 1.

Examples:
  mcp-forge doctor
  mcp-forge doctor --json | jq '.probe.layers[] | select(.state != \"enforced\")'")]
pub(super) struct DoctorArguments {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(
    arguments: DoctorArguments,
    loaded: &Loaded,
    search_path: &str,
    screen: Screen,
) -> Result<Exit, CliError> {
    let probe = engine::of(&loaded.config).probe().await;
    let api = containers::look(&loaded.config).await;
    let exit = if probe.usable {
        Exit::Success
    } else {
        Exit::Failure
    };
    if arguments.json {
        let mut report = as_json(loaded, &probe, search_path);
        report["containers"] = match &api {
            Ok(api) => json!(api.as_ref().map(ContainerApi::as_json)),
            Err(problem) => json!({ "error": problem }),
        };
        print_json(&report)?;
    } else {
        let rows = match &api {
            Ok(None) => Vec::new(),
            Ok(Some(api)) => api.rows(),
            Err(problem) => vec![format!("  {}", wrapped(problem, 2))],
        };
        if !rows.is_empty() {
            let title = screen.bold("Container API");
            writeln!(io::stdout(), "{title}\n{}\n", rows.join("\n"))?;
        }
        let report = as_text(loaded, &probe, search_path, screen);
        write!(io::stdout(), "{report}")?;
    }
    Ok(exit)
}

/// A server under `mcp_tools`, as far as one can tell without starting it.
#[derive(Debug)]
struct UpstreamReport {
    name: String,
    kind: &'static str,
    /// What is started; an address may hold secrets and is not shown.
    command: Option<String>,
    program: Option<PathBuf>,
}

fn as_json(loaded: &Loaded, probe: &Probe, search_path: &str) -> Value {
    let upstreams: Vec<Value> = upstreams(&loaded.config, search_path)
        .map(|upstream| {
            json!({ "name": upstream.name, "type": upstream.kind, "command": upstream.command, "program": upstream.program })
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "config": {
            "file": loaded.file,
            "data_dir": loaded.config.data_dir,
            "audit_dir": loaded.config.audit_dir,
            "profile": loaded.config.profile.name(),
            "allow_degraded": loaded.config.allow_degraded,
            "warnings": loaded.warnings,
        },
        "probe": probe,
        "upstreams": upstreams,
    })
}

fn as_text(loaded: &Loaded, probe: &Probe, search_path: &str, screen: Screen) -> String {
    let mut lines = Vec::new();
    let mut section = |title: &str, rows: Vec<String>| {
        if !rows.is_empty() {
            lines.push(format!("{}\n{}\n", screen.bold(title), rows.join("\n")));
        }
    };
    section("Configuration", configuration_rows(loaded));
    let layers = probe.layers.iter();
    let layers = layers.map(|layer| row(screen, &layer.name, layer.state, &layer.detail));
    section("Layers", layers.collect());
    let limits = probe.limits.iter();
    let limits = limits.map(|limit| row(screen, &limit.name, limit.state, &limit.detail));
    section("Limits", limits.collect());
    let notes = probe.notes.iter();
    let notes = notes.map(|note| format!("  {}", wrapped(note, 2)));
    section("Notes", notes.collect());
    let mut servers: Vec<String> = upstreams(&loaded.config, search_path)
        .map(|upstream| server_row(&upstream))
        .collect();
    if servers.is_empty() {
        servers.push("  none: add them under mcp_tools (docs/configuration.md)".to_owned());
    }
    section("MCP servers", servers);
    let verdict = if probe.usable {
        format!("The {} engine can run sealed sandboxes here.", probe.engine)
    } else {
        format!(
            "The {} engine cannot run sandboxes here under the profile {}.",
            probe.engine,
            loaded.config.profile.name()
        )
    };
    lines.push(format!("{}\n", screen.verdict(probe.usable, &verdict)));
    lines.join("\n")
}

fn configuration_rows(loaded: &Loaded) -> Vec<String> {
    let config = &loaded.config;
    let file = loaded
        .file
        .as_deref()
        .map_or("none, the defaults apply".to_owned(), show);
    let mut rows = vec![
        format!("  file            {file}"),
        format!("  data directory  {}", show(&config.data_dir)),
        format!("  audit log       {}", show(&config.audit_dir)),
        format!("  profile         {}", config.profile.name()),
    ];
    if !config.allow_degraded.is_empty() {
        let layers = printable(&config.allow_degraded.join(", "));
        rows.push(format!("  may be missing  {layers}"));
    }
    let warnings = loaded.warnings.iter();
    rows.extend(warnings.map(|warning| format!("  warning: {}", wrapped(warning, 11))));
    rows
}

fn row(screen: Screen, name: &str, state: LayerState, detail: &str) -> String {
    const INDENT: usize = 35;
    format!(
        "  {:<19}  {:13}{}",
        printable(name),
        screen.state(state),
        wrapped(detail, INDENT)
    )
}

fn server_row(upstream: &UpstreamReport) -> String {
    let name = printable(&upstream.name);
    match (&upstream.command, &upstream.program) {
        (None, _) => format!("  {name:<16}  reached over HTTP; `mcp-forge tools` connects to it"),
        (Some(_), Some(program)) => format!("  {name:<16}  {}", show(program)),
        (Some(command), None) => {
            format!(
                "  {name:<16}  {} was not found on PATH: install it, or correct mcp_tools.{name}.command",
                printable(command)
            )
        }
    }
}

fn upstreams<'a>(
    config: &'a Config,
    search_path: &'a str,
) -> impl Iterator<Item = UpstreamReport> + 'a {
    config
        .upstreams
        .iter()
        .map(move |(name, upstream)| match &upstream.transport {
            Transport::Stdio { command, .. } => UpstreamReport {
                name: name.clone(),
                kind: "stdio",
                command: Some(command.clone()),
                program: find_program(command, search_path),
            },
            Transport::Http { .. } => UpstreamReport {
                name: name.clone(),
                kind: "http",
                command: None,
                program: None,
            },
        })
}

/// The file that starting a command would run.
pub(super) fn find_program(command: &str, search_path: &str) -> Option<PathBuf> {
    let is_program =
        |path: &PathBuf| path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok();
    if command.contains('/') {
        return Some(PathBuf::from(command)).filter(is_program);
    }
    std::env::split_paths(search_path)
        .map(|directory| directory.join(command))
        .find(is_program)
}

fn show(path: &Path) -> String {
    printable(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt};

    use crate::{
        config::Sources,
        engine::{Layer, LimitReport},
    };

    use super::*;

    fn probe(usable: bool) -> Probe {
        let layer = |name: &str, state, detail: &str| Layer {
            name: name.to_owned(),
            state,
            detail: detail.to_owned(),
        };
        Probe {
            engine: "native".to_owned(),
            usable,
            layers: vec![
                layer(
                    "namespaces",
                    LayerState::Enforced,
                    "user, mount, pid, net, ipc, uts",
                ),
                layer(
                    "landlock",
                    LayerState::Missing,
                    "the kernel has no Landlock: it was built without it, or it is not in the list of security modules. \
                     Add `landlock` to the kernel's `lsm=` parameter and restart",
                ),
            ],
            limits: vec![LimitReport {
                name: "memory".to_owned(),
                state: LayerState::BestEffort,
                detail: "rlimits".to_owned(),
            }],
            notes: vec!["python: /usr/bin/python3.11".to_owned()],
        }
    }

    fn loaded(directory: &Path) -> Loaded {
        let file = directory.join("config.yaml");
        let text = "mcp_tools: {a: {command: present}, b: {command: absent}, c: {url: 'https://x/secret'}}\n\
                    security: {allow_degraded: [landlock]}\n";
        fs::write(&file, text).unwrap();
        Config::load(&Sources {
            file: Some(file),
            data_dir: Some("/data".into()),
            environment: BTreeMap::new(),
        })
        .unwrap()
    }

    #[test]
    fn the_report_for_people_and_for_programs() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("present");
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let (loaded, search_path) = (loaded(directory.path()), directory.path().to_str().unwrap());
        let screen = Screen::detect(&BTreeMap::new());
        let text = as_text(&loaded, &probe(true), search_path, screen).replace(search_path, "DIR");
        insta::assert_snapshot!("doctor", text);
        assert!(
            as_text(&loaded, &probe(false), search_path, screen)
                .contains("cannot run sandboxes here under the profile desktop")
        );
        let report = as_json(&loaded, &probe(true), search_path);
        assert_eq!(report["probe"]["usable"], true);
        assert_eq!(report["upstreams"][0]["program"], program.to_str().unwrap());
        assert_eq!(report["upstreams"][1]["program"], Value::Null);
        assert!(!report.to_string().contains("secret"));
    }

    #[test]
    fn a_file_that_cannot_be_run_is_no_program() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("plain"), "").unwrap();
        assert_eq!(
            find_program("plain", directory.path().to_str().unwrap()),
            None
        );
        assert_eq!(find_program("/bin/sh", ""), Some("/bin/sh".into()));
        assert_eq!(find_program("sh", ""), None);
    }
}
