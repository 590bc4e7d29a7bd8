//! How code can end.

use super::case::{Case, Step, Turn, case, run, turn};

pub(super) const CASES: &[Case] = &[
    case(
        "a program that ends in order is completed",
        &[run("print('hi')\n{'a': [1, 2.5, None]}")],
        r#"completed
        result {"a": [1, 2.5, null]}
        stdout "hi\n""#,
    ),
    case("no code at all is completed", &[run("")], "completed"),
    case(
        "an exception is raised with the places it went through",
        &[run("def f():\n    return 1 / 0\nf()")],
        r#"raised
        error ZeroDivisionError: "division by zero"
        at 3 in <module>, 2 in f"#,
    ),
    case(
        "an exception of the code's own class is raised under its name",
        &[run("class Trouble(Exception): pass\nraise Trouble('a', 1)")],
        r#"raised
        error Trouble: "('a', 1)"
        at 2 in <module>"#,
    ),
    case(
        "a chain of exceptions shows the places of all",
        &[run("
            try:
                {}['x']
            except KeyError as error:
                raise ValueError('no x') from error")],
        r#"raised
        error ValueError: "no x"
        at 2 in <module>, 4 in <module>"#,
    ),
    case(
        "a group of exceptions is raised as a group",
        &[run(
            "raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])",
        )],
        r#"raised
        error ExceptionGroup: "two (2 sub-exceptions)"
        at 1 in <module>"#,
    ),
    case(
        "an exception whose text fails is raised all the same",
        &[run("
            class Mute(Exception):
                def __str__(self): raise RuntimeError('no words')
            raise Mute()")],
        r#"raised
        error Mute: "<Mute object that cannot be shown: RuntimeError>"
        at 3 in <module>"#,
    ),
    case(
        "a syntax error is raised with its line and runs nothing",
        &[run("print('first')\nx = = 1")],
        r#"raised
        error SyntaxError: "invalid syntax (<execution>, line 2)"
        at 2"#,
    ),
    case(
        "an indentation error is raised",
        &[run("if True:\nx = 1")],
        r#"raised
        error IndentationError: "expected an indented block after 'if' statement on line 1 (<execution>, line 2)"
        at 2"#,
    ),
    case(
        "an assertion that fails is raised",
        &[run("assert 1 == 2, 'unequal'")],
        r#"raised
        error AssertionError: "unequal"
        at 1 in <module>"#,
    ),
    case(
        "recursion without end is raised",
        &[run(
            "def f(): f()\ntry:\n    f()\nexcept RecursionError as error:\n    raise ValueError('deep') from None",
        )],
        r#"raised
        error ValueError: "deep"
        at 5 in <module>"#,
    ),
    case(
        "sys.exit without a status is raised",
        &[run("import sys\nprint('before')\nsys.exit()")],
        r#"raised
        stdout "before\n"
        error SystemExit: ""
        at 3 in <module>"#,
    ),
    case(
        "sys.exit with 0 is raised",
        &[run("import sys; sys.exit(0)")],
        r#"raised
        error SystemExit: "0"
        at 1 in <module>"#,
    ),
    case(
        "sys.exit with a status is raised",
        &[run("import sys; sys.exit(3)")],
        r#"raised
        error SystemExit: "3"
        at 1 in <module>"#,
    ),
    case(
        "sys.exit with a message is raised",
        &[run("import sys; sys.exit('gone wrong')")],
        r#"raised
        error SystemExit: "gone wrong"
        at 1 in <module>"#,
    ),
    case(
        "exit() is raised as in any program",
        &[run("exit(2)")],
        r#"raised
        error SystemExit: "2"
        at 1 in <module>"#,
    ),
    case(
        "a KeyboardInterrupt of the code's own is raised",
        &[run("raise KeyboardInterrupt('mine')")],
        r#"raised
        error KeyboardInterrupt: "mine"
        at 1 in <module>"#,
    ),
    case(
        "a SIGINT that the code sends itself is a KeyboardInterrupt",
        &[run("import signal\nsignal.raise_signal(signal.SIGINT)")],
        r#"raised
        error KeyboardInterrupt: ""
        at 2 in <module>"#,
    ),
    case(
        "os._exit is a crash with its status, and what was written is kept",
        &[run(
            "import os\nprint('last words', flush=True)\nos._exit(7)",
        )],
        r#"crashed
        stdout "last words\n"
        error Crashed: "The interpreter exited with status 7 before the code had ended. Code that calls `os._exit` does this; `sys.exit` and exceptions are reported as such.""#,
    ),
    case(
        "os._exit with 0 is no success",
        &[run("import os; os._exit(0)")],
        r#"crashed
        error Crashed: "The interpreter exited with status 0 before …""#,
    ),
    case(
        "os._exit with 137 is an exit and not a kill",
        &[run("import os; os._exit(137)")],
        r#"crashed
        error Crashed: "The interpreter exited with status 137 before …""#,
    ),
    case(
        "os._exit with 255 is an exit",
        &[run("import os; os._exit(255)")],
        r#"crashed
        error Crashed: "The interpreter exited with status 255 before …""#,
    ),
    case(
        "replacing the interpreter by another program is a crash with that one's status",
        &[run(
            "import os\nos.execv('/bin/sh', ['sh', '-c', 'echo other; exit 5'])",
        )],
        r#"crashed
        stdout "other\n"
        error Crashed: "The interpreter exited with status 5 before …""#,
    ),
    case(
        "a segmentation fault is a crash by SIGSEGV",
        &[run("import ctypes\nprint('before')\nctypes.string_at(0)")],
        r#"crashed
        stdout "before\n"
        error Crashed: "The interpreter was ended by a segmentation fault (SIGSEGV). Native code (ctypes, an extension module) or a signal that the code sent itself does this.""#,
    ),
    case(
        "an abort is a crash by SIGABRT",
        &[run("import os; os.abort()")],
        r#"crashed
        error Crashed: "The interpreter was ended by an abort (SIGABRT). …""#,
    ),
    case(
        "SIGKILL to oneself is a crash and not a lack of memory",
        &[run("import os; os.kill(os.getpid(), 9)")],
        r#"crashed
        error Crashed: "The interpreter was ended by a kill (SIGKILL). …""#,
    ),
    case(
        "SIGTERM to oneself is a crash",
        &[run("import os; os.kill(os.getpid(), 15)")],
        r#"crashed
        error Crashed: "The interpreter was ended by a request to terminate (SIGTERM). …""#,
    ),
    case(
        "SIGFPE to oneself is a crash",
        &[run("import os; os.kill(os.getpid(), 8)")],
        r#"crashed
        error Crashed: "The interpreter was ended by an arithmetic error (SIGFPE). …""#,
    ),
    case(
        "SIGBUS from a file that became shorter is a crash",
        &[run("
            import mmap
            with open('/tmp/f', 'w+b') as file:
                file.truncate(8192)
                view = mmap.mmap(file.fileno(), 8192)
                file.truncate(0)
                view[5000]")],
        r#"crashed
        error Crashed: "The interpreter was ended by a bus error (SIGBUS). …""#,
    ),
    case(
        "SIGHUP to oneself is a crash by a signal with its number",
        &[run("import os; os.kill(os.getpid(), 1)")],
        r#"crashed
        error Crashed: "The interpreter was ended by signal 1. …""#,
    ),
    case(
        "SIGPIPE is ignored, as in every Python program",
        &[run(
            "import os, signal\nsignal.raise_signal(signal.SIGPIPE)\nread, write = os.pipe()\nos.close(read)\nos.write(write, b'x')",
        )],
        r#"raised
        error BrokenPipeError: "[Errno 32] Broken pipe"
        at 5 in <module>"#,
    ),
    case(
        "the timeout ends a loop, and what was written before is kept",
        &[Step::Run(Turn {
            // Time enough to get there on a busy machine, here and wherever something is to come first.
            timeout: Some(5.0),
            ..turn("print('before')\nwhile True: pass")
        })],
        r#"timed_out
        stdout "before\n"
        error TimedOut: "The code ran longer than its timeout of 5 s and was stopped. Ask for more with `timeout` (maximum 1800) or do less in one call.""#,
    ),
    case(
        "the timeout ends a sleep",
        &[Step::Run(Turn {
            timeout: Some(0.5),
            ..turn("import time; time.sleep(100)")
        })],
        r#"timed_out
        error TimedOut: "The code ran longer than its timeout of 0.5 s …""#,
    ),
    case(
        "the timeout ends code that ignores every signal",
        &[Step::Run(Turn {
            timeout: Some(0.8),
            ..turn(
                "
            import signal
            for number in range(1, 65):
                try: signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError): pass
            while True: pass",
            )
        })],
        r#"timed_out
        error TimedOut: "The code ran longer than its timeout of 0.8 s …""#,
    ),
    case(
        "the timeout ends a wait for a child process",
        &[Step::Run(Turn {
            timeout: Some(0.8),
            ..turn("import subprocess; subprocess.run(['sleep', '100'])")
        })],
        r#"timed_out
        error TimedOut: "…""#,
    ),
    case(
        "code that finishes within its timeout is completed",
        &[Step::Run(Turn {
            timeout: Some(30.0),
            ..turn("'done'")
        })],
        "completed\nresult \"done\"",
    ),
    case(
        "far too much output ends the turn, and its beginning and end are kept",
        &[run("
            import os
            while True: os.write(1, b'x' * 65536)")],
        r#"output_limit
        stdout "x" * 786432 + "\n[... … bytes left out ...]\n" + "x" * 262144
        error OutputLimit: "The code wrote far more output than may be kept and was stopped. Print less, or write to a file in /workspace."
        truncated {"stdout": …}"#,
    ),
    case(
        "closing the control descriptor is a crash at once",
        &[run(
            "import os, time\nos.closerange(3, 4096)\ntime.sleep(100)",
        )],
        r#"crashed
        error Crashed: "The code disturbed the connection to the server: …""#,
    ),
    case(
        "garbage on the control descriptor is a crash",
        &[run(
            "import os, time\nos.write(3, b'garbage garbage garbage')\ntime.sleep(100)",
        )],
        r#"crashed
        error Crashed: "The code disturbed the connection to the server: …""#,
    ),
    case(
        "a warning is a warning",
        &[run("import warnings\nwarnings.warn('careful')\n1")],
        r#"completed
        result 1
        stderr "<execution>:2: UserWarning: careful\n  warnings.warn('careful')\n""#,
    ),
    case(
        "an emptied module table is the code's own trouble",
        &[run("import sys\nsys.modules.clear()\n6 * 7")],
        "completed\nresult 42",
    ),
    case(
        "exit handlers are not run",
        &[run("import atexit\natexit.register(print, 'never')\n1")],
        "completed\nresult 1",
    ),
];
