# E7: pushes input into a terminal, or changes its line discipline.
import fcntl

TIOCSCTTY, TIOCSTI, TIOCLINUX, TIOCSETD, TIOCGPTN, TIOCSPTLCK, TIOCGPTPEER = 0x540E, 0x5412, 0x541C, 0x5423, 0x80045430, 0x40045431, 0x5441


def push(descriptor):
    for request, argument in ((TIOCSETD, b"\0\0\0\0"), (TIOCSTI, b"x"), (TIOCLINUX, b"\x06")):
        for high in (0, 1 << 32):
            if libc.syscall(ctypes.c_long(16 if os.uname().machine == "x86_64" else 29), ctypes.c_long(descriptor), ctypes.c_long(request | high), argument) >= 0:
                return hex(request | high)


def own():
    os.setsid()
    for path in ("/dev/ptmx", "/dev/pts/ptmx", "/host/dev/ptmx"):
        try:
            master = os.open(path, os.O_RDWR | os.O_NOCTTY)
        except OSError:
            continue
        fcntl.ioctl(master, TIOCSPTLCK, b"\0\0\0\0")
        slave = fcntl.ioctl(master, TIOCGPTPEER, os.O_RDWR)
        return push(slave) or push(master)


for descriptor in range(4):
    attempt(f"descriptor {descriptor}", lambda: push(descriptor))
attempt("the controlling terminal", lambda: os.open("/dev/tty", os.O_RDWR) and "opened")
attempt("a terminal of our own", lambda: in_child(own))
verdict()
