//! `environment_builder` and `packages`: how environments are built, from where, and what may be in them.

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use reqwest::Url;

use super::{error::ConfigError, read::Reader, size::parse_duration, templates, values::told};
use crate::{
    packages::{PackageName, Rules, Templates},
    text::{clipped, quoted},
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
        // A number alone could be seconds, days or a year.
        let has_unit = text.ends_with(|last: char| last.is_ascii_lowercase());
        if has_unit && let Ok(age) = parse_duration(text) {
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
        let path = format!("{SECTION}.{}", clipped(name));
        if !is_index_name(name) {
            let problem = "an index's name has 1 to 64 ASCII letters, digits, - and _, and begins with a letter or a digit";
            return Err(reader.errors.error(Some(node), path, problem));
        }
        let inside = reader.inside(node);
        let url = index(&inside, "url", &format!("{path}.url"))?;
        let packages = packages_of_index(&inside, &path, &mut taken)?;
        let name = name.to_owned();
        indexes.push(ExtraIndex {
            name,
            url,
            packages,
        });
    }
    Ok(indexes)
}

fn is_index_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// The packages of one index, none of which may be `taken`: then they are.
fn packages_of_index(
    inside: &Reader<'_>,
    path: &str,
    taken: &mut BTreeSet<PackageName>,
) -> Result<BTreeSet<PackageName>, ConfigError> {
    let mut packages = BTreeSet::new();
    for (index, text) in inside.texts("packages").iter().enumerate() {
        let node = inside.tree.at(&["packages", &index.to_string()]);
        let refused = |problem: String| {
            let problem = told(node, "a package's name of its own", problem);
            let key = format!("{path}.packages.{index}");
            inside
                .errors
                .error(node.or(Some(inside.tree)), key, problem)
        };
        let package = PackageName::parse(text).map_err(|problem| {
            refused(format!("{} is no package's name: {problem}", quoted(text)))
        })?;
        if !taken.insert(package.clone()) {
            return Err(refused(format!(
                "{package} is listed for an index already: a package comes from one index. Leave it out here or there"
            )));
        }
        packages.insert(package);
    }
    if packages.is_empty() {
        let problem = "this index is for no package: list those that come from it under packages, or leave the index out";
        return Err(inside.errors.error(Some(inside.tree), path, problem));
    }
    Ok(packages)
}

fn file_hosts(reader: &Reader<'_>) -> Result<Vec<String>, ConfigError> {
    const KEY: &str = "environment_builder.file_hosts";
    let hosts = reader.texts(KEY).into_iter().enumerate();
    let checked = hosts.map(|(index, host)| {
        if is_host(&host) {
            return Ok(host.to_ascii_lowercase());
        }
        let problem = format!(
            "{} is no host: write its name alone, such as files.pythonhosted.org, with :port if it is not 443",
            quoted(&host)
        );
        Err(about_entry(reader, (KEY, index), "a host", problem))
    });
    checked.collect()
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
    let rules = Rules::new(
        &list("allowlist"),
        reader.flag("packages.allowlist_only"),
        &list("blocklist"),
        &list("manual_approval"),
    );
    rules.map_err(|error| {
        let wanted = "a package's name or a pattern";
        about_entry(reader, (error.list, error.index), wanted, error.problem)
    })
}

/// The error for one entry of a list.
fn about_entry(
    reader: &Reader<'_>,
    (list, index): (&str, usize),
    wanted: &str,
    problem: String,
) -> ConfigError {
    let path = format!("{list}.{index}");
    let at = |path: &str| reader.tree.at(&path.split('.').collect::<Vec<_>>());
    let node = at(&path).or_else(|| at(list));
    reader
        .errors
        .error(node, path.as_str(), told(node, wanted, problem))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fmt::Write as _, fs};

    use super::*;
    use crate::{
        config::{Config, Loaded, Sources},
        packages::{EnvironmentName, Verdict},
    };

    struct Case {
        directory: tempfile::TempDir,
        sources: Sources,
    }

    impl Case {
        fn new(text: &str) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("f.yaml");
            fs::write(&file, text).unwrap();
            let home = ("HOME".to_owned(), "/home/someone".to_owned());
            let sources = Sources {
                file: Some(file),
                environment: BTreeMap::from([home]),
                ..Sources::default()
            };
            Self { directory, sources }
        }

        fn write(&self, name: &str, text: &str) {
            let file = self.directory.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }

        fn load(&self) -> Loaded {
            Config::load(&self.sources).unwrap()
        }

        fn settings(&self) -> EnvironmentSettings {
            self.load().config.environments
        }

        fn error(&self) -> String {
            let directory = format!("{}/", self.directory.path().display());
            let error = Config::load(&self.sources).unwrap_err();
            error.to_string().replace(&directory, "")
        }
    }

    fn template(settings: &EnvironmentSettings, name: &str) -> Vec<String> {
        let name = EnvironmentName::parse(name).unwrap();
        let packages = &settings.templates.get(&name).unwrap().packages;
        packages.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn nothing_written_means_the_public_index_and_wheels_of_its_host() {
        let settings = Case::new("").settings();
        assert!(settings.enabled && !settings.python_downloads);
        assert_eq!(settings.index.expose(), "https://pypi.org/simple");
        assert_eq!(
            settings.file_origins(),
            ["https://files.pythonhosted.org", "https://pypi.org"]
        );
        assert_eq!((settings.uv, settings.wheel_directory), (None, None));
        assert_eq!(
            (settings.exclude_newer, settings.python_paths),
            (None, vec![])
        );
        let day = Duration::from_hours(24);
        assert_eq!(
            (settings.archive_after, settings.delete_after),
            (30 * day, 90 * day)
        );
        assert_eq!(settings.scanner, Scanner::Auto);
        assert_eq!(settings.refuse_severity, RefuseSeverity::Critical);
        assert_eq!(
            settings.rate,
            BuildRate {
                requests: 10,
                period: Duration::from_hours(1)
            }
        );
        assert_eq!(settings.templates, Templates::built_in());
        let name = PackageName::parse("numpy").unwrap();
        assert_eq!(settings.rules.judge(&name, false), Verdict::Allowed);
    }

    #[test]
    fn everything_that_can_be_written() {
        let case = Case::new(
            r"
environment_builder:
  uv: bin/uv
  index_url: https://user:canary@index.example:8443/simple/
  extra_indexes:
    private:
      url: https://token-canary@private.example/simple
      packages: [Our_Own, ours]
  file_hosts: [Files.Example, cdn.example:8443]
  wheel_directory: ~/wheels
  exclude_newer: 2026-01-31
  python_paths: [/usr/bin/python3.11, pythons/3.12]
  python_downloads: true
  archive_after: 1d
  delete_after: 2d
  scanner: off
  refuse_severity: none
packages:
  allowlist: [numpy, 'scikit-*']
  allowlist_only: true
  blocklist: [os-sys]
  manual_approval: ['*ssh*']
",
        );
        let Loaded {
            config, warnings, ..
        } = case.load();
        assert_eq!(warnings, Vec::<String>::new());
        assert!(
            !format!("{config:?}").contains("canary"),
            "Debug shows a secret"
        );
        let settings = config.environments;
        let here = case.directory.path();
        assert_eq!(settings.uv, Some(here.join("bin/uv")));
        assert_eq!(
            settings.index.expose(),
            "https://user:canary@index.example:8443/simple/"
        );
        assert_eq!(
            settings.index.to_string(),
            "https://index.example:8443/simple/"
        );
        assert_eq!(
            (settings.index.host(), settings.index.port()),
            ("index.example", 8443)
        );
        let extra = &settings.extra_indexes[0];
        assert_eq!(extra.name, "private");
        assert_eq!(extra.url.to_string(), "https://private.example/simple");
        let packages: Vec<&str> = extra.packages.iter().map(PackageName::as_str).collect();
        assert_eq!(packages, ["our-own", "ours"]);
        assert_eq!(
            settings.file_origins(),
            [
                "https://cdn.example:8443",
                "https://files.example",
                "https://index.example:8443",
                "https://private.example"
            ]
        );
        assert_eq!(
            settings.wheel_directory,
            Some(PathBuf::from("/home/someone/wheels"))
        );
        let moment = "2026-01-31T00:00:00Z".parse().unwrap();
        assert_eq!(settings.exclude_newer, Some(ExcludeNewer::At(moment)));
        assert_eq!(
            settings.python_paths,
            [
                PathBuf::from("/usr/bin/python3.11"),
                here.join("pythons/3.12")
            ]
        );
        assert!(settings.python_downloads);
        assert_eq!(settings.scanner, Scanner::Off);
        assert_eq!(settings.refuse_severity, RefuseSeverity::Nothing);
        let judge = |name: &str| {
            let name = PackageName::parse(name).unwrap();
            settings.rules.judge(&name, false)
        };
        assert_eq!(judge("scikit_learn"), Verdict::Allowed);
        assert_eq!(judge("pandas"), Verdict::NotListed);
        assert!(matches!(judge("os.sys"), Verdict::Blocked { .. }));
    }

    #[test]
    fn what_is_newer_is_a_moment_or_an_age() {
        let now: Timestamp = "2026-03-10T12:00:00Z".parse().unwrap();
        for (text, moment) in [
            ("2026-01-31", "2026-01-31T00:00:00Z"),
            ("2026-01-31T12:30:00Z", "2026-01-31T12:30:00Z"),
            ("2026-01-31T12:30:00+02:00", "2026-01-31T10:30:00Z"),
            ("7d", "2026-03-03T12:00:00Z"),
            ("36h", "2026-03-09T00:00:00Z"),
        ] {
            let parsed = ExcludeNewer::parse(text).unwrap();
            assert_eq!(parsed.moment(now).to_string(), moment, "{text}");
        }
        for text in [
            "",
            "2026",
            "7",
            "soon",
            "2026-13-01",
            "7 weeks",
            "-7d",
            "2026-01-31T12:30:00",
            "1;d",
        ] {
            assert!(ExcludeNewer::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn templates_come_from_the_configuration_the_directory_and_the_program() {
        let case = Case::new(
            "environment_builder:\n  templates_path: templates\n  templates:\n    mine: {description: ours, packages: ['NumPy >= 1.0']}\n    ml-basic: {packages: [pandas]}\n",
        );
        // It need not be there.
        assert_eq!(template(&case.settings(), "mine"), ["numpy>=1.0"]);
        case.write(
            "templates/single.yaml",
            "description: one\npackages: [requests]\n",
        );
        case.write("templates/many.yml", "templates:\n  a: {packages: [six]}\n  ml-basic: {packages: [six]}\n  web-scraping: {packages: [lxml]}\n");
        case.write("templates/README.md", "- not read\n");
        let settings = case.settings();
        assert_eq!(template(&settings, "single"), ["requests"]);
        assert_eq!(template(&settings, "a"), ["six"]);
        assert_eq!(template(&settings, "ml-basic"), ["pandas"]);
        assert_eq!(template(&settings, "web-scraping"), ["lxml"]);
        assert_eq!(template(&settings, "data-science").len(), 5);
        assert_eq!(settings.templates.iter().count(), 7);
    }

    /// One error text each: the place, the key, the value unless it may be secret, and the fix.
    #[test]
    fn error_texts() {
        let builder = |text: &str| format!("environment_builder:\n  {text}\n");
        let indexes = |text: &str| builder(&format!("extra_indexes:\n    {text}"));
        let packages = |text: &str| format!("packages:\n  {text}\n");
        let cases = [
            builder("index_url: http://user:canary@index.example/simple"),
            builder("index_url: ftp://user:canary@index.example/"),
            builder("index_url: canary"),
            builder("index_url: [canary]"),
            builder("index_url: https://index.example/simple?token=canary"),
            indexes("private: {packages: [a]}"),
            indexes("private: {url: 'https://index.example/'}"),
            indexes("private: {url: 'canary', packages: [a]}"),
            indexes("private: {url: 'https://index.example/', packages: [a, 'b>=1']}"),
            indexes(
                "one: {url: 'https://a.example/', packages: [x_y]}\n    two: {url: 'https://b.example/', packages: [X.Y]}",
            ),
            indexes("'a b': {url: 'https://a.example/', packages: [a]}"),
            builder("file_hosts: ['https://files.example']"),
            builder("file_hosts: ['files.example', '*.example']"),
            builder("exclude_newer: soon"),
            builder("archive_after: 100d"),
            builder("delete_after: 1d"),
            builder("scanner: clair"),
            builder("refuse_severity: medium"),
            builder("python_downloads: maybe"),
            builder("uvv: /usr/bin/uv"),
            builder("templates: {UPPER: {packages: [a]}}"),
            builder("templates: {mine: {description: empty}}"),
            builder("templates: {mine: {packages: [a, '--index-url x']}}"),
            packages("allowlist: ['numpy==1.0']"),
            packages("blocklist: [good, 'bad name']"),
            packages("manual_approval: ['-*']"),
            packages("allowlist_only: [numpy]"),
            packages("blocklist: ['${SECRET}']"),
            builder("file_hosts: ['${SECRET}']"),
            builder("exclude_newer: ${SECRET}"),
            builder("templates: {mine: {packages: ['${SECRET}']}}"),
            indexes("private: {url: 'https://index.example/', packages: ['${SECRET}']}"),
            indexes("private: {url: '${SECRET}', packages: [a]}"),
        ];
        let mut texts = String::new();
        for text in &cases {
            let mut case = Case::new(text);
            let secret = ("SECRET".to_owned(), "canary==".to_owned());
            case.sources.environment.extend([secret]);
            let error = case.error();
            assert!(!error.contains("canary"), "{error}");
            writeln!(texts, "{error}").unwrap();
        }
        for (name, text) in [
            ("templates/a.yaml", "packages: ['numpy; x']\n"),
            ("templates/a.yaml", "package: [numpy]\n"),
            ("templates/Bad_Name.yaml", "packages: [numpy]\n"),
            (
                "templates/a.yaml",
                "templates: {b: {packages: [x]}}\nserver: {port: 1}\n",
            ),
            ("templates/a.yaml", "- a\n"),
            ("templates/a.yaml", "packages: [\n"),
        ] {
            let case = Case::new(&builder("templates_path: templates"));
            case.write(name, text);
            writeln!(texts, "{}", case.error()).unwrap();
        }
        let case = Case::new(&builder("templates_path: templates"));
        case.write("templates/a.yaml", "packages: [x]\n");
        case.write("templates/b.yaml", "templates: {a: {packages: [x]}}\n");
        writeln!(texts, "{}", case.error()).unwrap();
        insta::assert_snapshot!(texts);
    }

    #[test]
    fn a_variable_reaches_its_key() {
        let mut case = Case::new("");
        for (name, value) in [
            (
                "MCP_FORGE_ENVIRONMENT_BUILDER_INDEX_URL",
                "https://u:canary@index.example/",
            ),
            ("MCP_FORGE_ENVIRONMENT_BUILDER_UV", "/opt/uv"),
            ("MCP_FORGE_PACKAGES_BLOCKLIST", "a, b*"),
        ] {
            let pair = (name.to_owned(), value.to_owned());
            case.sources.environment.extend([pair]);
        }
        let settings = case.settings();
        assert_eq!(settings.index.to_string(), "https://index.example/");
        assert_eq!(settings.uv, Some(PathBuf::from("/opt/uv")));
        let name = PackageName::parse("bb").unwrap();
        assert!(matches!(
            settings.rules.judge(&name, false),
            Verdict::Blocked { .. }
        ));
        let variable = "MCP_FORGE_ENVIRONMENT_BUILDER_INDEX_URL".to_owned();
        case.sources
            .environment
            .insert(variable, "http://canary@x/".to_owned());
        let error = case.error();
        assert!(
            error.contains("MCP_FORGE_ENVIRONMENT_BUILDER_INDEX_URL"),
            "{error}"
        );
        assert!(!error.contains("canary"), "{error}");
    }
}
