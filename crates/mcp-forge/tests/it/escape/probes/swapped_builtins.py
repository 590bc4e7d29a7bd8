# G10: takes the interpreter apart, then ends: the server must still hear how it went.
import builtins
import json
import time

json.dumps = os.write = time.time = sys.exit = builtins.print = lambda *a, **k: 1 / 0
builtins.__import__ = builtins.open = lambda *a, **k: 1 / 0
sys.stdout = sys.stderr = None
for name in ("len", "isinstance", "repr", "str", "type", "getattr", "Exception", "OSError"):
    delattr(builtins, name)
sys.modules.clear()
{"held": True}
