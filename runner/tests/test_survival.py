"""The turn is reported, and the next one works, whatever user code does to the interpreter."""

import signal
import time
import unittest

from harness import DEADLINE, RunnerCase


class Interpreter(RunnerCase):
    """Code that breaks something, ends in `'end'`, and must be reported all the same."""

    BREAKS = {
        "modules": "import sys\nsys.modules.clear()",
        "modules rebound": "import sys\nsys.modules = {}",
        "len": "import builtins\ndel builtins.len",
        "all builtins": "import builtins\nfor n in list(vars(builtins)):\n  if n not in ('vars', 'list'): delattr(builtins, n) if n != 'delattr' else 0",
        "print and open": "import builtins\nbuiltins.print = builtins.open = builtins.__import__ = None",
        "json": "import json\njson.dumps = json.loads = None",
        "os": "import os, posix\nos.write = posix.write = os.read = posix.read = os.getpid = posix.getpid = None",
        "sys": "import sys\nsys.exit = sys.settrace = sys.setprofile = sys.setrecursionlimit = None",
        "time": "import time\ntime.time = time.monotonic = None",
        "streams": "import sys\nsys.stdout = sys.stderr = sys.stdin = None",
        "streams deleted": "import sys\ndel sys.stdout, sys.stderr, sys.__stdout__",
        "streams closed": "import sys\nsys.stdout.close(); sys.stderr.close()",
        "streams replaced": "import sys\nclass S:\n  def __getattr__(s, n): raise SystemExit\nsys.stdout = sys.stderr = S()",
        "descriptors": "import os\nfor n in range(3): os.close(n)",
        "descriptors swapped": "import os\nfor n in range(3): os.dup2(os.open('/dev/null', os.O_RDWR), n)",
        "tracer": "import sys\nsys.settrace(lambda f, *a: None if 'execution' in f.f_code.co_filename else 1 / 0)",
        "profiler": "import sys, time\nsys.setprofile(lambda *a: None)",
        "frame tracer": "import sys\ndef t(f, *a):\n  if 'execution' not in f.f_code.co_filename: raise SystemExit\nf = sys._getframe()\nwhile f:\n  f.f_trace = t\n  f = f.f_back\nsys.settrace(t)",
        "thread tracers": "import threading\nthreading.settrace(lambda *a: 1 / 0); threading.setprofile(lambda *a: 1 / 0)",
        "monitoring": "import sys\nif hasattr(sys, 'monitoring'):\n  m = sys.monitoring\n  m.use_tool_id(3, 'x')\n  def boom(c, *a):\n    if 'execution' not in c.co_filename: raise SystemExit\n  m.register_callback(3, m.events.PY_START, boom)\n  m.set_events(3, m.events.PY_START)\n0 if True else 0",
        "recursion limit": "import sys\nsys.setrecursionlimit(10**9)",
        "low recursion limit": "import sys\nsys.setrecursionlimit(60)",
        "switch interval": "import sys\nsys.setswitchinterval(1e9)",
        "collector": "import gc\ngc.disable(); gc.set_threshold(1); gc.callbacks.append(lambda *a: 1 / 0)",
        "alarm": "import signal\ndef h(*a): raise SystemExit\nsignal.signal(signal.SIGALRM, h); signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)",
        "alarm without handler": "import signal\nsignal.setitimer(signal.ITIMER_REAL, 30)",
        "signals": "import signal\nfor n in set(signal.valid_signals()) - {9, 19}:\n  try: signal.signal(n, lambda *a: 1 / 0)\n  except OSError: pass",
        "blocked signals": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
        "meta path": "import sys\nsys.meta_path.clear(); sys.path_hooks.clear(); sys.path.clear(); sys.path_importer_cache.clear()",
        "import hook": "import sys\nclass F:\n  def find_spec(s, *a): raise SystemExit\nsys.meta_path.insert(0, F())",
        "hooks": "import sys\nsys.excepthook = sys.unraisablehook = sys.displayhook = sys.breakpointhook = None",
        "audit": "import sys\nsys.addaudithook(lambda *a: None)",
        "warnings": "import warnings\nwarnings.simplefilter('error')",
        "atexit": "import atexit, os\natexit.register(os._exit, 9)",
        "main": "import sys\nsys.modules['__main__'] = None",
        "runner": "import sys\nfor n in list(sys.modules):\n  if 'mcp_forge' in n: del sys.modules[n]",
        "directory": "import os, tempfile\nd = tempfile.mkdtemp()\nos.chdir(d); os.rmdir(d)",
        "environment": "import os\nos.environ.clear()",
        "threads": "import threading, time\nfor n in range(5): threading.Thread(target=lambda: [time.sleep(.01) for _ in range(10**9)]).start()",
        "busy thread": "import threading\ndef f():\n  while True: pass\nthreading.Thread(target=f).start()",
        "globals": "globals().clear()",
    }

    def test_value_and_error(self):
        for name, code in self.BREAKS.items():
            for last, kind in (
                ("'end'", None),
                ("(lambda: 1 // 0)()", "ZeroDivisionError"),
                ("[[{1: 'end'}]]", None),
            ):
                with self.subTest(name, last=last):
                    self.runner.close()
                    self.setUp()
                    done = self.runner.execute(f"{code}\n{last}")
                    self.assertIsNotNone(done, self.runner.stderr)
                    if name == "alarm" and done.get("error", {}).get("type") == "SystemExit":
                        continue  # the code had no processor for a moment, so it was its own to bear
                    if kind is None:
                        self.assertIn("end", repr(done.get("result")), done)
                    else:
                        self.assertEqual(done["error"]["type"], kind, done["error"])
                        self.assertIn(f"line {code.count(chr(10)) + 2}", done["error"]["traceback"])
                        self.assertNotIn("mcp_forge_runner", done["error"]["traceback"])

    def test_the_next_turn(self):
        for name in (
            "modules",
            "len",
            "streams",
            "descriptors",
            "tracer",
            "alarm",
            "meta path",
            "recursion limit",
            "main",
            "signals",
        ):
            with self.subTest(name):
                self.runner.close()
                self.setUp()
                self.runner.execute(self.BREAKS[name])
                self.assertEqual(self.runner.execute("5")["result"], 5)

    def test_audit_hook_that_refuses_everything(self):
        done = self.runner.execute("import sys\ndef h(*a): raise SystemExit\nsys.addaudithook(h)\n'end'")
        self.assertEqual(done["type"], "done")

    def test_interrupt_is_an_error_of_the_code(self):
        self.runner.start("print('on')\nwhile True: pass")
        while "on" not in self.runner.stdout:
            time.sleep(0.01)
        self.runner.process.send_signal(signal.SIGINT)
        self.assertEqual(self.runner.until_done()["error"]["type"], "KeyboardInterrupt")
        # Between turns it means nothing.
        self.runner.process.send_signal(signal.SIGINT)
        self.assertEqual(self.execute("5")["result"], 5)

    def test_the_control_socket_is_gone(self):
        for code in (
            "import os\nos.closerange(3, 300)",
            "import os\nfor n in range(3, 300):\n  try: os.dup2(1, n)\n  except OSError: pass",
        ):
            self.runner.start(code)
            self.assertIsNone(self.runner.until_done())
            self.assertEqual(
                self.runner.process.wait(DEADLINE), 71 if "close" in code else self.runner.process.returncode
            )
            self.runner.close()
            self.setUp()

    def test_death(self):
        for code, status in (
            ("import os; os._exit(0)", 0),
            ("import os; os.abort()", -signal.SIGABRT),
            ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
            ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
        ):
            with self.subTest(code):
                self.runner.start(code)
                self.assertIsNone(self.runner.until_done())
                self.assertEqual(self.runner.process.wait(DEADLINE), status)
                self.runner.close()
                self.setUp()


class Processes(RunnerCase):
    def test_a_forked_child_that_runs_to_the_end(self):
        for ending, status in (
            ("", 0),
            ("if not pid: raise SystemExit(5)", 5),
            ("if not pid: 1/0", 1),
            ("if not pid: sys.exit('x')", 1),
        ):
            code = f"import os, sys\nprint('before')\npid = os.fork()\n{ending}\nif pid: status = os.waitpid(pid, 0)[1]\nos.WEXITSTATUS(status) if pid else 'child'"
            with self.subTest(ending):
                self.assertEqual(self.value(code), status)
                self.assertTrue(self.runner.silent())
        out, err = self.finish()
        self.assertEqual(out, "before\n" * 4)
        self.assertIn("ZeroDivisionError", err)

    def test_a_forked_child_in_await(self):
        code = "import asyncio, os\nawait asyncio.sleep(0)\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n7"
        self.assertEqual(self.value(code), 7)
        self.assertTrue(self.runner.silent())
        self.assertEqual(self.finish(), ("", ""))

    def test_multiprocessing(self):
        code = """
import multiprocessing as mp
def square(x):
    return x * x
if __name__ == '__main__':
    context = mp.get_context({!r})
    with context.Pool(2) as pool:
        result = pool.map(square, range(5))
    queue = context.Queue()
    process = context.Process(target=queue.put, args=('from a child',))
    process.start()
    got = queue.get(timeout=60)
    process.join()
[result, got] if __name__ == '__main__' else None
"""
        for method in ("fork", "spawn", "forkserver"):
            with self.subTest(method):
                self.assertEqual(self.value(code.format(method)), [[0, 1, 4, 9, 16], "from a child"])
                self.assertTrue(self.runner.silent())

    def test_executors(self):
        code = """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing as mp
def f(x): return x + 1
if __name__ == '__main__':
    with ProcessPoolExecutor(2, mp_context=mp.get_context('spawn')) as pool:
        out = list(pool.map(f, range(3)))
"""
        self.assertEqual(self.value(code + "\nout if __name__ == '__main__' else None"), [1, 2, 3])

    def test_file_exists_only_when_children_need_it(self):
        self.error("__file__", "NameError")
        self.assertIs(self.value("import multiprocessing.spawn, os\nos.path.exists(__file__)"), True)

    def test_subprocesses(self):
        code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True, text=True).stdout"
        self.assertEqual(self.value(code), "5\n")
        self.assertEqual(self.value("import os; os.system('exit 3') >> 8"), 3)
        self.assertEqual(
            self.value("import asyncio\np = await asyncio.create_subprocess_exec('true')\nawait p.wait()"), 0
        )


if __name__ == "__main__":
    unittest.main()
