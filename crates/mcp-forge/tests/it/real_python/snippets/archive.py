# Archives of a directory, and back.
import shutil
from pathlib import Path

source = Path("/workspace/source")
source.mkdir()
(source / "a.txt").write_text("hello")
contents = []
for kind in ("zip", "tar", "gztar", "bztar", "xztar"):
    archive = shutil.make_archive(f"/workspace/{kind}", kind, source)
    shutil.unpack_archive(archive, f"/workspace/out-{kind}")
    contents.append(Path(f"/workspace/out-{kind}/a.txt").read_text())
contents == ["hello"] * 5
