"""What becomes of values of well-known classes: the standard library's, NumPy's, pandas'.

Found by the names of a value's base classes, so that nothing is imported for it. Each rule
returns a simpler value; that one is converted in turn.
"""

from .originals import BUILTINS as __builtins__

from .reprs import class_dict, class_module, class_mro, class_name, safe_str

MAX_ROWS = 1000


class Simpler:
    """A value that says the same with simpler classes, and how many bytes it leaves out."""

    def __init__(self, value, left_out: int = 0) -> None:
        self.value = value
        self.left_out = left_out


def simplify(value, kind, room: int):
    """The simpler form of a value of a known class, or None. `room` is in bytes of JSON.

    May raise whatever the value's own methods raise.
    """
    for base in class_mro(kind):
        rule = RULES.get(qualified(base))
        if rule is not None:
            result = rule(value, base, room)
            return result if isinstance(result, Simpler) else Simpler(result)
        if "__dataclass_fields__" in class_dict(base):
            return Simpler(from_dataclass(value, base))
        if base is tuple and "_fields" in class_dict(kind):
            return Simpler(from_namedtuple(value, kind))
    return None


def qualified(base) -> str:
    """For example `decimal.Decimal`, by the class itself and not by its metaclass."""
    return f"{class_module(base)}.{class_name(base)}"


def from_dataclass(value, base):
    """A dataclass instance as a dict of its fields."""
    fields = {}
    for name, field in dict.items(class_dict(base)["__dataclass_fields__"]):
        if field._field_type.name == "_FIELD":  # not a ClassVar or InitVar
            fields[name] = object.__getattribute__(value, name)
    return fields


def from_namedtuple(value, kind):
    """A named tuple as a dict of its fields."""
    names = class_dict(kind)["_fields"]
    items = list(tuple.__iter__(value))
    if type(names) is not tuple or len(names) != len(items):
        return items
    return dict(zip(names, items))


def as_text(value, base, room):
    """By the base class's own `str`."""
    return base.__str__(value)


def as_isoformat(value, base, room):
    return base.isoformat(value)


def as_seconds(value, base, room):
    return base.total_seconds(value)


def as_list(value, base, room):
    """An iterable of known length, no further than there can be room."""
    count = base.__len__(value)
    items = []
    for item in base.__iter__(value):
        if len(items) > room:
            return cut(items, count - len(items))
        items.append(item)
    return items


def as_dict(value, base, room):
    return dict(value)


def as_null(value, base, room):
    return None


def from_enum(value, base, room):
    """A member stands for its value."""
    return object.__getattribute__(value, "_value_")


def from_numpy_scalar(value, base, room):
    """The Python number; dates as ISO 8601."""
    if value.dtype.kind in "mM":
        return None if value != value else safe_str(value)
    item = value.item()
    if type(item) is type(value):  # longdouble has no Python equal
        return float(value)
    return item


def from_numpy_array(value, base, room):
    """Nested lists. A large one is taken apart only as far as there is room."""
    if not value.ndim:
        return value.item()
    if value.dtype.kind in "mM":
        value = value.astype(str)
    if hasattr(value, "mask"):
        return value.tolist()
    plain = base.view(value, base)
    if plain.size <= room:
        return plain.tolist()
    rows = plain[: max(room, 1)]
    items = rows.tolist() if plain.ndim == 1 else list(rows)
    return cut(items, len(plain) - len(items))


def from_frame(value, base, room):
    """`columns`, `index` and `data` by rows, because an index and equal names matter."""
    rows = value.iloc[:MAX_ROWS]
    columns = [without_missing(rows.iloc[:, position].tolist()) for position in range(rows.shape[1])]
    result = {
        "columns": value.columns.tolist(),
        "index": without_missing(rows.index.tolist()),
        "data": [list(row) for row in zip(*columns)],
    }
    return note_rows(result, len(value), max(value.shape[1], 1))


def from_series(value, base, room):
    """`name`, `index` and `data`."""
    rows = value.iloc[:MAX_ROWS]
    result = {
        "name": value.name,
        "index": without_missing(rows.index.tolist()),
        "data": without_missing(rows.tolist()),
    }
    return note_rows(result, len(value), 1)


def from_index(value, base, room):
    return cut(without_missing(value[:MAX_ROWS].tolist()), len(value) - MAX_ROWS)


def note_rows(result: dict, rows: int, width: int):
    """The result, with the number of rows it lacks."""
    missing = rows - MAX_ROWS
    if missing <= 0:
        return result
    result["rows_left_out"] = missing
    return Simpler(result, 2 * missing * width)


def without_missing(items: list) -> list:
    """pandas marks what is missing with NaN, NaT or NA: null in JSON."""
    return [None if isinstance(item, float) and item != item else item for item in items]


def cut(items: list, missing: int):
    """The items and, if some are missing, how many."""
    if missing <= 0:
        return items
    return Simpler([*items, f"[{missing} more items]"], 2 * missing)


RULES = {
    "decimal.Decimal": as_text,
    "fractions.Fraction": as_text,
    "uuid.UUID": as_text,
    "datetime.datetime": as_isoformat,
    "datetime.date": as_isoformat,
    "datetime.time": as_isoformat,
    "datetime.timedelta": as_seconds,
    "pathlib.PurePath": as_text,
    "pathlib._local.PurePath": as_text,
    "enum.Enum": from_enum,
    "collections.deque": as_list,
    "array.array": as_list,
    "builtins.mappingproxy": as_dict,
    "numpy.generic": from_numpy_scalar,
    "numpy.ndarray": from_numpy_array,
    "pandas.DataFrame": from_frame,
    "pandas.Series": from_series,
    "pandas.Index": from_index,
    "pandas.core.frame.DataFrame": from_frame,
    "pandas.core.series.Series": from_series,
    "pandas.core.indexes.base.Index": from_index,
    "pandas._libs.tslibs.nattype._NaT": as_null,
    "pandas._libs.missing.NAType": as_null,
    "pandas._libs.missing.C_NAType": as_null,
    "pandas._libs.tslibs.period._Period": as_text,
    "pandas._libs.interval.IntervalMixin": lambda value, base, room: safe_str(value),
}
