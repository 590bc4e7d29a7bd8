//! Finds the file, reads it, and brings flags, environment, file and defaults together.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::{
    Config, check,
    environment::{apply_overrides, substitute},
    error::ConfigError,
    raw::{self, Node, Origin},
    read::{Reader, absolute},
    upstreams,
    values::{self, Places},
};

/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Where settings come from. What is given here goes before what the environment says, that
/// before the file, and the file before the defaults.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// The environment of the process. A parameter, so that a test needs no process of its own.
    pub environment: BTreeMap<String, String>,
}

/// A configuration and how it came about.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Sentences the operator should see: ignored keys and variables, weakened settings.
    pub warnings: Vec<String>,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
}

impl Config {
    /// Loads and checks. Reads the file and those of `environment_builder.templates_path`, and writes nothing.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: names the place, the key, and what to write instead.
    pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
        let file = configuration_file(sources)?;
        let shown = file
            .as_deref()
            .map_or_else(|| "defaults".to_owned(), |file| file.display().to_string());
        let places = Places { file: &shown };
        let mut tree = match &file {
            Some(file) => raw::parse(file, &read_bounded(file)?)?,
            None => Node::table(Origin::Implied),
        };
        upstreams::adopt_synonyms(&mut tree, &places)?;
        substitute(&mut tree, &sources.environment, &places)?;
        let mut warnings = apply_overrides(&mut tree, &sources.environment, &places)?;
        warnings.extend(values::check(&mut tree, &places)?);
        let base = file
            .as_deref()
            .map(absolute)
            .and_then(|file| Some(file.parent()?.to_owned()))
            .unwrap_or_default();
        let reader = Reader {
            tree: &tree,
            errors: places,
            base,
            home: absolute_variable(sources, "HOME"),
        };
        let data_dir = data_directory(sources, &reader)?;
        let (config, more) = check::build(&reader, data_dir)?;
        warnings.extend(more);
        Ok(Loaded {
            config,
            warnings,
            file,
        })
    }

    /// Makes the data directory, for its owner only, if it is not there.
    ///
    /// # Errors
    ///
    /// [`ConfigError::DataDirectory`] when it cannot be made, or when other users could write to it.
    pub fn create_data_dir(&self) -> Result<(), ConfigError> {
        let refused = |problem: String| ConfigError::DataDirectory {
            directory: self.data_dir.clone(),
            problem,
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.data_dir)
            .map_err(|error| refused(format!("{error}. Give another one with --data-dir")))?;
        let metadata =
            std::fs::metadata(&self.data_dir).map_err(|error| refused(error.to_string()))?;
        if metadata.mode() & 0o022 != 0 {
            return Err(refused(format!(
                "other users can write to it: chmod 700 '{}'",
                self.data_dir.display()
            )));
        }
        Ok(())
    }
}

fn configuration_file(sources: &Sources) -> Result<Option<PathBuf>, ConfigError> {
    if let Some(file) = &sources.file {
        return Ok(Some(file.clone()));
    }
    if let Some(file) = sources
        .environment
        .get("MCP_FORGE_CONFIG")
        .filter(|value| !value.is_empty())
    {
        return Ok(Some(PathBuf::from(file)));
    }
    let directory = absolute_variable(sources, "XDG_CONFIG_HOME")
        .or_else(|| Some(absolute_variable(sources, "HOME")?.join(".config")));
    let Some(file) = directory.map(|directory| directory.join("mcp-forge/config.yaml")) else {
        return Ok(None);
    };
    match std::fs::metadata(&file) {
        Ok(_) => Ok(Some(file)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        // It may be there and say something important: not reading it is not a choice to make silently.
        Err(source) => Err(ConfigError::Read { file, source }),
    }
}

fn data_directory(sources: &Sources, reader: &Reader<'_>) -> Result<PathBuf, ConfigError> {
    if let Some(directory) = &sources.data_dir {
        return Ok(absolute(directory));
    }
    reader
        .path("data_dir")
        .or_else(|| Some(absolute_variable(sources, "XDG_DATA_HOME")?.join("mcp-forge")))
        .or_else(|| Some(absolute_variable(sources, "HOME")?.join(".local/share/mcp-forge")))
        .ok_or(ConfigError::NoDataDirectory)
}

/// A directory from the environment; a relative one is ignored, as the XDG specification wants.
fn absolute_variable(sources: &Sources, name: &str) -> Option<PathBuf> {
    sources
        .environment
        .get(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

pub(super) fn read_bounded(file: &Path) -> Result<String, ConfigError> {
    let failed = |source: io::Error| ConfigError::Read {
        file: file.to_owned(),
        source,
    };
    let opened = File::open(file).map_err(failed)?;
    let mut text = String::new();
    opened
        .take(MAX_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(ConfigError::TooLarge {
            file: file.to_owned(),
            limit: MAX_FILE_BYTES,
        });
    }
    Ok(text)
}
