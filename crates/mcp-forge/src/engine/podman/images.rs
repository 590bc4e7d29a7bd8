//! The images that containers are made of: building them, listing them, pulling them.
//!
//! What is built comes from files that the binary carries. Nobody else's build file is ever used:
//! one can mount the host's files into a build.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
};

use bollard::{
    Docker, body_full,
    errors::Error,
    models::BuildInfo,
    query_parameters::{BuildImageOptions, BuildImageOptionsBuilder, CreateImageOptionsBuilder},
};
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{config::Images, text::printable};

/// Says which files an image was built from.
const RECIPE_LABEL: &str = "io.mcp-forge.recipe";
/// Says which Python is in it.
const PYTHON_LABEL: &str = "io.mcp-forge.python";

const PREPARE: &str = include_str!("../../../../../deploy/images/prepare.py");

/// An image could not be built or pulled. Those that were there before still are.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is no such image among ours. Nothing was built.
    #[error("there is no image {name:?} to build: {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The image for sessions is made of the one for turns, which is not there.
    #[error("{image} is built on {base}, which is not there: build that one first")]
    NoBase {
        /// What was to be built.
        image: String,
        /// What is missing.
        base: String,
    },
    /// The build ended early. What it had printed came as progress.
    #[error("{image} was not built: {problem}")]
    Build {
        /// What was to be built.
        image: String,
        /// The service's words.
        problem: String,
    },
    /// The registry, or the service, refused.
    #[error("{image} was not pulled: {problem}")]
    Pull {
        /// What was to be pulled.
        image: String,
        /// The service's words.
        problem: String,
    },
    /// The service did not answer the question.
    #[error("the container API did not list its images: {0}")]
    Service(String),
}

/// One of our images, under the name that the configuration gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Its name and tag.
    pub image: String,
    /// Which Python it has.
    pub python: &'static str,
    /// Which of ours it is built on: the one for sessions is.
    on: Option<String>,
    /// What it is called where the configuration gives it no name.
    default: &'static str,
}

impl Recipe {
    /// All of them, in the order in which they can be built.
    pub fn all(images: &Images) -> [Self; 3] {
        let recipe = |image: &String, python, on: Option<&String>, default| Self {
            image: image.clone(),
            python,
            on: on.cloned(),
            default,
        };
        let (older, newer) = (&images.python_3_11, &images.python_3_12);
        [
            recipe(older, "3.11", None, "mcp-forge/python:3.11"),
            recipe(newer, "3.12", None, "mcp-forge/python:3.12"),
            recipe(
                &images.jupyter,
                "3.11",
                Some(older),
                "mcp-forge/jupyter:latest",
            ),
        ]
    }

    /// Those with these names, or all: the configured name, our own, or that without `mcp-forge/`
    /// and without `:latest`.
    ///
    /// # Errors
    ///
    /// [`ImageError::Unknown`].
    pub fn named(images: &Images, names: &[String]) -> Result<Vec<Self>, ImageError> {
        let all = Self::all(images);
        if let Some(unknown) = names
            .iter()
            .find(|name| !all.iter().any(|recipe| recipe.is_named(name)))
        {
            return Err(ImageError::Unknown {
                name: unknown.clone(),
                known: all.iter().map(|recipe| recipe.image.clone()).collect(),
            });
        }
        let wanted =
            |recipe: &Self| names.is_empty() || names.iter().any(|name| recipe.is_named(name));
        Ok(all.into_iter().filter(wanted).collect())
    }

    fn is_named(&self, name: &str) -> bool {
        let plain = |name: &str| {
            let name = name.strip_prefix("mcp-forge/").unwrap_or(name);
            name.strip_suffix(":latest").unwrap_or(name).to_owned()
        };
        name == self.image || plain(name) == plain(self.default)
    }

    /// The files of the build, by name.
    fn files(&self) -> BTreeMap<&'static str, &'static str> {
        let (containerfile, requirements) = match self.on {
            None => (
                include_str!("../../../../../deploy/images/python.Containerfile"),
                include_str!("../../../../../deploy/images/python.txt"),
            ),
            Some(_) => (
                include_str!("../../../../../deploy/images/jupyter.Containerfile"),
                include_str!("../../../../../deploy/images/jupyter.txt"),
            ),
        };
        BTreeMap::from([
            ("Containerfile", containerfile),
            ("prepare.py", PREPARE),
            ("requirements.txt", requirements),
        ])
    }

    /// Changes when one of the files does: an image with another one was built by another version.
    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for (name, text) in self.files() {
            for part in [name, text] {
                hash.update(part.len().to_le_bytes());
                hash.update(part);
            }
        }
        hash.finalize()
            .iter()
            .fold(String::new(), |mut text, byte| {
                // Writing to a String cannot fail.
                let _ = write!(text, "{byte:02x}");
                text
            })
    }

    /// The same bytes each time.
    fn archive(&self) -> std::io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, text) in self.files() {
            let mut header = tar::Header::new_ustar();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, text.as_bytes())?;
        }
        archive.into_inner()
    }
}

/// How to build.
#[derive(Debug, Clone, Copy)]
pub struct BuildOptions<'a> {
    /// The base of the images for turns; `{version}` in it stands for the version of Python. One
    /// that the service has not is pulled by it.
    pub base: &'a str,
    /// Whether packages that the base lacks are installed from PyPI. Otherwise there is no network.
    pub may_install: bool,
}

/// Builds one image, and tells of its progress in lines.
///
/// # Errors
///
/// [`ImageError`]; an image of that name that was there before still is.
///
/// # Cancel safety
///
/// Dropped, the service ends the build.
pub async fn build(
    client: &Docker,
    recipe: &Recipe,
    options: BuildOptions<'_>,
    mut progress: impl FnMut(&str),
) -> Result<(), ImageError> {
    let failed = |problem: String| ImageError::Build {
        image: recipe.image.clone(),
        problem: sentence(&problem),
    };
    let base = match &recipe.on {
        None => options.base.replace("{version}", recipe.python),
        Some(base) => own_base(client, recipe, base).await?,
    };
    let archive = recipe
        .archive()
        .map_err(|error| failed(error.to_string()))?;
    let request = build_request(recipe, &base, options.may_install);
    let stream = client.build_image(request, None, Some(body_full(archive.into())));
    follow(stream, &recipe.image, &mut progress).await?;
    let built = find(client, &recipe.image).await?;
    if built.is_some_and(|built| built.is_of(recipe)) {
        Ok(())
    } else {
        Err(failed(
            "the service ended the build without an image".to_owned(),
        ))
    }
}

/// Follows a build to its end, and tells of its progress in lines.
pub(super) async fn follow(
    stream: impl Stream<Item = Result<BuildInfo, Error>>,
    image: &str,
    mut progress: impl FnMut(&str),
) -> Result<(), ImageError> {
    let failed = |problem: String| ImageError::Build {
        image: image.to_owned(),
        problem: sentence(&problem),
    };
    let mut stream = std::pin::pin!(stream);
    // The service's error is only that the step failed: why, `prepare.py` says itself.
    let mut reason = None;
    while let Some(next) = stream.next().await {
        let text = match next {
            Ok(BuildInfo {
                error_detail: Some(detail),
                ..
            }) => {
                return Err(failed(reason.or(detail.message).unwrap_or_default()));
            }
            Ok(info) => info.stream.unwrap_or_default(),
            Err(error) => return Err(failed(reason.unwrap_or_else(|| words(&error)))),
        };
        // Arrows lead to ids of layers.
        let says = |line: &&str| !line.trim().is_empty() && !line.starts_with("--> ");
        for line in text.lines().filter(says) {
            reason = line
                .strip_prefix("mcp-forge: error: ")
                .map(str::to_owned)
                .or(reason);
            progress(line);
        }
    }
    Ok(())
}

/// By its id: a name might be looked up in a registry.
async fn own_base(client: &Docker, recipe: &Recipe, base: &str) -> Result<String, ImageError> {
    match find(client, base).await? {
        Some(found) => Ok(found.id),
        None => Err(ImageError::NoBase {
            image: recipe.image.clone(),
            base: base.to_owned(),
        }),
    }
}

fn build_request(recipe: &Recipe, base: &str, may_install: bool) -> BuildImageOptions {
    let packages = if may_install { "install" } else { "none" };
    let arguments = HashMap::from(
        [
            ("BASE", base),
            ("PYTHON", recipe.python),
            ("PACKAGES", packages),
            ("RECIPE", &recipe.digest()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let options = BuildImageOptionsBuilder::new()
        .dockerfile("Containerfile")
        .t(&recipe.image)
        .buildargs(&arguments)
        .rm(true)
        .forcerm(true);
    if may_install {
        options.build()
    } else {
        options.networkmode("none").build()
    }
}

/// An image that the service has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The name that it was asked for by, or has.
    pub image: String,
    /// Its digest.
    pub id: String,
    /// Bytes on disk, with all that it is built on.
    pub size: Option<u64>,
    /// Which Python, if we built it.
    pub python: Option<String>,
    /// Which files it was built from, if we built it.
    pub recipe: Option<String>,
}

impl Found {
    /// Whether it was built from the files that this binary carries.
    pub fn is_of(&self, recipe: &Recipe) -> bool {
        self.recipe.as_deref() == Some(&recipe.digest())
    }
}

/// Looks an image up on the service, by name or id.
///
/// # Errors
///
/// [`ImageError::Service`].
pub async fn find(client: &Docker, image: &str) -> Result<Option<Found>, ImageError> {
    let inspected = match client.inspect_image(image).await {
        Ok(inspected) => inspected,
        Err(Error::DockerResponseServerError {
            status_code: 404, ..
        }) => return Ok(None),
        Err(error) => return Err(ImageError::Service(sentence(&words(&error)))),
    };
    let labels = inspected
        .config
        .and_then(|config| config.labels)
        .unwrap_or_default();
    Ok(Some(Found {
        image: image.to_owned(),
        id: inspected.id.unwrap_or_default(),
        size: inspected.size.and_then(|size| u64::try_from(size).ok()),
        python: labels.get(PYTHON_LABEL).cloned(),
        recipe: labels.get(RECIPE_LABEL).cloned(),
    }))
}

/// What to pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    /// What is not there: at start.
    Missing,
    /// What may have changed at its registry: every `images.pull_interval`.
    Newer,
}

/// What became of an image that might have been pulled.
#[derive(Debug)]
pub enum Pulled {
    /// It is there, and was not asked for.
    Present,
    /// The service has what the registry has.
    Pulled,
    /// It is not there, and not on the list of allowed images.
    NotAllowed,
    /// Its name has no registry: a service would ask some registry of its choice for a name that
    /// anybody may hold there. It has to be built.
    NoRegistry,
    /// It could not be pulled.
    Failed(ImageError),
}

/// Pulls the configured images that `is_allowed` allows, if `images.auto_pull` is on, one after the
/// other. Says what became of each; one that fails stops no other.
pub async fn pull(
    client: &Docker,
    images: &Images,
    what: Pull,
    is_allowed: &(dyn Fn(&str) -> bool + Sync),
) -> Vec<(String, Pulled)> {
    let mut pulled = Vec::new();
    if !images.auto_pull {
        return pulled;
    }
    for recipe in Recipe::all(images) {
        let became = match find(client, &recipe.image).await {
            Err(error) => Pulled::Failed(error),
            Ok(Some(_)) if what == Pull::Missing => Pulled::Present,
            Ok(_) if !is_allowed(&recipe.image) => Pulled::NotAllowed,
            Ok(_) if !has_registry(&recipe.image) => Pulled::NoRegistry,
            Ok(_) => match pull_one(client, &recipe.image).await {
                Ok(()) => Pulled::Pulled,
                Err(error) => Pulled::Failed(error),
            },
        };
        pulled.push((recipe.image, became));
    }
    pulled
}

async fn pull_one(client: &Docker, image: &str) -> Result<(), ImageError> {
    let failed = |problem: String| ImageError::Pull {
        image: image.to_owned(),
        problem: sentence(&problem),
    };
    // Without a tag, services pull every tag that there is.
    let request = CreateImageOptionsBuilder::new()
        .from_image(&with_tag(image))
        .build();
    let stream = client.create_image(Some(request), None, None);
    let mut stream = std::pin::pin!(stream);
    while let Some(next) = stream.next().await {
        match next {
            Err(error) => return Err(failed(words(&error))),
            Ok(info) => {
                if let Some(problem) = info.error_detail.and_then(|detail| detail.message) {
                    return Err(failed(problem));
                }
            }
        }
    }
    Ok(())
}

/// Whether the name says which registry it is from, as in `ghcr.io/owner/image`.
fn has_registry(image: &str) -> bool {
    image
        .split_once('/')
        .is_some_and(|(host, _)| host != "localhost" && host.contains(['.', ':']))
}

fn with_tag(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains([':', '@']) {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}

/// Foreign text, fit for a sentence.
pub(super) fn sentence(text: &str) -> String {
    const LONGEST: usize = 500;
    printable(&text.trim().chars().take(LONGEST).collect::<String>())
}

/// The service's words, without the library's around them.
pub(super) fn words(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn images() -> Images {
        Images {
            python_3_11: "mcp-forge/python:3.11".to_owned(),
            python_3_12: "registry.example/team/python:3.12".to_owned(),
            jupyter: "mcp-forge/jupyter:latest".to_owned(),
            base: "docker.io/library/python:{version}-slim".to_owned(),
            allowed: Vec::new(),
            auto_pull: true,
            pull_interval: std::time::Duration::from_secs(1),
        }
    }

    #[test]
    fn images_are_found_by_any_of_their_names() {
        let named = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Recipe::named(&images(), &names).map(|found| {
                found
                    .into_iter()
                    .map(|recipe| recipe.image)
                    .collect::<Vec<_>>()
            })
        };
        let all = [
            "mcp-forge/python:3.11",
            "registry.example/team/python:3.12",
            "mcp-forge/jupyter:latest",
        ];
        assert_eq!(named(&[]).unwrap(), all);
        assert_eq!(
            named(&["jupyter", "python:3.11"]).unwrap(),
            [all[0], all[2]]
        );
        for name in [
            "python:3.12",
            "mcp-forge/python:3.12",
            "registry.example/team/python:3.12",
        ] {
            assert_eq!(named(&[name]).unwrap(), [all[1]], "{name}");
        }
        assert_eq!(named(&["mcp-forge/jupyter"]).unwrap(), [all[2]]);
        let error = named(&["python"]).unwrap_err().to_string();
        assert!(
            error.contains("\"python\"") && error.contains(all[0]),
            "{error}"
        );
    }

    #[test]
    fn what_is_sent_is_our_files_and_arguments_only() {
        for recipe in Recipe::all(&images()) {
            let archive = recipe.archive().unwrap();
            let mut read = tar::Archive::new(archive.as_slice());
            let files: BTreeMap<String, String> = read
                .entries()
                .unwrap()
                .map(|entry| {
                    let mut entry = entry.unwrap();
                    let mut text = String::new();
                    entry.read_to_string(&mut text).unwrap();
                    (entry.path().unwrap().display().to_string(), text)
                })
                .collect();
            let names: Vec<&str> = files.keys().map(String::as_str).collect();
            assert_eq!(names, ["Containerfile", "prepare.py", "requirements.txt"]);
            assert!(!files["Containerfile"].contains("--mount"));
            assert_eq!(archive, recipe.archive().unwrap());
        }
    }

    #[test]
    fn a_build_that_installs_nothing_has_no_network() {
        let [recipe, ..] = Recipe::all(&images());
        let request = build_request(&recipe, "base", false);
        assert_eq!(request.networkmode.as_deref(), Some("none"));
        assert_eq!(request.t.as_deref(), Some("mcp-forge/python:3.11"));
        let arguments: BTreeMap<_, _> = request.buildargs.unwrap().into_iter().collect();
        assert_eq!(arguments["BASE"], "base");
        assert_eq!(arguments["PACKAGES"], "none");
        assert_eq!(build_request(&recipe, "base", true).networkmode, None);
    }

    #[test]
    fn only_names_with_a_registry_and_one_tag_are_pulled() {
        for (image, expected) in [
            ("mcp-forge/python:3.11", false),
            ("python", false),
            ("localhost/python:1", false),
            ("ghcr.io/owner/python:1", true),
            ("registry:5000/python", true),
        ] {
            assert_eq!(has_registry(image), expected, "{image}");
        }
        assert_eq!(
            with_tag("registry:5000/python"),
            "registry:5000/python:latest"
        );
        assert_eq!(with_tag("ghcr.io/a/b:1"), "ghcr.io/a/b:1");
        assert_eq!(with_tag("ghcr.io/a/b@sha256:00"), "ghcr.io/a/b@sha256:00");
    }
}
