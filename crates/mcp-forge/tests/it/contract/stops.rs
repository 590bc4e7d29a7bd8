//! The caller ends a turn: by an interrupt, by leaving.

use super::case::{Case, Step, Stop, Turn, case, run, run_in, turn};

const fn stopped(session: &'static str, stop: Stop, code: &'static str) -> Step {
    Step::Run(Turn {
        session: Some(session),
        stop,
        ..turn(code)
    })
}

pub(super) const CASES: &[Case] = &[
    case(
        "a dropped call is gone and the next one works",
        &[
            Step::Run(Turn {
                stop: Stop::Drop,
                ..turn("print('begun', flush=True)\nwhile True: pass")
            }),
            run("20 + 22"),
        ],
        "dropped\n---\ncompleted\nresult 42",
    ),
    case(
        "an interrupt ends a loop of a session, which is kept",
        &[
            run_in("a", "x = 1"),
            stopped(
                "a",
                Stop::AtFirstWord,
                "x = 2\nprint('begun', flush=True)\nwhile True: pass",
            ),
            run_in("a", "x"),
        ],
        r#"completed
        session 1 fresh
        ---
        cancelled
        stdout "begun\n"
        error Cancelled: "The caller cancelled the execution, and it was stopped. Session `a` was kept: what the code had done by then is there."
        at …
        session 1
        ---
        completed
        result 2
        session 1"#,
    ),
    case(
        "an interrupt ends a sleep",
        &[
            stopped(
                "a",
                Stop::AtFirstWord,
                "import time\nprint('begun', flush=True)\ntime.sleep(100)",
            ),
            run_in("a", "time.__name__"),
        ],
        r#"cancelled
        stdout "begun\n"
        error Cancelled: "…"
        at …
        session 1 fresh
        ---
        completed
        result "time"
        session 1"#,
    ),
    case(
        "an interrupt ends a wait for a child process",
        &[
            stopped(
                "a",
                Stop::AtFirstWord,
                "import subprocess\nsubprocess.run('echo begun; sleep 100', shell=True)",
            ),
            run_in("a", "1"),
        ],
        r#"cancelled
        stdout "begun\n"
        error Cancelled: "…"
        at …
        session 1 fresh
        ---
        completed
        result 1
        session 1"#,
    ),
    case(
        "an interrupt ends an await",
        &[
            stopped(
                "a",
                Stop::AtFirstWord,
                "import asyncio\nprint('begun', flush=True)\nawait asyncio.sleep(100)",
            ),
            run_in("a", "await asyncio.sleep(0, 'works')"),
        ],
        r#"cancelled
        stdout "begun\n"
        error Cancelled: "…"
        at …
        session 1 fresh
        ---
        completed
        result "works"
        session 1"#,
    ),
    case(
        "an interrupt ends a wait for a lock",
        &[
            stopped(
                "a",
                Stop::AtFirstWord,
                "import threading\nlock = threading.Lock()\nlock.acquire()\nprint('begun', flush=True)\nlock.acquire()",
            ),
            run_in("a", "1"),
        ],
        r#"cancelled
        stdout "begun\n"
        error Cancelled: "…"
        at …
        session 1 fresh
        ---
        completed
        result 1
        session 1"#,
    ),
    case(
        "an interrupt ends a tool call in flight",
        &[
            Step::Run(Turn {
                session: Some("a"),
                stop: Stop::AtFirstWord,
                tools: &["kit_wait"],
                ..turn("print('begun', flush=True)\nkit_wait()")
            }),
            run_in("a", "1"),
        ],
        r#"cancelled
        stdout "begun\n"
        error Cancelled: "…"
        at …
        session 1 fresh
        ---
        completed
        result 1
        session 1"#,
    ),
    case(
        "an interrupt that the code catches and ends upon is cancelled all the same",
        &[
            stopped(
                "a",
                Stop::AtFirstWord,
                "
                try:
                    print('begun', flush=True)
                    while True: sum(range(9))
                except KeyboardInterrupt:
                    caught = True
                    print('tidied up')",
            ),
            run_in("a", "caught"),
        ],
        r#"cancelled
        stdout "begun\ntidied up\n"
        error Cancelled: "…"
        session 1 fresh
        ---
        completed
        result true
        session 1"#,
    ),
    case(
        "finally runs when a turn is interrupted",
        &[
            stopped(
                "a",
                Stop::AtFirstWord,
                "
                try:
                    print('begun', flush=True)
                    while True: sum(range(9))
                finally:
                    cleaned = True",
            ),
            run_in("a", "cleaned"),
        ],
        r#"cancelled
        stdout "begun\n"
        error Cancelled: "…"
        at …
        session 1 fresh
        ---
        completed
        result true
        session 1"#,
    ),
    case(
        "code that will not be interrupted costs the session its interpreter",
        &[
            stopped(
                "a",
                Stop::AtFirstWord,
                "
                import signal
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                print('begun', flush=True)
                while True: pass",
            ),
            run_in("a", "1"),
            run_in("a", "2"),
        ],
        r#"cancelled
        stdout "begun\n"
        error Cancelled: "The caller cancelled the execution, and it was stopped. The session's interpreter is gone: …"
        session 1 fresh lost "…"
        ---
        session_lost
        error SessionLost: "…"
        session 2 lost "…"
        ---
        completed
        result 2
        session 2 fresh"#,
    ),
    case(
        "a dropped call in a session is interrupted and never hits the next",
        &[
            stopped(
                "a",
                Stop::Drop,
                "y = 1\nprint('begun', flush=True)\nwhile True: pass",
            ),
            run_in("a", "y"),
            run_in("a", "y + 1"),
        ],
        r"dropped
        ---
        completed
        result 1
        session 1
        ---
        completed
        result 2
        session 1",
    ),
    case(
        "the timeout interrupts a session's turn, and what it had done is kept",
        &[
            Step::Run(Turn {
                session: Some("a"),
                timeout: Some(5.0),
                ..turn("z = 1\nprint('said')\nwhile True: pass")
            }),
            run_in("a", "z"),
        ],
        r#"timed_out
        stdout "said\n"
        error TimedOut: "The code ran longer than its timeout of 5 s and was stopped. Ask for more with `timeout` (maximum 1800) or do less in one call. Session `a` was kept: what the code had done by then is there."
        at 3 in <module>
        session 1 fresh
        ---
        completed
        result 1
        session 1"#,
    ),
    case(
        "a timeout that the code catches is timed_out all the same",
        &[
            Step::Run(Turn {
                session: Some("a"),
                timeout: Some(5.0),
                ..turn(
                    "
                try:
                    # Not the loop first: CPython 3.11 takes an interrupt at a jump back to the very
                    # beginning of a `try` for one that came before it.
                    numbers = range(9)
                    while True: sum(numbers)
                except KeyboardInterrupt:
                    'not the result'",
                )
            }),
            run_in("a", "1"),
        ],
        r#"timed_out
        error TimedOut: "…"
        session 1 fresh
        ---
        completed
        result 1
        session 1"#,
    ),
    case(
        "far too much output of a session interrupts it, and it is kept",
        &[
            run_in(
                "a",
                "w = 5\nimport os\nwhile True: os.write(2, b'e' * 65536)",
            ),
            run_in("a", "w"),
        ],
        r#"output_limit
        stderr "e" * 786432 + "\n[... … bytes left out ...]\n" + "e" * 262144
        error OutputLimit: "…"
        at 3 in <module>
        truncated {"stderr": …}
        session 1 fresh
        ---
        completed
        result 5
        session 1"#,
    ),
];
