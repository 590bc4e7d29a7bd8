# F1, F2: the host and the world, by every protocol. The host looks at its own listeners too.
import socket
import struct
import time

started = time.monotonic()


def tcp(address, port):
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as ours:
        ours.settimeout(1)
        ours.connect((address, port))
        ours.send(b"hello")
        return "connected"


def udp(address, port):
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(kind, socket.SOCK_DGRAM) as ours:
        return ours.sendto(b"hello", (address, port)) and "sent"


def ping(address, kind):
    with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as ours:
        return ours.sendto(struct.pack("!BBHHH", 8, 0, 0xF7FF, 0, 0), (address, 0)) and "sent"


for address in HOST["targets"]:
    attempt(f"tcp {address}", lambda: tcp(address, HOST["tcp_port"]))
    attempt(f"udp {address}", lambda: udp(address, HOST["udp_port"]))
    if ":" not in address:
        attempt(f"raw icmp {address}", lambda: ping(address, socket.SOCK_RAW))
        attempt(f"icmp {address}", lambda: ping(address, socket.SOCK_DGRAM))
attempt("packets", lambda: socket.socket(17, socket.SOCK_RAW, 0x300) and "opened")
attempt("listens", lambda: socket.create_server(("0.0.0.0", 0)) and "listens")
# Refused is refused at once: a program must not hang for lack of a network.
tried["seconds"] = round(time.monotonic() - started, 2)
assert breaches or time.monotonic() - started < 30, tried
verdict()
