//! Standard output and standard error, however they are written to.

use super::case::{Case, Step, Turn, case, run, turn};

pub(super) const CASES: &[Case] = &[
    case(
        "the two streams are kept apart, each in its order",
        &[run("
            import sys
            for n in range(3):
                print('out', n)
                print('err', n, file=sys.stderr)")],
        r#"completed
        stdout "out 0\nout 1\nout 2\n"
        stderr "err 0\nerr 1\nerr 2\n""#,
    ),
    case(
        "what is written to descriptors 1 and 2 is output",
        &[run("import os\nos.write(1, b'one'); os.write(2, b'two');")],
        "completed\nstdout \"one\"\nstderr \"two\"",
    ),
    case(
        "print and descriptor 1 keep their order",
        &[run(
            "import os\nprint('a')\nos.write(1, b'b\\n')\nprint('c')\nos.write(1, b'd\\n');",
        )],
        r#"completed
        stdout "a\nb\nc\nd\n""#,
    ),
    case(
        "a line that does not end is written at the end",
        &[run(
            "import sys\nprint('no end', end='')\nsys.stderr.write('nor here');",
        )],
        "completed\nstdout \"no end\"\nstderr \"nor here\"",
    ),
    case(
        "output of child processes, between that of the code",
        &[run("
            import os, subprocess
            print('before')
            subprocess.run(['sh', '-c', 'echo child; echo trouble >&2'])
            os.system('echo system')
            print('after')")],
        r#"completed
        stdout "before\nchild\nsystem\nafter\n"
        stderr "trouble\n""#,
    ),
    case(
        "what a child process captures is not output",
        &[run(
            "import subprocess\nsubprocess.run('echo mine; echo yours >&2', shell=True, capture_output=True, text=True).stdout",
        )],
        r#"completed
        result "mine\n"
        repr "'mine\\n'""#,
    ),
    case(
        "output of C is flushed at the end",
        &[run(
            "import ctypes\nctypes.CDLL(None).printf(b'from C'); print('from Python')",
        )],
        r#"completed
        stdout "from Python\nfrom C""#,
    ),
    case(
        "a character split between two writes is not torn",
        &[run("
            import os, time
            for byte in '€\\U0001f600'.encode():
                os.write(1, bytes([byte]))
                time.sleep(0.01)")],
        "completed\nstdout \"€😀\"",
    ),
    case(
        "what is not UTF-8 is replaced",
        &[run(
            "import os\nos.write(1, b'a\\xffb\\xe2\\x82'); os.write(2, b'\\xc3(');",
        )],
        "completed\nstdout \"a�b�\"\nstderr \"�(\"",
    ),
    case(
        "NULs and control characters pass",
        &[run("print('a\\x00b\\x1b[31m\\r\\x07')")],
        r#"completed
        stdout "a\u0000b\u001b[31m\r\u0007\n""#,
    ),
    case(
        "a lone surrogate can be printed",
        &[run("print('a\\ud800b')")],
        r#"completed
        stdout "a\\ud800b\n""#,
    ),
    case(
        "one MiB in one piece is kept whole",
        &[run("print('x' * ((1 << 20) - 1))")],
        r#"completed
        stdout "x" * 1048575 + "\n""#,
    ),
    case(
        "one MiB in single bytes is kept whole",
        &[run(
            "import os\nfor _ in range(1 << 14): os.write(1, b'y' * 64)",
        )],
        r#"completed
        stdout "y" * 1048576"#,
    ),
    case(
        "of more than the cap the beginning and the end are kept",
        &[run("print('a' * 786432 + 'b' * 1000 + 'c' * 262143)")],
        r#"completed
        stdout "a" * 786432 + "\n[... 1000 bytes left out ...]\n" + "c" * 262143 + "\n"
        truncated {"stdout": 1000}"#,
    ),
    case(
        "each stream has its own cap",
        &[run(
            "import sys\nprint('small')\nsys.stderr.write('e' * 2_000_000);",
        )],
        r#"completed
        stdout "small\n"
        stderr "e" * 786432 + "\n[... 951424 bytes left out ...]\n" + "e" * 262144
        truncated {"stderr": 951424}"#,
    ),
    case(
        "output of a thread that is not waited for, up to the end",
        &[run("
            import threading
            said = threading.Event()
            def speak():
                print('from a thread')
                said.set()
            threading.Thread(target=speak, daemon=True).start()
            said.wait()
            'end'")],
        r#"completed
        result "end"
        stdout "from a thread\n""#,
    ),
    case(
        "a child that holds the streams open delays nothing",
        &[run(
            "import subprocess\nsubprocess.Popen(['sleep', '100'])\nprint('parent is done')",
        )],
        r#"completed
        stdout "parent is done\n""#,
    ),
    case(
        "output of a child that outlives the code is not waited for",
        &[run(
            "import subprocess\nsubprocess.Popen('sleep 3; echo late', shell=True)\n'early'",
        )],
        "completed\nresult \"early\"",
    ),
    case(
        "closed standard descriptors lose output and nothing else",
        &[run(
            "import os\nfor fd in (0, 1, 2): os.close(fd)\nos.system('echo unheard')\n40 + 2",
        )],
        "completed\nresult 42",
    ),
    case(
        "a replaced sys.stdout keeps what it is given",
        &[run("
            import contextlib, io
            with contextlib.redirect_stdout(io.StringIO()) as mine:
                print('kept')
            mine.getvalue()")],
        r#"completed
        result "kept\n"
        repr "'kept\\n'""#,
    ),
    case(
        "output redirected to a file on the descriptor",
        &[run("
            import os
            saved = os.dup(1)
            file = os.open('/tmp/log', os.O_RDWR | os.O_CREAT)
            os.dup2(file, 1)
            print('into the file'); os.system('echo child too')
            os.dup2(saved, 1)
            print('heard')
            open('/tmp/log').read()")],
        r#"completed
        result "into the file\nchild too\n"
        repr "'into the file\\nchild too\\n'"
        stdout "heard\n""#,
    ),
    case(
        "input is at its end",
        &[run("import sys\n[sys.stdin.read(), sys.stdin.isatty()]")],
        "completed\nresult [\"\", false]",
    ),
    case(
        "input() has nobody to ask",
        &[run("input('name? ')")],
        r#"raised
        stdout "name? "
        error EOFError: "EOF when reading a line"
        at 1 in <module>"#,
    ),
    case(
        "no stream is a terminal",
        &[run("import os\n[os.isatty(fd) for fd in range(3)]")],
        "completed\nresult [false, false, false]",
    ),
    case(
        "output is heard while the code runs, and kept when it is stopped",
        &[Step::Run(Turn {
            timeout: Some(5.0),
            ..turn(
                "import time\nprint('first'); print('no newline', end='', flush=True)\ntime.sleep(100)",
            )
        })],
        r#"timed_out
        stdout "first\nno newline"
        error TimedOut: "…""#,
    ),
];
