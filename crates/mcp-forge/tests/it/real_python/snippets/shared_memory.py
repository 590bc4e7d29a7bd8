# A block of shared memory, written by a child.
from multiprocessing import Process, shared_memory

def fill(name):
    block = shared_memory.SharedMemory(name)
    block.buf[:5] = b"hello"
    block.close()

block = shared_memory.SharedMemory(create=True, size=1 << 20)
child = Process(target=fill, args=(block.name,))
child.start()
child.join()
content = bytes(block.buf[:5])
block.close()
block.unlink()
content == b"hello"
