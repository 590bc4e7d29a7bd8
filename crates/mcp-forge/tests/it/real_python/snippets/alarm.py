# An alarm interrupts what waits.
import signal
import time

class Late(Exception):
    pass

def ring(number, frame):
    raise Late

signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    time.sleep(60)
    late = False
except Late:
    late = True
late
