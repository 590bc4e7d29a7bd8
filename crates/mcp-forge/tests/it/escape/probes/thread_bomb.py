# A6: many threads that stay.
import threading

threading.stack_size(64 << 10)
most, done, threads = HOST["pids"] + 20, threading.Event(), []
try:
    for _ in range(most):
        thread = threading.Thread(target=done.wait, daemon=True)
        thread.start()
        threads.append(thread)
except RuntimeError as problem:
    tried["stopped by"] = str(problem)
attempt("more than the limit", lambda: len(threads) > HOST["pids"])
done.set()
for thread in threads:
    thread.join()
verdict(threads=len(threads))
