# /proc: who is in it, looked for by number, by name and by what it was started with.
MARK = "of-the-first-sibling"
child = None


def plant():
    global child
    import subprocess

    libc.prctl(15, b"first-sibling")
    child = subprocess.Popen(["/bin/sh", "-c", "read word", MARK], stdin=subprocess.PIPE, env={"MARK": MARK})
    return {}


def reach(other):
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    attempt("others in sight", lambda: sorted(pids - {1, os.getpid()}))
    pids.update(range(400) if HOST["world"] else ())
    for file in ("comm", "cmdline", "environ", "status"):
        def search():
            for pid in sorted(pids):
                try:
                    text = open(f"/proc/{pid}/{file}", "rb").read()
                except OSError:
                    continue
                if MARK.encode() in text or b"first-sibling" in text:
                    return pid

        attempt(f"finds it by {file}", search)


def notice():
    tried["its child"] = child.pid
    child.kill()
    child.wait()
