# D2: counts who is in sight, and looks for a process of the host by what is on its command line.
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
attempt("processes in sight", lambda: [pid for pid in pids if pid not in (1, os.getpid())])
attempt("large pids", lambda: [pid for pid in pids if pid > 400])
attempt("own pid", lambda: os.getpid() > 400)


def search():
    for pid in range(1, 70000):
        try:
            if HOST["secret"].encode() in open(f"/proc/{pid}/cmdline", "rb").read():
                return pid
        except OSError:
            continue


attempt("the neighbour's command line", search)
attempt("signals find it", lambda: os.kill(HOST["victim"], 0) or True)
verdict()
