//! Turns a kernel's refusal into two sentences for the operator: what is in the way, and the fix.

use std::{fs, path::Path};

use crate::{cgroup::CgroupError, spec::Layer};

/// What the host says about itself that explains a refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each a yes or no"
)]
pub struct Facts {
    /// `kernel.apparmor_restrict_unprivileged_userns`.
    pub apparmor_restricts: bool,
    /// `user.max_user_namespaces` is 0, or Debian's `kernel.unprivileged_userns_clone` is.
    pub namespaces_switched_off: bool,
    /// We run in a container ourselves.
    pub in_container: bool,
    /// We run as root.
    pub root: bool,
}

impl Facts {
    /// Reads them from this host.
    pub fn read() -> Self {
        let sysctl = |name: &str| {
            fs::read_to_string(format!("/proc/sys/{name}"))
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        Self {
            apparmor_restricts: sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1",
            namespaces_switched_off: sysctl("user/max_user_namespaces") == "0"
                || sysctl("kernel/unprivileged_userns_clone") == "0",
            in_container: ["/.dockerenv", "/run/.containerenv"]
                .iter()
                .any(|path| Path::new(path).exists())
                || std::env::var_os("container").is_some(),
            root: rustix::process::geteuid().is_root(),
        }
    }
}

/// Why a layer could not be installed, and what to do.
pub fn layer(layer: Layer, step: &str, errno: i32, facts: &Facts) -> (String, String) {
    let refused = errno == libc::EPERM || errno == libc::EACCES;
    match layer {
        Layer::UserNamespace | Layer::MountNamespace | Layer::PidNamespace | Layer::ProcSubset => {
            namespaces(layer, step, errno, facts)
        }
        Layer::Landlock => (
            format!("this kernel does not offer Landlock ({step})"),
            "Use Linux 5.13 or later with `landlock` in the boot option `lsm=`, or allow its absence with `security.allow_degraded: [landlock]`.".to_owned(),
        ),
        Layer::Seccomp => (
            format!("the seccomp filter was not accepted ({step})"),
            "Use a kernel built with CONFIG_SECCOMP_FILTER.".to_owned(),
        ),
        _ if refused && facts.in_container => container(step),
        _ => (
            format!("the kernel refused it ({step})"),
            "Run `mcp-forge doctor` and compare your kernel with the requirements in README.md (Linux 5.13 or later).".to_owned(),
        ),
    }
}

fn namespaces(layer: Layer, step: &str, errno: i32, facts: &Facts) -> (String, String) {
    if facts.namespaces_switched_off || errno == libc::ENOSPC {
        return (
            format!("user namespaces are switched off or used up on this host ({step})"),
            "Allow them: `sudo sysctl -w user.max_user_namespaces=15000` and, on older Debian, `sudo sysctl -w kernel.unprivileged_userns_clone=1`.".to_owned(),
        );
    }
    if facts.in_container {
        return container(step);
    }
    if facts.apparmor_restricts && !facts.root {
        return (
            format!("Ubuntu's AppArmor rule for user namespaces keeps this program out ({step})"),
            "Give the program a profile that allows it: write `abi <abi/4.0>, include <tunables/global> profile mcp-forge /path/to/mcp-forge flags=(unconfined) { userns, }` to /etc/apparmor.d/mcp-forge and run `sudo apparmor_parser -r /etc/apparmor.d/mcp-forge`; or, for the whole host, `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`.".to_owned(),
        );
    }
    if errno == libc::ENOSYS || errno == libc::EINVAL {
        return (
            format!("this kernel is too old for {} ({step})", layer.name()),
            "Use Linux 5.13 or later.".to_owned(),
        );
    }
    (
        format!("the kernel refused to build {} ({step})", layer.name()),
        "Run `mcp-forge doctor`; if this is a container or a hardened kernel, allow unprivileged user namespaces in it.".to_owned(),
    )
}

fn container(step: &str) -> (String, String) {
    (
        format!("this is a container that does not allow namespaces inside it ({step})"),
        "Start the container with nested namespaces: `--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined` (Docker), or `--security-opt unmask=ALL --security-opt seccomp=unconfined` (Podman); or run MCP-Forge on the host.".to_owned(),
    )
}

/// Why there is no cgroup, and what to do.
pub fn cgroup(error: &CgroupError) -> (String, String) {
    let degraded =
        "or accept the named best-effort limits with `security.allow_degraded: [cgroup]`.";
    let fix = match error {
        CgroupError::NotMounted => format!(
            "Mount cgroup v2 at /sys/fs/cgroup with the memory, pids and cpu controllers, {degraded}"
        ),
        CgroupError::NotDelegated { .. } => format!(
            "Start the server in a scope of its own: `systemd-run --user --scope -p Delegate=yes mcp-forge serve`, or as a service with `Delegate=yes`, {degraded}"
        ),
        CgroupError::NotRoot { .. } => format!(
            "An ordinary user gets no limits from cgroup v1: boot with cgroup v2 (`systemd.unified_cgroup_hierarchy=1`), run the server as root, {degraded}"
        ),
        CgroupError::Write { .. } => format!(
            "Check that the limits fit this host and that the controller is enabled, {degraded}"
        ),
    };
    (error.to_string(), fix)
}

#[cfg(test)]
mod tests {
    use std::{io, path::PathBuf};

    use super::*;

    fn facts() -> Facts {
        Facts::default()
    }

    #[test]
    fn each_cause_has_its_own_text_and_fix() {
        let eperm = libc::EPERM;
        let cases = [
            (
                "apparmor",
                layer(
                    Layer::UserNamespace,
                    "clone: EPERM",
                    eperm,
                    &Facts {
                        apparmor_restricts: true,
                        ..facts()
                    },
                ),
            ),
            (
                "switched off",
                layer(
                    Layer::UserNamespace,
                    "clone: ENOSPC",
                    libc::ENOSPC,
                    &facts(),
                ),
            ),
            (
                "container",
                layer(
                    Layer::ProcSubset,
                    "mount proc: EPERM",
                    eperm,
                    &Facts {
                        in_container: true,
                        ..facts()
                    },
                ),
            ),
            (
                "old kernel",
                layer(
                    Layer::MountNamespace,
                    "open_tree: ENOSYS",
                    libc::ENOSYS,
                    &facts(),
                ),
            ),
            (
                "unknown",
                layer(Layer::UserNamespace, "clone: EPERM", eperm, &facts()),
            ),
            (
                "landlock",
                layer(Layer::Landlock, "restrict_self", 0, &facts()),
            ),
            ("no cgroup", cgroup(&CgroupError::NotMounted)),
            (
                "not delegated",
                cgroup(&CgroupError::NotDelegated {
                    path: PathBuf::from("/sys/fs/cgroup/user.slice"),
                }),
            ),
            (
                "v1 as user",
                cgroup(&CgroupError::NotRoot {
                    path: PathBuf::from("/sys/fs/cgroup/memory/x"),
                }),
            ),
            (
                "limit refused",
                cgroup(&CgroupError::Write {
                    path: PathBuf::from("/sys/fs/cgroup/x/memory.max"),
                    source: io::Error::from_raw_os_error(libc::EINVAL),
                }),
            ),
        ];
        insta::assert_debug_snapshot!(cases);
    }
}
