"""The entry point: prepare once, then serve turns that arrive on a socket."""

from .originals import BUILTINS as __builtins__

import os
import sys
from posix import _exit

from . import execution, hooks, originals
from .channel import Channel

# In place of a module's name: all that a session needs, its shell included.
SESSION = "mcp_forge_runner.session"


def main(control_fd: int = 3) -> None:
    """Runs turns from the socket `control_fd` until it closes. Does not return."""
    prepare()
    serve(control_fd)


def prepare(modules=(), with_shell: bool = True) -> None:
    """Everything that turns have in common: no thread, no descriptor, no state of a turn.

    A process that forks one child a turn calls this once, with the names of modules that
    turns are likely to import.
    """
    names = list(modules)
    leave_no_trace()
    load(names, with_shell)
    hooks.install()
    originals.remember()
    sys.path.insert(0, os.getcwd())
    open_streams()


def load(modules, with_shell: bool = True) -> None:
    """Imports modules ahead, as far as they are there. A session's shell may be one of a package."""
    for name in modules:
        try:
            __import__(name)
            if name == SESSION and with_shell:
                sys.modules[name].preload()
        except Exception:
            # A missing or broken package is the business of the turn that imports it.
            continue


def serve(control_fd: int) -> None:
    """Serves the turns of one connection, then ends the process without any exit handler."""
    os.set_inheritable(control_fd, False)
    channel = Channel(control_fd)
    channel.send({"type": "ready", "python": sys.version.split()[0]})
    while True:
        request = channel.receive()
        if request is not None and request.get("type") == "start_session":
            from . import session

            session.serve(channel)
        if request is None or request.get("type") != "execute":
            # The server hung up, or talks a protocol that we do not know.
            _exit(0 if request is None else 70)
        execution.run_turn(channel, request)


def leave_no_trace() -> None:
    """Makes the interpreter look as if only the user's code had been started."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]
    sys.argv[:] = [""]
    sys.breakpointhook = refuse_breakpoint


def open_streams() -> None:
    """Output leaves at each line's end, in UTF-8, and never fails on a lone surrogate.

    A line costs one `write` (about a microsecond), which buys that a crash, a kill or
    `os._exit` loses nothing, and that a line is seen while the next one is computed.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


def refuse_breakpoint(*args, **kwargs):
    """`sys.breakpointhook` where there is nobody to type at a debugger."""
    raise RuntimeError("breakpoint(): there is no terminal in the sandbox; print the values instead")


if __name__ == "__main__":
    main()
