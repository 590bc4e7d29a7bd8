"""Serves from a disk of its own, which can be made full, still or read-only while it serves.

Run in a mount namespace of its own, as: state_disk.py KIND DIRECTORY PROGRAM ARGUMENT... What DIRECTORY holds
lies on the new disk too. KIND is `memory`, or `image`, which only root can mount. Each line of standard input is
done, and answered by one line: `fill`, `free`, `stop SECONDS`, `abort`. The program ends with this one.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time

kind, directory, *program = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
SIZE = 192 << 20
FILLER = os.path.join(directory, "filler")
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878


def mount():
    kept = directory + ".kept"
    shutil.copytree(directory, kept)
    if kind == "memory":
        if libc.mount(b"none", directory.encode(), b"tmpfs", 0, f"size={SIZE},mode=700".encode()) != 0:
            raise OSError(ctypes.get_errno(), "mount")
    else:
        image = directory + ".image"
        with open(image, "wb") as file:
            file.truncate(SIZE)
        subprocess.run(["/usr/sbin/mkfs.ext4", "-qF", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, directory], check=True)
        os.unlink(image)
        os.chmod(directory, 0o700)
    shutil.copytree(kept, directory, dirs_exist_ok=True)
    shutil.rmtree(kept)


def as_the_user():
    """Whoever is no root had rights for the mount only."""
    PR_SET_PDEATHSIG, PR_CAP_AMBIENT, CLEAR_ALL = 1, 47, 4
    libc.prctl(PR_CAP_AMBIENT, CLEAR_ALL, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def fill():
    with open(FILLER, "wb", buffering=0) as file:
        for piece in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(piece))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def stop(seconds):
    """By a process of its own, in a session of its own: whoever kills this one leaves no disk that stands still."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        disk = os.open(directory, os.O_RDONLY)
        fcntl.ioctl(disk, FIFREEZE, 0)
        os.write(writer, b"x")
        time.sleep(seconds)
        fcntl.ioctl(disk, FITHAW, 0)
        os._exit(0)
    os.read(reader, 1)


COMMANDS = {
    "fill": fill,
    "free": lambda: os.unlink(FILLER),
    "stop": lambda seconds: stop(float(seconds)),
    "abort": lambda: subprocess.run(["mount", "-o", "remount,abort", directory], check=True),
}

mount()
server = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=as_the_user)
for line in sys.stdin:
    name, *arguments = line.split()
    COMMANDS[name](*arguments)
    print("done", flush=True)
server.kill()
server.wait()
