"""How code is run: `__main__`, the last expression, `await`, output, odd sources."""

import time
import unittest

from harness import RUNNER, RunnerCase


class LastExpression(RunnerCase):
    def test_value(self):
        for code, expected in (
            ("1 + 1", 2),
            ("x = 5\nx", 5),
            ("x = 5; x", 5),
            ("(\n1,\n2)", [1, 2]),
            ("'only a docstring'", "only a docstring"),
            ("def f(): return 3\nf()", 3),
            ("if True:\n    5", None),
            ("x = 1", None),
            ("None", None),
            ("1;", None),
            ("(1) ;  # note", None),
            ("'\u20ac;' ;", None),
            ("1 # not; here", 1),
            ("'a;'", "a;"),
            ("", None),
            ("   \n\t\n", None),
            ("# only a comment", None),
            ("from __future__ import annotations\ndef f(x: nope): pass\nf.__annotations__", {"x": "nope"}),
            ("[y for y in range(3)]", [0, 1, 2]),
            ("\r\nx = 1\r\nx\r\n", 1),
            ("x = 1\rx", 1),
            ("\ufeff7", 7),
            ("# coding: utf-16\n'\u20ac'", "\u20ac"),
            ("x = '''a\r\nb'''\nx", "a\nb"),
            ("\f1", 1),
        ):
            with self.subTest(code=code):
                self.assertEqual(self.value(code), expected)

    def test_repr_comes_with_a_value_only(self):
        self.assertEqual(self.execute("'a'"), {"type": "done", "result": "a", "result_repr": "'a'"})
        self.assertEqual(self.execute("None"), {"type": "done"})

    def test_result_is_cut_at_its_caps(self):
        done = self.execute("list(range(10**7))", result_bytes=1000, repr_chars=500)
        self.assertEqual(done["result"][-1], f"[{10**7 - len(done['result']) + 1} more items]")
        self.assertLessEqual(len(done["result_repr"]), 500)
        self.assertGreater(done["truncated"]["result"], 10**7)
        self.assertGreater(done["truncated"]["result_repr"], 10**7)

    def test_hostile_values(self):
        code = """
import os, sys
class Evil:
    def __repr__(self):
        sys.settrace(lambda *a: 1 / 0)
        sys.setprofile(lambda *a: 1 / 0)
        sys.setrecursionlimit(60)
        sys.stdout = None
        raise KeyboardInterrupt
    _repr_html_ = _repr_mimebundle_ = _repr_png_ = __getattr__ = __str__ = __repr__
    __len__ = __bool__ = __eq__ = __hash__ = __iter__ = __reduce__ = __json__ = __repr__
{}
"""
        for last in ("Evil()", "[Evil(), 1]", "{1: Evil()}", "Evil"):
            done = self.execute(code.format(last))
            self.assertNotIn("error", done)
            self.assertIsNotNone(done["result"])
        self.assertEqual(done["result"], "<class '__main__.Evil'>")

    def test_a_generator_is_not_consumed(self):
        self.assertIn("generator", self.value("import itertools\n(x for x in itertools.count())"))


class Main(RunnerCase):
    def test_names(self):
        self.assertEqual(self.value("__name__"), "__main__")
        names = [
            "ToolError",
            "__builtins__",
            "__doc__",
            "__loader__",
            "__name__",
            "__package__",
            "__spec__",
            "display",
        ]
        self.assertEqual(self.value("sorted(globals())"), names)
        self.assertIs(self.value("import sys; vars(sys.modules['__main__']) is globals()"), True)
        self.assertIs(self.value("import builtins; __builtins__ is builtins"), True)

    def test_surroundings(self):
        self.assertEqual(self.value("import sys; sys.argv"), [""])
        self.assertIs(self.value("import os, sys; sys.path[0] == os.getcwd()"), True)
        self.assertIs(self.value(f"import sys; {str(RUNNER)!r} in sys.path"), False)
        self.assertEqual(self.value("open('helper.py', 'w').write('x = 5')\nimport helper\nhelper.x"), 5)

    def test_pickle_dataclass_and_source(self):
        code = """
import pickle, dataclasses, inspect
@dataclasses.dataclass
class P:
    x: int
def f():
    return P(1)  # here
assert pickle.loads(pickle.dumps(P(1))) == P(1)
assert pickle.loads(pickle.dumps(f)) is f
inspect.getsource(f)
"""
        self.assertEqual(self.value(code), "def f():\n    return P(1)  # here\n")

    def test_future_is_not_inherited_from_the_runner(self):
        self.assertEqual(self.value("def f(x: int): pass\nf.__annotations__['x'].__name__"), "int")


class Await(RunnerCase):
    def test_forms(self):
        for code, expected in (
            ("import asyncio\nawait asyncio.sleep(0, 5)", 5),
            ("import asyncio\nx = await asyncio.sleep(0, 5)\nx + 1", 6),
            ("import asyncio\nx = 1\nawait asyncio.sleep(0)\n", None),
            ("async def g():\n  yield 1\n  yield 2\n[x async for x in g()]", [1, 2]),
            ("async def g():\n  yield 1\nt = 0\nasync for x in g():\n  t += x\nt", 1),
            (
                "import contextlib\n@contextlib.asynccontextmanager\nasync def c():\n  yield 7\nasync with c() as v:\n  pass\nv",
                7,
            ),
            ("import asyncio\nasync def f(): return 3\nasyncio.run(f())", 3),
            (
                "import asyncio\nasync def f(): return 3\nt = asyncio.create_task(f())\nawait asyncio.sleep(0)\nt.result()",
                3,
            ),
            ("import asyncio\nasync def f(n): return n\nawait asyncio.gather(*map(f, range(3)))", [0, 1, 2]),
        ):
            with self.subTest(code=code):
                self.assertEqual(self.value(code), expected)

    def test_nested_run_is_refused_by_python(self):
        error = self.error(
            "import asyncio\nawait asyncio.sleep(0)\nasyncio.run(asyncio.sleep(0))", "RuntimeError"
        )
        self.assertIn("running event loop", error["message"])

    def test_leftover_tasks_are_cancelled(self):
        code = """
import asyncio
async def forever():
    try:
        await asyncio.sleep(3600)
    finally:
        print("cancelled")
async def stubborn():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
tasks = [asyncio.create_task(forever()), asyncio.create_task(stubborn())]
await asyncio.sleep(0)
"""
        started = time.monotonic()
        self.value(code)
        self.assertLess(time.monotonic() - started, 30)
        self.assertIn("cancelled", self.finish()[0])

    def test_errors(self):
        error = self.error("import asyncio\nasync def f():\n  1/0\nawait f()", "ZeroDivisionError")
        self.assertIn('File "<execution>", line 3, in f', error["traceback"])
        self.assertNotIn("asyncio", error["traceback"].replace("import asyncio", ""))
        self.error("import asyncio\nawait asyncio.sleep(0)\nraise SystemExit(3)", "SystemExit")
        self.error(
            "import asyncio\nasyncio.get_running_loop().stop()\nawait asyncio.sleep(5)", "RuntimeError"
        )
        self.error(
            "import asyncio\nasyncio.get_running_loop().close()\nawait asyncio.sleep(0)", "RuntimeError"
        )

    def test_threads_of_executors_are_not_waited_for(self):
        started = time.monotonic()
        self.value(
            "import asyncio, time\nasyncio.get_running_loop().run_in_executor(None, time.sleep, 50)\nawait asyncio.sleep(0)"
        )
        self.assertLess(time.monotonic() - started, 30)


class Output(RunnerCase):
    def test_text(self):
        self.value(
            "import sys\nprint('a\u20ac\\ud800')\nprint('e', file=sys.stderr)\nprint('no end', end='')"
        )
        self.assertEqual(self.finish(), ("a\u20ac\\ud800\nno end", "e\n"))

    def test_a_line_is_there_before_the_turn_ends(self):
        self.runner.start("print('first')\nwhile True: pass")
        deadline = time.monotonic() + 30
        while "first\n" not in self.runner.stdout and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.runner.stdout, "first\n")
        self.runner.process.kill()

    def test_nothing_is_lost_before_done(self):
        code = "import os, subprocess, sys\nprint('python')\nos.write(1, b'raw\\n')\nsubprocess.run(['echo', 'child'])\nprint('end', end='')"
        self.value(code)
        self.assertEqual(self.finish()[0], "python\nraw\nchild\nend")

    def test_c_output_is_flushed(self):
        self.value("import ctypes\nctypes.CDLL(None).printf(b'from C');")
        self.assertEqual(self.finish()[0], "from C")

    def test_nothing_is_lost_when_the_process_dies(self):
        self.runner.start("import os\nprint('last words')\nos._exit(9)")
        self.assertIsNone(self.runner.until_done())
        self.assertEqual(self.finish()[0], "last words\n")
        self.assertEqual(self.runner.process.returncode, 9)

    def test_a_million_prints(self):
        self.value("for i in range(1_000_000): print(i)")
        text = self.finish()[0]
        self.assertEqual((text[:4], text.count("\n")), ("0\n1\n", 1_000_000))

    def test_stdin_is_empty(self):
        self.error("input('name? ')", "EOFError")
        self.assertEqual(self.value("import sys; sys.stdin.read()"), "")
        self.error("import getpass, warnings\nwarnings.simplefilter('ignore')\ngetpass.getpass()", "EOFError")

    def test_debuggers_do_not_hang(self):
        self.assertIn("no terminal", self.error("x = 1\nbreakpoint()", "RuntimeError")["message"])
        done = self.execute("import pdb; pdb.set_trace()\nx = 1")
        self.assertIn(done["error"]["type"], ("BdbQuit", "SystemExit"))  # the latter from Python 3.14
        self.assertEqual(self.value("1 + 1"), 2)


class OddSources(RunnerCase):
    def test_syntax_errors(self):
        error = self.error("x = 1\ny = = 2\n", "SyntaxError")
        self.assertEqual(
            error["traceback"],
            '  File "<execution>", line 2\n    y = = 2\n        ^\nSyntaxError: invalid syntax\n',
        )
        for code in (
            "'abc",
            "if True:\nx",
            "return 5",
            "await = 1",
            "\ttry",
            "f(",
            "def f():\n\treturn 1\n        return 2",
            "x\\",
        ):
            with self.subTest(code=code):
                done = self.execute(code)
                self.assertIn(done["error"]["type"], ("SyntaxError", "IndentationError", "TabError"))
                self.assertNotIn("Traceback", done["error"]["traceback"])

    def test_nothing_runs_if_anything_is_wrong(self):
        self.error("print('ran')\nreturn 5", "SyntaxError")
        self.error("print('ran')\nfoo(x for x in y, 1)", "SyntaxError")
        self.assertEqual(self.finish()[0], "")

    def test_characters_that_no_source_has(self):
        error = self.error("x = 1\ny\0 = 2", "SyntaxError")
        self.assertIn("null bytes", error["message"])
        self.assertIn("line 2", error["traceback"])
        self.assertIn("surrogates", self.error("'\ud800'", "SyntaxError")["message"])

    def test_huge_nesting(self):
        for code in ("(" * 1_000_000, "-" * 100_000 + "1", "f'{" * 200, "[" * 10**5 + "]" * 10**5):
            with self.subTest(code=code[:10]):
                done = self.execute(code)
                self.assertIn(done["error"]["type"], ("SyntaxError", "MemoryError", "RecursionError"))
                self.assertLess(len(done["error"]["traceback"]), 10_100)
        blocks = "\n".join(" " * n + "if 1:" for n in range(200)) + "\n" + " " * 200 + "pass"
        self.assertIn(self.execute(blocks)["error"]["type"], ("SyntaxError", "IndentationError"))

    def test_long_code(self):
        self.assertEqual(self.value("x = 1\n" * 50_000 + "x"), 1)
        self.assertEqual(self.value("'" + "y" * 1_000_000 + "'[:1]"), "y")
        error = self.error("pass\n" * 100_000 + "1/0", "ZeroDivisionError")
        self.assertIn("line 100001, in <module>", error["traceback"])

    def test_warnings_name_the_line(self):
        self.value("x = 1\nx is 1")
        self.assertIn("<execution>:2: SyntaxWarning", self.finish()[1])


if __name__ == "__main__":
    unittest.main()
