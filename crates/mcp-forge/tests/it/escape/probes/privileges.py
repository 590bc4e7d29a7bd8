# D11: what the kernel says that this process may do.
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    attempt(name, lambda: int(status[name], 16))
attempt("NoNewPrivs", lambda: status["NoNewPrivs"] != "1")
attempt("Seccomp", lambda: status["Seccomp"] != "2")
attempt("Groups", lambda: [group for group in status["Groups"].split() if group not in ("1000", "65534")])
attempt("Uid", lambda: "0" in status["Uid"].split() or status["Uid"].split() != ["1000"] * 4)
attempt("setuid", lambda: os.setuid(0) or "root")
attempt("core file", lambda: __import__("resource").getrlimit(4) != (0, 0))
verdict(status={name: status[name] for name in ("Uid", "Groups", "CapBnd", "NoNewPrivs", "Seccomp")})
