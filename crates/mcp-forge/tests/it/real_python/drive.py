"""Runs `PROGRAM` on the test module `MODULE` and prints one JSON object: case -> [status, detail].

The same text runs outside, under bubblewrap and in a sandbox; the three names above it are put in
front of it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile


def run_module(program: str, module: str, seconds: float) -> dict:
    """The cases of one module. Those that were never reached are not in it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        script, lines = os.path.join(directory, "run_cases.py"), os.path.join(directory, "cases.jsonl")
        work = os.path.join(directory, "work")
        os.mkdir(work)
        with open(script, "w", encoding="utf-8") as file:
            file.write(program)
        output = open(os.path.join(directory, "output"), "w+b")
        process = subprocess.Popen(
            [sys.executable, script, module, lines],
            cwd=work, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )
        end = wait(process, seconds)
        cases = read_cases(lines)
        if end is not None:
            output.seek(max(0, output.tell() - 2000))
            cases["(the module)"] = "died", end + ": " + output.read().decode("utf-8", "replace")[-2000:]
        return cases


def wait(process, seconds):
    """Why the process did not end well, if so. Nothing of its process group is left."""
    try:
        status = process.wait(seconds)
        return None if status == 0 else f"exit status {status}"
    except subprocess.TimeoutExpired:
        return f"not done in {seconds} s"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def read_cases(path: str) -> dict:
    cases = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, status, detail = json.loads(line)
                cases[name] = status, detail
    return cases


# A test run that was started in the background ignores SIGINT, and so would CPython's tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
print(json.dumps(run_module(PROGRAM, MODULE, SECONDS)))
