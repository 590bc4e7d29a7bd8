# D10: variables that came along from the server.
import re

ALLOWED = set("""HOME USER LOGNAME SHELL LANG TZ TERM TMPDIR PATH XDG_CACHE_HOME XDG_CONFIG_HOME MPLBACKEND MPLCONFIGDIR
    OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS PYTHONDONTWRITEBYTECODE LD_LIBRARY_PATH LC_CTYPE""".split())
everything = dict(os.environ)
everything.update(pair.split("=", 1) for pair in open("/proc/self/environ").read().split("\0") if "=" in pair)
for pid in os.listdir("/proc"):
    if pid.isdigit():
        attempt(f"{pid}/environ", lambda: HOST["secret"] in open(f"/proc/{pid}/environ").read())
attempt("not on the list", lambda: sorted(set(everything) - ALLOWED))
attempt("secrets by name", lambda: [n for n in everything if re.search("TOKEN|KEY|SECRET|PASS|AWS|GITHUB", n)])
attempt("secrets by value", lambda: [n for n, v in everything.items() if HOST["secret"] in v or "/root" in v])
verdict()
