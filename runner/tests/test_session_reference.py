"""IPython's own kernel as the reference: the same cells there and here, and the same to be seen.

Where the two differ, `docs/sessions.md` has a row that names the cell; a row for a cell that
does not differ is an error, too.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

from harness import DEADLINE, RUNNER, BOOTSTRAP, Session, need
from reference_cells import CELLS

DOCUMENT = RUNNER.parent / "docs" / "sessions.md"
# Run after each cell on both sides, so that all of its output is there.
MARK = "\x1emark"
FLUSH = f"import sys as _sys; print({MARK!r}); print({MARK!r}, file=_sys.stderr)"
NORMAL = (
    (re.compile(r"\x1b\[[0-9;]*[A-Za-z]"), ""),
    (re.compile(r"\r\n"), "\n"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0xADDRESS"),
    (re.compile(r"(CPU times|Wall time|user|sys|total): [^\n]*"), r"\1: TIME"),
    (re.compile(r"\([^()]*, line (\d+)\)"), r"(line \1)"),
    (re.compile(r"/tmp/ipykernel_\d+/\d+\.py|<execution [\d.]+>|<ipython-input-[^>]*>"), "CELL"),
    (re.compile(r"Thread-\d+"), "Thread-N"),
    (re.compile(r"[ \t]+$", re.M), ""),
)


def normal(text):
    for pattern, replacement in NORMAL:
        text = pattern.sub(replacement, text)
    return text.strip("\n")


class Seen:
    """What a cell gave to see, as plain data that can be compared."""

    def __init__(self):
        self.streams = {"stdout": "", "stderr": ""}
        self.displays, self.result, self.error = [], None, None

    def bundle(self, data):
        return sorted(data), normal(data.get("text/plain", ""))

    def facts(self):
        return {
            "stdout": normal(self.streams["stdout"]),
            "stderr": normal(self.streams["stderr"]),
            "displays": self.displays,
            "result": self.result,
            "error": self.error,
        }


class Kernel:
    """A real kernel, by its own client."""

    def __init__(self, directory, **environment):
        from jupyter_client.manager import KernelManager

        # Files, and no ports: another process could take those before the kernel does.
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{directory}/socket")
        environment = {**os.environ, "IPYTHONDIR": f"{directory}/.ipython", **environment}
        self.manager.start_kernel(cwd=directory, env=environment)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=DEADLINE)

    def run(self, code):
        seen = Seen()

        def take(message):
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                seen.streams[content["name"]] += content["text"]
            elif kind == "display_data":
                seen.displays.append(seen.bundle(content["data"]))
            elif kind == "update_display_data":
                seen.displays.append(("update", *seen.bundle(content["data"])))
            elif kind == "execute_result":
                if seen.result is not None:
                    seen.displays.append(seen.result)
                seen.result = seen.bundle(content["data"])
            elif kind == "error":
                seen.error = content["ename"], normal(content["evalue"])

        reply = self.client.execute_interactive(code, output_hook=take, allow_stdin=False, timeout=60)["content"]
        for payload in reply.get("payload", ()):
            if payload["source"] == "page":
                seen.streams["stdout"] += payload["data"]["text/plain"]
        if reply["status"] != "ok" and seen.error is None:
            seen.error = reply["ename"], normal(reply["evalue"])
        return seen

    def cell(self, code):
        seen = self.run(code)
        self.run(FLUSH)
        return seen.facts()

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Ours:
    """Our session."""

    def __init__(self, session):
        self.session = session
        self.read = {"stdout": 0, "stderr": 0}

    def cell(self, code):
        seen = Seen()
        before = len(self.session.displays)
        done = self.session.execute(code)
        if done is None:
            raise AssertionError(f"the session died: {self.session.stderr}")
        seen.displays = [seen.bundle(event["data"]) for event in self.session.displays[before:]]
        if "result_repr" in done:
            data = done.get("result_display") or {"text/plain": done["result_repr"]}
            seen.result = seen.bundle(data)
        if "error" in done:
            seen.error = done["error"]["type"], normal(done["error"]["message"])
        self.session.execute(FLUSH)
        for name in self.read:
            seen.streams[name] = self.until_mark(name)
        return seen.facts()

    def until_mark(self, name):
        output, start = self.session.output[name], self.read[name]
        mark = MARK.encode() + b"\n"
        self.session.wait_for(lambda: mark in output[start:])
        end = output.find(mark, start)
        self.read[name] = end + len(mark)
        return output[start:end].decode()


def documented():
    """The cells that the document's table says differ."""
    text = DOCUMENT.read_text().split("## Where it differs from a notebook's kernel")[1]
    rows = re.findall(r"^\| `([^|]*)` \|", text, re.M)
    return {name for row in rows for name in row.replace("`", "").split(", ")}


@need("IPython", "ipykernel", "jupyter_client", "numpy", "pandas", "matplotlib")
class Reference(unittest.TestCase):
    maxDiff = None

    def test_the_same_is_seen(self):
        # On a slow machine matplotlib says that it makes its list of fonts: made before, it is silent on both sides.
        fonts = tempfile.TemporaryDirectory()
        self.addCleanup(fonts.cleanup)
        environment = {"MPLCONFIGDIR": fonts.name}
        subprocess.run(
            [sys.executable, "-c", "import matplotlib.font_manager"], env={**os.environ, **environment}, check=True
        )
        session = Session(BOOTSTRAP, **environment)
        self.addCleanup(session.close)
        self.assertTrue(session.shell.startswith("ipython "), session.shell)
        ours = Ours(session)
        directory = session.directory.name + "/kernel"
        os.mkdir(directory)
        kernel = Kernel(directory, **environment)
        self.addCleanup(kernel.close)
        self.assertGreaterEqual(len(CELLS), 60)
        differing = {}
        for name, code in CELLS.items():
            expected, found = kernel.cell(code), ours.cell(code)
            if expected != found:
                differing[name] = {
                    key: [expected[key], found[key]] for key in expected if expected[key] != found[key]
                }
        unexplained = {name: differing[name] for name in differing if name not in documented()}
        self.assertEqual(unexplained, {}, json.dumps(unexplained, indent=1, default=str))
        self.assertEqual(documented() - differing.keys(), set(), "documented, but not different")


if __name__ == "__main__":
    unittest.main()
