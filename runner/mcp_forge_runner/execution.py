"""One turn: compiles the user's code, runs it as `__main__`, and reports how it ended."""

from .originals import BUILTINS as __builtins__

import builtins
import os
import sys
from posix import _exit
from sys import setprofile, settrace

from . import hooks, originals, values
from .originals import MONITORING_TOOLS, set_events
from .channel import Channel, Closed, encode
from .reprs import bounded_repr, class_mro, class_name, safe_str, traceback_of

FILENAME = "<execution>"
CO_COROUTINE = 0x80
# CPython's own flags, which `ast` would give by name, but slowly.
ONLY_AST, TOP_LEVEL_AWAIT = 0x400, 0x2000
FUTURE_FLAGS = 0x1FFF << 17

# The frame must hold the whole report, whatever the caps say.
MAX_RESULT_BYTES = 8 << 20
MAX_REPR_CHARS = 256 << 10
RESERVE_BYTES = 8 << 20
LAST_RESORT = encode(
    {
        "type": "done",
        "error": {
            "type": "RuntimeError",
            "message": "the runner could not report how the code ended",
            "traceback": "RuntimeError: the runner could not report how the code ended\n",
        },
    }
)

# Values that show themselves without help.
PLAIN = (type(None), bool, int, float, str)

# Of the first turn. Made before anything of its size was ever given back.
reserves = [bytes(RESERVE_BYTES)]

class_of_module = type(sys)
standard_streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


def run_turn(channel, request: dict) -> None:
    """Runs an `execute` request and sends its `done`. In a forked child it does not return."""
    run(Turn(channel, request))


def run(turn) -> None:
    """Runs a turn to its `done`, whatever its code does. In a forked child it does not return."""
    channel = turn.channel
    try:
        try:
            originals.begin_turn()
            turn.execute()
        except BaseException as caught:
            turn.problem = caught
        # At once, before any call: a tracer would see, and could break, all that follows.
        for tool in MONITORING_TOOLS:
            try:
                set_events(tool, 0)
            except ValueError:
                continue  # not in use
        setprofile(None)
        settrace(None)
        originals.settle()
    except BaseException:
        # An alarm that was due after the code had ended, or a profiler that saw its own end.
        originals.settle()
    turn.reserve = None
    if not channel.in_owner():
        leave_child(turn)
    payload = LAST_RESORT
    try:
        payload = turn.report()
    except BaseException:
        originals.settle()
    flush_streams()
    originals.settle()
    try:
        channel.finish_turn(payload)
    except (OSError, Closed):
        # User code closed or replaced the connection; the server sees the process end.
        _exit(71)


class Rehearsal(Channel):
    """A connection that brings one request; what is answered goes nowhere."""

    def __init__(self, request: dict) -> None:
        super().__init__(1, watch_forks=False)
        payload = encode(request)
        self.rest = len(payload).to_bytes(4, "big") + payload

    def read_exactly(self, length: int) -> bytes:
        piece, self.rest = self.rest[:length], self.rest[length:]
        return piece

    def write_all(self, frame: memoryview) -> None:
        del frame


def rehearse(code: str = "value = 1\nvalue") -> None:
    """Runs a small turn for nobody. Nothing of it stays that the next turn can see."""
    caps = {"result_bytes": 1000, "repr_chars": 1000, "display_bytes": 1000, "displays": 1}
    channel = Rehearsal({"type": "execute", "code": code, "tools": [], "caps": caps})
    turn = Turn(channel, channel.receive())
    reserves.append(turn.reserve)
    run(turn)
    originals.state.is_used = False


class Turn:
    """The state of one turn."""

    filename = FILENAME

    def __init__(self, channel, request: dict) -> None:
        caps = request["caps"]
        self.channel = channel
        self.stubs = request["tools"]
        self.code = request["code"]
        self.result_bytes = min(caps["result_bytes"], MAX_RESULT_BYTES)
        self.repr_chars = min(caps["repr_chars"], MAX_REPR_CHARS)
        self.display_caps = caps["display_bytes"], caps["displays"]
        self.lines = []
        self.displays = None
        self.truncated = {}
        self.value, self.problem = None, None
        # Given back when the code has ended, so that a MemoryError can be reported.
        self.reserve = self.make_reserve()

    def make_reserve(self):
        """Memory to fall back on: addresses only, for its zeros are never written."""
        return reserves.pop() if reserves else bytes(RESERVE_BYTES)

    def execute(self):
        """Runs the code and keeps the value of its last expression, or raises what it raises."""
        source = normalize(self.code, FILENAME)
        self.lines = [line + "\n" for line in source.split("\n")]
        codes, has_value = compile_source(source, FILENAME)
        module = self.make_module()
        value = None
        if any(code.co_flags & CO_COROUTINE for code in codes):
            from . import awaiting

            value = awaiting.run(codes, module.__dict__, self.leave_if_child)
        else:
            for code in codes:
                value = eval(code, module.__dict__)
        self.value = value if has_value else None

    def leave_if_child(self, problem) -> None:
        """Ends a forked child before it gets back to asyncio, whose loop is its parent's."""
        if not self.channel.in_owner():
            self.problem = problem
            leave_child(self)

    def make_module(self):
        """A fresh `__main__`, with the tools, `ToolError` and `display` in it."""
        from .offered import offer

        module = class_of_module("__main__")
        module.__builtins__ = builtins
        module.__dict__.update(offer(self.stubs, self.channel, self.make_display()))
        sys.modules["__main__"] = module
        hooks.adjust_after_import(
            {
                "linecache": self.adjust_linecache,
                "multiprocessing.spawn": self.adjust_spawn,
                "matplotlib.pyplot": lambda pyplot: self.get_displays().adjust_pyplot(pyplot),
                "IPython.core.display_functions": lambda m: self.get_displays().adjust_ipython(m),
            }
        )
        return module

    def make_display(self):
        """The function `display`, which loads what it needs when it is first called."""

        def display(*objects, **options):
            """Shows objects to the caller: images, HTML, Markdown and more, with a plain text.

            Works as `IPython.display.display`; with `raw=True` an object is a MIME bundle itself.
            """
            self.get_displays().display(*objects, **options)

        display.__module__, display.__qualname__ = "mcp_forge", "display"
        return display

    def get_displays(self):
        if self.displays is None:
            from .displays import Displays

            self.displays = Displays(self.channel, *self.display_caps)
        return self.displays

    def adjust_linecache(self, module) -> None:
        """Whoever formats a traceback finds the code's lines."""
        from .tracebacks import register_sources

        register_sources(module, self.sources())

    def sources(self) -> dict:
        """The lines of the code that tracebacks may go through, by file name."""
        return {FILENAME: self.lines}

    def adjust_spawn(self, module) -> None:
        """Children of `multiprocessing` that are not forked import `__main__` from a file.

        Only now is there one: notebooks have no `__file__` either, and nobody else needs it.
        """
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f".execution-{os.getpid()}.py")
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write("".join(self.lines))
        sys.modules["__main__"].__file__ = path

    def report(self) -> bytes:
        """The `done` message. Calls the value's own methods, so anything may happen in it."""
        done = {"type": "done"}
        if self.is_simple():
            self.describe_value(done)
            return self.encode_done(done)
        with originals.Lent():
            if self.problem is not None:
                done["error"] = self.describe(self.problem)
            else:
                self.describe_value(done)
            self.show_figures()
            if self.displays is not None:
                self.displays.finish()
                self.note("displays", self.displays.left_out)
        return self.encode_done(done)

    def is_simple(self) -> bool:
        """Whether nothing but our own code is needed for the report: it is, for a plain value."""
        has_plots = "matplotlib.pyplot" in sys.__dict__.get("modules", "matplotlib.pyplot")
        is_plain = self.problem is None and type(self.value) in PLAIN
        return is_plain and self.displays is None and not has_plots

    def describe_value(self, done: dict) -> None:
        """What the code's value, if there is one, adds to `done`."""
        if self.value is not None:
            self.describe_result(self.value, done)

    def calm(self) -> None:
        """After the value's own methods ran: nothing of theirs stays armed."""
        originals.settle()

    def show_figures(self) -> None:
        """Figures that are still open are displayed, as in a notebook."""
        if sys.modules.get("matplotlib.pyplot") is None:
            return
        try:
            self.get_displays().flush_figures()
        except BaseException:
            # A figure that cannot be drawn: its `savefig` would have told the user why.
            self.calm()

    def describe(self, problem) -> dict:
        """The exception for `done`. Of a MemoryError the variables are dropped before."""
        if MemoryError in class_mro(type(problem)):
            release_frames(problem)
        try:
            from .tracebacks import describe

            error, left_out = describe(problem, self.sources(), self.repr_chars)
            self.note("traceback", left_out)
            return error
        except BaseException:
            settrace(None)
            name, message = class_name(type(problem)), safe_str(problem)[:1000]
            return {"type": name, "message": message, "traceback": f"{name}: {message}\n"}

    def describe_result(self, value, done: dict) -> None:
        """The value in its three forms: as JSON, as `repr`, and as MIME bundle if it has one."""
        shown = self.bundle_of(value)
        if shown is not None:
            done["result_display"] = shown
        done["result"], left_out = values.to_json(value, self.result_bytes)
        self.note("result", left_out)
        self.calm()
        done["result_repr"], left_out = bounded_repr(value, self.repr_chars)
        self.note("result_repr", left_out)

    def bundle_of(self, value):
        """The value's MIME bundle, or None where it has no more to show than text."""
        if type(value) in (str, int, float, bool, list, dict, tuple):
            return None
        shown = self.get_displays().result_bundle(value)
        self.calm()
        return shown

    def note(self, field: str, left_out: int) -> None:
        """Remembers how much of a field was left out."""
        if left_out > 0:
            self.truncated[field] = left_out

    def encode_done(self, done: dict) -> bytes:
        """The frame. Should all fields together be too large, the heaviest go."""
        for field in ("result_display", "result", "result_repr", None):
            message = {**done, "truncated": self.truncated} if self.truncated else done
            payload = encode(message)
            if len(payload) <= 15 << 20 or field is None:
                return payload
            self.note(field, len(encode(done.pop(field, None))))
        return payload


def normalize(code: str, filename: str) -> str:
    """The source with `\\n` line ends and without a byte order mark, as a file would be read."""
    code = code.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    place = code.find("\0")
    if place >= 0:
        refuse_source(code, place, filename, "source code cannot contain null bytes")
    if not code.isascii():
        try:
            code.encode("utf-8")
        except UnicodeEncodeError as problem:
            refuse_source(code, problem.start, filename, "source code cannot contain lone surrogates")
    return code


def refuse_source(code: str, place: int, filename: str, message: str):
    """A SyntaxError that points at the place."""
    line = code.count("\n", 0, place) + 1
    start = code.rfind("\n", 0, place) + 1
    text = code[start : place + 1].replace("\0", " ").encode("utf-8", "replace").decode()
    raise SyntaxError(message, (filename, line, place - start + 1, text))


def compile_source(source: str, filename: str, flags: int = 0):
    """The code objects of the statements and of the last expression; whether it has a value.

    The value of a last expression that ends in a semicolon is not wanted, as in notebooks.
    `flags` are those of `from __future__` imports that are in force already.
    """
    flags |= TOP_LEVEL_AWAIT
    tree = compile(source, filename, "exec", flags | ONLY_AST, dont_inherit=True)
    last = tree.body[-1] if tree.body else None
    if last is None or type(last).__name__ != "Expr" or ends_in_semicolon(source, last):
        return [compile(tree, filename, "exec", flags, dont_inherit=True)], False
    del tree.body[-1]
    codes = []
    if tree.body:
        codes.append(compile(tree, filename, "exec", flags, dont_inherit=True))
        flags |= codes[0].co_flags & FUTURE_FLAGS
    from _ast import Expression

    codes.append(compile(Expression(last.value), filename, "eval", flags, dont_inherit=True))
    return codes, True


def ends_in_semicolon(source: str, statement) -> bool:
    """Only a semicolon, space and comments can follow the last statement."""
    lines = source.split("\n")[statement.end_lineno - 1 :]
    # Columns count bytes of UTF-8.
    rest = lines[0].encode("utf-8")[statement.end_col_offset :].decode("utf-8")
    return "\n".join([rest, *lines[1:]]).lstrip(" \t\f\\\n").startswith(";")


def release_frames(problem: BaseException) -> None:
    """Drops the variables of the frames that an exception went through."""
    step = traceback_of(problem)
    while step is not None:
        try:
            step.tb_frame.clear()
        except RuntimeError:
            pass  # a frame that still runs: ours
        step = step.tb_next


def flush_streams() -> None:
    """Sends on what Python and C still hold of the output. User code may have closed all."""
    for stream in (*standard_streams, sys.__dict__.get("stdout"), sys.__dict__.get("stderr")):
        try:
            stream.flush()
        except BaseException:
            continue
    if not any(name in sys.modules for name in ("ctypes", "_ctypes", "numpy", "_cffi_backend")):
        return
    try:
        with originals.Lent():
            import ctypes

            ctypes.CDLL(None).fflush(None)
    except BaseException:
        return


def leave_child(turn: Turn) -> None:
    """Ends a child that user code forked and let run to the end of the code, as Python would."""
    status, problem = 0, turn.problem
    if type(problem) is SystemExit:
        status = problem.code if isinstance(problem.code, int) else int(problem.code is not None)
    elif problem is not None:
        status = 1
        try:
            sys.stderr.write(turn.describe(problem)["traceback"])
        except BaseException:
            pass
    flush_streams()
    _exit(status & 0xFF)
