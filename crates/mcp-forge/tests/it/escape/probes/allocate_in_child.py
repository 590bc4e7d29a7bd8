# B1, B2: the same in a child, while the parent waits for it. It must not wait for ever.
import time


def hoard():
    block = b"x" * (2 * HOST["memory_bytes"])
    time.sleep(20 if HOST["world"] else 1)
    return len(block)


attempt("twice the limit in a child", lambda: in_child(hoard) == 2 * HOST["memory_bytes"])
verdict()
