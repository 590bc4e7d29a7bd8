//! A: CPU time and processes.

use super::{Case, Code, Control, Expect, Setting, USUAL, probe};

/// Ends at its deadline.
const SHORT: Setting = Setting {
    seconds: 1,
    ..USUAL
};

const CROWDED: Setting = Setting {
    pids: 40,
    heavy: true,
    ..USUAL
};

const DEADLINE: Control = Control::Nothing("the deadline is the server's, not a layer");

const UNCOUNTED: Control = Control::Without(&[&["cgroup", "rlimits"]]);

const fn endless(id: &'static str, attack: &'static str, code: &'static str) -> Case {
    Case {
        id,
        attack,
        code: Code::Plain(code),
        expect: Expect::TimedOut,
        control: DEADLINE,
        setting: SHORT,
    }
}

pub(in super::super) const PROCESSES: &[Case] = &[
    endless("A1", "a loop without end", "while True: pass"),
    endless(
        "A2",
        "a regular expression that holds the interpreter",
        "import re\nre.match('(a+)+b', 'a' * 60)",
    ),
    endless("A2", "an integer that takes hours", "10 ** 10 ** 9"),
    Case {
        expect: Expect::OutOfMemory,
        setting: USUAL,
        ..endless("A2", "a list that cannot be built", "list(range(10 ** 12))")
    },
    Case {
        code: Code::Probe(include_str!("../probes/ignore_signals.py")),
        ..endless("A3", "ignores and blocks every signal, and loops", "")
    },
    Case {
        code: Code::Probe(include_str!("../probes/stop_everything.py")),
        ..endless("A4", "stops every process in sight and itself", "")
    },
    Case {
        setting: Setting {
            heavy: true,
            ..USUAL
        },
        ..probe(
            "A5",
            "kills every process it can reach, and pid 1",
            include_str!("../probes/kill_everything.py"),
            Control::Nothing(
                "outside a pid namespace it would kill the host's processes; D14 shows the layer with one",
            ),
        )
    },
    Case {
        setting: CROWDED,
        ..probe(
            "A6",
            "a bomb of forks",
            include_str!("../probes/fork_bomb.py"),
            UNCOUNTED,
        )
    },
    Case {
        setting: CROWDED,
        ..probe(
            "A6",
            "a bomb of threads",
            include_str!("../probes/thread_bomb.py"),
            UNCOUNTED,
        )
    },
    Case {
        setting: CROWDED,
        ..probe(
            "A6",
            "a bomb of programs by vfork",
            include_str!("../probes/exec_bomb.py"),
            UNCOUNTED,
        )
    },
    Case {
        setting: CROWDED,
        ..probe(
            "A7",
            "a bomb of sessions that ignore signals",
            include_str!("../probes/session_bomb.py"),
            UNCOUNTED,
        )
    },
    Case {
        setting: CROWDED,
        ..probe(
            "A8",
            "zombies and orphans",
            include_str!("../probes/zombie_storm.py"),
            UNCOUNTED,
        )
    },
    probe(
        "A9",
        "a daemon that ignores signals",
        include_str!("../probes/daemon.py"),
        Control::Without(&[&["pid_namespace"]]),
    ),
];
