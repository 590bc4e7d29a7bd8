"""The connection to the server: frames of JSON, and tool calls that wait for their answers.

A frame is a big-endian `u32` length and that many bytes of UTF-8 JSON. Messages are those of
`wire.rs`; `fixtures/` holds one example of each.
"""

from .originals import BUILTINS as __builtins__

from _thread import RLock, allocate_lock, start_new_thread
from posix import close, fstat, getpid, read, register_at_fork, write

from . import originals

try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner
except ImportError:  # an interpreter without the C accelerator: slower, the same result
    make_scanner = None
    from json.encoder import encode_basestring_ascii

# Far below the server's own limit for a frame, with room for what it may add.
MAX_FRAME_BYTES = 16 << 20


class Closed(Exception):
    """The message was not sent: the turn is over, or this is a forked child."""


class TooLarge(Exception):
    """The message was not sent: its frame would be over `MAX_FRAME_BYTES`."""


class Channel:
    """One connection. Any thread may send and call; only the main thread receives requests."""

    def __init__(self, fd: int, watch_forks: bool = True) -> None:
        self.pid = getpid()
        self.fd = fd
        self.identity = identify(fd)
        self.is_open = True
        # Reentrant: a signal handler may call a tool while its thread is about to send.
        self.sending = RLock()
        self.state = RLock()
        self.reader = allocate_lock()  # held while a reader thread runs
        self.reading = False
        self.requests = []
        self.waiting = {}
        self.last_call_id = 0
        if watch_forks:
            register_at_fork(after_in_child=self.forget)

    def in_owner(self) -> bool:
        """Whether this is the process that was started, not a child it forked."""
        return getpid() == self.pid

    def send(self, message: dict) -> None:
        """Sends one message whole, or raises `Closed` or `TooLarge` having sent nothing."""
        self.send_encoded(encode(message))

    def send_encoded(self, payload: bytes, last: bool = False) -> None:
        """Sends one message that `encode` made; after the `last` one of a turn all are refused."""
        if len(payload) > MAX_FRAME_BYTES:
            raise TooLarge(len(payload))
        if not self.in_owner():
            raise Closed
        frame = memoryview(len(payload).to_bytes(4, "big") + payload)
        with originals.SignalsHeld(), self.sending:
            if not self.is_open:
                raise Closed
            if last:
                with self.state:
                    self.is_open = False
            self.write_all(frame)

    def write_all(self, frame: memoryview) -> None:
        """Writes a frame to its end. The caller holds `sending`."""
        while frame:
            frame = frame[write(self.fd, frame) :]

    def finish_turn(self, payload: bytes) -> None:
        """Sends a turn's `done`, after which nothing of the turn is sent."""
        self.send_encoded(payload, last=True)

    def receive(self):
        """The next request, or None when the server hung up. Reopens the channel for a turn."""
        with self.reader:  # a reader thread that still waits hands over what it finds
            pass
        request = self.requests.pop() if self.requests else self.read_frame()
        self.is_open = True
        return request

    def call(self, name: str, arguments: dict, deliver) -> None:
        """Calls a tool; later `deliver(answer)` runs on another thread. None: connection lost."""
        with self.state:
            self.last_call_id += 1
            call_id = self.last_call_id
        message = {"type": "tool_call", "call_id": call_id, "name": name, "arguments": arguments}
        payload = encode(message)
        if not self.in_owner():
            raise Closed
        try:
            with self.state:
                self.start_reader()
                self.waiting[call_id] = deliver
            self.send_encoded(payload)
        except BaseException:
            self.waiting.pop(call_id, None)
            raise

    def start_reader(self) -> None:
        """Starts the thread that reads answers, unless it runs.

        It lives only while calls wait: a program that forks between its calls forks a
        process with one thread. It is a thread because signal handlers, which may raise
        anywhere, never run there.
        """
        if not self.is_open:
            # A reader now would take the next request away from the main thread.
            raise Closed
        if self.reading:
            return
        # With all signals blocked. The thread inherits that: a signal that came to it instead of the
        # main thread would not wake a main thread that waits for an answer. And an interrupt in the
        # middle could not tell whether the thread is there to let go of `reader`.
        with originals.SignalsHeld():
            self.reader.acquire()
            self.reading = True
            try:
                start_new_thread(self.read_answers, ())
            except BaseException:
                self.reading = False
                self.reader.release()
                raise

    def read_answers(self) -> None:
        """The reader thread: hands each answer to its call until none waits."""
        try:
            while self.frame_is_due():
                message = self.read_frame()
                if message is None or message.get("type") != "tool_result":
                    self.requests.append(message)
                    self.abandon_calls()
                    return
                with self.state:
                    deliver = self.waiting.pop(message.get("call_id"), None)
                    idle = not self.waiting
                    self.reading = not idle
                if deliver is not None:
                    deliver(message)
                if idle:
                    return
        finally:
            self.reader.release()

    def frame_is_due(self) -> bool:
        """Whether the reader thread is to read on."""
        return True

    def abandon_calls(self, answer=None) -> None:
        """Wakes every call that can no longer be answered. None: the connection is lost."""
        with self.state:
            self.reading = False
            calls, self.waiting = self.waiting, {}
        for deliver in calls.values():
            deliver(answer)

    def read_frame(self):
        """One message, or None when the stream has ended or makes no sense."""
        try:
            length = int.from_bytes(self.read_exactly(4), "big")
            return decode(self.read_exactly(length))
        except (OSError, EOFError, ValueError):
            return None

    def read_exactly(self, length: int) -> bytes:
        parts = []
        while length:
            part = read(self.fd, min(length, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def forget(self) -> None:
        """In a forked child: closes our copy, so that the server still sees the parent die."""
        self.is_open = False
        try:
            # Only if the number still means our socket: user code may have taken it.
            if identify(self.fd) == self.identity:
                close(self.fd)
        except OSError:
            pass


def identify(fd: int):
    """What the descriptor refers to, to notice that its number was reused."""
    status = fstat(fd)
    return status.st_dev, status.st_ino


def escape(text: str) -> str:
    """A string as an ASCII JSON literal. A lone surrogate becomes the text `\\udXXX`."""
    return encode_basestring_ascii(well_formed(text))


def well_formed(text: str) -> str:
    """The string itself, with lone surrogates written out as `print` writes them here."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class ScannerOptions:
    """What `_json` wants to know; the options of `json.loads` with its defaults."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


# `import json` would load `re` and `enum`: a third of the runner's whole start.
if make_scanner is not None:
    scan = make_scanner(ScannerOptions)
    write_json = make_encoder(None, None, escape, None, ":", ",", False, False, False)

    def encode(message) -> bytes:
        """Plain data as ASCII JSON. Raises ValueError for a number that JSON has not."""
        return "".join(write_json(message, 0)).encode("ascii")

    def decode(frame: bytes):
        """One JSON value. Raises ValueError for anything else."""
        text = frame.decode("utf-8").strip(" \t\r\n")
        try:
            value, end = scan(text, 0)
        except StopIteration:
            raise ValueError("no JSON value") from None
        if end != len(text):
            raise ValueError("something follows the JSON value")
        return value

else:
    import json

    def encode(message) -> bytes:
        """Plain data as ASCII JSON. Raises ValueError for a number that JSON has not."""
        return json.dumps(tidy(message), separators=(",", ":"), allow_nan=False).encode("ascii")

    def tidy(value):
        """Plain data without lone surrogates."""
        if isinstance(value, str):
            return well_formed(value)
        if isinstance(value, list):
            return [tidy(item) for item in value]
        if isinstance(value, dict):
            return {well_formed(key): tidy(item) for key, item in value.items()}
        return value

    def decode(frame: bytes):
        """One JSON value. Raises ValueError for anything else."""
        return json.loads(frame)
