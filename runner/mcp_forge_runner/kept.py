"""What a session's code set in the interpreter and finds again in its next turn.

Between turns the runner takes control: no handler of the user's runs in it.
"""

from .originals import BUILTINS as __builtins__

from _signal import SIGINT, getsignal, signal
from sys import getrecursionlimit, getswitchinterval, setrecursionlimit, setswitchinterval

from .originals import ALL_SIGNALS, RECURSION_LIMIT


class Kept:
    """Signal handlers, except that of SIGINT, and the interpreter's own limits."""

    def __init__(self) -> None:
        self.handlers = {}
        self.recursion_limit = RECURSION_LIMIT
        self.switch_interval = None

    def take(self) -> None:
        """After the user's code: remembers what it left."""
        for number in ALL_SIGNALS:
            handler = getsignal(number)
            if callable(handler) and number != SIGINT:
                self.handlers[number] = handler
            else:
                self.handlers.pop(number, None)
        self.recursion_limit = getrecursionlimit()
        self.switch_interval = getswitchinterval()

    def restore(self) -> None:
        """Before the user's code. A lower recursion limit is not kept: the shell would not run in it."""
        for number, handler in self.handlers.items():
            signal(number, handler)
        if self.recursion_limit > RECURSION_LIMIT:
            setrecursionlimit(self.recursion_limit)
        if self.switch_interval is not None:
            setswitchinterval(self.switch_interval)
