"""One turn of a session: like any other, but its names stay, and its value is shown while it runs."""

from .originals import BUILTINS as __builtins__

from _signal import SIGINT, signal
from mmap import mmap

from . import originals
from .attribution import Origin
from .channel import MAX_FRAME_BYTES, encode
from .execution import PLAIN, RESERVE_BYTES, Turn
from .inspection import Budget, list_files
from .reprs import bounded_repr

# More files, or files that take longer to list, are told after `done` only.
MAX_FILES = 1000
LIST_SECONDS = 0.002
# The same by the clock: threads of the code may hold the interpreter, and `done` must not wait for them.
LIST_PATIENCE = 0.05
# Of the next turn, made while there is time.
reserves = []


class SessionTurn(Turn):
    """The state of one turn of a session."""

    def __init__(self, session, request: dict) -> None:
        super().__init__(session.channel, request)
        self.session = session
        session.turns += 1
        self.filename = f"<execution {session.turns}>"
        self.origin = Origin(request.get("execution_id") or f"turn-{session.turns}")
        self.codes = []
        # What `done` tells of the files, if it is to.
        self.bounds, self.listed = request.get("inspect"), None
        self.described = {}
        # What an IPython shell shows by itself: the latest value, its bundle, what a magic caught.
        self.value_shown, self.shown, self.problem_shown = None, None, None
        self.updates = {}
        self.was_interrupted = self.is_plain = False

    def make_reserve(self):
        return reserves.pop() if reserves else make_reserve()

    def execute(self) -> None:
        """Runs the code and describes its value, all of which an interrupt can end."""
        self.session.begin(self)
        try:
            value = self.session.shell.run(self)
        finally:
            self.session.kept.take()
            self.show_figures()
            self.show_updates()
        if value is None:
            return
        self.is_plain = type(value) in PLAIN
        if self.is_plain:
            self.describe_result(value, self.described)
            return
        # Its methods may swallow an interrupt; `calm` raises it again.
        signal(SIGINT, self.interrupt)
        with originals.Lent():
            self.describe_result(value, self.described)
        self.calm()

    def describe_value(self, done: dict) -> None:
        done.update(self.described)

    def sources(self) -> dict:
        return self.session.sources

    def interrupt(self, number, frame):
        """An interrupt while the value is shown."""
        self.was_interrupted = True
        raise KeyboardInterrupt

    def calm(self) -> None:
        if self.is_plain:
            return  # it has no methods of the user's
        originals.settle()
        signal(SIGINT, self.interrupt)
        if self.was_interrupted:
            self.described = {}
            raise KeyboardInterrupt

    def report(self) -> bytes:
        # Its figures were shown, and an interrupt must not be due in the middle of the report.
        self.show_figures = nothing
        return super().report()

    def encode_done(self, done: dict) -> bytes:
        payload = super().encode_done(done)
        if self.bounds is None:
            return payload
        try:
            return payload[:-1] + self.list_files(MAX_FRAME_BYTES - len(payload)) + b"}"
        except BaseException:
            originals.settle()
            return payload

    def list_files(self, room: int) -> bytes:
        """The field that tells of the files, if they are few and quick to list."""
        files, omitted = list_files(self.session.workspace, MAX_FILES, Budget(LIST_SECONDS, LIST_PATIENCE))
        if omitted or len(files) > self.bounds["files"]:
            return b""
        field = b',"files":' + encode(files)
        if len(field) > room:
            return b""
        self.listed = files, omitted
        return field

    def bundle_of(self, value):
        """As the shell showed it, else as for a stateless turn."""
        if self.shown is None:
            return super().bundle_of(value)
        data = self.shown
        says_no_more = len(data) < 2 and data.get("text/plain") == bounded_repr(value, self.repr_chars)[0]
        self.calm()
        return None if says_no_more or not data else self.get_displays().take_room(data)

    def show_updates(self) -> None:
        """Displays that were updated are shown once more, as they are at the end."""
        updates, self.updates = self.updates, {}
        for data, metadata in updates.values():
            self.get_displays().publish(data, metadata)


def make_reserve():
    """Of all bytes that were given back before, the allocator would clear every page."""
    return mmap(-1, RESERVE_BYTES)


def prepare_next() -> None:
    """What the next turn needs is made between turns."""
    if not reserves:
        reserves.append(make_reserve())


def nothing() -> None:
    """In place of a method that has done its work."""
