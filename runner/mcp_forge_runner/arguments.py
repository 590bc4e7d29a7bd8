"""The arguments of a tool call as JSON: strict, because a tool must not get half a value.

What JSON can hold without loss is sent; anything else is a TypeError that names the argument
and what to do.
"""

from .originals import BUILTINS as __builtins__

import sys

from . import foreign
from .reprs import class_mro, type_name
from .values import DEPTH_LIMIT, DICT_VIEWS, LARGEST_INT, SMALLEST_INT

# Without order or without repetition, but a JSON array says the same.
LISTS = frozenset((list, tuple, set, frozenset, range, *DICT_VIEWS))
HINTS = {
    "pandas.DataFrame": "pass .to_dict('records') or .to_csv()",
    "pandas.core.frame.DataFrame": "pass .to_dict('records') or .to_csv()",
    "pandas.Series": "pass .tolist()",
    "pandas.core.series.Series": "pass .tolist()",
    "pandas.Index": "pass .tolist()",
    "pandas.core.indexes.base.Index": "pass .tolist()",
    "pandas._libs.tslibs.nattype._NaT": "pass None",
    "pandas._libs.missing.C_NAType": "pass None",
    "pandas._libs.missing.NAType": "pass None",
    "decimal.Decimal": "pass float(...) or str(...)",
    "fractions.Fraction": "pass float(...) or str(...)",
    "datetime.timedelta": "pass .total_seconds() or str(...)",
    "mcp_forge.Media": "pass base64.b64encode(x.data).decode()",
    "mcp_forge.Resource": "pass .text, .uri or the base64 of .data",
    "builtins.bytes": "pass .decode() or base64.b64encode(...).decode()",
    "builtins.bytearray": "pass .decode() or base64.b64encode(...).decode()",
    "builtins.memoryview": "pass base64.b64encode(...).decode()",
    "builtins.complex": "pass its real and imaginary parts",
    "builtins.generator": "pass list(...)",
    "builtins.coroutine": "await it first",
}


def to_plain(value, place: str, depth: int = 0):
    """A value as plain data that JSON holds exactly. `place` names it in a TypeError."""
    if depth > DEPTH_LIMIT:
        refuse(place, f"is nested deeper than {DEPTH_LIMIT} levels or contains itself")
    kind = type(value)
    if value is None or value is True or value is False:
        return value
    if kind is str:
        return check_text(value, place)
    if kind is int:
        return check_integer(value, place)
    if kind is float:
        return check_number(value, place)
    if kind in LISTS:
        return [to_plain(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
    if kind is dict:
        return {
            check_key(key, place): to_plain(item, f"{place}[{key!r}]", depth + 1)
            for key, item in value.items()
        }
    return plain_object(value, kind, place, depth)


def plain_object(value, kind, place: str, depth: int):
    """A value of a class: refused with a hint, or as the simpler value that says the same."""
    mro = class_mro(kind)
    for base in mro:
        hint = HINTS.get(foreign.qualified(base))
        if hint is not None:
            refuse(place, f"is a {type_name(value)}, which JSON cannot hold; {hint}")
    simpler = foreign.simplify(value, kind, sys.maxsize)
    if simpler is not None:
        return to_plain(simpler.value, place, depth + 1)
    for base, exact in ((str, str.__str__), (int, int.__pos__), (float, float.__pos__)):
        if base in mro:
            return to_plain(exact(value), place, depth)
    for base, exact in ((dict, dict), (list, list), (tuple, list), (set, list), (frozenset, list)):
        if base in mro:
            return to_plain(exact(value), place, depth)
    refuse(place, f"is a {type_name(value)}, which JSON cannot hold; pass plain values")


def check_text(value: str, place: str) -> str:
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            refuse(
                place,
                "has a lone surrogate, which UTF-8 cannot hold; pass x.encode('utf-8', 'replace').decode()",
            )
    return value


def check_integer(value: int, place: str) -> int:
    if not SMALLEST_INT <= value <= LARGEST_INT:
        refuse(place, "is an integer of more than 64 bits; pass str(...)")
    return value


def check_number(value: float, place: str) -> float:
    if value - value != 0.0:
        refuse(place, f"is {value!r}, which JSON cannot hold; pass None or a string")
    return value


def check_key(key, place: str) -> str:
    for base in class_mro(type(key)):
        if base is str:
            return check_text(str.__str__(key), place)
    refuse(place, f"has the key {key!r}; the keys of a JSON object are strings")


def refuse(place: str, problem: str):
    raise TypeError(f"{place} {problem}")
