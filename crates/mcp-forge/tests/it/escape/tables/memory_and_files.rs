//! B and C: memory, disk, descriptors.

use super::{Case, Control, Expect, Setting, USUAL, probe};

const SMALL: Setting = Setting {
    memory_mib: 64,
    pids: 30,
    heavy: true,
    ..USUAL
};

/// Where no cgroup counts, a watch stands in; a test build leaves both out.
const UNCOUNTED: Control = Control::Without(&[&["cgroup"]]);

const fn hoard(id: &'static str, attack: &'static str, code: &'static str) -> Case {
    Case {
        expect: Expect::OutOfMemory,
        setting: SMALL,
        ..probe(id, attack, code, UNCOUNTED)
    }
}

pub(in super::super) const MEMORY_AND_FILES: &[Case] = &[
    hoard(
        "B1",
        "twice the memory limit",
        include_str!("../probes/allocate.py"),
    ),
    hoard(
        "B2",
        "twice the memory limit in a child that its parent waits for",
        include_str!("../probes/allocate_in_child.py"),
    ),
    hoard(
        "B3",
        "twice the memory limit as shared memory",
        include_str!("../probes/share_memory.py"),
    ),
    Case {
        setting: Setting {
            memory_mib: 96,
            heavy: true,
            ..USUAL
        },
        ..probe(
            "B3 B4 C1",
            "fills /tmp, /workspace and /dev/shm with bytes and with empty files",
            include_str!("../probes/fill.py"),
            Control::Roomier,
        )
    },
    probe(
        "C13",
        "looks for descriptors that lead out; one of the host's root was planted",
        include_str!("../probes/inherited_descriptors.py"),
        Control::Without(&[&["descriptors", "landlock"]]),
    ),
    Case {
        // Its canary is in a directory that all runs share.
        setting: Setting {
            heavy: true,
            ..USUAL
        },
        ..probe(
            "C15",
            "writes to the root, to system directories and to its own packages",
            include_str!("../probes/write_outside.py"),
            Control::Without(&[&["read_only_root", "landlock"]]),
        )
    },
];
