"""Makes a base image fit for sandboxes: a user, packages, nothing setuid, no compiler.

Runs once, as root, while the image is built. Standard library only: the base may have nothing else.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
USER = GROUP = 1000
# Mounted while the image is built; no part of it.
MOUNTED = {"/dev", "/proc", "/sys"}
COMPILERS = re.compile(
    r"(.*-linux-gnu-)?(cc|c\+\+|c89|c99|gcc|g\+\+|cpp|clang|clang\+\+|tcc|as|ld|ld\.bfd|ld\.gold|ld\.lld)(-[0-9.]+)?"
)


def main():
    check_version(os.environ["PYTHON"])
    add_user()
    for directory, mode, owner in [("workspace", 0o755, USER), ("tmp", 0o1777, 0)]:
        path = Path("/", directory)
        path.mkdir(exist_ok=True)
        os.chown(path, owner, owner)
        path.chmod(mode)
    install(may_install=os.environ["PACKAGES"] == "install")
    remove_compilers()
    drop_privileges_of_files()


def check_version(expected):
    found = "{}.{}".format(*sys.version_info)
    if found != expected:
        sys.exit(f"mcp-forge: error: this image is for Python {expected}, and the base image has {found}: name another with --base")


def add_user():
    """`sandbox`, 1000:1000, whoever had the name or the number before."""
    own = {
        "passwd": f"sandbox:x:{USER}:{GROUP}::/workspace:/bin/sh",
        "group": f"sandbox:x:{GROUP}:",
    }
    root = {"passwd": "root:x:0:0:root:/root:/usr/sbin/nologin", "group": "root:x:0:"}
    for name, line in own.items():
        file = Path("/etc", name)
        lines = file.read_text().splitlines() if file.exists() else [root[name]]
        others = [other for other in lines if other.split(":")[0] != "sandbox" and other.split(":")[2:3] != [str(USER)]]
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join([*others, line]) + "\n")
        file.chmod(0o644)


def install(may_install):
    """What is there already stays as it is."""
    wanted = HERE.joinpath("requirements.txt").read_text().split()
    missing = [requirement for requirement in wanted if not is_there(requirement.split("==")[0])]
    if missing and may_install:
        install_with_pip(missing)
        missing = []
    elif missing:
        print(f"mcp-forge: not installed, as asked: {', '.join(missing)}")
    check_imports([requirement for requirement in wanted if requirement not in missing])


def install_with_pip(requirements):
    pip = [sys.executable, "-I", "-m", "pip", "install", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
    # Wheels only: building a package would run its code, and need a compiler.
    command = [*pip, "--only-binary", ":all:", *requirements]
    environment = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    if subprocess.run(command, env=environment).returncode != 0:
        sys.exit("mcp-forge: error: the packages could not be installed; without a network, use a base image that has them, and --no-packages")


def is_there(distribution):
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def check_imports(requirements):
    """That a package is registered does not say that it works."""
    for requirement in requirements:
        name = requirement.split("==")[0]
        module = {"ipython": "IPython"}.get(name, name.replace("-", "_"))
        if subprocess.run([sys.executable, "-I", "-B", "-c", f"import {module}"]).returncode != 0:
            sys.exit(f"mcp-forge: error: {name} is there, and cannot be imported: see above, and mend the base image")
        print(f"mcp-forge: {name} {metadata.version(name)}")


def remove_compilers():
    for directory in ["/bin", "/usr/bin", "/usr/local/bin"]:
        for file in Path(directory).glob("*"):
            if COMPILERS.fullmatch(file.name) and not file.is_dir():
                print(f"mcp-forge: removed the compiler {file}")
                file.unlink()
    for directory in ["/usr/lib/gcc", "/usr/libexec/gcc"]:
        shutil.rmtree(directory, ignore_errors=True)


def drop_privileges_of_files():
    """no_new_privs makes setuid files and file capabilities inert; that is no reason to keep them."""
    for directory, directories, files in os.walk("/"):
        directories[:] = [name for name in directories if os.path.join(directory, name) not in MOUNTED]
        for name in files:
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            if not stat.S_ISREG(mode):
                continue
            if "security.capability" in os.listxattr(path):
                os.removexattr(path, "security.capability")
            if mode & (stat.S_ISUID | stat.S_ISGID):
                os.chmod(path, stat.S_IMODE(mode) & ~(stat.S_ISUID | stat.S_ISGID))


if __name__ == "__main__":
    main()
