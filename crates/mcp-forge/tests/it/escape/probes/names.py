# F3: names, by the library and by hand.
import socket
import time

started = time.monotonic()
for name in ("example.com", "metadata.google.internal", "localhost.localdomain"):
    attempt(f"getaddrinfo {name}", lambda: socket.getaddrinfo(name, 80))
    attempt(f"gethostbyname {name}", lambda: socket.gethostbyname(name))
question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01"


def ask(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        return ours.sendto(question, (address, port)) and "sent"


for address in HOST["targets"]:
    if ":" not in address:
        attempt(f"asks {address}", lambda: ask(address, HOST["udp_port"]))
assert breaches or time.monotonic() - started < 30, tried
verdict(seconds=round(time.monotonic() - started, 2))
