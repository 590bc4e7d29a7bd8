# A5: kills whoever can be reached. Init must ignore it, and nobody outside may notice.
for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV):
    for target in (1, -1):
        try:
            os.kill(target, number)
            tried[f"{target} {number}"] = "sent"
        except OSError as problem:
            tried[f"{target} {number}"] = str(problem)
# Had init died, so had we; that new processes are still possible shows that its namespace lives.
assert in_child(lambda: os.getppid() > 0) is True
verdict()
