# D8: devices: which there are, which can be opened, which can be made.
import stat

EXPECTED = {"null", "zero", "full", "random", "urandom", "shm", "fd", "stdin", "stdout", "stderr"}
tried["there"] = str(sorted(os.listdir("/dev")))
attempt("more than the harmless ones", lambda: sorted(set(os.listdir("/dev")) - EXPECTED))
for name in ("mem", "kmem", "kvm", "fuse", "net/tun", "loop0", "loop-control", "vda", "sda", "ptmx", "tty", "console", "kmsg", "userfaultfd", "vsock"):
    for flags in (os.O_RDONLY, os.O_RDWR):
        attempt(f"open {name} {flags}", lambda: os.close(os.open(f"/dev/{name}", flags | os.O_NOCTTY | os.O_NONBLOCK)) or "opened")


def make(directory):
    path = f"{directory}/device"
    os.mknod(path, stat.S_IFBLK | 0o666, os.makedev(254, 0))
    return os.open(path, os.O_RDONLY) and "opened"


for directory in ("/tmp", "/workspace", "/dev/shm"):
    attempt(f"make one in {directory}", lambda: make(directory))
verdict()
