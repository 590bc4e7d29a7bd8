"""What threads and tasks of earlier turns write and show: sent by itself, within bounds."""

from .originals import BUILTINS as __builtins__

from _io import TextIOWrapper
from _thread import RLock
from posix import register_at_fork

from .attribution import attribution
from .channel import encode, well_formed
from .displays import Displays

# Between two turns, as frames with all that belongs to them.
MAX_TEXT_BYTES = 256 << 10
MAX_DISPLAY_BYTES = 1 << 20
# Each frame costs this much more, so that one byte a frame is not for free.
FRAME_COST = 128
PIECE_CHARS = 16 << 10
# A line that does not end is held back no longer than this.
MAX_HELD_CHARS = 4 << 10
MARKER = "\n[later output was left out: only 256 KiB are kept between two turns]\n"


class Late:
    """Sends late output and displays of one session."""

    def __init__(self, channel) -> None:
        self.channel = channel
        self.lock = RLock()
        self.held = {}
        self.renew()
        register_at_fork(after_in_child=self.forget)

    def renew(self) -> None:
        """A turn begins: sends what was held back; the bounds are whole again."""
        with self.lock:
            self.flush()
            self.text_room = MAX_TEXT_BYTES
            self.display_room = MAX_DISPLAY_BYTES
            self.told = False

    def forget(self) -> None:
        """In a forked child: what the parent held back is the parent's."""
        self.lock = RLock()
        self.held = {}

    def write(self, origin, stream: str, text: str) -> None:
        """Takes text of an earlier turn. Whole lines leave at once."""
        if not self.channel.in_owner():
            return
        with self.lock:
            text = self.held.pop((origin, stream), "") + text[: MAX_TEXT_BYTES + 1]
            end = len(text) if len(text) > MAX_HELD_CHARS else text.rfind("\n") + 1
            if end < len(text):
                self.held[origin, stream] = text[end:]
            self.send_text(origin, stream, text[:end])

    def flush(self) -> None:
        """Sends the lines that have not ended."""
        with self.lock:
            held, self.held = self.held, {}
            for (origin, stream), text in held.items():
                self.send_text(origin, stream, text)

    def send_text(self, origin, stream: str, text: str) -> None:
        for start in range(0, len(text), PIECE_CHARS):
            piece = well_formed(text[start : start + PIECE_CHARS])
            frame = text_frame(origin, stream, piece)
            self.text_room -= len(frame) + FRAME_COST
            if self.text_room < 0:
                self.tell_once(origin, stream)
                return
            self.channel.send_between_turns(frame)

    def tell_once(self, origin, stream: str) -> None:
        """Says that something was left out, once between two turns."""
        if not self.told:
            self.told = True
            self.channel.send_between_turns(text_frame(origin, stream, MARKER))

    def display(self, origin, data: dict, metadata: dict) -> None:
        """Sends a display of an earlier turn, if there is room for it."""
        message = {
            "type": "late_display",
            "execution_id": origin.execution_id,
            "data": data,
            "metadata": metadata,
        }
        frame = encode(message)
        with self.lock:
            self.display_room -= len(frame) + FRAME_COST
            if self.display_room < 0:
                self.tell_once(origin, "stdout")
            else:
                self.channel.send_between_turns(frame)


def text_frame(origin, stream: str, text: str) -> bytes:
    return encode(
        {"type": "late_output", "execution_id": origin.execution_id, "stream": stream, "text": text}
    )


class LateDisplays(Displays):
    """The displays of a turn that is over."""

    def __init__(self, late: Late, origin) -> None:
        super().__init__(late.channel, MAX_DISPLAY_BYTES, 1)
        self.late, self.origin = late, origin

    def publish(self, data: dict, metadata: dict) -> None:
        if self.channel.in_owner():
            self.late.display(self.origin, data, metadata)


class SessionStream(TextIOWrapper):
    """`sys.stdout` or `sys.stderr` of a session: a descriptor for the turn that runs, else `late`."""

    def __init__(self, stream, name: str, late: Late) -> None:
        super().__init__(stream.buffer, "utf-8", "backslashreplace", line_buffering=True)
        self.stream_name = name
        self.late = late
        self.mode = "w"

    def write(self, text):
        with attribution.lock:
            if attribution.is_current():
                return write_text(self, text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.late.write(attribution.of_caller(), self.stream_name, str.__str__(text))
        return len(text)

    def write_plainly(self) -> None:
        """While nobody else runs: `print` finds the method that is written in C."""
        self.__dict__["write"] = write_text.__get__(self)

    def write_by_turn(self) -> None:
        """`print` finds the method above."""
        self.__dict__.pop("write", None)

    def flush(self):
        # Whoever is late has nothing in here.
        if attribution.is_current():
            flush_text(self)

    def send_on(self) -> None:
        """Flushes, whoever asks for it."""
        flush_text(self)

    def close(self):
        """Only flushes: the descriptor is the session's, and the next turn wants to print, too."""
        self.flush()

    def detach(self):
        raise ValueError("a session's output cannot be detached; use .buffer")


write_text = TextIOWrapper.write
flush_text = TextIOWrapper.flush
