"""Packages of an environment, which a fork enters once it is sealed: they are not the operator's.

A zygote is not sealed, and its forks are what it made of them. So it starts without these packages,
in a virtual environment that has none, and nothing of theirs runs in it: no module, no `.pth` file, no
`sitecustomize`.
"""

from .originals import BUILTINS as __builtins__

import sys


def enter(prefix: str) -> None:
    """Makes this interpreter that of the virtual environment at `prefix`, as `site` does at a start."""
    import site

    sys.prefix = sys.exec_prefix = prefix
    sys.executable = prefix + "/bin/python3"
    site.PREFIXES = [prefix]
    site.addsitepackages(None)
    site.execsitecustomize()
