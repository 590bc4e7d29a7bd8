# B3: shared anonymous memory, twice the limit.
import mmap
import time

area = mmap.mmap(-1, 2 * HOST["memory_bytes"])
for start in range(0, len(area), 1 << 20):
    area[start:start + (1 << 20)] = b"x" * (1 << 20)
time.sleep(20 if HOST["world"] else 1)
attempt("twice the limit", lambda: len(area))
verdict()
