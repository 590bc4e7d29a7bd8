//! D: what can be seen of the host.

use super::{Case, Control, probe};

pub(in super::super) const VIEWS: &[Case] = &[
    probe(
        "D1",
        "reads pid 1 and every other process in /proc",
        include_str!("../probes/first_process.py"),
        Control::Without(&[&["proc_subset"], &["pid_namespace", "proc_subset"]]),
    ),
    probe(
        "D2",
        "looks for processes of the host",
        include_str!("../probes/other_processes.py"),
        Control::Without(&[&["pid_namespace", "proc_subset"]]),
    ),
    probe(
        "D3",
        "looks for the host's paths in the mount table",
        include_str!("../probes/mount_table.py"),
        // Without read-only mounts there is no overlay that hides where a tree comes from.
        Control::Without(&[&["read_only_root"]]),
    ),
    probe(
        "D4",
        "reads its own cgroup's path",
        include_str!("../probes/cgroup_path.py"),
        Control::Without(&[&["cgroup_namespace"]]),
    ),
    probe(
        "D5",
        "reads and writes the kernel's files in /proc",
        include_str!("../probes/kernel_files.py"),
        Control::Without(&[&["proc_subset"]]),
    ),
    probe(
        "D6",
        "writes sysctls, also from a new namespace",
        include_str!("../probes/sysctl.py"),
        Control::Without(&[&["proc_subset", "seccomp"]]),
    ),
    probe(
        "D7",
        "looks for /sys and mounts it",
        include_str!("../probes/sysfs.py"),
        Control::Without(&[&["mount_namespace"]]),
    ),
    probe(
        "D8",
        "lists, opens and makes devices",
        include_str!("../probes/devices.py"),
        Control::Without(&[&["private_dev"]]),
    ),
    probe(
        "D9",
        "asks for the host's name and ids",
        include_str!("../probes/identity.py"),
        Control::Without(&[&["uts_namespace"], &["mount_namespace"]]),
    ),
    probe(
        "D10",
        "looks for variables of the server; a secret was planted",
        include_str!("../probes/environment.py"),
        Control::Nothing("no layer: the program's variables are a list of the engine"),
    ),
    probe(
        "D11",
        "reads its own privileges",
        include_str!("../probes/privileges.py"),
        Control::Without(&[
            &["capabilities"],
            &["seccomp"],
            &["no_new_privs", "landlock", "seccomp"],
            &["rlimits"],
        ]),
    ),
    probe(
        "D14",
        "signals, traces and reads a process of the host by its pid",
        include_str!("../probes/neighbours.py"),
        Control::Without(&[&["pid_namespace", "landlock"]]),
    ),
    probe(
        "D14",
        "the same, where the other process belongs to the server's user",
        include_str!("../probes/neighbours.py"),
        Control::ColdAsRootWithout(
            &[&["pid_namespace", "user_namespace", "landlock"]],
            "an ordinary user gets no namespace without a user namespace, and a fork no mount",
        ),
    ),
];
