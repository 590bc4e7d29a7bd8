# More processes than the sandbox may have at once, one after the other, then many at once.
import subprocess

for _ in range(500):
    subprocess.run(["/bin/true"], check=True)
children = [subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) for _ in range(60)]
for child in children:
    child.stdin.close()
[child.wait() for child in children] == [0] * 60
