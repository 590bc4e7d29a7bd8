"""Text for people: a `repr` that stays bounded and never raises, whatever the object does."""

from .originals import BUILTINS as __builtins__

from sys import setprofile, settrace

# Longer numbers are shown in base 16: decimal takes quadratic time, and Python refuses it.
DECIMAL_BITS = 14_000
DEPTH_LIMIT = 100
MARKER_ROOM = 60

BRACKETS = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("frozenset({", "})")}
SCALARS = frozenset((bool, float, complex, type(None), type(Ellipsis), type(NotImplemented)))
class_mro = type.__dict__["__mro__"].__get__
class_dict = type.__dict__["__dict__"].__get__
class_name = type.__dict__["__name__"].__get__
class_module = type.__dict__["__module__"].__get__
class_attribute = type.__getattribute__
traceback_of = BaseException.__dict__["__traceback__"].__get__


class Full(Exception):
    """There is no room for more text."""


class Text:
    """Collects a text of at most `room` characters and counts what no longer fits."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.parts = []
        self.left_out = 0
        self.path = set()

    def add(self, text: str) -> None:
        """Adds text, or as much as fits, and then raises `Full`."""
        if len(text) > self.room:
            self.parts.append(text[: self.room])
            self.left_out += len(text) - self.room
            self.room = 0
            raise Full
        self.parts.append(text)
        self.room -= len(text)

    def add_repr(self, value, depth: int) -> None:
        """Adds the `repr` of a value; containers are walked here and not built as a whole."""
        kind = type(value)
        if kind is str or kind is bytes:
            self.add_string(value)
        elif kind is int:
            self.add(int_text(value))
        elif kind in SCALARS:
            self.add(repr(value))
        elif kind is dict or inherits_repr(kind, dict):
            self.add_nested(value, depth, self.add_dict, "{...}")
        elif kind in BRACKETS:
            self.add_nested(value, depth, self.add_items, unfinished(kind))
        elif inherits_repr(kind, list):
            self.add_nested(value, depth, self.add_items, "[...]")
        else:
            self.add(safe_repr(value))

    def add_string(self, value) -> None:
        """A string or bytes: only the part that fits is escaped."""
        if len(value) <= self.room:
            self.add(repr(value))
            return
        self.left_out += len(value) - self.room
        self.add(repr(value[: self.room]))
        raise Full

    def add_nested(self, value, depth: int, add, unfinished_text: str) -> None:
        """A container, unless it contains itself or is nested too deep."""
        if depth >= DEPTH_LIMIT or id(value) in self.path:
            self.add(unfinished_text)
            return
        self.path.add(id(value))
        try:
            add(value, depth + 1)
        finally:
            self.path.discard(id(value))

    def add_items(self, value, depth: int) -> None:
        kind = list if isinstance(value, list) else type(value)
        count = kind.__len__(value)
        if not count and kind not in (list, tuple):
            self.add(kind.__name__ + "()")
            return
        opening, closing = BRACKETS[kind]
        self.add(opening)
        for item in kind.__iter__(value):
            count -= 1
            self.add_one(item, depth, count)
        self.add(",)" if kind is tuple and tuple.__len__(value) == 1 else closing)

    def add_one(self, item, depth: int, more: int) -> None:
        """One item; when there is no more room, counts those after it as three characters each."""
        try:
            self.add_repr(item, depth)
            if more > 0:
                self.add(", ")
        except Full:
            self.left_out += 3 * max(more, 0)
            raise

    def add_dict(self, value, depth: int) -> None:
        self.add("{")
        more = dict.__len__(value)
        for key, item in dict.items(value):
            more -= 1
            self.add_repr(key, depth)
            self.add(": ")
            self.add_one(item, depth, 2 * more)
        self.add("}")


def bounded_repr(value, limit: int):
    """The `repr` of a value in at most `limit` characters, and how many were left out.

    Exact while it fits. What does not fit is cut at the end, with a marker. The number is a
    lower bound: a list of ten million items is not walked to its end.
    """
    text = Text(limit)
    try:
        text.add_repr(value, 0)
    except Full:
        pass
    except BaseException as problem:
        return describe_failure(value, problem)[:limit], 0
    whole = "".join(text.parts)
    if not text.left_out:
        return whole, 0
    kept = whole[: max(limit - MARKER_ROOM, 0)]
    left_out = text.left_out + len(whole) - len(kept)
    return (kept + f"... [{left_out} or more characters left out]")[:limit], left_out


def safe_repr(value) -> str:
    """`repr(value)` as an exact `str`. Of a failing `__repr__` it says so."""
    return ask_for_text(repr, value)


def safe_str(value) -> str:
    """`str(value)` as an exact `str`. Of a failing `__str__` it says so."""
    return ask_for_text(str, value)


def ask_for_text(function, value) -> str:
    try:
        text = str.__str__(function(value))
    except BaseException as problem:
        text = problem
    # A method may leave a tracer behind, which would break the next call.
    try:
        setprofile(None)
    except BaseException:
        pass  # the profiler saw its own end and raised; that ended it
    try:
        settrace(None)
    except BaseException:
        pass  # an audit hook refuses it; what it allows will do
    return text if type(text) is str else describe_failure(value, text)


def describe_failure(value, problem) -> str:
    """What stands for a value that cannot be shown."""
    return f"<{type_name(value)} object that cannot be shown: {class_name(type(problem))}>"


def type_name(value) -> str:
    """The name of a value's class, whatever its metaclass or `__class__` say."""
    return str.__str__(class_name(type(value)))


def inherits_repr(kind, base) -> bool:
    """Whether a subclass of a builtin kept that builtin's `repr` and iteration."""
    if base not in class_mro(kind):
        return False
    return class_attribute(kind, "__repr__") is base.__repr__


def unfinished(kind) -> str:
    """What Python shows in place of a container that contains itself."""
    return {list: "[...]", tuple: "(...)"}.get(kind, kind.__name__ + "(...)")


def int_text(value: int) -> str:
    """An exact `int` in decimal, a very long one in base 16."""
    return hex(value) if value.bit_length() > DECIMAL_BITS else int.__repr__(value)


def cut_middle(text: str, limit: int):
    """The text in at most `limit` characters, cut in the middle, and how many were left out."""
    if len(text) <= limit:
        return text, 0
    kept = max(limit - MARKER_ROOM, 0)
    left_out = len(text) - kept
    head, tail = kept - kept // 2, kept // 2
    marker = f"\n... [{left_out} characters left out] ...\n"
    return (text[:head] + marker + text[len(text) - tail :])[:limit], left_out
