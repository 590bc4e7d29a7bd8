"""The value of the last expression as JSON, by the rules of `docs/values.md`.

Every value has a form; what JSON lacks is replaced, never an error. Containers are read with
the methods of their builtin base class, so that an override is neither called nor believed.
"""

from .originals import BUILTINS as __builtins__

from .channel import escape, well_formed
from .reprs import bounded_repr, class_mro, int_text, type_name

DEPTH_LIMIT = 100
# Each open container keeps this much for the note that says what it left out.
NOTE_BYTES = 64
SMALLEST_INT, LARGEST_INT = -(1 << 63), (1 << 64) - 1
REPR_CHARS = 2000
KEY_CHARS = 1000

NOT_FINITE = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
DICT_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
# By base class; the class itself supplies `__len__` and `__iter__`.
SEQUENCES = frozenset((list, tuple, set, frozenset, range, *DICT_VIEWS))
BINARY = frozenset((bytes, bytearray, memoryview))
ATOMS = {True: "True", False: "False", None: "None"}


def to_json(value, max_bytes: int):
    """A value as plain data of at most `max_bytes` bytes of ASCII JSON, and the bytes left out.

    The number is a lower bound, and more than 0 if anything was left out.
    """
    conversion = Conversion(max_bytes)
    plain = conversion.convert(value, 0)
    return plain, conversion.left_out


class Conversion:
    """One conversion: the bytes that are left, and the containers that are open."""

    def __init__(self, max_bytes: int) -> None:
        self.room = max_bytes
        self.left_out = 0
        self.path = set()

    def convert(self, value, depth: int):
        """Any value as plain data. Never raises."""
        try:
            return self.convert_builtin(value, depth)
        except BaseException as problem:
            return self.text(f"[{type_name(value)} that cannot be converted: {type_name(problem)}]")

    def convert_builtin(self, value, depth: int):
        kind = type(value)
        if kind is str:
            return self.text(value)
        if value is None or value is True or value is False:
            return self.spend(5, value)
        if kind is int:
            return self.integer(value)
        if kind is float:
            return self.number(value)
        if kind is list:
            return self.items(value, list, depth)
        if kind is dict:
            return self.mapping(value, depth)
        return self.convert_class(value, kind, depth)

    def convert_class(self, value, kind, depth: int):
        """A value of a class: as what it is known to be, else as the builtin it extends."""
        from . import foreign

        simpler = foreign.simplify(value, kind, self.room)
        if simpler is not None:
            return self.convert_simpler(value, simpler, depth)
        for base in class_mro(kind):
            if base in SEQUENCES:
                return self.items(value, base, depth)
            if base is dict:
                return self.mapping(value, depth)
            if base in BINARY:
                return self.binary(value, base, depth)
            if base is str:
                return self.text(str.__str__(value))
            if base is int:
                return self.integer(int.__pos__(value))
            if base is float:
                return self.number(float.__pos__(value))
        text, left_out = bounded_repr(value, REPR_CHARS)
        self.left_out += left_out
        return self.text(text)

    def convert_simpler(self, value, simpler, depth: int):
        """What a value was simplified to; noticing that the value contains itself."""
        if id(value) in self.path:
            return self.text("[cycle]")
        self.path.add(id(value))
        try:
            self.left_out += simpler.left_out
            return self.convert_builtin(simpler.value, depth)
        finally:
            self.path.discard(id(value))

    def spend(self, count: int, value):
        """The value, if its bytes are still there, else null."""
        if count > self.room:
            self.left_out += count
            return None
        self.room -= count
        return value

    def integer(self, value: int):
        if SMALLEST_INT <= value <= LARGEST_INT:
            return self.spend(len(int.__repr__(value)), value)
        return self.text(int_text(value))

    def number(self, value: float):
        text = float.__repr__(value)
        if text in NOT_FINITE:
            return self.text(NOT_FINITE[text])
        return self.spend(len(text), value)

    def text(self, value: str):
        """A string, or the part of it that fits and a note."""
        head = value if len(value) <= self.room else value[: max(self.room, 0)]
        size = len(escape(head))
        if head is value and size <= self.room:
            return self.spend(size, well_formed(value))
        room = self.room - NOTE_BYTES - 2
        if room < 0:
            self.left_out += len(value)
            return self.spend(2, "")
        while size - 2 > room:
            head = head[: min(len(head) * room // size, len(head) - 1)]
            size = len(escape(head))
        missing = len(value) - len(head)
        self.left_out += missing
        self.room -= size + NOTE_BYTES
        return well_formed(head) + f"... [{missing} more characters]"

    def binary(self, value, base, depth: int):
        """Bytes as `{"$bytes": base64}`."""
        from binascii import b2a_base64

        size = value.nbytes if base is memoryview else base.__len__(value)
        fits = max(self.room - 3 * NOTE_BYTES, 0) // 4 * 3
        if base is memoryview:
            head = value.tobytes()[:fits]
        else:
            head = bytes(base.__getitem__(value, slice(0, fits)))
        fields = {"$bytes": b2a_base64(head, newline=False).decode("ascii")}
        if size > fits:
            fields["bytes_left_out"] = size - fits
            self.left_out += (size - fits) * 4 // 3
        return self.mapping(fields, depth)

    def items(self, value, base, depth: int):
        """Any of `SEQUENCES` as a list."""
        count = base.__len__(value)
        if not self.enter(value, depth):
            return self.unentered(value, depth, count)
        result = []
        for item in base.__iter__(value):
            if self.room < NOTE_BYTES:
                break
            self.room -= 1 if result else 0  # the comma
            result.append(self.convert(item, depth + 1))
        missing = count - len(result)
        self.leave(value, missing)
        if missing > 0:
            self.left_out += 2 * missing
            result.append(f"[{missing} more items]")
        return result

    def mapping(self, value, depth: int):
        """A dict as an object whose keys are strings and unique."""
        count = dict.__len__(value)
        if not self.enter(value, depth):
            return self.unentered(value, depth, 3 * count)
        result, numbers = {}, {}
        for key, item in dict.items(value):
            name = unique(key_text(key), result, numbers)
            size = len(escape(name)) + (2 if result else 1)
            if self.room < NOTE_BYTES + size:
                break
            self.room -= size
            result[name] = self.convert(item, depth + 1)
        missing = count - len(result)
        self.leave(value, missing)
        if missing > 0:
            self.left_out += 5 * missing
            result[unique("[left out]", result, numbers)] = f"{missing} more items"
        return result

    def enter(self, value, depth: int) -> bool:
        """Opens a container, unless it is open already, nested too deep, or there is no room."""
        if depth >= DEPTH_LIMIT or id(value) in self.path or self.room < 2 * NOTE_BYTES:
            return False
        self.path.add(id(value))
        self.room -= NOTE_BYTES + 2
        return True

    def leave(self, value, missing: int) -> None:
        """Closes a container. If nothing is missing, the room kept for its note is free again."""
        self.path.discard(id(value))
        if missing <= 0:
            self.room += NOTE_BYTES

    def unentered(self, value, depth: int, size: int):
        """What stands for a container that `enter` refused."""
        if id(value) in self.path:
            return self.text("[cycle]")
        self.left_out += max(2 * size, 2)
        if depth >= DEPTH_LIMIT:
            return self.text(f"[nested deeper than {DEPTH_LIMIT} levels]")
        return self.text("[left out]")


def key_text(key) -> str:
    """A dict key as a string."""
    kind = type(key)
    if kind is not str:
        if kind is bool or key is None:
            return ATOMS[key]
        if kind is int:
            return int_text(key)
        key = key_of_class(key)
    if len(key) > KEY_CHARS:
        key = key[:KEY_CHARS] + f"... [{len(key) - KEY_CHARS} more characters]"
    return well_formed(key)


def key_of_class(key) -> str:
    """A key that is no plain string: as its value's text form if it has one, else its `repr`."""
    if isinstance(key, float):
        return float.__repr__(key)
    plain = Conversion(4 * KEY_CHARS).convert(key, 0)
    if isinstance(plain, str):
        return plain
    if isinstance(plain, (bool, int, float)):
        return repr(plain)
    return bounded_repr(key, KEY_CHARS)[0]


def unique(name: str, taken: dict, numbers: dict) -> str:
    """The name, with ` (2)`, ` (3)` and so on appended while an earlier key has it.

    `numbers` remembers where the counting of a name stopped: equal names stay linear.
    """
    if name not in taken:
        return name
    number = numbers.get(name, 2)
    while f"{name} ({number})" in taken:
        number += 1
    numbers[name] = number + 1
    return f"{name} ({number})"
