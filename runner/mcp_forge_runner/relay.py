"""Pid 1 of a container: tells what holds there, starts the interpreter, carries its streams.

A container has one stream each way. They carry records: one byte that says which kind, a
big-endian `u32` length, and that many bytes. Standard output gets what the interpreter sends
on its connection, and what is written to its standard output and standard error; standard
input brings what is sent to it. When standard input ends, nobody is left to talk to, and the
container ends.
"""

import os
import select
import signal
import socket
import sys

# Records to the server.
HELLO, CONTROL, STDOUT, STDERR, ENDED = b"h", b"c", b"o", b"e", b"x"
# Records from the server. CONTROL goes both ways; empty, it says that the connection is closed.
START, INTERRUPT = b"s", b"i"

# The virtual environment that an image may have, and where its links lead.
ENVIRONMENT, KNOWN = "/opt/environment", "/opt/mcp-forge/environment"
BOOTSTRAP = """\
import sys
sys.path.insert(0, '/opt/mcp-forge')
from mcp_forge_runner.__main__ import main
main(3)"""

HEADER_BYTES = 5
# Bytes that wait for the server before nothing more is taken from the interpreter.
OUTGOING_BYTES = 1 << 18
# Bytes that wait for the interpreter before nothing more is taken from the server.
INCOMING_BYTES = 1 << 20
PIECE_BYTES = 1 << 16
# What a pipe holds: no more was written before something else that was read just now.
PIPE_BYTES = 1 << 20
# How often a container in which nothing happens looks whether memory ran out.
LOOK_MS = 250
# Time for the last record to be taken by a server that ends the container anyway.
LAST_WORDS_MS = 5_000


def main() -> None:
    """Says hello, and serves the interpreter once the server wants it. Does not return."""
    set_dumpable(False)
    incoming = Incoming()
    outgoing = Outgoing()
    outgoing.put(HELLO, encode(facts()))
    outgoing.flush()
    start = incoming.wait_for(START)
    relay = Relay(incoming, outgoing, *start_worker(decode(start)))
    relay.run()


def set_dumpable(is_dumpable: bool) -> None:
    """Whether others of the same user may look into this process in /proc, and write to its streams."""
    import ctypes

    PR_SET_DUMPABLE = 4
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, int(is_dumpable), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def encode(value) -> bytes:
    import json

    return json.dumps(value).encode()


def decode(text: bytes):
    import json

    return json.loads(text)


class Incoming:
    """Records from standard input."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def fill(self) -> None:
        """Reads what there is. At the end of the stream the container ends."""
        piece = os.read(0, PIECE_BYTES)
        if not piece:
            os._exit(0)
        self.buffer += piece

    def take(self):
        """The next whole record as its kind and body, or None."""
        if len(self.buffer) < HEADER_BYTES:
            return None
        end = HEADER_BYTES + int.from_bytes(self.buffer[1:HEADER_BYTES], "big")
        if len(self.buffer) < end:
            return None
        kind, body = bytes(self.buffer[:1]), bytes(self.buffer[HEADER_BYTES:end])
        del self.buffer[:end]
        return kind, body

    def wait_for(self, wanted: bytes) -> bytes:
        """Waits for a record of this kind; none other may come before."""
        while (record := self.take()) is None:
            self.fill()
        if record[0] != wanted:
            os._exit(70)
        return record[1]


class Outgoing:
    """Records for standard output, as far as it has not taken them."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        os.set_blocking(1, False)

    def put(self, kind: bytes, body: bytes) -> None:
        self.buffer += kind + len(body).to_bytes(4, "big") + body
        self.write()

    def write(self) -> None:
        """Writes what is taken now."""
        try:
            while self.buffer:
                del self.buffer[: os.write(1, self.buffer)]
        except BlockingIOError:
            pass
        except OSError:
            os._exit(0)

    def flush(self) -> None:
        """Waits until all is taken."""
        poller = select.poll()
        poller.register(1, select.POLLOUT)
        while self.buffer:
            poller.poll(LAST_WORDS_MS)
            self.write()


class Relay:
    """The loop that carries everything."""

    def __init__(self, incoming, outgoing, worker, control, stdout, stderr) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self.worker = worker
        self.control = control
        self.to_worker = bytearray()
        self.pipes = {stdout: STDOUT, stderr: STDERR}
        self.memory_events = MemoryEvents()
        self.is_over_memory = False
        self.child_ended, wake = os.pipe()
        for end in (self.child_ended, wake, control, stdout, stderr):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> None:
        """Carries until the interpreter or the server is gone. Does not return."""
        # It may have ended before its end could wake anybody.
        self.reap()
        while True:
            ready = self.poller().poll(LOOK_MS)
            self.look_at_memory()
            for end, events in ready:
                if end == self.child_ended:
                    os.read(end, PIECE_BYTES)
                    self.reap()
                elif end == 0:
                    self.incoming.fill()
                    self.take_requests()
                elif end == 1:
                    self.outgoing.write()
                elif end == self.control:
                    if events & select.POLLOUT:
                        self.feed_worker()
                    if events & ~select.POLLOUT:
                        self.carry_control()
                elif end in self.pipes:
                    self.carry_output(end, PIECE_BYTES)

    def poller(self):
        """Everything that can be done now, without filling any buffer further than it may be."""
        poller = select.poll()
        poller.register(self.child_ended, select.POLLIN)
        if len(self.to_worker) < INCOMING_BYTES:
            poller.register(0, select.POLLIN)
        has_room = len(self.outgoing.buffer) < OUTGOING_BYTES
        if self.outgoing.buffer:
            poller.register(1, select.POLLOUT)
        if self.control is not None:
            wanted = select.POLLIN * has_room | select.POLLOUT * bool(self.to_worker)
            if wanted:
                poller.register(self.control, wanted)
        if has_room:
            for end in self.pipes:
                poller.register(end, select.POLLIN)
        return poller

    def take_requests(self) -> None:
        while (record := self.incoming.take()) is not None:
            kind, body = record
            if kind == CONTROL:
                self.to_worker += body
            elif kind == INTERRUPT:
                os.kill(self.worker, signal.SIGINT)
        self.feed_worker()

    def feed_worker(self) -> None:
        try:
            while self.to_worker and self.control is not None:
                del self.to_worker[: os.write(self.control, self.to_worker)]
        except BlockingIOError:
            pass
        except OSError:
            # It has closed its connection; what it still has to say is read.
            self.to_worker.clear()

    def carry_control(self) -> None:
        """Carries a piece of the connection, after all output that was written before it."""
        try:
            piece = os.read(self.control, PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self.look_at_memory()
        if self.is_over_memory and piece:
            return
        for end in list(self.pipes):
            self.carry_output(end, PIPE_BYTES)
        self.outgoing.put(CONTROL, piece)
        if not piece:
            os.close(self.control)
            self.control = None

    def look_at_memory(self) -> None:
        """Ends all when the kernel has killed for lack of memory.

        It may have been a child and not the interpreter: the limit is that of both.
        """
        if not self.is_over_memory and self.memory_events.kills():
            self.is_over_memory = True
            os.kill(self.worker, signal.SIGKILL)

    def carry_output(self, end: int, most: int) -> None:
        """Carries what lies in a pipe, but no more than `most` bytes."""
        while most > 0:
            try:
                piece = os.read(end, min(most, PIECE_BYTES))
            except BlockingIOError:
                return
            if not piece:
                os.close(end)
                del self.pipes[end]
                return
            self.outgoing.put(self.pipes[end], piece)
            most -= len(piece)

    def reap(self) -> None:
        """Reaps orphans. When it is the interpreter that ended, everything does."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.worker:
                self.end(status)

    def end(self, status: int) -> None:
        """Carries the rest, says how the interpreter ended, and waits for the server to go."""
        while self.control is not None and select.select([self.control], [], [], 0)[0]:
            self.carry_control()
        for end in list(self.pipes):
            self.carry_output(end, PIPE_BYTES)
        ended = {
            "exited": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signaled": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "oom_kills": self.memory_events.kills(),
        }
        self.outgoing.put(ENDED, encode(ended))
        self.outgoing.flush()
        poller = select.poll()
        poller.register(0, select.POLLIN)
        while poller.poll(LAST_WORDS_MS):
            self.incoming.fill()
        os._exit(0)


def start_worker(start: dict):
    """Forks the interpreter. Gives its pid and our ends of its connection and its output."""
    ours, theirs = socket.socketpair()
    stdout, their_stdout = os.pipe()
    stderr, their_stderr = os.pipe()
    # Only so that the end of a child wakes the loop.
    signal.signal(signal.SIGCHLD, ignore)
    worker = os.fork()
    if worker:
        for end in (theirs.fileno(), their_stdout, their_stderr):
            os.close(end)
        theirs.detach()
        return worker, ours.detach(), stdout, stderr
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    become_worker([os.open(os.devnull, os.O_RDONLY), their_stdout, their_stderr, theirs.fileno()])
    theirs.detach()
    ours.detach()
    limit(start["limits"])
    if start["environment"]:
        enter_environment(sys.executable)
    serve(start["modules"])
    os._exit(70)


def ignore(number, frame) -> None:
    """A handler that does nothing: the wake-up descriptor is what counts."""


def become_worker(ends: list) -> None:
    """Leaves the process with these as descriptors 0, 1, 2, 3 and no other."""
    # Programs look at themselves in /proc.
    set_dumpable(True)
    high = [fcntl_dup(end, 64) for end in ends]
    for number, end in enumerate(high):
        os.dup2(end, number, inheritable=number < 3)
    os.closerange(4, 1 << 16)
    # What the service adds by itself is not for programs.
    for name in ("container", "HOSTNAME"):
        os.environ.pop(name, None)
    # When memory runs out, pid 1 is not the one that is killed.
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def fcntl_dup(end: int, least: int) -> int:
    import fcntl

    return fcntl.fcntl(end, fcntl.F_DUPFD, least)


def limit(limits: dict) -> None:
    """Limits of the interpreter and of what it starts, by the names of `resource`."""
    import resource

    for name, most in limits.items():
        which = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))


def enter_environment(executable: str) -> None:
    """Becomes the runner in the interpreter of the image's virtual environment. Does not return.

    Only here is it known where the interpreter is: the environment's links lead to what is written
    now. Its packages are foreign, and run in no process but this one.
    """
    os.mkdir(KNOWN)
    real = os.path.realpath(executable)
    os.symlink(real, KNOWN + "/python3")
    with open(KNOWN + "/pyvenv.cfg", "w", encoding="utf-8") as file:
        file.write(f"home = {os.path.dirname(real)}\ninclude-system-site-packages = false\n")
    os.environ["PATH"] = ENVIRONMENT + "/bin:" + os.environ.get("PATH", "")
    os.set_inheritable(3, True)
    program = ENVIRONMENT + "/bin/python3"
    os.execv(program, [program, "-I", "-B", "-X", "utf8", "-c", BOOTSTRAP])


def serve(modules: list) -> None:
    """Becomes the runner, with these modules imported ahead."""
    from . import __main__ as entry
    from . import zygote

    entry.prepare(modules)
    zygote.rehearse(modules)
    entry.serve(3)


def facts() -> dict:
    """What holds in this container, as the kernel says before any foreign code runs."""
    status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
    interfaces = [line.split(":")[0].strip() for line in read("/proc/net/dev").splitlines()[2:]]
    directories = {path: size_of(path) for path in ("/tmp", "/workspace", "/dev/shm")}
    return {
        "python": sys.version.split()[0],
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": os.getgroups(),
        "no_new_privs": number(status.get("NoNewPrivs")) == 1,
        "seccomp": number(status.get("Seccomp")) == 2,
        "capabilities": any(int(status.get(name, "1"), 16) for name in CAPABILITIES),
        "interfaces": interfaces,
        "read_only_root": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
        "directories": directories,
        "memory_bytes": memory_limit(),
        "pids": pids_limit(),
        "cpu_quota_us": cpu_quota(),
        "pid": os.getpid(),
    }


CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
CGROUP = "/sys/fs/cgroup/"


def read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def number(text):
    """The number that a file holds, or None: `max` is none."""
    try:
        return int(text)
    except (TypeError, ValueError):
        return None


def size_of(path: str):
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize


def memory_limit():
    own = read(CGROUP + "memory.max") or read(CGROUP + "memory/memory.limit_in_bytes")
    return number(own)


def pids_limit():
    return number(read(CGROUP + "pids.max") or read(CGROUP + "pids/pids.max"))


def cpu_quota():
    """Microseconds in 100 ms."""
    words = read(CGROUP + "cpu.max").split()
    if len(words) != 2:
        words = [read(CGROUP + f"cpu/cpu.cfs_{name}_us") for name in ("quota", "period")]
    quota, period = map(number, words)
    return quota * 100_000 // period if quota and period and quota > 0 else None


class MemoryEvents:
    """How often the kernel has killed here because memory ran out, if it counts that."""

    def __init__(self) -> None:
        self.file = None
        for name in ("memory.events", "memory/memory.oom_control"):
            try:
                self.file = os.open(CGROUP + name, os.O_RDONLY | os.O_CLOEXEC)
                return
            except OSError:
                continue

    def kills(self):
        if self.file is None:
            return None
        try:
            counts = os.pread(self.file, 4096, 0)
        except OSError:
            return None
        _, found, rest = counts.partition(b"oom_kill ")
        return number(rest.split(b"\n", 1)[0]) if found else None
