"""The rules of `docs/values.md`: any value becomes JSON, bounded, by the documented forms."""

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import random
import types
import typing
import unittest
import uuid

from harness import need, strict_loads
from mcp_forge_runner import channel
from mcp_forge_runner.reprs import bounded_repr, cut_middle
from mcp_forge_runner.values import to_json

LIMIT = 1 << 20


def convert(value, limit=LIMIT):
    """The value as the server would read it, checked against the limit."""
    plain, left_out = to_json(value, limit)
    frame = channel.encode(plain)
    if limit > 8:
        assert len(frame) <= limit, (len(frame), limit)
    return strict_loads(frame), left_out


class Color(enum.Enum):
    RED = "red"
    SELF = object()


class Number(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Point:
    x: int
    y: list
    shared: typing.ClassVar[int] = 3


@dataclasses.dataclass
class Slotted:
    __slots__ = ("inner",)
    inner: object


Pair = collections.namedtuple("Pair", "left right")


class Forms(unittest.TestCase):
    def same(self, value, expected):
        got, left_out = convert(value)
        self.assertEqual((got, left_out), (expected, 0))
        self.assertEqual(type(got), type(expected))

    def test_json_itself(self):
        for value in (None, True, False, 0, -1, 1.5, 1e22, "", "a\0\n", [], {}, {"a": [1, {"b": None}]}):
            self.same(value, value)
        self.assertEqual(channel.encode(to_json(-0.0, 99)[0]), b"-0.0")

    def test_numbers_that_json_lacks(self):
        self.same(float("nan"), "NaN")
        self.same(float("inf"), "Infinity")
        self.same(-float("inf"), "-Infinity")
        self.same(1 << 64, "18446744073709551616")
        self.same((1 << 64) - 1, (1 << 64) - 1)
        self.same(-(1 << 63), -(1 << 63))
        self.same(-(1 << 63) - 1, "-9223372036854775809")
        self.same(10**400, str(10**400))
        self.same(10**20_000, hex(10**20_000))
        self.same(1 + 2j, "(1+2j)")

    def test_text(self):
        self.same("a\ud800b", "a\\ud800b")
        self.same("\U0001f600", "\U0001f600")

    def test_containers(self):
        self.same((1, (2,)), [1, [2]])
        self.same({3}, [3])
        self.same(frozenset([3]), [3])
        self.same(range(3), [0, 1, 2])
        self.same(collections.deque([1, 2], 5), [1, 2])
        self.same(array.array("i", [1, 2]), [1, 2])
        self.same({"a": 1}.keys(), ["a"])
        self.same({"a": 1}.values(), [1])
        self.same({"a": 1}.items(), [["a", 1]])
        self.same(collections.OrderedDict(a=1), {"a": 1})
        self.same(collections.Counter("aa"), {"a": 2})
        self.same(types.MappingProxyType({"a": 1}), {"a": 1})
        self.same(Pair(1, [2]), {"left": 1, "right": [2]})
        self.same(Point(1, [2]), {"x": 1, "y": [2]})
        self.same(Slotted(Point(1, [])), {"inner": {"x": 1, "y": []}})

    def test_binary(self):
        self.same(b"hi", {"$bytes": "aGk="})
        self.same(bytearray(b"hi"), {"$bytes": "aGk="})
        self.same(memoryview(b"hi"), {"$bytes": "aGk="})
        self.same(b"", {"$bytes": ""})

    def test_standard_library(self):
        self.same(decimal.Decimal("1.10"), "1.10")
        self.same(fractions.Fraction(1, 3), "1/3")
        self.same(uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001")
        self.same(
            datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc), "2024-01-02T03:04:05+00:00"
        )
        self.same(datetime.date(2024, 1, 2), "2024-01-02")
        self.same(datetime.time(3, 4), "03:04:00")
        self.same(datetime.timedelta(days=1, milliseconds=5), 86400.005)
        self.same(pathlib.PurePosixPath("/a/b"), "/a/b")
        self.same(pathlib.Path("a"), "a")
        self.same(Color.RED, "red")
        self.same(Number.ONE, 1)

    def test_anything_else_is_its_repr(self):
        self.same(len, "<built-in function len>")
        self.same(int, "<class 'int'>")
        self.same(Ellipsis, "Ellipsis")
        self.assertTrue(convert(iter([1]))[0].startswith("<list_iterator"))

    def test_keys(self):
        self.same({1: "a", "1": "b", 1.0 + 1j: "c"}, {"1": "a", "1 (2)": "b", "(1+1j)": "c"})
        self.same({None: 1, "None": 2, True: 3}, {"None": 1, "None (2)": 2, "True": 3})
        self.same({(1, 2): 1}, {"(1, 2)": 1})
        self.same({datetime.date(2024, 1, 2): 1, Color.RED: 2}, {"2024-01-02": 1, "red": 2})
        self.same({"\ud800": 1, "\\ud800": 2}, {"\\ud800": 1, "\\ud800 (2)": 2})
        self.same({"a": 1, "a (2)": 2, Str("a"): 3}, {"a": 3, "a (2)": 2})

    def test_many_keys_of_one_name_take_linear_time(self):
        class Same:
            def __repr__(self):
                return "same"

        got, _ = convert({Same(): None for _ in range(20_000)})
        self.assertIn("same (20000)", got)

    def test_cycles(self):
        items = [1]
        items.append(items)
        self.same(items, [1, "[cycle]"])
        mapping = {}
        mapping["me"] = [mapping]
        self.same(mapping, {"me": ["[cycle]"]})
        point = Point(1, None)
        point.y = [point]
        self.same(point, {"x": 1, "y": ["[cycle]"]})
        shared = []
        self.same([shared, shared], [[], []])

    def test_depth(self):
        for make in (lambda x: [x], lambda x: (x,), lambda x: {"a": x}, lambda x: Point(1, x)):
            deep = 1
            for _ in range(99):
                deep = make(deep)
            self.assertEqual(convert(deep)[1], 0)
            for _ in range(2):
                deep = make(deep)
            got, left_out = convert(deep)
            self.assertIn("[nested deeper than 100 levels]", repr(got))
            self.assertGreater(left_out, 0)
        for _ in range(100_000):
            deep = [deep]
        self.assertIn("[nested deeper", repr(convert(deep)[0]))

    def test_size(self):
        got, left_out = convert(list(range(10_000_000)), 1000)
        self.assertEqual(got[:3], [0, 1, 2])
        self.assertEqual(got[-1], f"[{10_000_000 - len(got) + 1} more items]")
        self.assertGreater(left_out, 19_000_000)
        got, left_out = convert("x" * 100_000_000, 1000)
        self.assertRegex(got, r"^x{900,}\.\.\. \[\d+ more characters\]$")
        self.assertGreater(left_out, 99_999_000)
        got, left_out = convert({str(n): n for n in range(10_000)}, 1000)
        self.assertEqual(got["[left out]"], f"{10_000 - len(got) + 1} more items")
        got, left_out = convert(b"x" * 10_000, 1000)
        self.assertEqual(got["bytes_left_out"] + len(got["$bytes"]) * 3 // 4, 10_000)
        got, left_out = convert([[n, [n]] for n in range(10_000)], 2000)
        self.assertGreater(len(got), 20)
        doubled = ["x"]
        for _ in range(60):
            doubled = [doubled, doubled]
        convert(doubled, 10_000)

    def test_size_is_used_well(self):
        rows = [[n, "text"] for n in range(1000)]
        self.assertEqual(convert(rows, len(channel.encode(rows)) + 300)[1], 0)


class Str(str):
    pass


class Hostile(unittest.TestCase):
    """Overrides are neither called nor believed."""

    def test_subclasses(self):
        def fail(*args, **kwargs):
            raise SystemExit("called")

        names = (
            "__repr__",
            "__str__",
            "__len__",
            "__iter__",
            "items",
            "keys",
            "__getitem__",
            "__class_getitem__",
            "__bool__",
            "__int__",
            "__float__",
            "__index__",
            "__getattr__",
            "__contains__",
            "__neg__",
        )
        for base, value in ((str, "a"), (int, 5), (float, 1.5), (list, [1]), (tuple, (1,)), (set, {1})):
            evil = type("Evil", (base,), dict.fromkeys(names, fail))(value)
            self.assertEqual(convert(evil)[0], [1] if base in (tuple, set) else value)
        evil = type("Evil", (dict,), dict.fromkeys(names, fail))()
        dict.__setitem__(evil, "a", 1)
        self.assertEqual(convert(evil)[0], {"a": 1})

    def test_objects(self):
        class Liar:
            @property
            def __class__(self):
                raise ValueError

            def __repr__(self):
                return self.answer()

        for answer, expected in (
            (lambda: 1 / 0, "<Liar object that cannot be shown: ZeroDivisionError>"),
            (lambda: 5, "<Liar object that cannot be shown: TypeError>"),
            (lambda: exit_now(), "<Liar object that cannot be shown: SystemExit>"),
            (lambda: "\ud800", "\\ud800"),
        ):
            Liar.answer = staticmethod(answer)
            self.assertEqual(convert([Liar()])[0], [expected])

    def test_a_repr_of_100_megabytes(self):
        class Long:
            def __repr__(self):
                return "x" * 100_000_000

        got, left_out = convert(Long())
        self.assertLess(len(got), 2100)
        self.assertGreater(left_out, 99_000_000)

    def test_metaclass(self):
        class Meta(type):
            __name__ = property(lambda cls: 1 / 0)
            __mro__ = property(lambda cls: 1 / 0)
            __module__ = property(lambda cls: 1 / 0)

            def __instancecheck__(cls, other):
                raise KeyboardInterrupt

            def __getattribute__(cls, name):
                raise KeyboardInterrupt

        class Odd(metaclass=Meta):
            def __repr__(self):
                return "odd"

        self.assertEqual(convert([Odd(), Odd])[0][0], "odd")

    def test_changed_while_read(self):
        mapping = {}

        class Changing:
            def __repr__(self):
                mapping[len(mapping)] = 1
                return "changing"

        mapping["a"] = Changing()
        mapping["b"] = 1
        self.assertIn("cannot be converted", convert(mapping)[0])

    def test_pretenders(self):
        for module, name in (
            ("numpy", "ndarray"),
            ("pandas", "DataFrame"),
            ("enum", "Enum"),
            ("decimal", "Decimal"),
        ):
            kind = type(name, (), {"__module__": module, "__repr__": lambda self: "fake"})
            self.assertIn("[", str(convert(kind())[0]) + "[")
        kind = type("Fake", (), {"__dataclass_fields__": {"a": None}})
        self.assertIn("cannot be converted", convert(kind())[0])
        kind = type("Fake", (tuple,), {"_fields": 5})
        self.assertEqual(convert(kind((1, 2)))[0], [1, 2])

    def test_recursion_in_repr(self):
        class Loop:
            def __repr__(self):
                return repr(self)

        self.assertIn("RecursionError", convert(Loop())[0])


def exit_now():
    raise SystemExit


class Random(unittest.TestCase):
    """Properties of random values, with the seed in the failure."""

    ATOMS = (
        None,
        True,
        0,
        -1,
        1 << 70,
        10**4280,
        1.5,
        -0.0,
        float("nan"),
        float("inf"),
        "",
        "a",
        "\ud83d",
        "\u20ac" * 50,
        b"x" * 30,
        range(5),
        Ellipsis,
        len,
        Color.RED,
        Color.SELF,
        decimal.Decimal("NaN"),
        3j,
        "x" * 500,
        datetime.timedelta.max,
        Number.ONE,
        pathlib.Path("/\udc80"),
        uuid.UUID(int=5),
    )

    def value(self, source, depth):
        kind = source.randrange(9) if depth else 0
        if kind < 3:
            return source.choice(self.ATOMS)
        items = [self.value(source, depth - 1) for _ in range(source.randrange(5))]
        if kind < 5:
            return items
        if kind == 5:
            return tuple(items)
        if kind == 6:
            return Point(items, Pair(*items) if len(items) == 2 else items)
        if kind == 7:
            return collections.deque(items)
        keys = [
            source.choice((1, "1", "1 (2)", None, "None", 1.5, (1,), b"k", "\ud800", Color.RED, "[left out]"))
            for _ in items
        ]
        return dict(zip(keys, items))

    def test_always_strict_json_within_the_limit(self):
        for seed in range(3000):
            source = random.Random(seed)
            value = self.value(source, source.choice((1, 3, 6, 12)))
            limit = source.choice((200, 300, 1000, 5000, LIMIT))
            with self.subTest(seed=seed, limit=limit):
                got, left_out = convert(value, limit)
                if len(channel.encode(got)) < limit - 10_000:
                    self.assertEqual(left_out, 0)

    def test_tiny_limits(self):
        for limit in range(0, 200):
            for value in (1, "x" * 300, [1] * 300, {"a": "b" * 300}, b"x" * 300, [[[[["x" * 99]]]]]):
                plain, left_out = to_json(value, limit)
                frame = channel.encode(plain)
                strict_loads(frame)
                self.assertLessEqual(len(frame), max(limit, 4), (limit, value))

    def test_repr_is_exact_while_it_fits_and_bounded_always(self):
        for seed in range(3000):
            source = random.Random(seed)
            value = self.value(source, source.choice((1, 3, 6)))
            limit = source.choice((0, 10, 61, 200, 1_000_000))
            with self.subTest(seed=seed, limit=limit):
                text, left_out = bounded_repr(value, limit)
                self.assertLessEqual(len(text), limit)
                if limit == 1_000_000:
                    self.assertEqual((in_decimal(text), left_out), (repr(value), 0))


def in_decimal(text):
    """Our text with the one long number as Python shows it."""
    return text.replace(hex(10**4280), str(10**4280))


class Reprs(unittest.TestCase):
    def test_exact(self):
        cycle = [1]
        cycle.append((cycle, {"a": cycle}))
        mapping = {}
        mapping[1] = mapping

        class Sub(list):
            pass

        for value in (
            [],
            (),
            (1,),
            set(),
            frozenset(),
            {1},
            frozenset({1}),
            {},
            {1: (2,)},
            cycle,
            mapping,
            "a'b\n",
            b"x",
            Sub([1, 2]),
            collections.defaultdict(list, a=[1]),
            Point(1, [2]),
            [1.5, None, ...],
            -5,
        ):
            self.assertEqual(bounded_repr(value, 10_000), (repr(value), 0))

    def test_large(self):
        text, left_out = bounded_repr(list(range(10_000_000)), 1000)
        self.assertTrue(text.startswith("[0, 1, 2, "))
        self.assertLessEqual(len(text), 1000)
        self.assertRegex(text, rf"\.\.\. \[{left_out} or more characters left out\]$")
        self.assertGreater(left_out, 29_000_000)
        text, left_out = bounded_repr("x" * 100_000_000, 1000)
        self.assertGreater(left_out, 99_999_000)
        deep = []
        for _ in range(100_000):
            deep = [deep]
        self.assertIn("[...]", bounded_repr(deep, 1000)[0])
        self.assertTrue(bounded_repr(10**100_000, 1000)[0].startswith("0x"))

    def test_cut_middle(self):
        self.assertEqual(cut_middle("abc", 3), ("abc", 0))
        text, left_out = cut_middle("a" * 500 + "b" * 500, 200)
        self.assertLessEqual(len(text), 200)
        self.assertTrue(text.startswith("aaa") and text.endswith("bbb"))
        self.assertIn(f"[{left_out} characters left out]", text)


class Numpy(unittest.TestCase):
    @need("numpy")
    def test_arrays_and_scalars(self):
        import numpy

        for value, expected in (
            (numpy.float64(1.5), 1.5),
            (numpy.float32(0.5), 0.5),
            (numpy.int8(-3), -3),
            (numpy.uint64((1 << 64) - 1), (1 << 64) - 1),
            (numpy.bool_(True), True),
            (numpy.str_("a"), "a"),
            (numpy.float64("nan"), "NaN"),
            (numpy.longdouble(1.5), 1.5),
            (numpy.datetime64("2024-01-02"), "2024-01-02"),
            (numpy.array(5), 5),
            (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
            (numpy.array([1.5, numpy.inf]), [1.5, "Infinity"]),
            (numpy.array(["2024-01-02"], dtype="M8[D]"), ["2024-01-02"]),
            (numpy.matrix([[1, 2]]), [[1, 2]]),
            (numpy.ma.array([1, 2], mask=[0, 1]), [1, None]),
            (numpy.array([{"a": numpy.int64(1)}], dtype=object), [{"a": 1}]),
            (numpy.zeros((0, 3)), []),
            ({numpy.int64(1): 2}, {"1": 2}),
        ):
            self.assertEqual(convert(value), (expected, 0), repr(value))

    @need("numpy")
    def test_a_large_array(self):
        import numpy

        got, left_out = convert(numpy.zeros(10_000_000), 10_000)
        self.assertGreater(len(got), 1000)
        self.assertGreater(left_out, 19_000_000)
        got, left_out = convert(numpy.zeros((10, 1_000_000)), 10_000)
        self.assertGreater(left_out, 1_900_000)
        got, left_out = convert(numpy.zeros((1_000_000, 10)), 10_000)
        self.assertEqual(got[0], [0.0] * 10)


class Pandas(unittest.TestCase):
    @need("pandas")
    def test_frames(self):
        import pandas

        frame = pandas.DataFrame(
            {"a": [1, 2], "b": [1.5, None], "when": pandas.to_datetime(["2024-01-02", None])}
        )
        self.assertEqual(
            convert(frame)[0],
            {
                "columns": ["a", "b", "when"],
                "index": [0, 1],
                "data": [[1, 1.5, "2024-01-02T00:00:00"], [2, None, None]],
            },
        )
        grouped = pandas.DataFrame({"k": ["x", "x", "y"], "v": [1, 2, 3]}).groupby("k").sum()
        self.assertEqual(convert(grouped)[0], {"columns": ["v"], "index": ["x", "y"], "data": [[3], [3]]})
        twice = pandas.DataFrame([[1, 2]], columns=["a", "a"])
        self.assertEqual(convert(twice)[0], {"columns": ["a", "a"], "index": [0], "data": [[1, 2]]})
        self.assertEqual(convert(pandas.DataFrame())[0], {"columns": [], "index": [], "data": []})

    @need("pandas")
    def test_series_and_scalars(self):
        import pandas

        series = pandas.Series([1, None], index=["x", "y"], name="s")
        self.assertEqual(convert(series)[0], {"name": "s", "index": ["x", "y"], "data": [1.0, None]})
        for value, expected in (
            (pandas.Timestamp("2024-01-02"), "2024-01-02T00:00:00"),
            (pandas.Timedelta(seconds=90), 90.0),
            (pandas.NaT, None),
            (pandas.NA, None),
            (pandas.Period("2024-01"), "2024-01"),
            (pandas.Interval(1, 2), "(1, 2]"),
            (pandas.Index(["a"]), ["a"]),
            (pandas.MultiIndex.from_tuples([("a", 1)]), [["a", 1]]),
            ([pandas.Timestamp("2024-01-02")], ["2024-01-02T00:00:00"]),
        ):
            self.assertEqual(convert(value)[0], expected, repr(value))

    @need("pandas")
    def test_rows_are_capped(self):
        import pandas

        got, left_out = convert(pandas.DataFrame({"a": range(5000)}))
        self.assertEqual((len(got["data"]), got["rows_left_out"]), (1000, 4000))
        self.assertGreater(left_out, 0)
        got, left_out = convert(pandas.Series(range(5000)))
        self.assertEqual((len(got["data"]), got["rows_left_out"]), (1000, 4000))
        got, left_out = convert(pandas.Index(range(5000)))
        self.assertEqual(got[-1], "[4000 more items]")


if __name__ == "__main__":
    unittest.main()
