"""An exception as text: as Python prints it, without the runner's own frames."""

from .originals import BUILTINS as __builtins__

import os
from sys import settrace

from .originals import Lent
from .reprs import class_name, cut_middle, safe_str, traceback_of

# Frames of files below these are not the user's; a session's shell adds its own.
HIDDEN_DIRECTORIES = [os.path.dirname(__file__) or "<mcp_forge_runner>"]
# How the names begin under which the user's code is compiled.
USER_CODE = "<execution"
# Of a deeper stack only the innermost frames are read.
MAX_FRAMES = 5000


def describe(problem: BaseException, sources: dict, limit: int):
    """The `error` of a `done` message, and the number of characters left out. Never raises.

    `sources` are the lines of the user's code by file name; `limit` is in characters.
    """
    try:
        text = format_exception(problem, sources)
    except BaseException:
        settrace(None)  # what `__str__` left behind; before the next call
        text = format_plainly(problem, sources)
    text, left_out = cut_middle(text, limit)
    message = cut_middle(message_of(problem), limit)[0]
    return {"type": class_name(type(problem)), "message": message, "traceback": text}, left_out


def message_of(problem: BaseException) -> str:
    """`str` of the exception."""
    return safe_str(problem)


def format_exception(problem: BaseException, sources: dict) -> str:
    """By the standard library, with its builtins and imports as they were at the start."""
    with Lent():
        import linecache
        import traceback

        register_sources(linecache, sources)
        report = traceback.TracebackException(
            type(problem), problem, traceback_of(problem), limit=-MAX_FRAMES, compact=True
        )
        hide_own_frames(report)
        return "".join(report.format())


def register_sources(linecache, sources: dict) -> None:
    """Lets tracebacks and `inspect.getsource` find the user's code, which is in no file."""
    for filename, lines in sources.items():
        linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)


def hide_own_frames(report) -> None:
    """Removes the runner's frames from a report and from all that it refers to."""
    outer = next((i for i, f in enumerate(report.stack) if f.filename.startswith(USER_CODE)), None)
    # What called the user's code: the runner and, if it awaits, asyncio.
    del report.stack[: len(report.stack) if outer is None else outer]
    seen, reports = set(), [report]
    while reports:
        one = reports.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if one.stack:
            one.stack[:] = [frame for frame in one.stack if not is_own(frame.filename)]
        if not one.stack:
            one.stack = None  # so that no empty `Traceback (most recent call last):` is printed
        reports += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def is_own(filename: str) -> bool:
    return filename.startswith(tuple(HIDDEN_DIRECTORIES))


def format_plainly(problem: BaseException, sources: dict) -> str:
    """The same by hand, for when the standard library cannot."""
    parts = ["Traceback (most recent call last):\n"]
    step = traceback_of(problem)
    while step is not None and len(parts) < MAX_FRAMES:
        code = step.tb_frame.f_code
        if not is_own(code.co_filename):
            parts.append(f'  File "{code.co_filename}", line {step.tb_lineno}, in {code.co_name}\n')
            lines = sources.get(code.co_filename, ())
            if 0 < step.tb_lineno <= len(lines):
                parts.append("    " + lines[step.tb_lineno - 1].strip() + "\n")
        step = step.tb_next
    if len(parts) == 1:
        parts.clear()
    parts.append(f"{class_name(type(problem))}: {message_of(problem)}\n")
    return "".join(parts)
