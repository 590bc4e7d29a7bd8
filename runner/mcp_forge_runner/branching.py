"""A branch: a copy of the whole interpreter, made by `fork`, with a connection of its own."""

from .originals import BUILTINS as __builtins__

import sys
from posix import _exit, close, dup2, fork, pipe, read, setsid, waitpid, write
from time import monotonic, sleep

from . import execution, originals
from .inspection import thread_names

NEEDED = 3
# For threads that have done their work: one that waits for a processor may need it all. A thread that
# does go on is refused that much later, still well before the server gives up (30 s).
THREAD_PATIENCE = 2.0


def branch(session, descriptors: list) -> None:
    """Answers a `branch` request. In the branch it returns as well, to its first request."""
    try:
        if len(descriptors) != NEEDED:
            return refuse(session, f"a branch needs {NEEDED} descriptors, {len(descriptors)} came")
        session.shell.quiesce()
        names = lasting_threads(session.loop)
        if names:
            return refuse(session, f"thread `{names[0]}` is alive")
        execution.flush_streams()
        session.late.flush()
        with originals.SignalsHeld():
            pid = fork_twice()
            if pid == 0:
                become_branch(session, descriptors)
    except OSError as problem:
        return refuse(session, f"the interpreter cannot be copied: {problem.strerror}")
    finally:
        for fd in descriptors:
            close(fd)
    if pid:
        session.answer({"type": "branched", "pid": pid})
    else:
        session.answer({"type": "ready", "python": sys.version.split()[0]})


def lasting_threads(loop) -> list:
    """Names of live threads. One that has done its work gets a moment to end."""
    deadline = monotonic() + THREAD_PATIENCE
    while True:
        # Each time: a thread of the executor says that it is idle some time after its last result is known.
        loop.shut_idle_executor()
        names = thread_names()
        if not names or monotonic() > deadline:
            return names
        sleep(0.002)


def refuse(session, problem: str) -> None:
    session.answer({"type": "branched", "error": problem})


def fork_twice() -> int:
    """The branch's pid; 0 in the branch itself.

    The child in between ends at once: the branch is then no child of ours, which the user's
    code could wait for, and its end is the business of the sandbox's first process.
    """
    readable, writable = pipe()
    child = fork()
    if child == 0:
        try:
            close(readable)
            pid = fork()
            if pid == 0:
                close(writable)
                setsid()
                return 0
            write(writable, pid.to_bytes(4, "big"))
        except BaseException:
            pass  # an empty pipe says it
        _exit(0)
    close(writable)
    answer = read(readable, 4)
    close(readable)
    try:
        waitpid(child, 0)
    except ChildProcessError:
        pass  # the user's code ignores the ends of children: nobody has to wait for them
    if not answer:
        raise OSError(11, "Resource temporarily unavailable")
    return int.from_bytes(answer, "big")


def become_branch(session, descriptors: list) -> None:
    """Takes the new connection and streams, and forgets what only the parent can go on with."""
    control, output, errors = descriptors
    # The number is closed already: `fork` did it, as in every child.
    dup2(control, session.channel.fd, inheritable=False)
    dup2(output, 1)
    dup2(errors, 2)
    session.channel.take_over()
    session.loop.forget()
    reseed()


def reseed() -> None:
    """Random states that were copied. `random` does it by itself, after every fork."""
    numpy_random = sys.modules.get("numpy.random")
    try:
        if numpy_random is not None:
            numpy_random.seed()
    except Exception:
        return  # the user's own module under that name
