//! `environment_builder` and `packages`: how environments are built, from where, and what may be in them.

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use reqwest::Url;

use super::{error::ConfigError, read::Reader, size::parse_duration, templates};
use crate::{
    packages::{PackageName, Rules, Templates},
    text::quoted,
};

/// Everything an operator decides about environments, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentSettings {
    /// Whether anything may be built.
    pub enabled: bool,
    /// The program `uv`; `None` looks on PATH.
    pub uv: Option<PathBuf>,
    /// Its cache.
    pub uv_cache: PathBuf,
    /// Packages of one environment. Default 50.
    pub max_packages: usize,
    /// Time for one build. Default 10 min.
    pub max_build_time: Duration,
    /// Bytes of a built environment. Default 2 GiB.
    pub max_bytes: u64,
    /// Builds at once. Default 3.
    pub max_concurrent_builds: usize,
    /// Builds of one principal in a period. Default 10 an hour.
    pub rate: BuildRate,
    /// The index of every package that no other index is named for.
    pub index: IndexUrl,
    /// Further indexes, by name, each for the packages that it lists and no others.
    pub extra_indexes: Vec<ExtraIndex>,
    /// Hosts that files may come from beside those of the indexes: `files.pythonhosted.org`.
    pub file_hosts: Vec<String>,
    /// A directory with wheels of the operator's own.
    pub wheel_directory: Option<PathBuf>,
    /// Files that were uploaded later are not seen.
    pub exclude_newer: Option<ExcludeNewer>,
    /// Interpreters that environments may be built for, beside those on PATH.
    pub python_paths: Vec<PathBuf>,
    /// Whether `uv` may fetch a Python that the machine lacks. Default false.
    pub python_downloads: bool,
    /// Unused for so long, only an environment's lock is kept. Default 30 days.
    pub archive_after: Duration,
    /// Unused for so long, it is forgotten. Default 90 days.
    pub delete_after: Duration,
    /// What looks for known vulnerabilities.
    pub scanner: Scanner,
    /// From which severity on an environment is not published.
    pub refuse_severity: RefuseSeverity,
    /// Which packages may be installed.
    pub rules: Rules,
    /// The built-in templates and the operator's.
    pub templates: Templates,
}

/// How often something may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildRate {
    /// How often.
    pub requests: u64,
    /// In which time.
    pub period: Duration,
}

/// An index for packages that are named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraIndex {
    /// What the operator calls it.
    pub name: String,
    /// Its address.
    pub url: IndexUrl,
    /// The packages that come from it, and from nowhere else.
    pub packages: BTreeSet<PackageName>,
}

/// An index's address. What it shows has no user and no password: only [`IndexUrl::expose`] has.
#[derive(Clone, PartialEq, Eq)]
pub struct IndexUrl(Url);

/// Until when a file must have been uploaded to be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExcludeNewer {
    /// Until then.
    At(Timestamp),
    /// Until so long before the build.
    Age(Duration),
}

/// What looks for known vulnerabilities in a built environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scanner {
    /// Whichever of the two is on PATH, if one is.
    Auto,
    /// None.
    Off,
    /// `trivy`.
    Trivy,
    /// `grype`.
    Grype,
}

/// From which severity on an environment is not published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefuseSeverity {
    /// Critical ones only.
    Critical,
    /// High and critical ones.
    High,
    /// None: they are told only.
    Nothing,
}

impl EnvironmentSettings {
    /// Beginnings of the addresses that files may come from: those of the indexes and of the file
    /// hosts, as `https://host`, with a port where it is not the usual one.
    pub fn file_origins(&self) -> Vec<String> {
        let indexes =
            std::iter::once(&self.index).chain(self.extra_indexes.iter().map(|extra| &extra.url));
        let hosts = self.file_hosts.iter().map(|host| format!("https://{host}"));
        let origins: BTreeSet<String> = indexes.map(IndexUrl::origin).chain(hosts).collect();
        origins.into_iter().collect()
    }
}

impl IndexUrl {
    /// Checks an address: `https`, or `http` on this machine.
    ///
    /// # Errors
    ///
    /// What is wrong with it and what to write instead, without the address: it may be secret.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let url = Url::parse(text)
            .map_err(|_| "this is no address: write one such as https://pypi.org/simple")?;
        let is_local = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        match url.scheme() {
            "https" => {}
            "http" if is_local => {}
            "http" => return Err("packages that come over http could be anybody's: write https"),
            _ => {
                return Err(
                    "an index is read over https: write an address such as https://pypi.org/simple",
                );
            }
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(
                "an index's address ends with its path: leave out ? and # and what follows",
            );
        }
        Ok(Self(url))
    }

    /// The whole address, with user and password. Secret: for the program that reads the index only.
    pub fn expose(&self) -> &str {
        self.0.as_str()
    }

    /// The host, without a port.
    pub fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }

    /// The port, which is 443 for `https` unless the address has another.
    pub fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or(443)
    }

    /// `https://host`, with a port where it is not the usual one.
    pub fn origin(&self) -> String {
        self.0.origin().ascii_serialization()
    }
}

/// The address without user and password.
impl fmt::Display for IndexUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.0.path())
    }
}

impl fmt::Debug for IndexUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IndexUrl({self})")
    }
}

impl ExcludeNewer {
    /// Reads a date (`2026-01-31`, its first moment in UTC), a moment (RFC 3339), or an age (`7d`).
    ///
    /// # Errors
    ///
    /// What to write instead, to be put after the value.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const PROBLEM: &str =
            "is neither a date nor an age: write 2026-01-31, 2026-01-31T12:00:00Z or 7d";
        if let Ok(age) = parse_duration(text) {
            return Ok(Self::Age(age));
        }
        let whole = if text.contains(['T', 't', ' ']) {
            text.to_owned()
        } else {
            format!("{text}T00:00:00Z")
        };
        whole.parse().map(Self::At).map_err(|_| PROBLEM)
    }

    /// The moment, for a build that begins now.
    pub fn moment(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(moment) => moment,
            // Ages are at most ten years: far from the first moment that there is.
            Self::Age(age) => now.checked_sub(age).unwrap_or(Timestamp::MIN),
        }
    }
}

/// Reads both sections.
///
/// # Errors
///
/// [`ConfigError`] for the first value that cannot be used.
pub(super) fn read(
    reader: &Reader<'_>,
    data_dir: &Path,
) -> Result<EnvironmentSettings, ConfigError> {
    let key = |name: &str| format!("environment_builder.{name}");
    let (archive_after, delete_after) = lifetimes(reader)?;
    Ok(EnvironmentSettings {
        enabled: reader.flag(&key("enabled")),
        uv: reader.path(&key("uv")),
        uv_cache: reader
            .path(&key("uv_cache_path"))
            .unwrap_or_else(|| data_dir.join("uv")),
        max_packages: reader.number(&key("max_packages"))?,
        max_build_time: reader.duration(&key("max_build_time"))?,
        max_bytes: reader.size(&key("max_image_size"))?,
        max_concurrent_builds: reader.number(&key("max_concurrent_builds"))?,
        rate: BuildRate {
            requests: reader.count(&key("build_rate_limit.requests"))?,
            period: reader.duration(&key("build_rate_limit.period"))?,
        },
        index: index(reader, &key("index_url"), &key("index_url"))?,
        extra_indexes: extra_indexes(reader)?,
        file_hosts: file_hosts(reader)?,
        wheel_directory: reader.path(&key("wheel_directory")),
        exclude_newer: exclude_newer(reader)?,
        python_paths: reader.paths(&key("python_paths")),
        python_downloads: reader.flag(&key("python_downloads")),
        archive_after,
        delete_after,
        scanner: match reader.text(&key("scanner")).as_deref() {
            Some("off") => Scanner::Off,
            Some("trivy") => Scanner::Trivy,
            Some("grype") => Scanner::Grype,
            _ => Scanner::Auto,
        },
        refuse_severity: match reader.text(&key("refuse_severity")).as_deref() {
            Some("high") => RefuseSeverity::High,
            Some("none") => RefuseSeverity::Nothing,
            _ => RefuseSeverity::Critical,
        },
        rules: rules(reader)?,
        templates: templates::read(reader)?,
    })
}

fn lifetimes(reader: &Reader<'_>) -> Result<(Duration, Duration), ConfigError> {
    let (archive, delete) = (
        "environment_builder.archive_after",
        "environment_builder.delete_after",
    );
    let (archive_after, delete_after) = (reader.duration(archive)?, reader.duration(delete)?);
    if archive_after > delete_after {
        let (written, other, fix) = if reader.is_written(delete) {
            (delete, archive, "raise it")
        } else {
            (archive, delete, "lower it")
        };
        let problem = format!(
            "{} does not go with {other}, which is {}: what is archived is deleted later. Here, {fix}",
            reader.shown(written),
            reader.shown(other)
        );
        return Err(reader.error(written, problem));
    }
    Ok((archive_after, delete_after))
}

/// The address at a path; errors call it by `shown`.
fn index(reader: &Reader<'_>, path: &str, shown: &str) -> Result<IndexUrl, ConfigError> {
    let refused = |problem: &str| {
        let node = reader.tree.at(&path.split('.').collect::<Vec<_>>());
        reader
            .errors
            .error(node.or(Some(reader.tree)), shown, problem)
    };
    let Some(text) = reader.text(path) else {
        return Err(refused(
            "an index has an address: write url with one such as https://host/simple",
        ));
    };
    IndexUrl::parse(&text).map_err(refused)
}

fn extra_indexes(reader: &Reader<'_>) -> Result<Vec<ExtraIndex>, ConfigError> {
    const SECTION: &str = "environment_builder.extra_indexes";
    let mut taken: BTreeSet<PackageName> = BTreeSet::new();
    let mut indexes = Vec::new();
    for (name, node) in reader.named(SECTION) {
        let path = format!("{SECTION}.{}", crate::text::clipped(name));
        let is_fit = (1..=64).contains(&name.len())
            && name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if !is_fit {
            let problem = "an index's name has 1 to 64 ASCII letters, digits, - and _, and begins with a letter or a digit";
            return Err(reader.errors.error(Some(node), path, problem));
        }
        let inside = reader.inside(node);
        let url = index(&inside, "url", &format!("{path}.url"))?;
        let mut packages = BTreeSet::new();
        for (position, text) in inside.texts("packages").iter().enumerate() {
            let position = position.to_string();
            let refused = |problem: String| {
                let node = node.at(&["packages", &position]).unwrap_or(node);
                reader
                    .errors
                    .error(Some(node), format!("{path}.packages.{position}"), problem)
            };
            let package = PackageName::parse(text).map_err(|problem| {
                refused(format!("{} is no package's name: {problem}", quoted(text)))
            })?;
            if !taken.insert(package.clone()) {
                let problem = format!(
                    "{package} is listed for an index already: a package comes from one index. Leave it out here or there"
                );
                return Err(refused(problem));
            }
            packages.insert(package);
        }
        if packages.is_empty() {
            let problem = "this index is for no package: list those that come from it under packages, or leave the index out";
            return Err(reader.errors.error(Some(node), path, problem));
        }
        let name = name.to_owned();
        indexes.push(ExtraIndex {
            name,
            url,
            packages,
        });
    }
    Ok(indexes)
}

fn file_hosts(reader: &Reader<'_>) -> Result<Vec<String>, ConfigError> {
    const KEY: &str = "environment_builder.file_hosts";
    let hosts = reader.texts(KEY).into_iter().enumerate().map(|(position, host)| {
        if is_host(&host) {
            return Ok(host.to_ascii_lowercase());
        }
        let problem = format!(
            "{} is no host: write its name alone, such as files.pythonhosted.org, with :port if it is not 443",
            quoted(&host)
        );
        Err(reader.error(&format!("{KEY}.{position}"), problem))
    });
    hosts.collect()
}

/// A host's name, and a port if it is not the usual one.
fn is_host(text: &str) -> bool {
    let (name, port) = text.split_once(':').unwrap_or((text, "1"));
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit())
        && port
            .parse::<u16>()
            .is_ok_and(|port| port != 0 && port != 443);
    name.len() <= 253 && name.split('.').all(is_part) && is_port
}

fn exclude_newer(reader: &Reader<'_>) -> Result<Option<ExcludeNewer>, ConfigError> {
    const KEY: &str = "environment_builder.exclude_newer";
    let Some(text) = reader.text(KEY) else {
        return Ok(None);
    };
    let parsed = ExcludeNewer::parse(&text).map(Some);
    parsed.map_err(|problem| reader.error(KEY, format!("{} {problem}", reader.shown(KEY))))
}

fn rules(reader: &Reader<'_>) -> Result<Rules, ConfigError> {
    let list = |name: &str| reader.texts(&format!("packages.{name}"));
    Rules::new(
        &list("allowlist"),
        reader.flag("packages.allowlist_only"),
        &list("blocklist"),
        &list("manual_approval"),
    )
    .map_err(|error| reader.error(&format!("{}.{}", error.list, error.index), error.problem))
}
