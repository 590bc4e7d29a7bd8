# B1: twice the limit, written to, and held until even a keeper that only looks now and then has seen it.
import time

block = b"x" * (2 * HOST["memory_bytes"])
time.sleep(20 if HOST["world"] else 1)
attempt("twice the limit", lambda: len(block))
verdict()
