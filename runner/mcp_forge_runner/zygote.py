"""The zygote: prepared once, runs nothing itself, forks one sealed sandbox for each request."""

import gc
import sys
from posix import _exit, listdir

from . import __main__ as entry
from . import environment, execution

# Where the jail puts the object that forks and seals: an extension module.
OBJECT = "/opt/mcp-forge/seal.so"


# What a first turn with a package sets up in it, and where it writes first.
REHEARSALS = {
    "pandas": """
import pandas
frame = pandas.DataFrame({"key": ["a", "b", "a"], "number": [1, 2, 3], "share": [0.5, 1.5, 2.5]})
frame["double"] = frame["number"] * 2
frame.groupby("key").agg({"number": "sum", "share": "mean"}).reset_index().sort_values("number").to_dict()
frame[frame["share"] > 1].describe()
""",
    "numpy": """
import numpy
matrix = numpy.arange(6.0).reshape(2, 3)
(matrix @ matrix.T).sum(), matrix.mean(axis=0).tolist()
""",
}


def main(channel: int = 3, prefix=None) -> None:
    """Prepares, then serves forks from `channel` until it closes. Returns in no process.

    The program's arguments name the modules that its forks are likely to import. With `prefix`
    those that are packages are in the environment there, which only forks enter.
    """
    modules = sys.argv[1:]
    entry.prepare(modules, with_shell=prefix is None)
    # What a first turn makes once and for all, such as the compiler's types, is made here.
    rehearse(modules if prefix is None else [])
    fork = seal().fork
    # A second thread would not exist in a fork, but the locks it holds would.
    if len(listdir("/proc/self/task")) != 1:
        _exit(70)
    # Everything made so far lives as long as the zygote: no collection of a fork shall touch it.
    gc.collect()
    gc.freeze()
    has_time = fork(channel)
    reseed()
    if prefix is not None:
        # Sealed: foreign code may run from here on.
        environment.enter(prefix)
        if has_time:
            entry.load(modules)
    if has_time:
        # The pages that a turn writes to are copied before somebody waits for it.
        rehearse(modules)
    entry.serve(3)


def rehearse(modules: list) -> None:
    """Runs what turns of this tier are likely to begin with."""
    execution.rehearse()
    for name in modules:
        if name in REHEARSALS:
            execution.rehearse(REHEARSALS[name])


def seal():
    """The module in `OBJECT`, by the shortest way: most of `importlib` is not needed."""
    from _frozen_importlib import ModuleSpec
    from _imp import create_dynamic

    if "t" in sys.abiflags:
        raise ImportError("the object is made for an interpreter with a global lock")
    return create_dynamic(ModuleSpec("mcp_forge_seal", None, origin=OBJECT))


def reseed() -> None:
    """Random states that were copied with the fork get a seed of their own.

    `random` does it by itself, after every fork; `secrets` and `uuid` keep no state.
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
