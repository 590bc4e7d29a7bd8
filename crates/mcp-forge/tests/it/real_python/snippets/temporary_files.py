# Temporary files and directories, under TMPDIR and gone afterwards.
import os
import tempfile

with tempfile.TemporaryDirectory() as directory, tempfile.NamedTemporaryFile(dir=directory) as file:
    file.write(b"x" * 100_000)
    file.flush()
    size, parent = os.path.getsize(file.name), os.path.dirname(directory)
(size, parent, os.path.exists(directory)) == (100_000, "/tmp", False)
