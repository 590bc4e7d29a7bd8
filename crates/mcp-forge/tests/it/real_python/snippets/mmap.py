# A file mapped into memory, and memory shared with a child.
import mmap
import os

with open("/workspace/data", "w+b") as file:
    file.truncate(1 << 20)
    with mmap.mmap(file.fileno(), 0) as view:
        view[1000:1005] = b"hello"
    file.seek(1000)
    content = file.read(5)
shared = mmap.mmap(-1, 4096)
child = os.fork()
if child == 0:
    shared[:2] = b"ok"
    os._exit(0)
os.waitpid(child, 0)
(content, shared[:2]) == (b"hello", b"ok")
