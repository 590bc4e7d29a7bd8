# D6: sysctls. Whatever is written is what was there before.
NAMES = """kernel/core_pattern kernel/hostname kernel/modprobe kernel/pid_max vm/drop_caches vm/overcommit_memory
    net/ipv4/ip_forward net/core/somaxconn net/ipv4/ping_group_range fs/file-max user/max_user_namespaces""".split()


def rewrite(name):
    before = open(f"/proc/sys/{name}").read()
    # Not as `open` does: Landlock would see a truncation, which is a right of its own.
    descriptor = os.open(f"/proc/sys/{name}", os.O_WRONLY)
    os.write(descriptor, before.encode())
    os.close(descriptor)
    return "written"


def in_own_namespace():
    return syscall("unshare", NEWUSER | NEWNET) == 0 and rewrite("net/ipv4/ip_forward")


for name in NAMES:
    attempt(f"write {name}", lambda: rewrite(name))
attempt("write in a new network namespace", lambda: in_child(in_own_namespace))
verdict()
