"""What a variable is, told without running anything of its class: no method, no property.

Facts come from the object's real type and from accessors that are written in C. A class that
was made in Python can lie about everything else, or never return.
"""

from .originals import BUILTINS as __builtins__

import sys

from . import reprs
from .reprs import SCALARS, Full, Text, class_dict, class_mro, int_text

HEAP_TYPE, IMMUTABLE_TYPE = 1 << 9, 1 << 8
type_flags = type.__dict__["__flags__"].__get__
get_qualname = type.__dict__["__qualname__"].__get__
FunctionType = type(lambda: None)
ModuleType = type(sys)
module_dict = ModuleType.__dict__["__dict__"].__get__

MAX_NAME = 200
MAX_COLUMNS = 100
MAX_INT_BITS = 14_000
# Classes by identity: to compare a class with others, or to look for it in a set, may run its
# metaclass.
SIZED = frozenset(map(id, (str, bytes, bytearray, list, tuple, dict, set, frozenset)))
CONTAINERS = frozenset(map(id, (list, tuple, dict, set, frozenset)))
SIMPLE = frozenset(map(id, (int, range, *SCALARS)))
LETTERS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex", "O": "object"}
# What a class written in C keeps for its fields; nobody can make one in Python for other code to run.
ACCESSORS = frozenset(
    (id(type(type.__dict__["__name__"])), id(type(FunctionType.__dict__["__globals__"])))
)
EXTENSIONS = {
    "Categorical": "category",
    "ArrowStringArray": "str",
    "StringArray": "str",
    "BooleanArray": "boolean",
    "PeriodArray": "period",
    "IntervalArray": "interval",
}
HIDDEN_MODULES = ("builtins", "__main__")
# pandas moved its classes; people know them by the short name.
FRAME_MODULES = ("pandas", "pandas.core.frame")
SERIES_MODULES = ("pandas", "pandas.core.series")


def type_text(kind) -> str:
    """A class's name with its module, `pandas.DataFrame`; builtin and own classes without."""
    name, module = class_qualname(kind) or "?", class_module(kind)
    if not module or module in HIDDEN_MODULES:
        return name[:MAX_NAME]
    if module.startswith("pandas.core."):
        module = "pandas"
    return f"{module}.{name}"[:MAX_NAME]


def exact_text(text) -> str:
    """A string that nobody has overridden; empty for anything else, which could compare as it likes."""
    return text if type(text) is str else ""


def class_name(kind) -> str:
    return exact_text(reprs.class_name(kind))


def class_qualname(kind) -> str:
    return exact_text(get_qualname(kind))


def class_module(kind) -> str:
    """Where a class says that it is from. Of a compiled class that is true."""
    try:
        return exact_text(reprs.class_module(kind))
    except AttributeError:
        return ""


def is_compiled(kind) -> bool:
    """Whether a class was made in C and cannot be changed from Python."""
    flags = type_flags(kind)
    return not flags & HEAP_TYPE or bool(flags & IMMUTABLE_TYPE)


def describe(value, chars: int) -> dict:
    """The facts about a variable that can be had for little; `chars` bounds its `repr`."""
    kind = type(value)
    facts = {"type": type_text(kind)}
    try:
        facts.update(facts_of(value, kind, chars))
    except Exception:
        # Another thread changes it, or a library is not as we know it: its type is said.
        pass
    return facts


def facts_of(value, kind, chars: int) -> dict:
    name, module = class_name(kind), class_module(kind)
    if id(kind) in SIZED or id(kind) in SIMPLE:
        return builtin_facts(value, kind, chars)
    if module == "numpy" and is_compiled(kind):
        return array_facts(value, kind, chars) if name == "ndarray" else scalar_facts(value, kind, chars)
    if name == "DataFrame" and module in FRAME_MODULES:
        return frame_facts(value)
    if name == "Series" and module in SERIES_MODULES:
        return series_facts(value)
    for base in class_mro(kind):
        if id(base) in SIZED:
            return {"length": base.__len__(value), "memory_bytes": base.__sizeof__(value)}
    return {"memory_bytes": object.__sizeof__(value)}


def builtin_facts(value, kind, chars: int) -> dict:
    facts = {"memory_bytes": sys.getsizeof(value), "repr": short_repr(value, chars)}
    if id(kind) in SIZED:
        facts["length"] = kind.__len__(value)
    return facts


class ShortText(Text):
    """A `repr` of builtin objects only; of any other object its class is said."""

    def add_repr(self, value, depth: int) -> None:
        kind = type(value)
        if kind is str or kind is bytes:
            self.add_string(value)
        elif kind is int:
            long = value.bit_length() > MAX_INT_BITS
            self.add(f"<int of {value.bit_length()} bits>" if long else int_text(value))
        elif kind is range:
            self.add_range(value)
        elif id(kind) in SIMPLE:
            self.add(repr(value))
        elif kind is dict:
            self.add_nested(value, depth, self.add_dict, "{...}")
        elif id(kind) in CONTAINERS:
            self.add_nested(value, depth, self.add_items, "...")
        else:
            self.add(f"<{type_text(kind)}>")

    def add_range(self, value) -> None:
        """Its ends may be of classes that extend `int`."""
        parts = (value.start, value.stop, value.step)
        self.add(repr(value) if all(type(part) is int for part in parts) else "<range>")


def short_repr(value, chars: int) -> str:
    """At most `chars` characters; three dots say that there is more."""
    text = ShortText(max(chars - 3, 0))
    try:
        text.add_repr(value, 0)
    except Full:
        return "".join(text.parts) + "..."
    return "".join(text.parts)


def array_facts(value, kind, chars: int) -> dict:
    """Of a NumPy array. `kind` is NumPy's own compiled class."""
    fields = class_dict(kind)
    shape = [int(length) for length in fields["shape"].__get__(value)]
    dtype = dtype_text(fields["dtype"].__get__(value))
    facts = {
        "shape": shape,
        "dtypes": {"": dtype},
        "memory_bytes": int(fields["nbytes"].__get__(value)),
        "repr": f"ndarray {times(shape)} {dtype}"[:chars],
    }
    if shape:
        facts["length"] = shape[0]
    return facts


def scalar_facts(value, kind, chars: int) -> dict:
    """Of a NumPy scalar."""
    generic = next((base for base in class_mro(kind) if class_name(base) == "generic"), None)
    if generic is None or not is_compiled(generic):
        return {"memory_bytes": object.__sizeof__(value)}
    fields = class_dict(generic)
    facts = {"memory_bytes": int(fields["nbytes"].__get__(value))}
    plain = fields["item"](value)
    if id(type(plain)) in SIMPLE or id(type(plain)) in SIZED:
        facts["repr"] = short_repr(plain, chars)
    return facts


def dtype_text(dtype) -> str:
    """A NumPy dtype's name by its C fields: its own `str` is written in Python."""
    base = next(base for base in class_mro(type(dtype)) if class_name(base) == "dtype")
    if not is_compiled(base):
        return "?"
    fields = class_dict(base)
    letter, size = fields["kind"].__get__(dtype), fields["itemsize"].__get__(dtype)
    if letter in ("b", "O"):
        return LETTERS[letter]
    if letter in LETTERS:
        return f"{LETTERS[letter]}{8 * size}"
    text = str.__str__(fields["str"].__get__(dtype))
    return text.replace("<M8", "datetime64").replace("<m8", "timedelta64").lstrip("|")


def frame_facts(value) -> dict:
    """Of a pandas DataFrame, by its blocks."""
    blocks, axes = manager_of(value)
    columns, rows = axes[0], axes[1]
    height, width = index_length(rows), index_length(columns)
    by_place, memory = {}, index_bytes(rows) + index_bytes(columns)
    for block in blocks:
        values, places = block_parts(block)
        memory += bytes_of(values)
        text = values_dtype(values)
        by_place.update((place, text) for place in places if place < MAX_COLUMNS)
    names = column_names(columns, min(width, MAX_COLUMNS))
    dtypes = {}
    for place, name in enumerate(names):
        dtypes.setdefault(name, by_place.get(place, "?"))
    return {
        "shape": [height, width],
        "dtypes": dtypes,
        "columns": width,
        "length": height,
        "memory_bytes": memory,
        "repr": f"DataFrame {height} x {width}",
    }


def series_facts(value) -> dict:
    """Of a pandas Series."""
    blocks, axes = manager_of(value)
    values = field(blocks[0], "values")
    length, dtype = index_length(axes[0]), values_dtype(values)
    return {
        "shape": [length],
        "dtypes": {"": dtype},
        "length": length,
        "memory_bytes": bytes_of(values) + index_bytes(axes[0]),
        "repr": f"Series {length} {dtype}",
    }


def manager_of(value):
    """The blocks and axes that pandas keeps in an object's own dict, by compiled accessors."""
    manager = own_dict(value)["_mgr"]
    # Of a frame's manager these are compiled, of a series' they are in its dict.
    parts = own_dict(manager)
    blocks, axes = (parts[name] if name in parts else field(manager, name) for name in ("blocks", "axes"))
    if type(blocks) is not tuple or type(axes) is not list:
        raise LookupError("not as pandas keeps it")
    return blocks, axes


def inherits(kind, base) -> bool:
    """Whether a class extends another, by what they are and not by what they say."""
    return any(one is base for one in class_mro(kind))


def field(value, name: str):
    """What a compiled accessor says of an object. Raises LookupError if the name is anything else."""
    for base in class_mro(type(value)):
        accessor = class_dict(base).get(name)
        if accessor is not None:
            if id(type(accessor)) not in ACCESSORS:
                break
            return type(accessor).__get__(accessor, value)
    raise LookupError(name)


def own_dict(value) -> dict:
    """An object's own attributes; none if it keeps them in a way of its own."""
    try:
        found = field(value, "__dict__")
    except LookupError:
        return {}
    return found if type(found) is dict else {}


def block_parts(block):
    """A block's values, and the numbers of its columns."""
    places = field(field(block, "_mgr_locs"), "as_array")
    return field(block, "values"), class_dict(type(places))["tolist"](places) if is_array(places) else []


def is_array(value) -> bool:
    kind = type(value)
    return class_name(kind) == "ndarray" and class_module(kind) == "numpy" and is_compiled(kind)


def inner_array(value):
    """The NumPy array that an index or an extension array is made of, or None."""
    for _ in range(4):
        if value is None or is_array(value):
            return value
        try:
            value = field(value, "_ndarray")
        except LookupError:
            value = own_dict(value).get("_data")
    return None


def index_length(index) -> int:
    parts = own_dict(index)
    span, codes = parts.get("_range"), parts.get("_codes")
    if type(span) is range:
        return len(span)
    if inherits(type(codes), list):  # of a MultiIndex: one array of codes a level
        array = inner_array(list.__getitem__(codes, 0))
    else:
        array = inner_array(parts.get("_data"))
    if array is not None:
        return field(array, "shape")[0]
    return call_compiled(arrow_of(parts.get("_data")), "length")


def index_bytes(index) -> int:
    return bytes_of(own_dict(index).get("_data"))


def arrow_of(value):
    """The Arrow array below an extension array, or None."""
    array = own_dict(value).get("_pa_array")
    return array if array is not None and class_module(type(array)) == "pyarrow.lib" else None


def call_compiled(value, name: str):
    """What a compiled method without arguments returns."""
    for base in class_mro(type(value)):
        method = class_dict(base).get(name)
        if method is not None:
            kind = type(method)
            if is_compiled(kind) and kind is not FunctionType or class_module(kind).startswith("_cython"):
                return method(value)
            break
    raise LookupError(name)


def bytes_of(values) -> int:
    """What the values take, Python objects that they refer to not among it."""
    arrow = arrow_of(values)
    if arrow is not None:
        return int(field(arrow, "nbytes"))
    array = inner_array(values)
    if array is None:
        return 0
    mask = own_dict(values).get("_mask")
    return int(field(array, "nbytes")) + (int(field(mask, "nbytes")) if is_array(mask) else 0)


def values_dtype(values) -> str:
    if is_array(values):
        return dtype_text(field(values, "dtype"))
    name = class_name(type(values))
    if name in EXTENSIONS:
        return EXTENSIONS[name]
    array = inner_array(values)
    if array is None:
        return name.removesuffix("Array").lower()
    text = dtype_text(field(array, "dtype"))
    # Masked numbers are written large in pandas: `Int64`.
    return text[:1].upper() + text[1:] if "_mask" in own_dict(values) else text


def column_names(columns, count: int) -> list:
    """The first columns' names; one that is no string as its short `repr`."""
    data, span = own_dict(columns).get("_data"), own_dict(columns).get("_range")
    array = inner_array(data)
    if type(span) is range:
        items = list(span[:count])
    elif array is not None:
        items = class_dict(type(array))["tolist"](array[:count])
    else:
        items = call_compiled(arrow_of(data), "to_pylist")[:count]
    return [item[:MAX_NAME] if type(item) is str else short_repr(item, MAX_NAME) for item in items]


def times(shape: list) -> str:
    """`3 x 4`."""
    return " x ".join(map(str, shape)) or "scalar"
