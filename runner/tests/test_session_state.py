"""What a session says of itself, its files, and its branches."""

import base64
import os
import pathlib
import socket
import time
import unittest

from harness import SessionCase, fixture, need

EVIL = """
import sys
class Meta(type):
    def __getattribute__(cls, name): boom()
    def __instancecheck__(cls, x): boom()
    def __repr__(cls): boom()
    def __eq__(cls, x): boom()
    def __hash__(cls): boom()
    @property
    def __module__(cls): boom()
def boom():
    print('USER CODE RAN')
    raise SystemExit
class Evil(metaclass=Meta):
    def __getattribute__(self, name): boom()
    def __getattr__(self, name): boom()
    def __repr__(self): boom()
    def __str__(self): boom()
    def __len__(self): boom()
    def __iter__(self): boom()
    def __eq__(self, other): boom()
    def __hash__(self): boom()
    def __sizeof__(self): boom()
    def __bool__(self): boom()
    def __del__(self): pass
    __class__ = property(lambda self: boom())
    __dict__ = property(lambda self: boom())
class EvilDict(dict):
    def __len__(self): boom()
    def __iter__(self): boom()
    def items(self): boom()
    def __repr__(self): boom()
    def __sizeof__(self): boom()
class EvilList(list):
    def __len__(self): boom()
    def __iter__(self): boom()
    def __repr__(self): boom()
class EvilStr(str):
    def __repr__(self): boom()
    def __str__(self): boom()
    def __len__(self): boom()
    def __hash__(self): return 1
    def __eq__(self, o): return False
class EvilInt(int):
    def __repr__(self): boom()
    def __index__(self): boom()
evil = Evil()
evil_dict, evil_list, evil_str, evil_int = EvilDict(a=1), EvilList([1]), EvilStr('x'), EvilInt(5)
inside = [evil, {'k': evil}, (evil,), evil_int]
impostor = type('DataFrame', (), {'__module__': 'pandas.core.frame'})()
impostor._mgr = evil
array = type('ndarray', (), {'__module__': 'numpy', 'shape': property(lambda s: boom())})()
liar = type('Liar', (), {'__module__': evil, '__qualname__': 'Liar'})
named = liar()
import threading
class EvilThread(threading.Thread):
    name = property(lambda self: boom(), lambda self, value: None)
go = threading.Event()
EvilThread(target=go.wait, daemon=True).start()
globals()['no name'] = 1
globals()[7] = 1
globals()['\\ud800'] = 1
globals()['long' * 1000] = 1
"""


def variables(answer):
    return {entry["name"]: entry for entry in answer["variables"]}


class AfterATurn(SessionCase):
    """A turn that is to tell what the session holds, without being asked again."""

    BOUNDS = {"variables": 0, "repr_chars": 120, "files": 3, "budget_ms": 5000}

    def run_and_tell(self, code, **bounds):
        request = fixture("request_execute_in_session")
        self.runner.send({**request, "code": code, "inspect": {**self.BOUNDS, **bounds}})
        done = self.runner.until_done()
        told = self.runner.receive()
        self.assertEqual(told["type"], "inspected")
        return done, told

    def test_the_end_tells_of_files_and_then_of_names(self):
        done, told = self.run_and_tell("x = open('a', 'w').write('abc')\ny = 2")
        self.assertEqual([(file["path"], file["size"]) for file in done["files"]], [("a", 3)])
        self.assertEqual(done["files"], told["files"])
        self.assertEqual(sorted(told["changes"]["added"]), ["x", "y"])
        self.assertEqual((told["variables"], told["omitted_variables"]), ([], 2))
        # What follows is a session's usual way.
        self.assertEqual(self.value("x + y"), 5)
        self.assertEqual(len(self.runner.inspect()["variables"]), 2)

    def test_what_is_not_known_at_the_end_is_told_after_it(self):
        done, told = self.run_and_tell("for name in 'abcd': open(name, 'w').close()")
        self.assertNotIn("files", done)
        self.assertEqual((len(told["files"]), told["omitted_files"]), (3, 1))

    def test_nobody_is_told_who_did_not_ask(self):
        done = self.runner.execute("open('a', 'w').close()")
        self.assertNotIn("files", done)
        self.assertEqual(self.runner.ask({"type": "start_session"})["type"], "session_started")


class Inspection(SessionCase):
    def test_facts(self):
        self.execute("n = 5\nt = 'abc'\nl = [1, [2]]\nd = {'a': 1}\nf = 1.5\nnothing = None", execution_id="one")
        self.execute("class Model: pass\nm = Model()\ndef clean(x): return x\nimport os.path as p, math\nfrom collections import Counter\nfrom os.path import join")
        answer = self.runner.inspect()
        self.assertEqual(answer.keys(), fixture("event_inspected").keys())
        found = variables(answer)
        self.assertEqual(
            {name: (entry["type"], entry.get("length"), entry.get("repr")) for name, entry in found.items()},
            {
                "n": ("int", None, "5"),
                "t": ("str", 3, "'abc'"),
                "l": ("list", 2, "[1, [2]]"),
                "d": ("dict", 1, "{'a': 1}"),
                "f": ("float", None, "1.5"),
                "nothing": ("NoneType", None, "None"),
                "m": ("Model", None, None),
            },
        )
        self.assertEqual((found["n"]["execution_id"], found["m"]["execution_id"]), ("one", "e2"))
        self.assertTrue(all(entry["memory_bytes"] > 0 for entry in found.values()))
        self.assertEqual((answer["functions"], answer["classes"]), (["clean"], ["Model"]))
        self.assertEqual(
            answer["imports"],
            {"p": "posixpath", "math": "math", "Counter": "collections.Counter", "join": "posixpath.join"},
        )

    def test_the_shells_and_the_tools_names_are_not_the_users(self):
        self.value("5", tools=[fixture("request_execute")["tools"][0]])
        answer = self.runner.inspect()
        self.assertEqual((answer["variables"], answer["functions"], answer["imports"]), ([], [], {}))

    def test_newest_first_and_the_turn_that_bound_last(self):
        self.execute("a = 1; b = 2; c = []", execution_id="one")
        self.execute("b = 3", execution_id="two")
        self.execute("c.append(1); a", execution_id="three")
        self.execute("b = 3", execution_id="four")
        found = self.runner.inspect()["variables"]
        self.assertEqual([entry["name"] for entry in found], ["b", "c", "a"])
        self.assertEqual([entry["execution_id"] for entry in found], ["four", "one", "one"])

    def test_objects_that_get_the_same_address(self):
        self.execute("x = [1]; y = 1.5; z = {1}\nclass C: pass\nw = C()", execution_id="one")
        self.execute("x = None; x = [2]\ny = None; y = 2.5\nz = None; z = {2}\nw = None; w = C()", execution_id="two")
        self.assertEqual({e["execution_id"] for e in self.runner.inspect()["variables"]}, {"two"})

    def test_changes_since_the_inspection_before(self):
        self.execute("a = 1; b = 2; c = 3")
        self.assertEqual(
            self.runner.inspect()["changes"], {"added": ["c", "b", "a"], "rebound": [], "removed": []}
        )
        self.execute("a = 'new'; del b; d = 4")
        changes = self.runner.inspect()["changes"]
        self.assertEqual(
            (changes["added"], changes["rebound"], changes["removed"]), (["d"], ["a"], ["b"])
        )
        self.assertEqual(self.runner.inspect()["changes"], {"added": [], "rebound": [], "removed": []})

    def test_no_code_of_the_users_runs(self):
        self.execute(EVIL)
        answer = self.runner.inspect()
        found = variables(answer)
        for name, kind in (
            ("evil", "Evil"),
            ("evil_dict", "EvilDict"),
            ("impostor", "pandas.DataFrame"),
            ("array", "numpy.ndarray"),
            ("named", "Liar"),
        ):
            self.assertEqual(found[name]["type"], kind)
            self.assertNotIn("repr", found[name])
        self.assertEqual(found["inside"]["repr"], "[<Evil>, {'k': <Evil>}, (<Evil>,), <EvilInt>]")
        self.assertEqual((found["evil_dict"]["length"], found["evil_str"]["length"]), (1, 1))
        self.assertIn("Evil", answer["classes"])
        self.assertEqual(len(answer["threads"]), 1)
        self.assertEqual(self.value("5"), 5)
        self.assertEqual(self.finish(), ("", ""))

    def test_bounds(self):
        code = "for i in range(300): globals()[f'v{i}'] = 'x' * i\nhuge = 'y' * 10**8\nnested = []\nfor i in range(10000): nested = [nested]\nbig = 10**100000"
        self.execute(code)
        answer = self.runner.inspect(variables=10, repr_chars=30)
        self.assertEqual((len(answer["variables"]), answer["omitted_variables"]), (10, 294))
        self.assertTrue(all(len(entry.get("repr", "")) <= 30 for entry in answer["variables"]))
        late = self.runner.inspect(budget_ms=0)["variables"]
        self.assertEqual(len(late), 304)
        self.assertEqual(late[-1].keys(), {"name", "type", "execution_id"})
        self.assertEqual(len(variables(self.runner.inspect())["huge"]["repr"]), 120)

    def test_files(self):
        code = """
import os, pathlib
pathlib.Path('a').mkdir(); pathlib.Path('a/b.txt').write_text('four'); pathlib.Path('c.csv').write_text('x')
os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'etc'); os.mkfifo('fifo')
"""
        self.execute(code)
        answer = self.runner.inspect()
        self.assertEqual([(f["path"], f["size"]) for f in answer["files"]], [("c.csv", 1), ("a/b.txt", 4)])
        now = time.time_ns()
        self.assertTrue(all(abs(now - f["modified_ns"]) < 600e9 for f in answer["files"]))
        self.execute("for i in range(50): pathlib.Path(f'f{i}').touch()")
        answer = self.runner.inspect(files=10)
        self.assertEqual((len(answer["files"]), answer["omitted_files"]), (10, 42))
        self.execute("d = ''\nfor i in range(40):\n  d += 'd/'; os.mkdir(d)\npathlib.Path(d + 'deep').touch()")
        self.assertNotIn("deep", str(self.runner.inspect()["files"]))

    def test_an_answer_is_never_too_large(self):
        code = "for i in range(2000): globals()[f'v{i}'] = '\\u20ac' * 20000"
        self.execute(code)
        answer = self.runner.inspect(repr_chars=10_000)
        self.assertEqual(len(answer["variables"]), 2000)
        self.assertGreater(len(answer["variables"][0]["repr"]), 9000)
        self.assertNotIn("repr", answer["variables"][-1])

    def test_a_large_directory_is_not_read_to_its_end(self):
        self.execute("import pathlib\nfor i in range(5000): pathlib.Path(f'f{i}').touch()")
        answer = self.runner.inspect(files=10)
        self.assertEqual(len(answer["files"]), 10)
        self.assertLess(answer["omitted_files"], 2000)

    def test_threads(self):
        code = "import threading\nstop = threading.Event()\nt = threading.Thread(target=stop.wait, name='worker \\ud800'); t.start()"
        self.execute(code)
        self.assertEqual(self.runner.inspect()["threads"], ["worker \\ud800"])
        self.execute("stop.set(); t.join()")
        self.assertEqual(self.runner.inspect()["threads"], [])

    @need("numpy", "pandas")
    def test_arrays_and_frames(self):
        code = """
import numpy as np, pandas as pd
a = np.zeros((3, 4)); s = np.float32(1.5); text = np.array(['abc']); when = np.array(['2020-01-01'], dtype='M8[ns]')
df = pd.DataFrame({'a': [1, 2], 'b': [1.5, None], 'c': pd.Categorical(['u', 'v']), 'd': pd.array([1, None], dtype='Int64'), 5: [True, False]})
words = pd.DataFrame({'w': ['x', 'y']}, index=['p', 'q'])
series = df['a']
multi = df.set_index(['a', 'b'])
wide = pd.DataFrame(np.zeros((2, 300)))
objects = np.array([object()], dtype=object)
"""
        self.execute(code)
        found = variables(self.runner.inspect())
        self.assertEqual((found["a"]["type"], found["a"]["shape"]), ("numpy.ndarray", [3, 4]))
        self.assertEqual((found["a"]["dtypes"], found["a"]["memory_bytes"]), ({"": "float64"}, 96))
        self.assertEqual((found["s"]["type"], found["s"]["repr"]), ("numpy.float32", "1.5"))
        self.assertEqual(found["text"]["dtypes"], {"": "<U3"})
        self.assertEqual(found["when"]["dtypes"], {"": "datetime64[ns]"})
        self.assertEqual(found["objects"]["dtypes"], {"": "object"})
        df = found["df"]
        self.assertEqual((df["type"], df["shape"], df["columns"], df["length"]), ("pandas.DataFrame", [2, 5], 5, 2))
        self.assertEqual(
            df["dtypes"], {"a": "int64", "b": "float64", "c": "category", "d": "Int64", "5": "bool"}
        )
        self.assertGreater(df["memory_bytes"], 40)
        self.assertEqual(df["repr"], "DataFrame 2 x 5")
        self.assertEqual((found["words"]["shape"], list(found["words"]["dtypes"])), ([2, 1], ["w"]))
        self.assertEqual((found["series"]["type"], found["series"]["shape"]), ("pandas.Series", [2]))
        self.assertEqual(found["multi"]["shape"], [2, 3])
        self.assertEqual((found["wide"]["columns"], len(found["wide"]["dtypes"])), (300, 100))

    @need("numpy", "pandas")
    def test_libraries_that_the_user_changed_are_not_called(self):
        code = """
import numpy as np, pandas as pd
a, df = np.zeros(3), pd.DataFrame({'a': [1]})
def boom(*args, **kwargs):
    import os
    os.write(1, b'USER CODE RAN')
for name in ('shape', 'dtypes', 'columns', 'memory_usage', '__len__', '__repr__', '__getattr__', '_mgr'):
    setattr(pd.DataFrame, name, property(boom))
np.set_printoptions(formatter={'all': boom})
np.ndarray, pd.DataFrame, np.dtype = None, None, None
"""
        self.execute(code)
        found = variables(self.runner.inspect())
        self.assertEqual(found["df"]["shape"], [1, 1])
        self.assertEqual(found["a"]["shape"], [3])
        self.assertEqual(self.finish()[0], "")


class Files(SessionCase):
    def write(self, path, data=b"x", offset=0):
        data = base64.b64encode(data).decode()
        answer = self.runner.ask({"type": "write_file", "path": path, "offset": offset, "data": data})
        self.assertEqual((answer["type"], answer["path"]), ("file_written", path))
        return answer.get("error")

    def read(self, path, offset=0, length=1 << 20):
        answer = self.runner.ask({"type": "read_file", "path": path, "offset": offset, "length": length})
        self.assertEqual((answer["type"], answer["path"], answer["offset"]), ("file_read", path, offset))
        return base64.b64decode(answer["data"]), answer["end"], answer.get("error")

    @property
    def workspace(self):
        return pathlib.Path(self.runner.directory.name)

    def test_the_fixtures(self):
        self.runner.send(fixture("request_write_file"))
        self.assertEqual(self.runner.receive(), fixture("event_file_written"))
        self.runner.send(fixture("request_read_file"))
        self.assertEqual(self.runner.receive(), fixture("event_file_read"))
        self.assertEqual(self.value("open('data/in.csv').read()"), "a,b\n")

    def test_pieces(self):
        data = os.urandom(3 << 20)
        for offset in range(0, len(data), 1 << 20):
            self.assertIsNone(self.write("big", data[offset : offset + (1 << 20)], offset))
        back, offset, end = b"", 0, False
        while not end:
            piece, end, error = self.read("big", offset, 1 << 30)
            self.assertIsNone(error)
            self.assertLessEqual(len(piece), 1 << 20)
            back, offset = back + piece, offset + len(piece)
        self.assertEqual(back, data)
        self.assertIsNone(self.write("big", b"short"))
        self.assertEqual(self.read("big"), (b"short", True, None))
        self.assertEqual(self.read("big", 100), (b"", True, None))
        self.assertIn("cannot begin at 9", self.write("big", b"x", 9))
        self.assertIn("at most", self.write("big", b"x" * ((1 << 20) + 1)))

    def test_paths_that_are_refused(self):
        paths = ("", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", ".", "./a", "a\0b", "x" * 300, "d/" * 100 + "f", "x" * 5000)
        for path in paths:
            with self.subTest(path[:20]):
                self.assertTrue(self.write(path))
                self.assertTrue(self.read(path)[2])
        self.assertEqual(list(self.workspace.iterdir()), [])

    def test_links_are_not_followed(self):
        outside = self.workspace.parent / f"outside-{os.getpid()}"
        outside.mkdir()
        self.addCleanup(lambda: (outside / "secret").unlink() or outside.rmdir())
        (outside / "secret").write_text("secret")
        (self.workspace / "dir").symlink_to(outside)
        (self.workspace / "file").symlink_to(outside / "secret")
        (self.workspace / "loop").symlink_to("loop")
        (self.workspace / "gone").symlink_to(outside / "new")
        for path in ("dir/secret", "dir/new", "file", "loop", "gone"):
            with self.subTest(path):
                self.assertIn("link", self.write(path))
                self.assertIn("link", self.read(path)[2] or "")
        self.assertEqual((outside / "secret").read_text(), "secret")
        self.assertEqual(len(list(outside.iterdir())), 1)

    def test_what_is_no_file(self):
        os.mkfifo(self.workspace / "fifo")
        (self.workspace / "directory").mkdir()
        server = socket.socket(socket.AF_UNIX)
        self.addCleanup(server.close)
        server.bind(str(self.workspace / "socket"))
        for path in ("fifo", "directory", "socket", "missing/file"):
            with self.subTest(path):
                if path != "missing/file":
                    self.assertTrue(self.write(path))
                self.assertTrue(self.read(path)[2])
        self.assertEqual(self.write("directory/sub/new", b"made"), None)
        self.assertEqual(self.read("directory/sub/new"), (b"made", True, None))

    def test_data_that_is_none(self):
        answer = self.runner.ask({"type": "write_file", "path": "a", "offset": 0, "data": "!"})
        self.assertIn("base64", answer["error"])

    def move(self, path, name, replace=False):
        return self.runner.ask({"type": "move_file", "path": path, "name": name, "replace": replace})

    def remove(self, path):
        return self.runner.ask({"type": "remove_file", "path": path})

    def test_files_move_to_their_names(self):
        self.write("data/in.csv", b"old")
        self.write("data/.new", b"new")
        self.runner.send(fixture("request_move_file"))
        self.assertEqual(self.runner.receive(), fixture("event_file_written_exists"))
        self.assertEqual(self.read("data/in.csv")[0], b"old")
        self.assertEqual(self.move("data/.new", "in.csv", True), {"type": "file_written", "path": "data/.new"})
        self.assertEqual(self.move("data/in.csv", "b").get("error"), None)
        self.assertEqual(self.read("data/b")[0], b"new")
        self.assertEqual(self.move("data/none", "c").get("problem"), "missing")
        self.assertEqual(os.listdir(self.workspace / "data"), ["b"])
        for name in ("", ".", "..", "../b", "x/y", "/b", "a\0"):
            with self.subTest(name):
                self.assertTrue(self.move("data/b", name)["error"])
        (self.workspace / "data/directory").mkdir()
        (self.workspace / "data/link").symlink_to("b")
        for name in ("directory", "link"):
            self.assertEqual(self.move("data/b", name).get("problem"), "exists", name)
        self.assertTrue(self.move("data/b", "directory", True)["error"])
        self.assertTrue(self.move("data/link", "other")["error"])
        self.assertIsNone(self.move("data/b", "link", True).get("error"))
        self.assertFalse((self.workspace / "data/link").is_symlink())

    def test_files_are_removed(self):
        self.write("data/in.csv")
        self.runner.send(fixture("request_remove_file"))
        self.assertEqual(self.runner.receive(), fixture("event_file_written"))
        self.assertEqual(self.remove("data/in.csv")["problem"], "missing")
        outside = self.workspace.parent / f"removed-{os.getpid()}"
        outside.mkdir()
        self.addCleanup(lambda: (outside / "kept").unlink() or outside.rmdir())
        (outside / "kept").write_text("kept")
        (self.workspace / "out").symlink_to(outside)
        (self.workspace / "link").symlink_to(outside / "kept")
        for path in ("data", "out", "out/kept", "link", "../x", "/etc/passwd", ""):
            with self.subTest(path):
                self.assertTrue(self.remove(path)["error"])
        self.assertEqual((outside / "kept").read_text(), "kept")

    def test_the_working_directory_does_not_matter(self):
        self.execute("import os; os.chdir('/'); os.environ.clear()")
        self.assertIsNone(self.write("a", b"here"))
        self.assertEqual((self.workspace / "a").read_bytes(), b"here")


class Branches(SessionCase):
    def branch(self):
        answer, branch = self.runner.branch()
        self.assertIsNotNone(branch, answer)
        self.addCleanup(lambda: branch.fds and branch.close())
        return branch

    def test_both_go_on_by_themselves(self):
        self.execute("x = [1]\ndef f(): return x")
        branch = self.branch()
        self.assertEqual(branch.ready.keys(), {"type", "python"})
        self.assertEqual(branch.execute("x.append(2)\nprint('branch')\nf()")["result"], [1, 2])
        self.assertEqual(self.value("print('parent')\nf()"), [1])
        self.assertNotEqual(branch.execute("import os; os.getpid()")["result"], self.runner.process.pid)
        self.assertIs(branch.execute("os.getpid() == os.getsid(0)")["result"], True)
        branch.close()
        self.assertEqual(branch.stdout, "branch\n")
        self.assertEqual(self.value("x"), [1])
        self.assertEqual(self.finish(), ("parent\n", ""))

    def test_the_pid_is_the_branch(self):
        branch = self.branch()
        self.assertEqual(branch.execute("import os; os.getpid()")["result"], branch.pid)
        self.assertEqual(branch.execute("os.getppid()")["result"] == self.runner.process.pid, False)
        branch.start("print('on')\nimport time; time.sleep(600)")
        while b"on" not in os.read(branch.fds["stdout"], 100):
            pass
        branch.interrupt_until_heard()
        self.assertEqual(branch.receive()["error"]["type"], "KeyboardInterrupt")

    def test_it_outlives_its_parent(self):
        self.execute("x = 5")
        branch = self.branch()
        self.runner.close()
        self.assertEqual(branch.execute("x")["result"], 5)

    def test_branches_of_branches(self):
        self.execute("x = 1")
        first = self.branch()
        first.execute("x += 1")
        _, second = first.branch()
        self.addCleanup(second.close)
        self.assertEqual(second.execute("x += 1; x")["result"], 3)
        self.assertEqual(first.execute("x")["result"], 2)

    def test_history_bindings_and_sources_are_copied(self):
        self.execute("def f():\n    return 1 / 0  # here", execution_id="one")
        self.value("7")
        branch = self.branch()
        self.assertEqual(branch.execute("_")["result"], 7)
        self.assertIn("# here", branch.execute("f()")["error"]["traceback"])
        self.assertEqual(branch.ask({"type": "start_session"})["shell"], "plain")
        self.assertEqual(branch.inspect()["functions"], ["f"])

    def test_a_live_thread_is_named(self):
        self.execute("import threading\nstop = threading.Event()\nt = threading.Thread(target=stop.wait, name='Thread-1 (work)'); t.start()")
        answer, branch = self.runner.branch()
        self.assertEqual(answer, fixture("event_branch_refused"))
        self.execute("stop.set(); t.join()")
        self.branch()
        code = "import _thread, time\nbegun = _thread.allocate_lock()\nbegun.acquire()\ndef f():\n    begun.release()\n    time.sleep(600)\n"
        code += "_thread.start_new_thread(f, ())\nbegun.acquire()"
        self.execute(code)
        self.assertEqual(self.runner.branch()[0]["error"], "thread `unnamed` is alive")

    def test_the_loop_is_not_shared(self):
        code = "import asyncio\nticks = []\nasync def f():\n  while True:\n    ticks.append(1); await asyncio.sleep(0.01)\ntask = asyncio.create_task(f())\nawait asyncio.to_thread(int)"
        self.execute(code)
        branch = self.branch()
        count = branch.execute("len(ticks)")["result"]
        self.assertEqual(branch.execute("await asyncio.sleep(0.1)\nlen(ticks)")["result"], count)
        # A task of the parent's stays the parent's: it is refused, and nothing hangs.
        self.assertIn("error", branch.execute("await task"))
        before = self.value("len(ticks)")
        self.assertGreater(self.value("await asyncio.sleep(0.1)\nlen(ticks)"), before)
        branch.close()
        before = self.value("len(ticks)")
        self.assertGreater(self.value("await asyncio.sleep(0.1)\nlen(ticks)"), before)

    def test_a_thread_that_is_slow_to_be_idle_is_waited_for(self):
        """Its result is known before it says that it is idle, and then it may lose the processor."""
        code = """
import asyncio, time
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
release = pool._idle_semaphore.release
def release_late():
    time.sleep(0.3)
    release()
pool._idle_semaphore.release = release_late
asyncio.get_running_loop().set_default_executor(pool)
await asyncio.to_thread(int)
"""
        self.execute(code)
        self.branch()

    def test_hooks_run_and_random_states_differ(self):
        code = "import os, random\nrandom.seed(1)\nseen = []\nos.register_at_fork(after_in_child=lambda: seen.append('child'), after_in_parent=lambda: seen.append('parent'))"
        self.execute(code)
        first, second = self.branch(), self.branch()
        self.assertIn("child", first.execute("seen")["result"])
        numbers = [one.execute("random.random()")["result"] for one in (first, second, self.runner)]
        self.assertEqual(len(set(numbers)), 3)

    def test_no_child_is_left_and_no_descriptor(self):
        self.execute("import os\ndef count(): return len(os.listdir('/proc/self/fd'))\nbefore = count()")
        for _ in range(5):
            self.branch().close()
        self.assertEqual(self.value("count() - before"), 0)
        self.error("os.wait()", "ChildProcessError")

    def test_without_descriptors(self):
        answer = self.runner.ask(fixture("request_branch"))
        self.assertIn("descriptors", answer["error"])
        self.assertEqual(self.value("1"), 1)

    def test_output_that_is_not_out_yet_is_not_doubled(self):
        self.execute("import sys\nprint('once', end='')\nsys.stderr.buffer.write(b'and only')")
        branch = self.branch()
        branch.execute("print('branch')")
        branch.close()
        self.assertEqual(branch.stdout, "branch\n")
        self.assertEqual(self.finish(), ("once", "and only"))

    def test_tools_in_a_branch(self):
        tool = {"name": "t", "doc": "", "parameters": [], "returns": "Any"}

        def answer(call):
            return {"type": "tool_result", "call_id": call["call_id"], "ok": {"kind": "json", "value": 9}}

        self.assertEqual(self.value("t()", tools=[tool], answer=answer), 9)
        branch = self.branch()
        self.assertEqual(branch.execute("t()", tools=[tool], answer=answer)["result"], 9)
        self.assertEqual(self.value("await t.aio()", tools=[tool], answer=answer), 9)

    @need("numpy")
    def test_numpy(self):
        self.execute("import numpy as np\nnp.random.seed(1)\na = np.arange(10**6)")
        branch = self.branch()
        code = "float(np.random.random())"
        self.assertNotEqual(branch.execute(code)["result"], self.value(code))
        self.assertEqual(branch.execute("a[0] = 5\nint(a.sum() - np.arange(10**6).sum())")["result"], 5)
        self.assertEqual(self.value("int(a[0])"), 0)


if __name__ == "__main__":
    unittest.main()
