# A module and a package that the code itself wrote.
from pathlib import Path

Path("/workspace/shapes.py").write_text("def area(a, b): return a * b")
Path("/workspace/kit").mkdir()
Path("/workspace/kit/__init__.py").write_text("from .core import NAME")
Path("/workspace/kit/core.py").write_text("NAME = 'kit'")
import kit
import shapes

(shapes.area(6, 7), kit.NAME) == (42, "kit")
