# A pipeline in a shell.
import subprocess

command = "seq 1 1000 | grep 7 | sort -n | tail -1; echo err >&2; exit 3"
done = subprocess.run(command, shell=True, capture_output=True, text=True)
(done.stdout, done.stderr, done.returncode) == ("997\n", "err\n", 3)
