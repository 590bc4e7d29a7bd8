# E2: mounts, old way and new way, first as it is and then from a new user namespace.
def ways():
    os.makedirs("/tmp/a", exist_ok=True)
    found = []
    for name, call in {
        "mount tmpfs": lambda: syscall("mount", b"x", b"/tmp/a", b"tmpfs", 0, 0),
        "bind": lambda: syscall("mount", b"/usr", b"/tmp/a", 0, 0x1000, 0),
        "mount proc": lambda: syscall("mount", b"proc", b"/tmp/a", b"proc", 0, 0),
        "make writable": lambda: syscall("mount", b"", b"/", 0, 0x20 | 0x1000, 0),
        "uncover /proc": lambda: syscall("umount2", b"/proc", 2),
        "chroot": lambda: syscall("chroot", b"/tmp"),
        "pivot_root": lambda: syscall("pivot_root", b"/tmp/a", b"/tmp/a"),
        "fsopen": lambda: syscall("fsopen", b"tmpfs", 0),
        "open_tree": lambda: syscall("open_tree", -100, b"/", 1),
        "mount_setattr": lambda: syscall("mount_setattr", -100, b"/", 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32),
    }.items():
        if call() >= 0:
            found.append(name)
    return found


attempt("as it is", lambda: in_child(ways))
attempt("in a new user namespace", lambda: in_child(lambda: syscall("unshare", NEWUSER | NEWNS) == 0 and ways()))
attempt("move_mount", lambda: syscall("move_mount", -100, b"/tmp", -100, b"/workspace", 0) in (0, -errno.EINVAL))
attempt("fsmount", lambda: syscall("fsmount", 0, 0, 0) == -errno.EINVAL)
verdict()
