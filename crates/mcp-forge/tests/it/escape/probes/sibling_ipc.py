# System V and POSIX memory, semaphores and queues: one namespace for all forks of a zygote.
KEY = 0x5EA1
CREATE = 0o1666


def plant():
    syscall("shmget", KEY, 4096, CREATE)
    syscall("semget", KEY, 1, CREATE)
    syscall("msgget", KEY, CREATE)
    syscall("mq_open", b"first-sibling", os.O_RDWR | os.O_CREAT, 0o666, 0)
    with open("/dev/shm/first-sibling", "wb") as memory:
        memory.write(b"memory")
    return {}


def reach(other):
    attempt("memory", lambda: syscall("shmget", KEY, 0, 0) >= 0)
    attempt("semaphores", lambda: syscall("semget", KEY, 0, 0) >= 0)
    attempt("messages", lambda: syscall("msgget", KEY, 0) >= 0)
    attempt("queue", lambda: syscall("mq_open", b"first-sibling", os.O_RDWR, 0, 0) >= 0)
    attempt("POSIX memory", lambda: open("/dev/shm/first-sibling", "rb").read())
    attempt("tables", lambda: len(open("/proc/sysvipc/shm").readlines()) > 1)


def notice():
    tried["planted"] = "nothing comes back"
