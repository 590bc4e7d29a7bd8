//! `mcp-forge image`: the images of containers.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
};

use clap::Subcommand;
use serde_json::{Value, json};

use crate::{
    config::{Config, EngineKind},
    engine::podman::{
        images::{self, BuildOptions, Found, ImageError, Recipe},
        socket::Socket,
    },
    text::printable,
};

use super::{
    CliError, Exit, Signals,
    terminal::{Screen, one_line, print_json},
};

/// Build or list the images of containers, for the engines `podman` and `docker`
#[derive(Debug, clap::Args)]
pub(super) struct ImageArguments {
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    Build(BuildArguments),
    List(ListArguments),
}

/// Build the images of containers
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Builds mcp-forge/python:3.11, mcp-forge/python:3.12 and mcp-forge/jupyter:latest, or what the keys \
under `images` call them, one after the other, over the container API. A base image that is not \
there is pulled. Packages that the base lacks are installed from PyPI.

Examples:
  mcp-forge image build
  mcp-forge image build python:3.11 jupyter
  Without a network, on an image that has Python and packages:
      podman import rootfs.tar localhost/base:1
      mcp-forge image build python:3.11 jupyter --base localhost/base:1 --no-packages")]
pub(super) struct BuildArguments {
    /// What to build: `python:3.11`, `python:3.12`, `jupyter` [default: all]
    names: Vec<String>,
    /// Image to build on instead of `images.base`; `{version}` stands for the version of Python
    #[arg(long, value_name = "IMAGE")]
    base: Option<String>,
    /// Install nothing: packages are what the base has, and the build has no network
    #[arg(long)]
    no_packages: bool,
}

/// List the images of containers, and whether they are as this version builds them
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  mcp-forge image list
  mcp-forge image list --json | jq -r '.images[] | select(.state != \"current\") | .image'")]
struct ListArguments {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(
    arguments: ImageArguments,
    config: &Config,
    screen: Screen,
) -> Result<Exit, CliError> {
    match arguments.command {
        ImageCommand::Build(arguments) => build(arguments, config).await,
        ImageCommand::List(arguments) => list(&arguments, config, screen).await,
    }
}

/// Also `mcp-forge build-images`.
pub(super) async fn build(arguments: BuildArguments, config: &Config) -> Result<Exit, CliError> {
    let recipes = Recipe::named(&config.containers.images, &arguments.names)?;
    let options = BuildOptions {
        base: arguments
            .base
            .as_deref()
            .unwrap_or(&config.containers.images.base),
        may_install: !arguments.no_packages,
    };
    let _only_one = only_one_build(config)?;
    let socket = connect(config).await?;
    let mut signals = Signals::watch()?;
    for recipe in recipes {
        say(&format!("Building {}", printable(&recipe.image)))?;
        let progress = |line: &str| {
            // Standard error may be closed: the build goes on.
            let _ = say(&format!("  {}", one_line(line)));
        };
        tokio::select! {
            built = images::build(&socket.client, &recipe, options, progress) => built?,
            exit = signals.next() => return Ok(exit),
        }
        writeln!(io::stdout(), "{}", printable(&recipe.image))?;
    }
    Ok(Exit::Success)
}

/// Two builds at once have been a way out of builds, and fight over names.
fn only_one_build(config: &Config) -> Result<File, CliError> {
    config.create_data_dir()?;
    let path = config.data_dir.join("image-build.lock");
    let save = |source| CliError::Save {
        file: path.clone(),
        source,
    };
    let file = fs::File::create(&path).map_err(save)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(CliError::Usage(
            "another `mcp-forge image build` is running for this data directory: wait for its end"
                .to_owned(),
        )),
        Err(TryLockError::Error(source)) => Err(save(source)),
    }
}

async fn list(
    arguments: &ListArguments,
    config: &Config,
    screen: Screen,
) -> Result<Exit, CliError> {
    let socket = connect(config).await?;
    let mut rows = Vec::new();
    for recipe in Recipe::all(&config.containers.images) {
        let found = images::find(&socket.client, &recipe.image).await?;
        rows.push((recipe, found));
    }
    if arguments.json {
        let images: Vec<Value> = rows
            .iter()
            .map(|(recipe, found)| as_json(recipe, found.as_ref()))
            .collect();
        print_json(&json!({ "socket": socket.path, "images": images }))?;
    } else {
        let mut out = io::stdout().lock();
        for (recipe, found) in &rows {
            writeln!(out, "{}", as_row(recipe, found.as_ref(), screen))?;
        }
    }
    Ok(Exit::Success)
}

fn as_json(recipe: &Recipe, found: Option<&Found>) -> Value {
    json!({
        "image": recipe.image,
        "state": state(recipe, found),
        "id": found.map(|found| &found.id),
        "size": found.and_then(|found| found.size),
        "python": found.and_then(|found| found.python.as_ref()),
    })
}

fn as_row(recipe: &Recipe, found: Option<&Found>, screen: Screen) -> String {
    const MEGABYTE: u64 = 1_000_000;
    let state = state(recipe, found);
    let detail = match (state, found.and_then(|found| found.size)) {
        ("missing", _) => "build it with `mcp-forge image build`".to_owned(),
        ("outdated", _) => "another version of mcp-forge built it: build it again".to_owned(),
        (_, Some(size)) => format!("{} MB", size / MEGABYTE),
        (_, None) => String::new(),
    };
    let name = printable(&recipe.image);
    format!("{:<32}  {state:<8}  {detail}", screen.bold(&name))
        .trim_end()
        .to_owned()
}

/// `foreign` is an image that was not built by us, which may be as the operator wants it.
fn state(recipe: &Recipe, found: Option<&Found>) -> &'static str {
    match found {
        None => "missing",
        Some(found) if found.is_of(recipe) => "current",
        Some(found) if found.recipe.is_some() => "outdated",
        Some(_) => "foreign",
    }
}

/// The engine of the configuration, or Podman's where it is the native one.
async fn connect(config: &Config) -> Result<Socket, CliError> {
    let kind = match config.engine {
        EngineKind::Docker => EngineKind::Docker,
        EngineKind::Podman | EngineKind::Native => EngineKind::Podman,
    };
    Ok(Socket::connect(kind, config.containers.socket.as_deref()).await?)
}

fn say(line: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{line}")
}

/// What the exit code says of it.
pub(super) fn exit(error: &ImageError) -> Exit {
    match error {
        ImageError::Unknown { .. } | ImageError::NoBase { .. } => Exit::Usage,
        ImageError::Build { .. } | ImageError::Pull { .. } | ImageError::Service(_) => {
            Exit::Internal
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::config::Sources;

    use super::*;

    fn config(directory: &std::path::Path) -> Config {
        let sources = Sources {
            file: None,
            data_dir: Some(directory.to_owned()),
            environment: BTreeMap::new(),
        };
        Config::load(&sources).unwrap().config
    }

    #[test]
    fn a_list_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let [recipe, ..] = Recipe::all(&config(directory.path()).containers.images);
        let mut found = Found {
            image: recipe.image.clone(),
            id: "sha256:00".to_owned(),
            size: Some(158_000_000),
            python: Some("3.11".to_owned()),
            recipe: Some("another".to_owned()),
        };
        let screen = Screen::detect(&BTreeMap::new());
        assert!(as_row(&recipe, None, screen).contains("missing"));
        assert!(as_row(&recipe, Some(&found), screen).contains("build it again"));
        found.recipe = None;
        assert_eq!(state(&recipe, Some(&found)), "foreign");
        assert_eq!(as_json(&recipe, Some(&found))["size"], 158_000_000);
    }

    #[test]
    fn a_second_build_is_refused_while_one_runs() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        let first = only_one_build(&config).unwrap();
        assert!(
            only_one_build(&config)
                .unwrap_err()
                .to_string()
                .contains("running")
        );
        drop(first);
        only_one_build(&config).unwrap();
    }
}
