# Tracebacks on demand, and of a crash in a child.
import faulthandler
import subprocess
import sys
import tempfile

with tempfile.TemporaryFile("w+") as file:
    faulthandler.dump_traceback(file)
    file.seek(0)
    dumped = "most recent call first" in file.read()
crash = "import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)"
done = subprocess.run([sys.executable, "-c", crash], capture_output=True, text=True)
(dumped, done.returncode, "Segmentation fault" in done.stderr) == (True, -11, True)
