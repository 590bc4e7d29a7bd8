"""Tools: signatures, arguments, answers, parallel calls, and calls that cannot be."""

import pathlib
import unittest

from harness import DEADLINE, THREADS_LEFT, WAIT_TO_GO, RunnerCase


def tool(name, *parameters, returns="Any", doc=""):
    return {"name": name, "doc": doc, "parameters": list(parameters), "returns": returns}


def parameter(name, annotation, required=False, key=None, **default):
    return {"name": name, "key": key or name, "required": required, "annotation": annotation, **default}


SEARCH = tool(
    "files_search",
    parameter("query", "str", required=True),
    parameter("from_", "str | None", key="from"),
    parameter("limit", "int", default=10),
    parameter("tags", "list[str | None]"),
    returns="list[str]",
    doc="Searches the files.\n\nMore text.",
)
ANY = tool("s_any", parameter("value", "Any", required=True))
TOOLS = (SEARCH, ANY)


def json_answer(value):
    return lambda call: {
        "type": "tool_result",
        "call_id": call["call_id"],
        "ok": {"kind": "json", "value": value},
    }


def echo(call):
    return json_answer(call["arguments"])(call)


def blocks(*items):
    return lambda call: {
        "type": "tool_result",
        "call_id": call["call_id"],
        "ok": {"kind": "blocks", "blocks": list(items)},
    }


def failure(kind, message):
    return lambda call: {
        "type": "tool_result",
        "call_id": call["call_id"],
        "error": {"kind": kind, "message": message},
    }


class ToolCase(RunnerCase):
    def value(self, code, answer=echo, **options):
        return super().value(code, tools=TOOLS, answer=answer, **options)

    def error(self, code, kind, answer=echo, **options):
        return super().error(code, kind, tools=TOOLS, answer=answer, **options)


class Shape(ToolCase):
    def test_looks_like_a_function(self):
        code = """
import inspect
t = files_search
[t.__name__, t.__qualname__, t.__module__, t.__doc__, t.__annotations__, str(inspect.signature(t)), callable(t), repr(t)]
"""
        signature = "(query: 'str', from_: 'str | None' = None, limit: 'int' = 10, tags: 'list[str | None]' = None) -> 'list[str]'"
        shown = "files_search(query: str, from_: str | None = None, limit: int = 10, tags: list[str | None] = None) -> list[str]"
        self.assertEqual(
            self.value(code),
            [
                "files_search",
                "files_search",
                "__main__",
                SEARCH["doc"],
                {
                    "query": "str",
                    "from_": "str | None",
                    "limit": "int",
                    "tags": "list[str | None]",
                    "return": "list[str]",
                },
                signature,
                True,
                f"<tool {shown}; await files_search.aio(...) to call it asynchronously>",
            ],
        )

    def test_help_teaches(self):
        self.value("help(files_search)")
        text = self.finish()[0]
        self.assertIn("query: str", text)
        self.assertIn("Searches the files.", text)

    def test_the_module(self):
        code = """
import mcp_forge, sys
from mcp_forge import ToolError as E, display as d, tools, files_search as f
assert E is ToolError and d is display and f is files_search
assert 'inspect' not in sys.modules or True
[mcp_forge.__all__, tools(), sorted(n for n in globals() if not n.startswith('_'))]
"""
        exported, lines, names = self.value(code)
        self.assertEqual(exported, ["files_search", "s_any", "ToolError", "display", "tools"])
        self.assertEqual(lines[0].split(" -> ")[1], "list[str]: Searches the files.")
        self.assertEqual(lines[1], "s_any(value: Any) -> Any")
        self.assertEqual(
            names,
            ["E", "ToolError", "d", "display", "f", "files_search", "mcp_forge", "s_any", "sys", "tools"],
        )

    def test_a_module_in_the_workspace_may_call_tools(self):
        code = "open('mine.py', 'w').write('from mcp_forge import s_any\\ndef f(): return s_any(5)')\nimport mine\nmine.f()"
        self.assertEqual(self.value(code), {"value": 5})


class Arguments(ToolCase):
    def test_binding(self):
        for call, sent in (
            ("'a'", {"query": "a"}),
            ("query='a'", {"query": "a"}),
            ("'a', 'b', 3", {"query": "a", "from": "b", "limit": 3}),
            ("'a', limit=10", {"query": "a", "limit": 10}),
            ("'a', from_=None", {"query": "a", "from": None}),
            ("'a', limit=None, tags=None", {"query": "a"}),
            ("None", {"query": None}),
        ):
            with self.subTest(call=call):
                self.assertEqual(self.value(f"files_search({call})"), sent)
                self.assertEqual(self.value(f"await files_search.aio({call})"), sent)

    def test_binding_errors_teach(self):
        for call, words in (
            ("", "files_search() needs 'query'. Signature: files_search(query: str, "),
            ("'a', 'b', 1, [], 5", "takes 4 arguments but 5 were given"),
            ("'a', query='b'", "got two values for 'query'"),
            ("'a', limits=1", "has no parameter 'limits'; did you mean 'limit'?"),
            ("'a', self=1", "has no parameter 'self'"),
        ):
            for code in (f"files_search({call})", f"await files_search.aio({call})"):
                with self.subTest(code=code):
                    error = self.error(code, "TypeError")
                    self.assertIn(words, error["message"])
                    self.assertNotIn("mcp_forge_runner", error["traceback"])
                    self.assertIn('File "<execution>", line 1', error["traceback"])
        self.assertEqual(self.runner.calls, [])

    def test_values(self):
        code = """
import pathlib, datetime, uuid, enum, collections, dataclasses
class E(enum.Enum): A = 'a'
class S(str): pass
@dataclasses.dataclass
class D: x: int
"""
        for value, sent in (
            ("(1, [2, {'a': None}])", [1, [2, {"a": None}]]),
            ("{3}", [3]),
            ("range(2)", [0, 1]),
            ("{'a': 1}.keys()", ["a"]),
            ("collections.deque([1])", [1]),
            ("collections.OrderedDict(a=1)", {"a": 1}),
            ("pathlib.Path('/a')", "/a"),
            ("datetime.date(2024, 1, 2)", "2024-01-02"),
            ("uuid.UUID(int=0)", "00000000-0000-0000-0000-000000000000"),
            ("E.A", "a"),
            ("S('a')", "a"),
            ("{S('k'): True}", {"k": True}),
            ("D(1)", {"x": 1}),
            ("2**64 - 1", 2**64 - 1),
            ("-0.0", -0.0),
            ("'\U0001f600'", "\U0001f600"),
        ):
            with self.subTest(value=value):
                self.assertEqual(self.value(code + f"s_any({value})"), {"value": sent})

    def test_values_that_json_cannot_hold(self):
        code = "import decimal, datetime\nclass Bag: pass\ncycle = []\ncycle.append(cycle)\n"
        for value, words in (
            ("float('nan')", "s_any(): value is nan"),
            ("[1, float('inf')]", "s_any(): value[1] is inf"),
            ("{'a': {'b': 2**64}}", "s_any(): value['a']['b'] is an integer of more than 64 bits"),
            ("b'x'", "value is a bytes, which JSON cannot hold; pass .decode()"),
            ("decimal.Decimal(1)", "pass float(...) or str(...)"),
            ("datetime.timedelta(1)", "total_seconds"),
            ("Bag()", "value is a Bag"),
            ("{1: 2}", "value has the key 1"),
            ("'\\ud800'", "lone surrogate"),
            ("cycle", "contains itself"),
            ("(x for x in 'a')", "pass list(...)"),
            ("1j", "complex"),
            ("s_any", "value is a Tool"),
        ):
            with self.subTest(value=value):
                error = self.error(code + f"s_any({value})", "TypeError")
                self.assertIn(words, error["message"])
                self.assertLess(len(error["message"]), 1000)
        self.assertEqual(self.runner.calls, [])

    def test_numpy_and_pandas(self):
        code = """
class generic: pass
generic.__module__ = 'numpy'
class float64(float, generic):
    dtype = type('d', (), {'kind': 'f'})
    def item(self): return 1.5
class DataFrame: __module__ = 'pandas'
"""
        self.assertEqual(self.value(code + "s_any([float64(1.5)])"), {"value": [1.5]})
        self.assertIn(".to_dict('records')", self.error(code + "s_any(DataFrame())", "TypeError")["message"])

    def test_too_large(self):
        error = self.error("s_any('x' * (17 << 20))", "ToolError")
        self.assertIn("too large", error["message"])


class Answers(ToolCase):
    def test_json(self):
        for value in (None, 1, 1.5, "text", [1], {"a": {"b": []}}):
            self.assertEqual(self.value("s_any(1)", json_answer(value)), value)

    def test_blocks(self):
        image = {"type": "image", "data": "iVBORw0KGgo=", "mime_type": "image/png"}
        code = "x = s_any(1)\nx.save('f')\n[x.mime_type, x.data, open('f', 'rb').read() == x.data, repr(x)]"
        mime_type, data, saved, shown = self.value(code, blocks(image))
        self.assertEqual((mime_type, data, saved), ("image/png", {"$bytes": "iVBORw0KGgo="}, True))
        self.assertEqual(shown, "<Media image/png, 8 bytes; .data, .save(path)>")
        self.runner.start("s_any(1)", TOOLS)
        done = self.runner.until_done(blocks(image))
        self.assertEqual(done["result_display"]["image/png"], "iVBORw0KGgo=")
        self.assertEqual(self.value("s_any(1)", blocks({"type": "text", "text": "a"})), "a")
        self.assertEqual(self.value("s_any(1)", blocks()), [])
        resource = {"type": "resource", "uri": "u:x", "text": "t", "mime_type": "text/plain"}
        code = "a, b, c = s_any(1)\n[a, type(b).__name__, c.uri, c.text, c.data, repr(c)]"
        got = self.value(code, blocks({"type": "text", "text": "a"}, image, resource))
        self.assertEqual(
            got, ["a", "Media", "u:x", "t", None, "<Resource 'u:x', text/plain: 1 characters in .text>"]
        )

    def test_errors(self):
        for kind in ("not_granted", "invalid_arguments", "tool", "upstream", "timeout", "limit"):
            code = "try:\n  s_any(1)\nexcept ToolError as e:\n  x = [e.kind, e.tool, e.message, str(e)]\nx"
            got = self.value(code, failure(kind, "it broke"))
            self.assertEqual(got, [kind, "s_any", "it broke", f"s_any: it broke ({kind})"])
        error = self.error("def f():\n  s_any(1)\nf()", "ToolError", failure("tool", "it broke"))
        self.assertEqual(error["message"], "s_any: it broke (tool)")
        self.assertTrue(error["traceback"].endswith("mcp_forge.ToolError: s_any: it broke (tool)\n"))
        self.assertIn("line 2, in f", error["traceback"])
        self.assertNotIn("mcp_forge_runner", error["traceback"])
        error = self.error(
            "import asyncio\nawait asyncio.gather(s_any.aio(1))", "ToolError", failure("tool", "it broke")
        )
        self.assertNotIn("mcp_forge_runner", error["traceback"])

    def test_error_survives_pickle(self):
        code = "import pickle\ne = pickle.loads(pickle.dumps(ToolError('m', 'limit', 't')))\n[e.message, e.kind, e.tool]"
        self.assertEqual(self.value(code), ["m", "limit", "t"])

    def test_a_large_answer(self):
        self.assertEqual(self.value("len(s_any(1))", json_answer("x" * 20_000_000)), 20_000_000)


class Parallel(ToolCase):
    def answer_backwards(self, count):
        calls = []
        for _ in range(count):
            event = self.runner.receive()
            self.assertEqual(event["type"], "tool_call")
            calls.append(event)
        self.assertEqual(len({call["call_id"] for call in calls}), count)
        for call in reversed(calls):
            self.runner.send(json_answer(call["arguments"]["value"] * 10)(call))
        return self.runner.until_done()

    def test_gather(self):
        self.runner.start("import asyncio\nawait asyncio.gather(*[s_any.aio(n) for n in range(10)])", TOOLS)
        self.assertEqual(self.answer_backwards(10)["result"], [n * 10 for n in range(10)])

    def test_threads(self):
        code = "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(10) as p: r = list(p.map(s_any, range(10)))\nr"
        self.runner.start(code, TOOLS)
        self.assertEqual(self.answer_backwards(10)["result"], [n * 10 for n in range(10)])

    def test_asyncio_and_threads_together(self):
        code = "import asyncio\nawait asyncio.gather(*[s_any.aio(n) for n in range(5)], *[asyncio.to_thread(s_any, n) for n in range(5, 10)])"
        self.runner.start(code, TOOLS)
        self.assertEqual(self.answer_backwards(10)["result"], [n * 10 for n in range(10)])

    def test_run_and_tasks(self):
        self.assertEqual(self.value("import asyncio\nasyncio.run(s_any.aio(1))"), {"value": 1})
        self.assertEqual(
            self.value("import asyncio\nt = asyncio.create_task(s_any.aio(1))\nawait t"), {"value": 1}
        )

    def test_an_abandoned_call_harms_nothing(self):
        code = """
import asyncio
try:
    await asyncio.wait_for(s_any.aio('slow'), 0.05)
except asyncio.TimeoutError:
    pass
s_any('fast')
"""
        late = []

        def answer(call):
            if call["arguments"]["value"] == "slow":
                late.append(call)
                return None
            self.runner.send(echo(late[0]))
            return echo(call)

        self.assertEqual(self.value(code, answer), {"value": "fast"})
        self.assertEqual(self.value("s_any(2)"), {"value": 2})

    def test_an_interrupted_call_harms_nothing(self):
        code = """
import signal
def late(*a): raise TimeoutError
signal.signal(signal.SIGALRM, late)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    s_any('slow')
except TimeoutError:
    pass
s_any('fast')
"""
        self.assertEqual(
            self.value(code, lambda call: echo(call) if call["arguments"]["value"] == "fast" else None),
            {"value": "fast"},
        )

    def test_a_call_that_is_still_open_at_the_end(self):
        code = "import threading\nthreading.Thread(target=s_any, args=(1,)).start()\nimport time\ntime.sleep(0.2)\n5"
        self.assertEqual(self.value(code, lambda call: None), 5)
        self.assertEqual(self.value("s_any(2)"), {"value": 2})

    def test_many_calls_in_sequence_keep_no_thread(self):
        self.assertEqual(self.value("for n in range(300): s_any(n)" + THREADS_LEFT), 1)

    def test_the_server_goes_away_in_a_call(self):
        self.runner.start("s_any(1)", TOOLS)
        self.runner.receive()
        self.runner.socket.close()
        self.assertIn(self.runner.process.wait(DEADLINE), (0, 71))


class Elsewhere(ToolCase):
    def test_a_forked_child_cannot_call(self):
        code = """
import os
r, w = os.pipe()
s_any(0)
pid = os.fork()
if pid == 0:
    try:
        s_any(1)
        text = 'called'
    except ToolError as e:
        text = e.kind + ' ' + e.message
    display('in the child')
    os.write(w, text.encode())
    os._exit(0)
os.waitpid(pid, 0)
[os.read(r, 999).decode(), s_any(2)]
"""
        text, after = self.value(code)
        self.assertIn("not_granted tools can be called only from the process that runs the code", text)
        self.assertEqual(after, {"value": 2})
        self.assertEqual(len(self.runner.calls), 2)

    def test_a_tool_cannot_be_sent_to_another_process(self):
        self.assertIn(
            "cannot be sent", self.error("import pickle\npickle.dumps(s_any)", "TypeError")["message"]
        )

    def test_a_thread_that_outlives_the_turn_cannot_call(self):
        code = WAIT_TO_GO + """
import threading
out = open('late', 'w')
def late(s_any=s_any, ToolError=ToolError, wait_to_go=wait_to_go):
    wait_to_go()
    try:
        s_any(1)
    except ToolError as e:
        print(e.message, file=out, flush=True)
threading.Thread(target=late).start()
"""
        self.value(code)
        self.runner.go()
        said = pathlib.Path(self.runner.directory.name, "late")
        self.runner.wait_for(said.read_text)
        self.assertIn("the turn is over", said.read_text())
        self.assertTrue(self.runner.silent())


if __name__ == "__main__":
    unittest.main()
