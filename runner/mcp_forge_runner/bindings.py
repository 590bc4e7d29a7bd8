"""Which turn bound which name last, told by comparing what the names are bound to."""

from .originals import BUILTINS as __builtins__

import sys
from _thread import _count
from _weakref import ref

# Freed objects leave their address to new ones. An immutable small object is simply kept alive;
# another is watched by a weak reference; where there is none, the code's stores decide.
HELD = frozenset((int, float, bool, complex, str, bytes, type(None), type(Ellipsis)))
HELD_BYTES = 1024
MAX_CODE_BYTES = 1 << 20


class Binding:
    """A name's latest binding. `stamp` grows with each one."""

    __slots__ = ("watch", "stamp", "execution_id")

    def __init__(self, watch, stamp: int, execution_id) -> None:
        self.watch, self.stamp, self.execution_id = watch, stamp, execution_id


class Bindings:
    """The names of a session's `__main__`, except those that were there before any code."""

    def __init__(self, namespace: dict) -> None:
        self.initial = dict(namespace)
        self.identities = {}
        self.bindings = {}
        self.stamp = 0
        self.inspected = {}
        self.last_execution_id = None

    def note(self, namespace: dict, execution_id, codes=()) -> None:
        """A turn is over: what is bound to something else than before was bound by it."""
        stored = stored_names(codes)
        identities, bindings = self.identities, self.bindings
        now = dict(namespace)
        for name, value in now.items():
            if identities.get(name) == id(value) and name not in stored:
                watch = bindings[name].watch
                if type(watch) is not ref or watch() is value:
                    continue
            elif self.initial.get(name, self) is value:
                continue
            self.stamp += 1
            identities[name] = id(value)
            bindings[name] = Binding(watch_of(value), self.stamp, execution_id)
        for name in identities.keys() - now.keys():
            del identities[name], bindings[name]
        self.last_execution_id = execution_id

    def note_late(self, namespace: dict) -> None:
        """What threads and tasks bound since then counts for the turn before."""
        if _count() or "asyncio" in sys.modules:
            self.note(namespace, self.last_execution_id)

    def is_users(self, name, value) -> bool:
        """Whether a name was bound by the user's code."""
        return name in self.bindings and self.initial.get(name, self) is not value

    def take_changes(self, names: list) -> dict:
        """What became of these names since this was asked before."""
        now = {name: self.bindings[name].stamp for name in names if name in self.bindings}
        before, self.inspected = self.inspected, now
        return {
            "added": [name for name in now if name not in before],
            "rebound": [name for name in now if before.get(name, now[name]) != now[name]],
            "removed": [name for name in before if name not in now],
        }


def watch_of(value):
    """What keeps an object's address from being mistaken for another object's."""
    if type(value) in HELD:
        return value if sys.getsizeof(value) <= HELD_BYTES else None
    try:
        return ref(value)
    except TypeError:
        return None


def stored_names(codes) -> set:
    """Names that the cells' own statements bind: of a list that was made anew at the same place."""
    names = set()
    if not codes:
        return names
    from opcode import EXTENDED_ARG, opmap

    for code in codes:
        text = code.co_code
        if len(text) > MAX_CODE_BYTES:
            continue
        operations, arguments = text[::2], text[1::2]
        for kind in (opmap["STORE_NAME"], opmap["STORE_GLOBAL"]):
            place = operations.find(kind)
            while place >= 0:
                number = arguments[place]
                if place and operations[place - 1] == EXTENDED_ARG:
                    number |= arguments[place - 1] << 8
                if number < len(code.co_names):
                    names.add(code.co_names[number])
                place = operations.find(kind, place + 1)
    return names
