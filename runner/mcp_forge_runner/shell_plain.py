"""The shell of a session where there is no IPython: the same contract, without magics."""

from .originals import BUILTINS as __builtins__

import builtins

from .event_loop import wants_loop
from .execution import CO_COROUTINE, FUTURE_FLAGS, class_of_module, compile_source, normalize

HINT = " (a line that begins with % or !, or ends with ?, needs IPython, which this environment has not)"


class PlainShell:
    """Compiles and runs the cells of one session."""

    name = "plain"

    def __init__(self) -> None:
        self.module = class_of_module("__main__")
        self.module.__builtins__ = builtins
        self.inputs, self.outputs = [""], {}
        self.module.__dict__.update(In=self.inputs, Out=self.outputs, _="", __="", ___="")
        self.future_flags = 0
        self.last = ["", "", ""]

    def start(self, session) -> None:
        """The session begins."""
        self.session = session

    def hide(self, names: dict) -> None:
        """Names that are the shell's own: here nobody lists them."""

    def run(self, turn):
        """Runs a turn's code; the value of its last expression."""
        source = normalize(turn.code, turn.filename)
        turn.session.remember_source(turn.filename, source)
        self.inputs.append(source)
        try:
            codes, has_value = compile_source(source, turn.filename, self.future_flags)
        except SyntaxError as problem:
            add_hint(problem)
            raise
        turn.codes = codes
        value = self.evaluate(turn, codes, source)
        for code in codes:
            self.future_flags |= code.co_flags & FUTURE_FLAGS
        if not has_value or value is None:
            return None
        self.remember(value)
        return value

    def evaluate(self, turn, codes: list, source: str):
        """In the session's loop if the code awaits, or if it makes tasks."""
        namespace = self.module.__dict__
        if wants_loop(source) or any(code.co_flags & CO_COROUTINE for code in codes):
            from .awaiting import evaluate

            return turn.session.loop.run(evaluate(codes, namespace, turn.leave_if_child))
        value = None
        for code in codes:
            value = eval(code, namespace)
        return value

    def remember(self, value) -> None:
        """`Out`, and `_`, `__`, `___` unless the user took one of these names."""
        if value is self.outputs:
            return
        number = len(self.inputs) - 1
        names = self.module.__dict__
        names[f"_{number}"] = value
        if all(names.get(name) is known for name, known in self.underscores().items()):
            names.update(_=value, __=names["_"], ___=names["__"])
            self.last = [value, *self.last][:3]
        self.outputs[number] = value

    def underscores(self) -> dict:
        """What `_`, `__` and `___` are, if the user did not touch them."""
        return dict(zip(("_", "__", "___"), self.last))

    def quiesce(self) -> None:
        """Before a branch: nothing of the shell's own runs."""


def add_hint(problem: SyntaxError) -> None:
    """Says of a magic that there is none here."""
    line = problem.text if isinstance(problem.text, str) else ""
    text = line.strip()
    if text.startswith(("%", "!")) or text.endswith("?"):
        problem.msg += HINT
        problem.args = (problem.msg, *problem.args[1:])


def refuse_input(prompt=""):
    """`input` where nobody can type."""
    raise EOFError("input(): nobody can answer in a session; put the value into the code")
