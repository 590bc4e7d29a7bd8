# B1: twice the limit, written to, and held for a moment.
import time

block = b"x" * (2 * HOST["memory_bytes"])
time.sleep(1)
attempt("twice the limit", lambda: len(block))
verdict()
