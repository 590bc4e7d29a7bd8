"""The zygote: prepared once, runs nothing itself, forks one sealed sandbox for each request."""

import gc
import sys
from posix import _exit

from . import __main__ as entry

# Where the jail puts the object that forks and seals.
OBJECT = "/opt/mcp-forge/seal.so"


def main(modules: tuple = (), channel: int = 3) -> None:
    """Prepares, then serves forks from `channel` until it closes. Returns in no process."""
    entry.prepare(modules or ("linecache",))
    before, fork, after_parent, after_child = calls()
    # Everything made so far lives as long as the zygote: no collection of a fork shall touch it.
    gc.collect()
    gc.freeze()
    while True:
        before()
        pid = fork(channel)
        if pid == 0:
            break
        after_parent()
        if pid < 0:
            _exit(0)
    after_child()
    reseed()
    entry.serve(3)


def calls():
    """The object's fork and CPython's own brackets around one, as plain functions."""
    import ctypes
    import signal

    # Ends of forks are the keeper's business; nobody here waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    fork = ctypes.PyDLL(OBJECT).mcp_forge_fork
    fork.argtypes, fork.restype = [ctypes.c_int], ctypes.c_long
    brackets = []
    for name in ("PyOS_BeforeFork", "PyOS_AfterFork_Parent", "PyOS_AfterFork_Child"):
        bracket = getattr(ctypes.pythonapi, name)
        bracket.argtypes, bracket.restype = [], None
        brackets.append(bracket)
    before, after_parent, after_child = brackets
    return before, fork, after_parent, after_child


def reseed() -> None:
    """Random states that were copied with the fork get a seed of their own.

    `random` does it by itself, after every fork; `secrets` and `uuid` keep no state.
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
