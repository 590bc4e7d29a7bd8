# A file of 4 GB with a hole, which takes no room.
import os

with open("/workspace/sparse", "wb") as file:
    file.seek(4 << 30)
    file.write(b"end")
status = os.stat("/workspace/sparse")
(status.st_size, status.st_blocks * 512 < 1 << 20) == ((4 << 30) + 3, True)
