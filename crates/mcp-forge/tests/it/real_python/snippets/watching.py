# Waiting on many things at once: pipes, timers, children by descriptor.
import os
import select
import signal

reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, b"x")
    signal.pause()
handle = os.pidfd_open(child)
with select.epoll() as poll:
    poll.register(reader, select.EPOLLIN)
    poll.register(handle, select.EPOLLIN)
    first = poll.poll(30)
    poll.unregister(reader)
    signal.pidfd_send_signal(handle, signal.SIGTERM)
    second = poll.poll(30)
os.waitpid(child, 0)
[first[0][0], second[0][0]] == [reader, handle]
