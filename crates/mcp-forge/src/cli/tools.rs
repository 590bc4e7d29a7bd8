//! `mcp-forge tools`: the functions that sandboxed code can be granted.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use serde_json::json;

use crate::{
    bridge::{Bridge, Catalogue, ToolInfo, UpstreamState, UpstreamStatus},
    config::{Config, nearest},
    text::printable,
};

use super::{
    CliError, Exit, Signals, end_upstreams,
    terminal::{Screen, one_line},
};

/// List the tools that code can call, or show one
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Starts the MCP servers under mcp_tools and lists their tools as the Python functions that code \
sees. A server that cannot be reached is listed with the reason.

Exit codes: 0 if any server could be reached or none is configured, 2 if there is no such tool, \
3 if no server could be reached.

Examples:
  mcp-forge tools
  mcp-forge tools filesystem_read_text_file
  mcp-forge tools --json | jq -r '.tools[].name'")]
pub(super) struct ToolsArguments {
    /// Show this tool with its description and schemas
    name: Option<String>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(
    arguments: ToolsArguments,
    config: Config,
    screen: Screen,
) -> Result<Exit, CliError> {
    let bridge = Bridge::new(config.upstreams, config.bridge);
    let mut signals = Signals::watch()?;
    let catalogue = tokio::select! {
        catalogue = bridge.catalogue() => Ok(catalogue),
        exit = signals.next() => Err(exit),
    };
    end_upstreams(bridge.shutdown()).await;
    let catalogue = match catalogue {
        Ok(catalogue) => catalogue,
        Err(exit) => return Ok(exit),
    };
    let text = match &arguments.name {
        Some(name) => one_tool(find(&catalogue, name)?, arguments.json, screen),
        None => all_tools(&catalogue, arguments.json, screen),
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    let is_failed = |upstream: &UpstreamStatus| upstream.state == UpstreamState::Failed;
    let is_nothing_there =
        !catalogue.upstreams.is_empty() && catalogue.upstreams.iter().all(is_failed);
    Ok(if is_nothing_there {
        Exit::Internal
    } else {
        Exit::Success
    })
}

fn find<'a>(catalogue: &'a Catalogue, name: &str) -> Result<&'a ToolInfo, CliError> {
    if let Some(tool) = catalogue.tools.iter().find(|tool| tool.name == name) {
        return Ok(tool);
    }
    let hint = match nearest(name, catalogue.tools.iter().map(|tool| tool.name.as_str())) {
        Some(meant) => format!("Did you mean {meant}?"),
        None => "`mcp-forge tools` lists those that there are".to_owned(),
    };
    let down = catalogue
        .upstreams
        .iter()
        .filter(|upstream| upstream.error.is_some())
        .map(failure);
    let sentences = [format!("there is no tool {name:?}"), hint]
        .into_iter()
        .chain(down);
    Err(CliError::Usage(sentences.collect::<Vec<_>>().join(". ")))
}

fn one_tool(tool: &ToolInfo, is_json: bool, screen: Screen) -> String {
    let pretty =
        |value: &serde_json::Value| serde_json::to_string_pretty(value).unwrap_or_default();
    if is_json {
        return pretty(&json!(tool)) + "\n";
    }
    let mut parts = vec![screen.bold(&printable(&tool.signature)).to_string()];
    parts.extend(tool.title.as_deref().map(printable));
    parts.push(printable(tool.description.trim()));
    parts.push(format!(
        "The tool {} of the server {}.",
        printable(&tool.tool),
        printable(&tool.upstream)
    ));
    parts.push(format!(
        "{}\n{}",
        screen.bold("Arguments"),
        printable(&pretty(&tool.input_schema))
    ));
    if let Some(schema) = &tool.output_schema {
        parts.push(format!(
            "{}\n{}",
            screen.bold("Structured answer"),
            printable(&pretty(schema))
        ));
    }
    parts.join("\n\n") + "\n"
}

fn all_tools(catalogue: &Catalogue, is_json: bool, screen: Screen) -> String {
    if is_json {
        let report = json!({ "tools": catalogue.tools, "upstreams": catalogue.upstreams });
        return serde_json::to_string_pretty(&report).unwrap_or_default() + "\n";
    }
    if catalogue.upstreams.is_empty() {
        return "No MCP servers are configured: add them under mcp_tools (docs/configuration.md).\n".to_owned();
    }
    let mut text = String::new();
    for upstream in &catalogue.upstreams {
        if !text.is_empty() {
            text.push('\n');
        }
        if upstream.error.is_some() {
            let _ = writeln!(text, "{}", failure(upstream));
            continue;
        }
        let name = printable(&upstream.name);
        let server = upstream
            .server
            .as_deref()
            .map(|server| format!(" ({})", one_line(server)))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "{}{server}: {} tools",
            screen.bold(&name),
            upstream.tools
        );
        for tool in catalogue
            .tools
            .iter()
            .filter(|tool| tool.upstream == upstream.name)
        {
            let _ = writeln!(
                text,
                "  {}\n      {}",
                printable(&tool.signature),
                one_line(&tool.description)
            );
        }
    }
    text
}

fn failure(upstream: &UpstreamStatus) -> String {
    let reason = upstream.error.as_deref().unwrap_or("it is not up yet");
    format!(
        "The server {} could not be reached: {}",
        printable(&upstream.name),
        one_line(reason)
    )
}
