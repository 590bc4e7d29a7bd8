# Everything that a program in a build job might try to get out of it. Prints, as its last line, which
# attempts worked. `SURROUNDINGS` says where the harness has put what must not be found.
import ctypes, json, os, socket, stat, struct, subprocess, sys

SURROUNDINGS = json.loads(sys.argv[1])
worked = {}


def attempt(name):
    def run(action):
        try:
            worked[name] = bool(action())
        except Exception as error:
            worked[name] = False
            print(name, type(error).__name__, error, file=sys.stderr)
    return run


def connects(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(3)
        client.connect(address)
    return True


def host(path):
    """The path, and as a build without a mount namespace shows it."""
    return [path, "/host" + path]


def any_of(paths, action):
    for path in paths:
        try:
            if action(path):
                return True
        except OSError as error:
            print(path, error, file=sys.stderr)
    return False


def read(path):
    with open(path) as file:
        return "secret" in file.read()


@attempt("the internet")
def _():
    return connects(socket.AF_INET, ("1.1.1.1", 443)) or connects(socket.AF_INET, ("1.1.1.1", 3128))


@attempt("the host's loopback")
def _():
    return connects(socket.AF_INET, ("127.0.0.1", SURROUNDINGS["port"]))


@attempt("the host's own address")
def _():
    return connects(socket.AF_INET, (SURROUNDINGS["address"], SURROUNDINGS["port"]))


@attempt("the cloud's metadata")
def _():
    return connects(socket.AF_INET, ("169.254.169.254", 80))


@attempt("the host's loopback by IPv6")
def _():
    return connects(socket.AF_INET6, ("::1", SURROUNDINGS["port"]))


@attempt("a listener of its own")
def _():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("127.0.0.1", 4000))
        server.listen()
    return True


@attempt("datagrams")
def _():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"out", ("127.0.0.1", SURROUNDINGS["datagrams"]))
    return True


@attempt("raw sockets")
def _():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return True


@attempt("packet sockets")
def _():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    return True


@attempt("netlink")
def _():
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()
    return True


@attempt("multipath TCP")
def _():
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).close()
    return True


@attempt("a Unix socket of the host")
def _():
    return any_of(host(SURROUNDINGS["unix"]), lambda path: connects(socket.AF_UNIX, path))


@attempt("an abstract socket of the host")
def _():
    return connects(socket.AF_UNIX, "\0" + SURROUNDINGS["abstract"])


def ask(target):
    with socket.create_connection(("127.0.0.1", 3128), 5) as proxy:
        proxy.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
        return proxy.recv(1000).startswith(b"HTTP/1.1 200 ")


for name, target in SURROUNDINGS["targets"].items():
    attempt(f"through the gateway: {name}")(lambda: ask(target))


@attempt("writes outside")
def _():
    def write(path):
        with open(path + "/planted", "w") as file:
            file.write("x")
        return True

    return any_of(["/", "/usr", "/etc", "/opt", "/opt/job", "/opt/python", "/usr/lib"], write)


@attempt("changes the program")
def _():
    return any_of(["/opt/job/certificates.crt", sys.executable, "/usr/bin/env"], lambda path: open(path, "r+b"))


@attempt("the data directory beside")
def _():
    paths = host(SURROUNDINGS["secret"]) + ["/build/../secret"]
    return any_of(paths, read)


@attempt("another job's directory")
def _():
    return any_of(host(SURROUNDINGS["other"]), read)


@attempt("a variable of the server")
def _():
    return "planted-secret-value" in repr(dict(os.environ)) or any(
        name.startswith(("FORGE_", "PLANTED", "CARGO")) for name in os.environ
    )


@attempt("a descriptor of the host")
def _():
    for number in range(3, 256):
        try:
            if stat.S_ISDIR(os.fstat(number).st_mode):
                return os.listdir(number)
        except OSError:
            pass


def runs(directory):
    script = directory + "/runs"
    with open(script, "w") as file:
        file.write("#!/bin/sh\nexit 7\n")
    os.chmod(script, 0o755)
    return subprocess.run([script]).returncode == 7


@attempt("executes what it wrote")
def _():
    return runs("/build")


@attempt("set-user-id")
def _():
    # It may set the bit. That the host does not honour it in there is the mount's doing.
    flags = os.statvfs("/build").f_flag
    return not (flags & os.ST_NOSUID and flags & os.ST_NODEV)


@attempt("a pipe in its directory")
def _():
    os.mkfifo("/build/pipe")
    return True


@attempt("a device in its directory")
def _():
    os.mknod("/build/device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return True


@attempt("a socket in its directory")
def _():
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind("/build/socket")
    return True


@attempt("a file in memory")
def _():
    os.close(os.memfd_create("x"))
    return True


@attempt("a link to what it may only read")
def _():
    os.link("/opt/job/certificates.crt", "/build/link")
    return True


@attempt("namespaces")
def _():
    libc = ctypes.CDLL(None)
    return libc.unshare(0x10000000) == 0 or libc.unshare(0x40000000) == 0


@attempt("brings interfaces up")
def _():
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh22x", b"lo", 0))
    return True


# What must work, or the rest says nothing.
worked["CONTROL: writes to its directory"] = bool(open("/build/mine", "w").write("x"))
worked["CONTROL: executes what it wrote in /tmp"] = runs("/tmp")
print(json.dumps(worked))
