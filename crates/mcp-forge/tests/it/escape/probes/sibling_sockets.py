# Abstract sockets: their names belong to the network namespace, which forks of a zygote share.
import socket

NAME = "\0first-sibling-"
KINDS = {"stream": socket.SOCK_STREAM, "packet": socket.SOCK_SEQPACKET, "datagram": socket.SOCK_DGRAM}
listeners = {}


def plant():
    for name, kind in KINDS.items():
        listeners[name] = ours = socket.socket(socket.AF_UNIX, kind)
        ours.setblocking(False)
        ours.bind(NAME + name)
        if name != "datagram":
            ours.listen()
        # And a file, which is out of reach like every file.
        beside = socket.socket(socket.AF_UNIX, kind)
        beside.bind(f"/tmp/{name}")
        listeners[f"file {name}"] = beside
    return {}


def reach(other):
    for name, kind in KINDS.items():
        for address in (NAME + name, f"/tmp/{name}"):
            with socket.socket(socket.AF_UNIX, kind) as ours:
                attempt(f"connects to {address!r}", lambda: ours.connect(address) is None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        attempt("sends", lambda: ours.sendto(b"hello", NAME + "datagram"))


def notice():
    for name in KINDS:
        attempt(f"{name} from a stranger", lambda: listeners[name].recv(9) if name == "datagram" else listeners[name].accept())
