# 64 threads alive at once.
import threading

barrier, seen = threading.Barrier(65), []

def meet(number):
    barrier.wait(30)
    seen.append(number)

threads = [threading.Thread(target=meet, args=(number,)) for number in range(64)]
for thread in threads:
    thread.start()
barrier.wait(30)
for thread in threads:
    thread.join()
sorted(seen) == list(range(64))
