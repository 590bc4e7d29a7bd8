"""A session: one interpreter that serves turn after turn, and says what it holds."""

from .originals import BUILTINS as __builtins__

import importlib
import os
import sys
from _thread import _count
from posix import _exit

# All that is ever needed is loaded now: between turns there may be no `sys.path` any more.
from . import attribution, awaiting, execution, foreign, hooks, originals, tools, tracebacks
from .attribution import attribution as turns
from .bindings import Bindings
from .branching import branch
from .channel import MAX_FRAME_BYTES, encode
from .event_loop import SessionLoop
from .inspection import inspect, nothing_known
from .kept import Kept
from .late import Late, LateDisplays, SessionStream
from .session_channel import SessionChannel
from .session_turn import SessionTurn, prepare_next
from .shell_plain import PlainShell
from .toolbox import Toolbox
from .workspace_files import move_file, read_piece, remove_file, write_piece

# Sources of turns that tracebacks can show.
MAX_SOURCES = 1000
prepared = []


def preload() -> None:
    """Makes the shell ahead, in a process that only forks: no thread, no descriptor, no file."""
    for name in ("threading", "concurrent.futures.thread"):
        importlib.import_module(name)
    if not prepared:
        prepared.append(make_shell())


def make_shell():
    """IPython's shell where it can be loaded, else the plain one."""
    try:
        from .shell_ipython import IPythonShell

        return IPythonShell()
    except Exception:
        # Not installed, or broken: the plain shell says `plain`, and works.
        return PlainShell()


def serve(channel) -> None:
    """Serves a session on the connection of `channel` until it closes. Does not return."""
    shell = prepared.pop() if prepared else make_shell()
    session = Session(SessionChannel(channel.fd), shell)
    originals.settle()  # an interrupt may come before the first turn has begun
    session.answer({"type": "session_started", "shell": shell.name})
    session.serve()


class Session:
    """The state of one session."""

    def __init__(self, channel, shell) -> None:
        self.channel, self.shell = channel, shell
        self.module = shell.module
        self.workspace = os.getcwd()
        self.turns = 0
        self.turn = None
        self.sources = {}
        self.kept = Kept()
        self.loop = SessionLoop()
        self.late = Late(channel)
        self.toolbox = Toolbox(channel, self.module.__dict__)
        channel.on_end = self.end
        self.streams = [self.replace_stream(name) for name in ("stdout", "stderr")]
        turns.streams = [stream for stream in self.streams if stream is not None]
        sys.modules["__main__"] = self.module
        shell.start(self)
        self.adjust_modules()
        self.display = self.make_display()
        self.toolbox.offer([], self.display)
        self.bindings = Bindings(self.module.__dict__)

    def serve(self) -> None:
        """Answers one request after the other."""
        answers = {
            "execute": self.execute,
            "start_session": self.say_started,
            "inspect": self.inspect,
            "write_file": self.write_file,
            "read_file": self.read_file,
            "move_file": self.move_file,
            "remove_file": self.remove_file,
            "branch": self.branch,
            "tool_result": nobody_waits,
        }
        while True:
            self.loop.run_until_frame(self.channel)
            request = self.channel.receive()
            answer = answers.get(request.get("type")) if request is not None else None
            if answer is None:
                _exit(0 if request is None else 70)
            answer(request)
            self.drop_descriptors()

    def answer(self, message: dict) -> None:
        """Sends what is no part of a turn."""
        payload = encode(message)
        if len(payload) > MAX_FRAME_BYTES:
            payload = encode(nothing_known())  # only an inspection can be so large
        try:
            self.channel.send_between_turns(payload)
        except OSError:
            _exit(71)

    def say_started(self, request: dict) -> None:
        self.answer({"type": "session_started", "shell": self.shell.name})

    def execute(self, request: dict) -> None:
        """Runs one turn to its `done`."""
        self.note_late()
        self.turn = SessionTurn(self, request)
        execution.run(self.turn)
        execution_id, codes, listed = self.turn.origin.execution_id, self.turn.codes, self.turn.listed
        self.turn = None
        self.note(execution_id, codes)
        if "inspect" in request:
            self.say_what_is_held(request["inspect"], listed)
            self.prepare_next()

    def prepare_next(self) -> None:
        """What the next turn would do before its code: the answer is on its way, so there is time."""
        try:
            prepare_next()
            if not _count() and self.loop.loop is None:
                originals.mend()  # nobody runs until the next turn who could tear it out again
        except BaseException:
            originals.settle()  # the turn will do it

    def note_late(self) -> None:
        """What threads and tasks bound between turns counts for the turn before."""
        if _count() or self.loop.ran_idle:
            self.loop.ran_idle = False
            self.note(self.bindings.last_execution_id)

    def note(self, execution_id, codes=()) -> None:
        try:
            self.bindings.note(self.module.__dict__, execution_id, codes)
        except BaseException:
            originals.settle()  # the user's code tore out what this needs: it is only less well known

    def begin(self, turn) -> None:
        """The last steps before the user's code."""
        self.late.renew()
        turns.begin(turn.origin)
        if not _count():
            turns.is_alone()
        sys.modules["__main__"] = self.module
        for name, stream in zip(("stdout", "stderr"), self.streams):
            sys.__dict__.setdefault(name, stream)
        self.channel.open_turn()
        self.toolbox.offer(turn.stubs, self.display)
        self.shell.hide(self.toolbox.offered)
        self.kept.restore()

    def end(self) -> None:
        """The first step after a turn: what its threads write from now on is late."""
        turns.end()
        for stream in self.streams:
            try:
                stream.send_on()
            except (OSError, ValueError, AttributeError):
                continue  # there is none, or the user closed its descriptor

    def inspect(self, request: dict) -> None:
        self.note_late()
        self.say_what_is_held(request["bounds"])

    def say_what_is_held(self, bounds: dict, listed=None) -> None:
        try:
            answer = inspect(self, bounds, listed)
        except BaseException:
            # Another thread changes what is looked at, or the interpreter was torn apart.
            originals.settle()
            answer = nothing_known()
        self.answer(answer)

    def write_file(self, request: dict) -> None:
        error = write_piece(self.workspace, request["path"], request["offset"], request["data"])
        answer = {"type": "file_written", "path": request["path"]}
        self.answer(answer if error is None else {**answer, "error": error})

    def read_file(self, request: dict) -> None:
        piece = read_piece(self.workspace, request["path"], request["offset"], request["length"])
        answer = {"type": "file_read", "path": request["path"], "offset": request["offset"]}
        self.answer({**answer, **piece})

    def move_file(self, request: dict) -> None:
        moved = move_file(self.workspace, request["path"], request["name"], request["replace"])
        self.answer({"type": "file_written", "path": request["path"], **moved})

    def remove_file(self, request: dict) -> None:
        removed = remove_file(self.workspace, request["path"])
        self.answer({"type": "file_written", "path": request["path"], **removed})

    def branch(self, request: dict) -> None:
        branch(self, self.channel.take_descriptors())

    def drop_descriptors(self) -> None:
        """Descriptors that came with a request that wants none."""
        for fd in self.channel.take_descriptors():
            os.close(fd)

    def remember_source(self, filename: str, source: str) -> None:
        """Keeps a turn's lines for tracebacks through its functions."""
        self.sources[filename] = [line + "\n" for line in source.split("\n")]
        while len(self.sources) > MAX_SOURCES:
            self.sources.pop(next(iter(self.sources)))
        linecache = sys.modules.get("linecache")
        if linecache is not None:
            self.adjust_linecache(linecache)

    def adjust_linecache(self, module) -> None:
        tracebacks.register_sources(module, self.sources)

    def displays_of_caller(self):
        """Where a display of the caller goes: to the turn that runs, or to the late ones."""
        if turns.is_current() and self.turn is not None:
            return self.turn.get_displays()
        return LateDisplays(self.late, turns.of_caller())

    def make_display(self):
        """IPython's `display`, or one like it."""
        found = getattr(self.shell, "display", None)
        if found is not None:
            return found

        def display(*objects, **options):
            """Shows objects to the caller: images, HTML, Markdown and more, with a plain text.

            Works as `IPython.display.display`; with `raw=True` an object is a MIME bundle itself.
            """
            self.displays_of_caller().display(*objects, **options)

        display.__module__, display.__qualname__ = "mcp_forge", "display"
        return display

    def replace_stream(self, name: str):
        """Puts a stream that knows turns in the place of `sys.stdout` or `sys.stderr`."""
        stream = getattr(sys, name, None)
        if stream is None:
            return None
        mine = SessionStream(stream, name, self.late)
        setattr(sys, name, mine)
        setattr(sys, "__" + name + "__", mine)
        # The old one would close the descriptor when nobody refers to it any more.
        execution.standard_streams.append(mine)
        return mine

    def adjust_modules(self) -> None:
        """Modules that behave differently in a session, when and if they are imported."""
        attribution.adjust_builtin_threads()
        input_module = importlib.import_module(type(self.shell).__module__)
        originals.live_builtins["input"] = input_module.refuse_input
        hooks.adjust_after_import(
            {
                "linecache": self.adjust_linecache,
                "threading": attribution.adjust_starters,
                "concurrent.futures.thread": attribution.adjust_executor,
                "getpass": lambda module: setattr(
                    module, "getpass", getattr(input_module, "refuse_password", input_module.refuse_input)
                ),
                "matplotlib.pyplot": lambda module: module.__dict__.update(show=self.make_show()),
            }
        )

    def make_show(self):
        def show(*args, **kwargs):
            """Displays the open figures and closes them."""
            self.displays_of_caller().flush_figures()

        show.__module__ = "matplotlib.pyplot"
        return show


def nobody_waits(request: dict) -> None:
    """The answer to a call of a turn that is over."""
