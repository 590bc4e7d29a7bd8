//! F: the network.

use super::{Case, Control, probe};

/// Three layers stand in the way of TCP, two in that of the rest.
const CONNECTED: Control = Control::Without(&[&["network_namespace", "seccomp", "landlock"]]);

pub(in super::super) const NETWORK: &[Case] = &[
    probe(
        "F1 F2",
        "TCP, UDP and ICMP to the host, to private, metadata and public addresses",
        include_str!("../probes/connect.py"),
        Control::Without(&[
            &["network_namespace", "seccomp"],
            &["network_namespace", "seccomp", "landlock"],
        ]),
    ),
    probe(
        "F3",
        "names, by the library and by hand",
        include_str!("../probes/names.py"),
        CONNECTED,
    ),
    probe(
        "F4",
        "bash, curl, wget, nc, ping, ssh, python",
        include_str!("../probes/network_programs.py"),
        CONNECTED,
    ),
    probe(
        "F7",
        "connects to every local socket it can name",
        include_str!("../probes/unix_sockets.py"),
        Control::Without(&[&["mount_namespace"], &["network_namespace", "landlock"]]),
    ),
];
