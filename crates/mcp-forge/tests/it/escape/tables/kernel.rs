//! E: the kernel's surface.

use super::{Case, Control, probe};

const UNFILTERED: Control = Control::Without(&[&["seccomp"]]);

pub(in super::super) const KERNEL: &[Case] = &[
    probe(
        "E1",
        "makes and enters namespaces",
        include_str!("../probes/new_namespaces.py"),
        UNFILTERED,
    ),
    probe(
        "E2",
        "mounts, by the old calls and the new ones",
        include_str!("../probes/mounting.py"),
        // Landlock too refuses to change what is mounted; it does not know all the new calls.
        Control::Without(&[&["seccomp"], &["seccomp", "landlock"]]),
    ),
    probe(
        "E3",
        "mounts a control group with a release agent",
        include_str!("../probes/release_agent.py"),
        Control::Without(&[&["seccomp", "landlock"]]),
    ),
    probe(
        "E4",
        "calls that kernel bugs were made of",
        include_str!("../probes/dangerous_calls.py"),
        UNFILTERED,
    ),
    probe(
        "E5",
        "every family of sockets",
        include_str!("../probes/socket_families.py"),
        UNFILTERED,
    ),
    #[cfg(target_arch = "x86_64")]
    probe(
        "E6",
        "calls by the conventions of 32 bits",
        include_str!("../probes/foreign_calls.py"),
        UNFILTERED,
    ),
    probe(
        "E7",
        "pushes input into terminals",
        include_str!("../probes/terminals.py"),
        Control::Without(&[&["seccomp", "private_dev", "landlock"]]),
    ),
];
