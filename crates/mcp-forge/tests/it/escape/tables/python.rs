//! G: the language and its interpreter. The operating system is the boundary; here the runner and
//! the turn must keep their footing.

use mcp_forge::turn::{Outcome, Report};
use serde_json::json;

use super::{Case, Code, Control, Expect, Setting, USUAL, behaviour, probe};

const BRIEF: Setting = Setting {
    seconds: 2,
    ..USUAL
};

const fn plain(id: &'static str, attack: &'static str, code: &'static str, expect: Expect) -> Case {
    behaviour(id, attack, Code::Plain(code), expect)
}

const fn made(
    id: &'static str,
    attack: &'static str,
    code: fn() -> String,
    expect: Expect,
) -> Case {
    behaviour(id, attack, Code::Made(code), expect)
}

pub(in super::super) const PYTHON: &[Case] = &[
    plain(
        "G1",
        "sys.exit(0)",
        "import sys\nsys.exit(0)",
        Expect::Raised("SystemExit"),
    ),
    plain(
        "G1",
        "sys.exit with a text",
        "import sys\nsys.exit('x')",
        Expect::Raised("SystemExit"),
    ),
    plain("G1", "quit()", "quit()", Expect::Raised("SystemExit")),
    plain(
        "G2",
        "os._exit(0)",
        "import os\nos._exit(0)",
        Expect::Crashed,
    ),
    plain("G2", "os.abort()", "import os\nos.abort()", Expect::Crashed),
    plain(
        "G2",
        "kills itself",
        "import os\nos.kill(os.getpid(), 9)",
        Expect::Crashed,
    ),
    plain(
        "G2",
        "reads address 0",
        "import ctypes\nctypes.string_at(0)",
        Expect::Crashed,
    ),
    plain(
        "G2",
        "recursion without a limit, through C",
        "import sys\nsys.setrecursionlimit(10 ** 9)\nclass A:\n    def __repr__(self): return repr([self])\nrepr(A())",
        Expect::Report("crashed or out of memory", |report| {
            matches!(
                report.outcome,
                Outcome::Crashed(_) | Outcome::OutOfMemory | Outcome::Raised
            )
        }),
    ),
    plain(
        "G3",
        "recursion",
        "def f(): f()\nf()",
        Expect::Raised("RecursionError"),
    ),
    plain(
        "G3",
        "raises KeyboardInterrupt",
        "raise KeyboardInterrupt",
        Expect::Raised("KeyboardInterrupt"),
    ),
    plain(
        "G3",
        "an exception that cannot be shown",
        "class E(Exception):\n    def __str__(self): raise self\n    __repr__ = __str__\nraise E",
        Expect::Raised("E"),
    ),
    plain(
        "G3",
        "exceptions that cause each other",
        "a, b = ValueError('a'), ValueError('b')\na.__cause__, b.__cause__ = b, a\nraise a",
        Expect::Raised("ValueError"),
    ),
    Case {
        setting: BRIEF,
        ..plain(
            "G3",
            "an exception whose text never ends",
            "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
            Expect::TimedOut,
        )
    },
    plain(
        "G4",
        "a result that fights back",
        concat!(
            "class A:\n    def boom(self, *rest, **named): raise BaseException('boom')\n",
            "    __repr__ = __str__ = __eq__ = __bool__ = __len__ = __hash__ = __iter__ = __reduce__ = __json__ = _repr_html_ = boom\n",
            "    __getattr__ = __getattribute__ = boom\n    __class__ = property(boom)\nA()"
        ),
        COMPLETED,
    ),
    plain(
        "G4",
        "a repr that is no text",
        "class A:\n    def __repr__(self): return 1\nA()",
        COMPLETED,
    ),
    Case {
        setting: BRIEF,
        ..plain(
            "G4",
            "a repr that never ends",
            "class A:\n    def __repr__(self):\n        while True: pass\nA()",
            Expect::TimedOut,
        )
    },
    plain(
        "G4",
        "a repr of 50 MB",
        "class A:\n    def __repr__(self): return 'x' * 50_000_000\nA()",
        BOUNDED,
    ),
    plain(
        "G4",
        "a repr that forks",
        "import os\nclass A:\n    def __repr__(self):\n        os.fork()\n        return 'A'\nA()",
        COMPLETED,
    ),
    plain(
        "G5",
        "numbers that JSON lacks",
        "[float('nan'), float('inf'), -float('inf'), 2 ** 63, 10 ** 30, -0.0]",
        Expect::Result(|| {
            json!([
                "NaN",
                "Infinity",
                "-Infinity",
                9_223_372_036_854_775_808_u64,
                "1000000000000000000000000000000",
                -0.0
            ])
        }),
    ),
    plain(
        "G5",
        "keys that are no text and become equal",
        "{1: 'a', '1': 'b', None: 'c'}",
        Expect::Result(|| json!({"1": "a", "1 (2)": "b", "None": "c"})),
    ),
    plain(
        "G5",
        "a list in itself",
        "a = []\na.append(a)\na",
        Expect::Result(|| json!(["[cycle]"])),
    ),
    plain(
        "G5",
        "100000 levels",
        "a = []\nfor _ in range(100_000): a = [a]\na",
        BOUNDED,
    ),
    plain("G5", "ten million items", "[0] * 10_000_000", BOUNDED),
    plain("G5", "a text of 50 MB", "'x' * 50_000_000", BOUNDED),
    plain(
        "G6",
        "lone surrogates",
        "print('\\udc80')\n'\\ud800'",
        Expect::Report("valid text", |report| {
            report.outcome == Outcome::Completed && report.result.is_string()
        }),
    ),
    plain(
        "G6",
        "bytes that are no text, and escape sequences",
        "import os\nos.write(1, b'\\xff\\x00\\xfe\\x1b]52;c;x\\x07\\r')",
        Expect::Report("U+FFFD for what is no text, the rest as it is", |report| {
            report.stdout.text == "\u{FFFD}\0\u{FFFD}\u{1b}]52;c;x\u{7}\r"
        }),
    ),
    plain("G7", "no code", "", COMPLETED),
    plain("G7", "only a comment", "# nothing", COMPLETED),
    plain("G7", "a NUL", "1\0", Expect::Raised("SyntaxError")),
    plain(
        "G7",
        "line ends of three systems and a byte order mark",
        "\u{FEFF}a = 1\r\nb = 2\ra + b",
        Expect::Result(|| json!(3)),
    ),
    plain(
        "G7",
        "an encoding that is none of its own",
        "# coding: utf-16\n'ä'",
        Expect::Result(|| json!("ä")),
    ),
    made(
        "G7",
        "10 MB of code",
        || "a = 1\n".repeat(1_600_000),
        Expect::Ends,
    ),
    made(
        "G7",
        "a line of 10 MB",
        || format!("a = '{}'", "x".repeat(10_000_000)),
        COMPLETED,
    ),
    made(
        "G7",
        "a million parentheses",
        || format!("{}{}", "(".repeat(1_000_000), ")".repeat(1_000_000)),
        Expect::Report("raised or out of memory", |report| {
            matches!(
                report.outcome,
                Outcome::Raised | Outcome::OutOfMemory | Outcome::Crashed(_)
            )
        }),
    ),
    made(
        "G7",
        "100 nested blocks",
        || {
            (0..101).fold(String::new(), |code, depth| {
                code + &" ".repeat(depth) + "if 1:\n"
            })
        },
        Expect::Raised("IndentationError"),
    ),
    plain(
        "G8",
        "await at the top",
        "import asyncio\nawait asyncio.sleep(0, 7)",
        Expect::Result(|| json!(7)),
    ),
    plain(
        "G8",
        "asyncio.run",
        "import asyncio\nasync def f(): return 7\nasyncio.run(f())",
        Expect::Result(|| json!(7)),
    ),
    plain(
        "G8",
        "tasks left over",
        "import asyncio\nasync def f():\n    while True: await asyncio.sleep(9)\ntasks = [asyncio.ensure_future(f()) for _ in range(100)]\nawait asyncio.sleep(0)\n7",
        Expect::Result(|| json!(7)),
    ),
    plain("G9", "input()", "input()", Expect::Raised("EOFError")),
    plain(
        "G9",
        "sys.stdin",
        "import sys\nsys.stdin.read()",
        Expect::Result(|| json!("")),
    ),
    plain(
        "G9",
        "breakpoint()",
        "breakpoint()",
        Expect::Raised("RuntimeError"),
    ),
    plain(
        "G9",
        "pdb",
        "import pdb\npdb.set_trace()\nx = 1",
        Expect::Report("raised or completed, at once", |report| {
            matches!(report.outcome, Outcome::Raised | Outcome::Completed)
        }),
    ),
    plain(
        "G10",
        "closes its streams",
        "import os\nfor fd in (0, 1, 2): os.close(fd)\n7",
        Expect::Result(|| json!(7)),
    ),
    plain(
        "G10",
        "puts other things in their place",
        "import os\nfor fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)\n7",
        Expect::Result(|| json!(7)),
    ),
    Case {
        code: Code::Probe(include_str!("../probes/swapped_builtins.py")),
        ..plain("G10", "takes the interpreter apart", "", Expect::Held)
    },
    plain(
        "G11",
        "closes the connection",
        "import os\nos.close(3)\n7",
        Expect::Crashed,
    ),
    plain(
        "G11",
        "puts a file in its place",
        "import os\nos.dup2(os.open('/dev/null', os.O_RDWR), 3)\n7",
        Expect::Ends,
    ),
    plain(
        "G11",
        "writes garbage to it",
        "import os\nos.write(3, b'\\0\\0\\0\\4{{{{')\nimport time\ntime.sleep(9)",
        Expect::Crashed,
    ),
    plain(
        "G11",
        "announces four gigabytes",
        "import os\nos.write(3, b'\\xff' * 64)\nimport time\ntime.sleep(9)",
        Expect::Crashed,
    ),
    Case {
        setting: BRIEF,
        ..plain(
            "G11",
            "half a message",
            "import os\nos.write(3, b'\\0\\0\\1\\0{')\nimport time\ntime.sleep(9)",
            Expect::TimedOut,
        )
    },
    plain(
        "G11",
        "forges its own result",
        "import os, json\nm = json.dumps({'type': 'done', 'result': 'forged'}).encode()\nos.write(3, len(m).to_bytes(4, 'big') + m)\nimport time\ntime.sleep(9)",
        Expect::Result(|| json!("forged")),
    ),
    plain(
        "G11",
        "forges a call of a tool that was not granted",
        "import os, json\nm = json.dumps({'type': 'tool_call', 'call_id': 1, 'name': 'files_read', 'arguments': {}}).encode()\nos.write(3, len(m).to_bytes(4, 'big') + m)\nimport time\ntime.sleep(0.3)\n7",
        Expect::Report("refused and recorded", |report| {
            report.tool_calls.len() == 1 && report.tool_calls[0].status == "not_granted"
        }),
    ),
    plain(
        "G15",
        "output of children and of C",
        "import os, ctypes\nctypes.CDLL(None).printf(b'c\\n')\nos.system('echo child')\nif os.fork() == 0:\n    os.write(1, b'fork\\n')\n    os._exit(0)\nos.wait()\nprint('python')",
        Expect::Report("all of it", |report| {
            ["c\n", "child\n", "fork\n", "python\n"]
                .iter()
                .all(|line| report.stdout.text.contains(line))
        }),
    ),
    Case {
        setting: Setting {
            memory_mib: 512,
            ..USUAL
        },
        ..probe(
            "G16",
            "all of multiprocessing works",
            include_str!("../probes/multiprocessing_all.py"),
            Control::Nothing("it must work with every layer in place"),
        )
    },
];

const COMPLETED: Expect =
    Expect::Report("completed", |report| report.outcome == Outcome::Completed);

/// Ended well or by a limit, and what came back is within the caps.
const BOUNDED: Expect = Expect::Report(
    "completed within the caps, or a limit",
    |report: &Report| {
        let size =
            report.result.to_string().len() + report.result_repr.as_ref().map_or(0, String::len);
        matches!(
            report.outcome,
            Outcome::Completed | Outcome::OutOfMemory | Outcome::Crashed(_)
        ) && size < 3 << 20
    },
);
