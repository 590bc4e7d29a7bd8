"""Which turn a thread or an asyncio task belongs to: the one whose code started it.

A context variable says it: asyncio copies it to each task, and threads get it from `start`
here. So what is printed, displayed or called late is never taken for a later turn's.
"""

from .originals import BUILTINS as __builtins__

import _thread
from _contextvars import ContextVar
from _thread import RLock
from posix import register_at_fork

# What starts threads, by where `threading` keeps its own reference: 3.10 to 3.12, then 3.13.
STARTERS = ("start_new_thread", "start_new", "_start_new_thread", "_start_joinable_thread")

owner = ContextVar("mcp_forge_turn", default=None)


class Origin:
    """A turn, as long as anything that it started lives."""

    __slots__ = ("execution_id",)

    def __init__(self, execution_id: str) -> None:
        self.execution_id = execution_id


class Attribution:
    """The turn that runs, if one does. Who writes output holds `lock`: a turn ends between writes."""

    def __init__(self) -> None:
        self.current = None
        self.last = Origin("")
        self.streams = []
        self.lock = RLock()
        register_at_fork(after_in_child=self.renew)

    def begin(self, origin: Origin) -> None:
        """A turn begins, on the thread that calls this."""
        with self.lock:
            self.current = self.last = origin
        owner.set(origin)

    def end(self) -> None:
        """The turn is over: whatever of it still runs is late."""
        self.is_concurrent()
        with self.lock:
            self.current = None

    def is_alone(self) -> None:
        """Only one thread runs, so that its output need not be asked whose it is."""
        for stream in self.streams:
            stream.write_plainly()

    def is_concurrent(self) -> None:
        """From now on more than the turn's own thread may write."""
        for stream in self.streams:
            stream.write_by_turn()

    def is_current(self) -> bool:
        """Whether the caller belongs to the turn that runs."""
        origin = owner.get()
        return origin is self.current if origin is not None else self.current is not None

    def of_caller(self) -> Origin:
        """The turn that the caller belongs to; of an unknown caller the latest."""
        return owner.get() or self.last

    def renew(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self.lock = RLock()


attribution = Attribution()


def carried(function):
    """The function, as one that belongs to its caller's turn wherever it is run."""
    if not callable(function):
        return function
    origin = owner.get()

    def run(*args, **kwargs):
        owner.set(origin)
        return function(*args, **kwargs)

    return run


def adjust_starters(module) -> None:
    """Threads that this module starts belong to the turn of their starter."""
    for name in STARTERS:
        start = module.__dict__.get(name)
        if start is not None:
            setattr(module, name, carrying(start))


def carrying(start):
    """A function that starts threads, so that they know their turn. Once is enough."""
    if isinstance(start, Starter):
        return start
    return Starter(start)


class Starter:
    """What `_thread.start_new_thread` is in a session."""

    def __init__(self, start) -> None:
        self.start = start
        self.__name__ = self.__qualname__ = start.__name__
        self.__doc__ = start.__doc__

    def __call__(self, function, *args, **kwargs):
        attribution.is_concurrent()
        return self.start(carried(function), *args, **kwargs)

    def __repr__(self) -> str:
        return repr(self.start)


def adjust_executor(module) -> None:
    """A pool's threads outlive turns: what they do belongs to the turn that asks for it."""
    submit = module.ThreadPoolExecutor.submit

    def submit_carried(self, fn, /, *args, **kwargs):
        return submit(self, carried(fn), *args, **kwargs)

    submit_carried.__name__, submit_carried.__qualname__ = submit.__name__, submit.__qualname__
    submit_carried.__doc__, submit_carried.__module__ = submit.__doc__, submit.__module__
    module.ThreadPoolExecutor.submit = submit_carried


def adjust_builtin_threads() -> None:
    """The same for the module below `threading`."""
    adjust_starters(_thread)
