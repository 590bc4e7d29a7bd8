"""The one asyncio loop of a session: it lives between turns, and runs while the session is idle."""

from .originals import BUILTINS as __builtins__

import asyncio
from _signal import SIGINT, signal

from . import originals
from .attribution import attribution

# How long a cell that was interrupted may take for its `finally`, in seconds.
PATIENCE = 1.0
# Of a loop that cannot run any more, how often it is tried between two turns.
ATTEMPTS = 50
# A cell that names one of these runs in the loop even if it does not await.
NEEDS_LOOP = ("create_task", "ensure_future", "get_running_loop", "current_task", "TaskGroup")
RUNS_OWN_LOOP = ("asyncio.run(", "run_until_complete(", "run_forever(", "Runner(")


def wants_loop(source: str) -> bool:
    """Whether code that does not await is to run in the loop, so that it can make tasks.

    Other code runs outside of it, so that `asyncio.run` works as in a script.
    """
    return any(name in source for name in NEEDS_LOOP) and not any(
        name in source for name in RUNS_OWN_LOOP
    )


async def note_place(coroutine, places: list):
    """Awaits a coroutine, and notes the traceback of what ended it."""
    try:
        result = await coroutine
    except BaseException as problem:
        places.append(problem.__traceback__)
        raise
    # A shell's coroutine returns what was raised in it.
    problem = getattr(result, "error_in_exec", None)
    if problem is not None:
        places.append(problem.__traceback__)
    return result


class SessionLoop:
    """The loop, made when it is first needed, and made anew should the user close it."""

    def __init__(self) -> None:
        self.loop = None
        self.forgotten = []
        # Whether it ran since this was asked before: its tasks may have bound names.
        self.ran_idle = False

    def get(self):
        """The loop, set as the main thread's."""
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        return self.loop

    def run(self, coroutine):
        """Runs a coroutine to its end; an interrupt cancels it. Other tasks go on beside it."""
        loop = self.get()
        attribution.is_concurrent()
        places = []
        task = loop.create_task(note_place(coroutine, places))
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt as interrupt:
            self.cancel(loop, task)
            place = places.pop() if places else interrupt.__traceback__
            raise KeyboardInterrupt().with_traceback(place) from None

    def cancel(self, loop, task) -> None:
        """Ends a task after an interrupt, if it lets itself be ended."""
        if not task.done():
            task.cancel()
            try:
                loop.run_until_complete(asyncio.wait({task}, timeout=PATIENCE))
            except KeyboardInterrupt:
                return  # a second interrupt does not wait
        if task.done() and not task.cancelled():
            task.exception()  # so that nobody complains that it was not asked for

    def run_until_frame(self, channel) -> None:
        """While the session is idle: runs the loop, if there is one, until a frame arrives.

        An interrupt then means a callback that never returns, but only once a frame waits.
        """
        loop = self.loop
        if loop is None or loop.is_closed() or loop.is_running():
            return

        def interrupt(number, frame):
            if channel.is_readable():
                raise KeyboardInterrupt

        failures = 0
        self.ran_idle = not channel.is_readable()
        while failures < ATTEMPTS and not channel.is_readable():
            try:
                loop.add_reader(channel.fd, loop.stop)
                signal(SIGINT, interrupt)
                loop.run_forever()
            except BaseException:
                failures += 1  # a callback that raised SystemExit, or the user's own loop tricks
            originals.settle()
            try:
                loop.remove_reader(channel.fd)
            except BaseException:
                failures = ATTEMPTS

    def shut_idle_executor(self) -> None:
        """Ends the threads of `asyncio.to_thread` if none of them works."""
        executor = getattr(self.loop, "_default_executor", None)
        try:
            if executor is not None and executor._idle_semaphore._value >= len(executor._threads):
                self.loop._default_executor = None
                executor.shutdown(wait=True)
        except AttributeError:
            return  # another Python, or the user's own executor

    def forget(self) -> None:
        """In a branch: the parent's loop, with its tasks, is closed without touching what is shared.

        Its epoll instance is the parent's, too: `close` would take the parent's descriptors out.
        """
        loop, self.loop = self.loop, None
        if loop is None:
            return
        self.forgotten.append(loop)
        asyncio.set_event_loop(None)
        try:
            loop._closed = True
            loop._selector.close()
            loop._ssock.close()
            loop._csock.close()
        except (AttributeError, OSError):
            return  # not asyncio's own: it is kept, and never run
