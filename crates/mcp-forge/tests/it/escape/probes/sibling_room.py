# Room for processes: one that is full takes none from another.
import threading


def plant():
    threading.stack_size(64 << 10)
    done = threading.Event()
    try:
        for _ in range(HOST["pids"] - 20):
            threading.Thread(target=done.wait, daemon=True).start()
    except RuntimeError as problem:
        tried["stopped by"] = str(problem)
    attempt("no room of its own", lambda: threading.active_count() < HOST["pids"] - 20)
    return {}


def reach(other):
    children = []
    try:
        while len(children) < 20:
            children.append(os.fork())
            if children[-1] == 0:
                signal.pause()
    except OSError as problem:
        breaches.append(f"no room: {problem}")
    tried["processes"] = len(children)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def notice():
    tried["threads"] = threading.active_count()
