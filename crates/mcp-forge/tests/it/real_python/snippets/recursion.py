# Deep recursion where it was asked for, and an exception where not.
import sys
import threading

def depth(number):
    return 0 if number == 0 else 1 + depth(number - 1)

try:
    depth(10_000)
    refused = False
except RecursionError:
    refused = True
sys.setrecursionlimit(60_000)
threading.stack_size(256 << 20)
reached = []
thread = threading.Thread(target=lambda: reached.append(depth(50_000)))
thread.start()
thread.join()
(refused, reached) == (True, [50_000])
