"""Drives a real runner: a child process at the other end of a real socket pair."""

import importlib.util
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

RUNNER = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = RUNNER / "fixtures"
CAPS = {"result_bytes": 1 << 20, "repr_chars": 10_000, "display_bytes": 8 << 20, "displays": 100}
BOOTSTRAP = """
import sys
sys.path.insert(0, {path!r})
from mcp_forge_runner.__main__ import main
main({fd})
"""
# A session where IPython cannot be found, wherever these tests run.
PLAIN = "import sys; sys.modules['IPython'] = None" + BOOTSTRAP
# As a zygote does it: the shell is made before the fork.
PRELOADED = """
import os, sys
sys.path.insert(0, {path!r})
from mcp_forge_runner.__main__ import prepare, serve
before = os.listdir("/proc/self/fd")
prepare(["mcp_forge_runner.session"])
assert os.listdir("/proc/self/fd") == before
assert len(os.listdir("/proc/self/task")) == 1
pid = os.fork()
if not pid:
    serve({fd})
os.close({fd})
import signal
signal.signal(signal.SIGINT, lambda *args: os.kill(pid, signal.SIGINT))
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
os._exit(status if status >= 0 else 128 - status)
"""
DEADLINE = 60
# Code's function that returns once the test says `go`: after its turn, however slow the machine is.
WAIT_TO_GO = """
def wait_to_go():
    from os.path import exists
    from time import sleep
    while not exists("go"):
        sleep(0.01)
"""
# Code whose value is 1 once the main thread is alone. One that has done its work may take a while to end.
THREADS_LEFT = f"""
import os, time
deadline = time.monotonic() + {DEADLINE - 10}
while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
    time.sleep(0.01)
len(os.listdir("/proc/self/task"))
"""
reported = []
sys.path.insert(0, str(RUNNER))


def fixture(name):
    return json.loads((FIXTURES / f"{name}.json").read_text())


def need(*packages):
    """Skips, with the reason; a failure where `REQUIRE_PACKAGES=1` says that all are there."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    required = os.environ.get("REQUIRE_PACKAGES") == "1"
    if missing and required:
        raise AssertionError(f"REQUIRE_PACKAGES=1, but missing: {missing}")
    if missing and missing not in reported:
        reported.append(missing)
        print(
            f"SKIPPED tests of {', '.join(missing)}: not installed (REQUIRE_PACKAGES=1 forbids this)",
            file=sys.stderr,
        )
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


class Runner:
    """One runner process. Everything it sends is checked as strictly as the server does."""

    def __init__(self, bootstrap=BOOTSTRAP, **environment):
        self.directory = tempfile.TemporaryDirectory()
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(DEADLINE)
        theirs.set_inheritable(True)
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": self.directory.name,
            "TMPDIR": self.directory.name,
            "MPLBACKEND": "Agg",
            **environment,
        }
        code = bootstrap.format(path=str(RUNNER), fd=theirs.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-X", "utf8", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=False,
            cwd=self.directory.name,
            env=environment,
        )
        theirs.close()
        self.output = {"stdout": bytearray(), "stderr": bytearray()}
        self.readers = [
            threading.Thread(target=self._collect, args=(name,), daemon=True) for name in self.output
        ]
        for reader in self.readers:
            reader.start()
        self.displays = []
        self.calls = []
        self.ready = self.receive()
        assert self.ready["type"] == "ready", self.ready

    def _collect(self, name):
        stream = getattr(self.process, name)
        while part := os.read(stream.fileno(), 1 << 16):
            self.output[name] += part

    def send(self, message):
        payload = json.dumps(message).encode()
        self.socket.sendall(len(payload).to_bytes(4, "big") + payload)

    def receive(self):
        header = self._exactly(4)
        if header is None:
            return None
        length = int.from_bytes(header, "big")
        assert length <= 16 << 20, length
        return strict_loads(self._exactly(length))

    def _exactly(self, length):
        data = bytearray()
        while len(data) < length:
            part = self.socket.recv(min(length - len(data), 1 << 20))
            if not part:
                return None
            data += part
        return bytes(data)

    def start(self, code, tools=(), **caps):
        self.send({"type": "execute", "code": code, "tools": list(tools), "caps": {**CAPS, **caps}})

    def until_done(self, answer=None):
        """The `done` message; displays are collected, calls answered by `answer(call)`."""
        while True:
            event = self.receive()
            if event is None:
                return None
            if event["type"] == "display":
                self.displays.append(event)
            elif event["type"] == "tool_call":
                self.calls.append(event)
                reply = answer(event)
                if reply is not None:
                    self.send(reply)
            else:
                assert event["type"] == "done", event
                return event

    def execute(self, code, tools=(), answer=None, **caps):
        self.start(code, tools, **caps)
        return self.until_done(answer)

    def silent(self, seconds=0.3):
        """Whether nothing more arrives."""
        return not select.select([self.socket], [], [], seconds)[0]

    def go(self):
        """Lets the code go on that waits for this, `WAIT_TO_GO`."""
        pathlib.Path(self.directory.name, "go").touch()

    def wait_for(self, condition):
        """Waits for what the threads that read the output will see."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, self.output
            time.sleep(0.005)

    def close(self):
        self.socket.close()
        try:
            self.process.wait(DEADLINE)
        finally:
            self.process.kill()
            self.process.wait()
        # A child that user code left behind may hold the pipes: what is read is enough.
        for reader in self.readers:
            reader.join(5)
        self.process.stdout.close()
        self.process.stderr.close()
        self.directory.cleanup()

    @property
    def stdout(self):
        return bytes(self.output["stdout"]).decode()

    @property
    def stderr(self):
        return bytes(self.output["stderr"]).decode()


class RunnerCase(unittest.TestCase):
    """A test with a fresh runner in `self.runner` and shorthand for what most tests need."""

    def setUp(self):
        self.runner = Runner()
        self.addCleanup(self.runner.close)

    def execute(self, code, **options):
        done = self.runner.execute(code, **options)
        self.assertIsNotNone(done, f"the runner died: {self.runner.stderr}")
        return done

    def value(self, code, **options):
        """The result of code that must not fail."""
        done = self.execute(code, **options)
        self.assertNotIn("error", done, done.get("error", {}).get("traceback"))
        return done.get("result")

    def error(self, code, kind, **options):
        """The error of code that must fail with an exception of that name."""
        done = self.execute(code, **options)
        self.assertIn("error", done, done)
        self.assertEqual(done["error"]["type"], kind, done["error"]["traceback"])
        return done["error"]

    def finish(self):
        """Ends the runner and waits, so that all of its output is there."""
        self.runner.close()
        return self.runner.stdout, self.runner.stderr


class Session(Runner):
    """A runner whose connection is a session's."""

    def __init__(self, bootstrap=PLAIN, **environment):
        super().__init__(bootstrap, **environment)
        self.late = []
        self.turns = 0
        self.send({"type": "start_session"})
        started = self.receive()
        assert started.keys() == {"type", "shell"} and started["type"] == "session_started", started
        self.shell = started["shell"]

    def start(self, code, tools=(), execution_id=None, **caps):
        self.turns += 1
        self.send(
            {
                "type": "execute",
                "code": code,
                "tools": list(tools),
                "caps": {**CAPS, **caps},
                "execution_id": execution_id or f"e{self.turns}",
            }
        )

    def receive(self):
        """The next event that is no late one; those are collected."""
        while True:
            event = super().receive()
            if event is None or event["type"] not in ("late_output", "late_display"):
                return event
            self.late.append(event)

    def ask(self, message):
        self.send(message)
        return self.receive()

    def inspect(self, **bounds):
        limits = {"variables": 2000, "repr_chars": 120, "files": 100, "budget_ms": 5000, **bounds}
        answer = self.ask({"type": "inspect", "bounds": limits})
        assert answer["type"] == "inspected", answer
        return answer

    def late_text(self, execution_id, stream="stdout"):
        return "".join(
            event["text"]
            for event in self.late
            if event["type"] == "late_output"
            and (event["execution_id"], event["stream"]) == (execution_id, stream)
        )

    def wait_for_late(self, condition):
        """Reads late events until the condition holds."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, self.late
            if select.select([self.socket], [], [], 0.1)[0]:
                event = Runner.receive(self)
                assert event is not None and event["type"].startswith("late_"), event
                self.late.append(event)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def interrupt_until_heard(self):
        """Interrupts as the server does: once more, if nothing comes of it within a second."""
        self.interrupt()
        while not select.select([self.socket], [], [], 1)[0]:
            self.interrupt()

    def wait_for_output(self, text, stream="stdout"):
        self.wait_for(lambda: text.encode() in self.output[stream])

    def branch(self):
        """The answer, and the branch if there is one."""
        ours, theirs = socket.socketpair()
        out, err = os.pipe(), os.pipe()
        payload = json.dumps({"type": "branch"}).encode()
        frame = len(payload).to_bytes(4, "big") + payload
        socket.send_fds(self.socket, [frame], [theirs.fileno(), out[1], err[1]])
        theirs.close()
        os.close(out[1])
        os.close(err[1])
        answer = self.receive()
        if "pid" in answer:
            return answer, Branch(ours, out[0], err[0], answer["pid"])
        for fd in (out[0], err[0]):
            os.close(fd)
        ours.close()
        return answer, None


class Branch(Session):
    """A branch of a session: the same conversation on its own connection."""

    def __init__(self, connection, out, err, pid):
        self.socket, self.pid, self.turns = connection, pid, 0
        self.socket.settimeout(DEADLINE)
        self.displays, self.calls, self.late = [], [], []
        self.fds = {"stdout": out, "stderr": err}
        self.output = {"stdout": bytearray(), "stderr": bytearray()}
        self.ready = self.receive()
        assert self.ready["type"] == "ready", self.ready

    def interrupt(self):
        os.kill(self.pid, signal.SIGINT)

    def close(self):
        """Hangs up, and reads the output to its end."""
        self.socket.close()
        for name, fd in self.fds.items():
            while part := os.read(fd, 1 << 16):
                self.output[name] += part
            os.close(fd)
        self.fds = {}


class SessionCase(RunnerCase):
    """A test with a fresh session in `self.runner`; `BOOTSTRAP` decides which shell it has."""

    BOOTSTRAP = PLAIN

    def setUp(self):
        self.runner = Session(self.BOOTSTRAP)
        self.addCleanup(self.runner.close)


def strict_loads(data):
    """JSON as serde_json takes it: ASCII here, finite numbers, 64-bit integers, unique keys."""

    def unique(pairs):
        keys = [key for key, _ in pairs]
        assert len(set(keys)) == len(keys), keys
        return dict(pairs)

    def refuse(text):
        raise AssertionError(f"not JSON: {text}")

    def integer(text):
        number = int(text)
        assert -(1 << 63) <= number < 1 << 64, text
        return number

    text = data.decode("ascii")
    value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_int=integer)
    check(value, 0)
    return value


def check(value, depth):
    assert depth <= 110, "nested too deep"
    if isinstance(value, str):
        value.encode("utf-8")
    elif isinstance(value, float):
        assert value - value == 0.0, value
    elif isinstance(value, list):
        for item in value:
            check(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            check(key, depth + 1)
            check(item, depth + 1)
