# File names of all kinds.
import os
from pathlib import Path

names = ["grün.txt", "日本語", "🦀", "a b\nc", os.fsdecode(b"\xff"), "x" * 255]
for name in names:
    Path("/workspace", name).write_text("hello", encoding="utf-8")
sorted(os.listdir("/workspace")) == sorted(names)
