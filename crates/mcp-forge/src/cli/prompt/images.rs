//! Images that code shows at a prompt become files, since a terminal cannot show them.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use crate::{
    cli::{CliError, output::best_form},
    turn::Display,
};

/// The directory in the current one.
const DIRECTORY: &str = "mcp-forge-images";

/// Images of earlier prompts that are counted past.
const MOST: usize = 100_000;

/// Where images go.
#[derive(Debug)]
pub(super) struct Images {
    /// As it was asked for.
    asked: Option<PathBuf>,
    /// Once there was one.
    directory: Option<PathBuf>,
    /// Number of the last one.
    last: usize,
}

impl Images {
    pub(super) fn new(asked: Option<PathBuf>) -> Self {
        Self {
            asked,
            directory: None,
            last: 0,
        }
    }

    /// Saves an image, if a display is one. No file that is there is ever replaced, and no name
    /// comes from the code.
    pub(super) fn save(&mut self, display: &Display) -> Result<Option<PathBuf>, CliError> {
        let Some((bytes, extension)) = best_form(display).filter(|(_, kind)| *kind != "html")
        else {
            return Ok(None);
        };
        let directory = self.directory()?;
        let failed = |source: io::Error| CliError::Save {
            file: directory.clone(),
            source,
        };
        let (mut file, path) = self.next_file(&directory, extension).map_err(failed)?;
        file.write_all(&bytes).map_err(failed)?;
        Ok(Some(path))
    }

    fn directory(&mut self) -> Result<PathBuf, CliError> {
        if let Some(directory) = &self.directory {
            return Ok(directory.clone());
        }
        let made = match &self.asked {
            Some(asked) => make(asked).map(|()| asked.clone()),
            None => make(Path::new(DIRECTORY))
                .map(|()| PathBuf::from(DIRECTORY))
                .or_else(|_| temporary()),
        };
        let directory = made.map_err(|source| CliError::Save {
            file: self.asked.clone().unwrap_or_else(|| DIRECTORY.into()),
            source,
        })?;
        self.directory = Some(directory.clone());
        Ok(directory)
    }

    fn next_file(&mut self, directory: &Path, extension: &str) -> io::Result<(File, PathBuf)> {
        while self.last < MOST {
            self.last += 1;
            let path = directory.join(format!("image-{}.{extension}", self.last));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => return opened.map(|file| (file, path)),
            }
        }
        Err(io::Error::other(format!("there are {MOST} images already")))
    }
}

/// Makes the directory, and makes sure that files can be made in it.
fn make(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    Ok(rustix::fs::access(
        directory,
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
    )?)
}

/// Others can write to the directory for temporary files: ours must not have been there.
fn temporary() -> io::Result<PathBuf> {
    let directory = std::env::temp_dir().join(format!("{DIRECTORY}-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&directory)?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn images_get_names_that_are_free_and_tables_get_none() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("new");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("image-2.png"), "old").unwrap();
        let mut images = Images::new(Some(directory.clone()));
        let display = |kind: &str, data: &str| Display {
            data: Map::from_iter([(kind.to_owned(), json!(data))]),
            metadata: Map::new(),
        };
        let mut save = |kind, data| images.save(&display(kind, data)).unwrap();
        assert_eq!(
            save("image/png", "aGVsbG8="),
            Some(directory.join("image-1.png"))
        );
        assert_eq!(save("text/html", "<b>x</b>"), None);
        assert_eq!(
            save("image/png", "aGVsbG8="),
            Some(directory.join("image-3.png"))
        );
        assert_eq!(
            save("image/svg+xml", "<svg/>"),
            Some(directory.join("image-4.svg"))
        );
        assert_eq!(
            std::fs::read(directory.join("image-2.png")).unwrap(),
            b"old"
        );
    }
}
