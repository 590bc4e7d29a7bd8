"""The frames and messages, and the fixtures that the server's tests parse as well."""

import os
import signal
import socket
import unittest

from harness import CAPS, DEADLINE, FIXTURES, Runner, RunnerCase, fixture
from mcp_forge_runner import channel, media

FIELDS = {
    "execute": {"type", "code", "tools", "caps", "execution_id", "inspect"},
    "ready": {"type", "python"},
    "display": {"type", "data", "metadata"},
    "tool_call": {"type", "call_id", "name", "arguments"},
    "start_session": {"type"},
    "session_started": {"type", "shell"},
    "inspect": {"type", "bounds"},
    "write_file": {"type", "path", "offset", "data"},
    "file_written": {"type", "path", "error", "problem"},
    "read_file": {"type", "path", "offset", "length"},
    "file_read": {"type", "path", "offset", "data", "end", "error"},
    "move_file": {"type", "path", "name", "replace"},
    "remove_file": {"type", "path"},
    "branch": {"type"},
    "branched": {"type", "pid", "error"},
    "late_output": {"type", "execution_id", "stream", "text"},
    "late_display": {"type", "execution_id", "data", "metadata"},
    "done": {"type", "result", "result_repr", "result_display", "error", "truncated", "files"},
}


class Frames(unittest.TestCase):
    def test_round_trip(self):
        for value in (
            None,
            True,
            -0.0,
            1e300,
            1 << 63,
            'a\u20ac\U0001f600\n"\\',
            [],
            {},
            {"a": [1, {"b": None}]},
        ):
            self.assertEqual(channel.decode(channel.encode(value)), value)

    def test_encoding_is_ascii_without_lone_surrogates(self):
        frame = channel.encode({"\ud800": "x\udfffy\U0001f600"})
        self.assertEqual(frame, b'{"\\\\ud800":"x\\\\udfffy\\ud83d\\ude00"}')

    def test_no_json_is_refused(self):
        for frame in (b"", b" ", b"{", b"1 2", b"\xff", b"nope", b'{"a":1}x'):
            with self.assertRaises(ValueError, msg=frame):
                channel.decode(frame)

    def test_numbers_that_are_none_are_refused(self):
        with self.assertRaises(ValueError):
            channel.encode(float("nan"))

    def test_every_fixture_survives_our_own_decoder(self):
        names = sorted(path.stem for path in FIXTURES.glob("*.json"))
        self.assertGreater(len(names), 15)
        for name in names:
            value = fixture(name)
            self.assertEqual(channel.decode((FIXTURES / f"{name}.json").read_bytes()), value)
            self.assertEqual(channel.decode(channel.encode(value)), value)
            if value["type"] in FIELDS:
                self.assertLessEqual(value.keys(), FIELDS[value["type"]], name)

    def test_fixture_of_blocks_becomes_objects(self):
        text, image, audio, document, binary, link = media.from_value(
            fixture("request_tool_result_blocks")["ok"]
        )
        self.assertIsInstance(text, str)
        self.assertEqual((image.data, image.mime_type), (b"\x89PNG\r\n\x1a\n", "image/png"))
        self.assertEqual((audio.data, audio.mime_type), (b"RIFF", "audio/wav"))
        self.assertEqual((document.text, document.data, document.mime_type), ("hello", None, "text/plain"))
        self.assertEqual((binary.text, binary.data, binary.mime_type), (None, b"\0\1\2", None))
        self.assertEqual((link.uri, link.text, link.data), ("https://example.org/linked", None, None))


class Connection(RunnerCase):
    def test_ready_names_the_version(self):
        self.assertEqual(self.runner.ready.keys(), {"type", "python"})
        self.assertRegex(self.runner.ready["python"], r"^3\.\d+\.\d+")

    def test_the_execute_fixture_runs(self):
        request = fixture("request_execute")
        self.runner.send(request)
        call = self.runner.receive()
        self.assertEqual(
            call, {"type": "tool_call", "call_id": 1, "name": "files_search", "arguments": {"query": "tax"}}
        )
        self.runner.send(fixture("request_tool_result_json"))
        self.assertEqual(self.runner.receive()["result"], fixture("request_tool_result_json")["ok"]["value"])

    def test_a_turn_without_value_is_the_fixture(self):
        self.assertEqual(self.execute("x = 1"), fixture("event_done_nothing"))

    def test_a_value_is_the_fixture(self):
        self.assertEqual(self.execute("{'answer': 42}"), fixture("event_done_value"))

    def test_nothing_follows_done_and_the_end_is_silent(self):
        self.execute("import atexit; atexit.register(print, 'exit handler')")
        self.assertTrue(self.runner.silent())
        self.runner.socket.shutdown(socket.SHUT_RDWR)
        self.assertEqual(self.runner.process.wait(DEADLINE), 0)
        self.assertEqual(self.finish(), ("", ""))

    def test_a_second_turn_starts_fresh(self):
        self.execute("left = 1")
        self.error("left", "NameError")
        self.assertEqual(self.value("1 + 1"), 2)

    def test_another_request_ends_the_process(self):
        self.runner.send({"type": "mystery"})
        self.assertIsNone(self.runner.receive())
        self.assertEqual(self.runner.process.wait(DEADLINE), 70)

    def test_a_thread_that_outlives_the_turn_sends_nothing(self):
        code = """
import threading, time
def late():
    import time
    time.sleep(0.1)
    display("late")
threading.Thread(target=late).start()
"""
        self.execute(code)
        self.assertTrue(self.runner.silent(0.5))

    def test_children_do_not_inherit_the_connection(self):
        code = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
pid = os.fork()
if pid == 0:
    import time
    time.sleep(60)
    os._exit(0)
print(child.pid, pid, flush=True)
os._exit(3)
"""
        self.runner.start(code)
        self.assertIsNone(self.runner.until_done())
        self.assertEqual(self.runner.process.wait(DEADLINE), 3)
        self.runner.wait_for(lambda: self.runner.stdout.endswith("\n"))
        for pid in map(int, self.runner.stdout.split()):
            os.kill(pid, signal.SIGKILL)

    def test_large_code_and_large_result(self):
        text = "x" * 3_000_000
        done = self.execute(f"s = '{text}'\nlen(s)")
        self.assertEqual(done["result"], 3_000_000)

    def test_a_frame_never_exceeds_its_limit_whatever_the_caps(self):
        caps = dict.fromkeys(CAPS, 1 << 30)
        done = self.execute(
            "class B:\n  def __repr__(s): return '\\u20ac' * 10**7\n  def _repr_html_(s): return 'x' * 10**7\n"
            "display(B(), B())\n[B(), 'y' * 10**7]",
            **caps,
        )
        self.assertIn("result", done["truncated"])


# As a zygote will do it: prepare once, then serve each turn in a child on a socket of its own.
FORKING = """
import os, sys
sys.path.insert(0, {path!r})
from mcp_forge_runner.__main__ import prepare, serve
before = os.listdir("/proc/self/fd")
prepare(["decimal", "no_such_package"])
assert os.listdir("/proc/self/fd") == before
assert len(os.listdir("/proc/self/task")) == 1
pid = os.fork()
if not pid:
    serve({fd})
os.close({fd})
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class Forked(unittest.TestCase):
    def test_a_prepared_process_serves_in_a_child(self):
        runner = Runner(FORKING)
        self.addCleanup(runner.close)
        done = runner.execute(
            "import sys\n['decimal' in sys.modules, __name__, sys.argv]"
        )
        self.assertEqual(done["result"], [True, "__main__", [""]])
        self.assertIn("1/0", runner.execute("import traceback\n1/0")["error"]["traceback"])
        runner.execute("print('out')")
        runner.close()
        self.assertEqual((runner.process.returncode, runner.stdout, runner.stderr), (0, "out\n", ""))


if __name__ == "__main__":
    unittest.main()
