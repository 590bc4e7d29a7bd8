#!/usr/bin/python3.11
"""Stands for trivy and for grype, by the name that it has: checks how it is asked, and answers as BEHAVIOUR says."""

import json
import os
import socket
import sys
import time

BEHAVIOUR = "findings"  # Replaced by the test.
arguments = sys.argv[1:]
answer = arguments[-1]
is_trivy = arguments[0] == "rootfs"


def installed():
    """Packages by the directories of their metadata: what a scanner goes by."""
    if is_trivy:
        place = arguments[arguments.index("--output") - 1]
    else:
        place = arguments[0].removeprefix("dir:")
    names = [name.removesuffix(".dist-info") for name in os.listdir(place) if name.endswith(".dist-info")]
    return sorted(name.split("-") for name in names)


def database():
    place = "/tmp/cache/db" if is_trivy else os.environ["GRYPE_DB_CACHE_DIR"]
    with open(place + "/known.json") as known:
        return json.load(known)


def findings():
    known = database()
    found = [(name, version, *finding) for name, version in installed() for finding in known.get(name, [])]
    if is_trivy:
        each = [{"VulnerabilityID": i, "PkgName": n, "InstalledVersion": v, "Severity": s.upper(), "Title": "x"} for n, v, i, s in found]
        return {"SchemaVersion": 2, "Results": [{"Target": "Python", "Class": "lang-pkgs", "Type": "python-pkg", "Vulnerabilities": each}]}
    each = [{"vulnerability": {"id": i, "severity": s.title()}, "artifact": {"name": n, "version": v, "type": "python"}} for n, v, i, s in found]
    return {"matches": each, "source": {"type": "directory"}}


def reach():
    """What it can do that it should not: as findings, each of its own name."""
    done = []
    targets = ["/opt/scan/packages/written.py", "/opt/scan/database/written", "/usr/written"]
    for path in targets:
        try:
            open(path, "w").close()
            done.append("wrote " + path)
        except OSError:
            pass
    if set(os.listdir("/build")) & {"cache"} or any(name.startswith("staging") for name in os.listdir("/build")):
        done.append("sees all builds")
    try:
        with socket.create_connection(("192.0.2.1", 443), timeout=2):
            done.append("has a network")
    except OSError:
        pass
    if "MCP_FORGE_SECRET" in os.environ:
        done.append("has variables")
    return {"Results": [{"Vulnerabilities": [{"VulnerabilityID": what, "PkgName": "x", "InstalledVersion": "1", "Severity": "CRITICAL"} for what in done]}]}


def write(text):
    with open(answer, "w") as file:
        file.write(text)


if BEHAVIOUR == "hangs":
    time.sleep(3600)
elif BEHAVIOUR == "garbage":
    write("\x00\x1b[31m{ no json")
elif BEHAVIOUR == "nested":
    write('{"Results":' + "[" * 1_000_000)
elif BEHAVIOUR == "nothing":
    pass
elif BEHAVIOUR == "link":
    os.symlink("/etc/passwd", answer)
elif BEHAVIOUR == "directory":
    os.mkdir(answer)
elif BEHAVIOUR == "large":
    with open(answer, "wb") as file:
        for _ in range(1024):
            file.write(b"[" + b"1," * (1 << 19))
elif BEHAVIOUR == "many":
    for number in range(4096):
        with open(f"{answer}-{number}", "wb") as file:
            file.write(bytes(1 << 20))
        time.sleep(0.005)
elif BEHAVIOUR == "loud":
    for _ in range(256):
        sys.stdout.write("x" * (1 << 20))
        sys.stderr.write("y" * (1 << 20))
    sys.exit(1)
elif BEHAVIOUR == "reach":
    write(json.dumps(reach()))
else:
    write(json.dumps(findings()))
