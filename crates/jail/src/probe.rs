//! Facts about this host for `doctor`: nothing is started and nothing changed.

use std::fs;

use crate::cgroup;

/// What is worth telling a person before, or instead of, a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// Kernel release, for example `6.8.0-45-generic`.
    pub kernel: String,
    /// The cgroup hierarchies in one line.
    pub cgroups: String,
    /// Security modules in force.
    pub security_modules: String,
    /// Warnings, each one sentence.
    pub warnings: Vec<String>,
}

impl HostFacts {
    /// Reads them.
    pub fn read() -> Self {
        let kernel = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let modules = fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
        Self {
            warnings: kernel_warnings(&kernel),
            kernel,
            cgroups: cgroup::summary(),
            security_modules: if modules.is_empty() {
                "not readable".to_owned()
            } else {
                modules
            },
        }
    }
}

/// The page-cache bugs of 2026 (CVE-2026-31431, CVE-2026-43284): the sandbox blocks their way, but
/// a kernel with them is one layer thinner. Fixed in 6.18.22, 6.19.12 and 7.0; distributions fix
/// older series under their own numbers, which cannot be told from here.
fn kernel_warnings(release: &str) -> Vec<String> {
    let mut numbers = release
        .split(['.', '-', '+', '_'])
        .map_while(|part| part.parse::<u32>().ok());
    let version = (
        numbers.next().unwrap_or(0),
        numbers.next().unwrap_or(0),
        numbers.next().unwrap_or(0),
    );
    let fixed = version >= (7, 0, 0)
        || ((6, 19, 12)..(7, 0, 0)).contains(&version)
        || ((6, 18, 22)..(6, 19, 0)).contains(&version);
    if fixed {
        return Vec::new();
    }
    vec![format!(
        "kernel {release}: check that your distribution has fixed CVE-2026-31431 and CVE-2026-43284 (upstream: 6.18.22, 6.19.12, 7.0)"
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_before_the_fixes_are_warned_of() {
        for fixed in [
            "6.18.22",
            "6.18.44-generic",
            "6.19.12",
            "7.0.0-rc1",
            "7.1.2",
        ] {
            assert_eq!(kernel_warnings(fixed), Vec::<String>::new(), "{fixed}");
        }
        for old in ["6.18.21", "6.19.3-arch1", "5.15.0-91-generic", "6.1.0"] {
            assert_eq!(kernel_warnings(old).len(), 1, "{old}");
        }
    }
}
