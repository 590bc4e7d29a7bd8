# A manager's dict, a queue and a lock between processes.
import multiprocessing

def count(numbers, queue, lock):
    for _ in range(100):
        with lock:
            numbers["n"] += 1
    queue.put("done")

with multiprocessing.Manager() as manager:
    numbers, queue, lock = manager.dict(n=0), multiprocessing.Queue(), multiprocessing.Lock()
    children = [multiprocessing.Process(target=count, args=(numbers, queue, lock)) for _ in range(3)]
    for child in children:
        child.start()
    words = [queue.get(timeout=30) for _ in children]
    for child in children:
        child.join()
    total = numbers["n"]
(total, words) == (300, ["done"] * 3)
