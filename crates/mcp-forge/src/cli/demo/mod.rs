//! `mcp-forge demo`: the main job on real input, in front of the user's eyes.
//!
//! [`Demo::prepare`] makes the data and names the public MCP server to start; the caller builds
//! the service from the returned configuration as it does for `run`; [`Demo::show`] executes and
//! prints. It asks the service for nothing that an agent could not ask for.

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
    service::{ExecuteRequest, ExecuteResponse, Service, ServiceError},
};

mod orders;
mod screen;
mod source;

use screen::{Screen, size};
use source::Source;

/// Arguments of `mcp-forge demo`.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct DemoArgs {
    /// Print one execute response as JSON, and nothing else
    #[arg(long)]
    pub json: bool,
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
    /// The code did not run.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// Standard output is closed or full.
    #[error("cannot print: {0}")]
    Output(#[from] io::Error),
}

/// A demo with its data in place.
#[derive(Debug)]
pub struct Demo {
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
    pub fn prepare(mut config: Config) -> Result<(Self, Config), DemoError> {
        let source = Source::find().ok_or(DemoError::NoServer)?;
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

    /// Runs the code and prints. The response says how the code ended.
    ///
    /// # Errors
    ///
    /// [`DemoError::Service`] and [`DemoError::Output`].
    pub async fn show(
        &self,
        service: &Service,
        arguments: DemoArgs,
        out: &mut (dyn Write + Send),
    ) -> Result<ExecuteResponse, DemoError> {
        if arguments.json {
            let mut nowhere = io::sink();
            let response = service
                .execute(self.request(), &mut Screen::new(&mut nowhere, false))
                .await?;
            serde_json::to_writer_pretty(&mut *out, &response).map_err(io::Error::from)?;
            writeln!(out)?;
            return Ok(response);
        }
        let mut screen = Screen::new(out, wants_colours());
        self.introduce(&mut screen)?;
        let response = service.execute(self.request(), &mut screen).await?;
        screen.check()?;
        conclude(&mut screen, &response)?;
        Ok(response)
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

    fn introduce(&self, screen: &mut Screen<'_>) -> io::Result<()> {
        screen.step("The data: a year of a shop's orders, with a few mistakes in it")?;
        screen.text(&format!(
            "12 files, {}, in {}",
            size(self.bytes),
            self.folder.display()
        ))?;
        screen.step("The tools: a public MCP server, started like any other")?;
        screen.text(&self.source.command_line(&self.folder))?;
        screen.step("The agent sends this Python instead of reading the files")?;
        screen.quote(&self.source.code(&self.folder))?;
        screen.step("It runs in a fresh sandbox (the first time, the server is downloaded)")
    }
}

fn conclude(screen: &mut Screen<'_>, response: &ExecuteResponse) -> io::Result<()> {
    screen.step("What crossed the bridge")?;
    screen.tool_calls(&response.tool_calls)?;
    screen.step("What the model gets")?;
    let answer = text_for_model(response);
    screen.quote(&answer)?;
    let through_tools = response
        .tool_calls
        .iter()
        .map(|call| call.request_bytes + call.response_bytes)
        .sum();
    screen.emphasis(&format!(
        "{} through tools, {} to the model",
        size(through_tools),
        size(answer.len() as u64)
    ))?;
    screen.step("What kept the code in")?;
    screen.text(&layers(&response.isolation))?;
    screen.text(&format!(
        "{:.2} s, tool calls included",
        response.execution_time
    ))?;
    screen.step("Add it to your own agent")?;
    screen.text(&client_snippet())
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

fn wants_colours() -> bool {
    use std::io::IsTerminal;
    io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none()
}
