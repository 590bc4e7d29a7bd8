# A8: children that nobody waits for, and orphans, which init has to bury.
import time

most, zombies = HOST["pids"] + 20, 0
try:
    for _ in range(most):
        if os.fork() == 0:
            os._exit(0)
        zombies += 1
except OSError as problem:
    tried["stopped by"] = str(problem)
attempt("more zombies than the limit", lambda: zombies > HOST["pids"])
for _ in range(zombies):
    os.wait()
# Ten times the limit, one after the other: each must be buried before the next ones lack room.
buried = 0
for _ in range(10 * HOST["pids"]):
    child = None
    for patience in range(500):
        try:
            child = os.fork()
            break
        except OSError:
            time.sleep(0.01)
    if child is None:
        break
    if child == 0:
        for patience in range(500):
            try:
                os.fork()
                break
            except OSError:
                time.sleep(0.01)
        os._exit(0)
    os.waitpid(child, 0)
    buried += 1
attempt("orphans stay", lambda: buried < 10 * HOST["pids"])
verdict(zombies=zombies, buried=buried)
