# D14: reaches for a process of the host by its number there, and for pid 1.
import resource

victim = HOST["victim"]
iov = (ctypes.c_uint64 * 2)(ctypes.addressof(ctypes.create_string_buffer(64)), 64)


def readable(pid):
    # EFAULT is a yes: only the made-up address was wrong.
    return syscall("process_vm_readv", pid, iov, 1, (ctypes.c_uint64 * 2)(0x1000, 8), 1, 0) in (8, -errno.EFAULT)


def borrow(pid):
    handle = syscall("pidfd_open", pid, 0)
    return handle >= 0 and syscall("pidfd_getfd", handle, 0, 0) >= 0


for pid in (victim, 1):
    attempt(f"ptrace {pid}", lambda: syscall("ptrace", 0x4206, pid, 0, 0) == 0)
    attempt(f"process_vm_readv {pid}", lambda: readable(pid))
    attempt(f"kcmp {pid}", lambda: syscall("kcmp", os.getpid(), pid, 0, 0, 0) >= 0)
    attempt(f"pidfd_getfd {pid}", lambda: borrow(pid))
    # Pid 1 has the same user: to lower its limits is to end oneself.
    attempt(f"prlimit {pid}", lambda: pid != 1 and resource.prlimit(pid, resource.RLIMIT_NOFILE) and "read")
    attempt(f"affinity {pid}", lambda: pid != 1 and os.sched_setaffinity(pid, os.sched_getaffinity(pid)) is None)
attempt("pidfd of the neighbour", lambda: syscall("pidfd_open", victim, 0) >= 0)
attempt("SIGTERM to the neighbour", lambda: os.kill(victim, signal.SIGTERM) is None)
attempt("SIGKILL to the neighbour", lambda: os.kill(victim, signal.SIGKILL) is None)
verdict()
