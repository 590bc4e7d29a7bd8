# UTF-8 everywhere, whatever the host speaks.
import locale
import subprocess
import sys

locale.setlocale(locale.LC_ALL, "")
child = subprocess.run(["/bin/sh", "-c", "echo grün | wc -m"], capture_output=True, text=True).stdout.strip()
(locale.getpreferredencoding().lower(), sys.getfilesystemencoding(), child) == ("utf-8", "utf-8", "5")
