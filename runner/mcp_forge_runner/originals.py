"""What the runner needs after user code ran, kept where user code does not reach by accident.

User code may delete builtins, clear `sys.modules`, leave a tracer or an alarm behind. Each
module of the runner starts with `from .originals import BUILTINS as __builtins__`: functions
look builtins up in the globals they were defined in, so ours keep working. For the parts of
the standard library that we call late there is `Lent`.
"""

import builtins
import sys

BUILTINS = dict(vars(builtins))
__builtins__ = BUILTINS

import _signal
from _signal import SIG_BLOCK, SIG_IGN, SIG_SETMASK, getsignal, pthread_sigmask, setitimer, signal
from sys import setprofile, setrecursionlimit, setswitchinterval, settrace

ALL_SIGNALS = frozenset(_signal.valid_signals())
TIMERS = (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF)
RECURSION_LIMIT = sys.getrecursionlimit()
ATTEMPTS = 5
SWITCH_INTERVAL = sys.getswitchinterval()

live_builtins = vars(builtins)
live_modules = sys.modules
# Switches off a tool of `sys.monitoring` (Python 3.12); else a stand-in that does nothing.
set_events = sys.monitoring.set_events if hasattr(sys, "monitoring") else max
MONITORING_TOOLS = range(6)
remembered = {}


def remember() -> None:
    """Takes the snapshot that `Lent` lends. Called once, before any user code."""
    remembered.update(
        modules=dict(sys.modules),
        meta_path=list(sys.meta_path),
        path_hooks=list(sys.path_hooks),
    )


class Lent:
    """Inside `with Lent():` builtins and the import system are as they were at the start.

    Afterwards the user's changes are back, except that modules stay in `sys.modules`.
    """

    def __enter__(self):
        self.builtins = dict(live_builtins)
        live_builtins.update(BUILTINS)
        put_back_modules()
        self.hooks = {}
        for name in ("meta_path", "path_hooks"):
            self.hooks[name] = getattr(sys, name, [])
            setattr(sys, name, list(remembered[name]))
        self.hooks["modules"] = getattr(sys, "modules", {})
        sys.modules = live_modules
        return self

    def __exit__(self, *exception):
        for name, value in self.hooks.items():
            setattr(sys, name, value)
        for name in BUILTINS.keys() - self.builtins.keys():
            live_builtins.pop(name, None)
        live_builtins.update(self.builtins)
        return False


def settle() -> None:
    """Takes control back from what user code left armed: tracers, timers, handlers, limits.

    Signals that have a Python handler are ignored from here on, because a handler would run,
    and raise, in the middle of the runner.
    """
    for _ in range(ATTEMPTS):
        try:
            for timer in TIMERS:
                setitimer(timer, 0)
            for number in ALL_SIGNALS:
                if callable(getsignal(number)):
                    signal(number, SIG_IGN)
            setprofile(None)
            settrace(None)
            setswitchinterval(SWITCH_INTERVAL)
            setrecursionlimit(RECURSION_LIMIT)
            return
        except BaseException:
            # A handler that was already due, or a tracer: it has had its say.
            continue


class State:
    """Whether user code has run in this process."""

    is_used = False
    # Whether it was mended after that, and none has run since.
    is_mended = False


state = State()


def begin_turn() -> None:
    """Mends what an earlier turn tore out, and gives SIGINT its usual meaning."""
    if state.is_used and not state.is_mended:
        mend()
    state.is_used, state.is_mended = True, False
    begin_interrupts()


def mend() -> None:
    """Puts back what user code may have torn out: before the next code runs, or ahead of that."""
    # Costs a fork a copy of every page that holds a builtin.
    for name, value in BUILTINS.items():
        live_builtins.setdefault(name, value)
    put_back_modules()
    state.is_mended = True


def begin_interrupts() -> None:
    """From here on SIGINT is a KeyboardInterrupt."""
    signal(_signal.SIGINT, _signal.default_int_handler)


def put_back_modules() -> None:
    """Fills the gaps in the interpreter's own table, which `sys.modules = {}` does not change."""
    for name, module in remembered["modules"].items():
        if live_modules.get(name) is None:
            live_modules[name] = module


class SignalsHeld:
    """Inside, no signal interrupts this thread, so that a system call is done or not begun."""

    def __enter__(self):
        self.before = pthread_sigmask(SIG_BLOCK, ALL_SIGNALS)

    def __exit__(self, *exception):
        pthread_sigmask(SIG_SETMASK, self.before)
        return False
