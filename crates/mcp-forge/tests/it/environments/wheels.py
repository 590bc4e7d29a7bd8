"""Makes wheels in a directory: harmless ones, and each kind of hostile one. Run as: wheels.py DIRECTORY KIND..."""

import base64
import hashlib
import os
import stat
import sys
import zipfile

directory = sys.argv[1]


def record_line(path, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"


def wheel(name, version="1.0", members=(), requires=(), metadata_name=None, file_name=None, record=None, twice=(), links=(), tag="py3-none-any"):
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {metadata_name or name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {f"{name}/__init__.py": b"value = 1\n"}
    files.update(members)
    files[f"{info}/METADATA"] = metadata.encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    lines = "".join(record_line(path, content) for path, content in files.items())
    lines += f"{info}/RECORD,,\n"
    path = os.path.join(directory, file_name or f"{name}-{version}-py3-none-any.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in files.items():
            archive.writestr(member, content)
        for member, content in twice:
            archive.writestr(member, content)
        for member, target in links:
            entry = zipfile.ZipInfo(member)
            entry.create_system = 3
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, target)
        archive.writestr(f"{info}/RECORD", lines if record is None else record)


def big(name):
    info = f"{name}-1.0.dist-info"
    path = os.path.join(directory, f"{name}-1.0-py3-none-any.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/__init__.py", "")
        with archive.open(f"{name}/zeros", "w") as member:
            for _ in range(300):
                member.write(bytes(1 << 20))
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{name}/__init__.py,,\n{name}/zeros,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def swollen(name):
    """A gigabyte and a half of zeros, in files of which none is large."""
    part = bytes(15 << 20)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(directory, f"{name}-1.0-py3-none-any.whl"), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(f"{name}/__init__.py", "")
        for number in range(100):
            archive.writestr(f"{name}/zeros{number}", part)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{name}/__init__.py,,\n")


def source(number):
    return "".join(f"def f{index}(a, b={number}):\n    return a * b + {index}\n" for index in range(1_000)).encode()


def sdist(name):
    import io
    import tarfile

    with tarfile.open(os.path.join(directory, f"{name}-1.0.tar.gz"), "w:gz") as archive:
        for path, text in {
            "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
            "setup.py": "import os; open('/build/ran-setup', 'w').close()\n",
        }.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


MARK = b"import os\ntry: open(os.environ.get('HOME', '/') + '/fg-wheel-ran', 'w').close()\nexcept OSError: pass\n"

KINDS = {
    "good": lambda: (wheel("good", requires=["helper"]), wheel("helper")),
    "tiny": lambda: wheel("tiny"),
    "climbing": lambda: wheel("climbing", members={"../../../../../climbed.py": b"x"}),
    "absolute": lambda: wheel("absolute", members={"/build/cache/absolute.py": b"x"}),
    "linking": lambda: wheel("linking", links=[("linking/etc", "/etc")]),
    "linked_through": lambda: wheel("linked_through", links=[("linked_through/out", "/build")], twice=[("linked_through/out/written", b"x")]),
    "doubled": lambda: wheel("doubled", twice=[("doubled/__init__.py", b"value = 2\n")]),
    "scripts": lambda: wheel("scripts", members={"scripts-1.0.data/scripts/../../../evil": b"#!/bin/sh\n"}),
    "entry": lambda: wheel("entry", members={"entry-1.0.dist-info/entry_points.txt": b"[console_scripts]\n../../evil = entry:main\n"}),
    "misnamed": lambda: wheel("misnamed", metadata_name="numpy"),
    "no_record": lambda: wheel("no_record", record=""),
    "odd_record": lambda: wheel("odd_record", record="../../../../../etc/passwd,sha256=x,1\n\x00\xff,,\n"),
    "breaking": lambda: wheel("breaking", members={"breaking/__init__.py": b"raise RuntimeError('no')\n"}),
    "dying": lambda: wheel("dying", members={"dying/__init__.py": b"import os; os._exit(3)\n"}),
    "slow_import": lambda: wheel("slow_import", members={"slow_import/__init__.py": b"import time; time.sleep(1.5)\n"}),
    "sleeping": lambda: wheel("sleeping", members={"sleeping/__init__.py": b"import time; time.sleep(600)\n"}),
    "starting": lambda: wheel("starting", members={"starting.pth": b"import os; os.environ['STARTED'] = '1'; " + MARK.replace(b"\n", b"; ").split(b"try:")[0] + b"\n", "sitecustomize.py": MARK}),
    "huge": lambda: big("huge"),
    # Files, and sources that are compiled to as much again.
    "large": lambda: wheel("large", members={**{f"large/zeros{number}": bytes(1 << 20) for number in range(12)}, **{f"large/m{number}.py": source(number) for number in range(60)}}),
    # For one version of Python only, and for one system.
    "only311": lambda: wheel("only311", file_name="only311-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", tag="cp311-cp311-manylinux_2_17_x86_64"),
    "swollen": lambda: swollen("swollen"),
    "many": lambda: wheel("many", members={f"many/f{number}.py": b"" for number in range(20_000)}),
    "source_only": lambda: sdist("source_only"),
    "blocked_below": lambda: (wheel("blocked_below", requires=["os-sys"]), wheel("os_sys")),
    "fork_bomb": lambda: wheel("fork_bomb", members={"fork_bomb/__init__.py": b"import os\nwhile True:\n    os.fork()\n"}),
}

for kind in sys.argv[2:]:
    KINDS[kind]()
