# Locks on files, as seen by another process.
import fcntl
import os

def held_elsewhere(lock):
    child = os.fork()
    if child == 0:
        try:
            with open("/workspace/lock", "w") as file:
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os._exit(0)
        except BlockingIOError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

answers = []
for lock in (fcntl.flock, fcntl.lockf):
    with open("/workspace/lock", "w") as file:
        lock(file, fcntl.LOCK_EX)
        answers.append(held_elsewhere(lock))
    answers.append(held_elsewhere(lock))
answers == [True, False, True, False]
