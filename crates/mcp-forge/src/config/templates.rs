//! Templates: those of the configuration, those of a directory of files, and the built-in ones.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    error::ConfigError,
    load::read_bounded,
    raw::{self, Content, Node, Origin},
    read::Reader,
    values::{self, Places, show_path, told},
};
use crate::packages::{EnvironmentName, Requirement, Template, Templates};

/// Most files of a directory.
const MAX_FILES: usize = 1_000;

/// Where templates stand in a configuration.
const SECTION: [&str; 2] = ["environment_builder", "templates"];

/// All templates. One of the configuration goes before one of the directory, that before a built-in one.
///
/// # Errors
///
/// [`ConfigError`]: the directory or a file of it cannot be read, or a template is wrong.
pub(super) fn read(reader: &Reader<'_>) -> Result<Templates, ConfigError> {
    let mut templates = Templates::built_in();
    if let Some(directory) = reader.path("environment_builder.templates_path") {
        for (name, template) in of_directory(&directory, reader)? {
            templates.insert(name, template);
        }
    }
    for (name, template) in of_tree(reader)? {
        templates.insert(name, template);
    }
    Ok(templates)
}

type Named = Vec<(EnvironmentName, Template)>;

fn of_tree(reader: &Reader<'_>) -> Result<Named, ConfigError> {
    let section = SECTION.join(".");
    reader
        .named(&section)
        .map(|(name, node)| {
            let path = |rest: &[&str]| {
                let parts = SECTION
                    .iter()
                    .copied()
                    .chain([name])
                    .chain(rest.iter().copied());
                show_path(&parts.map(str::to_owned).collect::<Vec<_>>())
            };
            let checked = EnvironmentName::parse(name).map_err(|problem| {
                reader
                    .errors
                    .error(Some(node), path(&[]), problem.to_string())
            })?;
            let inside = reader.inside(node);
            let mut packages = Vec::new();
            for (index, text) in inside.texts("packages").iter().enumerate() {
                let index = index.to_string();
                let place = node.at(&["packages", &index]);
                packages.push(Requirement::parse(text).map_err(|problem| {
                    let problem = told(place, "a package", problem.to_string());
                    let path = path(&["packages", &index]);
                    reader.errors.error(place.or(Some(node)), path, problem)
                })?);
            }
            if packages.is_empty() {
                let problem =
                    "a template has packages: list them under packages, or leave the template out";
                return Err(reader.errors.error(Some(node), path(&[]), problem));
            }
            let description = inside.text("description").unwrap_or_default();
            Ok((
                checked,
                Template {
                    description,
                    packages,
                },
            ))
        })
        .collect()
}

/// The templates of the `.yaml` files of a directory, which need not be there. A file has a section
/// `templates`, or is one template that is called as the file is.
fn of_directory(directory: &Path, reader: &Reader<'_>) -> Result<Named, ConfigError> {
    let mut all: Vec<(EnvironmentName, Template)> = Vec::new();
    for file in yaml_files(directory, reader)? {
        let shown = file.display().to_string();
        let places = Places { file: &shown };
        let mut written = raw::parse(&file, &read_bounded(&file)?)?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let mut tree = Node::table(Origin::Implied);
        match written.take("templates") {
            Some(section) => {
                if let Content::Table(entries) = &written.content
                    && let Some((key, node)) = entries.first()
                {
                    let problem = "nothing but templates stands in such a file: remove the key";
                    return Err(places.error(
                        Some(node),
                        show_path(std::slice::from_ref(key)),
                        problem,
                    ));
                }
                tree.put(&SECTION, section);
            }
            None => tree.put(&[SECTION[0], SECTION[1], &stem], written),
        }
        values::check(&mut tree, &places)?;
        let inside = Reader {
            tree: &tree,
            errors: places,
            base: directory.to_owned(),
            home: None,
        };
        for (name, template) in of_tree(&inside)? {
            if all.iter().any(|(other, _)| *other == name) {
                let problem = "another file of this directory has a template of this name: rename one of them";
                return Err(inside.errors.error(None, name.to_string(), problem));
            }
            all.push((name, template));
        }
    }
    Ok(all)
}

fn yaml_files(directory: &Path, reader: &Reader<'_>) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |source: io::Error| ConfigError::Read {
        file: directory.to_owned(),
        source,
    };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let is_yaml = path
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml");
        if !is_yaml {
            continue;
        }
        if files.len() == MAX_FILES {
            let problem = format!(
                "the directory has more than {MAX_FILES} files: leave only templates in it"
            );
            return Err(reader.error("environment_builder.templates_path", problem));
        }
        files.push(path);
    }
    files.sort();
    Ok(files)
}
