//! What a sandbox may use, and how it is told that it may not more.

use super::case::{Case, Difference, Step, Turn, case, run, run_in, turn};

pub(super) const CASES: &[Case] = &[
    case(
        "memory that grows is ended as out_of_memory",
        &[run(
            "print('begin')\nheld = []\nwhile True: held.append(bytearray(b'x' * (8 << 20)))",
        )],
        r#"out_of_memory
        stdout "begin\n"
        error OutOfMemory: "The code went over its memory limit of 512m, files in /tmp and /workspace included, and was stopped. Ask for more with `limits.memory` (maximum 2g) or hold less at once.""#,
    ),
    case(
        "one allocation that is far too large is out_of_memory",
        &[run("bytearray(1 << 40)")],
        r#"out_of_memory
        error OutOfMemory: "…""#,
    ),
    case(
        "a MemoryError that is caught ends nothing",
        &[run(
            "try:\n    bytearray(1 << 40)\nexcept MemoryError:\n    told = 'caught'\ntold",
        )],
        "completed\nresult \"caught\"",
    ),
    Case {
        differs: &[Difference {
            engine: "podman",
            without: Some("memory"),
            what: "each process has the limit for itself",
            reason: "only a cgroup counts them together, and the relay has no watch over memory",
            expected: "timed_out\nerror TimedOut: …",
        }],
        ..case(
            "memory of child processes counts together",
            &[run("
                import os, time
                for _ in range(6):
                    if os.fork() == 0:
                        held = [b'x' * (1 << 20) for _ in range(120)]
                        time.sleep(60)
                time.sleep(60)")],
            r#"out_of_memory
            error OutOfMemory: "…""#,
        )
    },
    case(
        "a smaller memory limit is in force",
        &[Step::Run(Turn {
            memory: Some("96m"),
            // Where a watch stands in for a cgroup, it has to have the time to look.
            ..turn("import time\nx = b'x' * (200 << 20)\ntime.sleep(20)\nlen(x)")
        })],
        r#"out_of_memory
        error OutOfMemory: "The code went over its memory limit of 96m, …""#,
    ),
    case(
        "a larger memory limit is in force",
        &[Step::Run(Turn {
            memory: Some("1g"),
            ..turn("x = b'x' * (600 << 20)\nlen(x)")
        })],
        "completed\nresult 629145600",
    ),
    case(
        "more memory than the maximum is refused",
        &[Step::Run(Turn {
            memory: Some("3g"),
            ..turn("1")
        })],
        r#"refused "`limits.memory` is \"3g\" (3221225472 bytes), above the maximum of 2g (2147483648 bytes) here; ask for at most that.""#,
    ),
    Case {
        differs: &[NO_PIDS],
        ..case(
            "processes above the limit are refused to the code, which goes on",
            &[Step::Run(Turn {
                pids: Some(20),
                ..turn(
                    "
                import os, time
                children = 0
                try:
                    while children < 100:
                        if os.fork() == 0:
                            time.sleep(60)
                            os._exit(0)
                        children += 1
                except BlockingIOError as error:
                    refused = error.errno
                [10 <= children < 20, refused]",
                )
            })],
            "completed\nresult [true, 11]",
        )
    },
    Case {
        differs: &[NO_PIDS],
        ..case(
            "threads above the limit are refused to the code, which goes on",
            &[Step::Run(Turn {
                pids: Some(20),
                ..turn(
                    "
                import threading
                stop, threads = threading.Event(), []
                try:
                    while len(threads) < 100:
                        threads.append(threading.Thread(target=stop.wait, daemon=True))
                        threads[-1].start()
                except RuntimeError as error:
                    refused = type(error).__name__
                stop.set()
                [10 <= len(threads) <= 20, refused]",
                )
            })],
            "completed\nresult [true, \"RuntimeError\"]",
        )
    },
    Case {
        differs: &[NO_PIDS],
        ..case(
            "the usual limit gives a hundred processes",
            &[run("
                import os, time
                children = 0
                try:
                    while children < 200:
                        if os.fork() == 0:
                            time.sleep(60)
                            os._exit(0)
                        children += 1
                except BlockingIOError: pass
                90 <= children < 100")],
            "completed\nresult true",
        )
    },
    case(
        "a fork bomb is ended by the timeout",
        &[Step::Run(Turn {
            timeout: Some(1.0),
            ..turn(
                "
            import os
            while True:
                try: os.fork()
                except OSError: pass",
            )
        })],
        r#"timed_out
        error TimedOut: "…""#,
    ),
    Case {
        differs: &[
            without_cpu("native-warm"),
            without_cpu("native-cold"),
            without_cpu("podman"),
        ],
        ..case(
            "a fifth of a core is no more than that",
            &[Step::Run(Turn {
                cpu_quota: Some(20_000),
                ..turn(BUSY)
            })],
            "completed\nresult true",
        )
    },
    case(
        "more of a core than the maximum is refused",
        &[Step::Run(Turn {
            cpu_quota: Some(100_000_000),
            ..turn("1")
        })],
        r#"refused "`limits.cpu_quota` is 100000000 microseconds, above the maximum of …""#,
    ),
    case(
        "/workspace is full at its size",
        &[run("
            import errno, os
            written = 0
            try:
                with open('/workspace/f', 'wb', buffering=0) as file:
                    while written < 1 << 30: written += file.write(b'x' * (1 << 20))
            except OSError as error:
                reason = errno.errorcode[error.errno]
            os.unlink('/workspace/f')
            open('/workspace/g', 'w').write('again')
            [written >> 20, reason]")],
        "completed\nresult [102, \"ENOSPC\"]",
    ),
    case(
        "/tmp is full at its size, apart from /workspace",
        &[run("
            import errno
            written = 0
            open('/workspace/other', 'wb').write(b'x' * (20 << 20))
            try:
                with open('/tmp/f', 'wb', buffering=0) as file:
                    while written < 1 << 30: written += file.write(b'x' * (1 << 20))
            except OSError as error:
                reason = errno.errorcode[error.errno]
            [written >> 20, reason]")],
        "completed\nresult [102, \"ENOSPC\"]",
    ),
    case(
        "/dev/shm is full at an eighth of the memory",
        &[run("
            import errno
            written = 0
            try:
                with open('/dev/shm/f', 'wb', buffering=0) as file:
                    while written < 1 << 30: written += file.write(b'x' * (1 << 20))
            except OSError as error:
                reason = errno.errorcode[error.errno]
            [written >> 20, reason]")],
        "completed\nresult [64, \"ENOSPC\"]",
    ),
    case(
        "a smaller storage limit is in force in both directories",
        &[Step::Run(Turn {
            storage: Some("8m"),
            ..turn(
                "
            import os
            sizes = []
            for place in ('/workspace', '/tmp'):
                found = os.statvfs(place)
                sizes.append(found.f_blocks * found.f_frsize >> 20)
            try: open('/workspace/f', 'wb').write(b'x' * (9 << 20))
            except OSError as error: sizes.append(error.strerror)
            sizes",
            )
        })],
        "completed\nresult [8, 8, \"No space left on device\"]",
    ),
    Case {
        differs: &[Difference {
            engine: "podman",
            without: None,
            what: "memory is the only bound",
            reason: "the service takes no number of files for a file system in memory",
            expected: "raised\nerror NameError: \"name 'reason' is not defined\"\nat 5 in <module>",
        }],
        ..case(
            "the number of files in a directory is bounded",
            &[Step::Run(Turn {
                storage: Some("8m"),
                ..turn(
                    "
                import errno
                try:
                    for n in range(100_000): open(f'/tmp/{n}', 'w').close()
                except OSError as error: reason = errno.errorcode[error.errno]
                [n < 10_000, reason]",
                )
            })],
            "completed\nresult [true, \"ENOSPC\"]",
        )
    },
    case(
        "4096 files may be open",
        &[run(
            "
            import errno, os, resource
            held = []
            try:
                while True: held.append(os.open('/dev/null', os.O_RDONLY))
            except OSError as error: reason = errno.errorcode[error.errno]
            count = len(held)
            for fd in held: os.close(fd)
            [4080 < count <= 4096, reason, resource.getrlimit(resource.RLIMIT_NOFILE)]",
        )],
        "completed\nresult [true, \"EMFILE\", [4096, 4096]]\nrepr \"[True, 'EMFILE', (4096, 4096)]\"",
    ),
    case(
        "no core file is written",
        &[run(
            "import resource\nlist(resource.getrlimit(resource.RLIMIT_CORE))",
        )],
        "completed\nresult [0, 0]",
    ),
    case(
        "a limit cannot be raised",
        &[run(
            "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))",
        )],
        r#"raised
        error ValueError: "not allowed to raise maximum limit"
        at 2 in <module>"#,
    ),
    case(
        "no real-time priority is to be had",
        &[run("
            import os
            try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            except PermissionError: told = 'refused'
            told")],
        "completed\nresult \"refused\"",
    ),
    case(
        "limits of a session are fixed by its first call",
        &[
            Step::Run(Turn {
                memory: Some("128m"),
                session: Some("a"),
                ..turn("1")
            }),
            Step::Run(Turn {
                memory: Some("256m"),
                session: Some("a"),
                ..turn("2")
            }),
            run_in("a", "3"),
        ],
        r#"completed
        result 1
        session 1 fresh
        ---
        refused "…"
        ---
        completed
        result 3
        session 1"#,
    ),
];

/// Whether it was held to less than half of a core, over a second.
const BUSY: &str = "
    import time
    begin, cpu = time.monotonic(), time.process_time()
    while time.monotonic() < begin + 1: pass
    (time.process_time() - cpu) / (time.monotonic() - begin) < 0.5";

const NO_PIDS: Difference = Difference {
    engine: "podman",
    without: Some("pids"),
    what: "there are fewer",
    reason: "without a cgroup the kernel counts the processes of a user id, of all containers together",
    expected: "completed\nresult …",
};

const fn without_cpu(engine: &'static str) -> Difference {
    Difference {
        engine,
        without: Some("cpu"),
        what: "no share of a core is set",
        reason: "only a cgroup can; CPU seconds of each process are bounded instead",
        expected: "completed\nresult …",
    }
}
