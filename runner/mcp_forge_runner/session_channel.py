"""The connection of a session: descriptors may come with a frame, and tool calls belong to a turn."""

from .originals import BUILTINS as __builtins__

import _socket
import array
from posix import close, getpid, pipe, read, write
from select import POLLIN, poll

from . import originals
from .attribution import attribution
from .channel import Channel, Closed, identify

MAX_DESCRIPTORS = 8
# What a call that was still open at its turn's end gets in place of an answer.
OVER = {
    "error": {
        "kind": "timeout",
        "message": "the turn ended before the answer came; the call may still be running",
    }
}


class SessionChannel(Channel):
    """One connection. Between turns only the main thread reads it."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        # What the session does when a turn has ended and its `done` is not sent yet.
        self.on_end = attribution.end
        self.is_open = False
        # Never closed by it: the number is what counts, also after a branch.
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        self.descriptors = []
        self.stop_reader = None

    def open_turn(self) -> None:
        """From now on tools can be called and displays sent."""
        self.is_open = True

    def call(self, name: str, arguments: dict, deliver) -> None:
        """As for a stateless turn; refused to threads and tasks whose turn is over."""
        if not attribution.is_current():
            raise Closed
        super().call(name, arguments, deliver)

    def finish_turn(self, payload: bytes) -> None:
        """Ends the turn: no call of it is open any more when `done` is sent."""
        with originals.SignalsHeld():
            with self.sending, self.state:
                self.is_open = False
            self.on_end()
            self.abandon_calls(OVER)
            self.end_reader()
            if self.in_owner():
                self.write_frame(payload)

    def send_between_turns(self, payload: bytes) -> None:
        """Sends a message that does not belong to the turn that runs."""
        if not self.in_owner():
            return
        with originals.SignalsHeld():
            self.write_frame(payload)

    def write_frame(self, payload: bytes) -> None:
        """Sends a message. The caller holds signals off."""
        with self.sending:
            self.write_all(memoryview(len(payload).to_bytes(4, "big") + payload))

    def receive(self):
        """The next request, or None when the server hung up."""
        return self.requests.pop() if self.requests else self.read_frame()

    def start_reader(self) -> None:
        if self.stop_reader is None:
            self.stop_reader = pipe()
        super().start_reader()

    def frame_is_due(self) -> bool:
        """Waits for a frame; False if the turn ended first."""
        wait = poll()
        wait.register(self.fd, POLLIN)
        wait.register(self.stop_reader[0], POLLIN)
        return self.stop_reader[0] not in [fd for fd, _ in wait.poll()]

    def end_reader(self) -> None:
        """Ends the reader thread, after the frame that it is reading."""
        if self.reader.acquire(False):
            self.reader.release()
            return
        write(self.stop_reader[1], b"x")
        with self.reader:
            read(self.stop_reader[0], 1)

    def read_exactly(self, length: int) -> bytes:
        """With the descriptors that came along: `read` would drop them."""
        parts = []
        while length:
            part, ancillary, _, _ = self.socket.recvmsg(
                min(length, 1 << 20), _socket.CMSG_SPACE(4 * MAX_DESCRIPTORS), _socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, data in ancillary:
                if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                    self.descriptors += array.array("i", data[: len(data) // 4 * 4])
            if not part:
                raise EOFError
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def take_descriptors(self) -> list:
        """The descriptors that came with the frame that was received last."""
        taken, self.descriptors = self.descriptors, []
        return taken

    def is_readable(self) -> bool:
        """Whether there is something to receive, without waiting for it."""
        if self.requests:
            return True
        wait = poll()
        wait.register(self.fd, POLLIN)
        return bool(wait.poll(0))

    def take_over(self) -> None:
        """In a branch: another socket has the number now, and nothing of the parent's goes on."""
        from _thread import RLock, allocate_lock

        self.pid = getpid()
        self.identity = identify(self.fd)
        self.sending, self.state, self.reader = RLock(), RLock(), allocate_lock()
        self.reading, self.is_open = False, False
        self.requests, self.waiting = [], {}
        self.close_stop_reader()

    def close_stop_reader(self) -> None:
        pair, self.stop_reader = self.stop_reader, None
        for fd in pair or ():
            close(fd)
