//! `mcp-forge run`: one snippet, its output live, its result last; or a prompt for many.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use crate::{
    config::{Config, EngineKind, size::parse_duration},
    service::ExecuteRequest,
    text::printable,
};

use super::{
    CliError, Exit, Signals,
    console::{Console, Turned},
    end,
    output::{Ended, LiveOutput, save, tell_displays, tell_end},
    prompt::Prompt,
    reach::Reach,
    service,
    terminal::print_json,
};

/// Most that is read of a file or standard input, in bytes. The service's own limit is lower.
const MAX_CODE_BYTES: u64 = 32 << 20;

/// Run Python in a fresh sandbox, in a session, or at a prompt
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The code's standard output and standard error are passed on as they come; the value of its last \
expression is printed last.

Examples:
  mcp-forge run -c 'import sys; sys.version'
  mcp-forge run script.py --timeout 5m
  echo '6 * 7' | mcp-forge run -
  mcp-forge run --tools files_read -c 'len(files_read(path=\"/data/log\"))'
  mcp-forge run plot.py --save-displays figures/
  mcp-forge run -c '{\"a\": 1}' --json

With --session the interpreter is kept: variables, imports and files in /workspace are there in the \
next call, from any shell. It lives in a server that is started in the background when none is \
there, and that leaves by itself; a server's own configuration counts, the one of its start. \
docs/sessions.md says how long a session lives.

  mcp-forge run --session analysis -c 'import math; x = 2'
  mcp-forge run --session analysis -c 'math.sqrt(x)'
  mcp-forge session list

With -i there is a prompt, on a session that ends with it unless --session names one. A block ends \
with an empty line, Ctrl-C interrupts the code, Ctrl-D leaves. Images are saved to files. Without a \
terminal it reads the same from standard input.

  mcp-forge run -i
  mcp-forge run -i --session analysis

Exit codes:
    0  the code completed
    1  the code raised, its interpreter died, or it wrote far too much
    2  the command line, the configuration or the request is wrong; nothing ran
    3  no sandbox could be had, the session was lost and the code did not run, or MCP-Forge failed
  124  the code hit its time limit
  130  Ctrl-C (143: SIGTERM); the sandbox is gone, a session is kept
  137  the code went over its memory limit")]
pub(super) struct RunArguments {
    #[command(flatten)]
    code: CodeArguments,
    /// Tools the code may call, as `mcp-forge tools` lists them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tools: Option<Vec<String>>,
    /// Time for the code, in seconds or such as 90s or 5m [default: execution.default_timeout]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    timeout: Option<f64>,
    /// Run it with this engine [default: execution.engine]; a session has its server's
    #[arg(long, value_name = "ENGINE", conflicts_with_all = ["session", "interactive"])]
    engine: Option<EngineKind>,
    /// Run in the session of this name, which is made at its first use; `new` makes up a name and prints it
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Run with the packages of an environment or a template, as `mcp-forge env list` shows them
    #[arg(long, value_name = "NAME")]
    env: Option<String>,
    /// Save figures and tables that the code shows to files in this directory
    #[arg(long, value_name = "DIR")]
    save_displays: Option<PathBuf>,
    /// Print the whole response as JSON, and nothing else
    #[arg(long, conflicts_with = "interactive")]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct CodeArguments {
    /// Python source
    #[arg(short = 'c', value_name = "CODE")]
    code: Option<String>,
    /// Read statement after statement, at a prompt
    #[arg(short = 'i', long)]
    interactive: bool,
    /// File with Python source, or - for standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(super) async fn run(
    arguments: RunArguments,
    mut config: Config,
    config_file: Option<PathBuf>,
) -> Result<Exit, CliError> {
    if let Some(engine) = arguments.engine {
        config.engine = engine;
    }
    if arguments.code.interactive {
        return interact(arguments, config, config_file).await;
    }
    let code = read_code(&arguments.code)?;
    if arguments.session.is_some() {
        let mut request = arguments.request();
        request.insert("code".to_owned(), code.into());
        let reach = Reach::new(&config, config_file)?;
        return run_in_session(&arguments, reach, &Value::Object(request)).await;
    }
    run_once(arguments, code, config).await
}

/// In a fresh sandbox of this process.
async fn run_once(arguments: RunArguments, code: String, config: Config) -> Result<Exit, CliError> {
    let request = ExecuteRequest {
        code,
        mcp_tools: arguments.tools.clone(),
        // Whatever the default is: a session would end with this process.
        backend: Some("simple".to_owned()),
        timeout: arguments.timeout,
        environment: arguments.env.clone(),
        ..ExecuteRequest::default()
    };
    let mut signals = Signals::watch()?;
    let service = service(config)?;
    let mut output = LiveOutput::new(arguments.json);
    let ended = tokio::select! {
        ended = service.execute(request, &mut output) => Ok(ended),
        exit = signals.next() => Err(exit),
    };
    // A signal dropped the execution above: its sandbox is killed by now.
    end(&service).await;
    let response = match ended {
        Ok(ended) => ended?,
        Err(exit) => return Ok(exit),
    };
    if arguments.json {
        print_json(&response)?;
    }
    arguments.show(output, &response.into())
}

/// In a session of a server, which stays when this command ends.
async fn run_in_session(
    arguments: &RunArguments,
    reach: Reach,
    request: &Value,
) -> Result<Exit, CliError> {
    let mut console = Console::outside(reach).await?;
    let mut output = LiveOutput::new(arguments.json);
    let response = match console.execute(request, &mut output).await? {
        Turned::Ended(response) => response,
        Turned::Left(exit) => return Ok(exit),
    };
    let ended = Ended::read(&response)?;
    if arguments.json {
        print_json(&response)?;
    } else if let (Some("new"), Some(id)) = (arguments.session.as_deref(), &ended.session_id) {
        writeln!(io::stderr(), "Session {}", printable(id))?;
    }
    arguments.show(output, &ended)
}

async fn interact(
    arguments: RunArguments,
    config: Config,
    config_file: Option<PathBuf>,
) -> Result<Exit, CliError> {
    let prompt = Prompt {
        request: arguments.request(),
        session_id: arguments.session,
        images: arguments.save_displays,
        history: config.data_dir.join("history"),
    };
    // A session that somebody named is to be there later on, too.
    let console = if prompt.session_id.is_some() {
        Console::outside(Reach::new(&config, config_file)?).await?
    } else {
        Console::inside(config).await?
    };
    prompt.run(console).await
}

impl RunArguments {
    /// The request for a server, but for the code.
    fn request(&self) -> Map<String, Value> {
        let fields = [
            ("session_id", self.session.as_ref().map(|id| json!(id))),
            ("mcp_tools", self.tools.as_ref().map(|tools| json!(tools))),
            ("timeout", self.timeout.map(|timeout| json!(timeout))),
            ("environment", self.env.as_ref().map(|name| json!(name))),
        ];
        fields
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    }

    /// Shows how the code ended, unless JSON has said it.
    fn show(&self, output: LiveOutput, ended: &Ended) -> Result<Exit, CliError> {
        let saved = match &self.save_displays {
            Some(directory) => save(directory, &ended.displays)?,
            None => Vec::new(),
        };
        if !self.json {
            output.end()?;
            tell_displays(ended, &saved)?;
            tell_end(ended)?;
        }
        Ok(ended.exit())
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match parse_duration(text) {
        Ok(duration) => Ok(duration.as_secs_f64()),
        Err(problem) => Err(format!(
            "this is {problem}: write seconds (300) or such as 90s or 5m"
        )),
    }
}

fn read_code(arguments: &CodeArguments) -> Result<String, CliError> {
    let (name, read) = match (&arguments.code, &arguments.file) {
        (Some(code), _) => return Ok(code.clone()),
        (None, Some(file)) if file == Path::new("-") => {
            ("standard input".to_owned(), read_bounded(io::stdin()))
        }
        (None, Some(file)) => (
            file.display().to_string(),
            File::open(file).and_then(read_bounded),
        ),
        (None, None) => {
            return Err(CliError::Usage(
                "there is no code: give -c CODE, a file, or -".to_owned(),
            ));
        }
    };
    read.map_err(|error| CliError::Usage(format!("{name}: the code cannot be read: {error}")))
}

fn read_bounded(source: impl Read) -> io::Result<String> {
    let mut code = String::new();
    source.take(MAX_CODE_BYTES + 1).read_to_string(&mut code)?;
    if code.len() as u64 > MAX_CODE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than {MAX_CODE_BYTES} bytes"),
        ));
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_is_too_long_or_no_text_is_refused() {
        assert!(
            read_bounded(io::repeat(b'x'))
                .unwrap_err()
                .to_string()
                .contains("more than")
        );
        assert!(read_bounded(&b"\xff"[..]).is_err());
        let missing = CodeArguments {
            code: None,
            interactive: false,
            file: Some("/nonexistent/code.py".into()),
        };
        assert!(
            read_code(&missing)
                .unwrap_err()
                .to_string()
                .starts_with("/nonexistent/code.py: ")
        );
    }
}
