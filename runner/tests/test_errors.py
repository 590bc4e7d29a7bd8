"""Exceptions: text as Python prints it, bounded, whatever the exception does."""

import sys
import unittest

from harness import RunnerCase


class Tracebacks(RunnerCase):
    def test_lines_and_no_runner_frames(self):
        error = self.error("def f(x):\n    return 1 / x\n\nf(0)\n", "ZeroDivisionError")
        self.assertEqual(error["message"], "division by zero")
        lines = [line for line in error["traceback"].splitlines() if "^" not in line]
        self.assertEqual(
            lines,
            [
                "Traceback (most recent call last):",
                '  File "<execution>", line 4, in <module>',
                "    f(0)",
                '  File "<execution>", line 2, in f',
                "    return 1 / x",
                "ZeroDivisionError: division by zero",
            ],
        )
        self.assertNotIn("mcp_forge_runner", error["traceback"])

    def test_chains(self):
        code = "try:\n  1/0\nexcept Exception as e:\n  raise ValueError('b') from e"
        text = self.error(code, "ValueError")["traceback"]
        self.assertIn("ZeroDivisionError: division by zero\n\nThe above exception was the direct cause", text)
        text = self.error("try:\n  1/0\nexcept Exception:\n  undefined_name", "NameError")["traceback"]
        self.assertIn("During handling of the above exception", text)

    @unittest.skipIf(sys.version_info < (3, 11), "exception groups came with Python 3.11")
    def test_groups_and_notes(self):
        code = """
def f(n):
    raise KeyError(n)
found = []
for n in range(2):
    try: f(n)
    except KeyError as e: found.append(e)
e = ExceptionGroup('both', found)
e.add_note('a note')
raise e
"""
        text = self.error(code, "ExceptionGroup")["traceback"]
        self.assertIn("both (2 sub-exceptions)", text)
        self.assertIn("a note", text)
        self.assertIn("| KeyError: 1", text)
        self.assertNotIn("mcp_forge_runner", text)

    def test_the_users_own_formatting_finds_lines(self):
        text = self.value(
            "import traceback\ntry:\n  1/0  # look\nexcept Exception:\n  s = traceback.format_exc()\ns"
        )
        self.assertIn("1/0  # look", text)

    def test_exits(self):
        for code, kind, message in (
            ("import sys; sys.exit(0)", "SystemExit", "0"),
            ("import sys; sys.exit('bye')", "SystemExit", "bye"),
            ("raise SystemExit", "SystemExit", ""),
            ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
            ("raise GeneratorExit", "GeneratorExit", ""),
            ("class E(BaseException): pass\nraise E('x')", "E", "x"),
        ):
            with self.subTest(code=code):
                self.assertEqual(self.error(code, kind)["message"], message)
        self.assertEqual(self.value("1 + 1"), 2)

    def test_recursion(self):
        text = self.error("def f(): f()\nf()", "RecursionError")["traceback"]
        self.assertRegex(text, r"Previous line repeated \d+ more times")
        self.error(
            "import sys\nsys.setrecursionlimit(10**4)\ndef f(n): g(n+1)\ndef g(n): f(n+1)\nf(0)",
            "RecursionError",
        )
        self.error("class C:\n  def __repr__(s): return repr(s)\nstr(C())", "RecursionError")

    def test_memory(self):
        error = self.error("x = [0] * 10**15", "MemoryError")
        self.assertIn("line 1, in <module>", error["traceback"])
        code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
def f():
    keep = []
    size = 1 << 26
    while True:
        try:
            keep.append(bytearray(size))
        except MemoryError:
            if size < 64: raise
            size //= 2
f()
"""
        self.error(code, "MemoryError")

    def test_bounded(self):
        error = self.error("raise ValueError('x' * 10**6)", "ValueError", repr_chars=1000)
        self.assertLessEqual(len(error["traceback"]), 1000)
        self.assertLessEqual(len(error["message"]), 1000)
        self.assertTrue(error["traceback"].startswith("Traceback"))
        self.assertIn("characters left out]", error["traceback"])
        done = self.execute("raise ValueError('x' * 10**6)", repr_chars=1000)
        self.assertGreater(done["truncated"]["traceback"], 999_000)


class Hostile(RunnerCase):
    def test_exceptions_that_fight_back(self):
        bodies = {
            "str": "def __str__(s): raise SystemExit",
            "str loops": "def __str__(s): return str(s)",
            "str is no str": "def __str__(s): return 5",
            "surrogates": "def __str__(s): return '\\ud800'",
            "repr": "def __repr__(s): raise ValueError",
            "getattribute": "def __getattribute__(s, n): raise KeyboardInterrupt",
            "cause": "__cause__ = property(lambda s: 1/0)",
            "context": "__context__ = property(lambda s: s)",
            "notes": "__notes__ = property(lambda s: 1/0)",
            "notes is no list": "__notes__ = 5",
            "traceback": "__traceback__ = 5",
            "class": "__class__ = property(lambda s: 1/0)",
            "suppress": "__suppress_context__ = property(lambda s: 1/0)",
            "args": "args = property(lambda s: 1/0)",
            "module": "__module__ = 5",
            "tracer": "def __str__(s):\n    import sys\n    sys.settrace(lambda *a: 1/0)\n    sys.setprofile(lambda *a: 1/0)\n    return 'x'",
        }
        for name, body in bodies.items():
            with self.subTest(name):
                error = self.error(f"class Evil(Exception):\n  {body}\nraise Evil('x')", "Evil")
                self.assertIn("Evil", error["traceback"])
        self.assertEqual(self.value("1 + 1"), 2)

    def test_cycles(self):
        self.error(
            "a = ValueError('a')\nb = KeyError('b')\na.__cause__ = b\nb.__cause__ = a\nraise a", "ValueError"
        )
        self.error("a = ValueError('a')\na.__context__ = a\nraise a", "ValueError")
        chain = "e = None\nfor n in range(5000):\n  x = ValueError(n)\n  x.__cause__ = e\n  e = x\nraise e"
        self.error(chain, "ValueError")

    def test_metaclass(self):
        code = """
class Meta(type):
    __name__ = __module__ = property(lambda c: 1/0)
class Evil(Exception, metaclass=Meta): pass
raise Evil
"""
        self.error(code, "Evil")

    def test_odd_syntax_errors(self):
        for args in (
            "'m', 5",
            "'m', ('f', 1, 1, 'text')",
            "'m', ('f', 'x', None, 7)",
            "5, (None, None, None, None)",
        ):
            with self.subTest(args):
                self.assertIn("error", self.execute(f"raise SyntaxError({args})"))

    def test_other_threads_errors_go_to_stderr(self):
        self.value("import threading\nt = threading.Thread(target=lambda: 1/0)\nt.start()\nt.join()")
        self.assertIn("ZeroDivisionError", self.finish()[1])


if __name__ == "__main__":
    unittest.main()
