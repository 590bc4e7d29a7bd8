//! From a sandbox as the server thinks of it to a container as the service is asked for it. Pure.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    ResourcesUlimits,
};

use super::{facts::Facts, link::Start, owner::Labels};
use crate::{
    config::EngineKind,
    engine::{Purpose, variables::VARIABLES},
    limits::Limits,
    policy::Image,
    runner::source,
};

/// Where the relay puts the runner's source.
const RUNNER: &str = "/opt/mcp-forge";

/// Room for it.
const RUNNER_BYTES: u64 = 4 << 20;

/// Open files of a process, as in the native engine. Explicit, since a service without
/// `CAP_SYS_RESOURCE` cannot give what it would by default.
const FILES: i64 = 4096;

/// Processes of the container's user id on the whole host: a backstop. The cgroup has the limit.
const PROCESSES: i64 = 16_384;

/// Stack of a thread, in bytes.
const STACK_BYTES: u64 = 64 << 20;

/// What a thread's stack reserves of the limit on data.
const THREAD_BYTES: u64 = 8 << 20;

/// What the container is asked for. `filter` is the value of the option `seccomp`.
pub(super) fn body(
    image: &Image,
    limits: &Limits,
    labels: &Labels,
    (filter, kind): (&str, EngineKind),
) -> ContainerCreateBody {
    let number = |value: u64| Some(i64::try_from(value).unwrap_or(i64::MAX));
    let text = |text: &str| Some(text.to_owned());
    let program = ["python3", "-I", "-B", "-X", "utf8", "-c", source::RELAY];
    // Podman would give them what the image has in their place, its owner and mode included.
    let own = match kind {
        EngineKind::Docker => "",
        EngineKind::Native | EngineKind::Podman => ",notmpcopyup",
    };
    let directory =
        |bytes: u64, mode: &str| format!("rw,nosuid,nodev,size={bytes},mode={mode}{own}");
    let tmpfs = HashMap::from([
        (
            "/tmp".to_owned(),
            directory(limits.directory_bytes(), "1777"),
        ),
        (
            "/workspace".to_owned(),
            directory(limits.directory_bytes(), "1777"),
        ),
        (RUNNER.to_owned(), directory(RUNNER_BYTES, "1777")),
        // Otherwise services make these writable, and as large as memory.
        ("/run".to_owned(), directory(4096, "0755")),
        ("/var/tmp".to_owned(), directory(4096, "0755")),
    ]);
    let host = HostConfig {
        network_mode: text("none"),
        readonly_rootfs: Some(true),
        auto_remove: Some(true),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec![
            "no-new-privileges".to_owned(),
            format!("seccomp={filter}"),
        ]),
        log_config: Some(HostConfigLogConfig {
            typ: text("none"),
            config: None,
        }),
        ipc_mode: text("private"),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        memory: number(limits.memory_bytes),
        memory_swap: number(limits.memory_bytes),
        cpu_period: Some(100_000),
        cpu_quota: number(limits.cpu_quota_us),
        // The relay is one more.
        pids_limit: number(limits.pids + 1),
        shm_size: number(limits.shared_memory_bytes()),
        ulimits: Some(vec![
            ulimit("nofile", FILES),
            ulimit("nproc", PROCESSES),
            ulimit("core", 0),
        ]),
        tmpfs: Some(tmpfs),
        ..HostConfig::default()
    };
    ContainerCreateBody {
        image: text(&image.id),
        cmd: Some(program.map(str::to_owned).to_vec()),
        entrypoint: Some(Vec::new()),
        env: Some(environment()),
        labels: Some(labels.to_map()),
        hostname: text("sandbox"),
        user: text("1000:1000"),
        working_dir: text("/workspace"),
        open_stdin: Some(true),
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        network_disabled: Some(true),
        stop_signal: text("SIGKILL"),
        stop_timeout: Some(0),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}

/// What the relay is told: what to import ahead, and the limits of each process, as the native
/// engine has them. Where the host ignores the container's limits, these stand in.
pub(super) fn start(purpose: &Purpose, limits: &Limits, environment: bool, facts: &Facts) -> Start {
    let data = limits.memory_bytes + limits.pids * THREAD_BYTES;
    let mut own = BTreeMap::from([
        ("CORE", 0),
        ("DATA", data),
        ("STACK", STACK_BYTES),
        // A service of an ordinary user may not do what it was asked.
        ("NOFILE", FILES.unsigned_abs()),
    ]);
    if !facts.holds_memory(limits) {
        own.insert("DATA", limits.memory_bytes);
        own.insert("FSIZE", limits.memory_bytes);
        own.insert("NPROC", limits.pids);
        // All cores for the whole time, and a little.
        own.insert(
            "CPU",
            limits
                .timeout
                .as_secs()
                .saturating_mul(64)
                .saturating_add(10),
        );
    }
    Start {
        modules: match purpose {
            Purpose::Session => vec![source::SESSION.to_owned()],
            Purpose::Turn(_) => Vec::new(),
        },
        limits: own,
        environment,
    }
}

/// The runner's source, as the relay's first lines expect it.
pub(super) fn runner() -> Vec<u8> {
    let files: BTreeMap<&str, &str> = source::FILES.iter().copied().collect();
    serde_json::to_vec(&files).unwrap_or_default()
}

fn environment() -> Vec<String> {
    let path = ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    let variables = VARIABLES.iter().chain([&path]);
    variables
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

fn ulimit(name: &str, most: i64) -> ResourcesUlimits {
    ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(most),
        hard: Some(most),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::ContainerPolicy;

    fn limits() -> Limits {
        Limits {
            timeout: Duration::from_secs(1),
            memory_bytes: 512 << 20,
            cpu_quota_us: 50_000,
            pids: 100,
            storage_bytes: 1 << 30,
        }
    }

    fn image() -> Image {
        Image {
            name: "mcp-forge/python:3.11".to_owned(),
            id: "sha256:0123".to_owned(),
        }
    }

    #[test]
    fn what_is_asked_for_is_what_the_policy_allows() {
        let policy = ContainerPolicy::new(vec!["mcp-forge/python:3.11".to_owned()]);
        let labels = Labels::of("place", "server");
        let body = body(
            &image(),
            &limits(),
            &labels,
            ("/profile.json", EngineKind::Podman),
        );
        let body = serde_json::to_value(body).unwrap();
        policy.create(&image(), &body).unwrap();
    }

    #[test]
    fn a_container_as_it_is_asked_for() {
        let labels = Labels::of("place", "server");
        let mut body = body(
            &image(),
            &limits(),
            &labels,
            ("/profile.json", EngineKind::Podman),
        );
        // Its text is the runner's business.
        body.cmd.as_mut().unwrap().pop();
        insta::with_settings!({sort_maps => true}, {
            insta::assert_json_snapshot!(serde_json::to_value(body).unwrap());
        });
    }
}
