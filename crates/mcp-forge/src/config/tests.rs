//! Whole files through the whole loader.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use proptest::prelude::*;

use super::{keys::KEYS, *};

struct Case {
    directory: tempfile::TempDir,
    sources: Sources,
}

impl Case {
    fn new(name: &str, text: &str, environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(name);
        fs::write(&file, text).unwrap();
        let mut sources = Sources {
            file: Some(file),
            ..Sources::default()
        };
        sources
            .environment
            .insert("HOME".to_owned(), "/home/someone".to_owned());
        for (name, value) in environment {
            sources
                .environment
                .insert((*name).to_owned(), (*value).to_owned());
        }
        Self { directory, sources }
    }

    fn load(&self) -> Result<Loaded, ConfigError> {
        Config::load(&self.sources)
    }

    fn error(&self) -> String {
        let directory = format!("{}/", self.directory.path().display());
        self.load().unwrap_err().to_string().replace(&directory, "")
    }
}

fn yaml(text: &str) -> Loaded {
    Case::new("f.yaml", text, &[]).load().unwrap()
}

fn without_file(environment: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let mut sources = Sources::default();
    sources
        .environment
        .insert("HOME".to_owned(), "/home/someone".to_owned());
    sources.environment.extend(
        environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    Config::load(&sources)
}

#[test]
fn no_file_at_all_gives_the_defaults_of_the_specification() {
    let loaded = without_file(&[]).unwrap();
    let config = loaded.config;
    assert_eq!((loaded.file, loaded.warnings), (None, Vec::new()));
    assert_eq!(
        config.data_dir,
        Path::new("/home/someone/.local/share/mcp-forge")
    );
    assert_eq!(
        config.audit_dir,
        Path::new("/home/someone/.local/share/mcp-forge/audit")
    );
    assert_eq!(
        config.default_limits,
        Limits {
            timeout: Duration::from_mins(5),
            memory_bytes: 512 << 20,
            cpu_quota_us: 50_000,
            pids: 100,
            storage_bytes: 1 << 30,
        }
    );
    assert_eq!(
        config.max_limits,
        Limits {
            timeout: Duration::from_mins(30),
            memory_bytes: 2 << 30,
            cpu_quota_us: 100_000,
            pids: 100,
            storage_bytes: 10 << 30,
        }
    );
    assert_eq!(
        (config.caps.output_bytes, config.caps.flood_bytes),
        (1 << 20, 256 << 20)
    );
    assert_eq!(
        (config.bridge.max_calls, config.bridge.max_in_flight),
        (1_000, 32)
    );
    assert_eq!(
        (config.profile, config.native.rootfs),
        (Profile::Desktop, Rootfs::Host)
    );
    assert!(config.upstreams.is_empty());
}

#[test]
fn the_example_of_the_specification_loads_as_it_is() {
    let text = include_str!("fixtures/specification.yaml");
    let case = Case::new("mcp-forge.yaml", text, &[("GITHUB_TOKEN", "ghp_canary")]);
    let Loaded {
        config, warnings, ..
    } = case.load().unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(config.audit_dir, Path::new("/var/log/mcp-forge/audit"));
    assert_eq!(
        config.containers.socket.as_deref(),
        Some(Path::new("/run/user/1000/podman/podman.sock"))
    );
    assert_eq!(config.environments.max_bytes, 2 << 30);
    assert_eq!(config.volumes.base_path, Path::new("/var/lib/mcp-forge"));
    assert_eq!(
        config.environments.uv_cache,
        Path::new("/var/cache/mcp-forge/uv")
    );
    assert_eq!(
        config.upstreams.keys().collect::<Vec<_>>(),
        ["filesystem", "github"]
    );
    let Transport::Stdio {
        command,
        args,
        env,
        cwd,
    } = &config.upstreams["github"].transport
    else {
        panic!()
    };
    assert_eq!((command.as_str(), args.len(), cwd), ("npx", 2, &None));
    assert_eq!(env["GITHUB_TOKEN"], "ghp_canary");
    let defaults = without_file(&[]).unwrap().config;
    assert_eq!(
        (config.default_limits, config.max_limits),
        (defaults.default_limits, defaults.max_limits)
    );
    assert!(
        !format!("{:?}", config.upstreams).contains("canary"),
        "Debug shows a secret"
    );
}

/// A default in the table is also what the code uses, and every key of the table is accepted.
#[test]
fn writing_every_default_down_changes_nothing() {
    let mut environment: Vec<(String, &str)> = Vec::new();
    for key in KEYS {
        if let (Some(variable), false) = (key.variable(), key.default.is_empty()) {
            environment.push((variable, key.default));
        }
    }
    assert!(environment.len() > 40);
    let pairs: Vec<(&str, &str)> = environment
        .iter()
        .map(|(name, value)| (name.as_str(), *value))
        .collect();
    let loaded = without_file(&pairs).unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert_eq!(loaded.config, without_file(&[]).unwrap().config);
}

/// No two keys may share a variable: `a.b_c` and `a_b.c` would.
#[test]
fn every_variable_names_one_key() {
    let names: Vec<String> = KEYS.iter().filter_map(keys::Key::variable).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

#[test]
fn each_variable_reaches_its_key() {
    let loaded = without_file(&[
        ("MCP_FORGE_EXECUTION_DEFAULT_TIMEOUT", "42"),
        ("MCP_FORGE_EXECUTION_MAX_MEMORY", "4g"),
        ("MCP_FORGE_IMAGES_AUTO_PULL", "false"),
        ("MCP_FORGE_SECURITY_ALLOW_DEGRADED", "landlock, cgroup"),
        ("MCP_FORGE_PODMAN_SOCKET", "/run/p.sock"),
        ("MCP_FORGE_VOLUMES_PATH", "/srv/volumes"),
        ("MCP_FORGE_UV_CACHE_PATH", "/srv/uv"),
        ("MCP_FORGE_AUDIT_LOG", "/srv/audit.log"),
        ("MCP_FORGE_DATA_DIR", "/srv/data"),
        ("MCP_FORGE_LOG", "debug"),
        ("MCP_FORGE_NATIVE_ROOTFS", ""),
        ("MCP_FORGE_EXECUTION_DEFAULT_TIMEOT", "1"),
    ])
    .unwrap();
    let config = loaded.config;
    assert_eq!(config.default_limits.timeout, Duration::from_secs(42));
    assert_eq!(config.max_limits.memory_bytes, 4 << 30);
    assert!(!config.containers.images.auto_pull);
    assert_eq!(config.allow_degraded, ["landlock", "cgroup"]);
    assert_eq!(config.containers.socket, Some(PathBuf::from("/run/p.sock")));
    assert_eq!(config.volumes.base_path, Path::new("/srv/volumes"));
    assert_eq!(config.environments.uv_cache, Path::new("/srv/uv"));
    assert_eq!(config.audit_dir, Path::new("/srv/audit"));
    assert_eq!(config.data_dir, Path::new("/srv/data"));
    insta::assert_snapshot!(loaded.warnings.join("\n"), @r#"
    environment variable "MCP_FORGE_EXECUTION_DEFAULT_TIMEOT" names no key and is ignored. Did you mean MCP_FORGE_EXECUTION_DEFAULT_TIMEOUT?
    security.allow_degraded: sandboxes may run without landlock, cgroup
    "#);
}

#[test]
fn flags_go_before_environment_before_file() {
    let text = "data_dir: /from/file\nexecution: {default_timeout: 10, max_timeout: 20}\n";
    let mut case = Case::new(
        "f.yaml",
        text,
        &[("MCP_FORGE_EXECUTION_DEFAULT_TIMEOUT", "15")],
    );
    let config = case.load().unwrap().config;
    assert_eq!(config.data_dir, Path::new("/from/file"));
    assert_eq!(config.default_limits.timeout, Duration::from_secs(15));
    assert_eq!(config.max_limits.timeout, Duration::from_secs(20));
    case.sources.environment.insert(
        "MCP_FORGE_DATA_DIR".to_owned(),
        "/from/environment".to_owned(),
    );
    assert_eq!(
        case.load().unwrap().config.data_dir,
        Path::new("/from/environment")
    );
    case.sources.data_dir = Some(PathBuf::from("/from/flag"));
    assert_eq!(
        case.load().unwrap().config.data_dir,
        Path::new("/from/flag")
    );
}

#[test]
fn the_file_is_the_flags_else_the_variables_else_the_homes() {
    let home = tempfile::tempdir().unwrap();
    let mut sources = Sources::default();
    sources
        .environment
        .insert("HOME".to_owned(), home.path().display().to_string());
    assert_eq!(Config::load(&sources).unwrap().file, None);

    let usual = home.path().join(".config/mcp-forge/config.yaml");
    fs::create_dir_all(usual.parent().unwrap()).unwrap();
    fs::write(&usual, "execution: {default_timeout: 1}").unwrap();
    assert_eq!(Config::load(&sources).unwrap().file.as_ref(), Some(&usual));

    let named = home.path().join("named.yaml");
    fs::write(&named, "execution: {default_timeout: 2}").unwrap();
    sources
        .environment
        .insert("MCP_FORGE_CONFIG".to_owned(), named.display().to_string());
    assert_eq!(
        Config::load(&sources)
            .unwrap()
            .config
            .default_limits
            .timeout,
        Duration::from_secs(2)
    );

    sources.file = Some(usual);
    assert_eq!(
        Config::load(&sources)
            .unwrap()
            .config
            .default_limits
            .timeout,
        Duration::from_secs(1)
    );
    sources.file = Some(home.path().join("gone.yaml"));
    assert!(matches!(
        Config::load(&sources),
        Err(ConfigError::Read { .. })
    ));
}

#[test]
fn files_of_desktop_clients_are_read_as_they_are() {
    let claude = r#"{
	"globalShortcut": "Ctrl+Space",
	"mcpServers": {
		"files": {"command": "npx", "args": ["-y", "server", "/tmp"], "env": {"A": "b"}},
		"forge": {"command": "/usr/local/bin/mcp-forge", "args": ["serve"]},
		"off": {"command": "gone", "env": {"TOKEN": "${NOT_SET_ANYWHERE}"}, "disabled": true}
	}
}"#;
    let loaded = Case::new("claude_desktop_config.json", claude, &[])
        .load()
        .unwrap();
    assert_eq!(
        loaded.config.upstreams.keys().collect::<Vec<_>>(),
        ["files"]
    );
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);

    let code = r#"{
	"inputs": [],
	"servers": {
		"remote": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${env:TOKEN}"}},
		"local": {"type": "stdio", "command": "server", "cwd": "here"}
	}
}"#;
    let case = Case::new("mcp.json", code, &[("TOKEN", "canary")]);
    let upstreams = case.load().unwrap().config.upstreams;
    let Transport::Http { url, headers } = &upstreams["remote"].transport else {
        panic!()
    };
    assert_eq!(
        (url.as_str(), headers["Authorization"].as_str()),
        ("https://example.com/mcp", "Bearer canary")
    );
    let Transport::Stdio { cwd, .. } = &upstreams["local"].transport else {
        panic!()
    };
    assert_eq!(
        cwd.as_deref(),
        Some(case.directory.path().join("here").as_path())
    );
}

#[test]
fn paths_start_at_the_file_or_at_home() {
    let case = Case::new(
        "f.yaml",
        "python: {path: bin/python}\nvolumes: {base_path: ~/volumes}\n",
        &[],
    );
    let config = case.load().unwrap().config;
    assert_eq!(
        config.native.python,
        Some(case.directory.path().join("bin/python"))
    );
    assert_eq!(config.volumes.base_path, Path::new("/home/someone/volumes"));
}

#[test]
fn empty_sections_and_empty_files_are_the_defaults() {
    let defaults = without_file(&[]).unwrap().config;
    for text in [
        "",
        "# nothing\n",
        "---\n",
        "{}",
        "mcp_tools:\nexecution:\n  default_timeout:\n",
    ] {
        assert_eq!(yaml(text).config, defaults, "{text:?}");
    }
}

#[test]
fn weakened_settings_are_warned_of() {
    let text = "security: {allow_network: true, allow_degraded: [seccomp]}\n";
    assert_eq!(yaml(text).warnings.len(), 2);
}

#[test]
fn the_data_directory_is_for_its_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let mut sources = Sources {
        data_dir: Some(directory.path().join("a/b")),
        ..Sources::default()
    };
    let config = Config::load(&sources).unwrap().config;
    config.create_data_dir().unwrap();
    config.create_data_dir().unwrap();
    assert_eq!(
        fs::metadata(&config.data_dir).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert_eq!(
        fs::metadata(directory.path().join("a"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o700
    );
    fs::set_permissions(&config.data_dir, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(
        config
            .create_data_dir()
            .unwrap_err()
            .to_string()
            .contains("chmod 700")
    );
    sources.data_dir = None;
    assert!(matches!(
        Config::load(&sources),
        Err(ConfigError::NoDataDirectory)
    ));
}

/// One error text each: the place, the key, the value, and what to write instead.
#[test]
fn error_texts() {
    let cases = [
        ("unknown key", "execution:\n  default_timeot: 3\n"),
        ("unknown section", "exection:\n  default_timeout: 3\n"),
        ("key of another section", "default_timeout: 3\n"),
        ("nothing near", "execution:\n  zzz: 3\n"),
        ("wrong type", "execution:\n  default_timeout: soon\n"),
        ("a list for a number", "execution:\n  default_pids: [1]\n"),
        ("zero", "execution:\n  default_timeout: 0\n"),
        ("negative", "execution:\n  default_memory: -5\n"),
        ("not a number", "execution:\n  default_timeout: .nan\n"),
        ("infinite", "execution:\n  max_timeout: .inf\n"),
        ("a fraction", "execution:\n  default_cpu_quota: 0.5\n"),
        (
            "default above maximum",
            "execution:\n  default_memory: 4g\n",
        ),
        ("maximum below default", "execution:\n  max_timeout: 60\n"),
        ("a bad word", "security:\n  profile: stric\n"),
        ("not a boolean", "images:\n  auto_pull: sometimes\n"),
        (
            "limits off",
            "security:\n  enforce_resource_limits: false\n",
        ),
        ("sse", "mcp_tools:\n  a: {type: sse, url: 'http://a/sse'}\n"),
        ("both", "mcp_tools:\n  a: {command: x, url: 'http://a/'}\n"),
        ("neither", "mcp_tools:\n  a: {args: [x]}\n"),
        ("no scheme", "mcp_tools:\n  a: {url: 'user:canary@host/'}\n"),
        (
            "a number in env",
            "mcp_tools:\n  a:\n    command: x\n    env:\n      PORT: 8080\n",
        ),
        (
            "env is a text",
            "mcp_tools:\n  a:\n    command: x\n    env: canary\n",
        ),
        (
            "args is a text",
            "mcp_tools:\n  a:\n    command: x\n    args: --token=canary\n",
        ),
        (
            "unset variable",
            "mcp_tools:\n  a:\n    command: x\n    env:\n      TOKEN: Bearer ${NOT_SET}\n",
        ),
        (
            "input of an editor",
            "mcp_tools:\n  a:\n    command: x\n    args: ['${input:key}']\n",
        ),
        (
            "header with a line break",
            "mcp_tools:\n  a:\n    url: https://x/\n    headers:\n      X: \"a\\ncanary\"\n",
        ),
        (
            "a replaced secret elsewhere",
            "server:\n  port: ${SECRET}\n",
        ),
        (
            "a replaced secret as size",
            "execution:\n  max_memory: ${SECRET}\n",
        ),
        ("two names", "mcp_tools: {}\nmcpServers: {}\n"),
        ("a text for a section", "execution: fast\n"),
        ("a list for the file", "- a\n- b\n"),
        ("written twice", "server:\n  port: 1\n  port: 2\n"),
        ("not YAML", "server:\n  - a\n b: canary\n"),
        ("unclosed", "mcp_tools: {a: {env: {TOKEN: canary\n"),
        ("an alias", "mcp_tools: {a: {env: {TOKEN: *canary }}}\n"),
        ("a tag", "mcp_tools: {a: {env: {TOKEN: !!int canary}}}\n"),
        (
            "an escape",
            "mcp_tools: {a: {env: {TOKEN: \"\\canary\"}}}\n",
        ),
        (
            "too deep",
            &format!("{}{}", "[".repeat(200), "]".repeat(200)),
        ),
    ];
    let mut texts = String::new();
    for (name, text) in cases {
        let error = Case::new("mcp-forge.yaml", text, &[("SECRET", "canary")]).error();
        assert!(!error.contains("canary"), "{name} shows a secret: {error}");
        writeln!(texts, "{name}\n    {error}").unwrap();
    }
    for (name, variables) in [
        (
            "wrong value of a variable",
            vec![("MCP_FORGE_EXECUTION_MAX_PIDS", "many")],
        ),
        (
            "variable above the default's maximum",
            vec![("MCP_FORGE_EXECUTION_DEFAULT_TIMEOUT", "3600")],
        ),
        (
            "two names of one key",
            vec![
                ("MCP_FORGE_AUDIT_LOG", "/a"),
                ("MCP_FORGE_SECURITY_AUDIT_LOG", "/b"),
            ],
        ),
    ] {
        writeln!(
            texts,
            "{name}\n    {}",
            without_file(&variables).unwrap_err()
        )
        .unwrap();
    }
    insta::assert_snapshot!(texts);
}

/// Of every key, in the file and in its variable: a value of the wrong kind is told with the whole path
/// of the file and the line, or with the variable's name, and with the key.
#[test]
fn every_key_is_named_with_the_place_of_its_wrong_value() {
    let mut variables = 0;
    for key in KEYS.iter().filter(|key| !key.path.contains('*')) {
        let parts: Vec<&str> = key.path.split('.').collect();
        let mut text = String::new();
        for (depth, part) in parts.iter().enumerate() {
            writeln!(text, "{}{part}:", "  ".repeat(depth)).unwrap();
        }
        // No key wants a list of lists.
        let case = Case::new(
            "forge.yaml",
            &format!("{}\n", text.trim_end().to_owned() + " [[1]]"),
            &[],
        );
        let error = case.load().unwrap_err().to_string();
        let file = case.sources.file.as_ref().unwrap().display();
        let place = format!("{file}:{}: {}", parts.len(), key.path);
        assert!(
            error.starts_with(&place),
            "{error} does not begin with {place}"
        );
        let Some(variable) = key.variable() else {
            continue;
        };
        if let Err(error) = without_file(&[(&variable, "\u{1}no such thing")]) {
            let place = format!("environment variable {variable}: {}", key.path);
            assert!(
                error.to_string().starts_with(&place),
                "{error} does not begin with {place}"
            );
            variables += 1;
        }
    }
    // Any text is a text; the others were refused.
    assert!(variables > 40, "{variables}");
}

/// A file that cannot be used at all is named with its whole path.
#[test]
fn a_file_that_is_none_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("forge.yaml");
    let error = || {
        let sources = Sources {
            file: Some(place.clone()),
            ..Sources::default()
        };
        Config::load(&sources).unwrap_err().to_string()
    };
    let begins = |error: String, says: &str| {
        assert!(
            error.starts_with(&format!("{}: ", place.display())) && error.contains(says),
            "{error}"
        );
    };
    begins(error(), "cannot be read");
    fs::create_dir(&place).unwrap();
    begins(error(), "cannot be read");
    fs::remove_dir(&place).unwrap();
    fs::write(&place, b"server: \xff").unwrap();
    begins(error(), "UTF-8");
    fs::write(&place, "#".repeat(2 << 20)).unwrap();
    begins(error(), "larger than");
}

#[test]
fn the_documentation_has_the_table_of_keys() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = fs::read_to_string(file).unwrap();
    let start = text.find("| key |").unwrap();
    let end = start + text[start..].find("\n\n").unwrap() + 1;
    similar_to(&text[start..end], &reference());
}

#[test]
fn the_example_file_loads_and_changes_no_default() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../mcp-forge.example.yaml");
    let case = Case::new(
        "f.yaml",
        &fs::read_to_string(file).unwrap(),
        &[("GITHUB_TOKEN", "x"), ("USER", "me")],
    );
    let Loaded {
        config, warnings, ..
    } = case.load().unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert!(!config.upstreams.is_empty());
    let defaults = without_file(&[]).unwrap().config;
    assert_eq!(
        Config {
            upstreams: BTreeMap::new(),
            ..config
        },
        defaults
    );
}

fn similar_to(documented: &str, wanted: &str) {
    for (left, right) in documented.lines().zip(wanted.lines()) {
        assert_eq!(
            left, right,
            "docs/configuration.md does not say what the table of keys says"
        );
    }
    assert_eq!(documented.lines().count(), wanted.lines().count());
}

proptest! {
    #[test]
    fn no_file_makes_the_loader_panic(text in "[ -~\n\t]{0,200}", piece in "(mcp_tools|execution|security|a|b):( *\\{|\n +)?[-&*!|>?%@`\"'\\[\\]{}#,:$ a-z0-9\n]{0,80}") {
        for text in [text, piece] {
            let _ = Case::new("f.yaml", &text, &[]).load();
        }
    }

    #[test]
    fn no_variable_makes_the_loader_panic(index in 0..KEYS.len(), value in ".{1,40}") {
        if let Some(variable) = KEYS[index].variable() {
            let _ = without_file(&[(&variable, &value)]);
        }
    }
}
