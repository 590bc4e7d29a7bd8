# A9: a daemon by double fork, deaf to signals. The host looks whether it outlives the turn.
import time

reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)
    os.closerange(0, 4)
    os.write(writer, b"x")
    # It ends by itself, should the harness fail to end it.
    for _ in range(60):
        with open("/tmp/daemon", "a") as file:
            file.write("alive\n")
        time.sleep(0.5)
    os._exit(0)
os.wait()
os.read(reader, 1)
tried["daemon"] = "started"
verdict()
