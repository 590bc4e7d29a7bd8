//! `mcp-forge run`: one snippet in a fresh sandbox, its output live, its result last.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::{
    config::{Config, size::parse_duration},
    service::{ExecuteRequest, ExecuteResponse},
    text::printable,
    turn::{Display, Observer, Stream},
};

use super::{CliError, Exit, Signals, end_upstreams, service, terminal::print_json};

/// Most that is read of a file or standard input, in bytes. The service's own limit is lower.
const MAX_CODE_BYTES: u64 = 32 << 20;

/// What a display is saved as, best first: MIME type, extension, and whether it is base64.
const SAVED_TYPES: &[(&str, &str, bool)] = &[
    ("image/png", "png", true),
    ("image/jpeg", "jpg", true),
    ("image/svg+xml", "svg", false),
    ("text/html", "html", false),
];

/// Run Python in a fresh sandbox
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

Exit codes:
    0  the code completed
    1  the code raised, its interpreter died, or it wrote far too much
    2  the command line, the configuration or the request is wrong; nothing ran
    3  no sandbox could be had, or MCP-Forge failed
  124  the code hit its time limit
  130  Ctrl-C (143: SIGTERM); the sandbox is gone
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
    /// Where to run it
    #[arg(long, value_name = "ENGINE", default_value = "native")]
    engine: String,
    /// Continue a session (not available yet)
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Run in a custom environment (not available yet)
    #[arg(long, value_name = "NAME")]
    env: Option<String>,
    /// Save figures and tables that the code shows to files in this directory
    #[arg(long, value_name = "DIR")]
    save_displays: Option<PathBuf>,
    /// Print the whole response as JSON, and nothing else
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct CodeArguments {
    /// Python source
    #[arg(short = 'c', value_name = "CODE")]
    code: Option<String>,
    /// File with Python source, or - for standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(super) async fn run(arguments: RunArguments, config: Config) -> Result<Exit, CliError> {
    if arguments.engine != "native" {
        let problem = format!(
            "--engine {:?} is not available yet: the engine of this version is native",
            arguments.engine
        );
        return Err(CliError::Usage(problem));
    }
    if arguments.session.is_some() {
        let problem = "--session is not available yet: sessions live in `mcp-forge serve`";
        return Err(CliError::Usage(problem.to_owned()));
    }
    let request = ExecuteRequest {
        code: read_code(&arguments.code)?,
        mcp_tools: arguments.tools,
        // Whatever the default is: a session would end with this process.
        backend: Some("simple".to_owned()),
        timeout: arguments.timeout,
        custom_image: arguments.env,
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
    end_upstreams(service.shutdown()).await;
    let response = match ended {
        Ok(ended) => ended?,
        Err(exit) => return Ok(exit),
    };
    let saved = match &arguments.save_displays {
        Some(directory) => save(directory, &response.displays)?,
        None => Vec::new(),
    };
    if arguments.json {
        print_json(&response)?;
    } else {
        output.finish(&response, &saved)?;
    }
    Ok(exit_of(&response))
}

/// The exit code's meaning of an outcome.
pub(super) fn exit_of(response: &ExecuteResponse) -> Exit {
    match response.outcome.as_str() {
        "completed" => Exit::Success,
        "timed_out" => Exit::TimedOut,
        "out_of_memory" => Exit::OutOfMemory,
        "cancelled" => Exit::Interrupted,
        _ => Exit::Failure,
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

/// Passes the code's output on as it comes.
#[derive(Debug)]
struct LiveOutput {
    is_quiet: bool,
    /// Whether the cursor stands at the start of a line of standard output.
    is_fresh: bool,
    /// Why standard output or error took no more; told at the end.
    failure: Option<io::Error>,
}

impl Observer for LiveOutput {
    fn output(&mut self, stream: Stream, text: &str) {
        if self.is_quiet || self.failure.is_some() || text.is_empty() {
            return;
        }
        let written = match stream {
            Stream::Stdout => write_now(io::stdout().lock(), text),
            Stream::Stderr => write_now(io::stderr().lock(), text),
        };
        if stream == Stream::Stdout {
            self.is_fresh = text.ends_with('\n');
        }
        self.failure = written.err();
    }
}

impl LiveOutput {
    fn new(is_quiet: bool) -> Self {
        Self {
            is_quiet,
            is_fresh: true,
            failure: None,
        }
    }

    /// The notes about displays, the error, and last the result.
    fn finish(self, response: &ExecuteResponse, saved: &[PathBuf]) -> Result<(), CliError> {
        if let Some(failure) = self.failure {
            return Err(failure.into());
        }
        if !self.is_fresh {
            writeln!(io::stdout())?;
        }
        let mut errors = io::stderr().lock();
        if !response.displays.is_empty() && saved.is_empty() {
            let kinds: Vec<String> = response.displays.iter().map(describe).collect();
            writeln!(
                errors,
                "The code showed {}; --save-displays DIR writes them to files.",
                kinds.join(", ")
            )?;
        }
        for file in saved {
            writeln!(errors, "Saved {}", printable(&file.display().to_string()))?;
        }
        if let Some(error) = &response.error {
            let traceback = printable(error.traceback.trim_end());
            let told = if traceback.is_empty() {
                printable(&format!("{}: {}", error.kind, error.message))
            } else {
                traceback
            };
            writeln!(errors, "{told}")?;
        } else if !response.success {
            writeln!(errors, "The code ended as {}.", response.outcome)?;
        }
        if let Some(result) = &response.result_repr {
            writeln!(io::stdout(), "{}", printable(result))?;
        }
        Ok(())
    }
}

fn write_now(mut stream: impl Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

fn describe(display: &Display) -> String {
    let best = SAVED_TYPES
        .iter()
        .map(|(mime, _, _)| *mime)
        .find(|mime| display.data.contains_key(*mime));
    let first = || {
        display
            .data
            .keys()
            .next()
            .map_or_else(|| "nothing".to_owned(), |mime| printable(mime))
    };
    best.map_or_else(first, str::to_owned)
}

/// Writes each display in its best form. The names are ours: nothing of them comes from the sandbox.
fn save(directory: &Path, displays: &[Display]) -> Result<Vec<PathBuf>, CliError> {
    let failed = |file: &Path, source: io::Error| CliError::Save {
        file: file.to_owned(),
        source,
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    let mut files = Vec::new();
    for (index, display) in displays.iter().enumerate() {
        let Some((bytes, extension)) = best_form(display) else {
            continue;
        };
        let file = directory.join(format!("display-{}.{extension}", index + 1));
        std::fs::write(&file, bytes).map_err(|error| failed(&file, error))?;
        files.push(file);
    }
    Ok(files)
}

fn best_form(display: &Display) -> Option<(Vec<u8>, &'static str)> {
    SAVED_TYPES.iter().find_map(|(mime, extension, is_base64)| {
        let Value::String(text) = display.data.get(*mime)? else {
            return None;
        };
        if !is_base64 {
            return Some((text.clone().into_bytes(), *extension));
        }
        let compact: String = text.split_ascii_whitespace().collect();
        STANDARD
            .decode(compact)
            .ok()
            .map(|bytes| (bytes, *extension))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn display(data: Value) -> Display {
        let Value::Object(data) = data else { panic!() };
        Display {
            data,
            metadata: serde_json::Map::new(),
        }
    }

    #[test]
    fn displays_are_saved_in_their_best_form() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("new/figures");
        let displays = [
            display(json!({ "text/plain": "<Figure>", "image/png": "aGVs\nbG8=" })),
            display(json!({ "text/html": "<b>x</b>", "text/plain": "x" })),
            display(json!({ "text/plain": "only text" })),
            display(json!({ "image/png": "not base64!", "image/svg+xml": "<svg/>" })),
        ];
        let files = save(&target, &displays).unwrap();
        let names: Vec<_> = files
            .iter()
            .map(|file| file.file_name().unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, ["display-1.png", "display-2.html", "display-4.svg"]);
        assert_eq!(std::fs::read(&files[0]).unwrap(), b"hello");
        assert_eq!(
            displays.iter().map(describe).collect::<Vec<_>>(),
            ["image/png", "text/html", "text/plain", "image/png"]
        );
    }

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
