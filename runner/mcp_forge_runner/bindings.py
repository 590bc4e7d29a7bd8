"""Which turn bound which name last, told by comparing what the names are bound to."""

from .originals import BUILTINS as __builtins__

import sys
from _weakref import ref
from opcode import EXTENDED_ARG, opmap

# Freed objects leave their address to new ones. An immutable small object is simply kept alive;
# another is watched by a weak reference; where there is none, the code's stores decide.
HELD = frozenset(map(id, (int, float, bool, complex, str, bytes, type(None), type(Ellipsis))))
HELD_BYTES = 1024
STORES = opmap["STORE_NAME"], opmap["STORE_GLOBAL"]
MAX_CODE_BYTES = 1 << 20
HISTORY = ("_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh", "_exit_code", "In", "Out")


class Binding:
    """A name's latest binding. `stamp` grows with each one."""

    __slots__ = ("watch", "stamp", "execution_id")

    def __init__(self, watch, stamp: int, execution_id) -> None:
        self.watch, self.stamp, self.execution_id = watch, stamp, execution_id


class Bindings:
    """The names of a session's `__main__`, except those that were there before any code, and history."""

    def __init__(self, namespace: dict) -> None:
        self.initial = names_of(namespace)
        self.identities = dict(zip(self.initial, map(id, self.initial.values())))
        self.bindings, self.watched = {}, {}
        self.stamp = 0
        self.inspected = {}
        self.last_execution_id = None

    def note(self, namespace: dict, execution_id, codes=()) -> None:
        """A turn is over: what is bound to something else than before was bound by it."""
        known = self.identities
        gone = [name for name, watch in self.watched.items() if watch() is None]
        for name in (*gone, *stored_names(codes)):
            self.forget(name)
        items = list(namespace.items())
        # A key that is no plain string could run code when it is looked up.
        changed = [
            (name, value)
            for name, value in items
            if type(name) is str and known.get(name) != id(value)
        ]
        for name, value in changed:
            known[name] = id(value)
            if self.initial.get(name, self) is not value and not is_history(name):
                self.bind(name, value, execution_id)
        if len(known) != len(items):
            for name in known.keys() - {name for name, _ in items if type(name) is str}:
                self.forget(name)
        self.last_execution_id = execution_id

    def forget(self, name: str) -> None:
        """A name is not bound any more, or bound anew."""
        self.identities.pop(name, None)
        self.bindings.pop(name, None)
        self.watched.pop(name, None)

    def bind(self, name, value, execution_id) -> None:
        """A name was bound to a value."""
        self.stamp += 1
        watch = watch_of(value)
        self.bindings[name] = Binding(watch, self.stamp, execution_id)
        self.watched.pop(name, None)
        if type(watch) is ref:
            self.watched[name] = watch

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


def is_history(name: str) -> bool:
    """Whether the shell keeps its history under this name: `_`, `_5`, `_i5`, `Out`."""
    if name in HISTORY:
        return True
    return name.startswith("_") and name[1:].removeprefix("i").isdigit()


def names_of(namespace: dict) -> dict:
    """A copy, without keys that are no plain strings and could run code when they are compared."""
    return {name: value for name, value in list(namespace.items()) if type(name) is str}


def watch_of(value):
    """What keeps an object's address from being mistaken for another object's."""
    # By identity: to ask whether a class is in a set may run its metaclass.
    if id(type(value)) in HELD:
        return value if sys.getsizeof(value) <= HELD_BYTES else None
    try:
        return ref(value)
    except TypeError:
        return None


def stored_names(codes) -> set:
    """Names that the cells' own statements bind: of a list that was made anew at the same place."""
    names = set()
    for code in codes:
        text = code.co_code
        if len(text) > MAX_CODE_BYTES:
            continue
        operations, arguments = text[::2], text[1::2]
        for kind in STORES:
            place = operations.find(kind)
            while place >= 0:
                number = arguments[place]
                if place and operations[place - 1] == EXTENDED_ARG:
                    number |= arguments[place - 1] << 8
                if number < len(code.co_names):
                    names.add(code.co_names[number])
                place = operations.find(kind, place + 1)
    return names
