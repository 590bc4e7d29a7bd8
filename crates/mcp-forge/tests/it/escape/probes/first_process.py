# D1: pid 1, and whoever else is in /proc: its environment, memory, files, root, command line.
others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
for pid in sorted({"1", *others}, key=int):
    for file in ("environ", "cmdline", "maps", "mem", "stack", "syscall", "io"):
        attempt(f"{pid}/{file}", lambda: open(f"/proc/{pid}/{file}", "rb").read(1 << 16))
    for link in ("root", "cwd", "exe", "fd/0", "ns/pid"):
        attempt(f"{pid}/{link}", lambda: os.readlink(f"/proc/{pid}/{link}"))
    attempt(f"{pid}/fd", lambda: os.listdir(f"/proc/{pid}/fd"))
    attempt(f"through {pid}/root", lambda: os.listdir(f"/proc/{pid}/root"))
verdict(others=others[:20])
