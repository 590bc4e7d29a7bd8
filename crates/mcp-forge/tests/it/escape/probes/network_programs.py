# F4: the programs that people reach for. A missing program is no pass: those of a usual host count.
import shutil
import subprocess

port = HOST["tcp_port"]
PROGRAMS = {
    "bash": ["-c", f"exec 5<>/dev/tcp/127.0.0.1/{port} && echo hello >&5"],
    "curl": ["-s", "--max-time", "1", f"http://127.0.0.1:{port}/"],
    "wget": ["-q", "-T", "1", "-t", "1", "-O", "-", f"http://127.0.0.1:{port}/"],
    "nc": ["-w", "1", "127.0.0.1", str(port)],
    "ping": ["-c", "1", "-W", "1", "127.0.0.1"],
    "ssh": ["-o", "ConnectTimeout=1", "-p", str(port), "127.0.0.1", "true"],
    "python3": ["-c", f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"],
}
there = [name for name in PROGRAMS if shutil.which(name)]
assert "bash" in there, there
for name in there:
    attempt(name, lambda: subprocess.run([name, *PROGRAMS[name]], timeout=10, capture_output=True).returncode == 0)
verdict(there=there)
