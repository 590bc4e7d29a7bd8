# G16: what isolation must not break: all of multiprocessing.
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory


def double(number):
    return 2 * number


def put(queue, lock, value):
    with lock:
        queue.put(value)


def works(method):
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map(double, range(5)) == [0, 2, 4, 6, 8]
    queue, lock = context.Queue(), context.Lock()
    process = context.Process(target=put, args=(queue, lock, 7))
    process.start()
    assert queue.get(timeout=50) == 7
    process.join()
    with context.Manager() as manager:
        shared = manager.dict(a=1)
        assert dict(shared) == {"a": 1}
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        assert list(executor.map(double, [3])) == [6]
    return "works"


if __name__ != "__main__":
    # A child that was not forked reads this file again.
    tried["imported"] = __name__
else:
    for method in ("fork", "spawn", "forkserver"):
        tried[method] = works(method)
    memory = shared_memory.SharedMemory(create=True, size=1 << 16)
    memory.buf[0] = 7
    tried["shared memory"] = memory.buf[0]
    memory.close()
    memory.unlink()
verdict()
