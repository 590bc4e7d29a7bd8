//! Sessions: what stays, what is lost, and how it is told.

use super::case::{Case, Step, case, run, run_in};

pub(super) const CASES: &[Case] = &[
    case(
        "variables, imports, functions and classes stay",
        &[
            run_in(
                "a",
                "import math as m\nx = [1, 2]\ndef f(n): return n + len(x)\nclass C:\n    y = 3",
            ),
            run_in("a", "x.append(3)\n[m.floor(2.5), f(10), C().y, x]"),
        ],
        r"completed
        session 1 fresh
        ---
        completed
        result [2, 13, 3, [1, 2, 3]]
        session 1",
    ),
    case(
        "sessions do not share variables, nor does a call without one",
        &[
            run_in("a", "x = 1"),
            run_in("b", "'x' in globals()"),
            run("'x' in globals()"),
            run_in("a", "x"),
        ],
        r"completed
        session 1 fresh
        ---
        completed
        result false
        session 1 fresh
        ---
        completed
        result false
        ---
        completed
        result 1
        session 1",
    ),
    case(
        "sessions do not share files",
        &[
            run_in(
                "a",
                "for place in ('/workspace', '/tmp', '/dev/shm'): open(place + '/mark', 'w').close()",
            ),
            run_in(
                "b",
                "import os\n[os.path.exists(place + '/mark') for place in ('/workspace', '/tmp', '/dev/shm')]",
            ),
        ],
        r#"completed
        session 1 fresh
        file "mark" 0
        ---
        completed
        result [false, false, false]
        session 1 fresh"#,
    ),
    case(
        "an exception leaves the session as it was then",
        &[
            run_in("a", "x = 1\nraise ValueError('no')\nx = 2"),
            run_in("a", "x"),
        ],
        r#"raised
        error ValueError: "no"
        at 2 in <module>
        session 1 fresh
        ---
        completed
        result 1
        session 1"#,
    ),
    case(
        "a traceback shows functions of earlier calls",
        &[
            run_in("a", "def f():\n    return 1 / 0"),
            run_in("a", "x = 1\nf()"),
        ],
        r#"completed
        session 1 fresh
        ---
        raised
        error ZeroDivisionError: "division by zero"
        at 2 in <module>, 2 in f
        session 1"#,
    ),
    case(
        "a syntax error leaves the session as it was",
        &[
            run_in("a", "x = 1"),
            run_in("a", "x = = 2"),
            run_in("a", "x"),
        ],
        r#"completed
        session 1 fresh
        ---
        raised
        error SyntaxError: "invalid syntax (<execution…>, line 1)"
        at 1
        session 1
        ---
        completed
        result 1
        session 1"#,
    ),
    case(
        "sys.exit ends the call and not the session",
        &[
            run_in("a", "x = 1\nimport sys; sys.exit(3)"),
            run_in("a", "x"),
        ],
        r#"raised
        error SystemExit: "3"
        at 2 in <module>
        session 1 fresh
        ---
        completed
        result 1
        session 1"#,
    ),
    case(
        "exit() ends the call and not the session",
        &[run_in("a", "x = 1\nexit()"), run_in("a", "x")],
        r"raised
        error SystemExit: …
        at 2 in <module>
        session 1 fresh
        ---
        completed
        result 1
        session 1",
    ),
    case(
        "input() has nobody to ask in a session either",
        &[
            run_in(
                "a",
                "
            try: input()
            except (EOFError, NotImplementedError): told = 'nobody'
            told",
            ),
            run_in("a", "1"),
        ],
        r#"completed
        result "nobody"
        session 1 fresh
        ---
        completed
        result 1
        session 1"#,
    ),
    case(
        "the working directory and the environment stay changed",
        &[
            run_in(
                "a",
                "import os\nos.mkdir('/tmp/d'); os.chdir('/tmp/d'); os.environ['MINE'] = '1'",
            ),
            run_in("a", "[os.getcwd(), os.environ['MINE']]"),
        ],
        r#"completed
        session 1 fresh
        ---
        completed
        result ["/tmp/d", "1"]
        session 1"#,
    ),
    case(
        "an asyncio loop stays, with its tasks",
        &[
            run_in(
                "a",
                "import asyncio\nqueue = asyncio.Queue()\nasync def answer(): await queue.put('from the task')\ntask = asyncio.create_task(answer())",
            ),
            run_in("a", "await queue.get()"),
        ],
        r#"completed
        session 1 fresh
        ---
        completed
        result "from the task"
        session 1"#,
    ),
    case(
        "output between calls is told with the next one, and apart from its own",
        &[
            run_in(
                "a",
                "
                import threading
                go, done = threading.Event(), threading.Event()
                def late():
                    go.wait()
                    print('late')
                    done.set()
                threading.Thread(target=late, daemon=True).start()",
            ),
            run_in("a", "go.set(); done.wait(); print('mine')"),
            run_in("a", "print('third')"),
        ],
        r#"completed
        session 1 fresh
        ---
        completed
        stdout "mine\n"
        session 1
        ---
        completed
        stdout "third\n"
        session 1
        between stdout "late\n""#,
    ),
    case(
        "an interpreter that exits is lost, told once, and started anew",
        &[
            run_in("a", "x = 1\nimport os\nos._exit(7)"),
            run_in("a", "print('must not run')"),
            run_in("a", "'x' in globals()"),
        ],
        r#"crashed
        error Crashed: "The interpreter exited with status 7 before the code had ended. … The session's interpreter is gone: … The next call in session `a` says so once and does not run its code."
        session 1 fresh lost "…"
        ---
        session_lost
        error SessionLost: "The code did not run: session `a` lost its interpreter, and its variables and imports with it (…). Its documentation and its files in /workspace are kept. The next call in it runs in a fresh interpreter, generation 2: run again what built the state, then go on."
        session 2 lost "…"
        ---
        completed
        result false
        session 2 fresh"#,
    ),
    case(
        "an interpreter that is killed is lost, and generations count on",
        &[
            run_in("a", "import os; os.kill(os.getpid(), 9)"),
            run_in("a", "1"),
            run_in("a", "import os; os.kill(os.getpid(), 11)"),
            run_in("a", "1"),
            run_in("a", "2"),
        ],
        r#"crashed
        error Crashed: "The interpreter was ended by a kill (SIGKILL). …"
        session 1 fresh lost "…"
        ---
        session_lost
        error SessionLost: "…generation 2: …"
        session 2 lost "…"
        ---
        crashed
        error Crashed: "The interpreter was ended by a segmentation fault (SIGSEGV). …"
        session 2 fresh lost "…"
        ---
        session_lost
        error SessionLost: "…generation 3: …"
        session 3 lost "…"
        ---
        completed
        result 2
        session 3 fresh"#,
    ),
    case(
        "a session that goes over its memory is out_of_memory",
        &[run_in(
            "a",
            "held = []\nwhile True: held.append(bytearray(b'x' * (8 << 20)))",
        )],
        "out_of_memory\nerror OutOfMemory: …\n…",
    ),
    case(
        "files are given back after a loss",
        &[
            run_in(
                "a",
                "import os\nos.makedirs('d/e')\nopen('d/e/f.txt', 'w').write('kept'); open('/tmp/g', 'w').write('not kept');",
            ),
            // Read once: then it is on the host.
            Step::File {
                session: "a",
                path: "d/e/f.txt",
            },
            run_in("a", "os._exit(1)"),
            run_in("a", "1"),
            run_in(
                "a",
                "import os\n[open('d/e/f.txt').read(), os.path.exists('/tmp/g')]",
            ),
        ],
        r#"completed
        session 1 fresh
        file "d/e/f.txt" 4
        ---
        content "kept"
        ---
        crashed
        error Crashed: "The interpreter exited with status 1 …"
        session 1 lost "…"
        ---
        session_lost
        error SessionLost: "…"
        session 2 lost "…"
        ---
        completed
        result ["kept", false]
        session 2 fresh"#,
    ),
    case(
        "a deleted session begins anew",
        &[
            run_in("a", "x = 1"),
            Step::Delete("a"),
            run_in("a", "'x' in globals()"),
        ],
        r"completed
        session 1 fresh
        ---
        deleted
        ---
        completed
        result false
        session 1 fresh",
    ),
    case(
        "a session that there is not cannot be deleted",
        &[Step::Delete("nobody")],
        r#"refused "…nobody…""#,
    ),
    case(
        "a thread of an earlier call goes on",
        &[
            run_in(
                "a",
                "
                import threading
                ticks, stop = [], threading.Event()
                def tick():
                    while not stop.wait(0.01): ticks.append(1)
                threading.Thread(target=tick, daemon=True).start()",
            ),
            run_in(
                "a",
                "import time\nbefore = len(ticks)\nwhile len(ticks) <= before: time.sleep(0.01)\nstop.set()\n'ticked'",
            ),
        ],
        r#"completed
        session 1 fresh
        ---
        completed
        result "ticked"
        session 1"#,
    ),
    case(
        "the last values are under their names",
        &[run_in("a", "6 * 7"), run_in("a", "_ + 1")],
        r"completed
        result 42
        session 1 fresh
        ---
        completed
        result 43
        session 1",
    ),
    case(
        "a thread of an earlier call cannot call tools",
        &[
            run_in(
                "a",
                "
                import threading
                go, told = threading.Event(), []
                def late():
                    go.wait()
                    try: kit_echo(x=1)
                    except ToolError as error: told.append(error.kind)
                thread = threading.Thread(target=late)
                thread.start()",
            )
            .with_tools(&["kit_echo"]),
            run_in("a", "go.set(); thread.join(); told").with_tools(&["kit_echo"]),
        ],
        r#"completed
        session 1 fresh
        ---
        completed
        result ["not_granted"]
        session 1"#,
    ),
    case(
        "a display of a session comes with its own call",
        &[
            run_in("a", "display('one')\n1"),
            run_in("a", "display('two')\n2"),
        ],
        r#"completed
        result 1
        display text/plain "'one'"
        session 1 fresh
        ---
        completed
        result 2
        display text/plain "'two'"
        session 1"#,
    ),
    case(
        "what a session replaces it replaces for itself",
        &[
            run_in(
                "a",
                "import json, sys\nprint('before')\njson.dumps = None\nsys.displayhook = None",
            ),
            run_in("a", "40 + 2"),
            run_in(
                "b",
                "import json, sys\n[json.dumps(1), callable(sys.displayhook)]",
            ),
        ],
        r#"completed
        stdout "before\n"
        session 1 fresh
        ---
        completed
        result 42
        session 1
        ---
        completed
        result ["1", true]
        session 1 fresh"#,
    ),
    case(
        "a session's child process lives from call to call",
        &[
            run_in(
                "a",
                "import subprocess\ncat = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)",
            ),
            run_in("a", "cat.communicate('through')[0], cat.returncode"),
        ],
        r#"completed
        session 1 fresh
        ---
        completed
        result ["through", 0]
        repr "('through', 0)"
        session 1"#,
    ),
    case(
        "a session that floods between its calls is ended",
        &[
            run_in(
                "a",
                // Late enough that the first answer has none of it.
                "import subprocess\nsubprocess.Popen('sleep 3; yes', shell=True)\n1",
            ),
            Step::State {
                session: "a",
                members: &["/lost_reason"],
            },
            run_in("a", "2"),
            run_in("a", "3"),
        ],
        r#"completed
        result 1
        session 1 fresh
        ---
        /lost_reason "…"
        ---
        session_lost
        error SessionLost: "…"
        session 2 lost "…"
        ---
        completed
        result 3
        session 2 fresh"#,
    ),
];
