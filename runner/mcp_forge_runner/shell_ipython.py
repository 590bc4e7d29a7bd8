"""The shell of a session where IPython is installed: its own, without kernel, threads or files."""

from .originals import BUILTINS as __builtins__

import builtins
import linecache
import os
import re
import subprocess
import sys
import threading
import warnings
from contextlib import nullcontext

import IPython
from IPython.core import interactiveshell, page
from IPython.core.autocall import ExitAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.display_functions import display
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets import Instance, Type, default
from traitlets.config import Config

from . import tracebacks, values
from .displays import clean_bundle, is_figure, render_figure
from .event_loop import wants_loop
from .execution import class_of_module, normalize
from .inspection import thread_name
from .plain_cells import CellTransformer
from .reprs import bounded_repr, class_dict, class_mro, cut_middle

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Shown by `repr` and bounded; IPython's own text of a long list has no bound.
PLAIN_TYPES = (str, int, bool, list, dict, tuple, set, frozenset, bytes)
METADATA_BYTES = 2000


class NoFiles(ProfileDir):
    """A profile that is only a name: nothing is read from it, and nothing made until it is used."""

    def _location_changed(self, change) -> None:
        pass


class Compiler(CachingCompiler):
    """Names cells as the runner names its turns, so that tracebacks look the same."""

    def get_code_name(self, raw_code, transformed_code, number):
        name, nested = f"<execution {number}>", 1
        lines = [line + "\n" for line in transformed_code.splitlines()]
        while name in linecache.cache and linecache.cache[name][2] != lines:
            nested += 1
            name = f"<execution {number}.{nested}>"
        return name


class Hook(DisplayHook):
    """Takes what a cell's expressions yield. The last one is the turn's result."""

    def quiet(self):
        history = self.shell.history_manager.input_hist_parsed
        return ";" in history[-1] and super().quiet()

    def start_displayhook(self):
        self._is_active = True

    def write_output_prompt(self):
        pass

    def finish_displayhook(self):
        self._is_active = False

    def compute_format_data(self, result):
        self.value = result
        return self.shell.format_result(result)

    def write_format_data(self, format_dict, md_dict=None):
        value, self.value = self.value, None
        self.shell.take_result(value, format_dict)

    def log_output(self, format_dict):
        # Only what `%history -o` reads; the bundles would be kept for ever.
        text = format_dict.get("text/plain")
        if text is not None:
            self.shell.history_manager.output_hist_reprs[self.prompt_count] = text[:METADATA_BYTES]


class Exit(ExitAutocall):
    """`exit` and `quit`: the cell ends. The argument is a kernel's."""

    def __call__(self, keep_kernel=False):
        raise SystemExit


class NeverSet(threading.Event):
    """The flag by which IPython 8 wakes a thread that is not here.

    An interrupt between its lock and what that protects would leave it locked, and the next cell waiting.
    """

    def set(self):
        pass


class Publisher(DisplayPublisher):
    """`display` of IPython, on the way of all displays."""

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **options):
        self._validate_data(data, metadata)
        self.shell.show(data, metadata or {}, (transient or {}).get("display_id"), update)

    def clear_output(self, wait=False):
        """What was sent cannot be taken back."""


class Shell(InteractiveShell):
    """IPython's shell with the runner's ways out."""

    displayhook_class = Type(Hook)
    display_pub_class = Type(Publisher)
    compiler_class = Type(Compiler)
    exiter = Instance(ExitAutocall)
    input_transformer_manager = Instance(CellTransformer)
    session = None
    turn = None

    @default("input_transformer_manager")
    def make_transformer(self):
        return CellTransformer()

    @default("exiter")
    def make_exiter(self):
        return Exit(self)

    def init_ipython_dir(self, ipython_dir):
        self.set_trait("ipython_dir", "")

    def init_profile_dir(self, profile_dir):
        self.profile_dir = NoFiles(location=os.path.join(os.environ.get("TMPDIR", "/tmp"), ".ipython"))

    @property
    def db(self):
        """What `%store` and `%bookmark` keep: made when they are first used."""
        if self.__dict__.get("store") is None:
            # IPython 8 has it there, or a stand-in where it is not installed.
            PickleShareDB = getattr(interactiveshell, "PickleShareDB", None)
            if PickleShareDB is None:
                from IPython.external.pickleshare import PickleShareDB
            self.__dict__["store"] = PickleShareDB(os.path.join(self.profile_dir.location, "db"))
        return self.__dict__["store"]

    @db.setter
    def db(self, value):
        """IPython 8 makes one for itself at the start; we wait until it is used."""

    def init_virtualenv(self):
        pass

    def init_path(self):
        """The runner has put the working directory in front."""

    def init_environment(self):
        os.environ.setdefault("PAGER", "cat")
        os.environ.setdefault("GIT_PAGER", "cat")

    def init_hooks(self):
        super().init_hooks()
        self.set_hook("show_in_pager", page.as_hook(self.show_help), 99)

    def _tee(self, channel):
        return nullcontext()

    def _format_exception_for_storage(self, exception, *args, **kwargs):
        return {"ename": type(exception).__name__, "evalue": "", "traceback": []}

    def enable_gui(self, gui=None):
        """There is no screen."""

    def showtraceback(self, exc_tuple=None, *args, **kwargs):
        """The turn's report has it, also if a magic caught it: `%run`, for example, goes on.

        Only what failed while a value was shown is said here: the code has not failed.
        """
        try:
            kind, problem, place = self._get_exc_info(exc_tuple)
        except ValueError:
            return
        if self.displayhook._is_active and issubclass(kind, Exception):
            text = tracebacks.message_of(problem)
            print(f"{kind.__name__} while a value was shown: {text}", file=sys.stderr)
        elif self.turn is not None:
            self.turn.problem_shown = problem

    def showsyntaxerror(self, *args, **kwargs):
        self.showtraceback()

    def should_run_async(self, raw_cell, **options):
        cell = options.get("transformed_cell") or ""
        if "await" not in cell and "async" not in cell and not wants_loop(raw_cell):
            return False  # without these words it cannot await; else IPython compiles it to see
        return super().should_run_async(raw_cell, **options) or self.autoawait and wants_loop(raw_cell)

    async def run_code(self, code_obj, result=None, *, async_=False):
        if self.turn is not None:
            self.turn.codes.append(code_obj)
        return await super().run_code(code_obj, result, async_=async_)

    def system_piped(self, cmd):
        """`!command`: its output comes line by line, as what the cell prints."""
        command = self.var_expand(cmd, depth=1)
        if command.rstrip().endswith("&"):
            raise OSError("Background processes not supported.")
        status = run_command(command)
        self.user_ns["_exit_code"] = status
        if getattr(self, "system_raise_on_error", False) and status != 0:
            raise subprocess.CalledProcessError(status, cmd)

    system = system_piped

    def show_help(self, data, start=0, screen_lines=0, pager_cmd=None):
        """`name?`: where a notebook opens a pager, the text is printed."""
        text = data.get("text/plain", "") if isinstance(data, dict) else str(data)
        print(ESCAPES.sub("", text))

    def format_result(self, value) -> dict:
        """The bundle of an expression's value."""
        limit = self.turn.repr_chars if self.turn is not None else METADATA_BYTES
        if type(value) in PLAIN_TYPES:
            return {"text/plain": bounded_repr(value, limit)[0]}, {}
        data, metadata = self.display_formatter.format(value)
        if not data and not self.has_failed(value):
            return {}, {}  # it has displayed itself
        text = data.get("text/plain")
        if not isinstance(text, str):
            text = bounded_repr(value, limit)[0]
        data["text/plain"] = cut_middle(text, limit)[0]
        return clean_bundle(data), metadata

    def has_failed(self, value) -> bool:
        """Whether nothing could be said of a value, and not that it has a way of its own."""
        return not any("_ipython_display_" in class_dict(base) for base in class_mro(type(value)))

    def take_result(self, value, data: dict) -> None:
        """The latest value and its bundle; an earlier one of the same cell becomes a display."""
        turn = self.turn
        if turn is None:
            return
        if turn.shown is not None:
            turn.get_displays().publish(turn.shown, {})
        turn.value_shown, turn.shown = value, data

    def show(self, data: dict, metadata: dict, display_id, update: bool) -> None:
        """A display, to whichever turn its caller belongs; updates are sent at the turn's end."""
        data, metadata = clean_bundle(data), values.to_json(metadata, METADATA_BYTES)[0]
        if update and self.turn is not None and display_id is not None:
            self.turn.updates[display_id] = data, metadata
        else:
            self.session.displays_of_caller().publish(data, metadata)


class IPythonShell:
    """Runs the cells of one session with IPython."""

    def __init__(self) -> None:
        self.name = f"ipython {IPython.__version__}"
        self.display = display
        self.module = class_of_module("__main__")
        self.module.__builtins__ = builtins
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        config.InteractiveShell.separate_in = ""
        config.InteractiveShell.autoindent = False
        # The one extension that IPython's own programs load; it writes when it is told to.
        config.StoreMagics.autorestore = False
        before = sys.modules.get("__main__")
        self.shell = make_without_store(config, self.module)
        if before is not None:
            sys.modules["__main__"] = before
        self.shell.extension_manager.load_extension("storemagic")
        history = self.shell.history_manager
        if isinstance(getattr(history, "save_flag", None), threading.Event):
            history.save_flag = NeverSet()
        interactiveshell.warn = warn_but_not_of_exit
        self.shell.set_trait("loop_runner", self.run_in_loop)
        png = self.shell.display_formatter.formatters["image/png"]
        png.for_type_by_name("matplotlib.figure", "Figure", self.draw)
        tracebacks.HIDDEN_DIRECTORIES.append(os.path.dirname(IPython.__file__) + os.sep)
        decorator = sys.modules.get("decorator")  # IPython 8 wraps what it calls in it
        if decorator is not None:
            tracebacks.HIDDEN_DIRECTORIES.append(decorator.__file__.removesuffix("__init__.py"))

    def start(self, session) -> None:
        """The session begins, maybe in a fork of the process that made the shell."""
        self.session = self.shell.session = session
        try:
            self.shell.history_manager.dir_hist[:] = [os.getcwd()]
        except OSError:
            pass

    def hide(self, names: dict) -> None:
        """Names that `%who` and `%reset` are to take for the shell's own."""
        self.shell.user_ns_hidden.update(names)

    def run(self, turn):
        """Runs a turn's code; the value of its last expression."""
        code = normalize(turn.code, turn.filename)
        self.shell.turn = turn
        self.shell.displayhook._is_active = False
        try:
            result = self.shell.run_cell(code, store_history=True)
        finally:
            self.shell.turn = None
        problem = result.error_before_exec or result.error_in_exec or turn.problem_shown
        if problem is not None:
            raise problem
        value, turn.value_shown = turn.value_shown, None
        return value

    def run_in_loop(self, coroutine):
        """What IPython runs cells with that await."""
        return self.session.loop.run(self.supervise(coroutine))

    async def supervise(self, coroutine):
        """A forked child that came to the cell's end does not get back to the parent's loop."""
        result = await coroutine
        self.session.turn.leave_if_child(result.error_before_exec or result.error_in_exec)
        return result

    def draw(self, figure):
        """A figure as PNG; it is not shown again at the turn's end."""
        self.session.displays_of_caller().shown_figures.append(figure)
        return render_figure(figure)

    def quiesce(self) -> None:
        """Before a branch: the thread that waits for the scripts of `%%bash` goes if none runs."""
        scripts = self.shell.magics_manager.registry.get("ScriptMagics")
        loop = getattr(scripts, "event_loop", None)
        if loop is None or scripts.bg_processes:
            return
        if hasattr(scripts, "stop_event_loop"):
            scripts.stop_event_loop()
            return
        import threading

        scripts.event_loop = None
        loop.call_soon_threadsafe(loop.stop)
        for thread in threading.enumerate():
            if "run_forever" in thread_name(thread):
                threading.Thread.join(thread, 1)


def make_without_store(config, module):
    """The shell. IPython 8 would make the directory of `%store` at once, and may not be able to."""
    store = getattr(interactiveshell, "PickleShareDB", None)
    if store is None:
        return Shell.instance(config=config, user_module=module)
    interactiveshell.PickleShareDB = str
    try:
        return Shell.instance(config=config, user_module=module)
    finally:
        interactiveshell.PickleShareDB = store


def run_command(command: str) -> int:
    """Runs a shell command with its output on `sys.stdout`; its exit status, negative for a signal."""
    shell = os.environ.get("SHELL", "/bin/sh")
    process = subprocess.Popen(
        [shell, "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        for line in process.stdout:
            sys.stdout.write(line.decode("utf-8", "replace"))
        return process.wait()
    except BaseException:
        process.terminate()
        raise
    finally:
        process.stdout.close()
        sys.stdout.flush()


def refuse_input(prompt="", stream=None):
    """`input` where nobody can type: the error that a kernel raises without a frontend for it."""
    raise StdinNotImplementedError(
        "raw_input was called, but this frontend does not support input requests."
    )


def refuse_password(prompt="", stream=None, **options):
    """`getpass` where nobody can type."""
    raise StdinNotImplementedError(
        "getpass was called, but this frontend does not support input requests."
    )


def warn_but_not_of_exit(message, *args, stacklevel=1, **options):
    """IPython tells whoever calls `sys.exit` to call `exit`; here that is the same."""
    if not str(message).startswith("To exit:"):
        warnings.warn(message, *args, stacklevel=stacklevel + 1, **options)
