//! `mcp-forge demo`: the main job on real input, in front of the user's eyes.
//!
//! It asks the service for nothing that an agent could not ask for.

use std::{
    collections::BTreeMap,
    env,
    io::{self, Write},
    path::PathBuf,
};

use serde_json::json;

use crate::{
    config::Config,
    engine::{Isolation, LayerState},
    mcp::render::render,
    service::{ExecuteRequest, ExecuteResponse},
};

use super::{
    CliError, Exit, Signals, end,
    output::exit_of,
    service,
    terminal::{Screen, print_json},
};

mod orders;
mod source;
mod stage;

use source::Source;
use stage::{Stage, size};

/// See an agent's Python work on five megabytes through a public MCP server
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Needs npx (or uvx and git), which fetches the public MCP server. The data, a year of a shop's \
orders with a few mistakes in it, is generated in the data directory. Your own MCP servers are \
not started.

Exit codes are those of `mcp-forge run`.")]
pub(super) struct DemoArguments {
    /// Print the execute response as JSON, and nothing else
    #[arg(long)]
    json: bool,
}

/// The demo could not be shown. Nothing is left running; the data, once written, stays for the next time.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// No program that can fetch a public MCP server. Nothing was written.
    #[error(
        "`npx` was not found on PATH, nor `uvx` and `git`, and the demo needs them to start a public MCP server. \
         Install Node.js 20 or newer (Debian: apt-get install nodejs npm) and try again"
    )]
    NoServer,
    /// The data could not be written, or not be put under version control.
    #[error("the demo's data cannot be written to {path}: {source}")]
    Data {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

pub(super) async fn run(
    arguments: DemoArguments,
    config: Config,
    search_path: &str,
    screen: Screen,
) -> Result<Exit, CliError> {
    config.create_data_dir()?;
    let (demo, config) = Demo::prepare(config, search_path)?;
    let service = service(config)?;
    let (mut out, mut nowhere) = (io::stdout(), io::sink());
    let shown: &mut (dyn Write + Send) = if arguments.json {
        &mut nowhere
    } else {
        &mut out
    };
    let mut stage = Stage::new(shown, screen);
    demo.introduce(&mut stage)?;
    let mut signals = Signals::watch()?;
    let ended = tokio::select! {
        ended = service.execute(demo.request(), &mut stage) => Ok(ended),
        exit = signals.next() => Err(exit),
    };
    end(&service).await;
    let response = match ended {
        Ok(ended) => ended?,
        Err(exit) => return Ok(exit),
    };
    stage.check()?;
    conclude(&mut stage, &response)?;
    if arguments.json {
        print_json(&response)?;
    }
    Ok(exit_of(&response.outcome))
}

/// A demo with its data in place.
#[derive(Debug)]
struct Demo {
    source: Source,
    folder: PathBuf,
    bytes: u64,
}

impl Demo {
    /// Writes the data below the data directory, and replaces the upstreams of the configuration by the
    /// one that the demo uses: the user's own servers have no part in it.
    ///
    /// # Errors
    ///
    /// [`DemoError::NoServer`] and [`DemoError::Data`].
    fn prepare(mut config: Config, search_path: &str) -> Result<(Self, Config), DemoError> {
        let source = Source::find(search_path).ok_or(DemoError::NoServer)?;
        let folder = config.data_dir.join("demo").join(source.folder());
        let bytes = orders::write(&folder)
            .and_then(|bytes| source.publish(&folder).map(|()| bytes))
            .map_err(|source| DemoError::Data {
                path: folder.clone(),
                source,
            })?;
        config.upstreams = BTreeMap::from([(source.server().to_owned(), source.upstream(&folder))]);
        Ok((
            Self {
                source,
                folder,
                bytes,
            },
            config,
        ))
    }

    fn request(&self) -> ExecuteRequest {
        ExecuteRequest {
            code: self.source.code(&self.folder),
            mcp_tools: Some(
                self.source
                    .tools()
                    .iter()
                    .map(|&name| name.to_owned())
                    .collect(),
            ),
            ..ExecuteRequest::default()
        }
    }

    fn introduce(&self, stage: &mut Stage<'_>) -> io::Result<()> {
        stage.step("The data: a year of a shop's orders, with a few mistakes in it")?;
        stage.text(&format!(
            "12 files, {}, in {}",
            size(self.bytes),
            self.folder.display()
        ))?;
        stage.step("The tools: a public MCP server, started like any other")?;
        stage.text(&self.source.command_line(&self.folder))?;
        stage.step("The agent sends this Python instead of reading the files")?;
        stage.quote(&self.source.code(&self.folder))?;
        stage.step("It runs in a fresh sandbox (the first time, the server is downloaded)")
    }
}

fn conclude(stage: &mut Stage<'_>, response: &ExecuteResponse) -> io::Result<()> {
    stage.step("What crossed the bridge")?;
    stage.tool_calls(&response.tool_calls)?;
    stage.step("What the model gets")?;
    let answer = text_for_model(response);
    stage.quote(&answer)?;
    let through_tools = response
        .tool_calls
        .iter()
        .map(|call| call.request_bytes + call.response_bytes)
        .sum();
    stage.emphasis(&format!(
        "{} through tools, {} to the model",
        size(through_tools),
        size(answer.len() as u64)
    ))?;
    stage.step("What kept the code in")?;
    stage.paragraph(&layers(&response.isolation))?;
    stage.text(&format!(
        "{:.2} s, tool calls included",
        response.execution_time
    ))?;
    stage.step("Add it to your own agent")?;
    stage.text(&client_snippet())
}

/// The text of the tool's result, as every MCP client would show it to its model.
fn text_for_model(response: &ExecuteResponse) -> String {
    let result = render(response.clone());
    let texts: Vec<&str> = result
        .content
        .iter()
        .filter_map(|block| block.as_text().map(|text| text.text.as_str()))
        .collect();
    texts.join("\n")
}

fn layers(isolation: &Isolation) -> String {
    let named = |state: LayerState| -> Vec<&str> {
        isolation
            .layers
            .iter()
            .filter(|layer| layer.state == state)
            .map(|layer| layer.name.as_str())
            .collect()
    };
    let enforced = named(LayerState::Enforced).join(", ");
    let mut parts = vec![format!(
        "{} engine, profile {}: {enforced}",
        isolation.engine, isolation.profile
    )];
    for (state, words) in [
        (LayerState::BestEffort, "best effort"),
        (LayerState::Missing, "missing"),
    ] {
        let names = named(state);
        if !names.is_empty() {
            parts.push(format!("{words}: {}", names.join(", ")));
        }
    }
    parts.join("; ")
}

fn client_snippet() -> String {
    let program = env::current_exe().map_or_else(
        |_| "mcp-forge".to_owned(),
        |path| path.display().to_string(),
    );
    let entry = json!({"mcpServers": {"forge": {"command": program, "args": ["serve"]}}});
    format!(
        "claude mcp add forge -- {program} serve\n\nor, in a client with a configuration file:\n\n{entry:#}\n\n\
         Your other MCP servers go under `mcp_tools` of its configuration; then the code can call them."
    )
}
