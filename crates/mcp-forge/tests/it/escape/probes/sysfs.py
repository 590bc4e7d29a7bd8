# D7: /sys, and the control groups, the kernel's debug files and the firmware's below it.
for root in roots():
    for path in ("sys", "sys/fs/cgroup", "sys/kernel/debug", "sys/kernel/security", "sys/firmware", "sys/class/net", "sys/block"):
        attempt(f"list {root}/{path}", lambda: os.listdir(f"{root}/{path}"))
attempt("mount it", lambda: in_child(lambda: syscall("unshare", NEWUSER | NEWNS) == 0 and syscall("mount", b"x", b"/tmp", b"sysfs", 0, 0) == 0))
verdict()
