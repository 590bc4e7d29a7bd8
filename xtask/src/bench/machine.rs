//! What the report says of the machine, the version and the time.

use std::{fs, path::Path, process::Command, thread};

use anyhow::{Context, bail};

use super::{command, results::Machine};

/// # Errors
///
/// `/proc` cannot be read.
pub(crate) fn read() -> anyhow::Result<Machine> {
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let memory = fs::read_to_string("/proc/meminfo")?;
    let load = fs::read_to_string("/proc/loadavg")?;
    let kib: u64 = value(&memory, "MemTotal")
        .and_then(|text| text.strip_suffix("kB")?.trim().parse().ok())
        .unwrap_or_default();
    Ok(Machine {
        processor: value(&processors, "model name")
            .unwrap_or("unknown processor")
            .to_owned(),
        cores: thread::available_parallelism()?.get(),
        memory_gib: (kib + (1 << 19)) >> 20,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?
            .trim()
            .to_owned(),
        load_before: load.split(' ').next().unwrap_or_default().to_owned(),
    })
}

/// The time in UTC.
///
/// # Errors
///
/// There is no `date`.
pub(crate) fn now() -> anyhow::Result<String> {
    output(command("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))
}

/// The commit, marked when the checkout differs from it.
pub(crate) fn version(root: &Path) -> String {
    output(
        command("git")
            .args(["describe", "--always", "--dirty"])
            .current_dir(root),
    )
    .unwrap_or_else(|_| "unknown".to_owned())
}

/// Keeps this process, and everything that it starts, on these processors.
///
/// # Errors
///
/// `taskset` refuses.
pub(crate) fn pin(processors: &str) -> anyhow::Result<()> {
    let process = std::process::id().to_string();
    output(command("taskset").args(["--all-tasks", "--cpu-list", "--pid", processors, &process]))?;
    Ok(())
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().context("cannot start it")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The value of the first line `key : value`.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_whole_key() {
        let text = "MemTotalAll: 1 kB\nMemTotal:  24 kB\nMemTotal: 3 kB";
        assert_eq!(value(text, "MemTotal"), Some("24 kB"));
        assert_eq!(value(text, "Mem"), None);
    }
}
