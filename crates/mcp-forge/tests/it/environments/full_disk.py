"""Builds an environment on a disk of its own: too small, then with room. One JSON object a line and size.

Run in a mount namespace of its own, as: full_disk.py DIRECTORY SIZES PROGRAM ARGUMENT... The program gets the
arguments, then the command that is meant. DIRECTORY is what is full: data directory and uv's cache lie in it.
"""

import ctypes
import json
import os
import subprocess
import sys

directory, sizes, *program = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
REMOUNT, LARGE = 32, 1 << 30
MODULE = "large"
# Each module of it: a compiled file that is there by half breaks the one that it is of.
USE = f"import importlib; len([importlib.import_module(f'{MODULE}.m{{number}}') for number in range(60)])"


def mount(size, flags=0):
    options = f"size={size},mode=700".encode()
    if libc.mount(b"none", directory.encode(), b"tmpfs", flags, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")


def drop_rights():
    """Whoever is no root had rights for the mount only."""
    PR_CAP_AMBIENT, CLEAR_ALL = 47, 4
    libc.prctl(PR_CAP_AMBIENT, CLEAR_ALL, 0, 0, 0)


def run(*arguments):
    done = subprocess.run([*program, *arguments], capture_output=True, text=True, preexec_fn=drop_rights)
    return {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def below(name):
    path = os.path.join(directory, name)
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def left():
    return {
        "trees": [name for name in below("data/environments") if name != "building"],
        "usable": [name for name in below("data/environments") if os.path.exists(f"{directory}/data/environments/{name}/checked")],
        "staging": [name for name in below("uv") if name != "cache"],
    }


for size in map(int, sizes.split(",")):
    mount(size)
    told = {"size": size, "build": run("env", "build", "e", MODULE), "after": left(), "list": run("env", "list", "--json")}
    told["use"] = run("run", "--env", "e", "-c", USE)
    if told["build"]["status"] != 0:
        mount(LARGE, REMOUNT)
        told["again"] = run("env", "build", "e", MODULE)
        told["use_again"] = run("run", "--env", "e", "-c", USE)
        told["after_again"] = left()
    libc.umount2(directory.encode(), 2)
    print(json.dumps(told), flush=True)
