//! What becomes of the value of the last expression.

use super::case::{Case, case, run};

pub(super) const CASES: &[Case] = &[
    case("None is no result", &[run("None")], "completed"),
    case("a last statement that is no expression has no result", &[run("x = 1")], "completed"),
    case("a semicolon keeps the value back", &[run("6 * 7;")], "completed"),
    case("booleans", &[run("[True, False]")], "completed\nresult [true, false]"),
    case(
        "integers of 64 bits are numbers and larger ones strings",
        &[run("[2**63, -2**63, 2**64 - 1, 2**64, -2**63 - 1]")],
        r#"completed
        result [9223372036854775808, -9223372036854775808, 18446744073709551615, "18446744073709551616", "-9223372036854775809"]
        repr "[9223372036854775808, -9223372036854775808, 18446744073709551615, 18446744073709551616, -9223372036854775809]""#,
    ),
    case(
        "an integer beyond what Python prints is hexadecimal",
        &[run("1 << 20000")],
        r#"completed
        result "0x1" + "0" * 5000
        repr …"#,
    ),
    case(
        "floats that JSON lacks are named",
        &[run("[float('nan'), float('inf'), -float('inf'), -0.0, 1e300, 0.1]")],
        r#"completed
        result ["NaN", "Infinity", "-Infinity", -0.0, 1e+300, 0.1]
        repr "[nan, inf, -inf, -0.0, 1e+300, 0.1]""#,
    ),
    case(
        "complex numbers, fractions and decimals are texts",
        &[run("import decimal, fractions\n[1 + 2j, fractions.Fraction(1, 3), decimal.Decimal('1.10')]")],
        r#"completed
        result ["(1+2j)", "1/3", "1.10"]
        repr "[(1+2j), Fraction(1, 3), Decimal('1.10')]""#,
    ),
    case(
        "text of any script stays as it is",
        &[run("'naïve \\U0001f600 \\u202e \\x00 \\x7f'")],
        r#"completed
        result "naïve 😀 \u202e \u0000 \u007f"
        repr "'naïve 😀 \\u202e \\x00 \\x7f'""#,
    ),
    case(
        "a lone surrogate is shown as its escape",
        &[run("'a\\ud800b'")],
        r#"completed
        result "a\\ud800b""#,
    ),
    case(
        "bytes are base64",
        &[run("[b'\\x00\\xff', bytearray(b'abc'), memoryview(b'')]")],
        r#"completed
        result [{"$bytes": "AP8="}, {"$bytes": "YWJj"}, {"$bytes": ""}]
        repr "[b'\\x00\\xff', bytearray(b'abc'), <memory at 0x…>]""#,
    ),
    case(
        "tuples, sets, ranges and queues are lists",
        &[run("import collections\n[(1, 2), {3}, frozenset([4]), range(3), collections.deque([5]), {'k': 6}.values()]")],
        r#"completed
        result [[1, 2], [3], [4], [0, 1, 2], [5], [6]]
        repr "[(1, 2), {3}, frozenset({4}), range(0, 3), deque([5]), dict_values([6])]""#,
    ),
    case(
        "times are ISO 8601 and lengths of time seconds",
        &[run("
            import datetime as d
            utc = d.timezone.utc
            [d.datetime(2024, 2, 29, 12, 30, 1, 5, utc), d.date(2024, 1, 2), d.time(3, 4), d.timedelta(days=1, milliseconds=500)]")],
        r#"completed
        result ["2024-02-29T12:30:01.000005+00:00", "2024-01-02", "03:04:00", 86400.5]
        repr …"#,
    ),
    case(
        "named tuples, dataclasses and enums",
        &[run("
            import collections, dataclasses, enum
            Point = collections.namedtuple('Point', 'x y')
            @dataclasses.dataclass
            class Box: size: int; label: str = 'b'
            class Colour(enum.Enum): RED = 'red'
            [Point(1, 2), Box(3), Colour.RED]")],
        r#"completed
        result [{"x": 1, "y": 2}, {"size": 3, "label": "b"}, "red"]
        repr "[Point(x=1, y=2), Box(size=3, label='b'), <Colour.RED: 'red'>]""#,
    ),
    case(
        "paths and UUIDs are texts",
        &[run("import pathlib, uuid\n[pathlib.Path('/tmp/x'), uuid.UUID(int=1)]")],
        r#"completed
        result ["/tmp/x", "00000000-0000-0000-0000-000000000001"]
        repr "[PosixPath('/tmp/x'), UUID('00000000-0000-0000-0000-000000000001')]""#,
    ),
    case(
        "keys of any type become texts and stay apart",
        &[run("{1: 'a', '1': 'b', None: 'c', (1, 2): 'd', True and 2.5: 'e', b'x': 'f'}")],
        r#"completed
        result {"1": "a", "1 (2)": "b", "None": "c", "(1, 2)": "d", "2.5": "e", "b'x'": "f"}
        repr "{1: 'a', '1': 'b', None: 'c', (1, 2): 'd', 2.5: 'e', b'x': 'f'}""#,
    ),
    case(
        "a list in itself is a cycle",
        &[run("x = [1]\nx.append(x)\nx")],
        r#"completed
        result [1, "[cycle]"]
        repr "[1, [...]]""#,
    ),
    case(
        "a dictionary in itself is a cycle",
        &[run("x = {}\nx['me'] = x\nx")],
        r#"completed
        result {"me": "[cycle]"}
        repr "{'me': {...}}""#,
    ),
    case(
        "what is deeper than 100 levels is left out",
        &[run("x = []\nfor _ in range(500): x = [x]\nx")],
        "completed\nresult …nested deeper than 100 levels…\nrepr …\ntruncated {\"result\": …}",
    ),
    case(
        "another object is its repr",
        &[run("class Thing:\n    def __repr__(self): return '<a thing>'\nThing()")],
        "completed\nresult \"<a thing>\"\nrepr \"<a thing>\"",
    ),
    case(
        "an object whose repr fails is said to be one",
        &[run("class Broken:\n    def __repr__(self): raise ValueError\nBroken()")],
        r#"completed
        result "<Broken object that cannot be shown: ValueError>"
        repr "<Broken object that cannot be shown: ValueError>""#,
    ),
    case(
        "a subclass of a builtin is converted as that",
        &[run("class Loud(dict):\n    def items(self): raise RuntimeError\n    def __repr__(self): return 'loud'\nLoud(a=1)")],
        "completed\nresult {\"a\": 1}\nrepr \"loud\"",
    ),
    case(
        "a list that is too long is cut and says so",
        &[run("list(range(1_000_000))")],
        "completed\nresult …\nrepr …\ntruncated {\"result\": …, \"result_repr\": …}",
    ),
    case(
        "a text that is too long is cut and says so",
        &[run("'x' * 5_000_000")],
        r#"completed
        result "x" * … + "... [… more characters]"
        repr "'" + "x" * … + "... [… characters left out]"
        truncated {"result": …, "result_repr": …}"#,
    ),
    case(
        "a generator is not run",
        &[run("(print('never') for _ in range(3))")],
        r#"completed
        result "<generator object <genexpr> at 0x…>"
        repr "<generator object <genexpr> at 0x…>""#,
    ),
    case(
        "the value of a top-level await is the result",
        &[run("import asyncio\nasync def f(): return 'awaited'\nawait f()")],
        "completed\nresult \"awaited\"",
    ),
];
