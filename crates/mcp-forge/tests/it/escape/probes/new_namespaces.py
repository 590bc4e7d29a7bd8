# E1: new namespaces, by every call that makes or enters one.
FLAGS = {"user": NEWUSER, "mount": NEWNS, "net": NEWNET, "pid": NEWPID, "ipc": NEWIPC, "uts": NEWUTS, "cgroup": NEWCGROUP, "time": 0x80}


def clone(flags):
    pid = syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
    return pid > 0


def clone3(flags):
    arguments = (ctypes.c_uint64 * 8)(flags, 0, 0, 0, int(signal.SIGCHLD), 0, 0, 0)
    pid = syscall("clone3", arguments, 64)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
    return pid > 0


for name, flag in FLAGS.items():
    attempt(f"unshare {name}", lambda: in_child(lambda: syscall("unshare", flag) == 0))
    attempt(f"unshare user and {name}", lambda: in_child(lambda: syscall("unshare", NEWUSER | flag) == 0))
    if flag != 0x80:
        attempt(f"clone {name}", lambda: clone(flag))
        attempt(f"clone user and {name}", lambda: clone(NEWUSER | flag))
        # The kernel looks at 32 bits only.
        attempt(f"clone {name} with a high bit", lambda: clone(NEWUSER | flag | 1 << 40))
    attempt(f"clone3 {name}", lambda: clone3(NEWUSER | flag))
for name in ("user", "mnt", "net", "pid"):
    attempt(f"setns {name}", lambda: in_child(lambda: syscall("setns", os.open(f"/proc/self/ns/{name}", os.O_RDONLY), 0) == 0))
verdict()
