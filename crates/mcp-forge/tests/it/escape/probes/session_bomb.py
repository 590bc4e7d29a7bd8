# A7: as a fork bomb, each process in a session and a group of its own, and deaf to signals.
most, children = HOST["pids"] + 20, []
try:
    for _ in range(most):
        child = os.fork()
        if child == 0:
            os.setsid()
            for number in range(1, 32):
                if number not in (signal.SIGKILL, signal.SIGSTOP):
                    signal.signal(number, signal.SIG_IGN)
            while True:
                signal.pause()
        children.append(child)
except OSError as problem:
    tried["stopped by"] = str(problem)
attempt("more than the limit", lambda: len(children) > HOST["pids"])
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
verdict(children=len(children))
