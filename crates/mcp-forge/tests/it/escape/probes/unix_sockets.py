# F7: every local socket that can be named: known ones, those found by searching, abstract ones.
import socket
import stat

KNOWN = ["run/docker.sock", "var/run/docker.sock", "run/podman/podman.sock", "run/dbus/system_bus_socket",
         "run/systemd/private", "run/systemd/journal/socket", "run/systemd/notify", "run/containerd/containerd.sock",
         "run/user/1000/bus", "run/user/1000/podman/podman.sock", "run/user/1000/wayland-0", "tmp/.X11-unix/X0"]


def connect(path):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as ours:
            try:
                ours.connect(path)
                return "connected"
            except OSError:
                continue


def search(top):
    for where, directories, files in os.walk(top):
        if where.count("/") > 5:
            directories.clear()
        # `/host` is looked at by name: all of it would take minutes.
        directories[:] = [d for d in directories if os.path.join(where, d) not in ("/proc", "/host", "/usr")]
        for file in files:
            try:
                if stat.S_ISSOCK(os.lstat(os.path.join(where, file)).st_mode):
                    yield os.path.join(where, file)
            except OSError:
                continue


# Where the attack can succeed it keeps to its own canaries.
own = [HOST["socket"].lstrip("/")]
for root in roots():
    for path in KNOWN + own if HOST["world"] else own:
        attempt(f"{root}/{path}", lambda: connect(f"{root}/{path}"))
found = list(search("/"))
for path in found:
    attempt(path, lambda: connect(path))
attempt("abstract", lambda: connect("\0" + HOST["abstract"]))
tried["abstract names"] = "one of the host"
try:
    names = [line.split()[-1] for line in open("/proc/self/net/unix") if "@" in line]
except OSError:
    names = []
for name in names[:50] if HOST["world"] else []:
    attempt(name, lambda: connect("\0" + name[1:]))
verdict(found=found)
