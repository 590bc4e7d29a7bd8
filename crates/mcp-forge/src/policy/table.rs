//! The tables: what a container may be created with, and what must have come of it.

use serde_json::Value;

/// What a parameter may be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    /// It must be there, and be this text.
    Is(&'static str),
    /// It must be there, and be true.
    True,
    /// It must be there, and be this list.
    List(&'static [&'static str]),
    /// It must be there, and be a whole number from 1.
    Positive,
    /// It must be there: no new privileges, and at most one filter beside.
    SecurityOptions,
    /// It must be there: `none`.
    NoLog,
    /// File systems in memory, each of these places, with a size, and without set-user-id and devices.
    Tmpfs(&'static [&'static str]),
    /// It must be there: limits of these names.
    Ulimits(&'static [&'static str]),
    /// Any text or list of texts.
    Texts,
    /// Names to texts.
    Labels,
    /// If it is there, one of these numbers.
    Number(&'static [i64]),
}

/// What must hold of a container that was made.
#[derive(Debug, Clone, Copy)]
pub(super) enum Created {
    /// Exactly what was asked for.
    AsAsked,
    /// Exactly what was asked for, or nothing: a limit that the host ignores is dropped by the service,
    /// and noticed by whoever reads the limits back inside.
    AsAskedOrIgnored,
    /// What was asked for, and what the service adds.
    Includes,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Nothing, false, 0 or empty.
    Nothing,
}

/// Everything that a request may hold. What has no row is refused: `Privileged`, `CapAdd`, `Devices`,
/// `PidMode`, `Binds`, `Mounts`, `VolumesFrom` and all that a later service may know.
#[rustfmt::skip] // One parameter a line: this is a table.
pub(super) const CREATE: &[(&str, Rule)] = &[
    ("Image",                     Rule::Texts),
    ("Cmd",                       Rule::Texts),
    ("Entrypoint",                Rule::Texts),
    ("Env",                       Rule::Texts),
    ("Labels",                    Rule::Labels),
    ("Hostname",                  Rule::Is("sandbox")),
    ("User",                      Rule::Is("1000:1000")),
    ("WorkingDir",                Rule::Is("/workspace")),
    ("OpenStdin",                 Rule::True),
    ("StdinOnce",                 Rule::True),
    ("AttachStdin",               Rule::True),
    ("AttachStdout",              Rule::True),
    ("AttachStderr",              Rule::True),
    ("NetworkDisabled",           Rule::True),
    ("StopSignal",                Rule::Is("SIGKILL")),
    ("StopTimeout",               Rule::Number(&[0])),
    ("HostConfig.NetworkMode",    Rule::Is("none")),
    ("HostConfig.ReadonlyRootfs", Rule::True),
    ("HostConfig.AutoRemove",     Rule::True),
    ("HostConfig.CapDrop",        Rule::List(&["ALL"])),
    ("HostConfig.SecurityOpt",    Rule::SecurityOptions),
    ("HostConfig.LogConfig",      Rule::NoLog),
    ("HostConfig.IpcMode",        Rule::Is("private")),
    ("HostConfig.CgroupnsMode",   Rule::Is("private")),
    ("HostConfig.Memory",         Rule::Positive),
    ("HostConfig.MemorySwap",     Rule::Positive),
    ("HostConfig.CpuPeriod",      Rule::Number(&[100_000])),
    ("HostConfig.CpuQuota",       Rule::Positive),
    ("HostConfig.PidsLimit",      Rule::Positive),
    ("HostConfig.ShmSize",        Rule::Positive),
    ("HostConfig.Ulimits",        Rule::Ulimits(&["nofile", "nproc", "core"])),
    ("HostConfig.Tmpfs",          Rule::Tmpfs(&["/tmp", "/workspace", "/run", "/var/tmp", "/opt/mcp-forge"])),
];

/// Parameters that may be left out.
const OPTIONAL: [&str; 2] = ["Hostname", "HostConfig.CgroupnsMode"];

/// What must have come of it, by the service's own account.
#[rustfmt::skip] // One row a line: this is a table.
pub(super) const CREATED: &[(&str, Created)] = &[
    ("Image",                        Created::AsAsked),
    ("Config.Cmd",                   Created::AsAsked),
    ("Config.Entrypoint",            Created::AsAsked),
    ("Config.User",                  Created::AsAsked),
    ("Config.WorkingDir",            Created::AsAsked),
    ("Config.Env",                   Created::Includes),
    ("Config.Labels",                Created::Includes),
    ("HostConfig.NetworkMode",       Created::AsAsked),
    ("HostConfig.ReadonlyRootfs",    Created::AsAsked),
    ("HostConfig.Memory",            Created::AsAskedOrIgnored),
    ("HostConfig.MemorySwap",        Created::AsAskedOrIgnored),
    ("HostConfig.PidsLimit",         Created::AsAskedOrIgnored),
    ("HostConfig.ShmSize",           Created::AsAsked),
    ("HostConfig.SecurityOpt",       Created::Includes),
    ("HostConfig.LogConfig.Type",    Created::OneOf(&["none"])),
    ("HostConfig.PidMode",           Created::OneOf(&["", "private"])),
    ("HostConfig.IpcMode",           Created::OneOf(&["private", "shareable", "none"])),
    ("HostConfig.UTSMode",           Created::OneOf(&["", "private"])),
    ("HostConfig.UsernsMode",        Created::OneOf(&["", "private"])),
    ("HostConfig.CgroupParent",      Created::OneOf(&[""])),
    ("HostConfig.Privileged",        Created::Nothing),
    ("HostConfig.CapAdd",            Created::Nothing),
    ("HostConfig.Devices",           Created::Nothing),
    ("HostConfig.DeviceRequests",    Created::Nothing),
    ("HostConfig.DeviceCgroupRules", Created::Nothing),
    ("HostConfig.Binds",             Created::Nothing),
    ("HostConfig.VolumesFrom",       Created::Nothing),
    ("HostConfig.GroupAdd",          Created::Nothing),
    ("HostConfig.Links",             Created::Nothing),
    ("HostConfig.PortBindings",      Created::Nothing),
    ("HostConfig.PublishAllPorts",   Created::Nothing),
    ("HostConfig.OomKillDisable",    Created::Nothing),
    ("Mounts",                       Created::Nothing),
    ("ExecIDs",                      Created::Nothing),
];

impl Rule {
    /// Whether a value is as it must be.
    pub(super) fn allows(self, value: &Value) -> bool {
        match self {
            Self::Is(text) => value == text,
            Self::True => value == &Value::Bool(true),
            Self::List(texts) => texts_of(value).is_some_and(|given| given == texts),
            Self::Positive => value.as_i64().is_some_and(|number| number > 0),
            Self::Number(numbers) => value
                .as_i64()
                .is_some_and(|number| numbers.contains(&number)),
            Self::SecurityOptions => texts_of(value).is_some_and(|options| match options[..] {
                ["no-new-privileges"] => true,
                // What a filter says is measured inside; here it must not be switched off.
                ["no-new-privileges", filter] => filter
                    .strip_prefix("seccomp=")
                    .is_some_and(|profile| !matches!(profile, "" | "unconfined")),
                _ => false,
            }),
            Self::NoLog => value.get("Type").is_some_and(|kind| kind == "none"),
            Self::Tmpfs(places) => value.as_object().is_some_and(|given| {
                given.iter().all(|(place, options)| {
                    places.contains(&place.as_str())
                        && options.as_str().is_some_and(are_tmpfs_options)
                })
            }),
            Self::Ulimits(names) => value.as_array().is_some_and(|limits| {
                !limits.is_empty()
                    && limits.iter().all(|limit| {
                        let name = limit.get("Name").and_then(Value::as_str);
                        name.is_some_and(|name| names.contains(&name))
                    })
            }),
            Self::Texts => value.is_string() || texts_of(value).is_some(),
            Self::Labels => value
                .as_object()
                .is_some_and(|labels| labels.values().all(Value::is_string)),
        }
    }

    /// Whether a request without it is refused.
    pub(super) fn is_required(path: &str) -> bool {
        !OPTIONAL.contains(&path)
    }

    /// The rule in words.
    pub(super) fn described(self) -> String {
        match self {
            Self::Is(text) => format!("`{text}`"),
            Self::True => "true".to_owned(),
            Self::List(texts) => texts.join(", "),
            Self::Positive => "a number above 0".to_owned(),
            Self::Number(numbers) => format!("{numbers:?}"),
            Self::SecurityOptions => {
                "`no-new-privileges`, and at most a filter `seccomp=...` beside".to_owned()
            }
            Self::NoLog => "a log of type `none`".to_owned(),
            Self::Tmpfs(places) => format!(
                "file systems with size, nosuid and nodev, among {}",
                places.join(", ")
            ),
            Self::Ulimits(names) => format!("limits among {}", names.join(", ")),
            Self::Texts => "a text or a list of texts".to_owned(),
            Self::Labels => "names and texts".to_owned(),
        }
    }
}

fn texts_of(value: &Value) -> Option<Vec<&str>> {
    value.as_array()?.iter().map(Value::as_str).collect()
}

fn are_tmpfs_options(options: &str) -> bool {
    let mut given = options.split(',');
    let has = |name: &str| options.split(',').any(|option| option == name);
    has("nosuid")
        && has("nodev")
        && options.split(',').any(|option| option.starts_with("size="))
        && given.all(|option| {
            matches!(option, "rw" | "ro" | "nosuid" | "nodev" | "noexec")
                || ["size=", "mode="]
                    .iter()
                    .any(|start| option.starts_with(start))
        })
}
