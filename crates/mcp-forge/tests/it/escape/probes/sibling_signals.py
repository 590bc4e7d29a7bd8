# Signals: by every number, to a process and to a child of it that both wait to be hit.
hits = []
child = None


def plant():
    global child
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: hits.append(number))
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            signal.pause()
    return {"pids": [os.getpid(), child]}


def reach(other):
    # Where the attack can succeed it keeps to the numbers that it was told: others are the host's.
    own = (0, 1, os.getpid())
    # Number, error, and where it comes from: SI_QUEUE.
    information = (ctypes.c_int * 32)(signal.SIGTERM, 0, -1)
    pids = other["pids"] if not HOST["world"] else range(1 << 16)
    for way, call in {
        "kill": lambda pid: os.kill(pid, signal.SIGUSR1),
        "queue": lambda pid: syscall("rt_sigqueueinfo", pid, int(signal.SIGTERM), information) < 0 and 1 / 0,
        "pidfd": lambda pid: syscall("pidfd_open", pid, 0) < 0 and 1 / 0,
    }.items():
        def sweep():
            for pid in pids:
                try:
                    pid in own or call(pid)
                except (OSError, ZeroDivisionError):
                    continue
                if pid not in own:
                    return pid

        attempt(way, sweep)
    if HOST["world"]:
        attempt("everybody", lambda: os.kill(-1, signal.SIGUSR1) is None)


def notice():
    attempt("hit", lambda: hits)
    attempt("its child is gone", lambda: os.waitpid(child, os.WNOHANG) != (0, 0))
    os.kill(child, signal.SIGKILL)
