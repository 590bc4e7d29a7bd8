# An alarm interrupts what waits.
import signal
import time

class Late(Exception):
    pass

def ring(number, frame):
    raise Late

signal.signal(signal.SIGALRM, ring)
try:
    # In here: it may ring before the next line is reached.
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    time.sleep(60)
    late = False
except Late:
    late = True
late
