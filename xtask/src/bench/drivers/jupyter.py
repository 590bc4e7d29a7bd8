"""Answers the bench for a Jupyter kernel: one line of JSON in, one out.

`fresh` starts a kernel for every run and ends it; `warm` runs everything in one.
"""

import json
import sys
import time

from jupyter_client.manager import start_new_kernel


def start():
    return start_new_kernel(kernel_name="python3")


def run(client, code):
    """Runs code; gives back the repr of its last expression, as a notebook shows it, and its output."""
    shown, printed = [], []

    def keep(message):
        if message["msg_type"] == "execute_result":
            shown.append(message["content"]["data"]["text/plain"])
        elif message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(
        code, output_hook=keep, store_history=False, timeout=60
    )
    if reply["content"]["status"] != "ok":
        raise RuntimeError(reply["content"].get("evalue", "the kernel failed"))
    return shown[0] if shown else None, "".join(printed)


def fresh(code):
    """The answer is there before the kernel is gone: its end is not on the clock."""
    started = time.perf_counter()
    manager, client = start()
    answer = run(client, code)
    microseconds = (time.perf_counter() - started) * 1e6
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    return microseconds, answer


def warm(client, code):
    started = time.perf_counter()
    answer = run(client, code)
    return (time.perf_counter() - started) * 1e6, answer


def main():
    manager = client = None
    if sys.argv[1] == "warm":
        manager, client = start()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        code = json.loads(line)["code"]
        try:
            taken, (answer, printed) = warm(client, code) if client else fresh(code)
            reply = {"us": taken, "result": answer, "printed": len(printed)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)
    if manager:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


main()
