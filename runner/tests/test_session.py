"""A session without IPython: what stays from turn to turn, what its shell does, tools, survival."""

import unittest

from harness import CAPS, DEADLINE, PLAIN, PRELOADED, Runner, SessionCase, fixture

TOOL = fixture("request_execute")["tools"][0]
OTHER = fixture("request_execute")["tools"][1]


def answer_with(value):
    def answer(call):
        return {
            "type": "tool_result",
            "call_id": call["call_id"],
            "ok": {"kind": "json", "value": value},
        }

    return answer


class Names(SessionCase):
    def test_everything_stays(self):
        self.execute("import math\nx = [1]\ndef f(): return x\nclass C: pass\nc = C()")
        self.execute("x.append(2)")
        self.assertEqual(self.value("[f(), math.floor(2.5), type(c) is C]"), [[1, 2], 2, True])
        self.execute("del x")
        self.assertIn("'x'", self.error("f()", "NameError")["message"])
        self.execute("def f(): return 'redefined'\nclass C: pass")
        self.assertEqual(self.value("[f(), type(c) is C]"), ["redefined", False])

    def test_main_is_one_module(self):
        self.execute("import sys, __main__\nfirst = sys.modules['__main__']")
        self.assertIs(self.value("first is sys.modules['__main__'] is __main__"), True)
        self.assertEqual(self.value("__name__, first.__name__"), ["__main__"] * 2)
        code = "import pickle\nclass P:\n    x = 3\ndata = pickle.dumps(P())"
        self.execute(code)
        self.assertEqual(self.value("pickle.loads(data).x"), 3)

    def test_history(self):
        self.value("5")
        self.value("6")
        self.execute("x = 1")
        self.assertEqual(self.value("[_, __, ___]"), [6, 5, ""])
        self.assertEqual(self.value("Out[1], Out[2], _1, _2"), [5, 6, 5, 6])
        self.assertEqual(self.value("In[3]"), "x = 1")
        self.assertEqual(self.value("sorted(Out)"), [1, 2, 4, 5, 6])
        self.execute("7;")
        self.assertEqual(self.value("_"), [1, 2, 4, 5, 6])
        self.execute("_ = 'mine'\n8")
        self.assertEqual(self.value("_"), "mine")

    def test_future_statements_stay(self):
        self.execute("from __future__ import annotations")
        self.assertEqual(self.value("def f(x: nope): pass\nf.__annotations__"), {"x": "nope"})

    def test_values_are_those_of_a_stateless_turn(self):
        stateless = Runner()
        self.addCleanup(stateless.close)
        for code in (
            "1 + 1",
            "None",
            "x = 1",
            "(1, {2, 3}, {'a': b'x'}, float('nan'))",
            "list(range(100000))",
            "'x' * 100000",
            "import decimal; decimal.Decimal('1.10')",
            "class R:\n  def __repr__(s): return 'r'\n  def _repr_html_(s): return '<b>'\nR()",
            "class B:\n  def __repr__(s): raise ValueError\nB()",
            "import dataclasses\n@dataclasses.dataclass\nclass D:\n  a: int\nD(1)",
            "[i for i in range(3)];",
        ):
            caps = {"result_bytes": 5000, "repr_chars": 500}
            with self.subTest(code=code):
                self.assertEqual(self.execute(code, **caps), stateless.execute(code, **caps))

    def test_what_is_set_in_the_interpreter_stays(self):
        code = "import sys, signal\nsys.setrecursionlimit(5000)\nseen = []\nsignal.signal(signal.SIGUSR1, lambda *a: seen.append(1))"
        self.execute(code)
        code = "import os\nos.kill(os.getpid(), signal.SIGUSR1)\n[sys.getrecursionlimit(), seen]"
        self.assertEqual(self.value(code), [5000, [1]])
        self.execute("signal.signal(signal.SIGINT, signal.SIG_IGN); sys.setrecursionlimit(60)")
        self.assertIs(self.value("signal.getsignal(signal.SIGINT) is signal.default_int_handler"), True)

    def test_a_session_is_started_once_and_says_so_again(self):
        self.execute("x = 1")
        self.assertEqual(
            self.runner.ask({"type": "start_session"}), {"type": "session_started", "shell": "plain"}
        )
        self.assertEqual(self.value("x"), 1)

    def test_another_request_ends_it(self):
        self.runner.send({"type": "mystery"})
        self.assertIsNone(self.runner.receive())
        self.assertEqual(self.runner.process.wait(DEADLINE), 70)

    def test_a_thousand_turns_leave_no_descriptor_and_no_thread(self):
        count = "import os\n[len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task'))]"
        before = self.value(count)
        for number in range(1000):
            self.value(str(number))
        self.assertEqual(self.value(count), before)


class Shell(SessionCase):
    def test_errors_show_the_lines_of_their_turn(self):
        self.execute("def f():\n    return 1 / 0  # here")
        traceback = self.error("x = 2\nf()", "ZeroDivisionError")["traceback"]
        self.assertIn('File "<execution 2>", line 2, in <module>\n    f()', traceback)
        self.assertIn('File "<execution 1>", line 2, in f\n    return 1 / 0  # here', traceback)
        self.assertNotIn("mcp_forge_runner", traceback)
        self.assertEqual(self.value("1"), 1)

    def test_sources_are_found(self):
        self.execute("def f():\n    return 5")
        self.assertEqual(self.value("import inspect\ninspect.getsource(f)"), "def f():\n    return 5\n")

    def test_magics_are_a_syntax_error_with_a_hint(self):
        for code in ("%timeit 1", "!ls", "len?", "%%bash\nls"):
            self.assertIn("needs IPython", self.error(code, "SyntaxError")["message"])
        self.assertNotIn("IPython", self.error("x = = 1", "SyntaxError")["message"])

    def test_the_end_of_a_cell_is_not_the_end_of_the_session(self):
        self.execute("x = 1")
        for code in ("exit()", "quit()", "import sys; sys.exit(3)", "raise SystemExit('bye')"):
            self.error(code, "SystemExit")
        self.assertEqual(self.value("x"), 1)

    def test_input(self):
        self.assertIn("nobody can answer", self.error("input('name?')", "EOFError")["message"])
        self.error("import getpass; getpass.getpass()", "EOFError")

    def test_output_and_displays(self):
        self.value("import sys\nprint('out'); print('err', file=sys.stderr)\nsys.stdout.write('partial')")
        self.execute("display({'text/html': '<b>'}, raw=True)")
        self.assertEqual(self.runner.displays[0]["data"], {"text/html": "<b>"})
        self.execute("sys.stdout.close()\nprint('still there')")
        out, err = self.finish()
        self.assertEqual((out, err), ("out\npartialstill there\n", "err\n"))

    def test_output_can_be_replaced(self):
        self.execute("import io, sys\nkeep, sys.stdout = sys.stdout, io.StringIO()\nprint('caught')")
        self.assertEqual(self.value("sys.stdout.getvalue()"), "caught\n")
        self.execute("sys.stdout = keep\nprint('back')")
        self.assertEqual(self.finish()[0], "back\n")

    def test_forked_children(self):
        code = "import os\npid = os.fork()\nif pid: status = os.waitpid(pid, 0)[1]\nelse: print('child')"
        self.execute(code)
        self.assertTrue(self.runner.silent())
        code = "import asyncio\nawait asyncio.sleep(0)\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n7"
        self.assertEqual(self.value(code), 7)
        code = "import multiprocessing as mp\ndef g(x): return x + 1\nwith mp.get_context('fork').Pool(2) as p: r = p.map(g, [1, 2])\nr"
        self.assertEqual(self.value(code), [2, 3])
        self.assertEqual(self.finish(), ("child\n", ""))


class Tools(SessionCase):
    def test_the_grant_of_each_turn(self):
        call = "files_search(query='a')"
        self.assertEqual(self.value(call, tools=[TOOL], answer=answer_with(1)), 1)
        self.error(call, "NameError")
        self.assertEqual(self.value(call, tools=[TOOL, OTHER], answer=answer_with(2)), 2)
        self.error("files_roots", "NameError", tools=[TOOL])
        ids = [call["call_id"] for call in self.runner.calls]
        self.assertEqual(len(set(ids)), len(ids))

    def test_the_module_and_functions_of_earlier_turns_see_the_grant(self):
        self.execute("import mcp_forge\ndef search(): return files_search(query='b')", tools=[TOOL])
        self.assertEqual(self.value("mcp_forge.tools()"), [])
        self.error("search()", "NameError")
        self.assertEqual(self.value("search()", tools=[TOOL], answer=answer_with(3)), 3)
        self.assertEqual(len(self.value("mcp_forge.tools()", tools=[TOOL, OTHER])), 2)

    def test_a_name_of_the_users_stays(self):
        self.execute("files_search = 'mine'", tools=[TOOL])
        self.assertEqual(self.value("files_search", tools=[TOOL]), "mine")
        self.assertEqual(self.value("files_search"), "mine")
        code = "import mcp_forge\nmcp_forge.files_search(query='c')"
        self.assertEqual(self.value(code, tools=[TOOL], answer=answer_with(4)), 4)
        self.execute("del files_search", tools=[TOOL])
        self.assertEqual(self.value("files_search(query='d')", tools=[TOOL], answer=answer_with(5)), 5)
        self.execute("files_roots = None")
        self.assertIsNone(self.value("files_roots", tools=[OTHER]))

    def test_a_late_answer_reaches_nobody(self):
        self.execute("import threading\nresults = []")
        code = """
def late():
    try: results.append(files_search(query='x'))
    except ToolError as e: results.append(e.kind)
thread = threading.Thread(target=late); thread.start()
import time
while not sent.is_file(): time.sleep(.01)
"""
        self.execute("import pathlib\nsent = pathlib.Path('sent')")
        self.runner.start(code, [TOOL])
        call = self.runner.receive()
        self.execute_touch()
        self.assertEqual(self.runner.receive()["type"], "done")
        self.runner.send(answer_with("too late")(call))
        code = "thread.join()\n[results, files_search(query='y')]"
        self.assertEqual(
            self.value(code, tools=[TOOL], answer=answer_with("mine")), [["timeout"], "mine"]
        )

    def execute_touch(self):
        import pathlib

        (pathlib.Path(self.runner.directory.name) / "sent").touch()

    def test_threads_of_an_earlier_turn_cannot_call(self):
        code = """
import threading
begin, results = threading.Event(), []
def late():
    begin.wait()
    try: files_search(query='x')
    except ToolError as e: results.append(str(e))
thread = threading.Thread(target=late); thread.start()
"""
        self.execute(code, tools=[TOOL])
        message = self.value("begin.set(); thread.join(); results[0]", tools=[TOOL])
        self.assertIn("the turn is over", message)
        self.assertEqual(self.runner.calls, [])

    def test_the_calls_of_an_interrupted_turn_are_forgotten(self):
        self.runner.start("files_search(query='x')", [TOOL])
        call = self.runner.receive()
        self.runner.interrupt()
        self.assertEqual(self.runner.receive()["error"]["type"], "KeyboardInterrupt")
        self.runner.send(answer_with("too late")(call))
        self.assertEqual(self.value("files_search(query='y')", tools=[TOOL], answer=answer_with(1)), 1)


class Survival(SessionCase):
    """What code does to the interpreter must not end the session or lose its variables."""

    BREAKS = (
        "import sys\nsys.modules.clear()",
        "import builtins\nfor n in list(vars(builtins)):\n  if n not in ('vars', 'list', 'delattr'): delattr(builtins, n)",
        "import os, posix\nos.write = posix.write = os.read = posix.read = os.getpid = posix.getpid = None",
        "import sys\nsys.stdout = sys.stderr = sys.stdin = None",
        "import sys\ndel sys.stdout, sys.__stdout__",
        "import os\nfor n in range(3): os.close(n)",
        "import sys\nsys.settrace(lambda f, *a: None if 'execution' in f.f_code.co_filename else 1 / 0)",
        "import sys\nsys.setprofile(lambda *a: None)",
        "import sys\nsys.setrecursionlimit(60)",
        "import signal\ndef h(*a): raise SystemExit\nsignal.signal(signal.SIGALRM, h); signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)",
        "import sys\nsys.meta_path.clear(); sys.path_hooks.clear(); sys.path.clear()",
        "import sys\nsys.modules['__main__'] = None",
        "import sys\nfor n in list(sys.modules):\n  if 'mcp_forge' in n: del sys.modules[n]",
        "import threading, time\nfor n in range(3): threading.Thread(target=lambda: [time.sleep(.01) for _ in range(10**9)]).start()",
        "import asyncio\nasyncio.get_event_loop_policy().new_event_loop().close(); await asyncio.sleep(0); asyncio.get_running_loop().stop()",
        "import _thread, contextvars, select\n_thread.start_new_thread = select.poll = None",
    )

    def test_the_next_turns(self):
        for code in self.BREAKS:
            with self.subTest(code):
                self.runner.close()
                self.setUp()
                self.execute("kept = 5")
                self.execute(code)
                self.assertEqual(self.value("kept"), 5)
                self.assertIn("kept", [v["name"] for v in self.runner.inspect()["variables"]])

    def test_death_is_seen(self):
        self.runner.start("import os; os._exit(3)")
        self.assertIsNone(self.runner.receive())
        self.assertEqual(self.runner.process.wait(DEADLINE), 3)

    def test_memory_error(self):
        self.execute("kept = 5")
        self.error("x = ' ' * 10**15", "MemoryError")
        self.assertEqual(self.value("kept"), 5)


class Preloaded(Shell):
    """The same where the shell was made before the process was forked."""

    BOOTSTRAP = PLAIN.split("\n", 1)[0] + PRELOADED

    def test_it_serves_turns_without_a_session_as_well(self):
        runner = Runner(self.BOOTSTRAP)
        self.addCleanup(runner.close)
        self.assertEqual(runner.execute("x = 1; x")["result"], 1)
        self.assertEqual(runner.execute("x")["error"]["type"], "NameError")
        runner.send({"type": "start_session"})
        self.assertEqual(runner.receive()["shell"], "plain")
        runner.send({"type": "execute", "code": "y = 1; y", "tools": [], "caps": CAPS})
        self.assertEqual(runner.receive()["result"], 1)


if __name__ == "__main__":
    unittest.main()
