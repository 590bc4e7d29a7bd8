# D9: which host this is and who uses it.
import platform
import re
import socket

words = HOST["host_names"]
facts = {"uname": os.uname().nodename, "gethostname": socket.gethostname(), "platform": platform.node()}
try:
    facts["login"] = os.getlogin()
except OSError as problem:
    facts["login"] = str(problem)
for root in roots():
    for file in ("etc/machine-id", "etc/hostname", "etc/passwd", "etc/hosts", "proc/sys/kernel/random/boot_id",
                 "sys/class/dmi/id/product_uuid", "var/lib/dbus/machine-id", "proc/cmdline", "etc/resolv.conf"):
        try:
            facts[f"{root}/{file}"] = open(f"{root}/{file}").read()
        except OSError as problem:
            facts[f"{root}/{file}"] = os.strerror(problem.errno)
for name, fact in facts.items():
    attempt(name, lambda: [word for word in words if re.search(rf"\b{re.escape(word)}\b", fact)])
verdict()
