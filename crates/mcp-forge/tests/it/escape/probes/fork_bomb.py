# A6: many processes that stay.
most, children = HOST["pids"] + 20, []
try:
    for _ in range(most):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        children.append(child)
except OSError as problem:
    tried["stopped by"] = str(problem)
attempt("more than the limit", lambda: len(children) > HOST["pids"])
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
verdict(children=len(children))
